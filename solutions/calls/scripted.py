"""Lab 24, given: a model that is played by a script, and an answer that comes in pieces."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from random import Random
from typing import Any

Message = dict[str, Any]
Call = tuple[str, Mapping[str, Any]]  # a tool's name and its arguments


def numbered() -> Callable[[], str]:
    """Return a function that returns call_0, call_1, … A server's ids are random."""
    numbers = count()
    return lambda: f"call_{next(numbers)}"


def in_pieces(text: str, seed: int, longest: int = 9) -> Iterator[str]:
    """Yield a text in pieces of random lengths."""
    draw = Random(seed)
    while text:
        size = draw.randint(1, longest)
        yield text[:size]
        text = text[size:]


def call_of(name: str, arguments: str, call_id: str = "call_0") -> dict[str, Any]:
    """Return a call as a message has it. arguments: their JSON, or what a model took for it."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def scripted(*turns: Sequence[Call]) -> Callable[[Sequence[Message], str], Message]:
    """Return an `ask` whose answers have the calls of each turn; the last turn comes for ever.

    A turn without calls, or a request that allows none, is answered in words.
    """
    places, new_id = count(), numbered()

    def ask(messages: Sequence[Message], choice: str) -> Message:
        calls = turns[min(next(places), len(turns) - 1)]
        if choice == "none" or not calls:
            return {"role": "assistant", "content": "That is all I know."}
        made = [call_of(name, json.dumps(arguments), new_id()) for name, arguments in calls]
        return {"role": "assistant", "content": None, "tool_calls": made}

    return ask
