"""Two memories: a large, slow one that holds everything, and a small, fast one for computing.

On a GPU these are the memory next to the chip and the memory on it; on a CPU, main memory and the
caches. The time of a program often depends on what it moves between them, not on what it computes.
"""

import math

from jaxtyping import Float
from torch import Tensor


class OutOfFastMemory(Exception):
    """A tile doesn't fit into fast memory together with the tiles that are there."""


def fast_numbers_for(head_dim: int, block_q: int, block_k: int) -> int:
    """Return how many numbers attention holds at once in tiles of `block_q` and `block_k` tokens.

    These are the queries, keys and values, the scores, and the state of each query.
    """
    state = block_q * (head_dim + 2)
    return block_q * head_dim + 2 * block_k * head_dim + block_q * block_k + state


class Memory:
    """Slow memory with the queries, keys and values of some heads; it counts the traffic.

    Tensors are [..., tokens, head_dim]; leading dimensions such as heads are always moved whole.
    Fast memory has one place for each name: a tile that is loaded replaces the one before. The
    tiles in fast memory must fit together with their scores and the state of their queries.

    moved: how many numbers were loaded and stored so far. trace: (name, start, end) of each tile,
    in the order in which they were moved. fast_numbers: the room in fast memory, in numbers of one
    head.
    """

    def __init__(
        self,
        queries: Float[Tensor, "... q_len head_dim"],
        keys: Float[Tensor, "... k_len head_dim"],
        values: Float[Tensor, "... k_len head_dim"],
        fast_numbers: float = math.inf,
    ) -> None:
        self.tensors = {"queries": queries, "keys": keys, "values": values}
        self.fast_numbers, self.moved = fast_numbers, 0
        self.trace: list[tuple[str, int, int]] = []
        self.places: dict[str, int] = {}  # tokens of the tile in each place

    @property
    def tokens(self) -> int:
        """The index of the dimension of tokens."""
        return self.tensors["queries"].ndim - 2

    @property
    def q_len(self) -> int:
        return self.tensors["queries"].shape[-2]

    def load(self, name: str, start: int, end: int) -> Float[Tensor, "... tile head_dim"]:
        """Return a copy of the tokens from `start` up to, but not including, `end`.

        name: "queries", "keys", "values", or a name that was stored. Raises OutOfFastMemory if the
        tile doesn't fit, ValueError if it goes beyond the last token.
        """
        tensor = self.named(name)
        length = tensor.shape[self.tokens]
        if not 0 <= start < end <= length:
            raise ValueError(
                f"{name!r} has {length} tokens, and {start} to {end} is no tile of it. "
                "The last tile may be shorter than the others."
            )
        self.places[name] = end - start
        self.require_room()
        tile = tensor.narrow(self.tokens, start, end - start).clone()
        self.note(name, start, tile)
        return tile

    def store(self, name: str, start: int, tile: Float[Tensor, "..."]) -> None:
        """Write a tile of results, [..., tile] or [..., tile, some], from token `start` on.

        It has one row per query. Raises ValueError if it goes beyond the last query.
        """
        lead, q_len = self.tensors["queries"].shape[: self.tokens], self.q_len
        rows = tile.shape[self.tokens] if tile.ndim > self.tokens else 0
        if tile.shape[: self.tokens] != lead or not 0 <= start < start + rows <= q_len:
            raise ValueError(
                f"A tensor of shape {list(tile.shape)} is no tile of {name!r} from token {start} "
                f"on: it needs one row per query, and there are {q_len} queries."
            )
        if name not in self.tensors:
            shape = *lead, q_len, *tile.shape[self.tokens + 1 :]
            self.tensors[name] = tile.new_full(shape, math.nan)
        self.tensors[name].narrow(self.tokens, start, rows).copy_(tile)
        self.note(name, start, tile)

    def result(self, name: str) -> Float[Tensor, "..."]:
        """Return everything stored under a name; this isn't counted as traffic."""
        return self.named(name)

    def named(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ValueError(f"Slow memory has {', '.join(self.tensors)}; there is no {name!r}.")
        return self.tensors[name]

    def require_room(self) -> None:
        rows = self.places.get("queries", 0)
        columns = max(self.places.get("keys", 0), self.places.get("values", 0))
        needed = fast_numbers_for(self.tensors["queries"].shape[-1], rows, columns)
        if needed > self.fast_numbers:
            raise OutOfFastMemory(
                f"Tiles of {rows} queries and {columns} keys take {needed:,} numbers of fast "
                f"memory, which has room for {self.fast_numbers:,}. Load smaller tiles."
            )

    def note(self, name: str, start: int, tile: Tensor) -> None:
        self.moved += tile.numel()
        self.trace.append((name, start, start + tile.shape[self.tokens]))
