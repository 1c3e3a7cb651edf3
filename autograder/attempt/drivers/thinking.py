"""Drivers of lab 25: a budget of thoughts, two kinds of deltas, votes, prompts, history."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import kind_of, kind_or_none
from autograder.attempt.records import Attempt, Seen, as_it_was, one_call, said, things
from solutions.constrained import Automaton, IndexGuide

RESULT = "What it returned"
Edges = list[tuple[bytes, list[int]]]  # of each state: its bytes, and the state after each


def automaton_of(edges: Edges, accepting: list[int]) -> Automaton:
    unpacked = [dict(zip(out, ends, strict=True)) for out, ends in edges]
    return Automaton(unpacked, frozenset(accepting))


# ------------------------------------------------------------------------------------- a budget


def closing(attempt: Attempt, edges: Edges, accepting: list[int], end: bytes) -> list[Seen]:
    given = automaton_of(edges, accepting)
    found = attempt(given, end)
    if not (hasattr(found, "edges") and hasattr(found, "accepting")):
        return [Seen(RESULT, f"is {kind_or_none(found)}")]
    seen = [Seen(RESULT, "is an automaton"), Seen("The number of states", len(found.edges))]
    for state, out in enumerate(found.edges):
        seen.append(Seen("The automaton", told(out), f"in state {state}"))
    seen.append(Seen("The list of states in which a text may end", sorted(found.accepting)))
    return [*seen, as_it_was("`whole`", given, automaton_of(edges, accepting))]


def told(out: dict[int, int]) -> str:
    """Some edges in words."""
    if not out:
        return "reads nothing"
    some = [f"{bytes([byte])!r} to state {end}" for byte, end in sorted(out.items())]
    return f"reads {', '.join(some[:3])}" + (f" and {len(some) - 3} more" if some[3:] else "")


def budget_of(
    attempt: type, free: Edges, shut: Edges, accepting: list[int], words: list[bytes], most: int
) -> Any:
    """The last of the words is EOS, without bytes. Thoughts end with its first two."""
    guides = [
        IndexGuide(automaton_of(edges, accepting), words, len(words) - 1) for edges in (free, shut)
    ]
    return attempt(*guides, 2, most)


def allowed(
    attempt: type, states: list[tuple[int, int]], words: list[bytes], **case: Any
) -> list[Seen]:
    budget = budget_of(attempt, words=words, **case)
    seen = list[Seen]()
    for state in states:
        where = f"in state {state[0]}, with {state[1]} tokens spent"
        mask = budget.allowed(state)
        if not hasattr(mask, "tolist"):
            return [*seen, Seen(RESULT, f"is {kind_or_none(mask)}", where)]
        seen.append(Seen(RESULT, "is a mask", where))
        names = [
            word.decode() or "EOS" for word, may in zip(words, mask.tolist(), strict=True) if may
        ]
        seen.append(said("The list of tokens that may come", names, where))
    return seen


def advance(attempt: type, tokens: list[int], words: list[bytes], **case: Any) -> list[Seen]:
    budget = budget_of(attempt, words=words, **case)
    state, text, seen = budget.start(), "", list[Seen]()
    for token in tokens:
        before = state
        state = budget.advance(state, token)
        text += words[token].decode() or " EOS"
        rule = "advance returns an inner state and how many tokens are spent"
        inner, spent = things(2, state, rule)
        again = budget.advance(before, token)
        where, same = f"after {text!r}", "gives the same" if again == state else "differs"
        seen += [
            Seen("The inner state", inner, where),
            Seen("The number of tokens spent", spent, where),
            Seen("The same call once more", same, where),
        ]
        state = inner, spent
    return seen


# ------------------------------------------------------------------------- thoughts and the answer


def push(attempt: type, end: str, pieces: list[str]) -> list[Seen]:
    stream, seen = attempt(end), list[Seen]()
    for number, piece in enumerate(pieces, 1):
        where = f"for piece {number}, {piece!r}"
        deltas = stream.push(piece)
        if not isinstance(deltas, list):
            return [*seen, Seen(RESULT, f"is {kind_or_none(deltas)}", where)]
        seen += [
            Seen(RESULT, "is a list", where),
            said("The list of deltas", joined(deltas), where),
            said("`held`", stream.held, where),
            Seen("`is_thinking`", bool(stream.is_thinking), where),
        ]
    return seen


def joined(deltas: list[Any]) -> list[Any]:
    """Deltas, of which neighbors that add to the same text are one."""
    found = list[Any]()
    for delta in deltas:
        match [list(one.items()) if isinstance(one, dict) else one for one in (*found[-1:], delta)]:
            case [[(kind, str(text))], [(same, str(more))]] if kind == same and text and more:
                found[-1] = {kind: text + more}
            case _:
                found.append(delta)
    return found


# ------------------------------------------------------------------------------ one of many answers


def majority(
    attempt: Attempt, answers: list[str | None], logprobs: list[float], **weighted: bool
) -> list[Seen]:
    """A case without `weighted` needs the attempt's default."""
    return [said("The answer", attempt(answers, logprobs, **weighted))]


best_of = one_call(__name__, "best_of", "The number of the text", "texts logprobs by")


def agreed(attempt: Attempt, votes: dict[str, int], left: int) -> list[Seen]:
    found = attempt(votes, left)
    return [Seen(RESULT, f"is {found if isinstance(found, bool) else kind_or_none(found)}")]


class Pool:
    """Replaces an engine, whose prompts take some steps. Other requests run in it, too.

    steps: how many steps the first request's prompt takes; in the last of them it catches up.
    waits: in how many steps before these it isn't served. Requests after it need one step.
    """

    def __init__(self, first: int, waits: int, steps: int, others: Sequence[int]) -> None:
        self.first, self.waits, self.steps, self.others = first, waits, steps, list(others)
        self.log, self.requests = list[str](), list[int]()
        before = [[(number, 1, True) for number in self.others]] if others else []
        self.trace = deque[list[tuple[int, int, bool]]](before, maxlen=1000)

    def submit(self, seed: Any) -> int:
        self.log.append(f"a request with seed {seed!r}")
        self.requests.append(self.first + len(self.requests))
        return self.requests[-1]

    def step(self) -> None:
        self.log.append("a step")
        taken = self.log.count("a step")
        if taken > self.waits + self.steps + 5:
            raise RuntimeError("The engine has taken many more steps than the prompt needs.")
        is_served = self.requests and taken > self.waits
        its = [(self.first, 4, taken >= self.waits + self.steps)] if is_served else []
        more = [*self.others, *self.requests[1:]]
        self.trace.append([(number, 1, True) for number in more] + its)


def forked(attempt: Attempt, n: int, **pool: Any) -> list[Seen]:
    engine = Pool(**pool)
    numbers = attempt(handle(engine, "step trace"), sealed(engine.submit), n)
    if not isinstance(numbers, (list, tuple)):
        return [Seen(RESULT, f"is {kind_or_none(numbers)}")]
    return [
        Seen(RESULT, "is a list"),
        said("The list of what the engine was asked", engine.log),
        Seen("The list of numbers", list(numbers)),
    ]


# ------------------------------------------------------------------------------------ the next turn


def without_thoughts(attempt: Attempt, messages: list[dict[str, Any]]) -> list[Seen]:
    given = [dict(message) for message in messages]
    found = attempt(given)
    if not isinstance(found, (list, tuple)):
        return [Seen(RESULT, f"is {kind_or_none(found)}")]
    seen = [Seen(RESULT, "is a list"), Seen("The number of messages", len(found))]
    for number, message in enumerate(found):
        if not isinstance(message, dict):
            return [*seen, Seen(f"Message {number}", f"is {kind_of(message)}")]
        new = "is the given one" if any(message is one for one in given) else "is new"
        seen += [
            said(f"Message {number}", message),
            Seen(f"The dictionary of message {number}", new),
        ]
    return [*seen, as_it_was("`messages`", given, messages)]
