"""Its row: 8 bits in plain sight, and a kernel that does what the codes say."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from solutions import kv_cache as lab2
from solutions import quantization as lab10
from solutions.quantized_model import QuantizedLMHead, bytes_of, matrices
from tests.common.timed import CONTEXT, Sabotage, assert_marked, rows_of
from timing.table import Bench, Prepare, in_8_bits
from timing.table.workloads import LENGTHS, RAGGED

pytestmark = pytest.mark.usefixtures("quick")


def in_codes(model: lab2.CachedLMHead) -> QuantizedLMHead:
    """Its layers multiply by the codes in plain sight."""
    return lab10.quantized(model, lab10.QuantizedLinear.from_linear)


def test_what_8_bits_are_held_against_has_the_weights_of_the_codes(tiny):
    exact = lab2.CachedLMHead.from_pretrained(tiny)
    before = {name: weight.clone() for name, weight in exact.state_dict().items()}
    naive, codes = in_8_bits(exact), in_codes(exact)
    assert torch.equal(naive.transformer.wte.weight, codes.embedding.weight)
    for name, linear in matrices(naive).items():
        layer: Any = codes.get_submodule(name)
        assert torch.equal(linear.weight, layer.codes * layer.scale)
        assert torch.equal(linear.bias, layer.bias)
    assert all(torch.equal(weight, before[name]) for name, weight in exact.state_dict().items())


def test_a_row_of_rounded_weights_is_marked_and_tells_what_it_loses(table, tiny):
    args = "--workloads", "lengths,ragged", "--tokens", "7", "--techniques", "engine,int8"
    printed, result = table(*args)
    assert_marked("int8", printed, result)
    assert "# int8, 7 new tokens: its weights are rounded." in printed
    exact, rounded = rows_of(result, "ragged").values()
    for key in ("batch", "tokens_computed", "kv_bytes", "kv_bytes_reserved"):
        assert rounded[key] == exact[key]
    codes = lab10.quantized(lab2.CachedLMHead.from_pretrained(tiny))
    assert rounded["weight_bytes"] == bytes_of(codes) - CONTEXT * 32 * 4
    assert rounded["weight_bytes"] < 0.3 * exact["weight_bytes"]


def other_codes(part: str) -> Sabotage:
    """A kernel that doesn't do what the codes say."""

    def prepare_it(prepare: Prepare, bench: Bench) -> Any:
        row: Any = prepare(bench)
        model = deepcopy(row.model)  # other tests run the same one
        layer = model.get_submodule(part)
        layer.codes.copy_(layer.codes.roll(1, 0))
        return replace(row, model=model)

    return prepare_it


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("part", ["embedding", "transformer.h.1.mlp.c_fc"])
@pytest.mark.parametrize("kind", [LENGTHS, RAGGED])
def test_other_codes_are_never_timed(assert_stopped, part, kind):
    assert_stopped("int8", kind, other_codes(part))
