"""Answers to lab 12's exercises: a running softmax, tiles, parts, blocks, gradients."""

import itertools
import math

import torch

from solutions.flash_attention import (
    absorb,
    alibi,
    backward_tile,
    empty_state,
    finish,
    flash_attention,
    hide_later_keys,
    in_documents,
    merge,
    paged_decode,
    split_decode,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(absorb, lambda state: state[1:], "absorb returns a State; this is 2 things.")
wrong_result(absorb, tuple, "What absorb returned is a tuple; expected: it is a State.")


@wrong(absorb, "The result is right, but `state[1]` is no longer what it was before the call")
def in_place(state, scores, values):
    after = absorb(state, scores, values)
    state.total.copy_(after.total)
    return after


@right(flash_attention)
def with_a_softmax_of_its_own(memory, q_len, k_len, head_dim, block_q, block_k):
    """It merges tiles by their lse, and loads only the visible keys of the last tile."""
    for start in reversed(range(0, q_len, block_q)):
        end = min(start + block_q, q_len)
        queries = memory.load(name="queries", start=start, end=end)
        output, lse = torch.zeros_like(queries), torch.full_like(queries[..., 0], -torch.inf)
        seen = end + k_len - q_len
        for first in range(0, seen, block_k):
            last = min(first + block_k, seen)
            scores = queries @ memory.load("keys", first, last).mT / head_dim**0.5
            later = torch.arange(first, last) > torch.arange(start, end)[:, None] + k_len - q_len
            scores = scores.masked_fill(later, -torch.inf)
            values = memory.load("values", first, last)
            own = torch.nan_to_num(scores.softmax(dim=-1)) @ values, scores.logsumexp(dim=-1)
            both = torch.stack([output, own[0]]), torch.stack([lse, own[1]])
            output, lse = merge(*both)
        memory.store("output", start, output)
        memory.store("lse", start, lse)


@wrong(flash_attention, "between loads")
def stored_at_the_end(memory, q_len, k_len, head_dim, block_q, block_k):
    done = []
    for start in range(0, q_len, block_q):
        end = min(start + block_q, q_len)
        queries = memory.load("queries", start, end)
        state = empty_state(queries)
        for first in range(0, max(0, end + k_len - q_len), block_k):
            last = min(first + block_k, k_len)
            keys, values = memory.load("keys", first, last), memory.load("values", first, last)
            offset = start + k_len - q_len - first
            state = absorb(
                state, hide_later_keys(queries @ keys.mT / head_dim**0.5, offset), values
            )
        done.append((start, *finish(state)))
    for start, output, lse in done:
        memory.store("output", start, output)
        memory.store("lse", start, lse)


@wrong(flash_attention, "Slow memory has queries, keys, values; there is no 'output'.")
def returned_and_not_stored(memory, q_len, k_len, head_dim, block_q, block_k):
    return torch.zeros(q_len, head_dim)


@wrong(flash_attention, "The result is right, but 24 numbers were moved; 21 are enough.")
def with_more_in_store(memory, q_len, k_len, head_dim, block_q, block_k):
    flash_attention(memory, q_len, k_len, head_dim, block_q, block_k)
    memory.store("spare", 0, torch.zeros(q_len, 3))


@wrong(flash_attention, "Your loop loads 'queries' 2 times for 1 tile;")
def queries_for_each_half(memory, q_len, k_len, head_dim, block_q, block_k):
    memory.load("queries", 0, 1)
    flash_attention(memory, q_len, k_len, head_dim, block_q, block_k)


@wrong(flash_attention, "OutOfFastMemory: Tiles of 4 queries and 5 keys take 118 numbers of")
def in_large_tiles(memory, q_len, k_len, head_dim, block_q, block_k):
    flash_attention(memory, q_len, k_len, head_dim, block_q, 2 * block_k)


@right(split_decode)
def from_the_end(worker, length, parts):
    size, outputs, lses = math.ceil(length / parts), [], []
    while length > 0:
        output, lse = worker(first=max(length - size, 0), last=length)
        outputs.append(output)
        lses.append(lse)
        length -= size
    return merge(torch.stack(outputs), torch.stack(lses))


@wrong(split_decode, "gives key 0 to 2 workers; expected: it gives each key to one worker.")
def a_key_computed_again(worker, length, parts):
    worker(0, 1)
    return split_decode(worker, length, parts)


@wrong(split_decode, "It raised ValueError: worker(0, 0) has no keys")
def cut_off_at_each_end(worker, length, parts):
    ends = [int(n * length / parts) for n in range(parts + 1)]
    found = [worker(first, last) for first, last in itertools.pairwise(ends)]
    return merge(*map(torch.stack, zip(*found, strict=True)))


@wrong(split_decode, "It raised ValueError: worker(0, 2) is no part of 1 keys.")
def beyond_the_end(worker, length, parts):
    return worker(0, length + 1)


@right(paged_decode)
def merged_in_the_end(query, read_block, block_table, block_size, length):
    """From the last block on; of the parts' outputs there are far fewer than of keys and values."""
    parts = []
    for start in reversed(range(0, length, block_size)):
        keys, values = read_block(block_table[start // block_size])
        held = min(block_size, length - start)
        scores = (query[:, None] @ keys[:, :held].mT)[:, 0] / query.shape[1] ** 0.5
        output = (scores.softmax(-1)[:, None] @ values[:, :held])[:, 0]
        parts.append((output, scores.logsumexp(-1)))
    return merge(*map(torch.stack, zip(*parts, strict=True)))[0]


@wrong(paged_decode, "The pool afterwards is changed; expected: it is as it was.")
def with_zeros_in_the_last_block(query, read_block, block_table, block_size, length):
    def read_and_clear(block):
        keys, values = read_block(block)
        if block == block_table[(length - 1) // block_size]:
            keys[:, (length - 1) % block_size + 1 :] = 0
        return keys, values

    return paged_decode(query, read_and_clear, block_table, block_size, length)


@wrong(paged_decode, "It raised ValueError: The pool has the blocks 0 to ")
def by_slots(query, read_block, block_table, block_size, length):
    return read_block(block_table[0] * block_size + 100)


@wrong(paged_decode, "in tensors between two blocks grows to far more than a tile of each")
def after_a_gather_of_views(query, read_block, block_table, block_size, length):
    needed = block_table[: math.ceil(length / block_size)]
    blocks = [[part[:, :] for part in read_block(block)] for block in needed]
    keys, values = (torch.cat(part, dim=1)[:, :length] for part in zip(*blocks, strict=True))
    scores = (query[:, None] @ keys.mT) / query.shape[1] ** 0.5
    return (scores.softmax(dim=-1) @ values)[:, 0]


@right(backward_tile)
def by_autograd(queries, keys, values, output, lse, grad_output, offset):
    """Let PyTorch differentiate what the tile adds to a loss, with the weights of all tiles."""
    with torch.enable_grad():
        scores = hide_later_keys(queries @ keys.mT, offset) / queries.shape[-1] ** 0.5
        weights = (scores - lse.nan_to_num(neginf=0)[..., None]).exp()
        own = [part.detach().requires_grad_() for part in (queries, keys)]
        again = own[0] @ own[1].mT / queries.shape[-1] ** 0.5
        slope = weights * (grad_output @ values.mT - (grad_output * output).sum(-1, keepdim=True))
        of_queries, of_keys = torch.autograd.grad((again * slope).sum(), own)
    return of_queries, of_keys, weights.transpose(-1, -2) @ grad_output


wrong(in_documents, "in_documents returns a mask_mod, a function; this is a Tensor.")(
    lambda lengths, mask_mod: torch.repeat_interleave(torch.tensor(lengths))
)
wrong(alibi, "alibi returns a score_mod, a function; this is a Tensor.")(
    lambda heads: 2.0 ** -torch.arange(heads)
)
right(alibi)(lambda heads: lambda *given: alibi(heads)(*given))


# ------------------------------------------------------------- mutants that do the same by right

TILES = "torch.zeros(-(-q_len // block_q), -(-k_len // block_k){})"
EQUIVALENT = {
    "flash_attention.tile_kinds": {
        f"{TILES.format(', dtype=torch.long')} -> {TILES.format('')}": "a kind may be 2.0",
    },
    "flash_attention.in_documents": {
        "counts.cumsum(0) -> counts.cumsum(-1)": "there is one dimension",
    },
    "flash_attention.paged_decode": {
        "output[:, 0] -> output[:, -1]": "each head has one query, so the first is the last",
    },
}
