"""Lab 2: a KV cache that grows by concatenation, and one in preallocated memory."""

from timing.table import Batches, Bench, Own, Rows, kv_bytes, one_prompt_at_a_time
from timing.table.workloads import CHAT, EQUAL, LENGTHS, RAGGED


def cached_concat(bench: Bench) -> Batches:
    lab = bench.lab("kv_cache")
    about = "KV cache that grows by concatenation, copied at every step (lab 2)"
    generate = one_prompt_at_a_time(lab.generate_threaded)
    return Batches(about, bench.load(lab.ThreadedLMHead), generate, kv_bytes.of_tuples)


def cached(bench: Bench) -> Batches:
    lab = bench.lab("kv_cache")
    about = "KV cache in preallocated memory, one request at a time (lab 2)"
    generate = one_prompt_at_a_time(lab.generate)
    return Batches(about, bench.quick(), generate, kv_bytes.of_object)


ROWS: Rows = {
    "cached-concat": {LENGTHS: cached_concat},
    "cached": dict.fromkeys([LENGTHS, RAGGED, EQUAL, CHAT], cached),
}
CLASSES = "Attention", "Block", "Model", "LMHead"
THREADED = ["generate_threaded", *(f"Threaded{name}.forward" for name in CLASSES)]
OWN = [
    Own("your KV cache of tuples (lab 2)", "kv_cache", THREADED, [LENGTHS], cached_concat),
    Own("your KVCache (lab 2)", "kv_cache", ["KVCache.attend"], [LENGTHS], cached),
]
