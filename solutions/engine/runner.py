"""The engine, part four: one packed forward pass for all scheduled tokens.

The new tokens of all requests are concatenated in one row, [1, total], with a row of positions of
the same shape, so every weight is read once for all of them. Only attention, where a token sees its
own request alone, runs in groups: requests with equally many new tokens together.
"""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import gpt
from solutions.engine.products import USUAL, Choice, Linear
from solutions.kv_cache import CachedLMHead, causal_mask
from solutions.paged_attention import PagedCache, slot_mapping

# Texts are padded to one length within a stretch of this many tokens: fewer groups cost less than
# the padding.
STRETCH = 256


@dataclass(frozen=True)
class Chunk:
    """The tokens of one request that a forward pass computes.

    ids: its new tokens. start: how many of its tokens are already computed. wanted: how many of the
    last new tokens need logits; 0 in the middle of a prompt.
    """

    request: int
    ids: list[int]
    start: int
    wanted: int

    @property
    def shape(self) -> tuple[int, int]:
        """Chunks of equal shape are served together: equally many new tokens, similar lengths."""
        return len(self.ids), (self.start + len(self.ids)) // STRETCH


@dataclass(frozen=True)
class Rectangle:
    """Requests with equally many new tokens, which are served together as in lab 4.

    tokens: their place in the packed row. length: the length of the longest text. new_slots: the
    slots of the new tokens in the pool. places: where all tokens of each row are, in the form that
    the cache needs. mask: None if every query sees every key.
    """

    tokens: slice
    length: int
    positions: Int[Tensor, "rows q_len"]
    new_slots: Int[Tensor, "rows q_len"]
    places: Any
    mask: Any  # Tensor [rows, 1, q_len, length] or None


class PackedCache:
    """Serves a packed row with any cache of lab 4, one rectangle after the other."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache, self.manager = cache, cache.manager
        self.rectangles: list[Rectangle] = []

    def select(self, batch: collections.abc.Sequence[Chunk]) -> Int[Tensor, " total"]:
        """Prepare the next forward pass for these chunks, which are sorted by shape.

        Returns the positions of the new tokens, as position ids for the model.
        """
        self.rectangles, start = [], 0
        for _, group in groupby(batch, key=lambda chunk: chunk.shape):
            self.rectangles.append(self.rectangle(list(group), start))
            start = self.rectangles[-1].tokens.stop
        return torch.cat([part.positions.flatten() for part in self.rectangles])

    def rectangle(self, chunks: list[Chunk], first: int) -> Rectangle:
        device, size = self.cache.pool.device, len(chunks[0].ids)
        length = max(chunk.start for chunk in chunks) + size
        starts = torch.tensor([[chunk.start] for chunk in chunks], device=device)
        new = starts + torch.arange(size, device=device)
        every = torch.arange(length, device=device).expand(len(chunks), -1)
        tables = [torch.tensor(self.manager.tables[chunk.request]) for chunk in chunks]
        block_tables = pad_sequence(tables, batch_first=True).to(device)
        return Rectangle(
            slice(first, first + new.numel()),
            length,
            new,
            slot_mapping(block_tables, new, self.manager.block_size),
            self.places(block_tables, every),
            self.mask(new, every),
        )

    def places(self, block_tables: Tensor, every: Tensor) -> Any:
        return slot_mapping(block_tables, every, self.manager.block_size)

    def mask(self, new: Tensor, every: Tensor) -> Tensor | None:
        return causal_mask(new, every)

    def attend(
        self, layer: int, *packed: Float[Tensor, "1 heads total head_dim"]
    ) -> Float[Tensor, "1 heads total head_dim"]:
        """Store keys and values, and attend; `packed`: queries, keys and values."""
        if len(self.rectangles) == self.rectangles[0].positions.shape[0] == 1:
            return self.attend_rows(layer, self.rectangles[0], *packed)  # one row already
        attended = []
        for part in self.rectangles:
            # [1, heads, rows * q_len, head_dim] to [rows, heads, q_len, head_dim], and back
            shape = part.positions.shape
            rows = (p[0, :, part.tokens].unflatten(1, shape).transpose(0, 1) for p in packed)
            attended.append(self.attend_rows(layer, part, *rows).transpose(0, 1).flatten(1, 2))
        return torch.cat(attended, dim=1)[None]

    def attend_rows(
        self, layer: int, part: Rectangle, *rows: Float[Tensor, "rows heads q_len head_dim"]
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        cache = self.cache
        cache.selected = *part.positions.shape, layer
        cache.new_slots, cache.all_slots, cache.mask = part.new_slots, part.places, part.mask
        return cache.attend(layer, *rows)


class FastCache(PackedCache):
    """The same result with fewer operations and copies, for the reference's cache of lab 4.

    A single request in consecutive blocks is read without a copy. For other requests whole blocks
    are gathered, which are long runs of memory.
    """

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        # for each layer [2, slots, heads, head_dim], keys first: views of the pool
        self.layers = [pool.flatten(1, 2) for pool in cache.pool.unbind(1)]

    def places(self, block_tables: Tensor, every: Tensor) -> Any:
        """Return a slice of slots for one row in consecutive blocks; else blocks and a copy buffer.

        All layers use the same buffer: allocating memory would cost more than the copy itself.
        """
        (table, *others), block_size = block_tables.tolist(), self.manager.block_size
        if not others and table == list(range(table[0], table[0] + len(table))):
            return slice(table[0] * block_size, table[0] * block_size + every.numel())
        _, _, *block = self.cache.pool[:, 0].shape  # block_size, heads, head_dim
        return block_tables.flatten(), self.cache.pool.new_empty(2, block_tables.numel(), *block)

    def mask(self, new: Tensor, every: Tensor) -> Tensor | None:
        """Return the mask as numbers to add to the scores, so no layer has to convert it."""
        seen = causal_mask(new, every)
        if seen.all():
            return None
        return self.cache.pool.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)

    def attend_rows(
        self, layer: int, part: Rectangle, *rows: Float[Tensor, "rows heads q_len head_dim"]
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        stored, new_slots = self.layers[layer].unbind(), part.new_slots.flatten()
        for pool, new in zip(stored, rows[1:], strict=True):  # keys, then values
            pool.index_copy_(0, new_slots, new.transpose(1, 2).flatten(0, 1))
        all_keys, all_values = self.read(layer, part).transpose(2, 3).unbind()
        return F.scaled_dot_product_attention(rows[0], all_keys, all_values, attn_mask=part.mask)

    def read(self, layer: int, part: Rectangle) -> Float[Tensor, "2 rows length heads head_dim"]:
        if isinstance(part.places, slice):
            return self.layers[layer][:, None, part.places]
        blocks, room = part.places
        for pool, copy in zip(self.cache.pool[:, layer].unbind(), room.unbind(), strict=True):
            torch.index_select(pool, 0, blocks, out=copy)
        return room.flatten(1, 2).unflatten(1, (len(part.positions), -1))[:, :, : part.length]


class FusedTransformer:
    """Computes the model's hidden states with fewer operations, on the model's own weights.

    It calls no modules and doesn't check the ids: the engine has checked them in `submit`.
    """

    def __init__(self, model: CachedLMHead, choice: Choice = USUAL) -> None:
        def linear_of(module: Any) -> Any:  # other layers (lab 10) stay as they are
            is_usual = isinstance(module, gpt.Linear)
            return Linear(module.weight.T, module.bias, choice) if is_usual else module

        self.config = model.config
        transformer: Any = model.transformer
        self.embeddings = transformer.wte, transformer.wpe
        self.last_norm = norm_of(transformer.ln_f)
        self.layers = [
            (
                *(norm_of(block.ln_1), linear_of(block.attn.c_attn)),
                *(linear_of(block.attn.c_proj), norm_of(block.ln_2)),
                *(linear_of(block.mlp.c_fc), linear_of(block.mlp.c_proj)),
            )
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
        hidden = wte(inputs[0]) + wpe(position_ids[0])
        for layer, (ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj) in enumerate(self.layers):
            projected = c_attn(F.layer_norm(hidden, *ln_1))
            rows = projected.view(heads).permute(2, 0, 3, 1, 4).unbind()
            attended = kv_cache.attend(layer, *rows)
            hidden = attn_proj(attended[0].transpose(0, 1).flatten(1)).add_(hidden)
            widened = F.gelu(c_fc(F.layer_norm(hidden, *ln_2)), approximate="tanh")
            hidden = mlp_proj(widened).add_(hidden)
        return F.layer_norm(hidden, *self.last_norm)[None]


def norm_of(module: Any) -> tuple[Any, ...]:
    """Return the arguments of F.layer_norm after its input."""
    return module.normalized_shape, module.weight, module.bias, module.eps


def weights_of(model: gpt.GPTLMHead) -> list[Float[Tensor, "n_out n_in"]]:
    """Return the weights of all products of a step: those of the blocks, then the LM head's."""
    layers = [module for module in model.modules() if isinstance(module, gpt.Linear)]
    return [*(layer.weight.T for layer in layers), model.transformer.wte.weight]


@dataclass
class Runner:
    """A model and its cache. transformer: returns hidden states for ids, positions and cache."""

    transformer: Callable[..., Float[Tensor, "1 total n_embd"]]
    lm_head: Callable[..., Float[Tensor, "rows vocab"]]
    kv_cache: PackedCache

    @torch.inference_mode()
    def forward(
        self, batch: collections.abc.Sequence[Chunk]
    ) -> dict[int, Float[Tensor, "wanted vocab"]]:
        """Run all chunks in one pass; return the wanted logits of each request, by its number."""
        if not batch:
            return {}
        batch = sorted(batch, key=lambda chunk: chunk.shape)
        position_ids = self.kv_cache.select(batch)
        ids = [token for chunk in batch for token in chunk.ids]
        rows = torch.tensor([ids], device=position_ids.device), position_ids[None]
        hidden = self.transformer(*rows, self.kv_cache)[0]
        wanted, end = list[int](), 0  # rows of `hidden`
        for chunk in batch:
            end += len(chunk.ids)
            wanted += range(end - chunk.wanted, end)
        logits = self.lm_head(hidden[wanted]).split([chunk.wanted for chunk in batch])
        return {chunk.request: part for chunk, part in zip(batch, logits, strict=True)}
