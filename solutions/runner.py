"""The engine, part three: one packed forward for whatever was scheduled.

No rectangle any more: the new tokens of all requests lie behind one another in one row, [1, total],
with their positions beside them, so that every weight is read once for all of them. Only attention,
where a token sees its own request alone, goes by requests: those with equally many new tokens
together.
"""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from solutions.kv_cache import CachedLMHead, causal_mask
from solutions.paged_attention import PagedCache, slot_mapping

# Texts that differ by more tokens are not padded to one length. Fewer groups win over less padding.
STRETCH = 256


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

    @property
    def shape(self) -> tuple[int, int]:
        """By which chunks are served together: as many new tokens, and about as long a text."""
        return len(self.ids), (self.start + len(self.ids)) // STRETCH


@dataclass(frozen=True)
class Rectangle:
    """Requests that are served together, as lab 4 does: with equally many new tokens.

    tokens: theirs, in the packed row. new_slots, all_slots: where in the pool the new tokens go,
    and where all tokens of each row lie; a slice where that is one stretch of one row. mask: None
    where all are seen.
    """

    tokens: slice
    positions: Int[Tensor, "rows q_len"]
    new_slots: Int[Tensor, "rows q_len"]
    all_slots: Any  # Int[Tensor, "rows k_len"] or slice
    mask: Any  # Tensor [rows, 1, q_len, k_len] or None


class PackedCache:
    """Lab 4's cache, whosever it is, for a packed row: one rectangle after the other."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache, self.manager = cache, cache.manager
        self.rectangles: list[Rectangle] = []

    def select(self, batch: collections.abc.Sequence[Chunk]) -> Int[Tensor, " total"]:
        """Let the next forward have these chunks, which are sorted by their shapes.

        Returns the new tokens' positions, as position ids for the model.
        """
        self.rectangles, start = [], 0
        for _, group in groupby(batch, key=lambda chunk: chunk.shape):
            self.rectangles.append(self.rectangle(list(group), start))
            start = self.rectangles[-1].tokens.stop
        return torch.cat([part.positions.flatten() for part in self.rectangles])

    def rectangle(self, chunks: list[Chunk], first: int) -> Rectangle:
        device, block_size = self.cache.pool.device, self.manager.block_size
        starts = torch.tensor([[chunk.start] for chunk in chunks], device=device)
        new = starts + torch.arange(len(chunks[0].ids), device=device)
        every = torch.arange(int(new.max()) + 1, device=device).expand(len(chunks), -1)
        tables = [torch.tensor(self.manager.tables[chunk.request]) for chunk in chunks]
        block_tables = pad_sequence(tables, batch_first=True).to(device)
        return Rectangle(
            slice(first, first + new.numel()),
            new,
            slot_mapping(block_tables, new, block_size),
            slot_mapping(block_tables, every, block_size),
            causal_mask(new, every),
        )

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "1 heads total head_dim"],
        keys: Float[Tensor, "1 heads total head_dim"],
        values: Float[Tensor, "1 heads total head_dim"],
    ) -> Float[Tensor, "1 heads total head_dim"]:
        cache, attended = self.cache, []
        for part in self.rectangles:
            shape = part.positions.shape
            cache.selected = *shape, layer
            cache.new_slots, cache.all_slots, cache.mask = part.new_slots, part.all_slots, part.mask
            # from [1, heads, rows * q_len, head_dim] to [rows, heads, q_len, head_dim], and back
            rows = [
                packed[0, :, part.tokens].unflatten(1, shape).transpose(0, 1)
                for packed in (queries, keys, values)
            ]
            attended.append(cache.attend(layer, *rows).transpose(0, 1).flatten(1, 2))
        return torch.cat(attended, dim=1)[None]


class FastCache(PackedCache):
    """The same result from fewer operations and copies, for lab 4's own cache.

    All new tokens are stored at once. A request alone whose blocks follow one another is read where
    it lies; others are gathered, keys and values together.
    """

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        self.layers = [pool.flatten(1, 2) for pool in cache.pool.unbind(1)]  # no copies

    def select(self, batch: collections.abc.Sequence[Chunk]) -> Int[Tensor, " total"]:
        positions = super().select(batch)
        self.new_slots = torch.cat([part.new_slots.flatten() for part in self.rectangles])
        return positions

    def rectangle(self, chunks: list[Chunk], first: int) -> Rectangle:
        table = self.manager.tables[chunks[0].request]
        if len(chunks) == 1 and table == list(range(table[0], table[0] + len(table))):
            return self.in_place(chunks[0], table[0] * self.manager.block_size, first)
        part = super().rectangle(chunks, first)
        return replace(part, mask=self.to_add(part.mask))

    def in_place(self, chunk: Chunk, offset: int, first: int) -> Rectangle:
        """For a request whose tokens lie in the pool from `offset` on."""
        size, end = len(chunk.ids), chunk.start + len(chunk.ids)
        positions = torch.arange(chunk.start, end, device=self.cache.pool.device)[None]
        mask = None  # the newest token sees every one
        if size > 1:
            mask = self.to_add(
                causal_mask(positions, torch.arange(end, device=positions.device)[None])
            )
        tokens, all_slots = slice(first, first + size), slice(offset, offset + end)
        return Rectangle(tokens, positions, positions + offset, all_slots, mask)

    def to_add(self, mask: Tensor) -> Float[Tensor, "rows 1 q_len k_len"]:
        """A mask as what is added to the scores, which else every layer would make of it."""
        added = torch.zeros(mask.shape, dtype=self.cache.pool.dtype, device=mask.device)
        return added.masked_fill(~mask, -torch.inf)

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "1 heads total head_dim"],
        keys: Float[Tensor, "1 heads total head_dim"],
        values: Float[Tensor, "1 heads total head_dim"],
    ) -> Float[Tensor, "1 heads total head_dim"]:
        all_keys, all_values = self.layers[layer].unbind()  # [slots, heads, head_dim] each
        all_keys.index_copy_(0, self.new_slots, keys[0].transpose(0, 1))
        all_values.index_copy_(0, self.new_slots, values[0].transpose(0, 1))
        if len(self.rectangles) == 1 and len(self.rectangles[0].positions) == 1:
            return self.attend_rows(layer, queries, self.rectangles[0])
        attended = []
        for part in self.rectangles:
            rows = queries[0, :, part.tokens].unflatten(1, part.positions.shape).transpose(0, 1)
            rows = self.attend_rows(layer, rows, part)
            attended.append(rows.transpose(0, 1).flatten(1, 2))
        return torch.cat(attended, dim=1)[None]

    def attend_rows(
        self, layer: int, queries: Float[Tensor, "rows heads q_len head_dim"], part: Rectangle
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        pool, slots = self.layers[layer], part.all_slots
        read = pool[:, None, slots] if isinstance(slots, slice) else pool[:, slots]
        # [2, rows, k_len, heads, head_dim], with the heads brought before the tokens
        all_keys, all_values = read.transpose(2, 3).unbind()
        return F.scaled_dot_product_attention(queries, all_keys, all_values, attn_mask=part.mask)


class FusedTransformer:
    """The model's hidden states from fewer operations, on its own weights.

    What is added to a product is added in place. There are no modules to call, and no ids to look
    at: the engine has done that when a request came.
    """

    def __init__(self, model: CachedLMHead) -> None:
        self.config = model.config
        transformer: Any = model.transformer
        self.embeddings = transformer.wte.weight, transformer.wpe.weight
        self.last_norm = transformer.ln_f.weight, transformer.ln_f.bias
        self.layers = [
            [
                (part.weight, part.bias)
                for part in (
                    *(block.ln_1, block.attn.c_attn, block.attn.c_proj),
                    *(block.ln_2, block.mlp.c_fc, block.mlp.c_proj),
                )
            ]
            for block in transformer.h
        ]

    def __call__(
        self,
        inputs: Int[Tensor, "1 total"],
        position_ids: Int[Tensor, "1 total"],
        kv_cache: PackedCache,
    ) -> Float[Tensor, "1 total n_embd"]:
        config, (wte, wpe) = self.config, self.embeddings
        heads = 1, inputs.shape[1], 3, config.n_head, config.head_dim
        hidden = wte[inputs[0]] + wpe[position_ids[0]]
        for layer, (ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj) in enumerate(self.layers):
            projected = with_bias(self.norm(hidden, *ln_1), *c_attn)
            queries, keys, values = projected.view(heads).permute(2, 0, 3, 1, 4).unbind()
            attended = kv_cache.attend(layer, queries, keys, values)
            hidden = added(hidden, attended[0].transpose(0, 1).flatten(1), *attn_proj)
            widened = F.gelu(with_bias(self.norm(hidden, *ln_2), *c_fc), approximate="tanh")
            hidden = added(hidden, widened, *mlp_proj)
        return self.norm(hidden, *self.last_norm)[None]

    def norm(
        self,
        hidden: Float[Tensor, "total n_embd"],
        weight: Float[Tensor, " n_embd"],
        bias: Float[Tensor, " n_embd"],
    ) -> Float[Tensor, "total n_embd"]:
        epsilon = self.config.layer_norm_epsilon
        return F.layer_norm(hidden, weight.shape, weight, bias, epsilon)


def with_bias(
    hidden: Float[Tensor, "total n_in"],
    weight: Float[Tensor, "n_in n_out"],
    bias: Float[Tensor, " n_out"],
) -> Float[Tensor, "total n_out"]:
    return (hidden @ weight).add_(bias)


def added(
    hidden: Float[Tensor, "total n_out"],
    more: Float[Tensor, "total n_in"],
    weight: Float[Tensor, "n_in n_out"],
    bias: Float[Tensor, " n_out"],
) -> Float[Tensor, "total n_out"]:
    return (more @ weight).add_(bias).add_(hidden)


class Runner:
    """A model and its cache. transformer: hidden states from ids, positions and cache."""

    def __init__(
        self,
        transformer: Callable[..., Float[Tensor, "1 total n_embd"]],
        head: Float[Tensor, "n_embd vocab"],
        kv_cache: PackedCache,
    ) -> None:
        self.transformer, self.head, self.kv_cache = transformer, head, kv_cache

    @torch.inference_mode()
    def forward(
        self, batch: collections.abc.Sequence[Chunk]
    ) -> dict[int, Float[Tensor, "wanted vocab"]]:
        """The logits that are wanted of each request, by its number."""
        if not batch:
            return {}
        batch = sorted(batch, key=lambda chunk: chunk.shape)
        position_ids = self.kv_cache.select(batch)
        input_ids = torch.tensor([token for chunk in batch for token in chunk.ids])
        rows = input_ids.to(self.head.device)[None], position_ids[None]
        hidden = self.transformer(*rows, self.kv_cache)[0]
        ends = accumulate(len(chunk.ids) for chunk in batch)
        wanted = [
            row
            for chunk, end in zip(batch, ends, strict=True)
            for row in range(end - chunk.wanted, end)
        ]
        logits = (hidden[wanted] @ self.head).split([chunk.wanted for chunk in batch])
        return {chunk.request: part for chunk, part in zip(batch, logits, strict=True)}
