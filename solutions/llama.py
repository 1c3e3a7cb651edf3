"""Lab 20: a second model family. Llama's architecture, its files, and a chat.

Read it beside gpt.py, whose names it keeps. Five parts are new. Queries and keys are rotated by
their positions, so no position is added to a token. A norm divides by the root mean square, and
subtracts nothing. Several query heads share one head of keys and values. Each neuron of the MLP
is multiplied by a gate. And few linear layers have a bias; where there is none, it is zero here.

Llama 2 and 3, SmolLM2 and Mistral are this model. Qwen2 has biases on queries, keys and values;
Qwen3 has none, and normalizes each head. One matrix computes queries, keys and values here, and
one computes gates and neurons: checkpoints keep them apart (solutions/gguf/names.py).

Sources: Touvron et al., "LLaMA", 2023; Su et al., "RoFormer", 2021 (rotation); Zhang and Sennrich,
"Root mean square layer normalization", NeurIPS 2019; Ainslie et al., "GQA", EMNLP 2023; Shazeer,
"GLU variants improve transformer", 2020; ggml's `docs/gguf.md` and `ggml-common.h` (GGUF).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from gpt import GPTAttention, Linear, require_inputs
from solutions.gguf.config import LlamaConfig
from solutions.gguf.names import joined, our_name
from solutions.kv_cache import causal_mask

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Message = Mapping[str, str]  # a role and a content
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


# -------------------------------------------------------------------------------- the five parts


def rms_norm(
    hidden: Float[Tensor, "*rows width"], gain: Float[Tensor, " width"], eps: float
) -> Float[Tensor, "*rows width"]:
    """Divide each vector by its root mean square, and multiply by the gain.

    The root is that of the mean of the squares plus `eps`. In 16 bits the squares would lose too
    much, so 16-bit vectors are widened to float32 for the division, and rounded back before they
    are multiplied by the gain. Returns the dtype of `hidden`, which isn't changed.
    """
    ### BEGIN SOLUTION
    wide = hidden.float() if hidden.dtype.itemsize == 2 else hidden
    wide = wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return wide.to(hidden.dtype) * gain
    ### END SOLUTION


def frequencies(
    head_dim: int, theta: float, scaling: Mapping[str, Any] | None = None
) -> Float[Tensor, " half"]:
    """Return by how many radians per position each pair of numbers of a head is turned, in float32.

    Pair i turns by 1 / theta^(2i / head_dim). `scaling` has its kind in "rope_type", with
    - "default": nothing is scaled, as without `scaling`;
    - "linear": all pairs turn slower, by the number in "factor";
    - "llama3": only slow pairs do. Over the "original_max_position_embeddings" of training, a pair
      that turns at most "low_freq_factor" times is slowed by the whole factor, one that turns
      at least "high_freq_factor" times stays, and in between the share of the plain frequency grows
      with the number of turns.
    """
    ### BEGIN SOLUTION
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1 / theta**pairs
    if scaling is None or scaling["rope_type"] == "default":
        return plain
    slow = plain / scaling["factor"]
    if scaling["rope_type"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * plain + (1 - kept) * slow
    ### END SOLUTION


def rotate(
    heads: Float[Tensor, "batch heads seq head_dim"],
    positions: Int[Tensor, "batch seq"],
    radians: Float[Tensor, " half"],
) -> Float[Tensor, "batch heads seq head_dim"]:
    """Turn each pair (i, i + half) of each head by its radians per position, counterclockwise.

    Each row has its own positions. Angles are computed in float32, whatever the heads' dtype is;
    cosine and sine are rounded to it. Returns a new tensor of the same dtype.
    """
    ### BEGIN SOLUTION
    angles = positions[:, None, :, None] * radians
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
    ### END SOLUTION


def attend_in_groups(
    attend: Attend,
    queries: Float[Tensor, "batch heads q_len head_dim"],
    keys: Float[Tensor, "batch kv_heads k_len head_dim"],
    values: Float[Tensor, "batch kv_heads k_len head_dim"],
    mask: Bool[Tensor, "batch 1 q_len k_len"],
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Attend with neighboring query heads in groups, each of which shares a KV head.

    `attend(queries, keys, values, mask)` knows no groups: it needs as many heads of queries as of
    keys. To a KV head, the queries of its group are just more queries. So hand them over as such,
    all in one call, with keys and values as they are and a mask of [batch, 1, group * q_len,
    k_len], and return the result with the heads and the order of the queries.
    """
    ### BEGIN SOLUTION
    group = queries.shape[1] // keys.shape[1]
    folded = queries.unflatten(1, (-1, group)).flatten(2, 3)
    attended = attend(folded, keys, values, mask.repeat(1, 1, group, 1))
    return attended.unflatten(2, (group, -1)).flatten(1, 2)
    ### END SOLUTION


def swiglu(
    hidden: Float[Tensor, "*rows n_embd"],
    gate_up: Callable[[Tensor], Float[Tensor, "*rows 2*n_inner"]],
    down: Callable[[Tensor], Float[Tensor, "*rows n_embd"]],
) -> Float[Tensor, "*rows n_embd"]:
    """Return what an MLP with gates makes of the hidden state.

    `gate_up` returns the gates in the first half, the neurons in the second. Each neuron is
    multiplied by SiLU of its gate, where SiLU(x) = x * sigmoid(x). `down` leads back to the width
    of the model.
    """
    ### BEGIN SOLUTION
    gates, neurons = gate_up(hidden).chunk(2, dim=-1)
    return down(F.silu(gates) * neurons)
    ### END SOLUTION


# -------------------------------------------------------------------------------------- the model


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows width"]:
        return rms_norm(hidden, self.weight, self.eps)


class LlamaAttention(GPTAttention):
    """Causal self-attention over rotated queries and keys, in groups of query heads."""

    def __init__(self, config: LlamaConfig, idx: int) -> None:
        nn.Module.__init__(self)
        self.idx, self.head_dim = idx, config.head_dim
        self.heads = config.n_head * config.group, config.n_head, config.n_head
        self.c_attn = Linear(config.n_embd, sum(self.heads) * config.head_dim)
        self.c_proj = Linear(self.heads[0] * config.head_dim, config.n_embd)
        self.norms = nn.ModuleList(
            RMSNorm(config.head_dim, config.rms_norm_eps) for _ in range(2 if config.qk_norm else 0)
        )

    def forward(
        self,
        hidden: Float[Tensor, "batch q_len n_embd"],
        position_ids: Int[Tensor, "batch q_len"],
        radians: Float[Tensor, " half"],
        kv_cache: Any = None,
    ) -> Float[Tensor, "batch q_len n_embd"]:
        """Attend; without a cache, `hidden` is a whole text. A cache stores rotated keys."""
        heads = self.c_attn(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        queries, keys, values = heads.split(self.heads, dim=1)
        if self.norms:
            queries, keys = self.norms[0](queries), self.norms[1](keys)
        queries = rotate(queries, position_ids, radians)
        keys = rotate(keys, position_ids, radians)
        if kv_cache is None:
            mask = causal_mask(position_ids, position_ids)
            attended = attend_in_groups(F.scaled_dot_product_attention, queries, keys, values, mask)
        else:
            attended = kv_cache.attend(self.idx, queries, keys, values)
        return self.c_proj(self.merge_heads(attended))


class LlamaMLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, 2 * config.n_inner)
        self.c_proj = Linear(config.n_inner, config.n_embd)

    def forward(
        self, hidden: Float[Tensor, "batch seq n_embd"]
    ) -> Float[Tensor, "batch seq n_embd"]:
        return swiglu(hidden, self.c_fc, self.c_proj)


class LlamaBlock(nn.Module):
    """Attention, then the MLP. Each reads a normalized copy of the hidden state and adds to it."""

    def __init__(self, config: LlamaConfig, idx: int) -> None:
        super().__init__()
        self.ln_1 = RMSNorm(config.n_embd, config.rms_norm_eps)
        self.attn = LlamaAttention(config, idx)
        self.ln_2 = RMSNorm(config.n_embd, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(
        self,
        hidden: Float[Tensor, "batch seq n_embd"],
        position_ids: Int[Tensor, "batch seq"],
        radians: Float[Tensor, " half"],
        kv_cache: Any = None,
    ) -> Float[Tensor, "batch seq n_embd"]:
        hidden = hidden + self.attn(self.ln_1(hidden), position_ids, radians, kv_cache)
        return hidden + self.mlp(self.ln_2(hidden))


class LlamaModel(nn.Module):
    """Token embeddings, the blocks, and a final norm. Positions only turn queries and keys.

    fused: what computes the same with fewer operations, for lab 7's engine; None if nothing does.
    """

    fused: Any = None

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(LlamaBlock(config, idx) for idx in range(config.n_layer))
        self.ln_f = RMSNorm(config.n_embd, config.rms_norm_eps)

    def forward(
        self,
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        kv_cache: Any = None,
    ) -> Float[Tensor, "batch seq n_embd"]:
        shape: Any = self.config  # has what is checked, as gpt.py's
        require_inputs(shape, inputs, position_ids)
        hidden, radians = self.wte(inputs), radians_of(self.config).to(inputs.device)
        for block in self.h:
            hidden = block(hidden, position_ids, radians, kv_cache)
        return self.ln_f(hidden)


def radians_of(config: LlamaConfig) -> Float[Tensor, " half"]:
    """Return the radians per position of each pair, however the checkpoint gives them."""
    radians = frequencies(config.head_dim, config.rope_theta, config.scaling)
    return radians / torch.tensor(config.rope_factors or 1.0)


class LlamaLMHead(nn.Module):
    """The language model: logits for the token that follows each position."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = LlamaModel(config)
        if not config.tied:
            self.output = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    @property
    def head_weight(self) -> Float[Tensor, "vocab n_embd"]:
        return self.transformer.wte.weight if self.config.tied else self.output.weight

    def forward(
        self,
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        kv_cache: Any = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        return self.transformer(inputs, position_ids, kv_cache) @ self.head_weight.T

    @classmethod
    def of(cls, config: LlamaConfig, weights: Mapping[str, Tensor]) -> Self:
        """Return the model of this shape with these weights, ready for inference."""
        with torch.device("meta"):  # none are drawn in vain
            model = cls(config)
        model.load_state_dict(dict(weights), assign=True)
        return model.eval().requires_grad_(False)


# ------------------------------------------------------------------ for caches that know no groups


class Repeating:
    """Hands each KV head to a cache as often as it has query heads."""

    def __init__(self, kv_cache: Any, group: int) -> None:
        self.kv_cache, self.group = kv_cache, group

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = (part.repeat_interleave(self.group, dim=1) for part in (keys, values))
        return self.kv_cache.attend(layer, queries, keys, values)


class Expanded(nn.Module):
    """The same model for the caches of labs 2 and 3, at `group` times the bytes per token.

    Lab 7's engine needs no such help: it folds the queries of a group as `attend_in_groups` does.
    """

    def __init__(self, model: LlamaLMHead) -> None:
        super().__init__()
        self.model, self.transformer = model, model.transformer
        config = model.config
        self.group = config.group
        self.config = replace(config, n_head=config.n_head * config.group, group=1)

    def forward(
        self,
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        kv_cache: Any = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        repeating = None if kv_cache is None else Repeating(kv_cache, self.group)
        return self.model(inputs, position_ids, repeating)


# ------------------------------------------------------------------------------- from file to model


def dequantize(raw: UInt8[Tensor, "blocks bytes"], kind: str) -> Float[Tensor, "blocks 32"]:
    """Return the 32 numbers of each block of a GGUF, in float32. Scales are float16 in two bytes.

    - "Q8_0": scale, then 32 codes of one byte each, signed: code * scale;
    - "Q4_0": scale, then 16 bytes with codes of 4 bits: (code - 8) * scale;
    - "Q4_1": scale, minimum (float16, too), then 16 bytes with such codes: code * scale + minimum.
    Byte i of the 16 has the code of number i in its low half, and that of number 16 + i in its high
    half.
    """
    ### BEGIN SOLUTION
    scale = raw[:, :2].contiguous().view(torch.float16).float()
    if kind == "Q8_0":
        return raw[:, 2:].view(torch.int8) * scale
    packed = raw[:, -16:]
    codes = torch.cat([packed & 15, packed >> 4], dim=1)
    if kind == "Q4_0":
        return (codes.float() - 8) * scale
    return codes * scale + raw[:, 2:4].contiguous().view(torch.float16)
    ### END SOLUTION


def from_gguf(
    tensors: Mapping[str, Tensor], heads: int, kv_heads: int, kind: str
) -> dict[str, Tensor]:
    """Return the weights of a GGUF by this module's names and in its order.

    `our_name(name)` gives the name, and `joined(weights)` joins queries, keys and values. In a file
    of the kind "llama" the rows of each head of queries ("attn_q") and of keys ("attn_k") lie as
    llama.cpp pairs them: (0, half, 1, half + 1, ...). Put them back in halves: 0, 1, ..., half,
    half + 1, ... . Other kinds ("qwen2", "qwen3") have them so already. `tensors` isn't changed.
    """
    ### BEGIN SOLUTION
    counts = {"attn_q": heads, "attn_k": kv_heads} if kind == "llama" else {}
    weights = {}
    for name, tensor in tensors.items():
        count = counts.get(name.split(".")[-2])
        if count is not None:
            tensor = tensor.unflatten(0, (count, -1, 2)).transpose(1, 2).flatten(0, 2)
        weights[our_name(name)] = tensor
    return joined(weights)
    ### END SOLUTION


# ------------------------------------------------------------------------------------------ a chat


def chat_ids(messages: Sequence[Message], tokenizer: Any, control: Mapping[str, int]) -> list[int]:
    """Return the ids of a chat in the form that ChatML models have learned, up to the answer.

    Each message is `<|im_start|>`, its role, a line break, its content, `<|im_end|>` and a line
    break; at the end, `<|im_start|>`, "assistant" and a line break ask for the answer. A chat that
    doesn't begin with the role "system" gets a system message before it, with SYSTEM as content.
    `control` has the ids of the two control tokens. All else is text: `tokenizer.encode(text)`
    returns its ids, where the names of control tokens are letters as any other. Text between two
    control tokens is encoded in one piece. `messages` isn't changed.
    """
    ### BEGIN SOLUTION
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": SYSTEM}, *messages]
    start, end, newline = control["<|im_start|>"], control["<|im_end|>"], tokenizer.encode("\n")
    ids = []
    for message in messages:
        ids += [start, *tokenizer.encode(f"{message['role']}\n{message['content']}"), end, *newline]
    return [*ids, start, *tokenizer.encode("assistant\n")]
    ### END SOLUTION
