"""Lab 1: the loop without a cache."""

from timing.table import Batches, Bench, Own, Rows, kv_bytes, one_prompt_at_a_time
from timing.table.workloads import LENGTHS


def naive(bench: Bench) -> Batches:
    lab = bench.lab("generate")
    about = "the whole sequence at every step (lab 1)"
    generate = one_prompt_at_a_time(lab.generate)
    return Batches(about, bench.load(lab.GPTLMHead), generate, kv_bytes.none_held)


ROWS: Rows = {"naive": {LENGTHS: naive}}
OWN = [Own("your generate (lab 1)", "generate", ["generate"], [LENGTHS], naive)]
