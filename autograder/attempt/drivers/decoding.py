"""Drivers of lab 5: logits to logits, drawing a token, beam search, stop strings."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from autograder.attempt.lent import handle, opaque
from autograder.attempt.plain import kind_of, kind_or_none
from autograder.attempt.records import Attempt, Seen, form_of, integers, one_call, uniforms_given
from autograder.attempt.tensors import copied


@dataclass(frozen=True)
class SamplingParams:
    """Has the fields and defaults of the notebook's class, and replaces it."""

    __module__ = "builtins"  # whose names its methods have, instead of a driver's

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


# ----------------------------------------------------------------------------- logits to logits

Logits = Float[Tensor, "rows vocab"]
NEVER = float("-inf")


def filtered(attempt: Attempt, logits: Logits, **threshold: float) -> list[Seen]:
    """Record which tokens of each row stay. The one threshold may have any name."""
    returned = attempt(logits, *threshold.values())
    return by_row(
        returned, logits, "logits", lambda row, now: f"keeps {tokens_where(now != NEVER)}"
    )


def apply_top_p(attempt: Attempt, logits: Logits, p: float) -> list[Seen]:
    """As `filtered`; of equal logits any may stay, so they are recorded as the first of them."""
    before = logits.clone()
    return filtered(lambda *given: first_of_equals(attempt(*given), before), logits, p=p)


def first_of_equals(returned: Any, logits: Logits) -> Any:
    """What was returned, with -inf at the last tokens of those that had equal logits."""
    if form_of(returned) != form_of(logits):
        return returned
    settled = returned.clone()
    for row, before in zip(settled, logits, strict=True):
        values, counts = before.unique(return_counts=True)
        for value in values[counts > 1]:
            row[before == value] = row[before == value].sort(descending=True).values
    return settled


def by_row(
    returned: Any, like: Logits, what: str, told: Callable[[int, Tensor], str]
) -> list[Seen]:
    """Record a sentence for each row, then the tensor, if its form is right."""
    seen = [Seen("What it returned", form_of(returned))]
    if form_of(returned) != form_of(like):
        return seen
    for row, now in enumerate(returned):
        seen.append(Seen(f"Row {row}", "has NaN in it" if now.isnan().any() else told(row, now)))
    return [*seen, Seen(f"The tensor of {what}", returned)]


def apply_repetition_penalty(
    attempt: Attempt, logits: Logits, ids: Int[Tensor, "rows seq"], penalty: float
) -> list[Seen]:
    """Record which tokens of each row get another logit."""
    before = logits.clone()

    def told(row: int, now: Tensor) -> str:
        other = ~torch.isclose(now.to(before.dtype), before[row])
        return f"has another logit for {tokens_where(other)}"

    return by_row(attempt(logits, ids, penalty), before, "logits", told)


def next_token_probs(
    attempt: Attempt, logits: Logits, ids: Int[Tensor, "rows seq"], params: dict[str, Any]
) -> list[Seen]:
    """Record which tokens of each row can be drawn. `params` may leave out neutral settings."""
    returned = attempt(logits, ids, SamplingParams(**params))
    told = "probabilities", lambda row, probs: f"can draw {tokens_where(probs != 0)}"
    return by_row(returned, logits, *told)


def tokens_where(chosen: Bool[Tensor, " vocab"]) -> str:
    """Name the chosen tokens; if there are many, only the first ones."""
    tokens = chosen.nonzero().flatten().tolist()
    if len(tokens) == len(chosen):
        return "every token"
    if len(tokens) > 8:
        return f"{len(tokens)} tokens ({', '.join(map(str, tokens[:8]))}, ...)"
    if not tokens:
        return "no token"
    *others, last = map(str, tokens)
    return f"tokens {', '.join(others)} and {last}" if others else f"token {last}"


# ------------------------------------------------------------------------------ drawing a token


draw = one_call(__name__, "draw", "The tensor of tokens", "probs uniforms")


def sample(
    attempt: Attempt, params: dict[str, Any], seeds: list[int], steps: list[dict[str, Any]]
) -> list[Seen]:
    """Call the attempt once per step, for some requests, each with a generator of its own.

    steps: for each, the requests, their logits and texts. At temperature 0 the uniforms change
    nothing, so it isn't counted how many are drawn.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    drawn = SamplingParams(**params)
    seen: list[Seen] = []
    for number, step in enumerate(steps, 1):
        where = f"in step {number}" if len(steps) > 1 else ""
        states = [generator.get_state() for generator in generators]
        own = [generators[request] for request in step["requests"]]
        lent = list(own)
        tokens = attempt(step["logits"], step["ids"], drawn, lent)
        for request, (state, generator) in enumerate(zip(states, generators, strict=True)):
            if drawn.temperature > 0:
                told = gave(state, generator)
                seen.append(Seen(f"The generator of request {request}", told, where))
        seen.append(Seen("The tensor of tokens", tokens, where))
        kept = "is as it was" if lent == own else "is no longer what it was before the call"
        seen.append(Seen("The list of generators", kept, where))
    return seen


def gave(state: Tensor, generator: torch.Generator) -> str:
    """Say how many uniforms a generator has given since it was in this state."""
    count = uniforms_given(state, generator, most=3)
    if count is None:
        return "gave other numbers than uniforms, or more than three"
    return f"gave {('no uniform', 'one uniform', 'two uniforms', 'three uniforms')[count]}"


# ------------------------------------------------------------------------------- beam search


def best_continuations(attempt: Attempt, scores: Tensor, logits: Logits, count: int) -> list[Seen]:
    found = attempt(scores, logits, count)
    form = told_of(found)
    seen = [Seen("What it returned", form)]
    if isinstance(form, str) and form.startswith("is a list of"):
        for rank, candidate in enumerate(found):
            for name in ("parent", "token", "score"):
                seen.append(Seen(f"The {name}", getattr(candidate, name), f"of candidate {rank}"))
    return seen


def told_of(found: Any) -> Any:
    """Say whether this is a list of Candidates. Anything but a list is returned as it is."""
    if not isinstance(found, (list, tuple)):
        return found
    for candidate in found:
        if not all(hasattr(candidate, name) for name in ("score", "parent", "token")):
            return f"contains {kind_of(candidate)}"
        for name in ("parent", "token"):
            if not isinstance(value := getattr(candidate, name), Integral):
                return f"contains a Candidate whose {name} is {kind_of(value)}"
    return f"is a list of {counted(len(found), 'Candidate')}"


Places = Float[Tensor, "places vocab size"]
Head = Float[Tensor, "size vocab"]


class Texts:
    """Replaces `rows`. Its logits depend on every token and its position, so a wrong text shows.

    calls: the calls of this step.
    """

    def __init__(self, prompt: list[int], embedding: Places, head: Head) -> None:
        self.embedding, self.head = embedding, head
        self.texts, self.calls = [list(prompt)], list[str]()
        self.logits = self.computed()

    def computed(self) -> Float[Tensor, "rows vocab"]:
        places = list(range(len(self.texts[0])))
        hidden = [self.embedding[places, text].sum(dim=0) for text in self.texts]
        return torch.stack(hidden) @ self.head

    def become(self, parents: Any) -> None:
        parents = integers(parents, "`rows.become`")
        if missing := [parent for parent in parents if not 0 <= parent < len(self.texts)]:
            raise IndexError(
                f"`rows.become` was given parent {missing[0]}; the number of rows is "
                f"{len(self.texts)}, and they count from 0."
            )
        self.calls.append(f"become({parents})")
        self.texts = [list(self.texts[parent]) for parent in parents]

    def append(self, tokens: Any) -> None:
        tokens = integers(tokens, "`rows.append`")
        if len(tokens) != len(self.texts):
            raise ValueError(
                f"`rows.append` was given {counted(len(tokens), 'token')} for "
                f"{counted(len(self.texts), 'row')}."
            )
        self.calls.append(f"append({tokens})")
        self.texts = [[*text, token] for text, token in zip(self.texts, tokens, strict=True)]
        if len(self.texts[0]) > len(self.embedding):
            raise ValueError("`rows.append` was called more often than there are new tokens.")
        self.logits = self.computed()


def step(
    attempt: type, prompt: list[int], embedding: Places, head: Head, steps: int, **options: Any
) -> list[Seen]:
    """Run a search of `steps` steps; after the last one it is done."""
    rows = Texts(prompt, embedding, head)
    search = attempt(handle(rows, "logits become append"), prompt, **options)
    seen: list[Seen] = []
    for number in range(1, steps + 1):
        rows.calls.clear()
        search.step()
        where = f"after step {number}"
        for name in ("beams", "finished"):
            seen += held(getattr(search, name), name, where)
        seen.append(Seen("The number of steps in `trace`", len(search.trace), where))
        last = [candidate.token for step in search.trace[-1:] for candidate in step]
        seen.append(Seen("The tokens of the candidates in `trace[-1]`", last, where))
        if number == steps:
            calls = ", then ".join(rows.calls)
            called = f"gets the calls {calls}" if calls else "gets no call"
            seen.append(Seen("`rows`", called, f"in step {number}, the last,"))
            break
        appended = sum(call.startswith("append") for call in rows.calls)
        seen.append(Seen("The number of calls of `rows.append`", appended, f"in step {number}"))
        seen.append(Seen("The number of rows", len(rows.texts), where))
        for row, text in enumerate(rows.texts):
            seen.append(Seen(f"The text that row {row} holds", list(text), where))
    return seen


def held(beams: Any, name: str, where: str) -> Iterator[Seen]:
    """Record the texts and scores of beams."""
    if not isinstance(beams, (list, tuple)):
        yield Seen(f"`{name}`", f"is {kind_of(beams)}", where)
        return
    odd = [beam for beam in beams if not (hasattr(beam, "ids") and hasattr(beam, "score"))]
    told = f"contains {kind_of(odd[0])}" if odd else f"is a list of {counted(len(beams), 'Beam')}"
    yield Seen(f"`{name}`", told, where)
    for rank, beam in enumerate(beams if not odd else []):
        yield Seen(f"`{name}[{rank}].ids`", copied(beam.ids), where)
        yield Seen(f"`{name}[{rank}].score`", beam.score, where)


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


# ------------------------------------------------------------------------------ stop strings

MOST_PIECES = 1_000  # taken from an attempt, which may be endless


class Pieces:
    """The pieces of a text as a model gives them: one at a time, and only once.

    passed: the text passed on so far. before: that text at each request for a piece, and at the
    request that found no more.
    """

    def __init__(self, pieces: list[str]) -> None:
        self.left, self.given = iter(pieces), 0
        self.passed, self.before = "", list[str]()

    def __next__(self) -> str:
        if len(self.before) == self.given:  # after the end it may be asked again
            self.before.append(self.passed)
        piece = next(self.left)
        self.given += 1
        return piece


def stop_at(attempt: Attempt, pieces: list[str], stops: list[str]) -> list[Seen]:
    source = Pieces(pieces)
    own = {"__iter__": lambda given: given, "__next__": lambda given: next(source)}
    text = attempt(opaque("Pieces", (), **own), stops)
    if not isinstance(text, Iterator):
        return [Seen("What it returned", f"is {kind_or_none(text)}")]
    seen = [Seen("What it returned", "is an iterator, as `yield` makes one")]
    for number, part in enumerate(text):
        if not isinstance(part, str):
            return [*seen, Seen("What it yields", f"is {kind_or_none(part)}")]
        source.passed += part
        if number == MOST_PIECES:
            told = f"did not end after {MOST_PIECES:,} pieces"
            return [*seen, Seen("What it yields", told)]
    seen.append(Seen("What it yields", "is text, and has an end"))
    seen.append(Seen("The text that it yielded", f"is {source.passed!r}", "in all"))
    seen.append(Seen("The number of pieces that it took", source.given))
    for number, passed in enumerate(source.before[1:], 1):
        where = f"after piece {number}"
        seen.append(Seen("The text that it had yielded", f"was {passed!r}", where))
    return seen
