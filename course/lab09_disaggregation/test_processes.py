"""Two real processes: the texts are those of one engine, whichever of the two is killed."""

import os
import pickle
import random
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate, pairwise
from multiprocessing import Pipe, active_children
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from gpt import GPTLMHead
from solutions import disaggregation
from solutions import generate as lab_1
from solutions.decoding import GREEDY, SamplingParams, stream
from solutions.disaggregation import Leases, StallFree, adopt, pack_kv, unpack_kv
from solutions.engine.engine import Output
from solutions.kv_cache import CachedLMHead
from solutions.two_processes.messages import Ask, Piece
from solutions.two_processes.processes import DECODE, PREFILL, Apart
from solutions.two_processes.sides import Pieces, Room
from solutions.two_processes.transport import SLOT_BYTES, SLOTS, Raw, Wire
from tests.common.checkpoints import write_tiny

pytestmark = pytest.mark.slow  # each process reads PyTorch first

PIECES = Pieces(StallFree, pack_kv, unpack_kv, adopt, Leases)
AMPLE = Room(num_blocks=64, block_size=16, token_budget=32, max_running=8)
SAMPLED = SamplingParams(temperature=2.0, top_k=50)
PROMPTS = [[7, 300, 41, 5], list(range(100, 170)), [9], list(range(40))]
A_TOKEN = 2 * 2 * 32 * 4  # bytes: keys and values, layers, width, float32


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, n_embd=32, n_positions=512)
    return folder


@pytest.fixture(scope="module", params=[False, True], ids=["memory", "pipe"])
def both(request: pytest.FixtureRequest, tiny: Path) -> Iterator[Apart]:
    """It serves one test after the other, also after deaths."""
    rooms = AMPLE, replace(AMPLE, block_size=8)
    with Apart(tiny, PIECES, *rooms, by_pipe=request.param) as started:
        yield started


def alone(
    folder: Path, prompt: list[int], limit: int, params: SamplingParams = GREEDY, seed: int = 0
) -> list[int]:
    """The new tokens that one request gets by itself."""
    if params == GREEDY:
        model = GPTLMHead.from_pretrained(folder)
        return lab_1.generate(model, torch.tensor([prompt]), limit)[0].tolist()[len(prompt) :]
    generator = torch.Generator().manual_seed(seed)
    return list(stream(CachedLMHead.from_pretrained(folder), prompt, limit, params, generator))


def assert_nothing_is_held(both: Apart) -> None:
    """Both say so, once what is on its way has arrived."""
    while any(statistics.held for statistics in both.statistics().values()):
        pass


def wait_for_a_token(both: Apart, request: int, count: int = 1) -> None:
    while len(both.new_ids[request]) < count:
        both.poll(1.0)


def test_texts_are_those_of_each_request_alone_and_bytes_are_exact(both: Apart, tiny: Path) -> None:
    before = both.statistics()
    requests = [both.submit(prompt, 12) for prompt in PROMPTS]
    outputs = list(both)
    for request, prompt in zip(requests, PROMPTS, strict=True):
        assert both.new_ids[request] == alone(tiny, prompt, 12)
        own = [output for output in outputs if output.request == request]
        assert [token for output in own for token in output.new_ids] == both.new_ids[request]
        assert [output.finish_reason for output in own] == [None] * 11 + ["length"]
        times = both.times[request]
        assert len(times) == 12
        assert sorted([both.came[request], *times]) == [both.came[request], *times]
    assert_nothing_is_held(both)
    after = both.statistics()
    tokens = sum(map(len, PROMPTS))
    for name in (PREFILL, DECODE):
        assert after[name].bytes - before[name].bytes == tokens * A_TOKEN
    assert after[PREFILL].tokens - before[PREFILL].tokens == tokens
    assert after[DECODE].tokens - before[DECODE].tokens == 11 * len(PROMPTS)
    assert after[PREFILL].messages - before[PREFILL].messages == 2 * len(PROMPTS)  # Ask, Last


def test_spans_of_a_lane_lie_behind_one_another(both: Apart) -> None:
    both.submit(list(range(100)), 5)
    both.run()
    lanes = both.lanes()
    for name, kinds in ((PREFILL, {"compute", "send"}), (DECODE, {"compute", "receive"})):
        own = [lane for lane in lanes if lane[0] == name]
        assert {what for _, what, _, _ in own} == kinds
        for kind in kinds:
            spans = [(start, start + seconds) for _, what, start, seconds in own if what == kind]
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
            assert all(start <= end for start, end in spans)


def test_an_abort_ends_a_request_and_nobody_else(both: Apart, tiny: Path) -> None:
    requests = [both.submit(prompt, 200) for prompt in PROMPTS[:3]]
    wait_for_a_token(both, requests[0])
    both.abort(requests[0])
    told = len(both.new_ids[requests[0]])
    both.run()
    assert both.reasons[requests[0]] == "abort"
    assert len(both.new_ids[requests[0]]) == told
    for request, prompt in list(zip(requests, PROMPTS, strict=False))[1:]:
        assert both.new_ids[request] == alone(tiny, prompt, 200)
    assert_nothing_is_held(both)


@pytest.mark.slow
@pytest.mark.parametrize("names", [[DECODE], [PREFILL], [PREFILL, DECODE]], ids=str)
def test_sides_that_are_killed_change_no_text(both: Apart, tiny: Path, names: list[str]) -> None:
    kinds = [(prompt, params) for prompt in PROMPTS for params in (GREEDY, SAMPLED)]
    given = [(prompt, 100, None, params, seed) for seed, (prompt, params) in enumerate(kinds)]
    requests = [both.submit(*arguments) for arguments in given]
    wait_for_a_token(both, requests[0], 3)
    before = [both.processes[name] for name in names]
    for process in before:
        os.kill(process.pid, signal.SIGKILL)
    both.run()
    assert not {*before} & {*both.processes.values()}
    for request, (prompt, limit, _, params, seed) in zip(requests, given, strict=True):
        assert both.new_ids[request] == alone(tiny, prompt, limit, params, seed)
        assert both.reasons[request] == "length"
    assert_nothing_is_held(both)


def test_what_needs_no_side_is_answered_at_the_edge(both: Apart) -> None:
    with pytest.raises(ValueError, match="outside the model's range"):
        both.submit([5000], 3)
    request = both.submit([1] * 512, 3)
    assert both.poll() == [Output(request, [], "length")]
    assert both.new_ids[request] == []


# ------------------------------------------------------------------------------ what goes wrong


@pytest.mark.slow
def test_a_side_that_is_stopped_past_the_lease_loses_nothing(tiny: Path) -> None:
    little = replace(AMPLE, num_blocks=8)
    with Apart(tiny, PIECES, AMPLE, little, lease_seconds=0.3) as both:
        requests = [both.submit(PROMPTS[0], 100)]
        wait_for_a_token(both, requests[0])
        os.kill(both.processes[DECODE].pid, signal.SIGSTOP)
        requests.append(both.submit(PROMPTS[1], 50))
        attempt = both.router.stories[requests[1]].attempt
        while both.router.stories[requests[1]].attempt < attempt + 2:  # it has begun again, twice
            both.poll(0.1)
        os.kill(both.processes[DECODE].pid, signal.SIGCONT)
        both.run()
        for request, prompt, limit in zip(requests, PROMPTS, (100, 50), strict=False):
            assert both.new_ids[request] == alone(tiny, prompt, limit)
        assert_nothing_is_held(both)
        with pytest.raises(ValueError, match="the decode side has room for 128"):
            both.submit(PROMPTS[1], 60)


@pytest.mark.slow
def test_a_side_that_comes_back_with_other_weights_is_refused(tmp_path: Path) -> None:
    model = write_tiny(tmp_path, n_embd=32)
    with Apart(tmp_path, PIECES, AMPLE, AMPLE) as both:
        both.submit(PROMPTS[0], 900)
        with torch.no_grad():
            model.transformer.wte.weight *= 1.5
        model.save_pretrained(tmp_path)
        os.kill(both.processes[DECODE].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"different models.*Start both from the same"):
            both.run()


@pytest.mark.slow
def test_a_side_that_dies_again_and_again_is_given_up_with_a_sentence(tiny: Path) -> None:
    with Apart(tiny, PIECES, AMPLE, AMPLE) as both:
        os.kill(both.processes[PREFILL].pid, signal.SIGSTOP)  # so that there is no token
        both.submit(PROMPTS[0], 9)
        killed = set()

        def kill_and_wait() -> None:
            while True:
                process = both.processes[DECODE]
                killed.add(process.pid)
                process.kill()
                both.poll(1.0)

        with pytest.raises(RuntimeError, match=r"died 3 times, and no request got .* was -9"):
            kill_and_wait()
        assert len(killed) == 3


@pytest.mark.slow
def test_what_a_piece_raises_is_raised_here(tiny: Path) -> None:
    def forgetful(engine: Any, number: int, message: Any) -> None:
        raise LookupError("the keys are gone")

    with Apart(tiny, replace(PIECES, adopt=forgetful), AMPLE, AMPLE) as both:
        both.submit([9], 3)
        with pytest.raises(RuntimeError, match=r"decode side has failed(?s:.)*the keys are gone"):
            both.run()


@pytest.mark.slow
def test_no_process_and_no_memory_is_left(tiny: Path) -> None:
    both = Apart(tiny, PIECES, AMPLE, AMPLE)
    name, processes = both.settings[PREFILL].arena, list(both.processes.values())
    both.submit(PROMPTS[1], 400)
    wait_for_a_token(both, 0)
    both.close()
    both.close()
    assert not {process.pid for process in processes} & {p.pid for p in active_children()}
    assert [process.exitcode for process in processes] == [0, 0]
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def test_a_model_that_is_none_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    before = active_children()
    with pytest.raises(ValueError, match="has no configuration"):
        Apart(tmp_path, PIECES, AMPLE, AMPLE)
    assert set(active_children()) <= set(before)


NOTEBOOK = """
from solutions.two_processes.processes import Apart
from solutions.two_processes.sides import Pieces, Room

pieces = Pieces(StallFree, pack_kv, unpack_kv, adopt, Leases)
room = Room(64, 16, 32, 8)
with Apart(FOLDER, pieces, room, room) as both:
    request = both.submit(PROMPT, 12)
    both.run()
    print(both.new_ids[request])
"""


@pytest.mark.slow
def test_pieces_out_of_a_notebook_go_along_by_value(tiny: Path) -> None:
    """They are in no module that a process could import; and nobody has anything to complain of."""
    source = Path(disaggregation.__file__).read_text()
    told = f"FOLDER, PROMPT = {str(tiny)!r}, {PROMPTS[1]}\n"
    done = subprocess.run(
        [sys.executable, "-c", source + told + NOTEBOOK],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == f"{alone(tiny, PROMPTS[1], 12)}\n"


# ------------------------------------------------------------------------------------- the wire


@pytest.fixture(params=[True, False], ids=["memory", "pipe"])
def arena(request: pytest.FixtureRequest) -> Iterator[SharedMemory | None]:
    if not request.param:
        yield None
        return
    memory = SharedMemory(create=True, size=SLOTS * SLOT_BYTES)
    yield memory
    memory.close()
    memory.unlink()


def wires(arena: SharedMemory | None, pool: torch.Tensor) -> tuple[Wire, Wire]:
    one, other = Wire(pool, arena, perf_counter), Wire(pool, arena, perf_counter)
    for wire, end in zip((one, other), Pipe(), strict=True):
        wire.connect(end)
    return one, other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_sent_arrives_bit_by_bit_and_in_order(arena: Any, dtype: Any) -> None:
    """More than all slots hold, in pieces of any size, while the other side reads."""
    pool = torch.zeros(2, 3, 4, 4, 2, 8, dtype=dtype)
    one, other = wires(arena, pool)
    rng = random.Random(0)
    sent: list[Any] = []
    for key in range(80):
        shape = 2, 1, rng.choice([1, 7, 700, 9000]), 2, 8
        sent.append(Piece(key, key % 3, rng.randrange(9), torch.randn(shape, dtype=dtype)))
        sent.append(Ask(key, [1, 2, 3], 9))
    sent[0].kv.view(-1)[:3] = torch.tensor([torch.nan, torch.inf, -0.0])

    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(lambda: deque(map(one.send, sent)))
        received: list[Any] = []
        while not received or received[-1] != sent[-1]:
            received += other.receive()
        sending.result()
    assert [m for m in received if isinstance(m, Ask)] == sent[1::2]
    for piece in sent[::2]:
        parts = [m for m in received if isinstance(m, Piece) and m.key == piece.key]
        assert {part.layer for part in parts} == {piece.layer}
        starts = accumulate((part.kv.shape[2] for part in parts[:-1]), initial=piece.start)
        assert [part.start for part in parts] == list(starts)
        bits = torch.cat([part.kv for part in parts], dim=2).numpy().tobytes()
        assert bits == piece.kv.numpy().tobytes()
    size = sum(piece.kv.nbytes for piece in sent[::2])
    assert one.statistics.bytes == other.statistics.bytes == size
    assert one.statistics.messages == 80
    assert size > SLOTS * SLOT_BYTES


def test_what_is_sent_to_nobody_is_lost_and_the_next_one_hears_again(arena: Any) -> None:
    pool = torch.zeros(2, 3, 4, 4, 2, 8)
    one, other = wires(arena, pool)
    piece = Piece(0, 0, 0, torch.randn(2, 1, 5, 2, 8))
    other.disconnect()
    for _ in range(3 * SLOTS):
        one.send(piece)
    assert list(one.receive()) == []
    here, there = Pipe()
    one.connect(here)
    other.connect(there)
    for _ in range(3 * SLOTS):
        one.send(piece)
        [found] = other.receive()
        torch.testing.assert_close(found.kv, piece.kv, rtol=0, atol=0)


def test_a_transfer_that_is_cut_in_its_middle_is_no_piece() -> None:
    here, there = Pipe()
    wire = Wire(torch.zeros(2, 3, 4, 4, 2, 8), None, perf_counter)
    wire.connect(there)
    here.send_bytes(pickle.dumps(Raw(0, 0, 0, 5, None)))
    here.close()
    assert list(wire.receive()) == []
    assert wire.connection is None
