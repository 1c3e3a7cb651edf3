"""Transformers, for comparison: without its cache, with it, and in padded batches."""

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from solutions.batching import pad_left
from timing.table import Batches, Bench, BestBatches, Ids, Rows, kv_bytes
from timing.table.workloads import EQUAL, EQUAL_REQUESTS, LENGTHS, RAGGED

HF_SIZES = 8, 16, 32, 64


def hf_nocache(bench: Bench) -> Batches:
    about = "transformers, use_cache=False"
    return Batches(about, load(bench.folder, bench.device), generate(False), kv_bytes.none_held)


def hf(bench: Bench, size: int = 1) -> Batches:
    about, model = "transformers, use_cache=True", load(bench.folder, bench.device)
    return Batches(about, model, generate(True), kv_bytes.of_transformers, size)


def hf_best(bench: Bench) -> BestBatches:
    return BestBatches([hf(bench, size) for size in HF_SIZES])


@functools.cache
def load(folder: Path, device: torch.device) -> nn.Module:
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # Greedy and without an EOS, as the course's own loops run here, whatever the checkpoint says.
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval().requires_grad_(False).to(device)


def generate(use_cache: bool) -> Callable[[Any, list[Ids], list[int]], list[Ids]]:
    def generate(model: Any, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        input_ids, attention_mask = (padded.to(model.device) for padded in pad_left(prompts))
        generated = model.generate(
            input_ids,
            attention_mask=attention_mask.long(),
            max_new_tokens=max(new_tokens),
            use_cache=use_cache,
        )
        new_ids = generated[:, input_ids.shape[1] :].tolist()
        rows = zip(prompts, new_ids, new_tokens, strict=True)
        return [prompt + row[:limit] for prompt, row, limit in rows]

    return generate


ROWS: Rows = {
    "hf-nocache": {LENGTHS: hf_nocache},
    "hf": {LENGTHS: hf, RAGGED: hf_best, EQUAL: partial(hf, size=EQUAL_REQUESTS)},
}
