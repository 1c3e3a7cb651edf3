"""What a grade's cases and models are derived from: nobody can guess it, or search for it."""

import stat
from itertools import combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autograder.grading.judge.jail import Jail
from autograder.grading.judge.oracle import grade_one, models_of
from autograder.grading.judge.secret import Key, kept_secret, key_of
from autograder.grading.judge.submission import Submission
from autograder.grading.refused import Refused
from autograder.judging.draws import hidden_normals, model_seed, small_model
from autograder.judging.random_models import normals, random_weights
from gpt import GPTConfig, GPTLMHead
from tests.hostile.notebooks import as_bytes, released, write

SECRET = bytes(range(32))
TINY = GPTConfig(8, n_positions=4, n_embd=4, n_layer=1, n_head=1)
HERS = Submission("ada", "generate", b"a notebook")


# ------------------------------------------------------------------------------------------- keys


def test_each_submission_has_a_key_of_its_own() -> None:
    others = [
        *(("bob", "generate", b"a notebook"), ("ada", "kv_cache", b"a notebook")),
        *(("ada", "generate", b"another notebook"), ("adagenerate", "", b"a notebook")),
    ]
    submissions = [HERS, *(Submission(*other) for other in others)]
    keys = [key_of(secret, each) for each in submissions for secret in (SECRET, bytes(32))]
    assert all(one.value != other.value for one, other in combinations(keys, 2))
    assert key_of(SECRET, HERS) == keys[0]


def test_a_key_shows_neither_itself_nor_the_secret_and_its_parts_are_told_apart() -> None:
    key = key_of(SECRET, HERS)
    assert SECRET not in (key.value, key.part("models"))
    assert key.value.hex() not in repr(key)
    assert "value" not in repr(key)
    parts = [key.part(*what) for what in (("ab", "c"), ("a", "bc"), ("abc",), ("ab", "c", ""))]
    assert len({*parts}) == len(parts)
    assert {len(part) for part in parts} == {32}


def test_the_secret_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = kept_secret(path)
    assert (len(made), kept_secret(path)) == (32, made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(Refused, match=f"Other users can read {path}.*chmod 600"):
        kept_secret(path)
    path.chmod(0o600)
    path.write_text("ab" * 31)
    with pytest.raises(Refused, match="contains no secret"):
        kept_secret(path)


# ---------------------------------------------------------------------------------------- weights


def embedding(seed: int | bytes) -> Tensor:
    return random_weights(TINY, seed)["transformer.wte.weight"]


def found_seed(seen: Tensor, seeds: range) -> int | None:
    """The attack: draw what each seed gives, until it is what was seen."""
    return next((seed for seed in seeds if torch.equal(embedding(seed)[1:4], seen)), None)


def test_a_seed_is_found_by_what_it_draws_and_a_key_is_not() -> None:
    """PyTorch keeps 32 bits of a seed. All of them are tried in minutes; here, those of a window
    around whatever number a key would be as a seed."""
    for number in (40, 2**32 + 40):
        assert found_seed(embedding(number)[1:4], range(100)) == 40
    key = key_of(SECRET, HERS).part("models", "0")
    for bits in (32, 56, 64, 256):
        for order in ("big", "little"):
            seed = int.from_bytes(key, order) % 2**bits % 2**32
            assert found_seed(embedding(key)[1:4], range(max(0, seed - 50), seed + 50)) is None


def test_models_and_memory_differ_by_submission_and_choice() -> None:
    def weights(key: Key, number: int) -> tuple[Tensor, Tensor]:
        with models_of(key, number):
            return small_model(GPTLMHead).transformer.wte.weight, hidden_normals(7)((5,))

    key, other = key_of(SECRET, HERS), key_of(bytes(32), HERS)
    own, again = weights(key, 0), weights(key, 0)
    assert all(map(torch.equal, own, again))
    for different in (weights(key, 1), weights(other, 0)):
        assert not any(map(torch.equal, own, different))
    assert isinstance(model_seed.get(), int)  # outside a grade


def test_a_keys_numbers_are_normal() -> None:
    """Against a normal distribution: mean, variance, and the largest gap between the shares of
    numbers below each (Kolmogorov and Smirnov), which stays below 1.63 / sqrt(n) in 99 of 100."""
    draw = normals(bytes(32))
    numbers = draw((100, 1000)).flatten()
    assert abs(float(numbers.mean())) < 0.01
    assert abs(float(numbers.var()) - 1) < 0.02
    below = torch.special.ndtr(numbers.sort().values)
    shares = torch.arange(1, len(numbers) + 1) / len(numbers)
    assert float((below - shares).abs().max()) < 1.63 / len(numbers) ** 0.5
    assert not torch.equal(numbers, draw((100, 1000)).flatten())


# --------------------------------------------------------------------------------------- feedback

WAYS = {
    "raised": "raise ValueError(model.transformer.wte.weight[1:4].tolist())",
    "returned": "return model.transformer.wte.weight[1:4, :8]",
    "returned as whole numbers": "return (model.transformer.wte.weight[1:2, :24] * 10**9).long()",
    "shown by a class": "return type(str(model.transformer.wte.weight.tolist()), (), {})()",
}


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("body", WAYS.values(), ids=WAYS)
def test_feedback_shows_a_few_numbers_of_a_model_at_most(body: str, jail: Jail) -> None:
    notebook = write(released("generate"), "generate.generate", body)
    submission = Submission("ada", "generate", as_bytes(notebook))
    key = key_of(SECRET, submission)
    mark = grade_one(submission, key, jail).mark("generate.generate")
    with models_of(key):
        wte = small_model(GPTLMHead).transformer.wte.weight[1:4].flatten()
    told = " ".join([*mark.paragraphs, *(value for _, value in mark.rows)])
    digits = [f"{abs(float(weight)):.6f}".replace(".", "").lstrip("0")[:4] for weight in wte]
    assert mark.points == 0
    assert sum(number in told for number in digits) <= 8
