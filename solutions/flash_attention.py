"""Lab 12: FlashAttention. Exact attention that never holds the table of scores.

A softmax seems to need all scores of a query at once. It doesn't: a running maximum, a running sum
and a running weighted sum of values are enough, tile by tile. So the scores stay in fast memory,
and there is less traffic with slow memory. With the same state, many workers can share one query,
attention can read the blocks of a paged cache without a copy, and gradients need little memory.

Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", NeurIPS 2022; Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding for
long-context inference", 2023.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from solutions.kernels.slow_memory import Memory
from solutions.kv_variants.grouped_model import store_new
from solutions.paged_attention import PagedCache

# ------------------------------------------------------------------------ the naive way, and counts


def require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be 1 or more, not {size}.")


def hide_later_keys(
    scores: Float[Tensor, "... queries keys"], offset: int
) -> Float[Tensor, "... queries keys"]:
    """Return the scores of a tile with −inf where a query may not see a key.

    Query i of the tile sees the tile's keys 0 to i + offset, including the last one.
    """
    queries, keys = scores.shape[-2:]
    if offset >= keys - 1:
        return scores
    seen = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).tril(offset)
    return scores.masked_fill(~seen, -torch.inf)


def naive_attention(memory: Memory, q_len: int, k_len: int, head_dim: int) -> None:
    """Compute causal attention in three steps. Each reads what the step before has written."""
    queries, keys = memory.load("queries", 0, q_len), memory.load("keys", 0, k_len)
    scores = hide_later_keys(queries @ keys.mT / head_dim**0.5, k_len - q_len)
    memory.store("scores", 0, scores)
    memory.store("weights", 0, memory.load("scores", 0, q_len).softmax(dim=-1))
    weights, values = memory.load("weights", 0, q_len), memory.load("values", 0, k_len)
    memory.store("output", 0, weights @ values)


def count_traffic(
    q_len: int, k_len: int, head_dim: int, block_q: int, block_k: int
) -> tuple[int, int]:
    """Return how many numbers causal attention moves for one head: the naive way, and in tiles.

    The naive way reads queries and keys, writes the scores, reads them, writes the weights, reads
    them and the values, and writes the output. In tiles, each tile of `block_q` queries is read
    once. For each of them, those tiles of `block_k` keys and values are read of which at least one
    query sees a key. The output is written once, and one more number per query. Tiles are read
    whole; the last tile of queries or keys may be shorter. The queries are the last of the k_len
    tokens, and there may be more queries than keys. Source: Dao et al. 2022, section 3.2.
    """
    require_positive(q_len=q_len, k_len=k_len, block_q=block_q, block_k=block_k)
    ### BEGIN SOLUTION
    naive = 2 * (q_len + k_len) * head_dim + 4 * q_len * k_len
    tiled = q_len * (2 * head_dim + 1)
    for start in range(0, q_len, block_q):
        visible = max(min(start + block_q, q_len) + k_len - q_len, 0)
        tiles = -(-visible // block_k)
        tiled += 2 * head_dim * min(tiles * block_k, k_len)
    return naive, tiled
    ### END SOLUTION


# ------------------------------------------------------------------------------ the running softmax


class State(NamedTuple):
    """What each query keeps of the keys that it has seen so far.

    peak: its highest score. total: the sum of exp(score − peak). weighted: the sum of
    exp(score − peak) * value. Before the first key they are −inf, 0 and 0.
    """

    peak: Float[Tensor, "... queries"]
    total: Float[Tensor, "... queries"]
    weighted: Float[Tensor, "... queries head_dim"]


def empty_state(queries: Float[Tensor, "... queries head_dim"]) -> State:
    """Return the state of queries that have seen no key yet."""
    weighted = torch.zeros_like(queries)
    return State(torch.full_like(weighted[..., 0], -torch.inf), weighted[..., 0].clone(), weighted)


def exp_minus(
    numbers: Float[Tensor, "*#shape"], level: Float[Tensor, "*#shape"]
) -> Float[Tensor, "*#shape"]:
    """Return exp(numbers − level), but 0 where both are −inf; the two shapes may broadcast."""
    return torch.exp(numbers - level.masked_fill(level == -torch.inf, 0))


def absorb(
    state: State,
    scores: Float[Tensor, "... queries keys"],
    values: Float[Tensor, "... keys head_dim"],
) -> State:
    """Return the `State` after one more tile of keys, which has at least one key.

    A key that a query may not see has the score −inf. The final state doesn't depend on the tiles
    or on their order. The given state stays as it is.
    Source: Dao 2023, section 3.1.
    """
    ### BEGIN SOLUTION
    peak = torch.maximum(state.peak, scores.amax(dim=-1))
    kept = exp_minus(state.peak, peak)
    weights = exp_minus(scores, peak[..., None])
    total = state.total * kept + weights.sum(dim=-1)
    weighted = state.weighted * kept[..., None] + weights @ values
    return State(peak, total, weighted)
    ### END SOLUTION


def finish(
    state: State,
) -> tuple[Float[Tensor, "... queries head_dim"], Float[Tensor, "... queries"]]:
    """Return output and lse: the attention, and the logarithm of the sum of exp(score).

    A query that has seen no key gets 0 and −inf. All others have a total of 1 or more, because the
    key with the highest score adds exp(0).
    """
    return state.weighted / state.total.clamp(min=1)[..., None], state.peak + state.total.log()


def online_steps(scores: Float[Tensor, " keys"], block_k: int) -> Iterator[State]:
    """Yield the state of one query after each tile, for a picture.

    The values are the rows of an identity matrix, so `weighted` holds the weight of each key.
    """
    state, one_hot = empty_state(scores[None]), torch.eye(len(scores), dtype=scores.dtype)
    for start in range(0, len(scores), block_k):
        end = start + block_k
        state = absorb(state, scores[None, start:end], one_hot[start:end])
        yield state


# ------------------------------------------------------------------------------------- tile by tile


def flash_attention(
    memory: Memory, q_len: int, k_len: int, head_dim: int, block_q: int, block_k: int
) -> None:
    """Compute causal attention in tiles, from slow memory to slow memory, without storing scores.

    Load "queries" in tiles of `block_q`, and "keys" and "values" in tiles of `block_k` tokens, each
    [..., tokens, head_dim]. Store "output" and "lse" as `finish` returns them. The queries are the
    last q_len of the k_len tokens, and each sees the keys up to its own position; if there are more
    queries than keys, the first ones see nothing. Scores are divided by sqrt(head_dim). Move no
    more numbers than `count_traffic` says, and hold one tile of each at a time.
    Source: Dao 2023, algorithm 1.
    """
    require_positive(q_len=q_len, k_len=k_len, block_q=block_q, block_k=block_k)
    ### BEGIN SOLUTION
    before = k_len - q_len
    for start in range(0, q_len, block_q):
        end = min(start + block_q, q_len)
        queries = memory.load("queries", start, end) / head_dim**0.5
        state = empty_state(queries)
        for first in range(0, before + end, block_k):
            last = min(first + block_k, k_len)
            scores = queries @ memory.load("keys", first, last).mT
            scores = hide_later_keys(scores, before + start - first)
            state = absorb(state, scores, memory.load("values", first, last))
        output, lse = finish(state)
        memory.store("output", start, output)
        memory.store("lse", start, lse)
    ### END SOLUTION


def attend_in_tiles(
    queries: Float[Tensor, "... q_len head_dim"],
    keys: Float[Tensor, "... k_len head_dim"],
    values: Float[Tensor, "... k_len head_dim"],
    block_q: int,
    block_k: int,
) -> tuple[Float[Tensor, "... q_len head_dim"], Float[Tensor, "... q_len"]]:
    """Run `flash_attention` on tensors, all heads at once; return output and lse."""
    memory = Memory(queries, keys, values)
    sizes = queries.shape[-2], keys.shape[-2], queries.shape[-1]
    flash_attention(memory, *sizes, block_q, block_k)
    return memory.result("output"), memory.result("lse")


# ------------------------------------------------------------------------------- parts, and merging

Part = tuple[Float[Tensor, "heads head_dim"], Float[Tensor, " heads"]]  # output and lse


def merge(
    outputs: Float[Tensor, "parts ... head_dim"], lses: Float[Tensor, "parts ..."]
) -> tuple[Float[Tensor, "... head_dim"], Float[Tensor, "..."]]:
    """Return output and lse over all keys, from the outputs and lses over parts of the keys.

    A part that saw no key has the lse −inf and weight 0, and its output may be any finite numbers.
    Where no part saw a key, the output is 0 and the lse is −inf. Don't change the inputs. Source:
    FlashInfer's documentation, "Cascade inference".
    """
    ### BEGIN SOLUTION
    lse = lses.logsumexp(dim=0)
    weights = exp_minus(lses, lse)
    return (weights[..., None] * outputs).sum(dim=0), lse
    ### END SOLUTION


def with_sink(
    output: Float[Tensor, "... head_dim"], lse: Float[Tensor, "..."], sink: Float[Tensor, "..."]
) -> tuple[Float[Tensor, "... head_dim"], Float[Tensor, "..."]]:
    """Return output and lse with a sink: one more key, with the score `sink` and a value of 0.

    gpt-oss learns one sink per head: `sink` is [heads, 1] if lse is [heads, q_len].
    """
    outputs = torch.stack([output, torch.zeros_like(output)])
    return merge(outputs, torch.stack([lse, sink.expand_as(lse)]))


def attend_part(
    query: Float[Tensor, "heads head_dim"],
    keys: Float[Tensor, "heads keys head_dim"],
    values: Float[Tensor, "heads keys head_dim"],
) -> Part:
    """Return the part of one worker: one query per head over some keys, all of which it sees."""
    queries = query[:, None]
    scores = queries @ keys.mT / query.shape[-1] ** 0.5
    outputs, lses = finish(absorb(empty_state(queries), scores, values))
    return outputs[:, 0], lses[:, 0]


def split_decode(worker: Callable[[int, int], Part], length: int, parts: int) -> Part:
    """Attend with one query to `length` keys, with at most `parts` workers; return output and lse.

    `worker(first, last)` attends to the keys from `first` up to, but not including, `last`. It
    returns the output, [heads, head_dim], and the lse, [heads], over those keys alone. Each key
    goes to exactly one worker. The workers run at the same time, so the longest part must be as
    short as possible: length / parts rounded up. No worker is called without keys.
    Source: Dao et al., "Flash-Decoding".
    """
    require_positive(length=length, parts=parts)
    ### BEGIN SOLUTION
    size = -(-length // parts)
    found = [worker(first, min(first + size, length)) for first in range(0, length, size)]
    outputs, lses = zip(*found, strict=True)
    return merge(torch.stack(outputs), torch.stack(lses))
    ### END SOLUTION


Block = tuple[
    Float[Tensor, "heads block_size head_dim"], Float[Tensor, "heads block_size head_dim"]
]


def paged_decode(
    query: Float[Tensor, "heads head_dim"],
    read_block: Callable[[int], Block],
    block_table: Sequence[int],
    block_size: int,
    length: int,
) -> Float[Tensor, "heads head_dim"]:
    """Attend with one query to the `length` tokens of a request, block by block, without a copy.

    `read_block(block)` returns keys and values of one block of the pool; they are views of the
    pool, so don't write to them. Each block with tokens of the request is read once, and no other
    block is read. Keys and values are not gathered: hold one block of them at a time. The slots
    after the last token hold another request's tokens, or were never written and may contain NaN.
    """
    if not 0 < length <= len(block_table) * block_size:
        raise ValueError(
            f"A table of {len(block_table)} blocks of {block_size} has room for 1 to "
            f"{len(block_table) * block_size} tokens, not for {length}."
        )
    ### BEGIN SOLUTION
    queries = query[:, None] / query.shape[-1] ** 0.5
    state = empty_state(queries)
    for start in range(0, length, block_size):
        keys, values = read_block(block_table[start // block_size])
        held = min(block_size, length - start)
        state = absorb(state, queries @ keys[:, :held].mT, values[:, :held])
    output, _ = finish(state)
    return output[:, 0]
    ### END SOLUTION


def block_reader(
    pool: Float[Tensor, "2 layers blocks block_size heads head_dim"], layer: int
) -> Callable[[int], Block]:
    """Return the `read_block` of `paged_decode` for one layer of lab 4's pool."""

    def read_block(block: int) -> Block:
        keys, values = pool[:, layer, block].transpose(1, 2)
        return keys, values

    return read_block


# ------------------------------------------------------------------------------------ the gradients

Gradients = tuple[
    Float[Tensor, "... q_len head_dim"],
    Float[Tensor, "... keys head_dim"],
    Float[Tensor, "... keys head_dim"],
]


def backward_tile(
    queries: Float[Tensor, "... q_len head_dim"],
    keys: Float[Tensor, "... keys head_dim"],
    values: Float[Tensor, "... keys head_dim"],
    output: Float[Tensor, "... q_len head_dim"],
    lse: Float[Tensor, "... q_len"],
    grad_output: Float[Tensor, "... q_len head_dim"],
    offset: int,
) -> Gradients:
    """Return what one tile of keys adds to the queries' gradient, and its keys' and values' own.

    output, lse: from the forward pass over all keys; the weights are computed again from the lse.
    Query i sees the tile's keys 0 to i + offset, as in `hide_later_keys`. The scores were divided
    by sqrt(head_dim). Don't change the inputs. Source: Dao 2023, algorithm 2.
    """
    ### BEGIN SOLUTION
    scale = queries.shape[-1] ** -0.5
    scores = hide_later_keys(queries @ keys.mT * scale, offset)
    weights = exp_minus(scores, lse[..., None])
    grad_weights = grad_output @ values.mT
    delta = (grad_output * output).sum(dim=-1, keepdim=True)
    grad_scores = weights * (grad_weights - delta) * scale
    return grad_scores @ keys, grad_scores.mT @ queries, weights.mT @ grad_output
    ### END SOLUTION


# ---------------------------------------------------------------------------------------- any mask

# What a query sees, and what becomes of its scores, by positions from 0: query [queries, 1] and
# key [1, keys]. Source: PyTorch's FlexAttention, whose functions take one query and one key.
MaskMod = Callable[[Tensor, Tensor], Tensor]  # returns bool [queries, keys]
ScoreMod = Callable[[Tensor, Tensor, Tensor], Tensor]  # takes scores [..., queries, keys] first

EMPTY = 0  # kinds of tiles
PARTIAL = 1
FULL = 2


def tile_kinds(
    mask_mod: MaskMod, q_len: int, k_len: int, block_q: int, block_k: int
) -> Int[Tensor, "q_tiles k_tiles"]:
    """Return the kind of each tile of `block_q` queries and `block_k` keys.

    FULL: each of its queries sees each of its keys. EMPTY: none sees any. PARTIAL: all else. The
    positions of queries and of keys begin at 0. The last tile of either may be shorter, and only
    the tokens that exist count. Source: PyTorch's `create_block_mask`, which calls a shorter tile
    partial.
    """
    require_positive(q_len=q_len, k_len=k_len, block_q=block_q, block_k=block_k)
    ### BEGIN SOLUTION
    kinds = torch.zeros(-(-q_len // block_q), -(-k_len // block_k), dtype=torch.long)
    for i, queries in enumerate(torch.arange(q_len)[:, None].split(block_q)):
        for j, keys in enumerate(torch.arange(k_len)[None].split(block_k, dim=1)):
            seen = mask_mod(queries, keys)
            kinds[i, j] = FULL if seen.all() else PARTIAL if seen.any() else EMPTY
    return kinds
    ### END SOLUTION


def flex_attention(
    memory: Memory,
    q_len: int,
    k_len: int,
    head_dim: int,
    block_q: int,
    block_k: int,
    kinds: Int[Tensor, "q_tiles k_tiles"],
    mask_mod: MaskMod,
    score_mod: ScoreMod,
) -> None:
    """Compute attention with any mask, in tiles; load and store as `flash_attention` does.

    kinds: what `tile_kinds` returns for the mask. Keys and values of an empty tile are not loaded,
    and `mask_mod` is called on partial tiles only. `score_mod` gets the scores of a tile, divided
    by sqrt(head_dim), before the mask. Both get the positions in the whole, as column and row;
    those of the queries begin at 0, too. A query that sees nothing gets output 0 and lse −inf.
    Source: Dong et al., "Flex Attention", 2024.
    """
    require_positive(q_len=q_len, k_len=k_len, block_q=block_q, block_k=block_k)
    ### BEGIN SOLUTION
    for i, start in enumerate(range(0, q_len, block_q)):
        end = min(start + block_q, q_len)
        queries = memory.load("queries", start, end) / head_dim**0.5
        rows, state = torch.arange(start, end)[:, None], empty_state(queries)
        for j in kinds[i].nonzero().flatten().tolist():
            first, last = j * block_k, min((j + 1) * block_k, k_len)
            columns = torch.arange(first, last)[None]
            scores = score_mod(queries @ memory.load("keys", first, last).mT, rows, columns)
            if kinds[i, j] == PARTIAL:
                scores = scores.masked_fill(~mask_mod(rows, columns), -torch.inf)
            state = absorb(state, scores, memory.load("values", first, last))
        output, lse = finish(state)
        memory.store("output", start, output)
        memory.store("lse", start, lse)
    ### END SOLUTION


def in_documents(lengths: Sequence[int], mask_mod: MaskMod) -> MaskMod:
    """Return the mask of several texts in a row, each of which sees only itself.

    lengths: of the texts, 1 or more each. Within a text, `mask_mod` decides, with positions counted
    from the text's first token.
    """
    ### BEGIN SOLUTION
    counts = torch.tensor(lengths)
    text = torch.repeat_interleave(counts)
    before = (counts.cumsum(0) - counts)[text]

    def inside(query: Tensor, key: Tensor) -> Tensor:
        own = mask_mod(query - before[query], key - before[key])
        return own & (text[query] == text[key])

    return inside
    ### END SOLUTION


def alibi(heads: int) -> ScoreMod:
    """Return the `score_mod` of ALiBi: the farther back a key is, the lower its score.

    From the score of head i, counted from 1, it subtracts 2^(−8i / heads) times the distance, query
    minus key. It takes scores [..., heads, queries, keys]. Source: Press et al., "Train short, test
    long", 2022.
    """
    ### BEGIN SOLUTION
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)

    def score_mod(scores: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return scores - slopes.to(scores.dtype)[:, None, None] * (query - key)

    return score_mod
    ### END SOLUTION


def flex_in_tiles(
    queries: Float[Tensor, "... q_len head_dim"],
    keys: Float[Tensor, "... k_len head_dim"],
    values: Float[Tensor, "... k_len head_dim"],
    block: int,
    mask_mod: MaskMod,
    score_mod: ScoreMod = lambda scores, query, key: scores,
) -> tuple[Float[Tensor, "... q_len head_dim"], Float[Tensor, "... q_len"]]:
    """Run `flex_attention` on tensors, in square tiles; return output and lse."""
    memory, tokens = Memory(queries, keys, values), (queries.shape[-2], keys.shape[-2])
    kinds = tile_kinds(mask_mod, *tokens, block, block)
    shape = *tokens, queries.shape[-1], block, block
    flex_attention(memory, *shape, kinds, mask_mod, score_mod)
    return memory.result("output"), memory.result("lse")


# ---------------------------------------------------------------------------------- in the engine


class TiledCache(PagedCache):
    """Lab 4's cache with an `attend` that holds one tile of keys, values and scores at a time.

    The pool and the output are those of lab 4's cache. Lab 7's engine takes it as
    `Parts(paged_cache=TiledCache)`.
    """

    tile = 64  # slots

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "rows heads q_len head_dim"],
        keys: Float[Tensor, "rows heads q_len head_dim"],
        values: Float[Tensor, "rows heads q_len head_dim"],
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        stored = store_new(self, layer, queries, keys, values)
        scaled = queries / queries.shape[-1] ** 0.5
        state = empty_state(scaled)
        tiles = self.all_slots.split(self.tile, dim=1), self.mask.split(self.tile, dim=-1)
        for slots, seen in zip(*tiles, strict=True):
            # gathered [2, rows, tile, heads, head_dim], transposed [2, rows, heads, tile, head_dim]
            tile_keys, tile_values = stored[:, slots].transpose(2, 3)
            scores = (scaled @ tile_keys.mT).masked_fill(~seen, -torch.inf)
            state = absorb(state, scores, tile_values)
        return finish(state)[0]
