"""Verification: no wrong row is ever timed, and only a tie in float32 excuses a difference."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import timing.table.verify
from tests.common.timed import NAIVE, Sabotage, requests
from timed_generate import TECHNIQUES
from timing.table import Bench, Prepare
from timing.table.verify import verify
from timing.table.workloads import CHAT, LENGTHS, RAGGED, Workload

Wrong = Callable[[list[int], int], list[int]]


def mistaken(wrong: Wrong, call: int = 0) -> Sabotage:
    """The last request of a batch goes wrong, from this call on."""

    def prepare_it(prepare: Prepare, bench: Bench) -> Any:
        right: Any = prepare(bench)
        calls = []

        def generate(model, prompts, new_tokens):
            calls.append(prompts)
            *outputs, last = right.generate(model, prompts, new_tokens)
            return [*outputs, wrong(last, new_tokens[-1]) if len(calls) > call else last]

        return replace(right, generate=generate)

    return prepare_it


def changed(ids: list[int], place: int) -> list[int]:
    place %= len(ids)
    return [*ids[:place], (ids[place] + 1) % 4096, *ids[place + 1 :]]


MISTAKES: dict[str, tuple[Wrong, str]] = {
    "wrong at the end": (lambda ids, limit: changed(ids, -1), NAIVE),
    "one too few": (lambda ids, limit: ids[:-1], "returned"),
    "changes the prompt": (lambda ids, limit: changed(ids, 0), NAIVE),
    "only new tokens": (lambda ids, limit: ids[-limit:], "returned"),
}
AT_THE_END = MISTAKES["wrong at the end"][0]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(
    ("row", "kind", "place"),
    [
        ("cached", LENGTHS, "40 new tokens"),
        ("static", RAGGED, "request 15 of ragged"),
        ("cached", CHAT, "request 0 of chat"),
    ],
)
def test_a_wrong_text_is_never_timed(assert_stopped, mistake, row, kind, place):
    wrong, why = MISTAKES[mistake]
    assert_stopped(row, kind, mistaken(wrong), f"{why}.* {place}")


def test_state_that_survives_a_run_is_found_in_the_next_one(assert_stopped):
    assert_stopped("naive", LENGTHS, mistaken(AT_THE_END, call=1))


@pytest.mark.parametrize(("name", "kind"), [("naive", LENGTHS), ("cached", RAGGED)])
def test_the_reference_is_held_against_the_model_without_cache(table, monkeypatch, name, kind):
    wrong = partial(mistaken(AT_THE_END), TECHNIQUES[name][kind])
    monkeypatch.setitem(TECHNIQUES, name, {**TECHNIQUES[name], kind: wrong})
    with pytest.raises(SystemExit, match=f"{name} {NAIVE}"):
        table("--workloads", kind, "--tokens", "4")


# ------------------------------------------------------------------------------------------- ties


class Scripted(nn.Module):
    """A model that gives the same logits at every position, whatever it reads."""

    def __init__(self, logits: list[float]):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, inputs, position_ids):
        return self.logits.expand(*inputs.shape, -1)


TIED = [0.0, 10.0, 10.0 - 1e-4]


@pytest.mark.parametrize(
    ("ids", "logits", "told"),
    [
        ([0, 0, 1, 1, 1], [0.0, 1.0, 1.0], None),  # equal tokens need no excuse
        ([0, 0, 1, 2, 1], TIED, "position 3"),
        ([0, 0, 2, 1, 1], [-1000.0, -999.0, -999.05], "position 2"),  # relative to the logits
        ([0, 0, 2, 1, 1], [0.0, 0.1, 0.05], "Stopped"),
        ([0, 0, 2, 1, 0], TIED, "Stopped"),  # beyond a tie each token must still be a best one
    ],
)
def test_a_difference_is_excused_by_a_tie_alone(ids, logits, told):
    """Of a prompt of two tokens, 0 0, that the reference continued by 1 1 1."""
    try:
        found = verify("new", requests([2], [3]), [ids], [[0, 0, 1, 1, 1]], Scripted(logits))
    except SystemExit as stopped:
        found = str(stopped)
    assert found is told is None or told in (found or "")


def test_ties_of_several_requests_make_one_sentence():
    workload = requests([2, 2, 2], [1, 1, 1])
    outputs, model = [[0, 0, 2]] * 3, Scripted(TIED)
    told = verify("new", workload, outputs, [[0, 0, 1]] * 3, model)
    assert "request 0 of ragged" in told
    assert told.endswith("The same happened in 2 more requests.")


def test_a_tie_parts_the_later_turns_of_a_chat_too_and_is_told_once():
    workload = Workload(CHAT, CHAT, "", [[0, 0], [0]], [1, 1], turns=2)
    expected, model = [[0, 0, 1], [0, 0, 1, 0, 1]], Scripted(TIED)
    told = verify("new", workload, [[0, 0, 2], [0, 0, 2, 0, 1]], expected, model)
    assert "request 0 of chat: the first difference is at position 2" in told
    assert "more requests" not in told
    # An answer, what was before, none.
    for wrong in ([0, 0, 2, 0, 0], [0, 0, 0, 0, 1], [0, 0, 2, 0]):
        with pytest.raises(SystemExit, match="request 1 of chat"):
            verify("new", workload, [[0, 0, 2], wrong], expected, model)


def test_a_reference_is_what_the_model_picks_or_ties_with():
    workload, model = requests([2], [2]), Scripted(TIED)
    assert verify("cached", workload, [[0, 0, 1, 1]], None, model) is None
    told = verify("cached", workload, [[0, 0, 1, 2]], None, model)
    assert "position 3" in told


def test_a_tied_row_is_marked_and_the_tie_printed(table, monkeypatch):
    def tied(name, workload, outputs, expected, naive_model):
        return "cached, 3 new tokens: a tie." if name == "cached" else None

    monkeypatch.setattr(timing.table.verify, "verify", tied)
    printed, _ = table("--tokens", "3", "--techniques", "naive,cached")
    assert "cached~" in printed
    assert "naive~" not in printed
    assert "~ cached, 3 new tokens: a tie." in printed
