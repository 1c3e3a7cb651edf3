"""Calls in answers: the mask that keeps their form.

As in formats.py, nothing is computed before a text needs it. Inside a call, a state is an
expression. Before that the text is free, and a state only says how much of the mark that begins a
call the text ends with: a number, as lab 24's `triggered` has it.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache, partial, reduce
from typing import Any, NamedTuple

from jaxtyping import Bool
from torch import Tensor

from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import NOTHING, Regex, at_most
from solutions.server.formats import (
    MOST_FOR_A_SCHEMA,
    ByteGuide,
    Derivative,
    FormatGuide,
    Masks,
    require_quick,
)
from solutions.server.messages import Calling


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


class FreeGuide(ByteGuide):
    """Keeps to a text that may end in calls. lab: lab 24's names.

    before: for each state before a call, the state after a byte; a byte that completes the mark has
    none. inside: what remains of the calls' expression then.
    """

    def __init__(self, lab: Any, calls: Regex, masks: Masks) -> None:
        super().__init__(masks)
        mark = lab.TRIGGER.encode()
        self.last_byte, self.before = mark[-1:], free_states(lab.without, mark)
        self.key = self.inside = reduce(masks.after, mark, calls)

    def start(self) -> int | Regex:
        return 0

    def allowed(self, state: int | Regex) -> Bool[Tensor, " vocab"]:
        if isinstance(state, Regex):
            return self.masks.allowed(state)
        return self.free(state, True, True, lambda text: self.last_byte in text)

    def after(self, state: int | Regex, byte: int) -> int | Regex:
        if isinstance(state, Regex):
            return self.masks.after(state, byte)
        return self.before[state].get(byte, self.inside)
