"""Answers to lab 24's exercises: languages of calls, deltas of a text, messages, and the loop."""

import json

from solutions.constrained import Automaton, automaton_of
from solutions.tools import (
    CallStream,
    assembled,
    call_pattern,
    converse,
    finish_reason,
    language,
    run_call,
    triggered,
    up_to,
    without,
    written,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(call_pattern, automaton_of, "What it returned is an Automaton; expected: it is an ex")
wrong_result(triggered, lambda found: found.edges, "What it returned is a list; expected: it is an")
wrong_result(up_to, lambda found: found[::2], "and the rest; this is 2 things.")
wrong_result(finish_reason, lambda reason: None, "Is a `return` missing?")
wrong_result(assembled, json.dumps, "What it returned is a str; expected: it is a dict.")
wrong_result(assembled, lambda message: {**message, "usage": None}, "`usage` is not expected.")
wrong_result(written, lambda text: text + "\n", "The text is 'Hi\\n'; expected: it is 'Hi'.")
wrong_result(run_call, json.loads, "What it returned is a dict; expected: it is a str.")
wrong_result(converse, lambda found: found[1], "What holds the messages that it returned is a dict")


@right(triggered)
def with_calls_in_another_order(calls, trigger):
    found, size = triggered(calls, trigger), len(trigger)
    count = len(found.edges)
    to = [*range(size), *range(count - 1, size - 1, -1)]
    edges = [{byte: to[end] for byte, end in found.edges[to[new]].items()} for new in range(count)]
    return Automaton(edges, frozenset(to[state] for state in found.accepting))


@right(language)
def by_real_parts(tools, choice, parallel):
    """Ends in an automaton; the judge lends what stands for one."""
    return language(tools, choice, parallel)


@wrong(language, "TypeError: A trigger is bytes; it was given a str.")
def with_a_text_as_the_trigger(tools, choice, parallel):
    return without("<tool_call>")


@wrong(language, "What it returned is a Then; expected: it is an automaton.")
def with_an_expression(tools, choice, parallel):
    return call_pattern(tools, parallel)


@right(CallStream.push)
def letter_by_letter(self, piece):
    return [delta for letter in piece for delta in CallStream.push(self, letter)]


@wrong(CallStream.push, "is {'content': 'Hi'}; expected: it is [{'content': 'Hi'}].")
def one_delta(self, piece):
    return (CallStream.push(self, piece) or [{}])[0]


@wrong(CallStream.push, "`new_id` is called more often than there are calls.")
def with_an_id_for_each_piece(self, piece):
    [self.new_id() for _ in range(5)]
    return CallStream.push(self, piece)


@right(run_call)
def in_other_spaces(call, tools, approve):
    return json.dumps(json.loads(run_call(call, tools, approve)), separators=(",", ":"))


@wrong(run_call, "The answer is an error without 'add'")
def without_a_reason(call, tools, approve):
    found = json.loads(run_call(call, tools, approve))
    return json.dumps({"error": "no"} if "error" in found else found)


@wrong(run_call, "has 9000 characters, not at most 2000 characters")
def at_length(call, tools, approve):
    return run_call(call, tools, approve).ljust(9000)


# ------------------------------------------------------------- mutants that do the same by right

ANY_JSON = "JSON has letters as they are or as escapes"
TEXT = "json.dumps({'result': tool.function(**arguments)}, ensure_ascii=False)"
EQUIVALENT = {
    "tools.triggered": {
        "len(text) + 1 -> len(text) + 2": "no text ends with what is longer than the trigger",
    },
    "tools.run_call": {
        f"{TEXT} -> {TEXT.replace(', ensure_ascii=False', '')}": ANY_JSON,
        f"{TEXT} -> {TEXT.replace('False', 'True')}": ANY_JSON,
    },
}
