"""Lab 11: a smaller KV cache: fewer heads, fewer tokens, fewer bits, or another memory.

The KV cache, not the weights, limits how many requests a server can hold at a time. Most techniques
in this lab change the output, so they promise something else: a reduced cache computes exactly what
the whole text gives under the same mask; a cache whose budget is as large as the text changes
nothing; and the loss is measured in bits per byte and reported together with the bytes saved.

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
    """Return the bytes that one token takes in the KV cache, over all layers.

    The model has `kv_heads` KV heads, and each number takes `bits`. If `group` is given, the
    numbers are codes, and every `group` of them shares a scale and a zero of 16 bits each. A group
    may go on in the next token, so a token takes its share of them, to a fraction of a byte. Raises
    ValueError if `kv_heads` doesn't divide the number of query heads.
    """
    require_groups(config.n_head, kv_heads)
    ### BEGIN SOLUTION
    numbers = 2 * config.n_layer * kv_heads * config.head_dim  # keys and values
    metadata = 0 if group is None else 2 * 16 / group  # bits per number, for its share
    return numbers * (bits + metadata) / 8
    ### END SOLUTION


# ----------------------------------------------------------------------------------- fewer heads


def grouped_attention(
    queries: Float[Tensor, "batch heads q_len head_dim"],
    keys: Float[Tensor, "batch kv_heads k_len head_dim"],
    values: Float[Tensor, "batch kv_heads k_len head_dim"],
    mask: Bool[Tensor, "batch 1 q_len k_len"] | None,
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Compute attention in which several query heads share one KV head.

    Neighboring query heads form a group: of 8 query heads and 2 KV heads, the first four query
    heads use the first KV head. mask: True where a query sees a key; None if every query sees every
    key. Don't change the inputs. Raises ValueError if the KV heads don't divide the query heads.
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
    """Reduce `c_attn` to `kv_heads` KV heads: each is the mean of the heads in its group.

    The columns hold all queries, then all keys, then all values, head after head. The queries stay
    as they are. Return a new weight, [n_embd, (n_head + 2 * kv_heads) * head_dim], and a new bias
    with as many numbers as the weight has columns. Groups are neighbors, as in `grouped_attention`.
    Source: Ainslie et al., section 2.1.
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
    """Raise ValueError if the query heads can't be divided evenly among the KV heads."""
    if kv_heads < 1 or n_head % kv_heads:
        raise ValueError(
            f"{n_head} query heads can't be divided evenly among {kv_heads} KV heads. Choose a "
            f"number of KV heads that divides {n_head}."
        )


# -------------------------------------------------------------------------- fewer tokens: a window


def window_mask(
    query_positions: Int[Tensor, "batch q_len"],
    key_positions: Int[Tensor, "batch k_len"],
    window: int,
    sinks: int,
) -> Bool[Tensor, "batch 1 q_len k_len"]:
    """Return which keys each query sees (True): those of the last `window` positions and the sinks.

    The query's own position counts as one of the `window`. Of the first `sinks` tokens of the text,
    a query sees those that don't come after it. Positions count from the beginning of the text;
    keys may be in any order, and some may be missing. Don't change the inputs. Source: Xiao et al.
    """
    ### BEGIN SOLUTION
    keys = key_positions[:, None, None, :]
    distance = query_positions[:, None, :, None] - keys
    return (distance >= 0) & ((distance < window) | (keys < sinks))
    ### END SOLUTION


def join(held: Tensor | None, new: Tensor, dim: int) -> Tensor:
    """Return a new tensor: the rows held so far (None: no rows yet), then the new ones."""
    return new.clone() if held is None else torch.cat([held, new], dim=dim)


def bytes_of(*tensors: Tensor | None) -> int:
    """Return the bytes that tensors keep in memory. A slice keeps the whole tensor behind it."""
    return sum(t.untyped_storage().nbytes() for t in tensors if t is not None)


class WindowCache:
    """A cache that keeps the first `sinks` tokens and the last `window`, and frees all others.

    keys, values: one tensor per layer, [batch, kv_heads, rows, head_dim], with at most
    `sinks + window` rows. positions: one tensor of integers per layer, [1, rows], with the position
    in the text of each row. All three are None before the first token. length: the number of tokens
    the cache has seen, including those it no longer holds.
    """

    def __init__(self, n_layer: int, window: int, sinks: int = 0) -> None:
        if n_layer < 1 or window < 1 or sinks < 0:
            raise ValueError(
                "A window cache needs n_layer and window of at least 1 (a token sees itself), and "
                f"sinks of at least 0; n_layer is {n_layer}, window {window} and sinks {sinks}."
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
        """Add the new tokens, attend under `window_mask`, then free the rows no later token sees.

        A forward pass calls this once per layer, in order; add q_len to `length` in the last layer.
        After the call at most `sinks + window` rows stay in memory (one row more than the next
        token sees): the cache must keep neither the tensors it was given nor views of longer ones.
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
        """Keep the first `n` tokens.

        Raises ValueError, and changes nothing, if rows that token `n` would see are gone.
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
        """Raise ValueError if the cache can't go back to `n` tokens."""
        require_length(n, self.length)
        has_slid = self.length >= self.sinks + self.window
        if has_slid and self.sinks < n < self.length:
            raise ValueError(
                f"The cache has seen {self.length} tokens, and rows that token {n} would see are "
                f"gone. Keep all {self.length} tokens, or at most the first {self.sinks}."
            )

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i of the cache what row `rows[i]` was, as beam search does."""
        self.keys = [kept[rows] for kept in self.keys]
        self.values = [kept[rows] for kept in self.values]

    @property
    def bytes_held(self) -> int:
        return bytes_of(*self.keys, *self.values, *self.positions)


def require_length(n: int, length: int) -> None:
    """Raise ValueError if a cache that has seen `length` tokens can't keep `n` of them."""
    if not 0 <= n <= length:
        raise ValueError(f"The cache has seen {length} tokens; it cannot keep {n}.")


def require_all(n: int, length: int, why: str) -> None:
    """Raise ValueError unless all `length` tokens are kept; `why` completes the sentence."""
    require_length(n, length)
    if n < length:
        raise ValueError(
            f"This cache can't go back from {length} tokens to {n}: {why}. Make a new one."
        )


class PerLayer:
    """A separate cache for each layer, for example a window in some layers and all rows in others.

    caches: one per layer, each made for a single layer.
    """

    def __init__(self, caches: Sequence[Any]) -> None:
        self.caches = list(caches)

    def attend(
        self, layer: int, *projected: Float[Tensor, "batch heads_of_each q_len head_dim"]
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """Attend in one layer. projected: its queries, keys and values."""
        return self.caches[layer].attend(0, *projected)

    @property
    def length(self) -> int:
        return self.caches[-1].length

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens. Raises ValueError, and changes nothing, if a layer can't."""
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
    """Return the rows each head keeps, in ascending order: the last `recent` and the heaviest.

    mass: the attention each row has received so far, summed over all queries. Each head chooses
    from its own masses and keeps exactly `budget` rows, the recent ones included; of rows with
    equal mass, either may be kept. Don't change `mass`. Source: Zhang et al., algorithm 1.
    """
    if not 0 <= recent <= budget <= mass.shape[1] or budget < 1:
        raise ValueError(
            f"A head can keep 1 to {mass.shape[1]} of its {mass.shape[1]} rows, the recent ones "
            f"included; budget is {budget} and recent is {recent}."
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
    """Return the attention weights themselves, which a fused kernel never writes to memory."""
    own = queries.unflatten(1, (keys.shape[1], -1))  # the query heads of each KV head
    scores = own @ keys.unsqueeze(2).transpose(3, 4) * keys.shape[3] ** -0.5
    return scores.masked_fill(~mask.unsqueeze(2), -torch.inf).softmax(dim=-1)


def take_rows(
    held: Float[Tensor, "batch heads rows *rest"], rows: Int[Tensor, "batch heads kept"]
) -> Float[Tensor, "batch heads kept *rest"]:
    """Return a new tensor with the given rows of each head."""
    batch, heads = (torch.arange(size, device=held.device) for size in held.shape[:2])
    return held[batch[:, None, None], heads[:, None], rows]


class HeavyCache:
    """A cache in which each KV head keeps `budget` rows, those that `keep_heavy` chooses.

    held: one tuple per layer: keys and values, [batch, kv_heads, rows, head_dim], then mass and
    positions, [batch, kv_heads, rows]: the attention each row has received, and its position in the
    text. All are None before the first token. Rows are freed after attention, so the queries of a
    long chunk see more than `budget` rows.
    """

    def __init__(self, n_layer: int, budget: int, recent: int) -> None:
        if n_layer < 1 or budget < 1 or not 0 <= recent <= budget:
            raise ValueError(
                "A heavy cache needs n_layer and budget of at least 1, and recent from 0 to budget;"
                f" n_layer is {n_layer}, budget {budget} and recent {recent}."
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
        mass += weights.sum(dim=(2, 3))  # over all queries that share the KV head
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
        why = "the later tokens have already added to the masses, and rows have been freed"
        require_all(n, self.length, why)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Make row i of the cache what row `rows[i]` was, as beam search does."""
        self.held = [tuple(kept[rows] for kept in held) for held in self.held]

    @property
    def bytes_held(self) -> int:
        return bytes_of(*(kept for held in self.held for kept in held))


# ------------------------------------------------------------------------------------- fewer bits


class ChannelKeys:
    """The keys of one layer as codes of a few bits, quantized by channel, `group` tokens at a time.

    A channel is one of the head_dim numbers of a head. Over many tokens a channel has a narrow
    range; across the channels of one token the range is wide. groups: a list of Codes of
    [batch, heads, head_dim, group], in the order of the text. waiting: [batch, heads, tokens,
    head_dim], the keys still in full precision: the last `recent` tokens and those before them
    whose group is not full yet; None before the first token.
    """

    def __init__(self, bits: int, group: int, recent: int) -> None:
        require_packable(group, bits)
        require_recent(recent)
        self.bits, self.group, self.recent = bits, group, recent
        self.groups: list[Codes] = []
        self.waiting: Any = None

    def append(self, keys: Float[Tensor, "batch heads new head_dim"]) -> None:
        """Add the keys of one or more new tokens.

        New keys wait in `waiting`. As soon as `group` keys wait in addition to the last `recent`,
        turn the oldest `group` into Codes with one scale and one zero for each channel of each
        head, and never touch these again. Groups count from the first token of the text, so the
        result doesn't depend on how the text is split into calls. `waiting` must not be a view of
        the tensor that was given or of a longer one. Source: Liu et al., section 3.
        """
        ### BEGIN SOLUTION
        waiting = join(self.waiting, keys, dim=2)
        while waiting.shape[2] >= self.group + self.recent:
            oldest, waiting = waiting[:, :, : self.group], waiting[:, :, self.group :]
            self.groups.append(Codes(oldest.transpose(2, 3), self.bits))
        self.waiting = waiting.clone()
        ### END SOLUTION

    def read(self) -> Float[Tensor, "batch heads tokens head_dim"]:
        """Return the keys of all tokens: those decoded from the groups, then the waiting ones."""
        if not self.groups:
            return self.waiting
        of_groups = read_all(self.groups).permute(1, 2, 0, 4, 3)  # channels last again
        return torch.cat([of_groups.flatten(2, 3), self.waiting], dim=2)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self.waiting = self.waiting[rows]
        for codes in self.groups:
            codes.reorder(rows)

    @property
    def tensors(self) -> list[Any]:
        return [self.waiting, *(kept for codes in self.groups for kept in codes.tensors)]


class TokenValues:
    """The values of one layer: the last `recent` tokens in full precision, the others as codes.

    codes: Codes of [batch, heads, tokens, head_dim], with a scale and a zero per token and head.
    waiting: [batch, heads, tokens, head_dim], the values of the recent tokens.
    """

    def __init__(self, bits: int, recent: int) -> None:
        require_recent(recent)
        self.bits, self.recent = bits, recent
        self.codes: Codes | None = None
        self.waiting: Any = None

    def append(self, values: Float[Tensor, "batch heads new head_dim"]) -> None:
        """Add the values of new tokens; quantize those that are no longer recent."""
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
        """Return the values of all tokens: those decoded from codes, then the recent ones."""
        return self.waiting if self.codes is None else join(self.codes.read(), self.waiting, dim=2)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self.waiting = self.waiting[rows]
        if self.codes is not None:
            self.codes.reorder(rows)

    @property
    def tensors(self) -> list[Any]:
        return [self.waiting, *(self.codes.tensors if self.codes else ())]


class QuantizedCache:
    """A cache that keeps keys as ChannelKeys and values as TokenValues (KIVI).

    New tokens are added before attention, so queries attend to what the cache really holds.
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
        require_all(n, self.length, "later tokens have already set the scales of earlier ones")

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


# --------------------------------------------------------------------------------- another memory


class HostPool:
    """Keys and values of requests that have been swapped out and hold no blocks.

    store: request id to a tensor [2, layers, tokens, heads, head_dim], keys first. A dict in
    memory, or a mapping that keeps its tensors in files.
    """

    def __init__(self, store: MutableMapping[int, Tensor] | None = None) -> None:
        self.store = {} if store is None else store

    def swap_out(self, cache: PagedCache, request_id: int) -> None:
        """Copy a request's keys and values into the store, then free its blocks.

        The copy holds exactly the request's tokens, without the unused slots of its last block. It
        must not change when another request gets the blocks. Shared blocks stay with the other
        requests that hold them. Raises ValueError for a request that holds no blocks.
        """
        cache.manager.require_known(request_id)
        ### BEGIN SOLUTION
        manager = cache.manager
        table, length = manager.tables[request_id], manager.lengths[request_id]
        self.store[request_id] = pack_kv(cache.pool, table, 0, length)
        cache.free(request_id)
        ### END SOLUTION

    def swap_in(self, cache: PagedCache, request_id: int) -> None:
        """Allocate blocks for a request again, copy its keys and values back, and drop the copy.

        It gets whichever blocks are free. Raises OutOfBlocks, and changes nothing, if too few are
        free, and ValueError if the request is not in the store.
        """
        if request_id not in self.store:
            raise ValueError(f"Request {request_id} is not swapped out.")
        ### BEGIN SOLUTION
        kv = self.store[request_id]
        cache.manager.allocate(request_id, kv.shape[2])
        unpack_kv(cache.pool, cache.manager.tables[request_id], 0, kv)
        del self.store[request_id]
        ### END SOLUTION

    def forget(self, request_id: int) -> None:
        """Drop the copy of a request that has ended, if there is one."""
        self.store.pop(request_id, None)
