"""Lab 16: from text to text, with a tokenizer of our own."""

from collections.abc import Iterator
from typing import Any

import torch

from timing.table import Absent, Batches, Bench, Ids, Prepared, Rows, kv_bytes
from timing.table.workloads import LENGTHS


def text(bench: Bench) -> Prepared:
    """Prepare the row `cached` with text at both ends: the difference is what the text costs."""
    lab, new_cache = bench.lab("tokenizer"), bench.lab("kv_cache").KVCache
    try:
        tokenizer = lab.read_tokenizer(bench.folder / "tokenizer.json")
    except (OSError, ValueError):
        return Absent("the model has no tokenizer.json that is like GPT-2's.")

    def generate(model: Any, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        [prompt], [limit] = prompts, new_tokens
        ids: Ids = lab.encode(lab.decode(prompt, tokenizer.token_bytes), tokenizer)
        stream, new, shown = lab.StreamDecoder(tokenizer.token_bytes), [], ""
        for token in greedy(model, new_cache, ids, limit):
            new.append(token)
            shown += stream.push(token)
        assert shown + stream.flush() == lab.decode(new, tokenizer.token_bytes)
        return [ids + new]

    about = "the cached loop from text to text: a BPE of our own, a stream decoder (lab 16)"
    return Batches(about, bench.quick(), generate, kv_bytes.of_object)


@torch.no_grad()
def greedy(model: Any, new_cache: Any, prompt: Ids, limit: int) -> Iterator[int]:
    """Do what lab 2's loop does, and yield each token as soon as it is known."""
    weight = model.transformer.wte.weight
    kv_cache = new_cache(model.config, 1, len(prompt) + limit, weight.device, weight.dtype)
    new_ids = prompt
    for _ in range(limit):
        inputs = torch.tensor([new_ids], device=weight.device)
        position_ids = kv_cache.length + torch.arange(len(new_ids), device=weight.device)
        new_ids = [int(model(inputs, position_ids[None], kv_cache)[0, -1].argmax())]
        yield new_ids[0]


ROWS: Rows = {"text": {LENGTHS: text}}
