"""Drivers of lab 24: languages of calls, deltas of a text, messages, and the loop around them."""

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from autograder.attempt.around import lending
from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of, kind_or_none, plain
from autograder.attempt.records import Attempt, Seen, as_it_was, in_order, said, things, tried
from solutions.constrained import Automaton, automaton_of
from solutions.grammars.regex import NOTHING, Regex, parse

RESULT = "What it returned"
LONGEST = 2000  # characters of a result, as in the notebook


class Tool(NamedTuple):
    """As the notebook's own."""

    name: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any] = print
    description: str = ""
    effects: bool = False


# ------------------------------------------------------------------------------------- languages


def state_after(automaton: Any, text: bytes) -> Any:
    """The state after a text; None if it leaves the language."""
    state = 0
    for byte in text:
        if byte not in automaton.edges[state]:
            return None
        state = automaton.edges[state][byte]
    return state


def fits(automaton: Any, text: bytes) -> bool:
    state = state_after(automaton, text)
    return state is not None and state in automaton.accepting


def short(text: Any) -> str:
    """A text in quotes; its beginning, if it is long, because a record's name has a limit."""
    return repr(text) if len(repr(text)) < 200 else f"{text[:150]!r}..."


def each_text(texts: Iterable[Any], fit: Callable[[Any], bool]) -> list[Seen]:
    told = {True: "is allowed", False: "isn't allowed"}
    return [Seen(f"Text {n}, {short(text)},", told[fit(text)]) for n, text in enumerate(texts, 1)]


def shortest(automaton: Automaton) -> bytes:
    """Of the shortest texts the first one in the alphabet."""
    texts = {0: b""}  # to reach each state
    for state in (found := [0]):  # which grows meanwhile
        if state in automaton.accepting:
            break
        for byte, end in sorted(automaton.edges[state].items()):
            if end not in texts:
                texts[end] = texts[state] + bytes([byte])
                found.append(end)
    return texts[state]


def call_pattern(
    attempt: Attempt, tools: list[dict[str, Any]], parallel: bool, texts: list[str]
) -> list[Seen]:
    given = [Tool(**tool) for tool in tools]
    before, found = list(given), attempt(given, parallel)
    if not isinstance(found, Regex):
        return [Seen(RESULT, f"is {kind_or_none(found)}")]
    automaton = automaton_of(found)
    return [
        Seen(RESULT, "is an expression"),
        said("The shortest text", shortest(automaton).decode(errors="replace")),
        *each_text(texts, lambda text: fits(automaton, text.encode())),
        as_it_was("`tools`", given, before),
    ]


def kind_told(found: Any) -> str:
    is_one = hasattr(found, "edges") and hasattr(found, "accepting")
    return "is an automaton" if is_one else f"is {kind_or_none(found)}"


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
        seen += each_text(texts, partial(fits, found))
        seen += [Seen(f"The state after {text!r}", state_after(found, text)) for text in free]
    return seen


class FreeText(NamedTuple):
    """What `triggered` and `without` return while `language` is judged: free text, then calls."""

    trigger: bytes
    calls: Any
    edges: Sequence[Any] = ({},)
    accepting: frozenset[int] = frozenset()


def allows(found: Any, text: str) -> bool:
    """Whether a text is one of an automaton's, or of what stands for one."""
    if not isinstance(found, FreeText):
        return fits(found, text.encode())
    begin = text.encode().find(found.trigger)
    return begin < 0 or (found.calls is not None and fits(found.calls, text.encode()[begin:]))


def language(
    attempt: Attempt,
    tools: list[dict[str, Any]],
    choice: Any,
    parallel: bool,
    patterns: dict[str, str],
    texts: list[str],
    refused: list[Any],
) -> list[Seen]:
    """patterns: what `call_pattern` returns, by the names of tools, and "several" if parallel.

    refused: further choices, which aren't allowed.
    """
    given = [Tool(**tool) for tool in tools]
    before = list(given)

    def pattern(tools: Sequence[Any], parallel: bool) -> Regex:
        names = [*sorted(tool.name for tool in tools), *["several"] * bool(parallel)]
        return parse(patterns[" ".join(names)]) if tools else NOTHING

    def free(calls: Any, trigger: Any) -> FreeText:
        if not isinstance(trigger, bytes):
            raise TypeError(f"A trigger is bytes; it was given {kind_or_none(trigger)}.")
        return FreeText(trigger, calls)

    without = sealed(partial(free, None))
    lent = {"call_pattern": sealed(pattern), "triggered": sealed(free), "without": without}
    with lending(attempt, lent):
        found = attempt(given, choice, parallel)
        went = [(other, tried(attempt, given, other, parallel)[1]) for other in refused]
    seen = [Seen(RESULT, kind_told(found)), as_it_was("`tools`", given, before)]
    if seen[0].value == "is an automaton":
        seen += each_text(texts, partial(allows, found))
    return [*seen, *(Seen(f"The choice {other!r}", how) for other, how in went)]


# --------------------------------------------------------------------------- from text to deltas


def up_to(attempt: Attempt, text: str, mark: str) -> list[Seen]:
    rule = "up_to returns the text before, whether the mark is there, and the rest"
    names = "The text before", "Whether the mark is there", "The rest"
    return [said(*both) for both in zip(names, things(3, attempt(text, mark), rule), strict=True)]


def push(attempt: Attempt, pieces: list[str], ids: list[str]) -> list[Seen]:
    """Push a text piece by piece, then finish. ids: of the calls that may come, in order."""
    left = list(ids)

    def new_id() -> str:
        if not left:
            raise RuntimeError("`new_id` is called more often than there are calls.")
        return left.pop(0)

    stream = attempt(sealed(new_id))
    seen = [
        said(
            "What `push` returned",
            joined(stream.push(piece)),
            f"for piece {number}, {short(piece)},",
        )
        for number, piece in enumerate(pieces, 1)
    ]
    end = said("What `finish()` returned", joined(stream.finish()), "at the end")
    return [*seen, Seen("`count`", stream.count, "at the end"), end]


def joined(deltas: Any) -> Any:
    """Deltas, of which neighbors that add to the same text are one."""
    deltas, found = plain(deltas), list[Any]()
    for delta in deltas if isinstance(deltas, list) else []:
        match [*found[-1:], delta]:
            case [{"content": str(one)}, {"content": str(other)}] if one and other:
                found[-1] = {**found[-1], **delta, "content": one + other}
            case [
                {"tool_calls": [{"index": place, "function": {"arguments": str(one)}}]},
                {"tool_calls": [{"index": same, "function": {"arguments": str(other)}, **more}]},
            ] if one and other and place == same and not more:
                found[-1]["tool_calls"][0]["function"]["arguments"] = one + other
            case _:
                found.append(delta)
    return found if isinstance(deltas, list) else deltas


def finish_reason(attempt: Attempt, reason: str, count: int, choice: Any) -> list[Seen]:
    return [said("The reason", attempt(reason, count, choice))]


# --------------------------------------------------------------------------- messages, both ways


def assembled(attempt: Attempt, deltas: list[Any]) -> list[Seen]:
    message = plain(attempt(deltas))
    if not isinstance(message, dict):
        return [Seen(RESULT, f"is {kind_or_none(message)}")]
    calls = message.pop("tool_calls", "missing")
    many = isinstance(calls, list)
    return [
        Seen(RESULT, "is a dict"),
        *(Seen(f"`{name}`", f"is {message[name]!r}") for name in sorted(message, key=str)),
        Seen("`tool_calls`", f"has {len(calls)} calls" if many else f"is {in_order(calls)!r}"),
        *(said(f"Call {number}", call) for number, call in enumerate(calls if many else [])),
    ]


def written(attempt: Attempt, message: dict[str, Any]) -> list[Seen]:
    return [said("The text", attempt(message))]


# --------------------------------------------------------------------------------------- the loop


def fail(kind: str, words: str, times: int = 1) -> None:
    raise {"OSError": OSError, "ValueError": ValueError}[kind](words * times)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "write": lambda text, times=1: text * times,
    "repeat": lambda text, times=1: text * times,
    "fail": fail,
    "tags": lambda text: {text},  # a set, which JSON can't hold
    "split": lambda text: {"first": text[:1], "rest": [*text[1:]]},
    "now": lambda: None,
}


class Workshop:
    """All tools; a log of what runs with arguments that fit. effects: names of the tools with any.

    approves: what `approve` answers; None if it fails.
    """

    def __init__(self, effects: Sequence[str], approves: bool | None) -> None:
        self.log, self.approves = list[str](), approves
        self.tools = {
            name: Tool(name, {}, sealed(partial(self.run, name)), effects=name in effects)
            for name in FUNCTIONS
        }

    def run(self, name: str, /, *given: Any, **named: Any) -> Any:
        arguments = plain(signature(FUNCTIONS[name]).bind(*given, **named).arguments)
        self.log.append(f"{name} runs with {in_order(arguments)!r}")
        return FUNCTIONS[name](*given, **named)

    def approve(self, tool: Any, arguments: Any) -> bool:
        what = plain(getattr(tool, "name", kind_of(tool)))
        self.log.append(f"approve is asked for {what} with {in_order(plain(arguments))!r}")
        if self.approves is None:
            raise TimeoutError("There was no answer.")
        return self.approves

    def seen(self) -> Seen:
        return said("What happens, in order,", self.log)


def run_call(
    attempt: Attempt,
    call: dict[str, Any],
    effects: Sequence[str] = (),
    approves: bool | None = True,
    error: Sequence[str] | None = None,
) -> list[Seen]:
    """error: what must be in an error; None if there is a result."""
    workshop = Workshop(effects, approves)
    before = dict(workshop.tools)
    found = plain(attempt(call, workshop.tools, sealed(workshop.approve)))
    if not isinstance(found, str):
        return [Seen(RESULT, f"is {kind_or_none(found)}"), workshop.seen()]
    length = "has" if len(found) <= LONGEST else f"has {len(found)} characters, not"
    return [
        Seen(RESULT, "is a str"),
        Seen("The text", f"{length} at most {LONGEST} characters"),
        Seen("The answer", answer_told(found, error)),
        workshop.seen(),
        as_it_was("`tools`", workshop.tools, before),
    ]


OWN = "LookupError", "PermissionError", "ValueError"  # which `run_call` raises itself


def answer_told(text: str, error: Sequence[str] | None) -> str:
    """A result or an error, in whatever form of JSON; not what an attempt puts in its own words."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return f"is {text[:100]!r}, which isn't JSON"
    match answer:
        case {"error": str(words)} if len(answer) == 1:
            missing = [part for part in error or () if part not in words]
            kind = words.split(": ")[0]
            told = "" if error is not None else f", {kind if kind in OWN else repr(words[:200])}"
            return f"is an error{told}" + (f" without {missing[0]!r}" if missing else "")
        case {"result": _} if error is not None and len(answer) == 1:
            return "is a result"
    shown = repr(in_order(answer))
    return f"is {shown if len(shown) < 300 else f'{shown[:100]}... of {len(shown)} characters'}"


def converse(
    attempt: Attempt,
    script: list[dict[str, Any]],
    messages: list[dict[str, Any]],
    most: int,
    effects: Sequence[str] = (),
    approves: bool = True,
) -> list[Seen]:
    """script: what `ask` answers; the last answer comes again and again."""
    workshop, given, seen = Workshop(effects, approves), list[tuple[Any, Any]](), list[Seen]()

    def ask(messages: Any, tool_choice: Any) -> Any:
        where = f"of call {len(given) + 1} of `ask`"
        if len(given) > most:
            raise RuntimeError(f"`ask` is called again, after {len(given)} times; most is {most}.")
        given.append((messages, plain(messages)))
        seen.extend([said("`tool_choice`", tool_choice, where), *told(messages, where)])
        return copy.deepcopy(script[min(len(given), len(script)) - 1])

    found = attempt(sealed(ask), messages, workshop.tools, sealed(workshop.approve), most)
    seen += [Seen("The number of calls of `ask`", len(given)), workshop.seen()]
    seen += told(found, "that it returned")
    for number, (now, before) in enumerate(given, 1):
        seen.append(as_it_was(f"The list in call {number} of `ask`", plain(now), before))
    return seen


def told(messages: Any, where: str) -> list[Seen]:
    if not isinstance(messages, (list, tuple)):
        return [Seen("What holds the messages", f"is {kind_or_none(messages)}", where)]
    return [
        Seen("What holds the messages", "is a list", where),
        Seen("The number of messages", len(messages), where),
        *(said(f"Message {n}", message, where) for n, message in enumerate(messages)),
    ]
