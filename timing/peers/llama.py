"""llama.cpp: parallel sequences in one context, served like the slots of its own server."""

import ctypes
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np

from timing.peers.catalogue import FLOAT32
from timing.peers.engine import Given, Ids, Served


class LlamaCpp:
    """Requests join and leave between any two steps. A prompt is computed whole, in one step.

    The binding's own class handles only one sequence, so this class calls llama.cpp's functions.
    With float32 weights, keys and values are float32 too, so that the tokens can be compared with
    ours; otherwise they are float16, llama.cpp's default. A GGUF file is taken as it is.
    """

    def __init__(self, given: Given) -> None:
        is_gguf = given.folder.suffix == ".gguf"
        path = given.folder if is_gguf else given.scratch / f"{given.precision}.gguf"
        if not path.exists():
            convert(given.folder, path, given.precision)
        self.threads, self.exact = given.threads, given.precision == FLOAT32 and not is_gguf
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        # Its AMX kernels crash on more than one row: github.com/ggml-org/llama.cpp/issues/20824
        params.use_extra_bufts = b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError("llama.cpp could not load the model.")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def serve(self, prompts: Sequence[Ids], new_tokens: Sequence[int], size: int) -> Served:
        size = min(size, len(prompts))
        both = zip(prompts, new_tokens, strict=True)
        longest = max(len(prompt) + limit for prompt, limit in both)
        most = size * max(len(prompt) for prompt in prompts)  # tokens, if every sequence is new
        outputs: list[Ids] = [[] for _ in prompts]
        token_times: list[list[float]] = [[] for _ in prompts]
        waiting, running = deque(range(len(prompts))), dict[int, int]()  # sequence to request
        with self.memory(size, longest, most) as (context, batch):
            start = perf_counter()
            while waiting or running:
                batch.n_tokens = 0
                rows = {}  # for each sequence, the place of its last token in the batch
                for sequence in range(size):
                    if sequence in running:
                        number = running[sequence]
                        position = len(prompts[number]) + len(outputs[number]) - 1
                        rows[sequence] = add(batch, sequence, outputs[number][-1:], position)
                    elif waiting:
                        number = running[sequence] = waiting.popleft()
                        rows[sequence] = add(batch, sequence, prompts[number], 0)
                if llama_cpp.llama_decode(context, batch):
                    raise RuntimeError("llama.cpp could not decode a batch.")
                for sequence, row in rows.items():
                    number = running[sequence]
                    outputs[number].append(self.best_token(context, row))
                    token_times[number].append(perf_counter())
                    if len(outputs[number]) == new_tokens[number]:
                        del running[sequence]
                        cached = llama_cpp.llama_get_memory(context)
                        llama_cpp.llama_memory_seq_rm(cached, sequence, -1, -1)
        return Served(start, outputs, token_times)

    @contextmanager
    def memory(self, size: int, longest: int, most: int) -> Iterator[tuple[Any, Any]]:
        """Yield a context for `size` sequences of `longest` tokens, and a batch for `most`."""
        params = llama_cpp.llama_context_default_params()
        params.n_seq_max = size
        params.n_ctx = size * -(-longest // 256) * 256  # llama.cpp rounds each share down
        params.n_batch = most
        params.n_threads = params.n_threads_batch = self.threads
        if self.exact:
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        context = llama_cpp.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError("llama.cpp could not make a context.")
        batch = llama_cpp.llama_batch_init(most, 0, 1)
        try:
            yield context, batch
        finally:
            llama_cpp.llama_batch_free(batch)
            llama_cpp.llama_free(context)

    def best_token(self, context: Any, row: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(context, row)
        address = ctypes.addressof(logits.contents)
        return int(np.argmax((ctypes.c_float * self.vocab_size).from_address(address)))


def add(batch: Any, sequence: int, tokens: Ids, position: int) -> int:
    """Add a sequence's next tokens to the batch, with logits after the last. Return its place."""
    for offset, token in enumerate(tokens):
        row = batch.n_tokens
        batch.token[row], batch.pos[row] = token, position + offset
        batch.n_seq_id[row], batch.seq_id[row][0] = 1, sequence
        batch.logits[row] = offset == len(tokens) - 1
        batch.n_tokens += 1
    return batch.n_tokens - 1


def convert(folder: Path, path: Path, precision: str) -> None:
    """Convert the model in another process, because reading the weights needs torch."""
    partial = path.with_suffix(".partial")
    arguments = [str(folder), str(partial), precision]
    subprocess.run([sys.executable, "-m", "timing.peers.gguf_file", *arguments], check=True)
    partial.rename(path)
