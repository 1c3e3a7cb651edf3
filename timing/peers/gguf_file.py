"""Convert a model for llama.cpp: python -m timing.peers.gguf_file FOLDER FILE PRECISION"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType, LlamaFileType, RopeScalingType, TokenType
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gpt import NOT_WEIGHTS, WEIGHT_FILES, first_existing, load_tokenizer, read_weights

FILE_TYPES = {
    "float32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_1": LlamaFileType.MOSTLY_Q4_1,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
ARCHITECTURES = {"mistral": "llama"}  # whose files say that they are something else


def write_gguf(folder: Path, path: Path, precision: str) -> None:
    """Write the model in `folder` to the file `path`, with its weights in one of FILE_TYPES.

    Q8_0 rounds matrices to 8 bits, with a scale for every 32 numbers of a row, and the others do
    likewise. Vectors and the position embeddings, which are only added, stay in float32, as in
    llama.cpp's own quantizer; so does a matrix whose rows can't be cut into blocks.
    """
    config = AutoConfig.from_pretrained(folder)
    kind = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, kind)
    add_shape(writer, config)
    add_tokenizer(writer, folder, config)
    writer.add_file_type(FILE_TYPES[precision])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], config.num_hidden_layers)
    for name, weight in read_weights(first_existing(folder, WEIGHT_FILES, "weights")).items():
        if name.endswith(NOT_WEIGHTS) or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        rows = in_its_order(config, kind, new_name, weight.float()).contiguous().numpy()
        stored = GGMLQuantizationType.F32
        if precision != "float32" and weight.ndim == 2 and "wpe" not in name:
            stored = GGMLQuantizationType[precision.upper()]
        if rows.shape[-1] % gguf.GGML_QUANT_SIZES[stored][0]:
            stored = GGMLQuantizationType.F32
        writer.add_tensor(new_name, gguf.quantize(rows, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_its_order(
    config: Any, kind: str, name: str, weight: Float[Tensor, "rows ..."]
) -> Float[Tensor, "rows ..."]:
    """Return a weight with its numbers where llama.cpp expects them.

    GPT-2's linear layers are [in, out] in a folder of the hub. llama.cpp turns neighbors in the
    heads of a Llama, where the hub turns pairs half a head apart.
    """
    place = name.split(".")[-2]
    if kind == "gpt2" and weight.ndim == 2 and name.startswith("blk."):
        return weight.T
    if kind == "llama" and place in ("attn_q", "attn_k"):
        is_key = place == "attn_k"
        heads = config.num_key_value_heads if is_key else config.num_attention_heads
        return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
    return weight


def add_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config.vocab_size)
    add_rotation(writer, config)


def add_rotation(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add how the rotation is scaled: by one factor, or, as in Llama 3, by one for each pair."""
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "llama3":
        slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        pairs = torch.arange(len(slowed)) / len(slowed)
        factors = 1 / rope["rope_theta"] ** pairs / slowed
        writer.add_tensor("rope_freqs.weight", factors.float().numpy())


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: Any) -> None:
    """Add the vocabulary and its merges. Ids that only the model has are marked as unused."""
    tokenizer = load_tokenizer(folder)
    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    numbers = range(config.vocab_size)
    special = set(tokenizer.all_special_ids)
    kinds = [TokenType.CONTROL if n in special else TokenType.NORMAL for n in numbers]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens.get(n, f"[unused {n}]") for n in numbers])
    writer.add_token_types([k if n in tokens else TokenType.UNUSED for n, k in enumerate(kinds)])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    if tokenizer.chat_template is not None:
        writer.add_chat_template(tokenizer.chat_template)
    if tokenizer.eos_token_id is not None:
        writer.add_bos_token_id(tokenizer.eos_token_id)
        writer.add_eos_token_id(tokenizer.eos_token_id)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
