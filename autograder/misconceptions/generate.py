"""Misconceptions of lab 1.

The wrong loops are all one loop, `loop`, with one thing changed; what it is changed by is written
out beside the sentence.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.exercise import Misconception
from solutions.generate import Metrics, metrics

Ids = Int[Tensor, "batch seq"]
Logits = Float[Tensor, "batch seq vocab"]


# ------------------------------------------------------------------------------------- generate


def all_positions(ids: Ids, prompt_length: int) -> Int[Tensor, " seq"]:
    return torch.arange(ids.shape[1])


def best_of_last_row(logits: Logits) -> Int[Tensor, "batch 1"]:
    return logits[:, -1].argmax(dim=-1, keepdim=True)


def steps_with_room(max_new_tokens: int, room: int) -> int:
    return min(max_new_tokens, room)


def new_token_is_eos(ids: Ids, next_ids: Ids, eos_token_id: int) -> bool:
    return next_ids.item() == eos_token_id


def loop(
    model: Any,
    input_ids: Ids,
    max_new_tokens: int,
    eos_token_id: int | None = None,
    *,
    positions: Callable[[Ids, int], Int[Tensor, " seq"]] = all_positions,
    choose: Callable[[Logits], Ids] = best_of_last_row,
    steps: Callable[[int, int], int] = steps_with_room,
    ends: Callable[[Ids, Ids, int], bool] = new_token_is_eos,
    feed: Callable[[Ids], Ids] = lambda ids: ids,
    finish: Callable[[Ids, Ids, int | None], Ids] = lambda ids, prompt, eos: ids,
) -> Ids:
    ids = input_ids
    for _ in range(steps(max_new_tokens, model.config.n_positions - ids.shape[1])):
        fed = feed(ids)
        position_ids = positions(ids, input_ids.shape[1])[-fed.shape[1] :]
        next_ids = choose(model(fed, position_ids.expand_as(fed)))
        ids = torch.cat([ids, next_ids], dim=1)
        if eos_token_id is not None and ends(ids, next_ids, eos_token_id):
            break
    return finish(ids, input_ids, eos_token_id)


def new_from_0(ids: Ids, prompt_length: int) -> Int[Tensor, " seq"]:
    return torch.cat([torch.arange(prompt_length), torch.arange(ids.shape[1] - prompt_length)])


def new_all_0(ids: Ids, prompt_length: int) -> Int[Tensor, " seq"]:
    positions = torch.arange(ids.shape[1])
    return positions.where(positions < prompt_length, 0)


def new_one_too_far(ids: Ids, prompt_length: int) -> Int[Tensor, " seq"]:
    positions = torch.arange(ids.shape[1])
    return positions.where(positions < prompt_length, positions + 1)


def first_row_for_all(logits: Logits) -> Int[Tensor, "batch 1"]:
    return logits[0, -1].argmax().expand(len(logits), 1)


def without_eos(ids: Ids, prompt: Ids, eos_token_id: int | None) -> Ids:
    ended = ids.shape[1] > prompt.shape[1] and ids[0, -1] == eos_token_id
    return ids[:, :-1] if ended else ids


def with_eos_twice(ids: Ids, prompt: Ids, eos_token_id: int | None) -> Ids:
    ended = ids.shape[1] > prompt.shape[1] and ids[0, -1] == eos_token_id
    return torch.cat([ids, ids[:, -1:]], dim=1) if ended else ids


def cut_behind_eos(ids: Ids, prompt: Ids, eos_token_id: int | None) -> Ids:
    new = ids[0, prompt.shape[1] :].tolist()
    if eos_token_id not in new:
        return ids
    return ids[:, : prompt.shape[1] + new.index(eos_token_id) + 1]


def eos_before_first_step(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    if eos_token_id is not None and input_ids[0, -1] == eos_token_id:
        return input_ids
    return loop(model, input_ids, max_new_tokens, eos_token_id)


def eos_0_is_none(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id or None)


def changed_in_place(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    input_ids.data = loop(model, input_ids, max_new_tokens, eos_token_id)
    return input_ids


def total_length(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens - input_ids.shape[1], eos_token_id)


def window_slides(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    n_positions = model.config.n_positions

    def last_positions(ids: Ids, prompt_length: int) -> Int[Tensor, " seq"]:
        return torch.arange(min(ids.shape[1], n_positions))

    return loop(
        model,
        input_ids,
        max_new_tokens,
        eos_token_id,
        positions=last_positions,
        feed=lambda ids: ids[:, -n_positions:],
        steps=lambda max_new_tokens, room: max_new_tokens,
    )


class NewTokensSurvive:
    """Collects the new tokens in a list that is never emptied."""

    def __init__(self) -> None:
        self.collected: list[Ids] = []

    def __call__(
        self, model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
    ) -> Ids:
        ids = loop(model, input_ids, max_new_tokens, eos_token_id)
        self.collected += [ids[:, i : i + 1] for i in range(input_ids.shape[1], ids.shape[1])]
        return torch.cat([input_ids, *(new[: len(ids)] for new in self.collected)], dim=1)


class PositionsSurvive:
    """Makes the position ids once, for the first prompt, and counts on from there."""

    def __init__(self) -> None:
        self.first_length: int | None = None

    def __call__(
        self, model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
    ) -> Ids:
        if self.first_length is None:
            self.first_length = input_ids.shape[1]
        shift = self.first_length - input_ids.shape[1]

        def positions(ids: Ids, prompt_length: int) -> Int[Tensor, " seq"]:
            return (torch.arange(ids.shape[1]) + shift).clamp(0, model.config.n_positions - 1)

        return loop(model, input_ids, max_new_tokens, eos_token_id, positions=positions)


GENERATE = (
    Misconception(
        "positions all 0",
        "Every token is handed over with position 0, so the model can't tell their order. "
        "The token at index i has position i.",
        partial(loop, positions=lambda ids, _: torch.zeros_like(ids[0])),
    ),
    Misconception(
        "positions restart behind the prompt",
        "The positions restart at 0 behind the prompt. A new token stands behind the prompt, so "
        "its position goes on counting from there.",
        partial(loop, positions=new_from_0),
    ),
    Misconception(
        "new tokens all at position 0",
        "Every new token is handed over with position 0. It stands behind the prompt, and its "
        "position is its index in the whole sequence.",
        partial(loop, positions=new_all_0),
    ),
    Misconception(
        "new tokens one position too far",
        "The new tokens' positions are one too far. The first of them stands right behind the "
        "prompt: after a prompt of n tokens, at position n.",
        partial(loop, positions=new_one_too_far),
    ),
    Misconception(
        "position one too far",
        "Every position is one too far: the first token's position is 0, not 1.",
        partial(loop, positions=lambda ids, _: 1 + torch.arange(ids.shape[1])),
    ),
    Misconception(
        "only the last token fed",
        "The model is handed only the newest token. It remembers nothing between two calls; "
        "without a cache it needs the whole sequence at every step.",
        partial(loop, feed=lambda ids: ids[:, -1:]),
    ),
    Misconception(
        "first row of the logits",
        "The next token is taken from the logits of the first position. Row i predicts what "
        "follows token i, so the next token is in the last row.",
        partial(loop, choose=lambda logits: logits[:, 0].argmax(dim=-1, keepdim=True)),
    ),
    Misconception(
        "second-last row of the logits",
        "The next token is taken from the second-last row of the logits. That row predicts the "
        "last token you already have; the last row predicts the next.",
        partial(loop, choose=lambda logits: logits[:, -2].argmax(dim=-1, keepdim=True)),
    ),
    Misconception(
        "one row for the whole batch",
        "Every row of the batch gets the next token of the first row. Take the argmax over the "
        "vocabulary alone (dim=-1), so that each row keeps its own.",
        partial(loop, choose=first_row_for_all),
    ),
    Misconception(
        "one token too many",
        "It generates one token more than `max_new_tokens`. Count how often the loop's body runs.",
        partial(loop, steps=lambda max_new_tokens, room: min(max_new_tokens + 1, room)),
    ),
    Misconception(
        "one token too few",
        "It generates one token fewer than `max_new_tokens`. Count how often the loop's body runs, "
        "and whether the last token it found is appended.",
        partial(loop, steps=lambda max_new_tokens, room: min(max_new_tokens - 1, room)),
    ),
    Misconception(
        "one step too many, in a full context too",
        "The loop's body runs once too often, even when the context is full. Count the steps for "
        "`max_new_tokens` = 1.",
        partial(loop, steps=lambda max_new_tokens, room: min(max_new_tokens, room) + 1),
    ),
    Misconception(
        "one step too few, in a full context too",
        "The loop's body runs once too seldom. Count the steps for `max_new_tokens` = 1.",
        partial(loop, steps=lambda max_new_tokens, room: min(max_new_tokens, room) - 1),
    ),
    Misconception(
        "max_new_tokens counts the prompt",
        "`max_new_tokens` is taken for the length of the whole sequence. It counts the new tokens "
        "alone, however long the prompt is.",
        total_length,
    ),
    Misconception(
        "EOS ignored",
        "It goes on behind the EOS token. Once EOS has been generated, nothing follows it.",
        partial(loop, ends=lambda ids, next_ids, eos: False),
    ),
    Misconception(
        "EOS dropped",
        "It stops at EOS and leaves it out. EOS is kept, as the last token: append first, then "
        "look whether it was EOS.",
        partial(loop, finish=without_eos),
    ),
    Misconception(
        "EOS appended twice",
        "EOS is appended twice: once as the token that was generated, once more on the way out.",
        partial(loop, finish=with_eos_twice),
    ),
    Misconception(
        "EOS searched in the prompt too",
        "It looks for EOS in the whole sequence, so an EOS in the prompt ends it after one token. "
        "Only the token just generated can end it.",
        partial(loop, ends=lambda ids, next_ids, eos: bool((ids == eos).any())),
    ),
    Misconception(
        "EOS looked for before the first step",
        "A prompt that ends with EOS is not continued at all. Only a generated EOS ends the loop: "
        "look for it after a token is appended.",
        eos_before_first_step,
    ),
    Misconception(
        "EOS with id 0 taken for none",
        "An EOS token with id 0 is ignored, because 0 counts as False. Ask whether "
        "`eos_token_id is not None`.",
        eos_0_is_none,
    ),
    Misconception(
        "the prompt changed in place",
        "The caller's `input_ids` has changed afterwards. Build a new tensor, with torch.cat for "
        "instance, and leave the prompt as it was.",
        changed_in_place,
    ),
    Misconception(
        "only the new tokens returned",
        "It returns only the new tokens. The result is the prompt and the new tokens behind it.",
        partial(loop, finish=lambda ids, prompt, eos: ids[:, prompt.shape[1] :]),
    ),
    Misconception(
        "context limit ignored",
        "It asks for positions that the model does not have. When the sequence has "
        "`model.config.n_positions` tokens the context is full, and the loop ends.",
        partial(loop, steps=lambda max_new_tokens, room: max_new_tokens),
    ),
    Misconception(
        "the window slides when the context is full",
        "When the context is full it drops the oldest tokens and goes on. Here the loop ends when "
        "the sequence has `model.config.n_positions` tokens.",
        window_slides,
    ),
    Misconception(
        "context one too short",
        "It ends one token before the context is full. A sequence may have exactly "
        "`model.config.n_positions` tokens.",
        partial(loop, steps=lambda max_new_tokens, room: min(max_new_tokens, room - 1)),
    ),
    Misconception(
        "new tokens survive into the next prompt",
        "New tokens of an earlier prompt come back with the next one. Whatever collects them must "
        "be made inside the function, at every call; a default argument is made only once.",
        NewTokensSurvive(),
    ),
    Misconception(
        "positions survive into the next prompt",
        "The positions still belong to an earlier prompt. Make them at every step, from the "
        "length of the ids you are about to hand over.",
        PositionsSurvive(),
    ),
    Misconception(
        "computes on behind EOS",
        "The tokens are right, but the model is still called after EOS and the rest cut off. "
        "Leave the loop as soon as EOS is there; every forward costs time.",
        partial(loop, ends=lambda ids, next_ids, eos: False, finish=cut_behind_eos),
    ),
)


# -------------------------------------------------------------------------------------- metrics


def changed(**formulas: Callable[[Metrics, float, Sequence[float]], float | None]) -> Any:
    """The right metrics, but for the fields given: each from (right metrics, start, times)."""

    def attempt(start: float, token_times: Sequence[float]) -> Metrics:
        right = metrics(start, token_times)
        figures = {**vars(right), **{k: f(right, start, token_times) for k, f in formulas.items()}}
        return Metrics(**figures)

    return attempt


def several(tpot: Callable[[Metrics, Sequence[float]], float]) -> Any:
    """A formula for TPOT that leaves one token alone right, as the docstring demands it: None."""
    return lambda right, start, times: tpot(right, times) if len(times) > 1 else None


def gaps(times: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


METRICS = (
    Misconception(
        "TPOT is latency / n",
        "TPOT is computed as latency / n. The first token's time is TTFT and belongs to prefill; "
        "TPOT is (last - first token time) / (n - 1).",
        changed(tpot=several(lambda right, times: right.latency / len(times))),
    ),
    Misconception(
        "TPOT is latency / n, for one token too",
        "TPOT is computed as latency / n, even for one token. The first token's time is TTFT; "
        "TPOT is (last - first token time) / (n - 1), and None where there is only one.",
        changed(tpot=lambda right, start, times: right.latency / len(times)),
    ),
    Misconception(
        "TPOT divided by n",
        "TPOT is divided by n. Between n tokens lie n - 1 gaps.",
        changed(tpot=several(lambda right, times: (times[-1] - times[0]) / len(times))),
    ),
    Misconception(
        "TPOT divided by n, for one token too",
        "TPOT is divided by n, even for one token. Between n tokens lie n - 1 gaps, so one token "
        "alone has none and its TPOT is None.",
        changed(tpot=lambda right, start, times: (times[-1] - times[0]) / len(times)),
    ),
    Misconception(
        "TPOT from the request",
        "TPOT is measured from the request, so the prefill is in it. It starts at the first token.",
        changed(tpot=several(lambda right, times: right.latency / (len(times) - 1))),
    ),
    Misconception(
        "TPOT is the median gap",
        "TPOT is the mean of the gaps here, not their median: (last - first token time) / (n - 1).",
        changed(tpot=several(lambda right, times: median(gaps(times)))),
    ),
    Misconception(
        "TPOT 0 for one token",
        "One token alone has no gap behind it: its TPOT is unknown (None), not 0.",
        changed(tpot=lambda right, start, times: right.tpot or 0.0),
    ),
    Misconception(
        "one token divides by zero",
        "With one token, n - 1 is 0 and the division fails. Its TPOT is None.",
        changed(tpot=lambda right, start, times: (times[-1] - times[0]) / (len(times) - 1)),
    ),
    Misconception(
        "TTFT left out of latency",
        "Latency is measured from the first token. It starts at the request, with the prefill.",
        changed(latency=lambda right, start, times: times[-1] - times[0]),
    ),
    Misconception(
        "latency counts n gaps",
        "Latency is computed as TTFT + TPOT * n. The first token is already in TTFT: n - 1 remain.",
        changed(latency=lambda right, start, times: right.ttft + (right.tpot or 0.0) * len(times)),
    ),
    Misconception(
        "start assumed to be 0",
        "The times are taken as if the request came at 0. A clock runs long before it: subtract "
        "`start`.",
        lambda start, token_times: metrics(0.0, token_times),
    ),
    Misconception(
        "TTFT and the first gap confused",
        "TTFT is taken as the time between the first two tokens. It is the time from the request "
        "to the first token.",
        changed(ttft=lambda right, start, times: times[min(1, len(times) - 1)] - times[0]),
    ),
    Misconception(
        "throughput is 1 / TPOT",
        "Throughput is computed as 1 / TPOT, which leaves the prefill out. It is all new tokens "
        "over the whole latency.",
        changed(throughput=lambda right, start, times: 1 / (right.tpot or right.ttft)),
    ),
    Misconception(
        "throughput without the first token",
        "Throughput leaves out the first token. All n tokens were generated during the latency.",
        changed(throughput=lambda right, start, times: (len(times) - 1) / right.latency),
    ),
    Misconception(
        "throughput without the prefill",
        "Throughput divides by the time since the first token. The request waited for the whole "
        "latency.",
        changed(
            throughput=lambda right, start, times: (
                len(times) / (times[-1] - times[0]) if len(times) > 1 else 1 / right.ttft
            )
        ),
    ),
    Misconception(
        "throughput upside down",
        "Throughput is seconds per token here. It is tokens per second: n / latency.",
        changed(throughput=lambda right, start, times: right.latency / len(times)),
    ),
)
