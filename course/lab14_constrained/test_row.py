"""Its rows: a wrong mask or jump is never timed, and forced tokens take no pass."""

from typing import Any

import pytest
import torch

from gpt import read_config
from solutions import constrained as lab14
from solutions.kv_cache import kv_bytes_per_token
from tests.common.timed import broken, prepared
from timing.table import workloads
from timing.table.workloads import LENGTHS

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize("n", [1, 7])
def test_the_last_tokens_are_never_computed_if_they_are_forced(tiny, n):
    per_token = kv_bytes_per_token(read_config(tiny))
    [workload] = workloads.new_workloads([LENGTHS], tiny, [n])
    run, prompt = prepared("json-jump", LENGTHS, tiny).run(workload), len(workload.prompts[0])
    assert prompt <= run.tokens_computed <= prompt + n - 1
    assert run.kv_bytes == run.tokens_computed * per_token


def closed(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The likeliest of several allowed tokens is forbidden, too."""
    best = lab14.constrain(logits, allowed).argmax(dim=-1, keepdim=True)
    several = allowed.sum(dim=-1, keepdim=True) > 1
    return lab14.constrain(logits, allowed & ~(several & (torch.arange(allowed.shape[1]) == best)))


def shortened(*args: Any) -> list[int]:
    return lab14.hold_back(*args)[:-1]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("json", {"constrain": closed}),
        ("json-jump", {"constrain": closed}),
        ("json-jump", {"hold_back": shortened}),
    ],
    ids=["closed", "closed, jumping", "short jump"],
)
def test_a_wrong_mask_or_jump_is_never_timed(assert_stopped, row, wrong):
    assert_stopped(row, LENGTHS, broken("constrained", **wrong))
