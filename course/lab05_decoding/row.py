"""Lab 5: sampling, one token at a time."""

from collections.abc import Sequence
from typing import Any

from solutions.speculative import Round
from timing.table import Bench, Ids, Own, Rounds, Rows, kv_bytes
from timing.table.workloads import SAMPLED


def sampled(bench: Bench) -> Rounds:
    lab = bench.lab("decoding")

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[Round]:
        tokens = lab.stream(models[0], prompt, limit, *how)
        return [Round([], 0, [token]) for token in tokens]

    about = "sampling, one token at a time, with the cached loop (lab 5)"
    return Rounds(about, [bench.quick()], generate, kv_bytes.of_object, one_token_each=True)


ROWS: Rows = {"sampled": {SAMPLED: sampled}}
PARTS = "sample", "next_token_probs", "draw"
OWN = [Own("your sampling (lab 5)", "decoding", PARTS, [SAMPLED], sampled)]
