"""Thoughts before answers: the mask that ends them in time, and lets the answer keep its form.

A text with thoughts is any text up to the mark THOUGHTS[1], which begins outside of it, in the
prompt; then comes the answer, which may have a guide of its own.
"""

from functools import cache
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from solutions.checkpoints.templates import THOUGHTS
from solutions.grammars.regex import EMPTY, NOTHING
from solutions.server.formats import ByteGuide

END = THOUGHTS[1]
Edges = list[dict[int, int]]  # of automata of lab 14


@cache
def edges_of(thoughtful: Any, closing: Any) -> tuple[Edges, Edges]:
    """Return what follows each state of thoughts, as they are and if they can only be closed."""
    whole = thoughtful(EMPTY, END.encode())
    closed = closing(whole, END.encode())
    return list(whole.edges[: len(END)]), list(closed.edges[: len(END)])


class ThoughtGuide:
    """Lab 14's guide for thoughts of at most `most` tokens, and an answer that has its own guide.

    lab: lab 25's names. Its `Budget` holds two guides, and their states are numbers: below the
    length of END those of the thoughts, and from there on those of the answer, in the order in
    which texts came to them. met: these states as the answer's guide knows them.
    """

    def __init__(self, lab: Any, answer: ByteGuide, most: int) -> None:
        self.answer, self.met = answer, list[Any]()
        self.numbers: dict[Any, int] = {}
        free, closing = edges_of(lab.thoughtful, lab.closing)
        guides = Thoughts(self, free, is_closing=False), Thoughts(self, closing, is_closing=True)
        self.budget = lab.Budget(*guides, len(END), most)
        self.start, self.allowed = self.budget.start, self.budget.allowed
        self.advance = self.budget.advance

    def number(self, remains: Any) -> int:
        """Return the number of a state of the answer's guide."""
        if remains not in self.numbers:
            self.numbers[remains] = len(END) + len(self.met)
            self.met.append(remains)
        return self.numbers[remains]

    def remains(self, state: tuple[int, int]) -> Any:
        place = state[0] - len(END)
        return self.answer.remains(self.met[place]) if place >= 0 else None


class Thoughts(ByteGuide):
    """One of the two guides of a budget.

    edges: for each state of the thoughts, the state after a byte; if there is none, no text goes on
    like that. is_closing: whether thoughts can only be closed.
    """

    def __init__(self, whole: ThoughtGuide, edges: Edges, is_closing: bool) -> None:
        super().__init__(whole.answer.masks)
        self.whole, self.edges, self.is_closing = whole, edges, is_closing
        self.key = whole.answer.key, self.is_closing

    def start(self) -> int:
        return 0

    def allowed(self, state: int) -> Bool[Tensor, " vocab"]:
        if state >= len(END):
            return self.whole.answer.allowed(self.whole.met[state - len(END)])
        completes, goes_on = END[-1].encode(), END[state].encode()
        if self.is_closing:
            return self.free(state, False, False, lambda text: text.startswith(goes_on))
        return self.free(state, True, False, lambda text: completes in text)

    def after(self, state: int, byte: int) -> int:
        answer = self.whole.answer
        if state >= len(END):
            return self.whole.number(answer.after(self.whole.met[state - len(END)], byte))
        place = self.edges[state].get(byte)
        if place is None:
            return self.whole.number(NOTHING)
        return place if place < len(END) else self.whole.number(answer.start())

    def remains(self, state: int) -> Any:
        return self.whole.remains((state, 0))
