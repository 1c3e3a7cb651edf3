"""Checkpoints of Llama's family that tests write with transformers, in each of its variants."""

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from solutions.llama import SYSTEM
from tests.common.checkpoints import SHIPPED

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Three query heads for each KV head, and a width that isn't heads * head_dim: none fits by chance.
SMALL = {
    "vocab_size": 4096,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rope_theta": 100.0,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    f"{{{{ '<|im_start|>system\\n{SYSTEM}<|im_end|>\\n' }}}}{{% endif %}}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONTROL = {"<|endoftext|>": 0, "<|im_start|>": 4096, "<|im_end|>": 4097, "<|eot_id|>": 4098}
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-groups-of-two": {"num_key_value_heads": 3},
    "llama-no-groups": {"num_key_value_heads": 6},
    "llama-one-kv-head": {"num_key_value_heads": 1},
    "llama-biases": {"attention_bias": True},
    "llama-usual-head-dim": {"head_dim": 16},
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    "llama-llama3": {"rope_parameters": LLAMA3},
    "qwen2": {},
    "qwen2-tied": {"tie_word_embeddings": True},
    "qwen3": {},
    "qwen3-biases": {"attention_bias": True},
    "qwen3-tied": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "mistral-window": {"sliding_window": 256},
}


def write_llama(folder: Path, variant: str = "llama", **changes: Any) -> PreTrainedModel:
    """Write a small random model of one of VARIANTS with the shipped tokenizer; return it.

    Its gains and biases are drawn, so that none of them can be left out, and its weights are large,
    so that the two best logits are never close.
    """
    shape = {**SMALL, **VARIANTS[variant], **changes}
    rope = shape.pop("rope_parameters", {"rope_type": "default"})
    shape["rope_parameters"] = {"rope_theta": shape.pop("rope_theta"), **rope}
    if variant.startswith("qwen2"):
        del shape["head_dim"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(variant.split("-")[0], initializer_range=0.1, **shape)
    model = AutoModelForCausalLM.from_config(config)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            torch.nn.init.normal_(weight, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.eval().save_pretrained(folder, max_shard_size=changes.get("max_shard_size", "5GB"))
    for file in SHIPPED.glob("tokenizer*"):
        shutil.copy(file, folder)
    return model


def write_chat_model(folder: Path) -> None:
    """Write a small random model that has ChatML's template, and three tokens that end a text."""
    ends = [CONTROL[name] for name in ("<|im_end|>", "<|endoftext|>", "<|eot_id|>")]
    write_llama(folder, "llama-tied", vocab_size=4112, eos_token_id=ends)
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    tokenizer.add_special_tokens(list(CONTROL))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHATML)
