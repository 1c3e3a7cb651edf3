"""The tables of what rounding loses: what is rounded, what it takes, and what is printed."""

import math
import re
import sys
from pathlib import Path

import pytest
import torch

from gpt import GPTLMHead
from solutions import quantized_model as quantized
from solutions.quality.bits_per_byte import HELD_OUT, logits_of, passages
from solutions.quantization import OUTLIER, absmax, int8_matmul, split_outliers
from solutions.quantized_model import inputs_of, matrices, planted_twin, with_activations
from tests.common.checkpoints import write_tiny
from tests.common.commands import resize, table_in
from timing import losses
from timing.losses import (
    by_absmax,
    by_affine,
    by_awq,
    by_gptq,
    peaks_of,
    rounded,
    rounded_embedding,
    rounded_products,
    smoothed,
)

CONTEXT, WIDTH = 64, 32
MATRICES = 2 * 12 * WIDTH**2  # numbers in those of two layers
SIZES = {"LENGTH": CONTEXT, "SCORED": 16, "CALIBRATION_LENGTH": CONTEXT, "GROUPS": (16, 8)}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, n_positions=CONTEXT, n_embd=WIDTH)
    return folder


@pytest.fixture(autouse=True)
def quick(tiny, monkeypatch):
    """A small model and short passages."""
    resize(monkeypatch, losses, "--passages", "3", MODEL=str(tiny), **SIZES)
    monkeypatch.setattr(quantized, "PLANTED", (5, 7, 20))


@pytest.fixture
def model(tiny: Path) -> GPTLMHead:
    """In float64, so that only rounding makes a difference."""
    return GPTLMHead.from_pretrained(tiny).double()


@pytest.fixture
def text(tiny: Path) -> torch.Tensor:
    return passages(HELD_OUT, str(tiny), CONTEXT)[0]


# ----------------------------------------------------------------------------- what is printed


@pytest.mark.slow
def test_every_table_has_all_its_rows(capsys):
    losses.main()
    about, *tables = capsys.readouterr().out.split("\n\n")
    assert "bits per byte, on the last 16 of 64 tokens of 3 passages" in about
    found = {head[0]: rows for head, *rows in map(table_in, tables)}
    assert {title: len(rows) for title, rows in found.items()} == {
        "matrices": 4 * (3 + 2),
        "matrices, by their inputs": 2 * 3,
        "embedding and head": 2 * 2,
        "matrices and activations": 2 * 4,
        "matrices and activations of the twin with planted outliers": 2 * 4,
    }
    for title, rows in found.items():
        for name, bits, lost, taken, megabytes in rows:
            assert name
            assert re.fullmatch(r"[+-]\d+\.\d{4} ± \d+\.\d{4}", lost)
            assert int(bits) <= float(taken) < int(bits) + 5
            numbers = 4096 * WIDTH if title == "embedding and head" else MATRICES
            assert float(megabytes) == pytest.approx(float(taken) * numbers / 8e6, abs=0.011)
    fine, coarse = (
        max(abs(float(row[2].split()[0])) for row in found["matrices"] if row[1] == bits)
        for bits in "82"
    )
    assert coarse > 10 * fine


@pytest.mark.parametrize("passed", ["1", "21", "x", "-2"])
def test_a_number_of_passages_that_there_is_not_is_refused(passed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["losses", f"--passages={passed}"])
    with pytest.raises(SystemExit):
        losses.main()
    printed = capsys.readouterr()
    assert f"{passed!r} is not a number of passages from 2 to 20." in printed.err
    assert printed.out == ""


# ------------------------------------------------------------------------- what a weight takes


def test_scales_zeros_and_factors_are_counted(model, text):
    inputs = inputs_of(model, [text])
    outputs = 2 * (3 + 1 + 4 + 1) * WIDTH
    inward = 2 * (1 + 1 + 1 + 4) * WIDTH
    taken = {
        (4, by_absmax(4, None)): 8,
        (4, by_absmax(4, 0)): outputs,
        (4, by_absmax(4, 1)): inward,
        (3, by_affine(3, 8)): 2 * MATRICES // 8,
        (3, by_awq(3, inputs)): outputs + inward,
    }
    for (bits, how), count in taken.items():
        assert rounded(model, bits, how)[1] == pytest.approx(bits + 16 * count / MATRICES)
    per_row = rounded_embedding(model, 4, 1)[1]
    assert per_row == pytest.approx(4 + 16 / WIDTH)
    assert rounded_embedding(model, 8, None)[1] == pytest.approx(8 + 16 / (4096 * WIDTH))


def test_a_matrix_has_no_more_values_than_codes(model):
    for bits in (2, 3, 4):
        for how, most in ((by_absmax(bits, 0), 2**bits - 1), (by_affine(bits, 16), 2**bits)):
            made, _ = rounded(model, bits, how)
            column = matrices(made)["transformer.h.0.attn.c_attn"].weight[:16, 3]
            assert len(column.unique()) <= most
    assert torch.equal(made.transformer.wte.weight, model.transformer.wte.weight)
    embedding = rounded_embedding(model, 2, 1)[0].transformer.wte.weight
    assert len(embedding[7].unique()) <= 3


def test_who_looks_at_the_inputs_loses_less_in_the_outputs(model, text):
    inputs = inputs_of(model, [text, text.flip(0)])
    hessians = {name: values.T @ values for name, values in inputs.items()}

    def lost(made: GPTLMHead) -> float:
        both = matrices(model), matrices(made)
        errors = [inputs[name] @ (both[0][name].weight - both[1][name].weight) for name in inputs]
        return sum(float(error.square().sum()) for error in errors)

    ways = by_absmax(3, 0), by_gptq(3, hessians), by_awq(3, inputs)
    plain, gptq, awq = (lost(rounded(model, 3, how)[0]) for how in ways)
    assert gptq < 0.9 * plain
    assert awq < plain


# -------------------------------------------------------------------- weights and activations


@pytest.mark.parametrize("outlier", [False, True])
def test_at_8_bits_the_products_are_those_of_the_lab(model, text, outlier: bool):
    codes = {name: absmax(part.weight.data, 8) for name, part in matrices(model).items()}
    by_lab = split_outliers if outlier else int8_matmul
    expected = with_activations(model, lambda hidden, name: by_lab(hidden, *codes[name]))
    made, bits = rounded_products(model, 8, threshold=OUTLIER if outlier else math.inf)
    torch.testing.assert_close(logits_of(made)(text[None]), logits_of(expected)(text[None]))
    assert bits == pytest.approx(8 + 16 * 2 * 9 * WIDTH / MATRICES)


def test_one_scale_for_all_tokens_is_shared_by_them(model, text):
    """A token's logits change with what stands behind it, though it sees nothing of that."""
    each, shared = (rounded_products(model, 4, dim)[0] for dim in (1, None))
    whole, part = text[None], text[None, :5]
    same = logits_of(each)(whole)[:, :5], logits_of(each)(part)
    torch.testing.assert_close(*same)
    other = logits_of(shared)(whole)[:, :5], logits_of(shared)(part)
    assert not torch.allclose(*other)


def test_smoothing_the_twin_leaves_its_function_and_takes_its_outliers(model, text):
    twin = planted_twin(model)
    peaks = peaks_of(inputs_of(twin, [text]))
    even = smoothed(twin, peaks)
    for made in (twin, even):
        torch.testing.assert_close(logits_of(made)(text[None]), logits_of(model)(text[None]))
    after = peaks_of(inputs_of(even, [text]))
    for name in quantized.norms_before(model):
        assert peaks[name].max() / peaks[name].median() > 10
        assert after[name].max() / after[name].median() < 10
