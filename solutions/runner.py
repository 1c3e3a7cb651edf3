"""The engine, part three: one packed forward for whatever was scheduled.

No rectangle any more: the new tokens of all requests lie behind one another in one row, [1, total],
with their positions beside them, so that every weight is read once for all of them. Only attention,
where a token sees its own request alone, goes by requests: those with equally many new tokens
together.
"""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from solutions.kv_cache import causal_mask
from solutions.paged_attention import PagedCache, slot_mapping


@dataclass(frozen=True)
class Chunk:
    """What a forward computes of one request.

    ids: its new tokens; `start` of its tokens are computed already. wanted: after how many of the
    new ones, the last ones, it must be known what follows; 0 while a prompt isn't through.
    """

    request: int
    ids: list[int]
    start: int
    wanted: int


@dataclass(frozen=True)
class Rectangle:
    """Requests with equally many new tokens, as lab 4's cache serves them."""

    rows: int
    q_len: int
    new_slots: Int[Tensor, "rows q_len"]
    all_slots: Int[Tensor, "rows k_len"]
    mask: Bool[Tensor, "rows 1 q_len k_len"]


class PackedCache:
    """Lab 4's cache, for a packed row: it serves one rectangle after the other."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache, self.manager = cache, cache.manager
        self.rectangles: list[Rectangle] = []

    def select(self, batch: collections.abc.Sequence[Chunk]) -> Int[Tensor, "1 total"]:
        """Let the next forward have these chunks, sorted by their numbers of new tokens.

        Returns the new tokens' positions, as position ids for the model.
        """
        groups = [list(group) for _, group in groupby(batch, key=lambda chunk: len(chunk.ids))]
        positions = [self.positions_of(group) for group in groups]
        self.rectangles = [
            self.rectangle(group, new) for group, new in zip(groups, positions, strict=True)
        ]
        return torch.cat([new.flatten() for new in positions])[None]

    def positions_of(self, chunks: list[Chunk]) -> Int[Tensor, "rows q_len"]:
        starts = torch.tensor([chunk.start for chunk in chunks], device=self.cache.pool.device)
        return starts[:, None] + torch.arange(len(chunks[0].ids), device=starts.device)

    def rectangle(self, chunks: list[Chunk], positions: Int[Tensor, "rows q_len"]) -> Rectangle:
        tables = [torch.tensor(self.manager.tables[chunk.request]) for chunk in chunks]
        block_tables = pad_sequence(tables, batch_first=True).to(positions.device)
        every = torch.arange(int(positions.max()) + 1, device=positions.device)
        every = every.expand(len(chunks), -1)
        return Rectangle(
            len(chunks),
            positions.shape[1],
            slot_mapping(block_tables, positions, self.manager.block_size),
            slot_mapping(block_tables, every, self.manager.block_size),
            causal_mask(positions, every),
        )

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "1 heads total head_dim"],
        keys: Float[Tensor, "1 heads total head_dim"],
        values: Float[Tensor, "1 heads total head_dim"],
    ) -> Float[Tensor, "1 heads total head_dim"]:
        cache, attended, start = self.cache, [], 0
        for part in self.rectangles:
            end = start + part.rows * part.q_len
            cache.selected = part.rows, part.q_len, layer
            cache.new_slots, cache.all_slots, cache.mask = part.new_slots, part.all_slots, part.mask
            # from [1, heads, rows * q_len, head_dim] to [rows, heads, q_len, head_dim], and back
            rows = [
                packed[0, :, start:end].unflatten(1, (part.rows, part.q_len)).transpose(0, 1)
                for packed in (queries, keys, values)
            ]
            attended.append(cache.attend(layer, *rows).transpose(0, 1).flatten(1, 2))
            start = end
        return torch.cat(attended, dim=1)[None]


class Runner:
    """The model and its cache. transformer: from ids, positions and cache to hidden states;
    head: [n_embd, vocab]."""

    def __init__(
        self,
        transformer: Callable[..., Float[Tensor, "1 total n_embd"]],
        head: Float[Tensor, "n_embd vocab"],
        kv_cache: PackedCache,
    ) -> None:
        self.transformer, self.head, self.kv_cache = transformer, head, kv_cache

    @torch.no_grad()
    def forward(
        self, batch: collections.abc.Sequence[Chunk]
    ) -> dict[int, Float[Tensor, "wanted vocab"]]:
        """The logits that are wanted of each request, by its number."""
        if not batch:
            return {}
        batch = sorted(batch, key=lambda chunk: len(chunk.ids))
        position_ids = self.kv_cache.select(batch)
        input_ids = torch.tensor([[token for chunk in batch for token in chunk.ids]])
        hidden = self.transformer(input_ids.to(self.head.device), position_ids, self.kv_cache)[0]
        ends = accumulate(len(chunk.ids) for chunk in batch)
        rows = [
            row
            for chunk, end in zip(batch, ends, strict=True)
            for row in range(end - chunk.wanted, end)
        ]
        logits = (hidden[rows] @ self.head).split([chunk.wanted for chunk in batch])
        return {chunk.request: part for chunk, part in zip(batch, logits, strict=True)}
