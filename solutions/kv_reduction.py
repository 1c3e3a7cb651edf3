"""Lab 11: a smaller KV cache. Fewer heads, fewer tokens, fewer bits, or elsewhere.

The cache, not the weights, limits how many requests a server holds at a time. Until here no
technique changed a text. Most of this lab's do, so they promise something else: a reduced cache
computes exactly what the whole text would give under the same mask; where its budget is as large as
the text, nothing changes; and what is lost is told in bits per byte, beside the bytes saved.

Sources: Ainslie et al., "GQA", EMNLP 2023; Xiao et al., "Efficient streaming language models with
attention sinks", ICLR 2024; Zhang et al., "H2O: heavy-hitter oracle", NeurIPS 2023; Liu et al.,
"KIVI: a tuning-free asymmetric 2bit quantization for KV cache", ICML 2024.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gpt import GPTConfig
from solutions.disaggregation import pack_kv, unpack_kv
from solutions.kv_cache import causal_mask
from solutions.kv_variants.packed_rows import Codes, read_all, require_packable, require_recent
from solutions.paged_attention import PagedCache


def kv_bytes_per_token(
    config: GPTConfig, kv_heads: int, bits: int = 32, group: int | None = None
) -> float:
    """Bytes that one token takes in the cache, over all layers.

    The model has `kv_heads` heads of keys and of values; each number takes `bits`. Where they are
    codes, each `group` of them keeps two more numbers, of 16 bits each: a scale and a zero.
    """
    require_groups(config.n_head, kv_heads)
    ### BEGIN SOLUTION
    numbers = 2 * config.n_layer * kv_heads * config.head_dim  # keys and values
    metadata = 0 if group is None else 2 * 16 / group  # bits beside each number
    return numbers * (bits + metadata) / 8
    ### END SOLUTION


# ----------------------------------------------------------------------------------- fewer heads


def grouped_attention(
    queries: Float[Tensor, "batch heads q_len head_dim"],
    keys: Float[Tensor, "batch kv_heads k_len head_dim"],
    values: Float[Tensor, "batch kv_heads k_len head_dim"],
    mask: Bool[Tensor, "batch 1 q_len k_len"] | None,
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Attention in which several heads of queries share one head of keys and values.

    Neighbours do: where there are 8 and 2 heads, the first four share the first one. mask: True
    where a query sees a key; None where all see all. The tensors are left as they were.
    """
    require_groups(queries.shape[1], keys.shape[1])
    ### BEGIN SOLUTION
    groups = queries.unflatten(1, (keys.shape[1], -1))  # [batch, kv_heads, group, q_len, head_dim]
    attended = F.scaled_dot_product_attention(
        groups,
        keys.unsqueeze(2),
        values.unsqueeze(2),
        attn_mask=None if mask is None else mask.unsqueeze(2),
    )
    return attended.flatten(1, 2)
    ### END SOLUTION


def pool_heads(
    weight: Float[Tensor, "n_embd 3*n_embd"],
    bias: Float[Tensor, " 3*n_embd"],
    n_head: int,
    kv_heads: int,
) -> tuple[Float[Tensor, "n_embd columns"], Float[Tensor, " columns"]]:
    """`c_attn` with fewer heads of keys and values: each is the mean of those in its group.

    The columns are those of all queries, then of all keys, then of all values, head after head. The
    queries stay. Weight and bias come back as new tensors, [n_embd, (n_head + 2 * kv_heads) *
    head_dim] and one of that length. Source: Ainslie et al., section 2.1.
    """
    require_groups(n_head, kv_heads)
    ### BEGIN SOLUTION
    found = []
    for columns in (weight, bias):
        queries, *others = columns.chunk(3, dim=-1)  # others: keys, then values
        heads = [part.unflatten(-1, (kv_heads, n_head // kv_heads, -1)) for part in others]
        pooled = [part.mean(dim=-2).flatten(-2) for part in heads]  # over the heads of a group
        found.append(torch.cat([queries, *pooled], dim=-1))
    return found[0], found[1]
    ### END SOLUTION


def require_groups(n_head: int, kv_heads: int) -> None:
    if kv_heads < 1 or n_head % kv_heads:
        raise ValueError(
            f"{n_head} heads of queries can't be shared out evenly among {kv_heads} heads of keys "
            "and values. Take a number that divides them."
        )


# -------------------------------------------------------------------------- fewer tokens: a window


def window_mask(
    query_positions: Int[Tensor, "batch q_len"],
    key_positions: Int[Tensor, "batch k_len"],
    window: int,
    sinks: int,
) -> Bool[Tensor, "batch 1 q_len k_len"]:
    """Which keys each query may see (True): the last `window`, its own included, and the first.

    Of the first `sinks` tokens of the text a query sees all that don't come after it. Positions
    count from the beginning of the text, and are left as they were. Source: Xiao et al.
    """
    ### BEGIN SOLUTION
    keys = key_positions[:, None, None, :]
    distance = query_positions[:, None, :, None] - keys
    return (distance >= 0) & ((distance < window) | (keys < sinks))
    ### END SOLUTION


def join(held: Tensor | None, new: Tensor, dim: int) -> Tensor:
    """A new tensor: what is held, if there is anything, and the new behind it."""
    return new.clone() if held is None else torch.cat([held, new], dim=dim)


def bytes_of(*tensors: Tensor | None) -> int:
    """Bytes of memory that these keep alive. A slice keeps all of what it was cut from."""
    return sum(t.untyped_storage().nbytes() for t in tensors if t is not None)


class WindowCache:
    """The cache of a model that sees the first tokens and the last ones; the others are gone.

    keys, values: for each layer [batch, kv_heads, rows, head_dim], at most `sinks + window` rows.
    positions: for each layer [1, rows], where in the text the tokens of these rows stand. All of
    them are None before the first token. length: how many tokens the cache has seen.
    """

    def __init__(self, n_layer: int, window: int, sinks: int = 0) -> None:
        if n_layer < 1 or window < 1 or sinks < 0:
            raise ValueError(
                "A cache has one layer at least, and a token sees itself at least; n_layer is "
                f"{n_layer}, window {window} and sinks {sinks}."
            )
        self.window, self.sinks, self.length = window, sinks, 0
        self.keys: list[Any] = [None] * n_layer
        self.values: list[Any] = [None] * n_layer
        self.positions: list[Any] = [None] * n_layer

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "batch heads q_len head_dim"],
        keys: Float[Tensor, "batch kv_heads q_len head_dim"],
        values: Float[Tensor, "batch kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """Store the new tokens, attend as `window_mask` says, forget what no later token may see.

        A forward calls it once a layer, in order; `length` grows by q_len when the last layer has
        been served. What is forgotten is really gone: no tensor of the cache keeps its memory.
        """
        ### BEGIN SOLUTION
        start, end = self.length, self.length + queries.shape[2]
        new = torch.arange(start, end, device=queries.device).unsqueeze(0)
        positions = join(self.positions[layer], new, dim=1)
        all_keys = join(self.keys[layer], keys, dim=2)
        all_values = join(self.values[layer], values, dim=2)
        mask = window_mask(new, positions, self.window, self.sinks)
        attended = grouped_attention(queries, all_keys, all_values, mask)
        kept = window_mask(new[:, -1:] + 1, positions, self.window, self.sinks).flatten()
        self.positions[layer] = positions[:, kept]  # all that the next token may see
        self.keys[layer], self.values[layer] = all_keys[:, :, kept], all_values[:, :, kept]
        if layer == len(self.keys) - 1:
            self.length = end
        return attended
        ### END SOLUTION

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens. Raises ValueError, and changes nothing, where that can't be.

        Once the window has slid, rows are gone that an earlier token would see.
        """
        self.require_kept(n)
        for layer, positions in enumerate(self.positions):
            if positions is not None:
                first = positions[0] < n
                self.positions[layer] = positions[:, first]
                self.keys[layer] = self.keys[layer][:, :, first]
                self.values[layer] = self.values[layer][:, :, first]
        self.length = n

    def require_kept(self, n: int) -> None:
        """Refuse to go back to `n` tokens, with a ValueError, where that can't be."""
        require_length(n, self.length)
        has_slid = self.length >= self.sinks + self.window
        if has_slid and self.sinks < n < self.length:
            raise ValueError(
                f"The window has slid to token {self.length}, and token {n} would see rows that "
                f"are gone. Keep all {self.length} tokens, or at most the first {self.sinks}."
            )

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i of the cache what row `rows[i]` was, as beam search does."""
        self.keys = [kept[rows] for kept in self.keys]
        self.values = [kept[rows] for kept in self.values]

    @property
    def bytes_held(self) -> int:
        return bytes_of(*self.keys, *self.values, *self.positions)


def require_length(n: int, length: int) -> None:
    if not 0 <= n <= length:
        raise ValueError(f"The cache has seen {length} tokens; it cannot keep {n}.")


def require_all(n: int, length: int, why: str) -> None:
    """Refuse to go back at all."""
    require_length(n, length)
    if n < length:
        raise ValueError(
            f"This cache can't go back from {length} tokens to {n}: {why}. Make a new one."
        )


class PerLayer:
    """A cache of its own for every layer: a window in some of them, everything in others, say.

    caches: one for each layer, each of one layer.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches = list(caches)

    def attend(
        self, layer: int, *projected: Float[Tensor, "batch heads_of_each q_len head_dim"]
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """`projected` are queries, keys and values."""
        return self.caches[layer].attend(0, *projected)

    @property
    def length(self) -> int:
        return self.caches[-1].length

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens. Where one cache can't, all refuse, and nothing changes."""
        self.require_kept(n)
        for cache in self.caches:
            cache.truncate(n)

    def require_kept(self, n: int) -> None:
        for cache in self.caches:
            cache.require_kept(n)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        for cache in self.caches:
            cache.reorder(rows)

    @property
    def bytes_held(self) -> int:
        return sum(cache.bytes_held for cache in self.caches)


# ---------------------------------------------------------------- fewer tokens: those that matter


def keep_heavy(
    mass: Float[Tensor, "heads k_len"], budget: int, recent: int
) -> Int[Tensor, "heads budget"]:
    """The rows that each head keeps, in their order: the last `recent`, and the heaviest others.

    mass: the attention that each row has got so far, summed over all queries. `budget` rows are
    kept in all, by every head its own. Source: Zhang et al., algorithm 1.
    """
    if not 0 <= recent <= budget <= mass.shape[1] or budget < 1:
        raise ValueError(
            f"Of {mass.shape[1]} rows a head can keep 1 to all, and the recent ones are among "
            f"them; budget is {budget} and recent {recent}."
        )
    ### BEGIN SOLUTION
    heads, k_len = mass.shape
    older = k_len - recent
    heaviest = mass[:, :older].topk(budget - recent).indices.sort().values
    newest = torch.arange(older, k_len, device=mass.device).expand(heads, -1)
    return torch.cat([heaviest, newest], dim=1)
    ### END SOLUTION


def attention_weights(
    queries: Float[Tensor, "batch heads q_len head_dim"],
    keys: Float[Tensor, "batch kv_heads k_len head_dim"],
    mask: Bool[Tensor, "batch kv_heads q_len k_len"],
) -> Float[Tensor, "batch kv_heads group q_len k_len"]:
    """How much of each key each query takes; a kernel that is fused never writes them."""
    own = queries.unflatten(1, (keys.shape[1], -1))  # for each head of keys, those that share it
    scores = own @ keys.unsqueeze(2).transpose(3, 4) * keys.shape[3] ** -0.5
    return scores.masked_fill(~mask.unsqueeze(2), -torch.inf).softmax(dim=-1)


def take_rows(
    held: Float[Tensor, "batch heads rows *rest"], rows: Int[Tensor, "batch heads kept"]
) -> Float[Tensor, "batch heads kept *rest"]:
    """Of every head its own rows, as a new tensor."""
    batch, heads = (torch.arange(size, device=held.device) for size in held.shape[:2])
    return held[batch[:, None, None], heads[:, None], rows]


class HeavyCache:
    """The cache of a model in which every head keeps `budget` rows, those that `keep_heavy` names.

    held: for each layer keys and values, [batch, kv_heads, rows, head_dim]; mass and positions,
    [batch, kv_heads, rows]: how much attention each row has got, and where its token stands. All
    are None before the first token. Rows are given up behind each forward: a longer one sees more.
    """

    def __init__(self, n_layer: int, budget: int, recent: int) -> None:
        if n_layer < 1 or budget < 1 or not 0 <= recent <= budget:
            raise ValueError(
                "A cache has one layer and keeps one row at least, and the recent ones are among "
                f"them; n_layer is {n_layer}, budget {budget} and recent {recent}."
            )
        self.budget, self.recent, self.length = budget, recent, 0
        self.held: list[Any] = [(None, None, None, None)] * n_layer

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "batch heads q_len head_dim"],
        keys: Float[Tensor, "batch kv_heads q_len head_dim"],
        values: Float[Tensor, "batch kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        end = self.length + queries.shape[2]
        new = torch.arange(self.length, end, device=keys.device).expand(keys.shape[:3])
        arriving = keys, values, torch.zeros_like(keys[..., 0]), new
        joined = [join(*both, dim=2) for both in zip(self.held[layer], arriving, strict=True)]
        all_keys, all_values, mass, positions = joined
        mask = positions[:, :, None, :] <= new[:, :, :, None]
        weights = attention_weights(queries, all_keys, mask)
        mass += weights.sum(dim=(2, 3))  # of all queries that share the head
        if mass.shape[2] > self.budget:
            rows = torch.stack([keep_heavy(m, self.budget, self.recent) for m in mass])
            joined = [take_rows(held, rows) for held in joined]
        self.held[layer] = tuple(joined)
        if layer == len(self.held) - 1:
            self.length = end
        return (weights @ all_values.unsqueeze(2)).flatten(1, 2)

    def truncate(self, n: int) -> None:
        """Keep all tokens; any other `n` is refused with a ValueError."""
        self.require_kept(n)

    def require_kept(self, n: int) -> None:
        why = "what the others were attended with stays in the mass, and rows are gone for it"
        require_all(n, self.length, why)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i of the cache what row `rows[i]` was, as beam search does."""
        self.held = [tuple(kept[rows] for kept in held) for held in self.held]

    @property
    def bytes_held(self) -> int:
        return bytes_of(*(kept for held in self.held for kept in held))


# ------------------------------------------------------------------------------------- fewer bits


class ChannelKeys:
    """The keys of one layer in codes of few bits: channel by channel, `group` tokens at a time.

    A channel is one of the head_dim numbers of a head; its range over many tokens is narrow, where
    that of all channels of one token is wide. groups: each of `group` tokens, Codes of [batch,
    heads, head_dim, group]. waiting: [batch, heads, tokens, head_dim], in full precision: the last
    `recent` tokens and those whose group is not full; None before the first token.
    """

    def __init__(self, bits: int, group: int, recent: int) -> None:
        require_packable(group, bits)
        require_recent(recent)
        self.bits, self.group, self.recent = bits, group, recent
        self.groups: list[Codes] = []
        self.waiting: Any = None

    def append(self, keys: Float[Tensor, "batch heads new head_dim"]) -> None:
        """Add the keys of new tokens, however many.

        They wait. As soon as there are `group` of them beside the last `recent`, the oldest `group`
        become Codes, where each channel of each head has one scale and one zero; those are never
        touched again. Groups count from the text's first token, so what is kept doesn't depend on
        how a text is cut into calls. No tensor keeps the memory of keys that no longer wait.
        Source: Liu et al., section 3.
        """
        ### BEGIN SOLUTION
        waiting = join(self.waiting, keys, dim=2)
        while waiting.shape[2] >= self.group + self.recent:
            oldest, waiting = waiting[:, :, : self.group], waiting[:, :, self.group :]
            self.groups.append(Codes(oldest.transpose(2, 3), self.bits))
        self.waiting = waiting.clone()
        ### END SOLUTION

    def read(self) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The keys of all tokens: what the codes stand for, and those that wait."""
        if not self.groups:
            return self.waiting
        of_groups = read_all(self.groups).permute(1, 2, 0, 4, 3)  # channels last, as keys have them
        return torch.cat([of_groups.flatten(2, 3), self.waiting], dim=2)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self.waiting = self.waiting[rows]
        for codes in self.groups:
            codes.reorder(rows)

    @property
    def tensors(self) -> list[Any]:
        return [self.waiting, *(kept for codes in self.groups for kept in codes.tensors)]


class TokenValues:
    """The values of one layer: the last `recent` tokens' in full precision, the others' in codes.

    codes: of [batch, heads, tokens, head_dim], a scale and a zero for each token and head.
    """

    def __init__(self, bits: int, recent: int) -> None:
        require_recent(recent)
        self.bits, self.recent = bits, recent
        self.codes: Codes | None = None
        self.waiting: Any = None

    def append(self, values: Float[Tensor, "batch heads new head_dim"]) -> None:
        joined = join(self.waiting, values, dim=2)
        first_recent = max(0, joined.shape[2] - self.recent)
        older, self.waiting = joined[:, :, :first_recent], joined[:, :, first_recent:].clone()
        if first_recent:
            new = Codes(older, self.bits)
            if self.codes is None:
                self.codes = new
            else:
                self.codes.extend(new)

    def read(self) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The values of all tokens: what the codes stand for, and the recent ones."""
        return self.waiting if self.codes is None else join(self.codes.read(), self.waiting, dim=2)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self.waiting = self.waiting[rows]
        if self.codes is not None:
            self.codes.reorder(rows)

    @property
    def tensors(self) -> list[Any]:
        return [self.waiting, *(self.codes.tensors if self.codes else ())]


class QuantizedCache:
    """The cache of a model whose keys are ChannelKeys, and whose values are TokenValues (KIVI).

    New tokens are added first: what is attended to is what is kept.
    """

    def __init__(self, n_layer: int, bits: int, group: int, recent: int) -> None:
        self.keys = [ChannelKeys(bits, group, recent) for _ in range(n_layer)]
        self.values = [TokenValues(bits, recent) for _ in range(n_layer)]
        self.length = 0

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "batch heads q_len head_dim"],
        keys: Float[Tensor, "batch kv_heads q_len head_dim"],
        values: Float[Tensor, "batch kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        self.keys[layer].append(keys)
        self.values[layer].append(values)
        end = self.length + queries.shape[2]
        positions = torch.arange(end, device=queries.device).unsqueeze(0)
        mask = causal_mask(positions[:, self.length :], positions)
        if layer == len(self.keys) - 1:
            self.length = end
        read = self.keys[layer].read(), self.values[layer].read()
        return grouped_attention(queries, *read, mask)

    def truncate(self, n: int) -> None:
        """Keep all tokens; any other `n` is refused with a ValueError."""
        self.require_kept(n)

    def require_kept(self, n: int) -> None:
        require_all(n, self.length, "the range of those behind is in the codes of those before")

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i of the cache what row `rows[i]` was, as beam search does."""
        for part in self.parts:
            part.reorder(rows)

    @property
    def bytes_held(self) -> int:
        return bytes_of(*(kept for part in self.parts for kept in part.tensors))

    @property
    def parts(self) -> list[Any]:
        return [*self.keys, *self.values]


# -------------------------------------------------------------------------------------- elsewhere


class HostPool:
    """Keys and values of requests whose blocks others have now.

    store: by request, [2, layers, tokens, heads, head_dim], keys first: a dict in memory, or what
    acts like one and keeps them in files.
    """

    def __init__(self, store: MutableMapping[int, Tensor] | None = None) -> None:
        self.store = {} if store is None else store

    def swap_out(self, cache: PagedCache, request_id: int) -> None:
        """Keep a request's keys and values here, and give its blocks back.

        They are a copy: who gets the blocks next doesn't change it. It has as many tokens as the
        request, however many slots its blocks have. Blocks that others hold too stay theirs.
        """
        cache.manager.require_known(request_id)
        ### BEGIN SOLUTION
        manager = cache.manager
        table, length = manager.tables[request_id], manager.lengths[request_id]
        self.store[request_id] = pack_kv(cache.pool, table, 0, length)
        cache.free(request_id)
        ### END SOLUTION

    def swap_in(self, cache: PagedCache, request_id: int) -> None:
        """Give a request blocks again, whichever are free, and put its keys and values into them.

        They are not kept here any longer. Raises OutOfBlocks, and changes nothing, where the pool
        has too few.
        """
        if request_id not in self.store:
            raise ValueError(f"Request {request_id} was not swapped out, or is back already.")
        ### BEGIN SOLUTION
        kv = self.store[request_id]
        cache.manager.allocate(request_id, kv.shape[2])
        unpack_kv(cache.pool, cache.manager.tables[request_id], 0, kv)
        del self.store[request_id]
        ### END SOLUTION

    def forget(self, request_id: int) -> None:
        """A request that is here, or isn't, has ended."""
        self.store.pop(request_id, None)
