"""Lab 2: the KV cache, first threaded through the model as tuples, then as an object.

The keys and values of a token never change once they are computed, so every step after the first
needs only the newest token. In the threaded model, each forward takes a cache and returns a longer
one. In the cached model, each forward takes a cache object, and attention calls its `attend`. From
here on, a faster engine is a new cache for this same model.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gpt import GPTAttention, GPTBlock, GPTConfig, GPTLMHead, GPTModel
from solutions.generate import require_prompt

LayerCache = tuple[
    Float[Tensor, "batch heads length head_dim"], Float[Tensor, "batch heads length head_dim"]
]


def causal_mask(
    query_positions: Int[Tensor, "batch q_len"], key_positions: Int[Tensor, "batch k_len"]
) -> Bool[Tensor, "batch 1 q_len k_len"]:
    """Return True where a query may see a key: the key's position is at most the query's.

    The 1 stands for the heads, which share the mask. The rule covers prefill (q_len = k_len),
    decode (q_len = 1) and a chunk of several tokens after a prefix. The positions aren't changed.
    """
    ### BEGIN SOLUTION
    visible = key_positions[:, None, :] <= query_positions[:, :, None]
    return visible[:, None]
    ### END SOLUTION


# ---------------------------------------------------------------------------- the cache as tuples


class ThreadedAttention(GPTAttention):
    """Attention that takes the keys and values of the prefix, and returns a longer pair."""

    def forward(
        self, hidden: Float[Tensor, "batch q_len n_embd"], kv_cache: LayerCache | None = None
    ) -> tuple[Float[Tensor, "batch q_len n_embd"], LayerCache]:
        """Attend from the new tokens to the prefix and to themselves.

        `hidden` has the new tokens only. `kv_cache` is this layer's (keys, values) of the tokens
        before them, None if there are none. Returns the output for the new tokens, and this layer's
        (keys, values) with the new tokens appended. The given pair isn't changed.
        """
        queries, keys, values = self.split_heads(self.c_attn(hidden))
        ### BEGIN SOLUTION
        if kv_cache is not None:
            keys = torch.cat([kv_cache[0], keys], dim=2)
            values = torch.cat([kv_cache[1], values], dim=2)
        positions = torch.arange(keys.shape[2], device=hidden.device).unsqueeze(0)
        mask = causal_mask(positions[:, -hidden.shape[1] :], positions)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.c_proj(self.merge_heads(attended)), (keys, values)
        ### END SOLUTION


class ThreadedBlock(GPTBlock):
    def __init__(self, config: GPTConfig, idx: int) -> None:
        super().__init__(config, idx)
        self.attn = ThreadedAttention(config, idx)

    def forward(
        self, hidden: Float[Tensor, "batch q_len n_embd"], kv_cache: LayerCache | None = None
    ) -> tuple[Float[Tensor, "batch q_len n_embd"], LayerCache]:
        """Do what GPTBlock.forward does, for the new tokens, with this layer's cache.

        Attention takes `kv_cache` and returns a longer one. Returns the hidden states of the new
        tokens, and that longer cache. `hidden` isn't changed: the sums are new tensors.
        """
        ### BEGIN SOLUTION
        attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
        hidden = hidden + attended
        return hidden + self.mlp(self.ln_2(hidden)), kv_cache
        ### END SOLUTION


class ThreadedModel(GPTModel):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.h = nn.ModuleList(ThreadedBlock(config, idx) for idx in range(config.n_layer))

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: Sequence[LayerCache | None] | None = None,
    ) -> tuple[Float[Tensor, "batch q_len n_embd"], list[LayerCache]]:
        """Do what GPTModel.forward does, for the new tokens, with every layer's cache.

        `kv_cache` has one entry per layer, in the order of the layers; it is None at the start.
        Returns the hidden states of the new tokens, and a new list with the longer caches. The
        given list isn't changed.
        """
        ### BEGIN SOLUTION
        if kv_cache is None:
            kv_cache = [None] * len(self.h)
        new_cache = []
        hidden = self.embed(inputs, position_ids)
        for block, layer_cache in zip(self.h, kv_cache, strict=True):
            hidden, layer_cache = block(hidden, layer_cache)
            new_cache.append(layer_cache)
        return self.ln_f(hidden), new_cache
        ### END SOLUTION


class ThreadedLMHead(GPTLMHead):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.transformer = ThreadedModel(config)

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: Sequence[LayerCache | None] | None = None,
    ) -> tuple[Float[Tensor, "batch q_len vocab"], list[LayerCache]]:
        """Return the logits of every new token, and the list of longer caches."""
        ### BEGIN SOLUTION
        hidden, new_cache = self.transformer(inputs, position_ids, kv_cache)
        return hidden @ self.transformer.wte.weight.T, new_cache
        ### END SOLUTION


@torch.no_grad()
def generate_threaded(
    model: ThreadedLMHead,
    input_ids: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    eos_token_id: int | None = None,
) -> Int[Tensor, "batch seq_and_new"]:
    """Generate the same tokens as lab 1's `generate`, but compute every token only once.

    One prefill over the prompt gives the first new token. Each decode step passes only the newest
    token to the model, at its own position, with the cache so far. That is one forward pass for
    each new token: the last one is never passed to the model, because no token follows it.
    `input_ids` isn't changed.
    """
    require_prompt(model, input_ids, max_new_tokens, eos_token_id)
    ### BEGIN SOLUTION
    ids, kv_cache, computed = input_ids, None, 0
    room = model.config.n_positions - ids.shape[1]
    for _ in range(min(max_new_tokens, room)):
        new_ids = ids[:, computed:]  # the whole prompt in prefill, one token in decode
        position_ids = torch.arange(computed, ids.shape[1], device=ids.device).expand_as(new_ids)
        logits, kv_cache = model(new_ids, position_ids, kv_cache)
        computed = ids.shape[1]
        next_ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, next_ids], dim=1)
        if eos_token_id is not None and next_ids.item() == eos_token_id:
            break
    return ids
    ### END SOLUTION


def kv_bytes_per_token(config: GPTConfig, bytes_per_number: int = 4) -> int:
    """Return the bytes of one token in the KV cache, over all layers; float32 has 4 per number."""
    ### BEGIN SOLUTION
    keys_and_values = 2
    return keys_and_values * config.n_layer * config.n_embd * bytes_per_number
    ### END SOLUTION


# --------------------------------------------------------------------------- a cache as an object


class KVCache:
    """Keys and values of every layer, in memory reserved once for `max_length` tokens.

    `keys` and `values` are [layers, batch, heads, max_length, head_dim]; the first `length` tokens
    are filled. New tokens are written in place; a cache of tuples copies the prefix at each step.
    """

    def __init__(
        self,
        config: GPTConfig,
        batch: int,
        max_length: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if batch < 1 or max_length < 1:
            raise ValueError(
                "A cache needs at least one row, and room for at least one token; "
                f"batch is {batch} and max_length is {max_length}."
            )
        shape = (config.n_layer, batch, config.n_head, max_length, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.max_length = max_length
        self.length = 0
        self.masked = 0, 0  # the start and end that `kept_mask` is for

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "batch heads q_len head_dim"],
        keys: Float[Tensor, "batch heads q_len head_dim"],
        values: Float[Tensor, "batch heads q_len head_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """Store the new tokens' keys and values, then attend to every token in the cache.

        A forward pass calls this once per layer, in order. `length` grows by q_len in the last
        layer's call, so all layers of a forward pass write to the same positions. `self.keys` and
        `self.values` stay the same memory. Raises ValueError, before anything is written, if there
        would be more tokens than `max_length`.
        """
        start, end = self.length, self.length + queries.shape[2]
        if end > self.max_length:
            raise ValueError(
                f"The cache has room for {self.max_length} tokens; this would make {end}. "
                "Reserve a longer cache, or generate fewer tokens."
            )
        ### BEGIN SOLUTION
        all_keys, all_values = self.keys[layer], self.values[layer]
        all_keys[:, :, start:end] = keys
        all_values[:, :, start:end] = values
        if layer == len(self.keys) - 1:
            self.length = end
        return F.scaled_dot_product_attention(
            queries,
            all_keys[:, :, :end],
            all_values[:, :, :end],
            attn_mask=self.mask(start, end),
        )
        ### END SOLUTION

    def mask(self, start: int, end: int) -> Bool[Tensor, "batch 1 q_len k_len"] | None:
        """Return which of the first `end` tokens each token from `start` on may see.

        None means that it may see all of them. The mask is kept, because the next layer of the same
        forward pass asks for the same one.
        """
        if end - start == 1:
            return None  # the newest token sees every token
        if self.masked != (start, end):
            positions = torch.arange(end, device=self.keys.device).unsqueeze(0)
            self.kept_mask = causal_mask(positions[:, start:], positions)
            self.masked = start, end
        return self.kept_mask

    def truncate(self, n: int) -> None:
        """Keep the first `n` tokens, from none to all of them.

        Nothing is copied or erased, because memory beyond `length` is never read. Raises
        ValueError, and changes nothing, if `n` is below 0 or above `length`.
        """
        ### BEGIN SOLUTION
        if not 0 <= n <= self.length:
            raise ValueError(f"The cache holds {self.length} tokens; it cannot keep {n}.")
        self.length = n
        ### END SOLUTION

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        """Replace every row i by the former row `rows[i]`, as beam search does."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]

    @property
    def bytes_held(self) -> int:
        """Bytes of the `length` tokens that are filled."""
        return self.bytes_reserved * self.length // self.max_length

    @property
    def bytes_reserved(self) -> int:
        return self.keys.nbytes + self.values.nbytes


class CachedAttention(GPTAttention):
    def forward(
        self, hidden: Float[Tensor, "batch q_len n_embd"], kv_cache: KVCache
    ) -> Float[Tensor, "batch q_len n_embd"]:
        queries, keys, values = self.split_heads(self.c_attn(hidden))
        return self.c_proj(self.merge_heads(kv_cache.attend(self.idx, queries, keys, values)))


class CachedBlock(GPTBlock):
    def __init__(self, config: GPTConfig, idx: int) -> None:
        super().__init__(config, idx)
        self.attn = CachedAttention(config, idx)

    def forward(
        self, hidden: Float[Tensor, "batch q_len n_embd"], kv_cache: KVCache
    ) -> Float[Tensor, "batch q_len n_embd"]:
        hidden = hidden + self.attn(self.ln_1(hidden), kv_cache)
        return hidden + self.mlp(self.ln_2(hidden))


class CachedModel(GPTModel):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.h = nn.ModuleList(CachedBlock(config, idx) for idx in range(config.n_layer))

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache,
    ) -> Float[Tensor, "batch q_len n_embd"]:
        hidden = self.embed(inputs, position_ids)
        for block in self.h:
            hidden = block(hidden, kv_cache)
        return self.ln_f(hidden)


class CachedLMHead(GPTLMHead):
    """The model of every later lab: it knows only its weights; the cache knows the rest."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.transformer = CachedModel(config)

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache,
    ) -> Float[Tensor, "batch q_len vocab"]:
        hidden = self.transformer(inputs, position_ids, kv_cache)
        return hidden @ self.transformer.wte.weight.T


@torch.no_grad()
def generate(
    model: CachedLMHead,
    input_ids: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    eos_token_id: int | None = None,
) -> Int[Tensor, "batch seq_and_new"]:
    """Do what `generate_threaded` does, with a cache object: its `length` says what is new."""
    require_prompt(model, input_ids, max_new_tokens, eos_token_id)
    ids = input_ids
    end = min(ids.shape[1] + max_new_tokens, model.config.n_positions)
    weight = model.transformer.wte.weight
    kv_cache = KVCache(model.config, len(ids), end, weight.device, weight.dtype)
    while ids.shape[1] < end:
        new_ids = ids[:, kv_cache.length :]
        position_ids = torch.arange(kv_cache.length, ids.shape[1], device=ids.device)
        logits = model(new_ids, position_ids.expand_as(new_ids), kv_cache)
        next_ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, next_ids], dim=1)
        if eos_token_id is not None and next_ids.item() == eos_token_id:
            break
    return ids
