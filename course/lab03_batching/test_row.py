"""Its rows: when the tokens of a batch come, and which slots were used."""

from dataclasses import replace
from typing import Any

import pytest

from gpt import read_config
from solutions import batching as lab3
from solutions import kv_cache as lab2
from solutions.kv_cache import CachedLMHead
from tests.common.timed import prepared, requests
from timing.table import Continuous, kv_bytes, workloads
from timing.table.workloads import RAGGED, Workload

pytestmark = pytest.mark.usefixtures("quick")


def test_in_a_batch_tokens_come_together_and_the_next_batch_waits(tiny):
    workload = requests([3, 1, 2], [2, 4, 1])
    batches = replace(prepared("static", RAGGED, tiny), size=2)
    first, second, third = batches.run(workload).token_times
    assert first == second[:2]
    assert third[0] > second[-1]


def test_newcomers_are_served_before_those_who_run(tiny):
    """Two slots, three requests: the third joins when the first has ended."""
    model = lab2.CachedLMHead.from_pretrained(tiny)

    def new_engine(model: Any, workload: Workload) -> lab3.ContinuousBatcher:
        return lab3.ContinuousBatcher(model, 2, workload.longest)

    engine = Continuous("", model, new_engine, kv_bytes.of_slots, 2)
    run = engine.run(requests([3, 3, 3], [1, 4, 2]))
    first, second, third = run.token_times
    assert first[0] < second[0] < third[0] < second[1] < second[2] == third[1] < second[3]
    assert run.notes["used"] == 7 / 8


@pytest.mark.parametrize(
    ("name", "loop"), [("static", lab3.generate_static), ("continuous", lab3.generate_continuous)]
)
def test_the_share_of_used_slots_is_the_lab_s(tiny, name, loop):
    workload, model = workloads.ragged(read_config(tiny)), CachedLMHead.from_pretrained(tiny)
    served = loop(model, workload.prompts, workload.new_tokens, 16)
    run = prepared(name, RAGGED, tiny).run(workload)
    assert (run.notes["used"], run.batch) == (lab3.utilisation(served.trace), 16)
