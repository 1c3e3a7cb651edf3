"""Lab 5's exercises: right answers in other styles pass, and what is said of some wrong ones.

What holds for the exercises of all labs is tested in test_exercises.py. Here stand attempts that
nobody told the exercises about.
"""

import heapq
import math
import random
import re
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, Judgement, judge
from solutions.decoding import (
    Beam,
    BeamSearch,
    Candidate,
    SamplingParams,
    apply_min_p,
    apply_repetition_penalty,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    best_continuations,
    draw,
    next_token_probs,
    sample,
    stop_at,
)
from tests.common.attempts import attempt_at, with_method
from tests.common.trials import cases_of, is_rejected

NEVER = float("-inf")
TEMPERATURE, TOP_K = "decoding.apply_temperature", "decoding.apply_top_k"
TOP_P, MIN_P = "decoding.apply_top_p", "decoding.apply_min_p"
PENALTY, PROBS = "decoding.apply_repetition_penalty", "decoding.next_token_probs"
DRAW, SAMPLE, STOP = "decoding.draw", "decoding.sample", "decoding.stop_at"
BEST, STEP = "decoding.best_continuations", "decoding.BeamSearch.step"
RIGHT: list[Any] = []
WRONGS: list[Any] = []


def judged(name: str, attempt: Any, seed: int = 0) -> Judgement:
    return judge(exercises()[name], attempt, seed)


# ------------------------------------------------------------------------------- logits to logits


@attempt_at(RIGHT, TEMPERATURE)
def temperature_in_place_on_a_clone(logits, temperature):
    logits = logits.clone()
    if temperature > 0:
        return logits.div_(temperature)
    best = logits.argmax(-1)
    for row in range(len(logits)):
        others = torch.ones(logits.shape[1], dtype=torch.bool)
        others[best[row]] = False
        logits[row, others] = NEVER
    return logits


@attempt_at(RIGHT, TEMPERATURE)
def temperature_with_one_hot(logits, temperature):
    if not temperature:
        is_best = F.one_hot(logits.argmax(dim=1), logits.size(1)).bool()
        return torch.where(is_best, logits, -torch.inf)
    return logits * (1 / temperature)


@attempt_at(RIGHT, TEMPERATURE)
def temperature_with_max(logits, temperature):
    if temperature == 0.0:
        values, best = logits.max(dim=-1, keepdim=True)
        return (logits - logits).fill_(NEVER).scatter_(-1, best, values)
    return torch.div(logits, torch.tensor(temperature))


@attempt_at(RIGHT, TEMPERATURE)
def temperature_of_lists(logits, temperature):
    rows = logits.tolist()
    if temperature != 0:
        return torch.tensor([[logit / temperature for logit in row] for row in rows])
    best = [row.index(max(row)) for row in rows]
    return torch.tensor(
        [
            [x if i == b else NEVER for i, x in enumerate(row)]
            for row, b in zip(rows, best, strict=True)
        ]
    )


@attempt_at(WRONGS, TEMPERATURE)
def temperature_with_nothing_for_a_likely_one(logits, temperature):
    if temperature == 0:
        return logits.masked_fill(logits < logits.amax(-1, keepdim=True) - 0.1, NEVER)
    return logits / temperature


@attempt_at(RIGHT, TOP_K)
def top_k_by_scatter(logits, k):
    values, tokens = torch.topk(logits, min(k, logits.size(-1)), dim=-1)
    return torch.full_like(logits, NEVER).scatter(-1, tokens, values)


@attempt_at(RIGHT, TOP_K)
def top_k_by_kthvalue(logits, k):
    vocab = logits.shape[-1]
    threshold = logits.kthvalue(max(vocab - k + 1, 1), dim=-1, keepdim=True).values
    return torch.where(logits >= threshold, logits, torch.tensor(NEVER, dtype=logits.dtype))


@attempt_at(RIGHT, TOP_K)
def top_k_by_rank(logits, k):
    ranks = logits.argsort(dim=-1, descending=True).argsort(dim=-1)
    return logits.masked_fill(ranks >= k, NEVER)


@attempt_at(RIGHT, TOP_K)
def top_k_as_in_transformers(logits, k):
    top_k = min(k, logits.size(-1))
    dropped = logits < torch.topk(logits, top_k)[0][..., -1, None]
    return logits.masked_fill(dropped, -float("Inf"))


@attempt_at(RIGHT, TOP_K)
def top_k_row_by_row(logits, k):
    result = []
    for row in logits:
        new = row.clone()
        for token in row.argsort(descending=True)[k:]:
            new[token] = -math.inf
        result.append(new)
    return torch.stack(result)


@attempt_at(RIGHT, TOP_K)
def top_k_in_numpy(logits, k):
    values = logits.numpy().copy()
    if k < values.shape[1]:
        dropped = np.argpartition(values, -k, axis=-1)[:, :-k]
        np.put_along_axis(values, dropped, -np.inf, axis=-1)
    return torch.from_numpy(values)


@attempt_at(WRONGS, TOP_K)
def top_k_up_to_256(logits, k):
    return apply_top_k(logits, k if k <= 256 else logits.shape[1])


@attempt_at(RIGHT, TOP_P)
def top_p_as_in_transformers(logits, p):
    """Sorted upwards, and compared with 1 - p."""
    ranked, order = torch.sort(logits, descending=False)
    dropped = ranked.softmax(dim=-1).cumsum(dim=-1) <= (1 - p)
    dropped[..., -1:] = 0
    return logits.masked_fill(dropped.scatter(1, order, dropped), -float("Inf"))


@attempt_at(RIGHT, TOP_P)
def top_p_with_a_shifted_mask(logits, p):
    ranked, order = torch.sort(logits, dim=-1, descending=True)
    dropped = F.softmax(ranked, dim=-1).cumsum(-1) > p
    dropped[:, 1:] = dropped[:, :-1].clone()
    dropped[:, 0] = False
    logits = logits.clone()
    logits[dropped.scatter(1, order, dropped)] = NEVER
    return logits


@attempt_at(RIGHT, TOP_P)
def top_p_by_its_least_logit(logits, p):
    ranked = logits.sort(dim=-1, descending=True).values
    probs = ranked.softmax(-1)
    count = ((probs.cumsum(-1) - probs) < p).sum(-1, keepdim=True)
    return torch.where(logits >= ranked.gather(1, count - 1), logits, NEVER)


@attempt_at(RIGHT, TOP_P)
def top_p_by_rank(logits, p):
    probs, order = logits.softmax(-1).sort(descending=True)
    dropped = torch.roll(probs.cumsum(-1), 1, dims=-1) >= p
    dropped[:, 0] = False
    return logits.masked_fill(dropped.gather(1, order.argsort(-1)), NEVER)


@attempt_at(RIGHT, TOP_P)
def top_p_sorted_logits_put_back(logits, p):
    ranked, order = logits.sort(descending=True)
    probs = ranked.softmax(-1)
    ranked[probs.cumsum(-1) - probs >= p] = NEVER
    return torch.empty_like(logits).scatter_(1, order, ranked)


@attempt_at(RIGHT, TOP_P)
def top_p_in_plain_python(logits, p):
    rows = []
    for row in logits.tolist():
        weights = [math.exp(logit - max(row)) for logit in row]
        together, stay = 0.0, set()
        for token in sorted(range(len(row)), key=lambda token: -weights[token]):
            if together / sum(weights) >= p:
                break
            stay.add(token)
            together += weights[token]
        rows.append([logit if i in stay else NEVER for i, logit in enumerate(row)])
    return torch.tensor(rows)


@attempt_at(RIGHT, TOP_P)
def top_p_in_numpy(logits, p):
    values = logits.double().numpy().copy()
    for row in values:
        probs = np.exp(row - row.max())
        probs /= probs.sum()
        order = np.argsort(-probs)
        count = np.searchsorted(probs[order].cumsum(), p) + 1
        row[order[count:]] = -np.inf
    return torch.from_numpy(values)


@attempt_at(WRONGS, TOP_P)
def top_p_of_three_tokens_at_most(logits, p):
    return apply_top_k(apply_top_p(logits, p), 3)


@attempt_at(WRONGS, TOP_P)
def top_p_that_takes_0_99_for_1(logits, p):
    return apply_top_p(logits, p) if p < 0.99 else logits


@attempt_at(RIGHT, MIN_P)
def min_p_on_logits(logits, min_p):
    """A share of the probability is a distance of logits."""
    if min_p == 0:
        return logits
    threshold = logits.amax(dim=-1, keepdim=True) + math.log(min_p)
    return torch.where(logits < threshold, NEVER, logits)


@attempt_at(RIGHT, MIN_P)
def min_p_as_a_ratio(logits, min_p):
    logits = logits.clone()
    probs = F.softmax(logits, dim=-1)
    logits[probs / probs.amax(dim=-1, keepdim=True) < min_p] = NEVER
    return logits


@attempt_at(RIGHT, MIN_P)
def min_p_row_by_row(logits, min_p):
    rows = []
    for row in logits:
        probs = torch.softmax(row, 0)
        rows.append(row.masked_fill(probs < probs.max() * min_p, NEVER))
    return torch.stack(rows)


@attempt_at(RIGHT, MIN_P)
def min_p_as_in_transformers(logits, min_p):
    probs = torch.softmax(logits, dim=-1)
    top_probs, _ = probs.max(dim=-1, keepdim=True)
    dropped = probs < min_p * top_probs
    order = torch.argsort(logits, descending=True, dim=-1)
    dropped = torch.gather(dropped, dim=-1, index=order)
    dropped[..., :1] = False
    return logits.masked_fill(dropped.scatter(1, order, dropped), NEVER)


@attempt_at(RIGHT, MIN_P)
def min_p_in_numpy(logits, min_p):
    values = logits.numpy()
    shares = np.exp(values - values.max(axis=-1, keepdims=True))
    return torch.tensor(np.where(shares >= min_p, values, -np.inf))


@attempt_at(WRONGS, MIN_P)
def min_p_that_keeps_two(logits, min_p):
    return torch.maximum(apply_min_p(logits, min_p), apply_top_k(logits, 2))


@attempt_at(WRONGS, MIN_P)
def min_p_of_1_taken_for_greedy(logits, min_p):
    return apply_temperature(logits, 0) if min_p == 1 else apply_min_p(logits, min_p)


@attempt_at(RIGHT, PENALTY)
def penalty_over_sets(logits, ids, penalty):
    result = logits.clone()
    for row, text in enumerate(ids):
        for token in set(text.tolist()):
            if result[row, token] < 0:
                result[row, token] *= penalty
            else:
                result[row, token] /= penalty
    return result


@attempt_at(RIGHT, PENALTY)
def penalty_by_a_mask_per_row(logits, ids, penalty):
    occurs = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(occurs, penalized, logits)


@attempt_at(RIGHT, PENALTY)
def penalty_as_a_factor(logits, ids, penalty):
    counts = torch.stack([torch.bincount(text, minlength=logits.shape[1]) for text in ids])
    factor = torch.where(logits > 0, 1 / penalty, penalty)
    return logits * torch.where(counts > 0, factor, 1.0)


@attempt_at(RIGHT, PENALTY)
def penalty_with_two_indices(logits, ids, penalty):
    rows = torch.arange(len(ids))[:, None]
    logits, seen = logits.clone(), logits[rows, ids]
    logits[rows, ids] = torch.where(seen < 0, seen * penalty, seen / penalty)
    return logits


@attempt_at(RIGHT, PENALTY)
def penalty_in_numpy(logits, ids, penalty):
    values = logits.numpy().copy()
    for row, text in zip(values, ids.numpy(), strict=True):
        tokens = np.unique(text)
        row[tokens] = np.where(row[tokens] > 0, row[tokens] / penalty, row[tokens] * penalty)
    return torch.from_numpy(values)


@attempt_at(WRONGS, PENALTY)
def penalty_of_the_last_sixteen(logits, ids, penalty):
    return apply_repetition_penalty(logits, ids[:, -16:], penalty)


@attempt_at(WRONGS, PENALTY)
def penalty_by_products_with_0(logits, ids, penalty):
    """0 times -inf is NaN."""
    occurs = torch.zeros_like(logits).scatter(1, ids, 1.0)
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return occurs * penalized + (1 - occurs) * logits


@attempt_at(RIGHT, PROBS)
def probs_with_all_of_them(logits, ids, params):
    """The neutral values change nothing."""
    logits = apply_repetition_penalty(logits, ids, params.repetition_penalty)
    logits = apply_temperature(logits, params.temperature)
    logits = apply_top_k(logits, params.top_k or logits.shape[-1])
    logits = apply_min_p(apply_top_p(logits, params.top_p), params.min_p)
    return F.softmax(logits, dim=-1)


@attempt_at(RIGHT, PROBS)
def probs_with_greedy_apart(logits, ids, params):
    logits = apply_repetition_penalty(logits, ids, params.repetition_penalty)
    if params.temperature == 0:
        return torch.zeros_like(logits).scatter(1, logits.argmax(-1, keepdim=True), 1.0)
    return next_token_probs(logits, ids, replace(params, repetition_penalty=1))


@attempt_at(RIGHT, PROBS)
def probs_renormalised_at_each_step(logits, ids, params):
    penalized = apply_repetition_penalty(logits, ids, params.repetition_penalty)
    probs = apply_temperature(penalized, params.temperature).softmax(-1)
    for apply, value in [
        (apply_top_k, params.top_k or logits.shape[1]),
        (apply_top_p, params.top_p),
        (apply_min_p, params.min_p),
    ]:
        probs = probs * (apply(probs.log(), value) > NEVER)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


@attempt_at(RIGHT, PROBS)
def probs_with_temperature_between(logits, ids, params):
    """Top-k sees no temperature, and the penalty's sign neither."""
    logits = apply_temperature(logits, params.temperature or 1)
    logits = apply_repetition_penalty(logits, ids, params.repetition_penalty)
    logits = apply_top_k(logits, params.top_k or 10**6)
    if params.temperature == 0:
        logits = apply_temperature(logits, 0)
    logits = apply_top_p(logits, params.top_p)
    return torch.exp(apply_min_p(logits, params.min_p).log_softmax(1))


@attempt_at(RIGHT, PROBS)
def probs_with_top_p_and_min_p_on_one_distribution(logits, ids, params):
    """What is a share of the likeliest stays one, whatever top-p drops."""
    before = next_token_probs(logits, ids, replace(params, top_p=1, min_p=0)).log()
    both = apply_top_p(before, params.top_p), apply_min_p(before, params.min_p)
    return torch.minimum(*both).softmax(-1)


@attempt_at(WRONGS, PROBS)
def probs_of_the_first_row_alone(logits, ids, params):
    return next_token_probs(logits[:1], ids[:1], params).expand_as(logits)


@attempt_at(WRONGS, PROBS)
def probs_of_50_tokens_at_most(logits, ids, params):
    return next_token_probs(logits, ids, replace(params, top_k=params.top_k or 50))


@attempt_at(WRONGS, PROBS)
def probs_without_a_low_min_p(logits, ids, params):
    min_p = params.min_p if params.min_p > 0.05 else 0.0
    return next_token_probs(logits, ids, replace(params, min_p=min_p))


@attempt_at(WRONGS, PROBS)
def probs_without_a_high_top_p(logits, ids, params):
    return next_token_probs(
        logits, ids, replace(params, top_p=params.top_p if params.top_p < 0.95 else 1)
    )


# ------------------------------------------------------------------------------- a token is drawn


@attempt_at(RIGHT, DRAW)
def draw_by_searchsorted(probs, uniforms):
    ends = probs.cumsum(-1)
    found = torch.searchsorted(ends, uniforms[:, None] * ends[:, -1:], right=True)
    last = [row.nonzero().max() for row in probs]  # rounding must not lead beyond it
    return torch.minimum(found.squeeze(-1), torch.stack(last))


@attempt_at(RIGHT, DRAW)
def draw_of_normalised_rows(probs, uniforms):
    ends = (probs / probs.sum(1, keepdim=True)).cumsum(1)
    ends = ends / ends[:, -1:]  # rounded as they are, they might end below the uniform
    return (ends > uniforms[:, None]).int().argmax(1)


@attempt_at(RIGHT, DRAW)
def draw_in_plain_python(probs, uniforms):
    tokens = []
    for row, uniform in zip(probs.tolist(), uniforms.tolist(), strict=True):
        left = uniform * sum(row)
        token = 0
        while left >= row[token]:
            left -= row[token]
            token += 1
        tokens.append(token)
    return torch.tensor(tokens)


@attempt_at(RIGHT, DRAW)
def draw_by_bisection(probs, uniforms):
    rows = [list(accumulate(row)) for row in probs.tolist()]
    pairs = zip(rows, uniforms.tolist(), strict=True)
    return torch.tensor([bisect_right(ends, uniform * ends[-1]) for ends, uniform in pairs])


@attempt_at(RIGHT, DRAW)
def draw_in_numpy(probs, uniforms):
    ends = np.cumsum(probs.double().numpy(), axis=1)
    passed = ends <= uniforms.double().numpy()[:, None] * ends[:, -1:]
    return torch.from_numpy(passed.sum(axis=1)).to(torch.int32)


@attempt_at(WRONGS, DRAW)
def draw_beyond_the_last_piece(probs, uniforms):
    ends = probs.cumsum(1) / probs.sum(1, keepdim=True)
    return (ends > uniforms[:, None]).int().argmax(1)


@attempt_at(WRONGS, DRAW)
def draw_as_floats(probs, uniforms):
    return draw(probs, uniforms).float()


@attempt_at(WRONGS, DRAW)
def draw_into_the_probabilities(probs, uniforms):
    return draw(probs.div_(probs.sum(1, keepdim=True)), uniforms)


DRAWN: dict[Any, Any] = {}


@attempt_at(WRONGS, DRAW)
def draw_remembered_by_shape(probs, uniforms):
    return DRAWN.setdefault(probs.shape, draw(probs, uniforms))


@attempt_at(RIGHT, SAMPLE)
def sample_in_a_loop(logits, ids, params, generators):
    probs = next_token_probs(logits, ids, params)
    tokens = [
        draw(probs[row : row + 1], torch.rand(1, dtype=probs.dtype, generator=generator))
        for row, generator in enumerate(generators)
    ]
    return torch.cat(tokens)


@attempt_at(RIGHT, SAMPLE)
def sample_row_by_row(logits, ids, params, generators):
    """Each row as if it were alone, and uniforms without a dimension."""
    tokens = []
    for row, generator in enumerate(generators):
        probs = next_token_probs(logits[row][None], ids[row][None], params)
        uniform = torch.rand((), generator=generator)
        tokens.append(draw(probs, uniform[None]).item())
    return torch.tensor(tokens)


@attempt_at(RIGHT, SAMPLE)
def sample_into_a_tensor(logits, ids, params, generators):
    uniforms = torch.empty(len(generators))
    for row, generator in enumerate(generators):
        uniforms[row].uniform_(generator=generator)
    return draw(next_token_probs(logits, ids, params), uniforms)


@attempt_at(RIGHT, SAMPLE)
def sample_that_draws_nothing_for_greedy(logits, ids, params, generators):
    probs = next_token_probs(logits, ids, params)
    if params.temperature == 0:
        return probs.argmax(dim=-1)
    return draw(probs, torch.stack([torch.rand([], generator=g) for g in generators]))


@attempt_at(WRONGS, SAMPLE)
def sample_by_the_random_module(logits, ids, params, generators):
    uniforms = torch.tensor([random.random() for _ in generators])
    return draw(next_token_probs(logits, ids, params), uniforms)


@attempt_at(WRONGS, SAMPLE)
def sample_with_the_generators_of_others(logits, ids, params, generators):
    return sample(logits, ids, params, generators[::-1])


@attempt_at(WRONGS, SAMPLE)
def sample_from_copies(logits, ids, params, generators):
    return sample(logits, ids, params, [generator.clone_state() for generator in generators])


# ------------------------------------------------------------------------- where a text ends


@attempt_at(RIGHT, STOP)
def stop_by_find_and_partition(pieces, stops):
    held = ""
    for piece in pieces:
        held += piece
        places = [held.find(stop) for stop in stops]
        if max(places, default=-1) >= 0:
            pairs = zip(places, stops, strict=True)
            _, first = min((place, stop) for place, stop in pairs if place >= 0)
            yield held.partition(first)[0]
            return
        for start in range(len(held) + 1):
            if any(stop.startswith(held[start:]) for stop in stops) or start == len(held):
                yield held[:start]
                held = held[start:]
                break
    if held:
        yield held


@attempt_at(RIGHT, STOP)
def stop_by_regular_expressions(pieces, stops):
    whole = re.compile("|".join(map(re.escape, stops)) or r"(?!)")
    parts = {stop[:n] for stop in stops for n in range(1, len(stop))}
    longest_first = sorted(map(re.escape, parts), key=len, reverse=True)
    begun = re.compile(rf"({'|'.join(longest_first)})\Z" if parts else r"(?!)")
    held = ""
    for piece in pieces:
        held += piece
        if found := whole.search(held):
            yield held[: found.start()]
            return
        found = begun.search(held)
        place = found.start() if found else len(held)
        passed, held = held[:place], held[place:]
        if passed:
            yield passed
    yield held


@attempt_at(RIGHT, STOP)
def stop_character_by_character(pieces, stops):
    held = ""
    for character in (character for piece in pieces for character in piece):
        held += character
        if ended := [stop for stop in stops if held.endswith(stop)]:
            yield held.removesuffix(max(ended, key=len))
            return
        while held and not any(stop.startswith(held) for stop in stops):
            yield held[0]
            held = held[1:]
    yield from held


@attempt_at(RIGHT, STOP)
def stop_by_counting_what_was_passed_on(pieces, stops):
    """Keeps the whole text, and looks where the next piece can't change anything."""
    text, passed = "", 0
    for piece in pieces:
        text += piece
        found = [place for stop in stops if (place := text.find(stop, passed)) != -1]
        if found:
            yield text[passed : min(found)]
            return
        safe = len(text)
        for stop in stops:
            for n in range(1, min(len(stop), len(text) - passed + 1)):
                if text[-n:] == stop[:n]:
                    safe = min(safe, len(text) - n)
        if safe > passed:
            yield text[passed:safe]
        passed = safe
    if text[passed:]:
        yield text[passed:]


class StopAt:
    """An iterator that needs no `yield`."""

    def __init__(self, pieces, stops):
        self.parts = stop_by_find_and_partition(pieces, stops)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.parts)


RIGHT.append(pytest.param(STOP, StopAt, id=f"{STOP}-an_iterator_of_its_own"))


@attempt_at(WRONGS, STOP)
def stop_by_an_expression_that_is_not_escaped(pieces, stops):
    held = ""
    for piece in pieces:
        held += piece
        if stops and (found := re.search("|".join(stops), held)):
            yield held[: found.start()]
            return
        begun = [n for stop in stops for n in range(len(stop)) if held.endswith(stop[:n])]
        yield held[: len(held) - max(begun, default=0)]
        held = held[len(held) - max(begun, default=0) :]
    yield held


@attempt_at(WRONGS, STOP)
def stop_one_piece_ahead(pieces, stops):
    """Asks for a piece before it passes on what it knows already."""
    parts = list(islice(pieces, 1))
    for piece in pieces:
        yield from stop_at(parts, [])
        parts = [piece]
    yield from stop_at(parts, stops)


@attempt_at(WRONGS, STOP)
def stop_without_regard_to_case(pieces, stops):
    yield from stop_at((piece for piece in pieces), [*stops, *(stop.lower() for stop in stops)])


@attempt_at(WRONGS, STOP)
def stop_with_sorted_stops(pieces, stops):
    stops.sort()
    yield from stop_at(pieces, stops)


# ------------------------------------------------------------------------------- beam search


@attempt_at(RIGHT, BEST)
def best_by_heapq(scores, logits, count):
    """The course's own Candidate, in plain Python."""
    found = []
    for parent, row in enumerate(logits.tolist()):
        total = math.log(sum(math.exp(logit - max(row)) for logit in row)) + max(row)
        for token, logit in enumerate(row):
            found.append(Candidate(scores[parent].item() + logit - total, parent, token))
    return heapq.nlargest(count, found)


class Continuation(NamedTuple):
    """Another order of the three."""

    parent: int
    token: int
    score: float


@attempt_at(RIGHT, BEST)
def best_by_sorting(scores, logits, count):
    totals = scores.unsqueeze(1) + torch.softmax(logits, 1).log()
    places = totals.flatten().argsort(descending=True)[:count]
    found = [(*divmod(place, totals.shape[1]), totals) for place in places.tolist()]
    return tuple(Continuation(p, t, totals[p, t].item()) for p, t, totals in found)


@attempt_at(RIGHT, BEST)
def best_by_numpy(scores, logits, count):
    totals = (scores[:, None] + F.log_softmax(logits, -1)).numpy()
    parents, tokens = np.unravel_index(np.argsort(-totals, axis=None)[:count], totals.shape)
    return [Candidate(totals[p, t], p, t) for p, t in zip(parents, tokens, strict=True)]


@attempt_at(RIGHT, BEST)
def best_of_the_best_of_each(scores, logits, count):
    logprobs, tokens = logits.log_softmax(-1).topk(min(count, logits.shape[1]))
    totals = logprobs + scores[:, None]
    pairs = [(row, column) for row in range(len(totals)) for column in range(totals.shape[1])]
    pairs.sort(key=lambda pair: totals[pair], reverse=True)
    return [Candidate(float(totals[p]), p[0], int(tokens[p])) for p in pairs[:count]]


@attempt_at(WRONGS, BEST)
def best_with_each_token_once(scores, logits, count):
    found = {}
    for candidate in best_continuations(scores, logits, logits.numel()):
        found.setdefault(candidate.token, candidate)
    return list(found.values())[:count]


@attempt_at(WRONGS, BEST)
def best_in_place(scores, logits, count):
    logits -= logits.logsumexp(1, keepdim=True)
    return best_continuations(scores, logits, count)


@attempt_at(RIGHT, STEP, BeamSearch)
def step_by_list_comprehensions(self):
    candidates = self.candidates()
    ends = [c.token == self.eos_token_id for c in candidates]
    for candidate, has_ended in list(zip(candidates, ends, strict=True))[: self.width]:
        if has_ended:
            self.finish(self.extended(candidate))
    ongoing = [c for c, has_ended in zip(candidates, ends, strict=True) if not has_ended]
    ongoing = ongoing[: self.width]
    self.beams = [Beam([*self.beams[c.parent].ids, c.token], c.score) for c in ongoing]
    if self.is_done():
        return
    self.rows.become([c.parent for c in ongoing])
    self.rows.append([beam.ids[-1] for beam in self.beams])


@attempt_at(RIGHT, STEP, BeamSearch)
def step_that_leaves_the_loop(self):
    """Beams that stay in their places need no copy; numbers may come in tensors."""
    beams, parents, tokens = [], [], []
    for rank, (score, parent, token) in enumerate(self.candidates()):
        text = Beam([*self.beams[parent].ids, token], score)
        if self.eos_token_id is not None and token == self.eos_token_id:
            if rank < self.width:
                self.finish(text)
            continue
        beams.append(text)
        parents.append(parent)
        tokens.append(token)
        if len(beams) == self.width:
            break
    stays = parents == list(range(len(self.beams)))
    self.beams = beams
    if not self.is_done():
        if not stays:
            self.rows.become(torch.tensor(parents))
        self.rows.append(torch.tensor(tokens))


class WithABookOfItsOwn(BeamSearch):
    """Goes by texts that its own `step` keeps."""

    def __init__(self, rows, prompt, *given, **named):
        super().__init__(rows, prompt, *given, **named)
        self.texts = [tuple(prompt)]

    def step(self):
        candidates = self.candidates()
        chosen = [c for c in candidates if c.token != self.eos_token_id][: self.width]
        for candidate in candidates[: self.width]:
            if candidate not in chosen:
                self.finish(Beam([*self.texts[candidate.parent], candidate.token], candidate.score))
        self.texts = [(*self.texts[c.parent], c.token) for c in chosen]
        scores = [c.score for c in chosen]
        self.beams = [Beam(list(t), s) for t, s in zip(self.texts, scores, strict=True)]
        if not self.is_done():
            self.rows.become([c.parent for c in chosen])
            self.rows.append([text[-1] for text in self.texts])


RIGHT.append(pytest.param(STEP, WithABookOfItsOwn, id=f"{STEP}-with_a_book_of_its_own"))


@attempt_at(WRONGS, STEP, BeamSearch)
def step_where_children_share_a_list(self):
    before = [beam.ids for beam in self.beams]
    BeamSearch.step(self)
    parents = [c.parent for c in self.trace[-1] if c.token != self.eos_token_id][: self.width]
    for beam, parent in zip(self.beams, parents, strict=True):
        before[parent].append(beam.ids[-1])
    self.beams = [Beam(before[p], b.score) for b, p in zip(self.beams, parents, strict=True)]


@attempt_at(WRONGS, STEP, BeamSearch)
def step_where_is_stands_for_equals(self):
    eos_token_id, known = self.eos_token_id, [c.token for c in self.candidates()]
    self.trace.pop()
    small = eos_token_id is not None and eos_token_id <= 256  # Python keeps these only once
    self.eos_token_id = eos_token_id if small or eos_token_id not in known else None
    BeamSearch.step(self)
    self.eos_token_id = eos_token_id


@attempt_at(WRONGS, STEP, BeamSearch)
def step_that_looks_twice(self):
    self.candidates()
    BeamSearch.step(self)


@attempt_at(WRONGS, STEP, BeamSearch)
def step_with_a_forward_for_each_beam(self):
    BeamSearch.step(self)
    if not self.is_done():
        texts = self.rows.texts
        self.rows.append([0] * len(texts))
        self.rows.texts = texts


# -------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name, attempt):
    for seed in (0, 1):
        judgement = judged(name, attempt, seed)
        assert judgement.status == PASSED, judgement


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_a_wrong_answer_is_rejected_on_every_seed(name, attempt):
    assert all(is_rejected(exercises()[name], attempt, seed) for seed in range(3))


def stop_that_collects(pieces, stops):
    return list(stop_at(pieces, stops))


def stop_that_prints(pieces, stops):
    for _ in stop_at(pieces, stops):
        pass


def stop_without_an_end(pieces, stops):
    yield from stop_at(pieces, stops)
    while True:
        yield ""


def stop_with_none_between(pieces, stops):
    for part in stop_at(pieces, stops):
        yield part or None


def stop_by_index(pieces, stops):
    yield pieces[0]


def best_as_tuples(scores, logits, count):
    return [tuple(candidate) for candidate in best_continuations(scores, logits, count)]


def best_as_tensors(scores, logits, count):
    return torch.tensor(best_as_tuples(scores, logits, count))


def step_with_a_generator(self):
    become, self.rows.become = self.rows.become, lambda parents: become(p for p in parents)
    BeamSearch.step(self)


def step_with_beams_in_a_map(self):
    BeamSearch.step(self)
    self.beams = map(Beam, [beam.ids for beam in self.beams], [beam.score for beam in self.beams])


@pytest.mark.parametrize(
    ("name", "attempt", "said"),
    [
        (SAMPLE, sample_by_the_random_module, "request 0 gave no uniform; expected: it gave one"),
        (STOP, stop_that_collects, "is a list; expected: it is an iterator, as `yield` makes one"),
        (STOP, stop_that_prints, "is None; expected: it is an iterator, as `yield` makes one"),
        (STOP, stop_without_an_end, "did not end after 1,000 pieces; expected: it is text"),
        (STOP, stop_with_none_between, "is None; expected: it is text, and has an end"),
        (STOP, stop_by_index, "'Pieces' object is not subscriptable"),
        (BEST, best_as_tuples, "has a tuple in it; expected: it is a list of 1 Candidate."),
        (BEST, best_as_tensors, "is a tensor of shape [1, 3]; expected: it is a list of"),
        (STEP, step_with_a_generator, "`rows.become` takes a list of numbers, not a generator"),
        (STEP, step_with_beams_in_a_map, "`beams` after step 1 is a map; expected: it is a list"),
    ],
)
def test_the_sentence_helps(name, attempt, said):
    attempt = with_method(BeamSearch, name, attempt) if name == STEP else attempt
    judgement = judged(name, attempt)
    assert judgement.status == WRONG
    assert said in judgement.message


# ----------------------------------------------------------- what is said, and what the cases hold

LOGITS_TO_LOGITS = {
    TEMPERATURE: apply_temperature,
    TOP_K: apply_top_k,
    TOP_P: apply_top_p,
    MIN_P: apply_min_p,
    PENALTY: apply_repetition_penalty,
    PROBS: next_token_probs,
}


@pytest.mark.parametrize("name", LOGITS_TO_LOGITS)
def test_a_case_is_the_same_in_float32_and_in_float64(name):
    """So that no case is decided by rounding."""
    for seed in range(5):
        for case in cases_of(exercises()[name], seed):
            data = dict(case.data)
            if "params" in data:
                data["params"] = SamplingParams(**data["params"])
            logits = data.pop("logits")
            single, double = (
                LOGITS_TO_LOGITS[name](precise, **data)
                for precise in (logits.float(), logits.double())
            )
            torch.testing.assert_close(single, double, check_dtype=False)


@pytest.mark.parametrize("name", LOGITS_TO_LOGITS)
def test_what_is_remembered_by_its_shape_is_wrong(name):
    known: dict[Any, Any] = {}

    def attempt(*given):
        alike = tuple(each.shape if isinstance(each, torch.Tensor) else each for each in given)
        if alike not in known:
            known[alike] = LOGITS_TO_LOGITS[name](*given)
        return known[alike]

    assert judged(name, attempt).status == WRONG


@pytest.mark.parametrize("name", [PENALTY, PROBS])
def test_the_text_must_stay_as_it_was(name):
    def attempt(logits, ids, value):
        result = LOGITS_TO_LOGITS[name](logits, ids, value)
        ids.add_(1)
        return result

    assert "`ids` is no longer what it was before the call" in judged(name, attempt).message


def test_more_than_one_mistake_has_a_message_of_its_own():
    """Top-p's mask left in sorted order, and 0 in place of -inf."""

    def attempt(logits, p):
        probs = logits.softmax(-1).sort(descending=True).values
        return logits.masked_fill(probs.cumsum(-1) - probs >= p, 0.0)

    assert judged(TOP_P, attempt).message.startswith("Row 0 keeps every token; expected: it keeps")


def temperature_as_an_array(logits, temperature):
    return apply_temperature(logits, temperature).numpy()


@pytest.mark.parametrize(
    ("name", "attempt", "sentence"),
    [
        (TOP_K, lambda logits, k: logits.tolist(), "What it returned is a list; expected: it is a"),
        (TOP_P, lambda logits, p: None, "What it returned is None; .* Is a `return` missing"),
        (TOP_P, top_p_of_three_tokens_at_most, "keeps tokens .*; expected: it keeps every"),
        (MIN_P, lambda logits, min_p: logits[0], r"of shape \[6\]; expected: .* of shape \[1, 6\]"),
        (PENALTY, penalty_of_the_last_sixteen, "has another logit for"),
        (PENALTY, penalty_by_products_with_0, "Row 0 has NaN in it; expected: it has"),
        (TEMPERATURE, temperature_as_an_array, "What it returned is a ndarray; expected: it is"),
        (PROBS, lambda logits, ids, params: logits / 0 * 0, "Row 0 has NaN in it; expected"),
    ],
)
def test_the_difference_is_told(name, attempt, sentence):
    message = judged(name, attempt).message
    assert re.search(sentence, message), message
