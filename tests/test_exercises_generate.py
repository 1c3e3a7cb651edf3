"""Lab 1's exercises: right answers in other styles pass, and wrong ones that were seen don't.

Here stand attempts that nobody told the exercises about; the misconceptions are tested with those
of all labs.
"""

import re
from itertools import pairwise
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from autograder.draws import LOOP, small_model
from autograder.exercises import exercises
from autograder.judge import PASSED, judge
from autograder.services import CountedModel, random_model, random_weights
from gpt import GPTConfig, GPTLMHead
from solutions.generate import Metrics, generate, metrics
from tests.common.attempts import attempt_at
from tests.common.trials import is_rejected

RIGHT: list[Any] = []
WRONGS: list[Any] = []
GENERATE, METRICS = "generate.generate", "generate.metrics"


# ------------------------------------------------------------------------------- generate, right


@attempt_at(RIGHT, GENERATE)
def preallocated(model, input_ids, max_new_tokens, eos_token_id=None):
    batch, seq = input_ids.shape
    end = min(seq + max_new_tokens, model.config.n_positions)
    out = torch.empty(batch, end, dtype=input_ids.dtype)
    out[:, :seq] = input_ids
    for i in range(seq, end):
        out[:, i] = model(out[:, :i], torch.arange(i).repeat(batch, 1))[:, -1].argmax(-1)
        if eos_token_id is not None and out[0, i] == eos_token_id:
            return out[:, : i + 1]
    return out


@attempt_at(RIGHT, GENERATE)
def recursive(model, input_ids, max_new_tokens, eos_token_id=None):
    if max_new_tokens == 0 or input_ids.shape[1] >= model.config.n_positions:
        return input_ids
    position_ids = torch.arange(input_ids.shape[1])[None].repeat(len(input_ids), 1)
    best = torch.softmax(model.forward(input_ids, position_ids=position_ids), -1).argmax(-1)
    longer = torch.hstack([input_ids, best[:, -1:]])
    if eos_token_id is not None and longer[0, -1].item() == eos_token_id:
        return longer
    return recursive(model, longer, max_new_tokens - 1, eos_token_id)


@attempt_at(RIGHT, GENERATE)
def lists(model, input_ids, max_new_tokens, eos_token_id=None):
    device = next(model.eval().parameters()).device
    rows = input_ids.tolist()
    for _ in range(max_new_tokens):
        if len(rows[0]) == model.config.n_positions:
            break
        ids = torch.tensor(rows, device=device)
        _, best = model(ids, torch.ones_like(ids).cumsum(1) - 1)[:, -1].max(-1)
        rows = [[*row, int(new)] for row, new in zip(rows, best, strict=True)]
        if rows[0][-1] == eos_token_id:
            break
    return torch.tensor(rows)


@attempt_at(RIGHT, GENERATE)
def right_padded(model, input_ids, max_new_tokens, eos_token_id=None):
    """Computes behind the end, where the causal mask keeps it from mattering."""
    full, seq = model.config.n_positions, input_ids.shape[1]
    ids = torch.zeros(len(input_ids), full, dtype=torch.long)
    ids[:, :seq] = input_ids
    end = min(seq + max_new_tokens, full)
    for i in range(seq, end):
        logits = model(ids, torch.arange(full).expand_as(ids))
        ids[:, i] = logits[:, i - 1].argmax(-1)
        if eos_token_id is not None and ids[0, i] == eos_token_id:
            return ids[:, : i + 1]
    return ids[:, :end]


@attempt_at(RIGHT, GENERATE)
def asking_the_model(model, input_ids, max_new_tokens, eos_token_id=None):
    model.train(False)
    weights = model.transformer.wte.weight
    assert (model.training, weights.device) == (False, next(model.parameters()).device)
    room = len(model.transformer.wpe.weight) - input_ids.shape[1]
    input_ids = input_ids.to(weights.device)
    return generate(model, input_ids, min(max_new_tokens, room), eos_token_id)


# ------------------------------------------------------------------------------- generate, wrong


@attempt_at(WRONGS, GENERATE)
def a_window_of_the_last_tokens(model, input_ids, max_new_tokens, eos_token_id=None):
    def windowed(ids, position_ids):
        return model(ids[:, -8:], position_ids[:, -8:])

    windowed.config = model.config
    return generate(windowed, input_ids, max_new_tokens, eos_token_id)


@attempt_at(WRONGS, GENERATE)
def identity_for_equality(model, input_ids, max_new_tokens, eos_token_id=None):
    for _ in range(min(max_new_tokens, model.config.n_positions - input_ids.shape[1])):
        input_ids = generate(model, input_ids, 1)
        if input_ids[0, -1].item() is eos_token_id:
            break
    return input_ids


@attempt_at(WRONGS, GENERATE)
def a_spare_forward_at_the_end(model, input_ids, max_new_tokens, eos_token_id=None):
    out = generate(model, input_ids, max_new_tokens, eos_token_id)
    model(out, torch.arange(out.shape[1]).expand_as(out))
    return out


@attempt_at(WRONGS, GENERATE)
def no_default_for_eos(model, input_ids, max_new_tokens, eos_token_id):
    return generate(model, input_ids, max_new_tokens, eos_token_id)


REMEMBERED: dict[Any, Any] = {}


@attempt_at(WRONGS, GENERATE)
def remembering_by_shape(model, input_ids, max_new_tokens, eos_token_id=None):
    def remembered(ids, position_ids):
        if ids.shape not in REMEMBERED:
            REMEMBERED[ids.shape] = model(ids, position_ids)
        return REMEMBERED[ids.shape]

    remembered.config = model.config
    return generate(remembered, input_ids, max_new_tokens, eos_token_id)


# ---------------------------------------------------------------------------------------- metrics


@attempt_at(RIGHT, METRICS)
def gaps_averaged(start, token_times):
    gaps = [b - a for a, b in pairwise(token_times)]
    latency = token_times[-1] - start
    tpot = mean(gaps) if gaps else None
    return Metrics(token_times[0] - start, tpot, latency, len(token_times) / latency)


@attempt_at(RIGHT, METRICS)
def arrays(start, token_times):
    times = np.array(token_times) - start
    tpot = np.diff(times).mean() if len(times) > 1 else None
    return Metrics(times[0], tpot, times[-1], np.int64(len(times)) / times[-1])


@attempt_at(RIGHT, METRICS)
def tensors_in_an_object_of_its_own(start, token_times):
    times = torch.tensor(token_times, dtype=torch.float64) - start
    return SimpleNamespace(
        ttft=times[0],
        tpot=times.diff().mean() if len(times) > 1 else None,
        latency=times[-1],
        throughput=len(times) / times[-1],
    )


@attempt_at(WRONGS, METRICS)
def TPOT_only_of_the_first_gap(start, token_times):
    right = metrics(start, token_times)
    tpot = token_times[1] - token_times[0] if right.tpot else None
    return Metrics(right.ttft, tpot, right.latency, right.throughput)


# -------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_another_style_passes(name: str, attempt: Any) -> None:
    for seed in range(3):
        judgement = judge(exercises()[name], attempt, seed)
        assert judgement.status == PASSED, judgement


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_what_was_seen_to_slip_through_is_rejected(name: str, attempt: Any) -> None:
    for seed in range(5):
        REMEMBERED.clear()
        assert is_rejected(exercises()[name], attempt, seed)


def forgetful(start, token_times):
    metrics(start, token_times)


def lacking(start, token_times):
    return SimpleNamespace(ttft=token_times[0] - start)


def yielding(start, token_times):
    yield metrics(start, token_times)


def floats(model, input_ids, max_new_tokens, eos_token_id=None):
    return generate(model, input_ids, max_new_tokens, eos_token_id).float()


async def later(start, token_times):
    return metrics(start, token_times)


@pytest.mark.parametrize(
    ("name", "attempt", "sentence"),
    [
        (METRICS, forgetful, "What it returned is None; .* Is a `return` missing"),
        (METRICS, lacking, "lacks `tpot`, `latency`, `throughput`"),
        (METRICS, yielding, "Take `yield` out of it"),
        (METRICS, later, "Take `async` away"),
        (GENERATE, lambda *args, **kwargs: None, "should be a tensor .*, not None. Is a `return`"),
        (GENERATE, a_spare_forward_at_the_end, "right, but it took 2 forward calls; 1 suffice"),
        (GENERATE, floats, "holds floats; expected integers"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_the_sentence_helps(name: str, attempt: Any, sentence: str) -> None:
    message = judge(exercises()[name], attempt).message
    assert re.search(sentence, message), message


# --------------------------------------------------------------------- models worth asking


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
    changed = {"positions": 0, "first token": 0}
    distinct = trials = 0
    for seed in range(8):
        model = random_model(GPTLMHead, config, seed)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(config.vocab_size, (4, 4), generator=generator)
        out = generate(model, ids, 6)
        other = ids.clone()
        other[:, 0] = (other[:, 0] + 1) % config.vocab_size
        seen = out[:, :-1]
        position_ids = torch.arange(seen.shape[1]).expand_as(seen)
        logits, shifted = model(seen, position_ids), model(seen, 1 + position_ids)
        for row in range(len(ids)):
            trials += 1
            distinct += len(set(out[row, 4:].tolist()))
            changed["positions"] += not torch.equal(logits[row].argmax(-1), shifted[row].argmax(-1))
            changed["first token"] += not torch.equal(
                generate(model, other[row : row + 1], 6)[0, 4:], out[row, 4:]
            )
    assert distinct / trials > 3
    assert changed["positions"] == trials
    assert changed["first token"] > 0.8 * trials


def test_random_weights_follow_from_the_seed_and_are_float64() -> None:
    weights, again, other = (random_weights(LOOP, seed) for seed in (0, 0, 1))
    assert all(weight.dtype == torch.float64 for weight in weights.values())
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["transformer.wte.weight"], other["transformer.wte.weight"])
