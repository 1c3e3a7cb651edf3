"""Lab 2 in another style: einsum for attention, masks from lists, pairs with names."""

from itertools import accumulate, repeat
from typing import NamedTuple


class Pair(NamedTuple):
    """The keys and values of the tokens so far, in one layer."""

    keys: torch.Tensor
    values: torch.Tensor


def appended(before, new):
    """The old and the new, along the tokens; only the new if there is nothing old."""
    return new if before is None else torch.cat((before, new), dim=-2)


def attention(queries, keys, values, hidden_from):
    """hidden_from: [q_len, k_len], True where a query must not look."""
    scores = torch.einsum("bhqd,bhkd->bhqk", queries, keys) * queries.shape[-1] ** -0.5
    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True)) * ~hidden_from
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(dim=-1, keepdim=True), values)


def future(q_len, k_len):
    """The newest q_len of k_len tokens must not see the tokens after them."""
    return torch.ones(q_len, k_len, dtype=torch.bool).triu(diagonal=k_len - q_len + 1)


def causal_mask(query_positions, key_positions):
    ### BEGIN SOLUTION
    rows = zip(query_positions.tolist(), key_positions.tolist(), strict=True)
    visible = [[[key <= query for key in keys] for query in queries] for queries, keys in rows]
    return torch.tensor(visible, device=key_positions.device).unsqueeze(dim=1)
    ### END SOLUTION


class ThreadedAttention:
    def forward(self, hidden, kv_cache=None):
        queries, keys, values = self.split_heads(self.c_attn(hidden))
        ### BEGIN SOLUTION
        old_keys, old_values = kv_cache or (None, None)
        pair = Pair(keys=appended(old_keys, keys), values=appended(old_values, values))
        unseen = future(queries.size(2), pair.keys.size(2))
        return self.c_proj(self.merge_heads(attention(queries, *pair, unseen))), pair
        ### END SOLUTION


class ThreadedBlock:
    def forward(self, hidden, kv_cache=None):
        ### BEGIN SOLUTION
        kept = {}

        def attend(normed):
            output, kept["pair"] = self.attn(normed, kv_cache=kv_cache)
            return output

        for norm, sublayer in ((self.ln_1, attend), (self.ln_2, self.mlp)):
            hidden = torch.add(sublayer(norm(hidden)), hidden)
        return hidden, kept["pair"]
        ### END SOLUTION


class ThreadedModel:
    def forward(self, inputs, position_ids, kv_cache=None):
        ### BEGIN SOLUTION
        layers = zip(self.h, kv_cache or repeat(None), strict=False)
        start = self.wte(inputs) + self.wpe(position_ids), None
        states = [
            *accumulate(layers, lambda state, pair: pair[0](state[0], pair[1]), initial=start)
        ]
        return self.ln_f(states[-1][0]), [pair for _, pair in states[1:]]
        ### END SOLUTION


class ThreadedLMHead:
    def forward(self, inputs, position_ids, kv_cache=None):
        ### BEGIN SOLUTION
        found = self.transformer(inputs, position_ids, kv_cache)
        scores = torch.einsum("bsn,vn->bsv", found[0], self.transformer.wte.weight)
        return scores, found[1]
        ### END SOLUTION


def generate_threaded(model, input_ids, max_new_tokens, eos_token_id=None):
    ### BEGIN SOLUTION
    ids, lacking, kv_cache = input_ids, input_ids, None
    longest = min(ids.size(1) + max_new_tokens, model.config.n_positions)
    while ids.size(1) < longest:
        places = range(ids.size(1) - lacking.size(1), ids.size(1))
        logits, kv_cache = model(lacking, torch.tensor([[*places]] * len(ids)), kv_cache=kv_cache)
        lacking = torch.topk(logits[:, -1, :], k=1).indices
        ids = torch.hstack((ids, lacking))
        if eos_token_id is not None and int(lacking) == eos_token_id:
            break
    return ids
    ### END SOLUTION


def kv_bytes_per_token(config, bytes_per_number=4):
    ### BEGIN SOLUTION
    total = 0
    for _layer in range(config.n_layer):
        for _kind in ("keys", "values"):
            total += config.n_head * config.head_dim * bytes_per_number
    return total
    ### END SOLUTION


class KVCache:
    def attend(self, layer, queries, keys, values):
        start, end = self.length, self.length + queries.shape[2]
        ### BEGIN SOLUTION
        places = torch.arange(start, end)
        for memory, new in ((self.keys[layer], keys), (self.values[layer], values)):
            memory.index_copy_(2, places, new)
        self.length = end if layer + 1 == self.keys.size(0) else start
        filled = (memory[layer].narrow(2, 0, end) for memory in (self.keys, self.values))
        return attention(queries, *filled, future(end - start, end))
        ### END SOLUTION

    def truncate(self, n):
        ### BEGIN SOLUTION
        if n in range(self.length + 1):
            self.length = n
        else:
            raise ValueError(f"{n} is not from 0 to {self.length}")
        ### END SOLUTION
