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
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from solutions.families import find_checkpoint, load_tokenizer
from solutions.gguf.file import gguf_in

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


def load_as_transformers_does(file: Path) -> Any:
    shape = load_gguf_checkpoint(str(file))["config"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape))
    read = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)
    lacking, unknown = model.load_state_dict(read["tensors"], strict=False)
    if unknown or set(lacking) - {"lm_head.weight"}:
        raise ValueError(f"{file}: {unknown} is unknown to transformers, {lacking} lacks.")
    return model.eval()


@torch.inference_mode()
def golden(path: Path) -> list[dict[str, Any]]:
    """Return the ids of each prompt, and the highest logits after it with their ids."""
    file = gguf_in(path)
    if file is None:
        raise ValueError(f"{path} has no GGUF file.")
    model, tokenizer = load_as_transformers_does(file), load_tokenizer(path)
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
