"""Lab 10: the engine with weights in 8 bits."""

import functools
from dataclasses import replace

from torch import nn

from course.lab07_engine.row import engine_of
from gpt import GPTLMHead
from timing.table import COARSE_HAIR, ROUNDED, Bench, Lossy, Own, Rows, Served, in_8_bits, loss_of
from timing.table.workloads import EQUAL, LENGTHS, RAGGED
from timing.work import weight_bytes


@functools.cache  # several workloads use the same models, and measuring a loss takes seconds
def in_codes(bench: Bench) -> tuple[nn.Module, Lossy]:
    """Return a model of the lab's codes, and what verifies it: a naive one like it."""
    exact = bench.load()
    model = bench.lab("quantization").quantized(exact)
    now, before = (weight_bytes(model) / 1e6 for model in (model, exact))
    wins = f"{now:.1f} MB of weights instead of {before:.1f}"
    lost = loss_of(model, exact, bench.folder)
    return model, Lossy(ROUNDED, in_8_bits(bench.load(GPTLMHead)), COARSE_HAIR, wins, lost)


def int8(bench: Bench) -> Served:
    """Prepare the engine. Codes and scales come from the lab; PyTorch's kernel multiplies them."""
    about = "the engine with matrices, embedding and head in 8 bits (lab 10)"
    model, lossy = in_codes(bench)
    return replace(engine_of(bench, about), model=model, lossy=lossy)


ROWS: Rows = {"int8": dict.fromkeys([LENGTHS, RAGGED], int8)}
KINDS = LENGTHS, RAGGED, EQUAL
OWN = [Own("your codes of 8 bits (lab 10)", "quantization", ["absmax"], KINDS, int8)]
