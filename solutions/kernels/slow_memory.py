"""Two memories: a large slow one that holds everything, a small fast one that is computed in.

On a GPU these are the memory beside the chip and the one on it; on a CPU, main memory and the
caches. What a program costs is often not what it computes but what it moves between the two.
"""

import math

from jaxtyping import Float
from torch import Tensor


class OutOfFastMemory(Exception):
    """A tile doesn't fit into fast memory beside what is there."""


def fast_numbers_for(head_dim: int, block_q: int, block_k: int) -> int:
    """How many numbers attention holds at once, by tiles of so many queries and keys.

    The queries, the keys and the values, the scores of the two, and for each query its state.
    """
    state = block_q * (head_dim + 2)
    return block_q * head_dim + 2 * block_k * head_dim + block_q * block_k + state


class Memory:
    """Slow memory with the queries, keys and values of some heads; it counts what is moved.

    Tensors are [..., tokens, head_dim]: heads and the like stand in front, and go along whole.
    Fast memory has one place for each name. A tile that is loaded goes there, and what was there
    is gone; the tiles that are there must fit, with their scores and the state of their queries.

    moved: how many numbers have been loaded and stored. trace: (name, start, end) of each tile, in
    the order in which they were moved. fast_numbers: for how many numbers of a head there is room.
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
        self.places: dict[str, int] = {}  # how many tokens the tile in each place has

    @property
    def tokens(self) -> int:
        """The dimension that counts tokens."""
        return self.tensors["queries"].ndim - 2

    @property
    def q_len(self) -> int:
        return self.tensors["queries"].shape[-2]

    def load(self, name: str, start: int, end: int) -> Float[Tensor, "... tile head_dim"]:
        """A copy of some tokens of "queries", say: from `start` to `end`, the last excluded.

        Raises OutOfFastMemory where it doesn't fit, ValueError where not all of them are there.
        """
        tensor = self.named(name)
        length = tensor.shape[self.tokens]
        if not 0 <= start < end <= length:
            raise ValueError(
                f"{name!r} ends at token {length}, and {start} to {end} is no tile of it. "
                "The last one may be shorter than the others."
            )
        self.places[name] = end - start
        self.require_room()
        tile = tensor.narrow(self.tokens, start, end - start).clone()
        self.note(name, start, tile)
        return tile

    def store(self, name: str, start: int, tile: Float[Tensor, "..."]) -> None:
        """Write a tile of results, [..., tile] or [..., tile, some], from token `start` on.

        It has a row for each of its queries. Raises ValueError where it lies beyond them.
        """
        lead, q_len = self.tensors["queries"].shape[: self.tokens], self.q_len
        rows = tile.shape[self.tokens] if tile.ndim > self.tokens else 0
        if tile.shape[: self.tokens] != lead or not 0 <= start < start + rows <= q_len:
            raise ValueError(
                f"What has the shape {list(tile.shape)} is no tile of {name!r} from token {start} "
                f"on: there each query has a row, and the queries end at token {q_len}."
            )
        if name not in self.tensors:
            shape = *lead, q_len, *tile.shape[self.tokens + 1 :]
            self.tensors[name] = tile.new_full(shape, math.nan)
        self.tensors[name].narrow(self.tokens, start, rows).copy_(tile)
        self.note(name, start, tile)

    def result(self, name: str) -> Float[Tensor, "..."]:
        """All that has been stored under a name, to be looked at: this isn't counted."""
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
