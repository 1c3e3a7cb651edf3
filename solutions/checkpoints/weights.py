"""A checkpoint of Llama's family as a shape and weights: a folder of the hub, or one GGUF file.

Both hold the same numbers under different names. `of_hub` and `of_gguf` read the shape.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from gpt import WEIGHT_FILES, first_existing, read_weights
from solutions.gguf.config import LlamaConfig
from solutions.gguf.file import GGUF, gguf_in
from solutions.gguf.names import joined, our_name

Weights = dict[str, Tensor]
SIZES = "vocab_size", "n_positions", "n_embd", "n_inner", "n_layer", "n_head", "group", "head_dim"
KINDS = "llama", "mistral", "qwen2", "qwen3"
INDEX = "model.safetensors.index.json"  # of a checkpoint in several files


def read_checkpoint(path: Path) -> tuple[LlamaConfig, Weights]:
    """Return the shape and the weights of a model, in float32 and by llama.py's names.

    `path` is a folder of the hub's layout, a GGUF file, or a folder with one. Raises ValueError,
    with what to do about it, for another architecture, and if the weights don't fit the shape.
    """
    file = gguf_in(path)
    config, weights = read_hub(path) if file is None else read_gguf(GGUF(file))
    if config.tied:
        weights.pop("output.weight", None)  # some files repeat the embedding
    require_fitting(path, config, weights)
    return config, weights


def read_shape(path: Path) -> LlamaConfig:
    """Return the shape alone. Raises ValueError for another architecture."""
    file = gguf_in(path)
    return hub_config(path) if file is None else of_gguf(GGUF(file))


def require_fitting(path: Path, config: LlamaConfig, weights: Weights) -> None:
    sizes = asdict(config).items()
    if any(not isinstance(n, int) or n < 1 for name, n in sizes if name in SIZES):
        raise ValueError(
            f"{path} has impossible sizes ({config}): they must be whole numbers above 0."
        )
    from solutions.llama import LlamaLMHead

    with torch.device("meta"):
        expected = LlamaLMHead(config).state_dict()
    for name in sorted(expected.keys() | weights.keys()):
        shapes = [list(w[name].shape) if name in w else None for w in (weights, expected)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} isn't the model that its description says: {name} is {shapes[0]}, not "
                f"{shapes[1]}. Download it again, or take another checkpoint."
            )


def refused(path: Path, what: str, taken: str) -> ValueError:
    return ValueError(f"{path} has {what}, which isn't read here; {taken}.")


# ------------------------------------------------------------------------------ a folder of the hub


def hub_config(folder: Path) -> LlamaConfig:
    file = first_existing(folder, ("config.json",), "configuration")
    generation = folder / "generation_config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if generation.exists():  # which has all ids that end a chat's answer
            ends = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
            found["eos_token_id"] = found.get("eos_token_id") if ends is None else ends
        return of_hub(file, found)
    except (KeyError, TypeError, AttributeError, ArithmeticError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{file} isn't the description of a model ({error!r}). Download it again."
        ) from error


def read_hub(folder: Path) -> tuple[LlamaConfig, Weights]:
    config = hub_config(folder)
    pairs = (pair for shard in shards(folder) for pair in read_weights(shard).items())
    return config, joined({our_name(n): w.float() for n, w in pairs if "rotary_emb" not in n})


def shards(folder: Path) -> Iterator[Path]:
    """Yield the files of the weights: one, or as many as the index names."""
    if not (folder / INDEX).exists():
        yield first_existing(folder, WEIGHT_FILES, "weights")
        return
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    for name in sorted(set(index["weight_map"].values())):
        yield first_existing(folder, (Path(name).name,), "weights")


def of_hub(file: Path, found: Mapping[str, Any]) -> LlamaConfig:
    """Return the shape that a config.json describes. Raises ValueError for another architecture."""
    kind = found.get("model_type")
    if kind not in KINDS:
        raise refused(file, f"model_type = {kind!r}", f"{', '.join(KINDS)} are")
    if found.get("hidden_act", "silu") != "silu" or found.get("mlp_bias"):
        raise refused(file, "an MLP of another kind", "SwiGLU without biases is")
    heads, width = found["num_attention_heads"], found["hidden_size"]
    kv_heads = found.get("num_key_value_heads") or heads
    positions = found["max_position_embeddings"]
    window = found.get("sliding_window") if found.get("use_sliding_window", True) else None
    rope = rope_of(found)
    return LlamaConfig(
        vocab_size=found["vocab_size"],
        n_positions=min(positions, window or positions),  # up to its length, a window hides nothing
        n_embd=width,
        n_inner=found["intermediate_size"],
        n_layer=found["num_hidden_layers"],
        n_head=kv_heads,
        group=heads // kv_heads,
        head_dim=found.get("head_dim") or width // heads,
        rms_norm_eps=found["rms_norm_eps"],
        rope_theta=rope["rope_theta"],
        scaling=scaling_of(file, rope),
        qk_norm=kind == "qwen3",
        tied=found.get("tie_word_embeddings", False),
        eos_token_ids=as_ids(found.get("eos_token_id")),
    )


def rope_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config.json says of the rotation.

    transformers 5 writes "rope_parameters". Version 4 wrote "rope_scaling", in older files with
    "type" in place of "rope_type", and "rope_theta" beside it.
    """
    rope = {"rope_theta": found.get("rope_theta", 10_000.0)}
    rope |= found.get("rope_scaling") or {}
    rope |= found.get("rope_parameters") or {}
    return {**rope, "rope_type": rope.get("rope_type", rope.get("type", "default"))}


def scaling_of(file: Path, rope: Mapping[str, Any]) -> Mapping[str, Any] | None:
    kind = rope["rope_type"]
    if kind not in ("default", "linear", "llama3"):
        raise refused(file, f"positions scaled by {kind!r}", "linear and llama3 are")
    return None if kind == "default" else rope


def as_ids(eos: int | list[int] | None) -> tuple[int, ...]:
    return tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)


# ------------------------------------------------------------------------------------- a GGUF file


def read_gguf(file: GGUF) -> tuple[LlamaConfig, Weights]:
    # Only now: lab 20's notebook reads shapes with this file, and has no solution of the lab.
    from solutions.llama import from_gguf

    config, kind = of_gguf(file), file.entries["general.architecture"]
    tensors = {name: tensor_of(file, name) for name in file.tensors if name != "rope_freqs.weight"}
    return config, from_gguf(tensors, config.n_head * config.group, config.n_head, kind)


def tensor_of(file: GGUF, name: str) -> Tensor:
    """Return a tensor of the file in float32."""
    return numbers_of(file.blocks(name), file.kind(name).name).reshape(file.tensors[name].shape)


def numbers_of(blocks: UInt8[Tensor, "blocks bytes"], kind: str) -> Float[Tensor, "blocks numbers"]:
    from solutions.llama import dequantize

    plain = {"F32": torch.float32, "F16": torch.float16}
    return blocks.view(plain[kind]).float() if kind in plain else dequantize(blocks, kind)


def of_gguf(file: GGUF) -> LlamaConfig:
    """Return the shape that a GGUF describes. Raises ValueError for another architecture."""
    entries, kind = file.entries, file.entries.get("general.architecture")
    if kind not in KINDS:
        raise refused(file.path, f"the architecture {kind!r}", f"{', '.join(KINDS)} are")

    def entry(name: str, *default: Any) -> Any:
        if f"{kind}.{name}" not in entries and not default:
            raise ValueError(f"{file.path} has no entry {kind}.{name}. Download it again.")
        return entries.get(f"{kind}.{name}", *default)

    heads, width, positions = (
        entry(name) for name in ("attention.head_count", "embedding_length", "context_length")
    )
    kv_heads = entry("attention.head_count_kv", heads)
    factors = "rope_freqs.weight"
    ends = [entries.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot")]
    return LlamaConfig(
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        n_positions=min(positions, entry("attention.sliding_window", None) or positions),
        n_embd=width,
        n_inner=entry("feed_forward_length"),
        n_layer=entry("block_count"),
        n_head=kv_heads,
        group=heads // kv_heads,
        head_dim=entry("attention.key_length", width // heads),
        rms_norm_eps=entry("attention.layer_norm_rms_epsilon"),
        rope_theta=entry("rope.freq_base", 10_000.0),
        scaling=linear_of(file, entry),
        rope_factors=tuple(tensor_of(file, factors).tolist()) if factors in file.tensors else None,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        tied="output.weight" not in file.tensors,
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )


def linear_of(file: GGUF, entry: Any) -> Mapping[str, Any] | None:
    kind = entry("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise refused(file.path, f"positions scaled by {kind!r}", "linear and llama3 are")
    factor = entry("rope.scaling.factor", 1.0)
    return None if kind == "none" else {"rope_type": "linear", "factor": factor}
