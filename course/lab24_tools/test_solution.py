"""The parts of lab 24, for any calls and any cuts: what is streamed adds up, and the loop ends."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.attempt.drivers.tools import fits
from course.lab24_tools.cases import message
from solutions.constrained import Automaton, automaton_of
from solutions.grammars.regex import either, literal
from solutions.tools import (
    LONGEST,
    MIDDLE,
    TRIGGER,
    CallStream,
    Tool,
    assembled,
    converse,
    language,
    run_call,
    triggered,
    up_to,
    written,
)

WORDS = {"type": "string", "maxLength": 20}
PARAMETERS = {"type": "object", "properties": {"words": WORDS}, "required": ["words"]}
TOOLS = [Tool(name, PARAMETERS, lambda words: words * 200) for name in ("say", "say_all")]
texts = st.text(st.sampled_from('ab<>tol_c{}"\\\n é/'), max_size=20)
calls = st.lists(st.tuples(st.sampled_from(["say", "say_all"]), texts), max_size=3)


def message_of(content: str, calls: list[tuple[str, str]]) -> dict[str, Any]:
    told = [(name, json.dumps({"words": words}, ensure_ascii=False)) for name, words in calls]
    return message(content or None, *told)


@given(texts, calls, st.lists(st.integers(1, 12), min_size=1))
def test_a_message_survives_its_text_in_any_pieces(content, calls, sizes):
    whole = message_of(content, calls)
    text, ids = written(whole), iter(range(1, 9))
    stream, deltas, at = CallStream(lambda: f"c{next(ids)}"), [], 0
    while at < len(text):
        deltas += stream.push(text[at : at + sizes[at % len(sizes)]])
        at += sizes[at % len(sizes)]
    assert assembled(deltas + stream.finish()) == whole
    assert stream.count == len(calls)


@pytest.fixture(scope="module")
def allowed() -> dict[str, Automaton]:
    choices: dict[str, Any] = {word: word for word in ("none", "auto", "required")}
    choices["say"] = {"type": "function", "function": {"name": "say"}}
    return {name: language(TOOLS, choice, parallel=True) for name, choice in choices.items()}


@given(content=texts, calls=calls)
def test_each_choice_allows_what_it_says(allowed, content, calls):
    text = written(message_of(content, calls)).encode()
    assert fits(allowed["none"], text) == (not calls)
    assert fits(allowed["auto"], text)
    assert fits(allowed["required"], text) == (bool(calls) and not content)
    assert fits(allowed["say"], text) == ([name for name, _ in calls] == ["say"] and not content)


@given(st.text("ab", min_size=1, max_size=4), st.sets(st.text("ab", max_size=2), min_size=1))
def test_free_text_ends_where_the_trigger_is_complete(trigger, ends):
    inside = {trigger + end for end in ends}
    found = triggered(automaton_of(either(*map(literal, inside))), trigger.encode())
    for text in ("".join(letters) for n in range(7) for letters in product("ab", repeat=n)):
        at = text.find(trigger)
        assert fits(found, text.encode()) == (at < 0 or text[at:] in inside)


@given(st.text("ab<", max_size=12), st.text("ab<", min_size=1, max_size=4))
def test_no_letter_is_held_back_that_cannot_become_the_mark(text, mark):
    before, found, rest = up_to(text, mark)
    assert before + mark * found + rest == text
    assert found == (mark in text)
    held = max(n for n in range(len(mark)) if text.endswith(mark[:n]))
    assert found or len(rest) == held


@given(texts | st.sampled_from(["[1]", "7", '{"words": 3}', '{"words": "eleven more"}']))
def test_whatever_a_model_writes_gets_a_short_answer_in_json(arguments):
    tools = {tool.name: tool for tool in TOOLS}
    for name in ("say", MIDDLE):
        call = {"function": {"name": name, "arguments": arguments}}
        text = run_call(call, tools, lambda tool, arguments: True)
        assert len(text) <= LONGEST
        assert len(json.loads(text)) == 1


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 4))
def test_each_question_goes_on_from_the_one_before(counts, most):
    asked = list[list[Any]]()

    def ask(messages: list[Any], choice: str) -> dict[str, Any]:
        asked.append(messages)
        assert choice == ("none" if len(asked) == most else "auto")
        return message_of("So:", [("say", "x")] * counts[(len(asked) - 1) % len(counts)])

    tools = {tool.name: tool for tool in TOOLS}
    said = converse(ask, [{"role": "user", "content": TRIGGER}], tools, lambda *_: False, most)
    assert len(asked) <= most
    for shorter, longer in zip(asked, [*asked[1:], said], strict=True):
        assert longer[: len(shorter)] == shorter
        calls = longer[len(shorter)].get("tool_calls", [])
        answered = [result["tool_call_id"] for result in longer[len(shorter) + 1 :]]
        assert answered == [call["id"] for call in calls]
