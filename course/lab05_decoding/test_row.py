"""Its row: tokens drawn at random, the same ones every time."""

from dataclasses import replace

import pytest

from tests.common.timed import prepared
from timing.table import workloads
from timing.table.workloads import SAMPLED

pytestmark = pytest.mark.usefixtures("quick")


def test_drawn_tokens_are_the_same_every_time_and_not_the_greedy_ones(tiny):
    [workload] = workloads.new_workloads(["sampled"], tiny, [])
    technique = prepared("sampled", SAMPLED, tiny)
    first, again = (technique.run(workload).outputs for _ in range(2))
    assert first == again
    assert technique.run(replace(workload, temperature=0)).outputs != first
    assert len({tuple(ids[-9:]) for ids in first}) == len(first)
