"""Lab 12 in another style: closed formulas, lists of tiles, softmax over parts, einsum."""

import math


def tiles_of(length, size):
    """Where the tiles of a length begin and end."""
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def count_traffic(q_len, k_len, head_dim, block_q, block_k):
    ### BEGIN SOLUTION
    naive = head_dim * (q_len + k_len + k_len + q_len) + 2 * (q_len * k_len + q_len * k_len)
    loaded = sum(
        last - first
        for _, end in tiles_of(q_len, block_q)
        for first, last in tiles_of(k_len, block_k)
        if first < end + k_len - q_len
    )
    return naive, q_len * head_dim + 2 * loaded * head_dim + q_len * (head_dim + 1)
    ### END SOLUTION


def absorb(state, scores, values):
    ### BEGIN SOLUTION
    old, total, weighted = state
    new = torch.cat([old.unsqueeze(-1), scores], dim=-1).max(dim=-1).values
    level = torch.where(new.isinf(), torch.zeros_like(new), new)
    shrink, weights = (old - level).exp(), (scores - level.unsqueeze(-1)).exp()
    summed = torch.einsum("...qk,...kd->...qd", weights, values)
    return State(new, shrink * total + weights.sum(-1), shrink.unsqueeze(-1) * weighted + summed)
    ### END SOLUTION


def flash_attention(memory, q_len, k_len, head_dim, block_q, block_k):
    ### BEGIN SOLUTION
    for start, end in tiles_of(q_len, block_q):
        queries = memory.load("queries", start, end)
        rows = torch.arange(start, end)[:, None] + k_len - q_len
        state = empty_state(queries)
        for first, last in tiles_of(k_len, block_k):
            if first <= rows.max():
                values = memory.load("values", first, last)
                keys = memory.load("keys", first, last)
                scores = (queries @ keys.transpose(-2, -1)) / math.sqrt(head_dim)
                scores[..., torch.arange(first, last) > rows] = float("-inf")
                state = absorb(state, scores, values)
        for name, tile in zip(("output", "lse"), finish(state), strict=True):
            memory.store(name, start, tile)
    ### END SOLUTION


def merge(outputs, lses):
    ### BEGIN SOLUTION
    largest = lses.max(dim=0).values
    largest = largest.masked_fill(largest.isinf(), 0.0)
    weights = (lses - largest).exp()
    total = weights.sum(0)
    output = torch.einsum("p...,p...d->...d", weights, outputs) / total.clamp(min=1).unsqueeze(-1)
    return output, largest + total.log()
    ### END SOLUTION


def split_decode(worker, length, parts):
    ### BEGIN SOLUTION
    output = lse = None
    for piece in torch.arange(length).tensor_split(min(parts, length)):
        own = worker(int(piece[0]), int(piece[-1]) + 1)
        if output is None:
            output, lse = own
        else:
            output, lse = merge(torch.stack([output, own[0]]), torch.stack([lse, own[1]]))
    return output, lse
    ### END SOLUTION


def paged_decode(query, read_block, block_table, block_size, length):
    ### BEGIN SOLUTION
    state, left = empty_state(query.unsqueeze(1)), length
    for block in block_table:
        if left <= 0:
            break
        keys, values = read_block(block)
        scores = torch.einsum("hd,hkd->hk", query, keys).unsqueeze(1) / math.sqrt(query.size(-1))
        state = absorb(state, scores[..., :left], values[:, :left])
        left -= block_size
    return finish(state)[0].squeeze(1)
    ### END SOLUTION


def backward_tile(queries, keys, values, output, lse, grad_output, offset):
    ### BEGIN SOLUTION
    factor = 1 / math.sqrt(queries.size(-1))
    scores = hide_later_keys(torch.einsum("...qd,...kd->...qk", queries, keys) * factor, offset)
    weights = (scores - lse.masked_fill(lse.isinf(), 0).unsqueeze(-1)).exp()
    inner = grad_output @ values.transpose(-2, -1) - (output * grad_output).sum(-1).unsqueeze(-1)
    of_scores = factor * weights * inner
    of_keys = torch.einsum("...qk,...qd->...kd", of_scores, queries)
    return of_scores @ keys, of_keys, torch.einsum("...qk,...qd->...kd", weights, grad_output)
    ### END SOLUTION


def tile_kinds(mask_mod, q_len, k_len, block_q, block_k):
    ### BEGIN SOLUTION
    seen = mask_mod(torch.arange(q_len)[:, None], torch.arange(k_len)[None])
    tiles = [list(rows.split(block_k, 1)) for rows in seen.split(block_q)]
    return torch.tensor([[int(tile.any()) + int(tile.all()) for tile in row] for row in tiles])
    ### END SOLUTION


def flex_attention(memory, q_len, k_len, head_dim, block_q, block_k, kinds, mask_mod, score_mod):
    ### BEGIN SOLUTION
    for (start, end), row in zip(tiles_of(q_len, block_q), kinds.tolist(), strict=True):
        queries = memory.load("queries", start, end)
        output, lse = torch.zeros_like(queries), torch.full_like(queries[..., 0], -math.inf)
        spans = list(zip(tiles_of(k_len, block_k), row, strict=True))
        for (first, last), kind in reversed(spans):
            if kind:
                places = torch.arange(start, end).view(-1, 1), torch.arange(first, last).view(1, -1)
                scores = queries @ memory.load("keys", first, last).transpose(-2, -1)
                scores = score_mod(scores / math.sqrt(head_dim), *places)
                if kind < 2:
                    scores = torch.where(mask_mod(*places), scores, -math.inf)
                state = absorb(empty_state(queries), scores, memory.load("values", first, last))
                both = zip((output, lse), finish(state), strict=True)
                output, lse = merge(*map(torch.stack, both))
        memory.store("output", start, output)
        memory.store("lse", start, lse)
    ### END SOLUTION


def in_documents(lengths, mask_mod):
    ### BEGIN SOLUTION
    ends = torch.tensor(lengths).cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), ends])

    def mask(query, key):
        text, other = (torch.bucketize(places, ends, right=True) for places in (query, key))
        return (text == other) & mask_mod(query - starts[text], key - starts[other])

    return mask
    ### END SOLUTION


def alibi(heads):
    ### BEGIN SOLUTION
    def score_mod(scores, query, key):
        each = [
            scores[..., head, :, :] + (key - query) * 2 ** (-8 * (head + 1) / heads)
            for head in range(heads)
        ]
        return torch.stack(each, dim=-3)

    return score_mod
    ### END SOLUTION
