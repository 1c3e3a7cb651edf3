"""Lab 6: drafts from a small model or from n-grams, verified in one forward pass."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpt import read_config
from solutions.speculative import Round, first_layers
from timing.table import Bench, Ids, Own, Rounds, Rows, kv_bytes
from timing.table.workloads import LENGTHS, SAMPLED

MODEL_DRAFTS, NGRAM_DRAFTS = 6, 8  # in a round, at most


def draft_for(bench: Bench, model: Any) -> tuple[Any, str]:
    """Return the model's draft model, or else the model's own first layers; and its name."""
    beside = bench.folder.with_name(f"{bench.folder.name}-draft")
    if beside.is_dir():
        return replace(bench, folder=beside).quick(), beside.name
    bench.require_gpt2("without a draft model beside it, a GPT-2's first layers draft")
    layers = max(1, read_config(bench.folder).n_layer // 6)
    return first_layers(model, layers), f"the model's first layers ({layers})"


def speculative(bench: Bench) -> Rounds:
    lab, model = bench.lab("speculative"), bench.quick()
    draft, name = draft_for(bench, model)

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[Round]:
        target, small = models
        drafter = lab.ConfidentDrafter(small, len(prompt) + limit)
        return lab.generate_speculative(target, drafter, prompt, limit, MODEL_DRAFTS, *how).rounds

    about = f"up to {MODEL_DRAFTS} drafts from {name}, verified in one forward pass (lab 6)"
    return Rounds(about, [model, draft], generate, kv_bytes.of_object)


def ngram(bench: Bench) -> Rounds:
    lab = bench.lab("speculative")

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[Round]:
        [model] = models
        drafter = lab.AdaptiveDrafter(
            lab.NgramDrafter(model.config.vocab_size, device=bench.device)
        )
        return lab.generate_speculative(model, drafter, prompt, limit, NGRAM_DRAFTS, *how).rounds

    source = "n-grams of the text"
    about = f"up to {NGRAM_DRAFTS} drafts from {source}, verified in one forward pass (lab 6)"
    return Rounds(about, [bench.quick()], generate, kv_bytes.of_object)


KINDS = LENGTHS, SAMPLED
ROWS: Rows = {
    "speculative": dict.fromkeys(KINDS, speculative),
    "ngram": dict.fromkeys(KINDS, ngram),
}
PARTS = "generate_speculative", "verify", "ModelDrafter.propose"
OWN = [Own("your speculative decoding (lab 6)", "speculative", PARTS, KINDS, speculative)]
