"""Ranks in real processes: the same results and sentences as in one thread, and nothing is left."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import astuple
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from course.lab18_parallelism import row as row
from gpt import GPTLMHead
from solutions import parallelism
from solutions.engine import engine
from solutions.engine.limits import Limits
from solutions.kv_cache import CachedLMHead, generate
from solutions.ranks.group import Stuck, in_turns
from solutions.ranks.processes import Processes, from_environment, in_processes
from solutions.ranks.tensor_parallel import Functions, TensorParallelLMHead, engine_tokens
from tests.common.checkpoints import write_tiny
from timing import wire
from timing.table import Bench, Verifier
from timing.table.workloads import RAGGED, Workload

CUT = Functions(
    parallelism.shard, parallelism.vocab_parallel_embedding, parallelism.tensor_parallel_block
)
PROMPTS = [[7, 300, 41, 5], list(range(100, 170)), [9], list(range(40))]
LIMITS = Limits(32, 8, 24, 3)
ONES = torch.ones(2)


def every_call():
    """Return a function that makes every call. One of this module's own would be imported by each
    process, with all that is imported here."""

    def work(group):
        x = torch.arange(6.0).view(2, 3) + group.rank
        results = [group.all_reduce(x), group.all_reduce(x.T, "max"), *group.all_gather(x.T)]
        results += [group.all_reduce(x.sum()), group.all_reduce(x[:0]), group.all_reduce(x.int())]
        results += [group.reduce_scatter([x * rank for rank in range(group.size)])]
        results += group.all_to_all([x[: group.rank, :to] for to in range(group.size)])
        results += group.all_to_all([x.long()[0, 0]] * group.size)
        for given in (x.T, x[:0], x.double()) if group.size > 1 else ():
            if group.rank == 0:
                group.send(given, group.size - 1)
            elif group.rank == group.size - 1:
                results.append(group.recv(torch.zeros_like(given), 0))
        return [(str(y.dtype), y.tolist()) for y in results], group.calls, group.sent

    return work


@pytest.fixture(scope="module", autouse=True)
def own_folder(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield


def left() -> list[object]:
    processes = [process for process in active_children() if process.name.startswith("rank ")]
    return [*processes, *Path(tempfile.gettempdir()).glob("ranks-*")]


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """They serve one test after the other, also after failures."""
    with Processes(2) as ranks:
        yield ranks
    assert not left()


@pytest.mark.slow
def test_processes_answer_as_one_thread_does(two):
    work = every_call()
    for _ in range(2):  # counted from 0 in each run
        assert two.run(work) == in_turns(2, work)
    for size in (1, 3):
        assert in_processes(size, work) == in_turns(size, work)


@pytest.mark.slow
@pytest.mark.parametrize(
    "work",
    [
        lambda group: group.send(ONES, 1 - group.rank),
        lambda group: group.all_reduce(torch.ones(2 + group.rank)),
    ],
)
def test_stuck_processes_say_the_same(two, work):
    start = time.monotonic()
    sentences = []
    for run in (two.run, lambda work: in_turns(2, work)):
        with pytest.raises(Stuck) as raised:
            run(work)
        sentences.append(str(raised.value))
    assert sentences[0] == sentences[1]
    assert time.monotonic() - start < two.seconds / 2  # long before the limit
    assert not left()


@pytest.mark.slow
def test_an_exception_comes_with_its_traceback(two):
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__("odd")  # so it can't be unpickled

    def work(group, error):
        if group.rank == 1:
            raise error(1, 2)
        group.all_reduce(ONES)

    with pytest.raises(KeyError) as raised:
        two.run(work, KeyError)
    assert "On rank 1" in raised.value.__notes__[0]
    assert "raise error(1, 2)" in raised.value.__notes__[0]
    assert not left()
    with pytest.raises(RuntimeError, match="Odd"):
        two.run(work, Odd)


@pytest.mark.slow
@pytest.mark.parametrize("is_checked", [True, False])
def test_a_killed_process_is_noticed(is_checked):
    def work(group):
        group.all_reduce(ONES)
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(ONES)

    with (
        Processes(2, is_checked=is_checked) as ranks,
        pytest.raises(RuntimeError, match="Rank 1's process has died; its exit code is -9"),
    ):
        ranks.run(work)
    assert not left()


@pytest.mark.slow
def test_interrupts_and_limits_end_the_processes():
    def work(group):
        time.sleep(100 * (1 - group.rank))
        group.all_reduce(ONES)

    with Processes(2, seconds=0.5) as ranks:
        with pytest.raises(
            TimeoutError, match=r"After 0\.5 seconds rank 0 computes, and rank 1 wai"
        ):
            ranks.run(work)
        assert not left()
        ranks.seconds = 60
        ranks.run(lambda group: None)  # they have started
        interrupt = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            ranks.run(work)
        assert not left()


@pytest.mark.slow
def test_torchrun_starts_ranks_too(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from solutions.ranks.processes import from_environment\n"
        "with from_environment() as group:\n"
        "    total = group.all_reduce(torch.tensor([1 + group.rank]))\n"
        "    print(f'{group.size} ranks: {int(total)}', flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = subprocess.run([*run, program], env=environment, capture_output=True, text=True)
    assert found.stdout.count("2 ranks: 3") == 2, found.stderr
    monkeypatch.delenv("RANK", raising=False)
    with (
        pytest.raises(RuntimeError, match=r"names no rank\. Start this program with `torchrun"),
        from_environment(),
    ):
        pass


# -------------------------------------------------------------------------- the engine on the ranks


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, n_embd=32, n_head=4, n_positions=128)
    return folder


def tokens_of_one_process(folder: Path) -> list[list[int]]:
    new_ids: list[list[int]] = [[] for _ in PROMPTS]

    def note(output: engine.Output) -> None:
        new_ids[output.request] += output.new_ids

    whole = engine.new_engine(CachedLMHead.from_pretrained(folder), LIMITS, note)
    for prompt in PROMPTS:
        whole.submit(prompt, 12)
    whole.run()
    return new_ids


@pytest.mark.parametrize(("size", "limits"), [(1, astuple(LIMITS)), (2, LIMITS), (4, LIMITS)])
def test_the_engine_gives_each_rank_its_tokens(tiny, size, limits):
    found = in_turns(size, engine_tokens, tiny, CUT, PROMPTS, 12, limits)
    assert found == [tokens_of_one_process(tiny)] * size


def test_a_rank_runs_in_other_loops_too(tiny):
    def work(group):
        model = TensorParallelLMHead.from_pretrained(tiny, group, CUT)
        assert (model.config.n_head, model.config.head_dim) == (2, 8)
        return generate(model, prompt, 12)

    prompt = torch.tensor(PROMPTS[:1])
    expected = generate(CachedLMHead.from_pretrained(tiny), prompt, 12)
    assert all(ids.equal(expected) for ids in in_turns(2, work))


@pytest.mark.slow
def test_the_row_of_the_table(tiny, tmp_path):
    bench = Bench(tiny, torch.device("cpu"))
    workload = Workload(RAGGED, RAGGED, "", PROMPTS, [5, 6, 7, 8])
    prepared = row.ROWS["tensor-parallel"][RAGGED](bench)
    try:
        run = Verifier(bench.load(GPTLMHead)).run(workload, "tensor-parallel", prepared)
    finally:
        row.processes().close()
    assert [len(times) for times in run.token_times] == workload.new_tokens
    assert run.tokens_computed == sum(map(len, PROMPTS)) + 5 + 6 + 7 + 8 - len(PROMPTS)
    write_tiny(tmp_path, n_embd=33, n_head=3, n_layer=1, n_positions=8)
    odd = row.tensor_parallel(Bench(tmp_path, torch.device("cpu")))
    assert "this model's 3 heads don't divide among 2 processes" in odd.why


def test_the_wire_model_is_found_again():
    seconds = {size: 2e-4 + 1e-9 * size for size in wire.SIZES}
    found = wire.fitted(seconds)
    assert (found.alpha, found.beta) == pytest.approx((2e-4, 1e-9))
    assert found.seconds(25, 25_600) == pytest.approx(25 * 2e-4 + 25_600e-9)
    times = in_turns(2, wire.call_seconds, "send", [4, 400])[0]
    assert list(times) == [4, 400]
