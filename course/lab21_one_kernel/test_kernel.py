"""The kernel computes what the engine's usual runner does, and each row as if it were alone."""

import copy
import itertools
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.text.reference import ROOT
from course.lab20_llama.test_engine import VARIANTS, llama_of
from course.lab21_one_kernel.test_solution import in_either_form
from gpt import GPTConfig
from solutions.compiled.choice import SIZES, kernel_runner, measured
from solutions.compiled.drafter import KernelDrafter
from solutions.compiled.kernel import PAUSES, Kernel, Trials
from solutions.compiled.runner import KernelRunner
from solutions.compiled.weights import Codes, weights_of, weights_of_codes
from solutions.compiler import ON, announced, cache_folder
from solutions.decoding import SamplingParams
from solutions.engine.engine import Parts, new_engine
from solutions.engine.limits import Limits
from solutions.engine.runner import Chunk, FastCache, Runner, new_runner
from solutions.families import load_model
from solutions.gguf.file import GGUF
from solutions.kv_cache import CachedLMHead, generate
from solutions.one_kernel import OVER, most_rows, take_share
from solutions.paged_attention import BlockManager, PagedCache
from solutions.prefix_caching import PrefixManager
from solutions.quantization import quantized
from tests.checkpoints.test_own_codes import write
from tests.common.engines import model_of, shuffled
from tests.common.serving import Load, loads, serve

FIRST, *OTHERS = "tied", "gpt2", *(each for each in VARIANTS if each != "tied")
every_family = pytest.mark.parametrize(
    "family", [FIRST, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
as_many_as_are_quick = settings() if ON else settings(max_examples=3)
WIDE = GPTConfig(vocab_size=80, n_positions=40, n_embd=48, n_layer=2, n_head=3)


@cache
def small(family: str, config: GPTConfig = WIDE, seed: int = 0) -> Any:
    """Return a random model in float32."""
    is_gpt2 = family == "gpt2"
    model = model_of(CachedLMHead, config, seed) if is_gpt2 else llama_of(family, config, seed)
    with torch.inference_mode(False):
        return copy.deepcopy(model).float()


class Checked(KernelRunner):
    """Computes each step in both ways, on the same pool, and asserts that they agree."""

    def forward(self, batch: Any) -> dict[int, torch.Tensor]:
        usual = Runner(self.transformer, self.lm_head, self.kv_cache).forward(batch)
        usual = {request: logits.clone() for request, logits in usual.items()}
        ours = super().forward(batch)
        assert ours.keys() == usual.keys()
        for request, expected in usual.items():
            assert ours[request].shape == expected.shape
            if len(expected):
                most = self.tolerance * float(expected.abs().max())
                torch.testing.assert_close(ours[request], expected, rtol=0, atol=most)
        return ours

    tolerance = 1e-4


def checking(model: Any, *given: Any, threads: int = 2, **named: Any) -> Any:
    """Return lab 7's engine, in float32, with a runner that checks the kernel."""
    model = copy.deepcopy(model).float()
    engine = new_engine(model, *given, **named)
    cache: Any = engine.runner.kv_cache
    engine.runner = Checked(engine.runner, Kernel(model, cache.cache.pool, threads), most_rows=12)
    return engine


@every_family
def test_each_step_is_the_engines_own(family: str) -> None:
    """Chunks, preemption, drafts and the prefix cache: whatever the scheduler plans."""

    @as_many_as_are_quick
    @given(loads(), st.sampled_from([BlockManager, PrefixManager]), st.sampled_from([1, 2, 3]))
    def each_load(load: Load, manager: Any, threads: int) -> None:
        def make(model: Any, *given: Any, **named: Any) -> Any:
            if family != "gpt2":
                model = llama_of(family, load.config, load.seed)
            parts = Parts(block_manager=manager)
            return checking(model, *given, threads=threads, parts=parts, **named)

        serve(replace(load, make=make))

    each_load()


# ------------------------------------------------------------------------- the same bits everywhere


def logits_of(
    model: Any,
    cuts: list[list[int]],
    order: list[int],
    threads: int,
    seed: int,
    weights: Any = None,
) -> list[torch.Tensor]:
    """Return the logits after each token of some texts, in shuffled blocks.

    cuts: for each text, the lengths of the chunks in which it is computed. order: which text gets
    a chunk into the same step next; a text that comes a second time begins a new step. weights:
    the kernel's, if they aren't `weights_of` the model.
    """
    lengths = [sum(each) for each in cuts]
    manager = shuffled(BlockManager(sum(length // 4 + 1 for length in lengths), 4), seed)
    for number, length in enumerate(lengths):
        manager.allocate(number, length)
    cache = FastCache(PagedCache(model.config, manager))
    kernel = Kernel(model, cache.cache.pool, threads, weights)
    runner = KernelRunner(new_runner(model, cache), kernel, 99)
    texts = [
        [(7 * number + i) % 80 for i in range(length)] for number, length in enumerate(lengths)
    ]
    done, found = [0] * len(cuts), [list[torch.Tensor]() for _ in cuts]
    left, batch = [list(each) for each in cuts], list[Chunk]()

    def run() -> None:
        for request, logits in runner.forward(batch).items():
            found[request].append(logits)
        batch.clear()

    for number in order:
        if any(chunk.request == number for chunk in batch):
            run()
        size = left[number].pop(0)
        ids = texts[number][done[number] : done[number] + size]
        batch.append(Chunk(number, ids, done[number], len(ids)))
        done[number] += size
    run()
    return [torch.cat(each) for each in found]


@st.composite
def ways(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Draw in which chunks three texts of 9, 20 and 13 tokens are computed, and in which order."""
    cuts = []
    for length in 9, 20, 13:
        ends = sorted(draw(st.sets(st.integers(1, length - 1), max_size=length - 1)))
        cuts.append([b - a for a, b in zip([0, *ends], [*ends, length], strict=True)])
    order = [number for number, sizes in enumerate(cuts) for _ in sizes]
    return cuts, draw(st.permutations(order))


@in_either_form
@every_family
def test_a_rows_bits_depend_on_nothing_else(family: str) -> None:
    """Not on who else is served, on chunks, the order, the blocks, or the threads."""
    model = small(family)
    alone = logits_of(model, [[1] * 9, [1] * 20, [1] * 13], [0] * 9 + [1] * 20 + [2] * 13, 1, 0)

    @as_many_as_are_quick
    @given(ways(), st.sampled_from([1, 2, 3]), st.integers(0, 99))
    def each_way(way: Any, threads: int, seed: int) -> None:
        cuts, order = way
        found = logits_of(model, cuts, order, threads, seed)
        assert all(a.equal(b) for a, b in zip(alone, found, strict=True))

    each_way()


# ------------------------------------------------------------------------------- codes as weights


def steps_agree(model: Any, weights: Any, tolerance: float) -> None:
    """Serve a prompt in chunks and some tokens; assert that each step is the usual one's."""
    engine = new_engine(model, Limits(16, 4, 8, 2), lambda output: None)
    pool = engine.runner.kv_cache.cache.pool
    engine.runner = checked = Checked(engine.runner, Kernel(model, pool, 2, weights), 12)
    checked.tolerance = tolerance
    for prompt in list(range(5, 17)), [60, 2, 45]:
        engine.submit(prompt, 3)
    engine.run()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_codes_of_8_bits_are_taken_as_they_are(family: str, tmp_path: Path) -> None:
    """PyTorch's kernels round activations to bfloat16, this one doesn't."""
    is_gpt2 = family == "gpt2"
    model = quantized(small("gpt2") if is_gpt2 else load_model(write(tmp_path, "q8_0", family)))
    weights = weights_of(model)
    matrices = weights.wte, weights.c_attn, weights.mlp_proj
    assert {str(matrix.weight.dtype) for matrix in matrices} == {"int8"}
    steps_agree(model, weights, tolerance=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["q4_0", "q4_1"])
def test_a_files_own_codes_are_taken_as_they_are(precision: str, tmp_path: Path) -> None:
    """The file's numbers, in float32 elsewhere, are the codes that the kernel multiplies by."""
    file = write(tmp_path, precision, "qwen3-biases")
    model = load_model(file)
    weights = weights_of_codes(model, GGUF(file))
    assert isinstance(weights.c_attn, Codes)
    assert weights.c_attn.weight.dtype == np.uint8
    steps_agree(model, weights, tolerance=1e-4)
    alone = logits_of(model, [[1, 1, 1], [1, 1]], [0, 0, 0, 1, 1], 1, 0, weights)
    together = logits_of(model, [[2, 1], [2]], [0, 1, 0], 2, 1, weights)
    assert all(a.equal(b) for a, b in zip(alone, together, strict=True))


def test_a_file_whose_layers_have_other_codes_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = write(tmp_path, "q4_0")
    model, opened = load_model(file, codes=True), GGUF(file)
    name = "blk.1.ffn_down.weight"
    opened.tensors[name] = opened.tensors[name]._replace(kind=3)
    with pytest.raises(ValueError, match=r"4-bit codes of one kind for all mlp\.c_proj"):
        weights_of_codes(model, opened)


# ---------------------------------------------------------------------------------------- drafts


def continued(model: Any, ids: list[int], count: int) -> list[int]:
    return generate(model, torch.tensor([ids]), count)[0, len(ids) :].tolist()


def test_drafts_of_a_kernel_are_what_the_draft_model_says_next() -> None:
    """Also after tokens that were drafted otherwise, and only while it is sure."""
    model = small("gpt2")
    drafter = KernelDrafter(model)
    drafter.least = 0.0
    given: Any = SamplingParams(), torch.Generator()
    drafts, probs = drafter.propose([1, 2, 3], 4, *given)
    assert drafts == continued(model, [1, 2, 3], 4)
    assert probs.argmax(dim=-1).tolist() == drafts
    drafter.truncate(4)
    other = [1, 2, 3, drafts[0], (drafts[1] + 1) % 80, 7]
    assert drafter.propose(other, 2, *given)[0] == continued(model, other, 2)
    drafter.truncate(len(other))
    drafter.least = 1.0
    assert len(drafter.propose([*other, 5], 3, *given)[0]) == 1


# ------------------------------------------------------------------------------------ the threads


def test_every_share_is_taken_once_and_nobody_leaves_before_all_are_done() -> None:
    """A thread that comes late finds nothing to do, and one that never comes isn't waited for."""
    counters, shares = np.zeros((2, 1), np.int64), 500
    taken: list[list[int]] = [[], [], []]

    def work(mine: list[int]) -> None:
        share = take_share(counters, 0, shares, OVER)
        while share != OVER:
            mine.append(share)
            share = take_share(counters, 0, shares, share)
        assert counters[1, 0] == shares

    threads = [threading.Thread(target=work, args=(mine,)) for mine in taken[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(taken[2])
    assert sorted(taken[0] + taken[1]) == list(range(shares))
    assert taken[2] == []


def test_the_faster_way_is_taken_and_the_other_tried_now_and_then() -> None:
    trials, slow_together = Trials(), {True: 3.0, False: 2.0}
    chosen = []
    for _ in range(200):
        chosen.append(way := trials.choose())
        trials.note(way, slow_together[way])
    tried = [i for i, way in enumerate(chosen) if way]
    assert tried == [0, 17, 49, 113]  # the first, then after 16, 32 and 64 steps
    for _ in range(200):
        way = trials.choose()
        trials.note(way, 1.0 if way else 2.0)  # now the machine is quiet
    assert trials.best is True
    assert trials.pause <= PAUSES[1]


# ------------------------------------------------------------------------------ when it is worth it


def test_up_to_the_first_size_at_which_it_is_slower() -> None:
    assert most_rows([1, 2, 4, 8], [1, 1, 1, 1], [2, 1, 0.5, 2]) == 2
    assert most_rows([1, 2, 4, 8], [3, 1, 1, 1], [2, 2, 2, 2]) == 0
    assert most_rows([1, 2, 4], [1, 1], [2, 2]) == 2  # the third size wasn't timed


@pytest.mark.needs("numba")
def test_times_are_measured_once_and_kept(tmp_path: Path, monkeypatch: Any) -> None:
    model = small("gpt2")
    usual = new_runner(model, FastCache(PagedCache(model.config, BlockManager(8, 4))))
    runner = kernel_runner(model, usual, weights_of(model), tmp_path)
    assert runner.most_rows in (0, *SIZES)
    monkeypatch.setattr("solutions.compiled.choice.measured", None)  # isn't called again
    assert kernel_runner(model, usual, weights_of(model), tmp_path).most_rows == runner.most_rows
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.needs("numba")
def test_a_slow_machine_measures_fewer_sizes() -> None:
    model = small("gpt2")
    usual = new_runner(model, FastCache(PagedCache(model.config, BlockManager(8, 4))))
    times = measured(model, usual, weights_of(model), clock=itertools.count(0, 10).__next__)
    assert {name: len(each) for name, each in times.items()} == {"kernel": 1, "usual": 1}


# -------------------------------------------------------------------------------------- two forms

PLAIN = """
import sys, torch
from course.lab21_one_kernel.test_kernel import logits_of, small
from solutions.compiler import ON
assert not ON
found = [logits_of(small(f), [[3, 1], [1, 2]], [0, 1, 1, 0], 2, 0) for f in sys.argv[2:]]
torch.save(found, sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.needs("numba")
def test_compiled_and_as_python_it_computes_the_same(tmp_path: Path) -> None:
    families = "gpt2", "llama3, norms of heads, untied"
    file = tmp_path / "plain.pt"
    run = [sys.executable, "-c", PLAIN, str(file), *families]
    subprocess.run(run, check=True, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, cwd=ROOT)
    for family, plain in zip(families, torch.load(file), strict=True):
        found = logits_of(small(family), [[3, 1], [1, 2]], [0, 1, 1, 0], 2, 0)
        for ours, expected in zip(found, plain, strict=True):
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_compiled_code_is_kept_apart_for_each_version_of_the_sources(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("a")
    other.write_text("b")
    before = cache_folder(tmp_path, [one, other])
    assert cache_folder(tmp_path, [one, other]) == before
    other.write_text("c")
    assert cache_folder(tmp_path, [one, other]) != before


def test_only_a_compilation_that_takes_long_is_announced(capsys: Any) -> None:
    with announced(0):
        time.sleep(0.2)
    assert capsys.readouterr().err.startswith("Compiling")
    with announced(1000):
        pass
    assert capsys.readouterr().err == ""
