"""The continuous batching of transformers, with its own paged cache."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from timing.peers.engine import Given, Ids, Served

PAGE_SIZE = 32  # tokens
BATCH_TOKENS = 256  # the token budget of a step


class HFContinuous:
    """It also runs on a CPU, with scaled_dot_product_attention over its pages."""

    def __init__(self, given: Given) -> None:
        torch.set_num_threads(given.threads)
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            given.folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()

    def serve(self, prompts: Sequence[Ids], new_tokens: Sequence[int], size: int) -> Served:
        requests = list(zip(prompts, new_tokens, strict=True))
        longest = max(len(prompt) + limit for prompt, limit in requests)
        # Without explicit sizes, transformers would take most of the machine's memory.
        batching = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=size * (-(-longest // PAGE_SIZE) + 1),
            max_batch_tokens=max(size, BATCH_TOKENS),
            max_requests_per_batch=size,
            allow_block_sharing=False,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        manager = self.model.init_continuous_batching(greedy, batching)
        manager.start()
        try:
            start = perf_counter()
            names = [
                manager.add_request(prompt, max_new_tokens=limit, record_timestamps=True)
                for prompt, limit in requests
            ]
            done: dict[str, Any] = {}
            while len(done) < len(names):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("the generating thread has ended.")
                if result is not None and result.error is not None:
                    raise RuntimeError(result.error)
                if result is not None and result.is_finished():
                    done[result.request_id] = result
        finally:
            manager.stop(block=True)
        outputs = [done[name].generated_tokens for name in names]
        return Served(start, outputs, [done[name].timestamps for name in names])
