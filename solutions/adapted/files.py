"""Lab 23, given: adapters in files, as PEFT writes them.

A folder has adapter_config.json and adapter_model.safetensors. PEFT keeps A as [rank, n_in] and B
as [n_out, rank], a pair for each layer that was trained. One matrix of ours may compute several
layers of a Llama, such as queries, keys and values. Then their A's lie side by side here, and each
B has rows and columns of its own: A is not shared, and a layer that wasn't trained gets zeros.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from gpt import first_existing, read_weights
from solutions.adapted.adapter import shapes_of
from solutions.adapters import LowRank
from solutions.gguf.names import LINEAR

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAYER = re.compile(r"base_model\.model\.(?P<layer>.+)\.lora_(?P<side>[AB])\.weight")
# Settings that change what an adapter computes, with the only value that is computed here.
PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "use_dora": False,
    "bias": "none",
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}


def read_adapter(folder: Path, config: Any) -> dict[str, LowRank]:
    """Read what an adapter adds to the matrices of a model with this config.

    Raises ValueError, with what is wrong, for a file that can't be read, an adapter of another kind
    or for another model, and for layers that have no adapters here, such as embeddings.
    """
    rank, scale = read_scale(folder)
    sides: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, weight in read_weights(first_existing(folder, (WEIGHTS,), "adapter")).items():
        found = LAYER.fullmatch(name)
        if found is None:
            raise refused(folder, f"{name}, which isn't one of an adapter's two thin matrices")
        sides[found["layer"]][found["side"]] = weight
    parts: dict[str, list[tuple[slice, Tensor, Tensor]]] = defaultdict(list)
    shapes, places = shapes_of(config), places_of(config)
    for layer, both in sides.items():
        if layer not in places:
            raise refused(folder, f"an adapter on {layer}, which isn't in this model's blocks")
        name, columns = places[layer]
        n_in, n_out = shapes[name][0], columns.stop - columns.start
        expected = {"A": [rank, n_in], "B": [n_out, rank]}
        got = {side: list(weight.shape) for side, weight in both.items()}
        if got != expected:
            raise refused(folder, f"{layer} with matrices of {got}, not {expected}")
        parts[name].append((columns, both["A"].T.float(), both["B"].T.float()))
    return {name: beside(shapes[name][1], its, scale) for name, its in parts.items()}


def beside(n_out: int, parts: list[tuple[slice, Tensor, Tensor]], scale: float) -> LowRank:
    """Return one pair of matrices for all adapted layers in one of ours."""
    a = torch.cat([own_a for _, own_a, _ in parts], dim=1)
    b = torch.zeros(a.shape[1], n_out)
    first = 0
    for columns, _, own_b in parts:
        b[first : first + len(own_b), columns] = own_b
        first += len(own_b)
    return LowRank(a.contiguous(), b, scale * len(b))


def read_scale(folder: Path) -> tuple[int, float]:
    """Return an adapter's rank, and the factor of its product."""
    file = first_existing(folder, (CONFIG,), "configuration of an adapter")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        rank, alpha = int(found["r"]), float(found["lora_alpha"])
        root = math.sqrt(rank) if found.get("use_rslora") else rank
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{file} isn't the description of an adapter ({error!r}). Write it again, or take "
            "another folder."
        ) from error
    for key, value in PLAIN.items():
        if found.get(key, value) != value and found[key]:
            raise refused(folder, f"{key} = {found[key]!r}")
    return rank, alpha / root


def places_of(config: Any) -> dict[str, tuple[str, slice]]:
    """Return where each of PEFT's layers is: in which matrix of ours, and in which columns."""
    shapes, width, inner = shapes_of(config), config.n_embd, getattr(config, "n_inner", 0)
    prefix, kv_width = "transformer.h", config.n_head * config.head_dim
    widths = {name: {name: shapes[f"h.0.{name}"][1]} for name in LINEAR}
    if hasattr(config, "group"):  # a Llama
        prefix, query_width = "model.layers", config.group * kv_width
        heads = {"q": query_width, "k": kv_width, "v": kv_width}
        widths = {
            "attn.c_attn": {f"self_attn.{part}_proj": its for part, its in heads.items()},
            "attn.c_proj": {"self_attn.o_proj": width},
            "mlp.c_fc": {"mlp.gate_proj": inner, "mlp.up_proj": inner},
            "mlp.c_proj": {"mlp.down_proj": width},
        }
    return {
        f"{prefix}.{number}.{layer}": (f"h.{number}.{name}", slice(end - its[layer], end))
        for number in range(config.n_layer)
        for name, its in widths.items()
        for layer, end in zip(its, accumulate(its.values()), strict=True)
    }


def refused(folder: Path, what: str) -> ValueError:
    return ValueError(
        f"{folder} has {what}. Here, an adapter is LoRA on the matrices of the blocks, of one rank."
    )


def write_adapter(folder: Path, matrices: Mapping[str, LowRank], base: str) -> None:
    """Write an adapter of a GPT-2, in 16 bits; all its matrices have one rank and alpha."""
    folder.mkdir(parents=True)
    one, tensors = next(iter(matrices.values())), {}
    for name, (a, b, _) in matrices.items():
        prefix = f"base_model.model.transformer.{name}.lora"
        tensors[f"{prefix}_A.weight"] = a.T.half().contiguous()
        tensors[f"{prefix}_B.weight"] = b.T.half().contiguous()
    config = {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": True,
        "lora_alpha": one.alpha,
        "peft_type": "LORA",
        "r": one.a.shape[1],
        "target_modules": ["c_attn", "c_proj", "c_fc"],
        "task_type": "CAUSAL_LM",
    }
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
