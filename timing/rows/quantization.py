"""Lab 10: the engine over weights in 8 bits."""

import functools
from dataclasses import replace

from torch import nn

from gpt import GPTLMHead
from timing.rows.bench import Bench, Own, Rows
from timing.rows.engine import engine_of
from timing.table.lossy import Lossy, in_8_bits, loss_of
from timing.table.served import Served
from timing.table.verify import COARSE_HAIR, ROUNDED
from timing.table.workloads import EQUAL, LENGTHS, RAGGED
from timing.work import weight_bytes


@functools.cache  # several workloads run the same models, and to measure a loss takes seconds
def in_codes(bench: Bench) -> tuple[nn.Module, Lossy]:
    """A model of the lab's codes, held against the naive one of what they stand for."""
    exact = bench.load()
    model = bench.lab("quantization").quantized(exact)
    now, before = (weight_bytes(model) / 1e6 for model in (model, exact))
    wins = f"{now:.1f} MB of weights instead of {before:.1f}"
    lost = loss_of(model, exact, bench.folder)
    return model, Lossy(ROUNDED, in_8_bits(bench.load(GPTLMHead)), COARSE_HAIR, wins, lost)


def int8(bench: Bench) -> Served:
    """Codes and scales of the matrices are the lab's; PyTorch's kernel multiplies by them."""
    about = "the engine over matrices, embedding and head in 8 bits (lab 10)"
    model, lossy = in_codes(bench)
    return replace(engine_of(bench, about), model=model, lossy=lossy)


ROWS: Rows = {"int8": dict.fromkeys([LENGTHS, RAGGED], int8)}
KINDS = LENGTHS, RAGGED, EQUAL
OWN = [Own("your codes of 8 bits (lab 10)", "quantization", ["absmax"], KINDS, int8)]
