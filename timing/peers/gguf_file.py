"""Convert a GPT-2 for llama.cpp: python -m timing.peers.gguf_file FOLDER FILE PRECISION"""

import json
import sys
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType, LlamaFileType, TokenType

from gpt import (
    NOT_WEIGHTS,
    WEIGHT_FILES,
    GPTConfig,
    first_existing,
    load_tokenizer,
    read_config,
    read_weights,
)

FILE_TYPES = {"float32": LlamaFileType.ALL_F32, "q8_0": LlamaFileType.MOSTLY_Q8_0}


def write_gguf(folder: Path, path: Path, precision: str) -> None:
    """Write the model in `folder` to the file `path`, with its weights in one of FILE_TYPES.

    Q8_0 rounds matrices to 8 bits, with a scale for every 32 numbers of a row. Vectors and the
    position embeddings, which are only added, stay in float32, as in llama.cpp's own quantizer.
    """
    config = read_config(folder)
    writer = gguf.GGUFWriter(path, "gpt2")
    add_shape(writer, config)
    add_tokenizer(writer, folder, config)
    writer.add_file_type(FILE_TYPES[precision])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.n_layer)
    for name, weight in read_weights(first_existing(folder, WEIGHT_FILES, "weights")).items():
        if name.endswith(NOT_WEIGHTS) or name == "lm_head.weight":
            continue
        is_linear = weight.ndim == 2 and ".h." in f".{name}"
        rows = (weight.T if is_linear else weight).contiguous().float().numpy()
        kind = GGMLQuantizationType.F32
        if precision == "q8_0" and weight.ndim == 2 and "wpe" not in name:
            kind = GGMLQuantizationType.Q8_0
        new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(new_name, gguf.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_shape(writer: gguf.GGUFWriter, config: GPTConfig) -> None:
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: GPTConfig) -> None:
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
    if tokenizer.eos_token_id is not None:
        writer.add_bos_token_id(tokenizer.eos_token_id)
        writer.add_eos_token_id(tokenizer.eos_token_id)


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
