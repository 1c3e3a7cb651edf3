"""Answers to lab 1's exercises: the naive loop, and its metrics."""

from types import SimpleNamespace

import torch

from solutions.generate import Metrics, generate, metrics
from tests.common.attempts import right, wrong

# -------------------------------------------------------------------------------------- generate


@right(generate)
def padded_on_the_right(model, input_ids, max_new_tokens, eos_token_id=None):
    """Computes positions after the end, which the causal mask hides."""
    full, seq = model.config.n_positions, input_ids.shape[1]
    ids = torch.zeros(len(input_ids), full, dtype=torch.long)
    ids[:, :seq] = input_ids
    end = min(seq + max_new_tokens, full)
    for i in range(seq, end):
        logits = model.forward(ids, position_ids=torch.arange(full).expand_as(ids))
        ids[:, i] = logits[:, i - 1].argmax(-1)
        if eos_token_id is not None and ids[0, i] == eos_token_id:
            return ids[:, : i + 1]
    return ids[:, :end]


@right(generate)
def asking_the_model(model, input_ids, max_new_tokens, eos_token_id=None):
    model.train(False)
    weights = model.transformer.wte.weight
    assert (model.training, weights.device) == (False, next(model.parameters()).device)
    room = len(model.transformer.wpe.weight) - input_ids.shape[1]
    return generate(model, input_ids.to(weights.device), min(max_new_tokens, room), eos_token_id)


@wrong(generate)
def in_a_window(model, input_ids, max_new_tokens, eos_token_id=None):
    def windowed(ids, position_ids):
        return model(ids[:, -8:], position_ids[:, -8:])

    windowed.config = model.config
    return generate(windowed, input_ids, max_new_tokens, eos_token_id)


@wrong(generate)
def identity_for_equality(model, input_ids, max_new_tokens, eos_token_id=None):
    for _ in range(min(max_new_tokens, model.config.n_positions - input_ids.shape[1])):
        input_ids = generate(model, input_ids, 1)
        if input_ids[0, -1].item() is eos_token_id:
            break
    return input_ids


@wrong(generate, "differs first")
def token_0_taken_for_a_pad(model, input_ids, max_new_tokens, eos_token_id=None):
    def padded(ids, position_ids):
        return model(ids, ((ids != 0).cumsum(1) - 1).clamp(min=0))

    padded.config = model.config
    return generate(padded, input_ids, max_new_tokens, eos_token_id)


@wrong(generate, "right, but it took 2 forward calls; 1 suffice")
def a_spare_forward_at_the_end(model, input_ids, max_new_tokens, eos_token_id=None):
    out = generate(model, input_ids, max_new_tokens, eos_token_id)
    model(out, torch.arange(out.shape[1]).expand_as(out))
    return out


wrong(generate, "should be a tensor", "not None. Is a `return`")(lambda *given, **named: None)


# --------------------------------------------------------------------------------------- metrics


@right(metrics)
def tensors_in_an_object_of_its_own(start, token_times):
    times = torch.tensor(token_times, dtype=torch.float64) - start
    return SimpleNamespace(
        ttft=times[0],
        tpot=times.diff().mean() if len(times) > 1 else None,
        latency=times[-1],
        throughput=len(times) / times[-1],
    )


@wrong(metrics)
def tpot_of_the_first_gap_alone(start, token_times):
    found = metrics(start, token_times)
    tpot = token_times[1] - token_times[0] if found.tpot else None
    return Metrics(found.ttft, tpot, found.latency, found.throughput)


@wrong(metrics, "You compute latency as TTFT + TPOT * n.")
def throughput_of_a_latency_too_long(start, token_times):
    n, found = len(token_times), metrics(start, token_times)
    latency = found.ttft + (found.tpot or 0) * n
    return Metrics(found.ttft, found.tpot, latency, n / latency)


wrong(metrics, "What it returned is None; ", "Is a `return` missing")(lambda *given: None)
wrong(metrics, "lacks `tpot`, `latency`, `throughput`")(
    lambda start, token_times: SimpleNamespace(ttft=token_times[0] - start)
)
