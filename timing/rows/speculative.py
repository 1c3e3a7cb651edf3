"""Lab 6: drafts from a small model or from n-grams, verified in one forward pass."""

from collections.abc import Sequence
from typing import Any

from gpt import read_config
from solutions.speculative import Round
from timing.rows.bench import Bench, Own, Rows, is_learners
from timing.table import kv_bytes
from timing.table.runs import Ids, Rounds
from timing.table.workloads import LENGTHS, SAMPLED

MODEL_DRAFTS, NGRAM_DRAFTS = 6, 8  # in a round, at most


def speculative(bench: Bench) -> Rounds:
    """Prepare it with the model's draft model, or else with the model's own first layers."""
    lab, model = bench.lab("speculative"), bench.quick()
    beside = bench.folder.with_name(f"{bench.folder.name}-draft")
    if beside.is_dir():
        draft, name = Bench(beside, bench.device).quick(), beside.name
    else:
        layers = max(1, read_config(bench.folder).n_layer // 6)
        draft, name = lab.first_layers(model, layers), f"the model's first layers ({layers})"

    # A learner's own drafter has its row; the reference's is replaced by one that stops in time.
    is_own = is_learners(lab, "ModelDrafter.propose")
    new_drafter = lab.ModelDrafter if is_own else lab.ConfidentDrafter
    most = MODEL_DRAFTS

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[Round]:
        target, small = models
        drafter = new_drafter(small, len(prompt) + limit)
        return lab.generate_speculative(target, drafter, prompt, limit, most, *how).rounds

    about = f"up to {most} drafts from {name}, verified in one forward pass (lab 6)"
    return Rounds(about, [model, draft], generate, kv_bytes.of_object)


def ngram(bench: Bench) -> Rounds:
    lab, most = bench.lab("speculative"), NGRAM_DRAFTS

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[Round]:
        ngrams = lab.NgramDrafter(models[0].config.vocab_size, device=bench.device)
        drafter = lab.AdaptiveDrafter(ngrams)
        return lab.generate_speculative(models[0], drafter, prompt, limit, most, *how).rounds

    about = f"up to {most} drafts from n-grams of the text, verified in one forward pass (lab 6)"
    return Rounds(about, [bench.quick()], generate, kv_bytes.of_object)


KINDS = LENGTHS, SAMPLED
ROWS: Rows = {
    "speculative": dict.fromkeys(KINDS, speculative),
    "ngram": dict.fromkeys(KINDS, ngram),
}
PARTS = "generate_speculative", "verify", "ModelDrafter.propose"
OWN = [Own("your speculative decoding (lab 6)", "speculative", PARTS, KINDS, speculative)]
