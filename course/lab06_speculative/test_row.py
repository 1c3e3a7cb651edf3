"""Its rows: rounds of several tokens, and drafts that are forgotten."""

import itertools
import shutil

import pytest

from solutions import kv_cache as lab2
from solutions.speculative import ConfidentDrafter
from tests.common.timed import NAIVE, broken, prepared
from timing.table import Rounds, workloads
from timing.table.workloads import LENGTHS, SAMPLED

pytestmark = pytest.mark.usefixtures("quick")


SPECULATIVE = "speculative", "ngram"


@pytest.mark.parametrize("name", SPECULATIVE)
@pytest.mark.parametrize("kind", [LENGTHS, SAMPLED])
def test_the_tokens_of_a_round_come_together_and_are_counted(tiny, name, kind):
    [workload] = workloads.new_workloads([kind], tiny, [20])
    technique = prepared(name, kind, tiny)
    assert isinstance(technique, Rounds)
    run = technique.run(workload)
    assert [len(times) for times in run.token_times] == workload.new_tokens
    rounds = [
        technique.rounds_of(technique.models, workload, number)
        for number in range(len(workload.prompts))
    ]
    for times, own in zip(run.token_times, rounds, strict=True):
        together = [len(list(group)) for _, group in itertools.groupby(times)]
        assert together == [len(round.new) for round in own]
        assert times == sorted(times)
    every = [round for own in rounds for round in own]
    drafted, accepted = sum(len(r.drafts) for r in every), sum(r.accepted for r in every)
    assert run.notes["acceptance"] == accepted / drafted
    prompts, passes = sum(len(prompt) for prompt in workload.prompts), len(every)
    assert run.notes["tokens_per_pass"] == sum(workload.new_tokens) / passes
    # The first pass of a request computes its prompt, every other one the newest token.
    assert run.tokens_computed == prompts + passes - len(rounds) + drafted


def test_a_draft_that_is_the_model_is_always_accepted(table, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(ConfidentDrafter, "least", 0.0)  # random models are never sure
    both = tmp_path / "twin", tmp_path / "twin-draft"
    for folder in both:
        shutil.copytree(tiny, folder)
    args = "--tokens", "15", "--techniques", "speculative"
    printed, result = table("--model", str(both[0]), *args)
    assert "up to 6 drafts from twin-draft, verified in one forward pass (lab 6)" in printed
    told = "speculative, 15 new tokens: 100% of the drafts accepted, 5.00 tokens per forward pass"
    assert told in printed
    assert result["rows"][0]["acceptance"] == 1
    assert result["rows"][0]["tokens_per_pass"] == 5


def test_without_a_draft_the_first_layers_of_the_model_are_it(table):
    printed, result = table("--tokens", "6", "--techniques", "cached,speculative")
    assert "up to 6 drafts from the model's first layers (1)" in printed
    cached, speculative = result["rows"]
    assert cached["acceptance"] is cached["tokens_per_pass"] is None
    assert speculative["acceptance"] is not None


class Stale(lab2.KVCache):
    """It leaves a rejected draft in the place of the last token that it keeps."""

    def truncate(self, n: int):
        for stored in (self.keys, self.values):
            stored[:, :, :, n - 1] = stored[:, :, :, self.length - 1]
        super().truncate(n)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("row", SPECULATIVE)
@pytest.mark.parametrize(
    ("kind", "why"),
    [(LENGTHS, NAIVE), (SAMPLED, "draws other tokens with its caches than without them")],
)
def test_a_stale_cache_is_never_timed(assert_stopped, row, kind, why):
    assert_stopped(row, kind, broken("speculative", KVCache=Stale), why)
