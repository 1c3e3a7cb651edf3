"""Calls in answers: the mask that keeps their form, and the deltas that a client is sent.

As in formats.py, nothing is computed before a text needs it. Inside a call, a state is an
expression. Before that the text is free, and a state only says how much of the mark that begins a
call the text ends with: a number, as lab 24's `triggered` has it.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from functools import cache, lru_cache, partial, reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import NOTHING, Regex, at_most
from solutions.server.chats import ChatBody
from solutions.server.formats import (
    MOST_FOR_A_MASK,
    MOST_FOR_A_SCHEMA,
    Derivative,
    FormatGuide,
    Masks,
    require_quick,
)
from solutions.server.messages import Calling

Delta = dict[str, Any]
LETTERS = string.ascii_letters + string.digits


class Unsupported(NamedTuple):
    """Which tool's parameters can't be kept, by its number, and a sentence that says why."""

    tool: int
    sentence: str


@lru_cache(256)
def read_calls(
    derivative: Derivative, calling: Calling, new_tool: Any, call_pattern: Any
) -> Regex | Unsupported:
    """Return the expression of the calls that a text may have. The last two: lab 24's."""
    if not calling.tools:
        return NOTHING
    tools = [new_tool(name, schema, None) for name, schema in json.loads(calling.tools)]
    read = list[Regex]()
    try:
        with at_most(MOST_FOR_A_SCHEMA, "The tools' parameters"):
            for tool in tools:
                read.append(pattern_of(tool.parameters, partial(require_quick, derivative)))
            return call_pattern(tools, calling.is_parallel)
    except ValueError as error:
        return Unsupported(min(len(read), len(tools) - 1), str(error))


def call_guide(lab: Any, masks: Masks, calling: Calling) -> FormatGuide | FreeGuide:
    calls = read_calls(masks.derivative, calling, lab.Tool, lab.call_pattern)
    assert isinstance(calls, Regex), "others are refused before they are sent"
    return FreeGuide(lab, calls, masks) if calling.is_free else FormatGuide(calls, masks)


@cache
def free_states(without: Any, mark: bytes) -> list[dict[int, int]]:
    return list(without(mark).edges)


class FreeGuide:
    """Lab 14's guide for a text that may end in calls. lab: lab 24's names.

    free: for each state before a call, the state after a byte; a byte that completes the mark has
    none. inside: what remains of the calls' expression then.
    """

    def __init__(self, lab: Any, calls: Regex, masks: Masks) -> None:
        mark = lab.TRIGGER.encode()
        self.masks, self.last_byte = masks, mark[-1:]
        self.free = free_states(lab.without, mark)
        self.inside = reduce(masks.after, mark, calls)

    def start(self) -> int | Regex:
        return 0

    def allowed(self, state: int | Regex) -> Bool[Tensor, " vocab"]:
        if isinstance(state, Regex):
            return self.masks.allowed(state)
        if (self.inside, state) not in self.masks.kept:
            with at_most(MOST_FOR_A_MASK, "A mask before a call"):
                self.masks.kept[self.inside, state] = self.free_mask(state)
        return self.masks.kept[self.inside, state]

    def free_mask(self, state: int) -> Bool[Tensor, " vocab"]:
        """Allow all tokens but those that complete the mark and go on as no call does."""
        vocabulary = self.masks.vocabulary
        mask = torch.tensor([bool(text) for text in vocabulary.texts])
        for token, text in enumerate(vocabulary.texts):
            if self.last_byte in text:
                mask[token] = self.advance(state, token) is not NOTHING
        mask[vocabulary.ends] = True
        return mask

    def advance(self, state: int | Regex, token: int) -> int | Regex:
        for byte in self.masks.vocabulary.texts[token]:
            if isinstance(state, Regex):
                state = self.masks.after(state, byte)
            else:
                state = self.free[state].get(byte, self.inside)
        return state


class CallText:
    """Turns one text's tokens into what a client is sent, where the text may have calls.

    It is used as lab 13's TextStream is: `push` and `finish` return the words that may be shown.
    The calls' deltas wait in `deltas`. Stop strings end the words; in a call they end nothing.
    lab, serving: the names of labs 24 and 13.
    """

    def __init__(
        self, lab: Any, serving: Any, decode: Callable[[list[int]], str], body: ChatBody
    ) -> None:
        self.lab, self.body = lab, body
        self.text = serving.TextStream(decode)
        self.calls = lab.CallStream(new_call_id)
        self.said = ""
        self.words = serving.TextStream(lambda ids: self.said, tuple(body.stop))
        self.deltas: list[Delta] = []

    @property
    def has_stopped(self) -> bool:
        return bool(self.words.has_stopped)

    def push(self, token: int) -> str:
        return self.sorted(self.calls.push(self.text.push(token)), token)

    def finish(self) -> str:
        last = self.sorted(self.calls.push(self.text.finish()) + self.calls.finish())
        return last + self.words.finish()

    def sorted(self, deltas: list[Delta], token: int = 0) -> str:
        """Put the calls' deltas aside, and return the new words that may be shown."""
        shown = ""
        for delta in deltas:
            if "content" in delta:
                self.said += delta["content"]
                shown += self.words.push(token)
            elif not self.has_stopped:
                shown += self.words.finish()
                self.deltas.append(delta)
        return shown

    def taken(self) -> list[Delta]:
        """Return the deltas that have come since the last time."""
        deltas, self.deltas = self.deltas, []
        return deltas

    def finish_reason(self, reason: str) -> str:
        return str(self.lab.finish_reason(reason, self.calls.count, self.body.tool_choice))

    @property
    def counts(self) -> tuple[int, int]:
        """How many calls have begun, and how many of them haven't ended."""
        return self.calls.count, int(self.calls.place == 2)


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(LETTERS) for _ in range(24))
