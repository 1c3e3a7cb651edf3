"""Write golden numbers next to a GGUF: what transformers computes after a few prompts.

    python models/golden.py fable-llama

Lab 20 compares its own model with them. transformers and the gguf package read the weights, so none
of the lab's functions takes part. Only the ids come from the tokenizer that the lab uses, too.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from solutions.families import find_checkpoint, load_tokenizer
from solutions.gguf.file import gguf_in
from timing.hf import from_gguf

LONG = (
    "There was once a poor miller who had three sons. When he died, he left them only his mill, "
    "his ass and a cat. The eldest"
)
PROMPTS = (
    "Once",  # one token, which no wrong rotation changes
    "The king said to the youngest",
    LONG,
)
TOP = 5  # logits


@torch.inference_mode()
def golden(path: Path) -> list[dict[str, Any]]:
    """Return the ids of each prompt, and the highest logits after it with their ids."""
    file = gguf_in(path)
    if file is None:
        raise ValueError(f"{path} has no GGUF file.")
    model, tokenizer = from_gguf(file).eval(), load_tokenizer(path)
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        logits, top = model(torch.tensor([ids])).logits[0, -1].topk(TOP)
        row = {"prompt": prompt, "ids": ids, "top": top.tolist()}
        rows.append({**row, "logits": [round(value, 4) for value in logits.tolist()]})
    return rows


if __name__ == "__main__":
    path = find_checkpoint(sys.argv[1])
    numbers = json.dumps(golden(path)) + "\n"
    (path / "golden.json").write_text(numbers, encoding="utf-8")
