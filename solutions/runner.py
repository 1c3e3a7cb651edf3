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
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from solutions.kv_cache import CachedLMHead, causal_mask
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
    """Requests with equally many new tokens, as lab 4 serves them together.

    tokens: theirs, in the packed row. new_slots and all_slots: where in the pool the new tokens go,
    and where all of a row's tokens lie.
    """

    tokens: slice
    positions: Int[Tensor, "rows q_len"]
    new_slots: Int[Tensor, "rows q_len"]
    all_slots: Int[Tensor, "rows k_len"]
    mask: Bool[Tensor, "rows 1 q_len k_len"]


class PackedCache:
    """Lab 4's cache, whosever it is, for a packed row: one rectangle after the other."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache, self.manager = cache, cache.manager
        self.rectangles: list[Rectangle] = []

    def select(self, batch: collections.abc.Sequence[Chunk]) -> Int[Tensor, " total"]:
        """Let the next forward have these chunks, which are sorted by their numbers of new tokens.

        Returns the new tokens' positions, as position ids for the model.
        """
        self.rectangles, start = [], 0
        for _, group in groupby(batch, key=lambda chunk: len(chunk.ids)):
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
    """The same result, with fewer operations and copies: what the engine uses for the reference.

    All new tokens are stored at once. A request alone, whose blocks lie one behind the other, is
    read where it is; others are gathered, keys and values together.
    """

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        self.layers = [pool.flatten(1, 2) for pool in cache.pool.unbind(1)]  # no copies

    def select(self, batch: collections.abc.Sequence[Chunk]) -> Int[Tensor, " total"]:
        positions = super().select(batch)
        self.new_slots = torch.cat([part.new_slots.flatten() for part in self.rectangles])
        self.reads = [self.read(part) for part in self.rectangles]
        return positions

    def read(self, part: Rectangle) -> tuple[slice | Int[Tensor, " slots"], Tensor | None]:
        """Which slots a rectangle reads, and its mask as numbers to add; None where all see all."""
        slots, mask = part.all_slots.flatten(), None
        if not part.mask.all():
            zeros = torch.zeros(part.mask.shape, dtype=self.cache.pool.dtype, device=slots.device)
            mask = zeros.masked_fill(~part.mask, -torch.inf)
        if len(part.positions) == 1 and bool((slots.diff() == 1).all()):
            return slice(int(slots[0]), int(slots[-1]) + 1), mask
        return slots, mask

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "1 heads total head_dim"],
        keys: Float[Tensor, "1 heads total head_dim"],
        values: Float[Tensor, "1 heads total head_dim"],
    ) -> Float[Tensor, "1 heads total head_dim"]:
        pool, attended = self.layers[layer], []
        pool[0].index_copy_(0, self.new_slots, keys[0].transpose(0, 1))
        pool[1].index_copy_(0, self.new_slots, values[0].transpose(0, 1))
        for part, (slots, mask) in zip(self.rectangles, self.reads, strict=True):
            shape = part.positions.shape
            read = pool[:, slots] if isinstance(slots, slice) else pool.index_select(1, slots)
            all_keys, all_values = read.unflatten(1, part.all_slots.shape).transpose(2, 3)
            new = queries[0, :, part.tokens].unflatten(1, shape).transpose(0, 1)
            rows = F.scaled_dot_product_attention(new, all_keys, all_values, attn_mask=mask)
            attended.append(rows.transpose(0, 1).flatten(1, 2))
        return (attended[0] if len(attended) == 1 else torch.cat(attended, dim=1))[None]


class FusedTransformer:
    """The model's hidden states from fewer operations, on its own weights.

    The bias comes with the product, and so does what is added to the hidden state. There are no
    modules to call and no ids to look at: the engine has done that when a request came.
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
            attended = kv_cache.attend(layer, *projected.view(heads).permute(2, 0, 3, 1, 4))
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
    return torch.addmm(bias, hidden, weight)


def added(
    hidden: Float[Tensor, "total n_out"],
    more: Float[Tensor, "total n_in"],
    weight: Float[Tensor, "n_in n_out"],
    bias: Float[Tensor, " n_out"],
) -> Float[Tensor, "total n_out"]:
    return torch.addmm(hidden, more, weight).add_(bias)


class Runner:
    """A model and its cache. transformer: hidden states from ids, positions and cache."""

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
