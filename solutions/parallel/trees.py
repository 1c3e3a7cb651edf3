"""A tree of guessed tokens, and what each forward pass over one won: the counts to judge it by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

# ------------------------------------------------------------------------------ trees of tokens


class Tree:
    """Guesses for the next tokens of a text; guesses with the same beginning share its nodes.

    Node 0 is the text's last token, and its parent is -1. Every other node is a guess for the token
    after its parent, which is an earlier node. `tokens` and `parents` have an entry for each node.
    """

    def __init__(self, last: int) -> None:
        self.tokens, self.parents = [last], [-1]
        self.children: dict[tuple[int, int], int] = {}  # from a node and a token to the child

    def child(self, node: int, token: int) -> int:
        """Return the child of a node with this token; it is added if there is none."""
        if (node, token) not in self.children:
            self.children[node, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(node)
        return self.children[node, token]

    def add(self, node: int, tokens: Sequence[int]) -> list[int]:
        """Add a chain of tokens below a node; return their nodes, which may be old ones."""
        nodes = []
        for token in tokens:
            node = self.child(node, token)
            nodes.append(node)
        return nodes


def most_nodes(widths: Sequence[int]) -> int:
    """Return the nodes of a tree whose level i has `widths[i]` children below each node above it.

    Node 0 is counted, too. Raises ValueError if a width is below 1, or if there is no level.
    """
    if not widths or min(widths) < 1:
        raise ValueError(
            "A tree has at least one level, and at least one child below each node, not widths of "
            f"{list(widths)}."
        )
    return sum(prod(widths[:depth]) for depth in range(len(widths) + 1))


# -------------------------------------------------------------------- what the calls have won


@dataclass(frozen=True)
class Call:
    """One forward pass of the model over the nodes of a tree.

    path: the accepted nodes, from node 0 down. new: the tokens that the text gained; the last one
    is the model's own, unless an accepted EOS has ended the text before it.
    """

    tree: Tree
    path: list[int]
    new: list[int]

    @property
    def rows(self) -> int:
        return len(self.tree.tokens)


@dataclass(frozen=True)
class Decoded:
    """ids: prompt and new tokens. calls: the forward passes after the prefill.

    The prefill gives the first new token. It isn't counted as a call.
    """

    ids: list[int]
    calls: list[Call]

    @property
    def tokens_per_call(self) -> float:
        return sum(len(call.new) for call in self.calls) / len(self.calls)

    @property
    def rows_per_call(self) -> float:
        return sum(call.rows for call in self.calls) / len(self.calls)


def up_to_eos(new: list[int], eos_token_id: int | None) -> list[int]:
    """Return the tokens up to the first EOS, which is kept."""
    return new[: new.index(eos_token_id) + 1] if eos_token_id in new else new


# -------------------------------------------------------------------------- when does it pay?

# From a number of rows to the time of one forward pass over them, in units of a one-row pass.
Price = Callable[[int], float]


def price_of(seconds: Mapping[int, float]) -> Price:
    """Return the price of any number of rows, from the measured times of some numbers, 1 included.

    Between two measured numbers the line is straight; after the last one it is flat.
    """
    numbers = sorted(seconds)
    prices = [seconds[number] / seconds[1] for number in numbers]
    return lambda rows: float(np.interp(rows, numbers, prices))


def predicted_speed_up(calls: Sequence[Call], price: Price, proposing: float = 0.0) -> float:
    """Return how many times as fast as plain decoding these calls are, by this price of rows.

    proposing: the time that making a tree takes, in units of a one-row pass. Plain decoding makes
    one token in each one-row pass.
    """
    tokens = sum(len(call.new) for call in calls)
    return tokens / sum(price(call.rows) + proposing for call in calls)


# -------------------------------------------------------------------------------- input checks


def require_size(what: str, size: int, least: int = 1) -> None:
    if size < least:
        raise ValueError(f"The {what} must be at least {least}, not {size}.")
