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
wrong_result(language, lambda found: None, "What it returned is None; expected: it is an automaton")
wrong_result(up_to, lambda found: found[::2], "and the rest; this is 2 things.")
wrong_result(up_to, lambda found: found[::-1], "The text before is ")
wrong_result(finish_reason, lambda reason: None, "Is a `return` missing?")
wrong_result(assembled, json.dumps, "What it returned is a str; expected: it is a message.")
wrong_result(
    assembled,
    lambda message: {**message, "usage": None},
    "The list of its keys has 3 items; expected 2.",
)
wrong_result(written, lambda text: text + "\n", "The text is 'Hi\\n'; expected: it is 'Hi'.")
wrong_result(run_call, json.loads, "What it returned is a dict; expected: it is a text.")
wrong_result(converse, lambda found: found[1], "What holds the messages that it returned is a dict")


@right(triggered)
def with_states_in_another_order(calls, trigger):
    """The states of `calls` come in the other order; the free ones are as they must be."""
    found, size = triggered(calls, trigger), len(trigger)
    last = size + len(found.edges) - 1
    to = [state if state < size else last - state for state in range(len(found.edges))]
    edges = [{}] * len(to)
    for state, out in enumerate(found.edges):
        edges[to[state]] = {byte: to[end] for byte, end in out.items()}
    return Automaton(edges, frozenset(to[state] for state in found.accepting))


@wrong(triggered, ", an edge leads to state 4; there are 4 states, numbered from 0.")
def with_an_edge_to_nowhere(calls, trigger):
    found = triggered(calls, trigger)
    edges = [{byte: len(found.edges) for byte in out} for out in found.edges]
    return Automaton(edges, found.accepting)


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


# --------------------------------------------------------------------------- from text to deltas


@right(CallStream.push)
def letter_by_letter(self, piece):
    return [delta for letter in piece for delta in CallStream.push(self, letter)]


@right(CallStream.push)
def all_parts_in_one_delta(self, piece):
    deltas = CallStream.push(self, piece)
    parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
    return [d for d in deltas if "content" in d] + ([{"tool_calls": parts}] if parts else [])


@wrong(CallStream.push, "What `push` returned", "is {'content': 'Hi'}; expected: it is [{'content'")
def one_delta(self, piece):
    return (CallStream.push(self, piece) or [{}])[0]


@wrong(CallStream.push, "`new_id` is called more often than there are calls.")
def an_id_for_each_piece(self, piece):
    [self.new_id() for _ in range(5)]
    return CallStream.push(self, piece)


# --------------------------------------------------------------------------------------- the loop


@right(run_call)
def in_other_spaces(call, tools, approve):
    return json.dumps(json.loads(run_call(call, tools, approve)), separators=(",", ":"))


@wrong(run_call, "doesn't have 'OSError: Disk")
def without_a_reason(call, tools, approve):
    found = json.loads(run_call(call, tools, approve))
    return json.dumps({"error": "sub: add, write, repeat, fail"} if "error" in found else found)


@wrong(run_call, "has 9000 characters, not at most 2000 characters")
def with_a_long_reason(call, tools, approve):
    return run_call(call, tools, approve).ljust(9000)


@wrong(converse, "The number of calls of `ask` is 2; expected 1.")
def asks_twice(ask, messages, tools, approve, most):
    ask(list(messages), "auto" if most > 1 else "none")
    return converse(ask, messages, tools, approve, most)


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT: dict[str, dict[str, str]] = {}
