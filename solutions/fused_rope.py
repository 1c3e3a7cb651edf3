"""Lab 20, given: what lab 7's FusedTransformer is for GPT-2, for Llama's family."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from solutions.engine.products import USUAL, Choice
from solutions.engine.runner import FusedTransformer, PackedCache
from solutions.llama import radians_of


class FusedLlama(FusedTransformer):
    """Computes a Llama's hidden states with fewer operations, on the model's own weights."""

    def __init__(self, model: Any, choice: Choice = USUAL) -> None:
        super().__init__(model, choice)
        self.radians = radians_of(model.config).to(model.transformer.ln_f.weight.device)
        norms = [block.attn.norms for block in model.transformer.h]
        self.head_norms = [[self.norm_of(norm) for norm in both] for both in norms]

    def __call__(
        self,
        inputs: Int[Tensor, "1 total"],
        position_ids: Int[Tensor, "1 total"],
        kv_cache: PackedCache,
    ) -> Float[Tensor, "1 total n_embd"]:
        config, total, (wte,) = self.config, inputs.shape[1], self.embeddings
        both = config.n_head * config.group, config.n_head  # heads of queries, and of keys
        hidden = wte(inputs[0])
        angles = position_ids[0, :, None, None] * self.radians
        cos, sin = angles.cos().to(hidden.dtype), angles.sin().to(hidden.dtype)
        for layer, (ln_1, c_attn, attn_proj, ln_2, c_fc, mlp_proj) in enumerate(self.layers):
            heads = c_attn(F.rms_norm(hidden, *ln_1)).view(total, -1, config.head_dim)
            turning, values = heads.split([sum(both), config.n_head], dim=1)
            if norms := self.head_norms[layer]:
                parts = zip(turning.split(both, dim=1), norms, strict=True)
                turning = torch.cat([F.rms_norm(part, *norm) for part, norm in parts], dim=1)
            first, second = turning.chunk(2, dim=-1)
            halves = first * cos - second * sin, first * sin + second * cos
            rows = torch.cat(halves, dim=-1).transpose(0, 1)[None]
            queries, keys = rows.split(both, dim=1)
            attended = kv_cache.attend(layer, queries, keys, values.transpose(0, 1)[None])
            hidden = attn_proj(attended[0].transpose(0, 1).flatten(1)).add_(hidden)
            gates, neurons = c_fc(F.rms_norm(hidden, *ln_2)).chunk(2, dim=-1)
            hidden = mlp_proj(F.silu(gates).mul_(neurons)).add_(hidden)
        return F.rms_norm(hidden, *self.last_norm)[None]

    @staticmethod
    def norm_of(module: Any) -> tuple[Any, ...]:
        return module.weight.shape, module.weight, module.eps
