"""Transformers, for comparison: without its cache, with it, and in padded batches."""

import functools
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn

from solutions.batching import pad_left
from solutions.gguf.file import gguf_in
from timing.table import Batches, Bench, BestBatches, Ids, NotTimed, Rows, kv_bytes
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
    import transformers  # takes a second, and few tables have its rows

    transformers.utils.logging.disable_progress_bar()
    file = gguf_in(folder)
    if file is None:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        model = from_gguf(file)
    # Greedy and without an EOS, as the course's own loops run here, whatever the checkpoint says.
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval().requires_grad_(False).to(device)


def from_gguf(file: Path) -> Any:
    """Read a GGUF into a model of transformers; its `from_pretrained` would need accelerate, too.

    Raises NotTimed if its reader, the package gguf, isn't there.
    """
    if find_spec("gguf") is None:
        raise NotTimed("it needs gguf to read this file. Install it: pip install gguf")
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.for_model(**load_gguf_checkpoint(file)["config"])
    model = transformers.AutoModelForCausalLM.from_config(config)
    with redirect_stderr(StringIO()):  # a progress bar
        weights = load_gguf_checkpoint(file, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


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
