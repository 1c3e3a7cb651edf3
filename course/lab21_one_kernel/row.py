"""Lab 21: the engine with one compiled function for a step."""

import functools
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from course.lab06_speculative.row import draft_for
from course.lab07_engine.row import engine_of
from course.lab10_quantization.row import in_codes
from course.lab20_llama.row import on_codes
from timing.table import Bench, NotTimed, Own, Rows, Served, is_learners
from timing.table.workloads import EQUAL, LENGTHS, RAGGED, Workload

DRAFTS = 4  # in a round, at most


@functools.cache  # a copy of the weights for all workloads and repeats
def weights(model: Any, folder: Path) -> Any:
    from solutions.compiled.weights import weights_of

    return weights_of(model, folder)


def with_kernel(served: Served, bench: Bench, always: bool = False) -> Served:
    """Return the row whose engine takes the kernel as long as it is faster, or always.

    Then its parts are the learner's, where there are any.
    """
    if find_spec("numba") is None:
        raise NotTimed("it needs numba: pip install numba")
    from solutions.compiled.choice import EVERY_STEP, kernel_runner, runner_of

    held, lab = weights(served.model, bench.folder), bench.lab("one_kernel")
    step = step_of(lab)

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> Any:
        engine = served.new_engine(model, workload, on_output)
        if always:
            given = held, EVERY_STEP, step, lab.rows_of
            engine.runner = runner_of(model, engine.runner, *given)
        else:
            engine.runner = kernel_runner(model, engine.runner, held)
        return engine

    return replace(served, new_engine=new_engine)


def step_of(lab: ModuleType) -> Callable[..., None]:
    """Return the step, compiled anew if some of its parts are a learner's."""
    from autograder.check import mark_passed
    from solutions.compiled.assemble import PARTS, assemble
    from solutions.compiled.steps import step

    own = {part: getattr(lab, part) for part in PARTS if is_learners(lab, part)}
    for part in own.values():
        mark_passed(part)  # `mine`, which they come from, has checked them again
    return assemble(**own) if own else step


def kernel(bench: Bench) -> Served:
    about = "the engine; a narrow step is one compiled function (lab 21)"
    return with_kernel(engine_of(bench, about), bench)


def kernel_int8(bench: Bench) -> Served:
    about = "the same with matrices, embedding and head in 8 bits (lab 21)"
    model, lossy = in_codes(bench)
    return with_kernel(replace(engine_of(bench, about), model=model, lossy=lossy), bench)


def kernel_codes(bench: Bench) -> Served:
    about = "the same on the file's own codes of 4 bits (lab 21)"
    model, lossy = on_codes(bench)
    return with_kernel(replace(engine_of(bench, about), model=model, lossy=lossy), bench)


def same_bits(bench: Bench) -> Served:
    """Prepare the engine whose results don't depend on who else is served."""
    about = "every step is that function: the same bits in any company (lab 21)"
    return with_kernel(engine_of(bench, about), bench, always=True)


def kernel_drafts(bench: Bench) -> Served:
    """Prepare the engine with a draft model; drafting and verifying are both done by kernels."""
    model = bench.for_engine()
    draft, name = draft_for(bench, model)
    about = f"up to {DRAFTS} drafts from {name}; its steps, too, are one function (lab 21)"
    served = with_kernel(replace(engine_of(bench, about), model=model), bench)
    from solutions.compiled.drafter import KernelDrafter

    held = weights(draft, bench.folder)

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> Any:
        engine = served.new_engine(model, workload, on_output)
        engine.new_drafter, engine.k = functools.partial(KernelDrafter, draft, held), DRAFTS
        return engine

    return replace(served, new_engine=new_engine)


KINDS = LENGTHS, RAGGED, EQUAL
ROWS: Rows = {
    "kernel": dict.fromkeys(KINDS, kernel),
    "kernel-int8": dict.fromkeys(KINDS, kernel_int8),
    "kernel-codes": dict.fromkeys(KINDS, kernel_codes),
    "same-bits": dict.fromkeys(KINDS, same_bits),
    "kernel-drafts": {LENGTHS: kernel_drafts},
}
PARTS = ["multiply", "attend", "mlp", "rows_of"]
OWN = [Own("your kernel (lab 21)", "one_kernel", PARTS, [LENGTHS], same_bits)]
if find_spec("numba") is None:  # then it isn't one that could be timed
    OWN = []
