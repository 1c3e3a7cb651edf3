"""Mechanical mutants of every stretch: the cases tell them from the reference, all but a few.

Those few do the same by right. They are listed here with the reason; a row that no longer names a
mutant which passes is an error too.
"""

import pytest

from autograder.judging import judge
from autograder.judging.exercise import Exercise, Outcome
from autograder.judging.failure import TookTooLong
from tests.common.mutants import attempt_of, mutants
from tests.common.trials import EXERCISES, every_exercise, trials

DOES_NOTHING = "what is neutral may be applied all the same: it changes nothing"
EQUIVALENT = {
    "flash_attention.paged_decode": {
        "output[:, 0] -> output[:, -1]": "each head has one query, so the first is the last",
    },
    "kv_reduction.grouped_attention": {
        "mask.unsqueeze(2) -> mask.unsqueeze(1)": "the dimension in between is one of 1, too",
    },
    "kv_reduction.WindowCache.attend": {
        "new[:, -1:] + 1 -> new[:, -1:] + 0": (
            "one row more is kept, which is allowed, and the mask hides it"
        ),
    },
    "quantization.affine": {
        (
            "(groups / scale + zero).round().clamp(0, last) -> "
            "(groups / scale + zero).round().clamp(-1, last)"
        ): "rounding `zero` moves no number by half a step or more, so no code lies outside anyway",
    },
    "quantization.pack": {
        "codes[0::2] -> codes[::2]": "a slice begins at 0 by itself",
    },
    "disaggregation.pack_kv": {
        "slots[0] -> slots[-1]": "there is one row of slots, so the first is the last",
    },
    "disaggregation.unpack_kv": {
        "slots[0] -> slots[-1]": "there is one row of slots, so the first is the last",
    },
    "batching.generate_padded": {
        "config.n_positions - 1 -> config.n_positions - 2": (
            "a token at the last position fills the context: its row has ended, and what is "
            "computed along with the others doesn't count"
        ),
    },
    "prefix_caching.block_hashes": {
        "bytes(32) -> bytes(31)": "what stands before the first block is the same for all texts",
        "bytes(32) -> bytes(33)": "what stands before the first block is the same for all texts",
        "token_ids[end - block_size:end] -> token_ids[:end]": (
            "the hash before holds those tokens already"
        ),
    },
    "speculative.ngram_draft": {
        "ids = list(ids) -> dropped": "here the text is handed over as a list",
        "len(ids) - 1 -> len(ids) - 0": "a piece as long as the text has no earlier place",
        "len(ids) - 1 -> len(ids) + 1": "neither has a longer one",
        "range(min(longest, len(ids) - 1), 0, -1) -> range(min(longest, len(ids) - 1), -1, -1)": (
            "the empty piece is compared with ids[-0:], the whole text, and is never equal"
        ),
    },
    "decoding.apply_top_p": {
        "before >= p -> before > p": "a sum that is exactly p is a matter of rounding",
        (
            "logits.softmax(dim=-1).sort(dim=-1, descending=True) -> "
            "logits.softmax(dim=-1).sort(descending=True)"
        ): "sort takes the last dimension by default",
    },
    "decoding.apply_repetition_penalty": {
        "seen > 0 -> seen >= 0": "0 stays 0, divided or multiplied",
    },
    "decoding.next_token_probs": {
        "params.repetition_penalty != 1 -> params.repetition_penalty != 0": DOES_NOTHING,
        "params.top_p < 1 -> params.top_p <= 1": DOES_NOTHING,
        "params.top_p < 1 -> params.top_p < 2": DOES_NOTHING,
        "params.min_p > 0 -> params.min_p >= 0": DOES_NOTHING,
        "params.min_p > 0 -> params.min_p > -1": DOES_NOTHING,
    },
    "decoding.stop_at": {
        "max(begun, default=0) -> max(begun, default=-1)": (
            "there is no beginning only where there are no stops, and cutting behind the end "
            "leaves everything in front"
        ),
    },
}


@every_exercise
def test_every_mutant_is_rejected(exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "SECONDS", 5.0)
    made = {mutant.change: attempt_of(exercise, mutant) for mutant in mutants(exercise)}
    equivalent = EQUIVALENT.get(exercise.name, {})
    assert made
    for seed in range(3):
        first, *others = trials(exercise, seed)
        told = {name: first.told_by(wrong) for name, wrong in made.items()}
        passed = {
            name
            for name, outcome in told.items()
            if outcome is None or not all(other.rejects(made[name]) for other in others)
        }
        assert sorted(passed - equivalent.keys()) == [], f"pass with seed {seed}; are they right?"
        assert sorted(equivalent.keys() - passed) == [], f"are rejected with seed {seed}: stale"
        # One that has no end is waited for once, not with every seed.
        made = {name: wrong for name, wrong in made.items() if not ran_out_of_time(told[name])}


def ran_out_of_time(outcome: Outcome | None) -> bool:
    failure = outcome.failure if outcome else None
    return failure is not None and isinstance(failure.error, TookTooLong)


def test_the_table_names_exercises() -> None:
    assert set(EQUIVALENT) <= {exercise.name for exercise in EXERCISES}
