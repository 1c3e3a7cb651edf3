"""Drivers of lab 14: choices, masks, derivatives, an index, generation, jumps, regions."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import kind_of, kind_or_none, plain
from autograder.attempt.records import Attempt, Seen, as_it_was, form_of, integers, things, tried
from autograder.attempt.tensors import snapshot
from solutions.grammars.regex import Regex, nullable, parse

NEVER = float("-inf")
Edges = list[dict[int, int]]


class Automaton(NamedTuple):
    """Has the parts of the notebook's class, and replaces it."""

    edges: Edges
    accepting: frozenset[int]


def words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return kind_or_none(value)


def named(tokens: Any, eos: int | None = None) -> str:
    """Tokens in words, in order."""
    names = ["EOS" if token == eos else str(token) for token in sorted(tokens)]
    return f"token{'s' * (len(names) != 1)} {', '.join(names)}" if names else "no token"


# ------------------------------------------------------------------------- choices, and the mask


def allowed_choices(
    attempt: Attempt, choices: list[list[int]], generated: list[int], eos: int
) -> list[Seen]:
    found = attempt(choices, generated, eos)
    if not isinstance(found, AbstractSet):
        told = f"is {words(found)}"
    elif strange := [token for token in found if type(plain(token)) is not int]:
        told = f"has {words(strange[0])} in it"
    else:
        told = f"has {named(found, eos)} in it"
    return [Seen("The set", told)]


def constrain(
    attempt: Attempt, logits: Float[Tensor, "batch vocab"], allowed: Bool[Tensor, "batch n"]
) -> list[Seen]:
    """Then once more, with a mask whose last row allows nothing."""
    like, blocked = form_of(logits), allowed.clone()
    blocked[-1] = False
    found = attempt(logits, allowed)
    seen = [Seen("What it returned", form_of(found))]
    if form_of(found) == like:
        for number, row in enumerate(found):
            left = named((row != NEVER).nonzero().flatten().tolist())
            told = "has NaN in it" if row.isnan().any() else f"leaves {left}"
            seen.append(Seen(f"Row {number}", told))
        seen.append(Seen("The tensor of logits", found.clone()))
    _, went = tried(attempt, logits, blocked)
    return [*seen, Seen("A mask whose last row allows no token", went)]


# ------------------------------------------------------------------------------------ derivatives


def derivative(
    attempt: Attempt, pattern: str, alphabet: list[int], longest: int, most: int
) -> list[Seen]:
    """Read every text of up to `longest` bytes; then find the expressions that can be reached.

    most: a few more of these than an attempt needs that builds with `then` and `either`.
    """

    def after(regex: Regex, byte: int) -> Regex:
        found = attempt(regex, byte)
        if not isinstance(found, Regex):
            told = "None. Is a `return` missing?" if found is None else f"{words(found)}."
            raise TypeError(f"derivative returns an expression; for {kind_of(regex)} it is {told}")
        return found

    read, seen = {b"": parse(pattern)}, list[Seen]()
    for length in range(longest + 1):
        for text in map(bytes, product(alphabet, repeat=length)):
            if text:
                read[text] = after(read[text[:-1]], text[-1])
            told = "fits" if nullable(read[text]) else "doesn't fit"
            seen.append(Seen(f"With the pattern {pattern!r}, the text {text!r}", told))
    states = len(reached(after, read[b""], alphabet, most))
    told = f"is above {most}" if states > most else f"is at most {most}"
    return [*seen, Seen("The number of different expressions", told)]


def reached(
    after: Callable[[Regex, int], Regex], start: Regex, alphabet: list[int], most: int
) -> list[Regex]:
    """An expression and its derivatives, up to a few more than `most`."""
    found = [start]
    for regex in found:  # which grows meanwhile
        for byte in alphabet:
            new = after(regex, byte)
            found += [new] if new not in found else []
        if len(found) > most:
            break
    return found


# ------------------------------------------------------------------------- from bytes to tokens


def token_index(
    attempt: Attempt, edges: Edges, accepting: list[int], vocabulary: list[bytes]
) -> list[Seen]:
    texts = list(vocabulary)
    index = attempt(Automaton(edges, frozenset(accepting)), texts)
    if not isinstance(index, (list, tuple)):
        return [Seen("What it returned", f"is {words(index)}")]
    seen = [
        Seen("What it returned", f"is a list with {len(index)} states"),
        as_it_was("`vocabulary`", texts, vocabulary),
    ]
    for state, ends in enumerate(index):
        if not isinstance(ends, Mapping):
            raise TypeError(f"Each item of the index is a dict; item {state} is {words(ends)}.")
        for token, text in enumerate(vocabulary):
            place = f"leads to state {plain(ends[token])!r}" if token in ends else "isn't there"
            seen.append(Seen(f"Token {token}, {text!r},", place, f"in state {state}"))
        others = [plain(key) for key in ends if key not in range(len(vocabulary))]
        seen.append(Seen("The list of keys that are no token", others, f"in state {state}"))
    return seen


# ---------------------------------------------------------------------- generating under a mask


class Texts:
    """Replaces `rows`. Its logits depend on every token and its position, so a wrong text shows."""

    def __init__(self, prompts: list[list[int]], embedding: Tensor, head: Tensor) -> None:
        self.texts, self.embedding, self.head = [list(p) for p in prompts], embedding, head
        self.appended, self.logits = 0, self.computed()

    def computed(self) -> Float[Tensor, "rows vocab"]:
        hidden = [self.embedding[range(len(text)), text].sum(dim=0) for text in self.texts]
        return torch.stack(hidden) @ self.head if hidden else self.head[:0]

    def become(self, parents: Any) -> None:
        parents = integers(parents, "`rows.become`")
        if missing := [parent for parent in parents if not 0 <= parent < len(self.texts)]:
            raise IndexError(
                f"`rows.become` was given row {missing[0]}; the number of rows is now "
                f"{len(self.texts)}, and they count from 0."
            )
        self.texts, self.logits = [self.texts[parent] for parent in parents], self.logits[parents]

    def append(self, tokens: Any) -> None:
        tokens, self.appended = integers(tokens, "`rows.append`"), self.appended + 1
        if len(tokens) != len(self.texts):
            raise ValueError(
                f"`rows.append` takes a token for each row; the number of rows is "
                f"{len(self.texts)}, and it was given {len(tokens)}."
            )
        self.texts = [[*text, token] for text, token in zip(self.texts, tokens, strict=True)]
        self.logits = self.computed()


class Chooser:
    """`choose`: notes what it is given, and takes tokens by their ranks.

    ranks: for each row, 0 for the likeliest token, 1 for the next; -1 for EOS where it may come.
    """

    def __init__(self, rows: Texts, ranks: list[list[int]], eos: int) -> None:
        self.rows, self.ranks, self.eos = rows, ranks, eos
        self.calls, self.seen = 0, list[Seen]()

    def __call__(self, logits: Any, numbers: Any) -> list[int]:
        own, self.calls = integers(numbers, "`choose`"), self.calls + 1
        when = f"Call {self.calls} of `choose`"
        self.seen.append(Seen(when, f"is for the rows {sorted(own)}"))
        fits = isinstance(logits, Tensor) and [*logits.shape] == [len(own), self.rows.head.shape[1]]
        if not fits or not set(own) <= set(range(len(self.ranks))):
            raise ValueError(f"`choose` was given {words(logits)} as logits, for the rows {own}.")
        return [self.chosen(place, number, logits[place], when) for place, number in enumerate(own)]

    def chosen(self, place: int, number: int, row: Float[Tensor, " vocab"], when: str) -> int:
        allowed = (row != NEVER).nonzero().flatten().tolist()
        told = {
            "The list of tokens": [*self.rows.texts, *[None] * place][place],
            "The mask": f"leaves {named(allowed, self.eos)}",
            "The row of logits": snapshot(row),
        }
        self.seen += [Seen(*both, f"of row {number} in {when.lower()}") for both in told.items()]
        rank = self.ranks[number][(self.calls - 1) % len(self.ranks[number])]
        ranked = row.argsort(descending=True).tolist()[: len(allowed) or None]
        return self.eos if rank < 0 and self.eos in allowed else ranked[rank % len(ranked)]


def generate_constrained(
    attempt: Attempt,
    prompts: list[list[int]],
    max_new_tokens: int,
    eos: int,
    ranks: list[list[int]] | None = None,
    **parts: Any,
) -> list[Seen]:
    """Without ranks for a Chooser, the attempt's own default chooses.

    parts: `embedding` and `head` of the rows, `edges`, `accepting` and `index` of an automaton.
    """
    rows = Texts(prompts, parts["embedding"], parts["head"])
    choose, index = Chooser(rows, ranks or [], eos), parts["index"]
    automaton = Automaton(parts["edges"], frozenset(parts["accepting"]))
    given = handle(rows, "logits become append"), automaton, index, max_new_tokens, eos
    found = attempt(*given, *([] if ranks is None else [sealed(choose)]))
    several = isinstance(found, (list, tuple))
    return [
        *choose.seen,
        Seen("What it returned", f"is {f'a list of {len(found)}' if several else words(found)}"),
        *(
            Seen("The list of new tokens", new, f"of row {n}")
            for n, new in enumerate(found if several else [])
        ),
        Seen("The number of calls of `rows.append`", rows.appended),
    ]


# ------------------------------------------------------------------------------ jumping forward


def forced(attempt: Attempt, edges: Edges, accepting: list[int], state: int) -> list[Seen]:
    found = attempt(Automaton(edges, frozenset(accepting)), state)
    text, end = things(2, found, "forced returns bytes and a state")
    told = f"are {text!r}" if type(text) is bytes else f"are {words(text)}"
    return [Seen("The bytes that must come", told), Seen("The state after them", end)]


def hold_back(
    attempt: Attempt, tokens: list[int], vocabulary: list[bytes], edges: Edges, index: Edges
) -> list[Seen]:
    """The tokens are a text that is forced in state 0. index: of the automaton with these edges."""
    texts = list(vocabulary)

    def allowed(before: Any) -> frozenset[int]:
        if not isinstance(before, bytes):
            raise TypeError(f"`allowed` takes bytes, not {words(before)}.")
        state = 0
        for byte in before:
            if byte not in edges[state]:
                raise ValueError(f"`allowed` was given {before!r}, and no text begins with it.")
            state = edges[state][byte]
        return frozenset(index[state])

    found = attempt(tokens, texts, sealed(allowed))
    return [Seen("The list of tokens", found), as_it_was("`vocabulary`", texts, vocabulary)]


# -------------------------------------------------------------------------- a stack of brackets


def classify(
    attempt: Attempt, edges: Edges, accepting: list[int], state: int, vocabulary: list[bytes]
) -> list[Seen]:
    texts, fates = list(vocabulary), ("accepted", "rejected", "uncertain")
    found = attempt(Automaton(edges, frozenset(accepting)), state, texts)
    sets = dict(zip(fates, things(3, found, "classify returns three sets"), strict=True))
    for fate, tokens in sets.items():
        if not isinstance(tokens, AbstractSet):
            raise TypeError(f"classify returns three sets; that of {fate} is {words(tokens)}.")
    seen = [as_it_was("`vocabulary`", texts, vocabulary)]
    for token, text in enumerate(vocabulary):
        told = " and ".join(fate for fate in fates if token in sets[fate])
        seen.append(Seen(f"Token {token}, {text!r},", f"is {told or 'in none of the sets'}"))
    others = [plain(t) for fate in fates for t in sets[fate] if t not in range(len(vocabulary))]
    return [*seen, Seen("The list of what is no token", others)]
