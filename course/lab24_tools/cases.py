"""The exercises of lab 24: languages of calls, deltas of a text, messages, and the loop."""

import json
import re
from itertools import combinations, product
from typing import Any

import torch

from autograder.attempt.drivers import tools as drivers
from autograder.judging.draws import draw
from autograder.judging.exercise import Case, Exercise, case_of
from solutions.constrained import automaton_of
from solutions.grammars.regex import parse
from solutions.tools import CLOSE, LONGEST, MIDDLE, OPEN, TRIGGER

Generator = torch.Generator


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool whose arguments are an object with exactly these properties."""
    kept = {"properties": properties, "required": [*properties], "additionalProperties": False}
    return {"name": name, "parameters": {"type": "object", **kept}}


DIGIT, FLAG = {"type": "integer", "minimum": 0, "maximum": 12}, {"type": "boolean"}
MARKS = {"enum": ["}\n</tool_call>", "é } <tool_call>", ""]}
ADD, SAY = tool("add", a=DIGIT, b=DIGIT), tool("say", what=MARKS)
ADD_ALL = tool("add_all", text={"type": "string", "maxLength": 2})
STRANGE = 'the "x"'
RING, RING_ALL, NOW = tool("ring", loud=FLAG), tool("ring_all", loud=FLAG), tool("now")


def call(name: str, **arguments: Any) -> str:
    """A call as a model writes it."""
    return OPEN + json.dumps(name) + MIDDLE + json.dumps(arguments, ensure_ascii=False) + CLOSE


THE_TIME, LOUD, QUIET = call("now"), call("ring", loud=True), call("ring", loud=False)
LOUD_ALL = call("ring_all", loud=True)

# ------------------------------------------------------------------------------------- languages


def call_pattern_cases(generator: Generator) -> list[Case]:
    case = case_of("tools", "parallel", "texts")
    digits = {"a": draw(generator, 0, 12), "b": draw(generator, 0, 12)}
    some, word = call("add", **digits), call("add_all", text="é" * draw(generator, 1, 2))
    said = [call("say", what=what) for what in MARKS["enum"]]
    pairs = [f"{one}\n{other}" for one in (LOUD, THE_TIME) for other in (QUIET, THE_TIME)]
    others = [LOUD + THE_TIME, f"{LOUD}\n", f"\n{LOUD}", f"{LOUD}\n\n{LOUD}", f"{LOUD} \n{LOUD}"]
    three = "\n".join([some, word, THE_TIME])
    mixed = [call("add_all", **digits), call("add", text="e"), call("add", a=1, b=13)]
    beginnings = [call("ad", **digits), call("add_", text="e"), call("add_all", text="eee")]
    return [
        case("a tool without arguments", [NOW], False, [THE_TIME, call("no"), ""]),
        case("one tool", [RING], False, [LOUD, QUIET, call("ring"), THE_TIME, call("rin")]),
        case("one tool, and what isn't a call", [RING], False, [LOUD[:-1], f"{LOUD} ", LOUD[1:]]),
        case("two tools", [RING, NOW], False, [LOUD, call("now", loud=True), LOUD_ALL, *pairs]),
        case("one tool, several calls", [RING], True, ["", LOUD, *["\n".join([LOUD] * 5)]]),
        case("two tools, several calls", [RING, NOW], True, [LOUD, *pairs, "\n".join(pairs)]),
        case("several calls, and what isn't", [RING, NOW], True, [*others, LOUD * 2, ""]),
        case("names that begin alike", [ADD, ADD_ALL], False, [some, word, *mixed, *beginnings]),
        case("marks in arguments of several calls", [SAY, NOW], True, ["\n".join(said), *said]),
        case("three tools, several calls", [ADD, NOW, ADD_ALL], True, [some, word, three, LOUD]),
        case("a name with quotes in it", [tool(STRANGE)], False, [call(STRANGE)]),
    ]


def machine(pattern: str, generator: Generator) -> dict[str, Any]:
    """An automaton of a pattern, its states but the first in any order."""
    found = automaton_of(parse(pattern))
    order = [0, *(torch.randperm(len(found.edges) - 1, generator=generator) + 1).tolist()]
    edges: list[dict[int, int]] = [{} for _ in order]
    for state, out in zip(order, found.edges, strict=True):
        edges[state] = {byte: order[end] for byte, end in out.items()}
    return {"edges": edges, "accepting": sorted(order[state] for state in found.accepting)}


def triggered_cases(generator: Generator) -> list[Case]:
    drawn = (torch.randperm(26, generator=generator)[:4] + ord("a")).tolist()
    other = bytes.maketrans(b"abcd", bytes(drawn))

    def case(label: str, trigger: str, after: str, alphabet: str, longest: int, *more: str) -> Case:
        """after: a pattern of what comes after the trigger. more: further texts."""
        words = [w for n in range(longest + 1) for w in map("".join, product(alphabet, repeat=n))]
        texts = [word.encode("latin-1").translate(other) for word in [*words, *more]]
        calls = re.escape(trigger) + after
        given = machine(calls.translate(dict(zip(b"abcd", drawn, strict=True))), generator)
        return Case(label, {**given, "trigger": trigger.encode().translate(other), "texts": texts})

    pieces = "aabaac", "aabaa", "aab", "a", "baac", "aabaacd"
    longer = ["".join(both) for both in product(pieces, repeat=2)]
    call_texts = [LOUD, f"Ring. {LOUD}", f"<{LOUD}", f"<tool_{LOUD}", f"{LOUD} ", f"{LOUD}\n{LOUD}"]
    return [
        case("a trigger of one byte", "a", "b", "ab", 3),
        case("a trigger of two bytes", "ab", "c", "abc", 4),
        case("two equal bytes, then another", "aab", "", "ab", 6),
        case("the trigger ends as it begins", "aba", "b?", "ab", 6),
        case("two texts of calls", "ab", "(c|aa)", "abc", 4, "cabaa"),
        case("no more than a call", "ab", "c*", "abc", 4),
        case("the trigger again in a call", "ab", "(ab)*", "ab", 6, "bababab"),
        case("three bytes, the first one twice", "<<a", "b", "<ab", 5),
        case("a trigger that begins again within itself", "aabaac", "d?", "abcd", 2, *longer),
        case("bytes of any value", "ab", "\u00e9", "\0\xc3\xa9\xff", 2, "ab\xc3\xa9", "\xe9abc"),
        case("a call of a tool", TRIGGER, re.escape(LOUD[11:]), "<t", 3, *call_texts, LOUD[:-1]),
    ]


CALLS = {"ring": [LOUD, QUIET], "ring_all": [LOUD_ALL], "now": [THE_TIME]}


def patterns() -> dict[str, str]:
    """Patterns of calls, by the names of tools, and whether there may be several."""
    found = dict[str, str]()
    for names in (names for n in (1, 2, 3) for names in combinations(sorted(CALLS), n)):
        one = "|".join(re.escape(text) for name in names for text in CALLS[name])
        found |= {" ".join(names): one, " ".join([*names, "several"]): f"({one})(\n({one}))*"}
    return found


def language_cases(generator: Generator) -> list[Case]:
    free = ["", "Hi", f"Hi {TRIGGER[:-1]}", "<<tool_call"]
    one = [LOUD, f"Hi {LOUD}", f"<{THE_TIME}", LOUD_ALL, f"{LOUD[:-1]}", f"{LOUD} so"]
    two = [f"{LOUD}\n{QUIET}", f"Hi {LOUD}\n{THE_TIME}", f"{LOUD}{LOUD}", f"{LOUD} and {LOUD}"]
    two += [f"{THE_TIME}\n{THE_TIME}", f"{LOUD_ALL}\n{LOUD_ALL}"]
    whole = [*free, *one, *two, f"{TRIGGER}so", TRIGGER]

    def case(label: str, choice: Any, parallel: bool, *tools: dict[str, Any]) -> Case:
        choice = choice if isinstance(choice, str) else named(*choice)
        order = torch.randperm(len(whole), generator=generator).tolist()
        texts = [whole[place] for place in order]
        given = {"tools": list(tools or (RING, RING_ALL, NOW)), "choice": choice}
        given |= {"patterns": patterns(), "refused": ["any", "ring", named("rin")]}
        return Case(label, {**given, "parallel": parallel, "texts": texts})

    return [
        case('"none"', "none", True),
        case('"auto" with one tool', "auto", False, RING),
        case('"auto"', "auto", True),
        case('"auto", and one call at most', "auto", False),
        case('"required"', "required", True),
        case('"required", and one call at most', "required", False),
        case("a named tool", ["ring"], False),
        case("a named tool, and several calls would be allowed", ["now"], True),
        case("a named tool whose name begins with another's", ["ring_all"], True),
    ]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


# --------------------------------------------------------------------------- from text to deltas


def up_to_cases(generator: Generator) -> list[Case]:
    case = case_of("text", "mark")
    some = "".join("ab"[draw(generator, 0, 1)] for _ in range(20))
    return [
        case("an empty text", "", "ab"),
        case("a text without the mark", "xyz", "ab"),
        case("the mark alone", "ab", "ab"),
        case("the mark twice", "xabyabz", "ab"),
        case("half of the mark at the end", "xya", "ab"),
        case("half of the mark in the middle", "xay", "ab"),
        case("the whole text is half of the mark", "<tool", TRIGGER),
        case("the first letter twice", "1 < 2 <<", TRIGGER),
        case("two letters of the mark at the end", "xab", "aba"),
        case("the longest beginning counts", "xaabaa", "aabaab"),
        case("the mark, and half of the next one", f"Hi {OPEN}ring<tool", OPEN),
        case("the mark with its last letter wrong", CLOSE[:-1] + "x", CLOSE),
        case("a brace, then the mark", f"{{}}}}{CLOSE[1:]}\n", CLOSE),
        case("a longer text", some, "abb"),
        case("the same text, another mark", some, "babab" + some[-1]),
    ]


def push_cases(generator: Generator) -> list[Case]:
    def case(label: str, *pieces: str) -> Case:
        ids = [f"call_{draw(generator, 100, 999)}_{n}" for n in range(5)]
        return Case(label, {"pieces": list(pieces), "ids": ids})

    def cut(text: str, most: int) -> list[str]:
        pieces = list[str]()
        while text:
            size = draw(generator, 1, most)
            pieces, text = [*pieces, text[:size]], text[size:]
        return pieces

    digits = call("add", a=draw(generator, 0, 99), b=draw(generator, 0, 99))
    inside = call("say", what="</tool_call> é }\n</tool_call>", more={"a": {"b": {}}})
    three = f"Let me <see>.{digits}\n{LOUD}\n{inside}"
    head, arguments = OPEN + '"add"' + MIDDLE, '{"a": 1, "b": 22}'
    return [
        case("text in pieces, one of them empty", "Hi", "", " there"),
        case("text, then a call, in one piece", f"Hi {digits}"),
        case("text that looks like a mark", "1 < 2 <t", "o", "x"),
        case("text that ends in half a mark", "Hi <tool_", "call"),
        case("two calls in one piece", f"{LOUD}\n{THE_TIME}"),
        case("a call whose marks come whole", head, arguments, CLOSE),
        case("a name in two pieces", OPEN + '"a', 'dd"' + MIDDLE, "{}" + CLOSE),
        case("arguments in pieces", head + '{"a"', ": 1", "}", CLOSE),
        case("arguments that are cut off", head + arguments, "}\n</tool"),
        case("a name that is cut off", f"Hi {OPEN}", '"ad'),
        case("text is cut off after a call", f"{digits}\n", "<tool_"),
        case("three calls in one piece", three),
        case("three calls in pieces of up to 9", *cut(three, 9)),
        case("three calls in pieces of up to 70", *cut(three, 70)),
        case("three calls, letter by letter", *three),
        case("a mark in a string, letter by letter", *f"Hi{inside}"),
        case("a name with quotes in it", call(STRANGE)),
        case("text behind a call", f"{digits} so", "!"),
    ]


def reason_cases(generator: Generator) -> list[Case]:
    case, many = case_of("reason", "count", "choice"), draw(generator, 3, 9)
    return [
        case("no call", "stop", 0, "auto"),
        case("a call", "stop", 1, "auto"),
        case("several calls", "stop", many, "auto"),
        case("a call, which was required", "stop", 1, "required"),
        case("a call of the tool that was named", "stop", 1, named("ring")),
        case("a call, cut off by the limit", "length", 1, "auto"),
        case("a named call, cut off by the limit", "length", 1, named("ring")),
        case("text, cut off by the limit", "length", 0, "none"),
        case("a call, and the client is gone", "abort", 1, "auto"),
        case("another reason of the engine's", "timeout", many, "auto"),
    ]


# --------------------------------------------------------------------------- messages, both ways


def part(index: int, text: str | None = None, **more: Any) -> dict[str, Any]:
    """A delta with a part of a call. more: an id and a name, if they are sent with it."""
    function = {key: more.pop(key) for key in ["name"] if key in more}
    function |= {} if text is None else {"arguments": text}
    more |= {"function": function} if function else {}
    return {"tool_calls": [{"index": index, **more}]}


def assembled_cases(generator: Generator) -> list[Case]:
    case = case_of("deltas")
    digit = draw(generator, 0, 9)
    role, text = {"role": "assistant", "content": None}, {"content": f"{digit} is "}
    one, two = part(0, "", id="x", name="add"), part(1, "", id="y", name="ring")
    nulls = {"content": None, "tool_calls": None}
    empty = {"tool_calls": [{"index": 0, "id": None, "type": None, "function": None}]}
    no_text = {"tool_calls": [{"index": 0, "function": {"name": None, "arguments": None}}]}
    named_again = {**one["tool_calls"][0], "function": {"name": "add", "arguments": "{"}}
    both = {"tool_calls": [*part(0, '{"a"')["tool_calls"], *part(1, "{}")["tool_calls"]]}
    ends = part(0, f": {digit}}}", name=None)
    return [
        case("pieces of text", [role, text, {"content": "more"}, {"content": ""}, {}]),
        case("a call in one part", [part(0, "{}", id="x", name="add")]),
        case("two calls, one after the other", [one, part(0, "{}"), two, part(1, "{}")]),
        case("two calls in turns", [one, two, part(0, '{"a"'), part(1, "{}"), ends]),
        case("two parts in a delta", [{"tool_calls": one["tool_calls"] + two["tool_calls"]}, both]),
        case("the second call begins first", [two, one, part(1, "{}"), part(0, "{}")]),
        case("None in any place", [one, nulls, empty, no_text, part(0, "{}", id=None)]),
        case("id and name once more", [one, {"tool_calls": [named_again]}, part(0, "}", id="x")]),
        case("id and name come late", [part(0, '{"a"'), part(0, id="x"), part(0, "}", name="f")]),
        case("text, then a call", [role, text, one, part(0, "{}"), nulls]),
        case("no deltas", []),
        case("no text, and no calls", [role, {"tool_calls": []}, {}]),
        case("numbers with gaps, and one above 9", [part(n, "{}", id=f"c{n}") for n in (10, 2)]),
    ]


def message(content: str | None, *calls: tuple[str, str]) -> dict[str, Any]:
    """An assistant's message: names with their arguments as text."""
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}


def written_cases(generator: Generator) -> list[Case]:
    case = case_of("message")
    a, b = draw(generator, 0, 99), draw(generator, 0, 99)
    compact = "add", f'{{"a":{a},"b":{b}}}'
    wide = "add", f'{{ "b" :\n  {b}, "a": [ {a},null ]\n}}'
    accents = "say", json.dumps({"what": 'é "\n</tool_call> \\u00e9', "é": 1.50})
    return [
        case("text", message("Hi")),
        case("a call without spaces", message(None, compact)),
        case("a call with many spaces, and keys in another order", message(None, wide)),
        case("letters that aren't ASCII, written with escapes", message(None, accents)),
        case("text, then a call", message("Hi ", compact)),
        case("two calls", message(None, compact, ("now", "{}"))),
        case("text, then three calls", message("Hi\n", wide, accents, ("now", " {} "))),
        case("`tool_calls` is None", {**message("Hi"), "tool_calls": None}),
        case("an empty list of calls", {**message("Hi"), "tool_calls": []}),
        case("no content, and no calls", message(None)),
        case("a name with quotes in it", message(None, (STRANGE, "{}"))),
        case("no key for the content", {"tool_calls": message(None, compact)["tool_calls"]}),
    ]


# --------------------------------------------------------------------------------------- the loop

WITH_EFFECTS = ["write"]


def run_call_cases(generator: Generator) -> list[Case]:
    def case(label: str, name: str, arguments: str, **more: Any) -> Case:
        asked = message(None, (name, arguments))["tool_calls"][0]
        return Case(label, {"call": asked, "effects": WITH_EFFECTS, **more})

    def text(times: int) -> str:
        return json.dumps({"text": "x", "times": times})

    a, fits = draw(generator, 0, 99), LONGEST - len('{"result": ""}')
    sums, fails = json.dumps({"a": a, "b": 2}), {"kind": "OSError", "words": f"Disk {a} is full."}
    many = json.dumps({"kind": "ValueError", "words": 'no "x"\n', "times": 900})
    fault, names = [f"OSError: Disk {a} is full."], ["add", "write", "repeat", "split", "now"]
    refused: dict[str, Any] = {"approves": False, "error": []}
    return [
        case("a sum", "add", sums),
        case("arguments in another order", "repeat", '{"times": 3, "text": "ab"}'),
        case("a result that is an object", "split", '{"text": "éab"}'),
        case("a function that returns nothing", "now", "{}"),
        case("a tool that isn't there", "sub", "{}", error=names),
        case("arguments that aren't JSON", "add", '{"a": 1', error=[]),
        case("an argument is missing", "add", '{"a": 1}', error=[]),
        case("an argument too many", "add", '{"a": 1, "b": 2, "c": 3}', error=[]),
        case("arguments that are a list", "add", "[1, 2]", error=[]),
        case("the function raises an error", "fail", json.dumps(fails), error=fault),
        case("an error with a long sentence", "fail", many, error=['ValueError: no "x"\nno']),
        case("a result that isn't JSON", "tags", '{"text": "a"}', error=[]),
        case("a tool with effects, approved", "write", text(2)),
        case("a tool with effects, not approved", "write", text(2), **refused),
        case("effects, and asking fails", "write", text(2), approves=None, error=[]),
        case("no effects, and nothing is approved", "repeat", text(3), approves=False),
        case("effects, and arguments that aren't JSON", "write", '{"text": "a', **refused),
        case("effects, and it fails", "fail", json.dumps(fails), error=fault, effects=["fail"]),
        case("a result that is just short enough", "repeat", text(fits)),
        case("a result that is too long", "repeat", text(fits + 5), error=[]),
        case("another sum", "add", json.dumps({"b": a, "a": 3})),
    ]


def converse_cases(generator: Generator) -> list[Case]:
    def case(label: str, most: int, *script: dict[str, Any], talk: int = 1, **more: Any) -> Case:
        asked = [{"role": "user", "content": f"{a} + {n}?"} for n in range(talk)]
        given = {"script": list(script), "messages": asked, "most": most}
        return Case(label, {**given, "effects": WITH_EFFECTS, **more})

    a = draw(generator, 0, 99)
    add, more = ("add", f'{{"a": {a}, "b": 1}}'), ("add", f'{{"a": {a}, "b": 2}}')
    write, wrong = ("write", '{"text": "x"}'), ("sub", "{}")
    end = message(f"It is {a + 1}.")
    return [
        case("an answer without calls", 3, end),
        case("two calls at once", 3, message(None, add, more), end),
        case("two answers with calls", 5, message(None, add, more), message(None, more), end),
        case("text before a call", 4, message("Let me see.", add), end),
        case("`tool_calls` is None", 4, {**end, "tool_calls": None}, end),
        case("an empty list of calls", 4, {**end, "tool_calls": []}, end),
        case("the answer comes just in time", 3, message(None, add), message(None, more), end),
        case("calls without an end", 2, message(None, add)),
        case("calls without an end, four times", 4, message("So:", add, more), talk=2),
        case("asked once, and it calls", 1, message(None, add)),
        case("a tool that isn't there, then a right call", 5, message(None, wrong, add), end),
        case("a tool with effects, approved", 3, message(None, write, add), end),
        case("a tool with effects, not approved", 3, message(None, write), end, approves=False),
    ]


EXERCISES = (
    Exercise("tools.call_pattern", drivers.call_pattern, call_pattern_cases),
    Exercise("tools.triggered", drivers.triggered, triggered_cases),
    Exercise("tools.language", drivers.language, language_cases),
    Exercise("tools.up_to", drivers.up_to, up_to_cases),
    Exercise("tools.CallStream.push", drivers.push, push_cases),
    Exercise("tools.finish_reason", drivers.finish_reason, reason_cases),
    Exercise("tools.assembled", drivers.assembled, assembled_cases),
    Exercise("tools.written", drivers.written, written_cases),
    Exercise("tools.run_call", drivers.run_call, run_call_cases),
    Exercise("tools.converse", drivers.converse, converse_cases),
)
