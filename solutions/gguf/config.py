"""The shape of a model of Llama's family, whatever file it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a model, by gpt.py's names. The defaults give SmolLM2 with 135 million weights.

    n_head: heads of keys and values, which are those that a cache keeps. group: query heads for
    each of them, 1 in GPT-2. n_inner: neurons of the MLP. scaling: how the rotation was slowed down
    for long texts, in the words of a config.json. rope_factors: the same as a divisor for each
    pair, as a GGUF has it. qk_norm: Qwen3's norms of each head. tied: the head scores with the
    token embeddings. eos_token_ids: each of them ends a text.
    """

    vocab_size: int = 49152
    n_positions: int = 8192
    n_embd: int = 576
    n_inner: int = 1536
    n_layer: int = 30
    n_head: int = 3
    group: int = 3
    head_dim: int = 64
    rms_norm_eps: float = 1e-5
    rope_theta: float = 100_000.0
    scaling: Mapping[str, Any] | None = None
    rope_factors: tuple[float, ...] | None = None
    qk_norm: bool = False
    tied: bool = True
    eos_token_ids: tuple[int, ...] = ()

    @property
    def eos_token_id(self) -> int | None:
        return self.eos_token_ids[0] if self.eos_token_ids else None
