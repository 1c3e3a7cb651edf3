"""Checkpoints that tests write, and texts to train models on."""

import random
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

SHIPPED = Path(__file__).resolve().parents[2] / "models" / "fable"
NOUNS = ["king", "fox", "witch", "miller", "princess", "raven", "tailor", "wolf"]
VERBS = ["saw", "sought", "deceived", "freed", "followed", "forgot"]


def tale(sentences: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return "".join(
        f"The {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}.\n"
        for _ in range(sentences)
    )


def write_tiny(folder: Path, **config: Any) -> GPT2LMHeadModel:
    """Write a small random GPT-2 with the shipped tokenizer. Return it as transformers' model.

    Its weights are large, so that the two best logits are never close. Token 0 is its EOS.
    """
    for file in SHIPPED.glob("tokenizer*"):
        shutil.copy(file, folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 4096, "n_layer": 2, "n_head": 2, **config}
    model = GPT2LMHeadModel(
        GPT2Config(initializer_range=0.5, bos_token_id=0, eos_token_id=0, **sizes)
    )
    model.save_pretrained(folder)
    return model
