"""Drivers of lab 24: languages of calls, deltas of a text, messages, and the loop around them."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

from autograder.attempt.around import lending
from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of, kind_or_none, plain
from autograder.attempt.records import Attempt, Seen, as_it_was, things, tried
from solutions.constrained import Automaton, automaton_of
from solutions.grammars.regex import NOTHING, Regex, parse

RESULT = "What it returned"
LONGEST = 2000  # characters of a result, as in the notebook


@dataclass(frozen=True)
class Tool:
    """As the notebook's own."""

    name: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    description: str = ""
    effects: bool = False


def in_order(value: Any) -> Any:
    """The same with the keys of all dicts in alphabetical order."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value, key=str)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


def said(what: str, value: Any, where: str = "") -> Seen:
    """A value in words; None stays as it is, because a `return` may be missing."""
    value = in_order(plain(value))
    return Seen(what, value if value is None else f"is {value!r}", where)


# ------------------------------------------------------------------------------------- languages


def fits(automaton: Any, text: bytes) -> bool:
    state = state_after(automaton, text)
    return state is not None and state in automaton.accepting


def state_after(automaton: Any, text: bytes) -> Any:
    """The state after a text; None if it leaves the language."""
    state = 0
    for byte in text:
        if byte not in automaton.edges[state]:
            return None
        state = plain(automaton.edges[state][byte])
        if type(state) is not int or not 0 <= state < len(automaton.edges):
            raise ValueError(
                f"After {text!r}, an edge leads to state {state!r}; there are "
                f"{len(automaton.edges)} states, numbered from 0."
            )
    return state


def kind_told(found: Any) -> str:
    is_one = hasattr(found, "edges") and hasattr(found, "accepting")
    return "is an automaton" if is_one else f"is {kind_or_none(found)}"


def call_pattern(
    attempt: Attempt, tools: list[dict[str, Any]], parallel: bool, texts: list[str]
) -> list[Seen]:
    given = [Tool(**tool, function=print) for tool in tools]
    before, found = list(given), attempt(given, parallel)
    if not isinstance(found, Regex):
        return [Seen(RESULT, f"is {kind_or_none(found)}")]
    automaton = automaton_of(found)
    return [
        Seen(RESULT, "is an expression"),
        *(Seen(f"The text {text!r}", allowed(fits(automaton, text.encode()))) for text in texts),
        as_it_was("`tools`", given, before),
    ]


def allowed(it_is: bool) -> str:
    return "is allowed" if it_is else "isn't allowed"


def triggered(
    attempt: Attempt,
    edges: list[dict[int, int]],
    accepting: list[int],
    trigger: bytes,
    texts: list[bytes],
) -> list[Seen]:
    """All that counts of states is which texts they allow; of free ones also their numbers."""
    found = attempt(Automaton(edges, frozenset(accepting)), trigger)
    seen = [Seen(RESULT, kind_told(found))]
    if seen[0].value == "is an automaton":
        free = [text for text in texts if trigger not in text]
        seen += [Seen(f"The text {text!r}", allowed(fits(found, text))) for text in texts]
        seen += [Seen(f"The state after {text!r}", state_after(found, text)) for text in free]
    return seen


class FreeText:
    """What `triggered` and `without` return while `language` is judged: free text, then calls."""

    edges, accepting = "those of free text", "those of free text"

    def __init__(self, trigger: Any, calls: Any = None) -> None:
        if not isinstance(trigger, bytes):
            raise TypeError(f"A trigger is bytes; it was given {kind_or_none(trigger)}.")
        self.trigger, self.calls = trigger, calls

    def fits(self, text: bytes) -> bool:
        begin = text.find(self.trigger)
        return begin < 0 or (self.calls is not None and fits(self.calls, text[begin:]))


def language(
    attempt: Attempt,
    tools: list[dict[str, Any]],
    choice: Any,
    parallel: bool,
    patterns: dict[str, str],
    texts: list[str],
) -> list[Seen]:
    """patterns: what `call_pattern` returns, by the names of tools, and "several" if parallel."""
    given = [Tool(**tool, function=print) for tool in tools]
    before = list(given)

    def pattern(tools: Sequence[Any], parallel: bool) -> Regex:
        names = [*sorted(tool.name for tool in tools), *["several"] * bool(parallel)]
        return parse(patterns[" ".join(names)]) if tools else NOTHING

    def after_text(calls: Any, trigger: Any) -> FreeText:
        return FreeText(trigger, calls)

    lent = {"call_pattern": pattern, "triggered": after_text, "without": FreeText}
    with lending(attempt, {name: sealed(function) for name, function in lent.items()}):
        found, how = tried(attempt, given, choice, parallel)
    seen = [Seen("The choice", how), as_it_was("`tools`", given, before)]
    if how != "went through":
        return seen
    seen.append(Seen(RESULT, kind_told(found)))
    if seen[-1].value == "is an automaton":
        fit = found.fits if isinstance(found, FreeText) else partial(fits, found)
        seen += [Seen(f"The text {text!r}", allowed(fit(text.encode()))) for text in texts]
    return seen


# --------------------------------------------------------------------------- from text to deltas


def up_to(attempt: Attempt, text: str, mark: str) -> list[Seen]:
    rule = "up_to returns the text before, whether the mark is there, and the rest"
    before, found, rest = things(3, attempt(text, mark), rule)
    return [
        said("The text before", before),
        said("Whether the mark is there", found),
        said("The rest", rest),
    ]


def push(attempt: Attempt, pieces: list[str], ids: list[str]) -> list[Seen]:
    """Push a text piece by piece, then finish. ids: of the calls that may come, in order."""
    left = list(ids)

    def new_id() -> str:
        if not left:
            raise RuntimeError("`new_id` is called more often than there are calls.")
        return left.pop(0)

    stream = attempt(sealed(new_id))
    seen = [
        said("What `push` returned", joined(stream.push(piece)), f"for piece {number}, {piece!r},")
        for number, piece in enumerate(pieces, 1)
    ]
    return [
        *seen,
        Seen("`count`", stream.count, "at the end"),
        said("What `finish()` returned", joined(stream.finish()), "at the end"),
    ]


def joined(deltas: Any) -> Any:
    """Deltas with one part each; neighbors that add to the same text are one."""
    deltas = plain(deltas)
    if not isinstance(deltas, list) or not all(isinstance(delta, dict) for delta in deltas):
        return deltas
    found = list[dict[str, Any]]()
    for delta in deltas:
        calls = delta.get("tool_calls") if delta.keys() == {"tool_calls"} else None
        for one in [{"tool_calls": [c]} for c in calls] if isinstance(calls, list) else [delta]:
            place, text = added(one)
            before, start = added(found[-1]) if found else (None, "")
            if place is not None and place == before:
                found[-1] = delta_of(place, start + text)
            else:
                found.append(one)
    return found


def added(delta: Any) -> tuple[Any, str]:
    """Where a delta adds to a text, and what; None if it does anything else."""
    match delta:
        case {"content": str(text)}:
            place = "content"
        case {"tool_calls": [{"index": place, "function": {"arguments": str(text)}}]}:
            pass
        case _:
            return None, ""
    return (place, text) if text and delta == delta_of(place, text) else (None, "")


def delta_of(place: Any, text: str) -> dict[str, Any]:
    if place == "content":
        return {"content": text}
    return {"tool_calls": [{"index": place, "function": {"arguments": text}}]}


def finish_reason(attempt: Attempt, reason: str, count: int, choice: Any) -> list[Seen]:
    return [said("The reason", attempt(reason, count, choice))]


# --------------------------------------------------------------------------- messages, both ways


def assembled(attempt: Attempt, deltas: list[Any]) -> list[Seen]:
    message = plain(attempt(deltas))
    if not isinstance(message, dict):
        return [Seen(RESULT, f"is {kind_or_none(message)}")]
    calls = message.get("tool_calls", [])
    seen = [
        Seen(RESULT, "is a message"),
        Seen("The list of its keys", sorted(map(str, message))),
        Seen("`role`", f"is {message.get('role')!r}"),
        Seen("`content`", f"is {message.get('content')!r}"),
        Seen("The number of calls", len(calls) if isinstance(calls, list) else kind_of(calls)),
    ]
    for number, call in enumerate(calls if isinstance(calls, list) else []):
        parts = {**call, **call["function"]} if has_function(call) else {"call": call}
        for name in sorted(parts.keys() - {"function"}, key=str):
            seen.append(Seen(f"`{name}`", f"is {parts[name]!r}", f"of call {number}"))
    return seen


def has_function(call: Any) -> bool:
    return isinstance(call, dict) and isinstance(call.get("function"), dict)


def written(attempt: Attempt, message: dict[str, Any]) -> list[Seen]:
    return [said("The text", attempt(message))]


# --------------------------------------------------------------------------------------- the loop


def fail(kind: str, words: str, times: int = 1) -> None:
    raise {"OSError": OSError, "ValueError": ValueError}[kind](words * times)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "repeat": lambda text, times=1: text * times,
    "fail": fail,
    "tags": lambda text: {text},  # a set, which JSON can't hold
    "split": lambda text: {"first": text[:1], "rest": [*text[1:]]},
    "nothing": lambda: None,
}


class Workshop:
    """Tools that note when they run, if the arguments fit. approves: what `approve` answers."""

    def __init__(self, tools: list[dict[str, Any]], approves: bool) -> None:
        self.log, self.approves = list[str](), approves
        self.tools = {tool["name"]: self.tool(**tool) for tool in tools}

    def tool(self, name: str, does: str, effects: bool = False) -> Tool:
        def function(*given: Any, **named: Any) -> Any:
            arguments = signature(FUNCTIONS[does]).bind(*given, **named).arguments
            self.log.append(f"{name} runs with {in_order(plain(arguments))!r}")
            return FUNCTIONS[does](*given, **named)

        return Tool(name, {"type": "object"}, sealed(function), effects=effects)

    def approve(self, tool: Any, arguments: Any) -> bool:
        what = plain(getattr(tool, "name", kind_of(tool)))
        self.log.append(f"approve is asked for {what} with {in_order(plain(arguments))!r}")
        return self.approves

    def seen(self) -> Seen:
        return Seen("What happens, in order,", f"is {self.log!r}")


def run_call(
    attempt: Attempt,
    call: dict[str, Any],
    tools: list[dict[str, Any]],
    approves: bool = True,
    words: Sequence[str] = (),
) -> list[Seen]:
    """words: what an error must name."""
    workshop = Workshop(tools, approves)
    before = dict(workshop.tools)
    found = plain(attempt(call, workshop.tools, sealed(workshop.approve)))
    seen = [workshop.seen(), as_it_was("`tools`", workshop.tools, before)]
    if not isinstance(found, str):
        return [Seen(RESULT, f"is {kind_or_none(found)}"), *seen]
    length = "has" if len(found) <= LONGEST else f"has {len(found)} characters, not"
    return [
        Seen(RESULT, "is a text"),
        *seen,
        Seen("The text", f"{length} at most {LONGEST} characters"),
        *answer_told(found, words),
    ]


def answer_told(text: str, words: Sequence[str]) -> list[Seen]:
    """A result or an error, in whatever form of JSON it is written."""
    try:
        answer = json.loads(text)
    except ValueError:
        return [Seen("The answer", f"is {text[:100]!r}, which isn't JSON")]
    match answer:
        case {"error": str(error), **more} if not more:
            missing = [word for word in words if word not in error]
            told = f"{error[:200]!r} doesn't have {missing[0]!r} in it" if missing else "is told"
            return [Seen("The answer", "is an error"), Seen("What went wrong", told)]
    return [Seen("The answer", f"is {in_order(answer)!r}")]


def converse(
    attempt: Attempt,
    script: list[dict[str, Any]],
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    most: int,
    approves: bool = True,
) -> list[Seen]:
    """script: what `ask` answers; the last answer comes again and again."""
    workshop, given, seen = Workshop(tools, approves), list[tuple[Any, Any]](), list[Seen]()

    def ask(messages: Any, tool_choice: Any) -> Any:
        where = f"of call {len(given) + 1} of `ask`"
        if len(given) > most:
            raise RuntimeError(f"`ask` is called again, after {len(given)} times; most is {most}.")
        given.append((messages, plain(messages)))
        seen.extend([said("`tool_choice`", tool_choice, where), *told(messages, where)])
        return copy.deepcopy(script[min(len(given), len(script)) - 1])

    found = attempt(sealed(ask), messages, workshop.tools, sealed(workshop.approve), most)
    return [
        *seen,
        Seen("The number of calls of `ask`", len(given)),
        workshop.seen(),
        *told(found, "that it returned"),
        *(
            as_it_was("The list of messages", plain(now), before, f"of call {n} of `ask`")
            for n, (now, before) in enumerate(given, 1)
        ),
    ]


def told(messages: Any, where: str) -> list[Seen]:
    if not isinstance(messages, (list, tuple)):
        return [Seen("What holds the messages", f"is {kind_or_none(messages)}", where)]
    return [
        Seen("What holds the messages", "is a list", where),
        Seen("The number of messages", len(messages), where),
        *(said(f"Message {n}", message, where) for n, message in enumerate(messages)),
    ]
