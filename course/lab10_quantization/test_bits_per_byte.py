"""Bits for a byte of text, and what one model loses beside another."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig, GPTLMHead, load_tokenizer
from solutions.quality.bits_per_byte import (
    CALIBRATION,
    HELD_OUT,
    LENGTH,
    Loss,
    bits_per_byte,
    logits_of,
    loss,
    passages,
)
from tests.common.engines import model_of

CONFIG = GPTConfig(vocab_size=4096, n_positions=24, n_embd=16, n_layer=1, n_head=2)
TEXTS = "Once there was a king.\nHe had — so they say — a wolf.\n\n'Who are you?' said the fox.\n"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS, encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------- the passages


@pytest.mark.parametrize(
    ("file", "count", "length"), [(HELD_OUT, 20, LENGTH), (CALIBRATION, 8, 512)]
)
def test_the_shipped_passages_are_long_enough(file: Path, count: int, length: int) -> None:
    found = passages(file, length=length)
    assert [len(ids) for ids in found] == [length] * count
    assert len({tuple(ids.tolist()) for ids in found}) == count


def test_what_is_held_out_is_no_part_of_what_calibrates() -> None:
    """No stretch of 16 tokens stands in both."""
    stretches = [
        {tuple(ids[i : i + 16].tolist()) for ids in passages(file) for i in range(len(ids) - 15)}
        for file in (HELD_OUT, CALIBRATION)
    ]
    assert not stretches[0] & stretches[1]


def test_an_empty_line_ends_a_passage(written: Path) -> None:
    tokenizer, found = load_tokenizer("fable"), passages(written)
    first, second = TEXTS.strip().split("\n\n")
    assert [tokenizer.decode(ids) for ids in found] == [first, second]
    assert [ids.tolist() for ids in passages(written, length=3)] == [f[:3].tolist() for f in found]


# ---------------------------------------------------------------------------------- bits for a byte


@pytest.mark.parametrize("scored", [1, 5])
def test_bits_are_those_of_a_plain_loop(written: Path, scored: int) -> None:
    """A token after the other, each by the probability that it has behind those before it."""
    tokenizer, model = load_tokenizer("fable"), model_of(GPTLMHead, CONFIG, 0)
    texts = passages(written, length=CONFIG.n_positions)
    expected = []
    for ids in texts:
        bits, n_bytes = 0.0, len(tokenizer.decode(ids[-scored:]).encode())
        for end in range(len(ids) - scored, len(ids)):
            logits = model(ids[None, :end], torch.arange(end)[None])[0, -1]
            bits -= math.log2(logits.softmax(dim=0)[ids[end]].item())
        expected.append(bits / n_bytes)
    before = [ids.clone() for ids in texts]
    found = bits_per_byte(logits_of(model), texts, scored=scored)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(ids, old) for ids, old in zip(texts, before, strict=True))


@pytest.mark.slow
def test_fable_needs_the_bits_of_its_model_card() -> None:
    """On the passages, which are a small part of what its card was measured on."""
    found = bits_per_byte(logits_of(GPTLMHead.from_pretrained("fable")), passages()[:4])
    assert found.mean().item() == pytest.approx(1.636, abs=0.2)


# ---------------------------------------------------------------------------------- what is lost


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=2, max_size=20))
def test_a_loss_is_the_mean_of_differences_with_its_standard_error(pairs):
    measured, compared = torch.tensor(pairs, dtype=torch.float64).unbind(dim=1)
    differences = [one - other for one, other in pairs]
    mean = sum(differences) / len(pairs)
    variance = sum((each - mean) ** 2 for each in differences) / (len(pairs) - 1)
    found = loss(measured, compared)
    assert found.bits == pytest.approx(mean, abs=1e-9)
    assert found.error == pytest.approx(math.sqrt(variance / len(pairs)), abs=1e-9)


def test_a_loss_is_written_with_its_sign_and_its_error() -> None:
    assert str(Loss(0.0534, 0.00211)) == "+0.0534 ± 0.0021"
    assert str(Loss(-0.00004, 0.0)) == "-0.0000 ± 0.0000"
