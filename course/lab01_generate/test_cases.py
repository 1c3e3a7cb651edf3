"""Lab 1: its models are worth asking."""

import pytest
import torch

from autograder.judging.draws import LOOP, small_model
from autograder.judging.random_models import random_model, random_weights
from autograder.lending.services import CountedModel
from gpt import GPTConfig, GPTLMHead
from solutions.generate import generate


def test_a_counted_model_counts_and_returns_what_the_model_does() -> None:
    model = small_model(GPTLMHead)
    ids = torch.arange(6).view(2, 3)
    position_ids = torch.arange(3).expand_as(ids)
    counted = CountedModel(model)
    assert torch.equal(counted(ids, position_ids), model(ids, position_ids))
    counted(ids[:, :1], position_ids=position_ids[:, :1])
    assert counted.counts() == {"forward calls": 2, "tokens computed": 8}


@pytest.mark.parametrize(
    "config", [LOOP, GPTConfig(32, 12, 16, 1, 2), GPTConfig(40, 20, 24, 3, 3)], ids=str
)
def test_greedy_output_of_a_random_model_depends_on_all_that_it_should(config: GPTConfig) -> None:
    """On the positions and on the first token: else errors in either would stay hidden."""
    distinct = position_counts = first_counts = 0
    for seed in range(8):
        model = random_model(GPTLMHead, config, seed)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(config.vocab_size, (4, 4), generator=generator)
        out, other = generate(model, ids, 6), ids.clone()
        other[:, 0] = (other[:, 0] + 1) % config.vocab_size
        position_ids = torch.arange(9).expand(4, 9)
        best, shifted = (model(out[:, :-1], shift + position_ids).argmax(-1) for shift in (0, 1))
        distinct += sum(len({*row}) for row in out[:, 4:].tolist())
        position_counts += int((best != shifted).any(dim=1).sum())
        first_counts += int((generate(model, other, 6)[:, 4:] != out[:, 4:]).any(dim=1).sum())
    assert distinct > 3 * 8 * 4
    assert position_counts == 8 * 4
    assert first_counts > 0.8 * 8 * 4


def test_random_weights_follow_from_the_seed_and_are_float64() -> None:
    weights, again, other = (random_weights(LOOP, seed) for seed in (0, 0, 1))
    assert all(weight.dtype == torch.float64 for weight in weights.values())
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["transformer.wte.weight"], other["transformer.wte.weight"])
