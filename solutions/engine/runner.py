"""The engine, part four: one packed forward pass for all scheduled tokens.

The new tokens of all requests are concatenated in one row, [1, total], with a row of positions of
the same shape, so every weight is read once for all of them. Only attention, where a token sees its
own request alone, runs in groups: requests with equally many new tokens together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import gpt
from solutions.engine.products import PRODUCTS, USUAL, Choice, Linear, Products, head_of, weights_of
from solutions.engine.watcher import Watcher
from solutions.kv_cache import CachedLMHead, causal_mask
from solutions.paged_attention import PagedCache, slot_mapping

# Bytes of keys and values in one layer that are served together, with the padding: what is gathered
# is read from a cache of the processor then, several times as fast as from memory.
ROOM = 8 * 2**20

KeysAndValues = tuple[Tensor, Tensor]


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
        """Its number of new tokens, and of all tokens with them."""
        return len(self.ids), self.start + len(self.ids)


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


def in_rectangles(batch: Sequence[Chunk], most: int) -> Iterator[list[Chunk]]:
    """Cut chunks, which are sorted by shape, where the number of new tokens changes, and where the
    rectangle would have more than `most` tokens.
    """
    together: list[Chunk] = []
    for chunk in batch:
        size, length = chunk.shape  # the longest so far: all are padded to it
        if together and (len(together[0].ids) != size or (len(together) + 1) * length > most):
            yield together
            together = []
        together.append(chunk)
    yield together


class PackedCache:
    """Serves a packed row with any cache of lab 4, one rectangle after the other."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache, self.manager = cache, cache.manager
        self.rectangles: list[Rectangle] = []

    def select(self, batch: Sequence[Chunk]) -> Int[Tensor, " total"]:
        """Prepare the next forward pass for these chunks, which are sorted by shape.

        Returns the positions of the new tokens, as position ids for the model.
        """
        self.rectangles, start = [], 0
        bytes_per_token = self.cache.pool[:, 0, 0, 0].nbytes  # in one layer
        for chunks in in_rectangles(batch, ROOM // bytes_per_token):
            self.rectangles.append(self.rectangle(chunks, start))
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
        (queries, keys, values), cache = rows, self.cache
        # To a KV head, the queries of its query heads are just more queries (lab 20).
        group = queries.shape[1] // keys.shape[1]
        folded = queries.reshape(*keys.shape[:2], -1, keys.shape[3])
        cache.selected = folded.shape[0], folded.shape[2], layer
        cache.new_slots, cache.all_slots = part.new_slots, part.places
        cache.mask = part.mask.expand(-1, group, -1, -1).flatten(1, 2)[:, None]  # no copy for one
        return cache.attend(layer, folded, keys, values).reshape(queries.shape)


class FastCache(PackedCache):
    """The same result with fewer operations and copies, for the reference's cache of lab 4.

    A single request in consecutive blocks is read without a copy. For other requests whole blocks
    are gathered, which are long runs of memory, and always into the same memory: a fresh one would
    cost more than the copy itself.
    """

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        # views of the pool, [2, layers, 1, heads, slots, head_dim], keys first
        self.slots = cache.pool.flatten(2, 3).transpose(2, 3)[:, :, None]
        self.layers = by_layer(self.slots)
        self.copies = cache.pool[:, 0, :0]  # [2, blocks, block_size, heads, head_dim]

    def select(self, batch: Sequence[Chunk]) -> Int[Tensor, " total"]:
        positions = super().select(batch)
        self.new_slots = torch.cat([part.new_slots.flatten() for part in self.rectangles])
        self.sizes = [part.positions.numel() for part in self.rectangles]
        return positions

    def places(self, block_tables: Tensor, every: Tensor) -> Any:
        """Return keys and values by layer for one row in consecutive blocks; else all blocks."""
        (table, *others), block_size = block_tables.tolist(), self.manager.block_size
        if not others and table == list(range(table[0], table[0] + len(table))):
            start = table[0] * block_size
            return by_layer(self.slots[..., start : start + every.numel(), :])
        return block_tables.flatten()

    def mask(self, new: Tensor, every: Tensor) -> Tensor | None:
        """Return the mask as numbers to add to the scores, so no layer has to convert it."""
        seen = causal_mask(new, every)
        if seen.all():
            return None
        return self.cache.pool.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)

    def attend(
        self, layer: int, *packed: Float[Tensor, "1 heads total head_dim"]
    ) -> Float[Tensor, "1 heads total head_dim"]:
        queries, *new = packed
        for stored, part in zip(self.layers[layer], new, strict=True):  # keys, then values
            stored.index_copy_(2, self.new_slots, part)
        parts = zip(self.rectangles, queries.split(self.sizes, dim=2), strict=True)
        attended = [self.attend_part(layer, part, its) for part, its in parts]
        return attended[0] if len(attended) == 1 else torch.cat(attended, dim=2)

    def attend_part(
        self, layer: int, part: Rectangle, queries: Float[Tensor, "1 heads tokens head_dim"]
    ) -> Float[Tensor, "1 heads tokens head_dim"]:
        _, heads, _, head_dim = queries.shape
        rows = queries.view(heads, *part.positions.shape, head_dim).transpose(0, 1)
        attended = F.scaled_dot_product_attention(
            rows, *self.read(layer, part), part.mask, enable_gqa=True
        )
        return attended.transpose(0, 1).reshape(queries.shape)

    def read(self, layer: int, part: Rectangle) -> KeysAndValues:
        """Return all keys and values of a rectangle, each [rows, heads, length, head_dim]."""
        if isinstance(part.places, list):
            return part.places[layer]
        blocks = part.places
        if len(blocks) > self.copies.shape[1]:
            self.copies = self.cache.pool.new_empty(2, len(blocks), *self.copies.shape[2:])
        copies = self.copies[:, : len(blocks)]
        for pool, copy in zip(self.cache.pool[:, layer], copies, strict=True):
            torch.index_select(pool, 0, blocks, out=copy)
        slots = copies.flatten(1, 2).unflatten(1, (len(part.positions), -1))
        all_keys, all_values = slots[:, :, : part.length].transpose(2, 3)
        return all_keys, all_values


def by_layer(both: Float[Tensor, "2 layers ..."]) -> list[KeysAndValues]:
    """Return the keys and the values of each layer."""
    return list(zip(*(part.unbind() for part in both.unbind()), strict=True))


class FusedTransformer:
    """Computes a GPT-2's hidden states with fewer operations, on the model's own weights.

    It calls no modules and doesn't check the ids: the engine has checked them in `submit`.
    """

    def __init__(self, model: CachedLMHead, choice: Choice = USUAL) -> None:
        def linear_of(module: Any) -> Any:
            if hasattr(module, "product"):
                return module.product()
            is_usual = isinstance(module, gpt.Linear)
            return Linear(module.weight.T, module.bias, choice) if is_usual else module

        self.config: Any = model.config
        transformer: Any = model.transformer
        embeddings = "wte", "wpe"
        self.embeddings = [getattr(transformer, e) for e in embeddings if hasattr(transformer, e)]
        self.last_norm = self.norm_of(transformer.ln_f)
        self.layers = [
            (
                *(self.norm_of(block.ln_1), linear_of(block.attn.c_attn)),
                *(linear_of(block.attn.c_proj), self.norm_of(block.ln_2)),
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

    @staticmethod
    def norm_of(module: Any) -> tuple[Any, ...]:
        """Return the arguments of the norm's function after its input."""
        return module.normalized_shape, module.weight, module.bias, module.eps


@dataclass
class Runner:
    """A model and its cache. transformer: returns hidden states for ids, positions and cache."""

    transformer: Callable[..., Float[Tensor, "1 total n_embd"]]
    lm_head: Callable[..., Float[Tensor, "rows vocab"]]
    kv_cache: PackedCache
    watcher: Watcher = field(default_factory=Watcher)

    @torch.inference_mode()
    def forward(self, batch: Sequence[Chunk]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        """Run all chunks in one pass; return the wanted logits of each request, by its number."""
        if not batch:
            return {}
        batch = sorted(batch, key=lambda chunk: chunk.shape)
        position_ids = self.kv_cache.select(batch)
        ids = [token for chunk in batch for token in chunk.ids]
        rows = torch.tensor([ids], device=position_ids.device), position_ids[None]
        hidden = self.transformer(*rows, self.kv_cache)[0]
        self.watcher.computed(batch, hidden)
        wanted, end = list[int](), 0  # rows of `hidden`
        for chunk in batch:
            end += len(chunk.ids)
            wanted += range(end - chunk.wanted, end)
        logits = self.lm_head(hidden[wanted]).split([chunk.wanted for chunk in batch])
        return {chunk.request: part for chunk, part in zip(batch, logits, strict=True)}


def new_runner(model: CachedLMHead, kv_cache: PackedCache, products: Products = PRODUCTS) -> Runner:
    """Return a runner for this model. With a FastCache it takes a path with fewer operations.

    Layers that have a `product` bring their own, and a model may have its own LM head (lab 10). A
    model of another family says what that path is (lab 20).
    """
    choice = products.choice_for(weights_of(model))
    lm_head = getattr(model, "lm_head", None) or Linear(head_of(model), choice=choice)
    is_gpt2 = isinstance(model.transformer, gpt.GPTModel)
    fused = FusedTransformer if is_gpt2 else getattr(model.transformer, "fused", None)
    if fused is not None and isinstance(kv_cache, FastCache):
        return Runner(fused(model, choice), lm_head, kv_cache)
    return Runner(model.transformer, lm_head, kv_cache)
