"""Answers to lab 5's exercises: from logits to probabilities, a draw, a stop, beam search."""

import random
import re
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from solutions.decoding import (
    Beam,
    BeamSearch,
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
from tests.common.attempts import right, wrong

NEVER = float("-inf")


# ------------------------------------------------------------------------------- logits to logits


@right(apply_top_p)
def top_p_as_in_transformers(logits, p):
    """Sorted upwards, and compared with 1 - p."""
    ranked, order = torch.sort(logits, descending=False)
    dropped = ranked.softmax(dim=-1).cumsum(dim=-1) <= (1 - p)
    dropped[..., -1:] = 0
    return logits.masked_fill(dropped.scatter(1, order, dropped), -float("Inf"))


@wrong(apply_top_p, "Row 0 keeps every token; expected: it keeps")
def in_sorted_order_and_0(logits, p):
    """Two mistakes: the mask is left in sorted order, and 0 is used for -inf."""
    probs = logits.softmax(-1).sort(descending=True).values
    return logits.masked_fill(probs.cumsum(-1) - probs >= p, 0.0)


@wrong(apply_repetition_penalty, "Row 0 has NaN in it; expected: it has")
def products_with_0(logits, ids, penalty):
    """0 times -inf is NaN."""
    occurs = torch.zeros_like(logits).scatter(1, ids, 1.0)
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return occurs * penalized + (1 - occurs) * logits


@right(next_token_probs)
def renormalized_at_each_step(logits, ids, params):
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


@wrong(apply_top_p)
def summed_up_in_half_precision(logits, p):
    probs, order = logits.softmax(-1).sort(dim=-1, descending=True)
    before = probs.half().cumsum(-1) - probs.half()
    return logits.masked_fill((before >= p).gather(1, order.argsort(-1)), NEVER)


# Right except for a limit of its own, or for one value.
wrong(apply_temperature)(lambda logits, t: logits / t if t else apply_min_p(logits, 0.9))
wrong(apply_top_k)(lambda logits, k: apply_top_k(logits, k if k <= 256 else logits.shape[1]))
wrong(apply_top_p)(lambda logits, p: apply_top_p(logits, p) if p < 0.99 else logits)
wrong(apply_top_p, "keeps tokens ", "; expected: it keeps every")(
    lambda logits, p: apply_top_k(apply_top_p(logits, p), 3)
)
wrong(apply_min_p)(lambda logits, p: torch.maximum(apply_min_p(logits, p), apply_top_k(logits, 2)))
wrong(apply_min_p)(
    lambda logits, p: apply_min_p(logits, p) if p < 1 else apply_temperature(logits, 0)
)
wrong(apply_repetition_penalty, "has another logit for")(
    lambda logits, ids, penalty: apply_repetition_penalty(logits, ids[:, -16:], penalty)
)


def other_params(change):
    return lambda logits, ids, own: next_token_probs(logits, ids, replace(own, **change(own)))


wrong(next_token_probs)(other_params(lambda own: {"top_k": own.top_k or 50}))
wrong(next_token_probs)(other_params(lambda own: {"min_p": own.min_p if own.min_p > 0.05 else 0.0}))
wrong(next_token_probs)(other_params(lambda own: {"top_p": own.top_p if own.top_p < 0.95 else 1}))
wrong(next_token_probs)(
    lambda logits, ids, own: next_token_probs(logits[:1], ids[:1], own).expand_as(logits)
)

# Results that aren't tensors of logits.
wrong(apply_top_p, "What it returned is None; ", "Is a `return` missing")(lambda logits, p: None)
wrong(apply_min_p, "of shape [6]; expected: ", " of shape [1, 6]")(lambda logits, min_p: logits[0])
wrong(apply_temperature, "What it returned is a ndarray; expected: it is")(
    lambda logits, temperature: apply_temperature(logits, temperature).numpy()
)
wrong(next_token_probs, "Row 0 has NaN in it; expected")(lambda logits, ids, params: logits / 0 * 0)


# -------------------------------------------------------------------------------- drawing a token


@right(draw)
def draw_in_numpy(probs, uniforms):
    ends = np.cumsum(probs.double().numpy(), axis=1)
    passed = ends <= uniforms.double().numpy()[:, None] * ends[:, -1:]
    return torch.from_numpy(passed.sum(axis=1)).to(torch.int32)


@wrong(draw)
def beyond_the_last_piece(probs, uniforms):
    ends = probs.cumsum(1) / probs.sum(1, keepdim=True)
    return (ends > uniforms[:, None]).int().argmax(1)


@right(sample)
def row_by_row(logits, ids, params, generators):
    """Each row alone, and uniforms of another dtype."""
    tokens = []
    for row, generator in enumerate(generators):
        probs = next_token_probs(logits[row][None], ids[row][None], params)
        tokens.append(draw(probs, torch.rand(1, dtype=probs.dtype, generator=generator)).item())
    return torch.tensor(tokens)


@right(sample)
def nothing_drawn_for_greedy(logits, ids, params, generators):
    probs = next_token_probs(logits, ids, params)
    if params.temperature == 0:
        return probs.argmax(dim=-1)
    uniforms = torch.empty(len(generators))
    for row, generator in enumerate(generators):
        uniforms[row].uniform_(generator=generator)
    return draw(probs, uniforms)


@wrong(sample, "request 0 gave no uniform; expected: it gave one")
def by_the_random_module(logits, ids, params, generators):
    uniforms = torch.tensor([random.random() for _ in generators])
    return draw(next_token_probs(logits, ids, params), uniforms)


wrong(sample)(lambda logits, ids, params, own: sample(logits, ids, params, own[::-1]))
wrong(sample)(
    lambda logits, ids, params, own: sample(logits, ids, params, [g.clone_state() for g in own])
)


# ------------------------------------------------------------------------------ stop strings


def by_regular_expressions(escape):
    def attempt(pieces, stops):
        whole = re.compile("|".join(map(escape, stops)) or r"(?!)")
        parts = {stop[:n] for stop in stops for n in range(1, len(stop))}
        longest_first = sorted(map(escape, parts), key=len, reverse=True)
        begun = re.compile(rf"({'|'.join(longest_first)})\Z" if parts else r"(?!)")
        held = ""
        for piece in pieces:
            held += piece
            if found := whole.search(held):
                yield held[: found.start()]
                return
            found = begun.search(held)
            place = found.start() if found else len(held)
            yield held[:place]
            held = held[place:]
        yield held

    return attempt


right(stop_at)(by_regular_expressions(re.escape))
wrong(stop_at)(by_regular_expressions(str))


@right(stop_at)
class AnIteratorOfItsOwn:
    def __init__(self, pieces, stops):
        self.parts = stop_at(pieces, stops)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.parts)


@wrong(stop_at)
def one_piece_ahead(pieces, stops):
    """Asks for a piece before it yields what it has already."""
    parts = list(islice(pieces, 1))
    for piece in pieces:
        yield from stop_at(parts, [])
        parts = [piece]
    yield from stop_at(parts, stops)


@wrong(stop_at, "did not end after 1,000 pieces; expected: it is text")
def without_an_end(pieces, stops):
    yield from stop_at(pieces, stops)
    while True:
        yield ""


@wrong(stop_at, "is None; expected: it is text, and has an end")
def none_between(pieces, stops):
    for part in stop_at(pieces, stops):
        yield part or None


wrong(stop_at)(lambda pieces, stops: stop_at(pieces, [*stops, *map(str.lower, stops)]))
wrong(stop_at, "is a list; expected: it is an iterator, as `yield` makes one")(
    lambda pieces, stops: list(stop_at(pieces, stops))
)
wrong(stop_at, "'Pieces' object is not subscriptable")(lambda pieces, stops: pieces[0])


# ------------------------------------------------------------------------------- beam search


class Continuation(NamedTuple):
    """Another order of the three."""

    parent: int
    token: int
    score: float


@right(best_continuations)
def by_numpy(scores, logits, count):
    totals = (scores[:, None] + F.log_softmax(logits, -1)).numpy()
    parents, tokens = np.unravel_index(np.argsort(-totals, axis=None)[:count], totals.shape)
    return tuple(Continuation(p, t, totals[p, t]) for p, t in zip(parents, tokens, strict=True))


@wrong(best_continuations)
def each_token_once(scores, logits, count):
    found = {}
    for candidate in best_continuations(scores, logits, logits.numel()):
        found.setdefault(candidate.token, candidate)
    return list(found.values())[:count]


def as_tuples(scores, logits, count):
    return [tuple(candidate) for candidate in best_continuations(scores, logits, count)]


wrong(best_continuations, "contains a tuple; expected: it is a list of 1 Candidate.")(as_tuples)
wrong(best_continuations, "is a tensor of shape [1, 3]; expected: it is a list of")(
    lambda scores, logits, count: torch.tensor(as_tuples(scores, logits, count))
)


@right(BeamSearch.step)
def leaving_the_loop(self):
    """Beams that stay in place need no copy; numbers may be in tensors."""
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


@wrong(BeamSearch.step)
def children_share_a_list(self):
    before = [beam.ids for beam in self.beams]
    BeamSearch.step(self)
    parents = [c.parent for c in self.trace[-1] if c.token != self.eos_token_id][: self.width]
    for beam, parent in zip(self.beams, parents, strict=True):
        before[parent].append(beam.ids[-1])
    self.beams = [Beam(before[p], b.score) for b, p in zip(self.beams, parents, strict=True)]


@wrong(BeamSearch.step)
def identity_for_equality(self):
    eos_token_id = self.eos_token_id
    if eos_token_id is not None and eos_token_id > 256:  # Python keeps smaller ones only once
        self.eos_token_id = -1
    BeamSearch.step(self)
    self.eos_token_id = eos_token_id


@wrong(BeamSearch.step)
def candidates_asked_for_twice(self):
    self.candidates()
    BeamSearch.step(self)


@wrong(BeamSearch.step)
def a_forward_for_each_beam(self):
    BeamSearch.step(self)
    if not self.is_done():
        self.rows.append([0] * len(self.beams))


@wrong(BeamSearch.step, "`rows.become` takes a list of numbers, not a generator")
def parents_in_a_generator(self):
    rows = self.rows

    def become(parents):
        rows.become(parent for parent in parents)

    self.rows = SimpleNamespace(logits=rows.logits, append=rows.append, become=become)
    BeamSearch.step(self)


@wrong(BeamSearch.step, "`beams` after step 1 is a map; expected: it is a list")
def beams_in_a_map(self):
    BeamSearch.step(self)
    self.beams = map(Beam, [beam.ids for beam in self.beams], [beam.score for beam in self.beams])


# ------------------------------------------------------------------------- equivalent mutants

DOES_NOTHING = "a neutral setting may be applied: it changes nothing"
EQUIVALENT = {
    "decoding.apply_top_p": {
        (
            "logits.softmax(dim=-1).sort(dim=-1, descending=True) -> "
            "logits.softmax(dim=-1).sort(descending=True)"
        ): "sort takes the last dimension by default",
    },
    "decoding.apply_repetition_penalty": {
        "seen > 0 -> seen >= 0": "0 stays 0, divided or multiplied",
    },
    "decoding.next_token_probs": {
        "params.repetition_penalty != 1 -> params.repetition_penalty != 0": DOES_NOTHING,
        "params.top_p < 1 -> params.top_p <= 1": DOES_NOTHING,
        "params.top_p < 1 -> params.top_p < 2": DOES_NOTHING,
        "params.min_p > 0 -> params.min_p >= 0": DOES_NOTHING,
        "params.min_p > 0 -> params.min_p > -1": DOES_NOTHING,
    },
    "decoding.stop_at": {
        "max(begun, default=0) -> max(begun, default=-1)": (
            "without stop strings there is no beginning, and cutting after the end keeps everything"
        ),
    },
}
