"""The techniques on the table: every lab's, those of transformers, and the learner's own."""

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from course.lab01_generate import row as generate
from course.lab02_kv_cache import row as kv_cache
from course.lab03_batching import row as batching
from course.lab04_paged_attention import row as paged_attention
from course.lab05_decoding import row as decoding
from course.lab06_speculative import row as speculative
from course.lab07_engine import row as engine
from course.lab08_prefix_caching import row as prefix_caching
from course.lab09_disaggregation import row as disaggregation
from course.lab10_quantization import row as quantization
from course.lab11_kv_reduction import row as kv_reduction
from course.lab12_flash_attention import row as flash_attention
from course.lab13_serving import row as serving
from course.lab14_constrained import row as constrained
from course.lab15_parallel_decoding import row as parallel_decoding
from course.lab16_tokenizer import row as tokenizer
from course.lab17_moe import row as moe
from course.lab18_parallelism import row as parallelism
from course.lab19_estimating import row as estimating
from timing.rows import hf
from timing.rows.bench import Bench, Own, Prepare, Rows, is_learners
from timing.table.runs import Prepared
from timing.table.workloads import CHAT, EQUAL, LENGTHS, RAGGED, SAMPLED

# In the order of the table: one request at a time, then many, then the engine in all its forms.
LABS: tuple[Any, ...] = (
    *(generate, kv_cache, decoding, speculative, parallel_decoding, tokenizer, moe),
    *(batching, estimating, paged_attention),
    *(engine, prefix_caching, disaggregation, quantization, kv_reduction, flash_attention),
    *(parallelism, serving, constrained),
)
TECHNIQUES: Rows = {name: row for lab in (*LABS, hf) for name, row in lab.ROWS.items()}
OWN: list[Own] = [own for lab in LABS for own in getattr(lab, "OWN", [])]

# The row `mine`, by kinds of workload: how its line begins, and what it runs until some code of the
# learner's has passed.
UNTIL: dict[tuple[str, ...], tuple[str, str, Prepare]] = {
    (LENGTHS,): ("", "cached loop: no loop of yours has passed its check yet", kv_cache.cached),
    (SAMPLED,): ("", "sampling: no sampler of yours has passed its check yet", decoding.sampled),
    (RAGGED, EQUAL): (
        "many requests: ",
        "static batches, until batching of yours has passed",
        batching.static,
    ),
    (CHAT,): (
        "chats: ",
        "engine, until an engine or a prefix cache of yours has passed",
        engine.engine,
    ),
}


def mine_rows(mine: Callable[[str], ModuleType]) -> dict[str, Prepare]:
    """Return the row `mine`. mine: returns a lab's module and prints whose each part is."""
    return {kind: partial(newest, mine, kinds) for kinds in UNTIL for kind in kinds}


def newest(mine: Callable[[str], ModuleType], kinds: tuple[str, ...], bench: Bench) -> Prepared:
    """Prepare the newest technique for these workloads that has a part of the learner's own."""
    labs = functools.cache(mine)
    prefix, about, prepare = UNTIL[kinds]
    for own in reversed(OWN):
        if kinds[0] in own.kinds and any(is_learners(labs(own.lab), part) for part in own.parts):
            made: Any = own.prepare(replace(bench, lab=labs))
            return replace(made, about=prefix + own.about)
    made = prepare(bench)
    return replace(made, about=f"{prefix}the reference's {about}")
