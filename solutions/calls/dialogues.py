"""Lab 24, given: two tools, and dialogues in which a model should call one of them or none.

All are made from a few sentences. A tenth of the sums and the names in NEW are in no dialogue to
train on: a model that has learned to call copies them from the question, too.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from random import Random
from typing import Any, NamedTuple

from solutions.tools import Tool, written

KNOWN = ["king", "queen", "wolf", "witch", "fox", "miller", "prince", "princess", "giant"]
KNOWN += ["dwarf", "tailor", "hunter", "shepherd", "bear", "cat", "mouse", "soldier", "farmer"]
KNOWN += ["fairy", "dragon"]
NEW = ["raven", "hedgehog", "baker", "sailor"]
PLACES = ["forest", "castle", "village", "mill", "cave", "garden", "palace"]
HOMES = dict(zip(KNOWN + NEW, cycle(PLACES), strict=False))


def add(a: int, b: int) -> int:
    return a + b


def find(who: str) -> str:
    if who not in HOMES:
        raise LookupError(f"Nothing is known of {who!r}.")
    return HOMES[who]


SUMMAND = {"type": "integer", "minimum": 0, "maximum": 99}
WHO = {"type": "string", "maxLength": 12}
ADD = Tool(
    "add",
    {"type": "object", "properties": {"a": SUMMAND, "b": SUMMAND}, "required": ["a", "b"]},
    add,
    "Add two whole numbers.",
)
FIND = Tool(
    "find",
    {"type": "object", "properties": {"who": WHO}, "required": ["who"]},
    find,
    "Tell where someone is.",
)

SUMS = [
    "{a} and {b} make how many?",
    "What is {a} plus {b}?",
    "The {who} has {a} apples and finds {b} more. How many apples has the {who}?",
    "Add {a} and {b}.",
    "The {who} counts {a} sheep, then {b}. How many are there?",
]
SEARCHES = [
    "Where is the {who}?",
    "In which house does the {who} live?",
    "Where can I find the {who}?",
    "Tell me where the {who} is.",
    "Has anyone seen the {who}?",
]
TALK = {
    "Who are you?": "I am a teller of tales.",
    "Good morning!": "Good morning to you!",
    "Tell me of the {who}.": "The {who} is well known in this land.",
    "Sing me a song about the {who}.": "La, la, the {who} dances.",
    "Is the {who} happy?": "The {who} is happy.",
}


class Dialogue(NamedTuple):
    """A question, the call that it needs, if any, what the tool returns, and the answer."""

    question: str
    call: Mapping[str, Any] | None  # its name and arguments
    result: Any
    answer: str

    def turns(self) -> list[tuple[str, str]]:
        """Return what a model reads and what it should then write, turn by turn."""
        prompt, answer = f"user: {self.question}\n\nassistant:", " " + self.answer
        if self.call is None:
            return [(prompt, answer)]
        function = {**self.call, "arguments": json.dumps(self.call["arguments"])}
        call = written({"tool_calls": [{"function": function}]})
        result = json.dumps({"result": self.result})
        return [(prompt, call), (f"\n\ntool: {result}\n\nassistant:", answer)]


def a_sum(draw: Random, who: str, is_new: bool) -> Dialogue:
    a, b = draw.randrange(100), draw.randrange(100)
    while ((a + 3 * b) % 10 == 0) != is_new:
        a, b = draw.randrange(100), draw.randrange(100)
    question = draw.choice(SUMS).format(who=who, a=a, b=b)
    return Dialogue(
        question, {"name": "add", "arguments": {"a": a, "b": b}}, a + b, f"It is {a + b}."
    )


def a_search(draw: Random, who: str, is_new: bool) -> Dialogue:
    question, place = draw.choice(SEARCHES).format(who=who), draw.choice(PLACES)
    call = {"name": "find", "arguments": {"who": who}}
    return Dialogue(question, call, place, f"The {who} is in the {place}.")


def a_talk(draw: Random, who: str, is_new: bool) -> Dialogue:
    question, answer = draw.choice(list(TALK.items()))
    return Dialogue(question.format(who=who), None, None, answer.format(who=who))


Maker = Callable[[Random, str, bool], Dialogue]
KINDS: tuple[Maker, ...] = a_sum, a_search, a_talk


def dialogues(seed: int = 0) -> Iterator[Dialogue]:
    """Yield dialogues to train on, without end."""
    draw = Random(seed)
    while True:
        make = draw.choice(KINDS)
        yield make(draw, draw.choice(KNOWN), False)


def questions(seed: int = 1) -> dict[str, list[Dialogue]]:
    """Return 40 dialogues to ask the questions of: new sums, known and new names, and talk."""
    draw = Random(seed)
    kinds = {
        "sum": (a_sum, NEW, 13),
        "known name": (a_search, KNOWN, 9),
        "new name": (a_search, NEW, 9),
        "talk": (a_talk, NEW, 9),
    }
    return {
        kind: [make(draw, draw.choice(names), True) for _ in range(count)]
        for kind, (make, names, count) in kinds.items()
    }
