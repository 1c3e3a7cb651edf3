"""The names of a Llama's weights: here, in a folder of the hub, and in a GGUF file."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Names(NamedTuple):
    here: str
    hub: str
    gguf: str


IN_A_LAYER = [
    Names("ln_1", "input_layernorm", "attn_norm"),
    Names("ln_2", "post_attention_layernorm", "ffn_norm"),
    Names("attn.norms.0", "self_attn.q_norm", "attn_q_norm"),
    Names("attn.norms.1", "self_attn.k_norm", "attn_k_norm"),
    Names("attn.c_attn.q", "self_attn.q_proj", "attn_q"),
    Names("attn.c_attn.k", "self_attn.k_proj", "attn_k"),
    Names("attn.c_attn.v", "self_attn.v_proj", "attn_v"),
    Names("attn.c_proj", "self_attn.o_proj", "attn_output"),
    Names("mlp.c_fc.gate", "mlp.gate_proj", "ffn_gate"),
    Names("mlp.c_fc.up", "mlp.up_proj", "ffn_up"),
    Names("mlp.c_proj", "mlp.down_proj", "ffn_down"),
]
OUTSIDE = [
    Names("transformer.wte", "model.embed_tokens", "token_embd"),
    Names("transformer.ln_f", "model.norm", "output_norm"),
    Names("output", "lm_head", "output"),
]
LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.(.+)")
PARTS = {"attn.c_attn": ("q", "k", "v"), "mlp.c_fc": ("gate", "up")}  # which are joined, in order
LINEAR = "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"


def our_name(name: str) -> str:
    """Return the name here of a weight of a hub's folder or a GGUF.

    `model.layers.3.mlp.gate_proj.weight` and `blk.3.ffn_gate.weight` are both
    `transformer.h.3.mlp.c_fc.gate.weight`. Raises ValueError for a name that no Llama has.
    """
    place, kind = name.rsplit(".", 1)
    layer = LAYER.fullmatch(place)
    for names in IN_A_LAYER if layer else OUTSIDE:
        if (layer[2] if layer else place) in (names.hub, names.gguf):
            prefix = f"transformer.h.{layer[1]}." if layer else ""
            return f"{prefix}{names.here}.{kind}"
    raise ValueError(f"{name} isn't a weight of a Llama. Take another checkpoint.")


def joined(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights as the model has them: q, k, v in one matrix, gate and up in one.

    Checkpoints have matrices as [n_out, n_in]. They are turned to [n_in, n_out] by a view, which
    costs nothing. A bias that isn't there is zero.
    """
    whole = dict(weights)
    layers = {name.split(".")[2] for name in weights if name.startswith("transformer.h.")}
    for layer in layers:
        for place in LINEAR:
            prefix = f"transformer.h.{layer}.{place}"
            for kind in ("weight", "bias"):
                names = [f"{prefix}.{part}.{kind}" for part in PARTS.get(place, ())]
                if names and names[0] in whole:
                    whole[f"{prefix}.{kind}"] = torch.cat([whole.pop(name) for name in names])
            weight = whole[f"{prefix}.weight"] = whole[f"{prefix}.weight"].T
            whole.setdefault(f"{prefix}.bias", weight.new_zeros(weight.shape[1]))
    return whole
