"""Lab 11 in another style: keys repeated, numbers in loops, rows by their places, tensors cut."""


def repeated(part, heads):
    """As many heads of keys, or of values, as there are of queries."""
    return part.repeat_interleave(heads // part.size(1), dim=1)


def means(columns, heads, kv_heads):
    """Of the columns of all keys, or of all values."""
    group = columns.split(columns.size(-1) // heads, dim=-1)
    size = heads // kv_heads
    return [sum(group[n : n + size]) / size for n in range(0, heads, size)]


def is_seen(query, key, window, sinks):
    return key <= query and (query - key < window or key < sinks)


def kv_bytes_per_token(config, kv_heads, bits=32, group=None):
    ### BEGIN SOLUTION
    total = 0.0
    for _ in range(config.n_layer):
        for _ in ("keys", "values"):
            numbers = kv_heads * (config.n_embd // config.n_head)
            total += numbers * bits
            if group:
                total += numbers / group * (16 + 16)
    return total / 8
    ### END SOLUTION


def grouped_attention(queries, keys, values, mask):
    ### BEGIN SOLUTION
    keys, values = repeated(keys, queries.size(1)), repeated(values, queries.size(1))
    scores = queries.matmul(keys.mT).div(queries.size(-1) ** 0.5)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), float("-inf"))
    return torch.softmax(scores, -1).matmul(values)
    ### END SOLUTION


def pool_heads(weight, bias, n_head, kv_heads):
    ### BEGIN SOLUTION
    def fewer(columns):
        n_embd = columns.size(-1) // 3
        queries, keys, values = columns.split(n_embd, dim=-1)
        both = means(keys, n_head, kv_heads) + means(values, n_head, kv_heads)
        return torch.cat([queries, *both], dim=-1)

    return fewer(weight), fewer(bias)
    ### END SOLUTION


def window_mask(query_positions, key_positions, window, sinks):
    ### BEGIN SOLUTION
    rows = [
        [[is_seen(query, key, window, sinks) for key in keys] for query in queries]
        for queries, keys in zip(query_positions.tolist(), key_positions.tolist(), strict=True)
    ]
    return torch.tensor(rows).unsqueeze(1)
    ### END SOLUTION


class WindowCache:
    def attend(self, layer, queries, keys, values):
        ### BEGIN SOLUTION
        new = list(range(self.length, self.length + queries.size(2)))
        held = [] if self.positions[layer] is None else self.positions[layer][0].tolist()
        places = torch.tensor([held + new])
        if held:
            keys = torch.cat((self.keys[layer], keys), 2)
            values = torch.cat((self.values[layer], values), 2)
        seen = window_mask(torch.tensor([new]), places, self.window, self.sinks)
        output = grouped_attention(queries, keys, values, seen)
        recent = max(self.sinks, new[-1] + 1 - self.window)
        rows = [row for row, p in enumerate(held + new) if p < self.sinks or p >= recent]
        self.keys[layer] = keys.index_select(2, torch.tensor(rows, dtype=torch.int64))
        self.values[layer] = values.index_select(2, torch.tensor(rows, dtype=torch.int64))
        self.positions[layer] = places[:, rows]
        self.length += len(new) * (layer + 1 == len(self.values))
        return output
        ### END SOLUTION


def keep_heavy(mass, budget, recent):
    ### BEGIN SOLUTION
    kept = []
    for head in mass.tolist():
        older = range(len(head) - recent)
        heavy = sorted(older, key=head.__getitem__, reverse=True)[: budget - recent]
        kept.append(sorted(heavy) + list(range(len(head) - recent, len(head))))
    return torch.tensor(kept)
    ### END SOLUTION


class ChannelKeys:
    def append(self, keys):
        ### BEGIN SOLUTION
        for key in keys.split(1, dim=2):
            self.waiting = join(self.waiting, key, 2)
            if self.waiting.size(2) - self.recent == self.group:
                parts = self.waiting.split([self.group, self.recent], dim=2)
                self.groups = [*self.groups, Codes(parts[0].mT, self.bits)]
                self.waiting = torch.cat(parts[1:])
        ### END SOLUTION


class HostPool:
    def swap_out(self, cache, request_id):
        ### BEGIN SOLUTION
        size, blocks = cache.pool.size(3), cache.manager.tables[request_id]
        kept = cache.pool[:, :, blocks].flatten(2, 3)
        self.store[request_id] = kept[:, :, : cache.manager.lengths[request_id]].clone()
        assert kept.size(2) == size * len(blocks)
        cache.manager.free(request_id)
        ### END SOLUTION

    def swap_in(self, cache, request_id):
        ### BEGIN SOLUTION
        tokens = self.store[request_id].unbind(2)
        cache.manager.allocate(request_id, len(tokens))
        blocks = cache.manager.tables[request_id]
        for number, token in enumerate(tokens):
            entry, place = divmod(number, cache.pool.size(3))
            cache.pool[:, :, blocks[entry], place] = token
        self.store.pop(request_id)
        ### END SOLUTION
