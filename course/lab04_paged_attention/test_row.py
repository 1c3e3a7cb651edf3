"""Its row: the memory of the slots, and requests that are preempted."""

from typing import Any

import pytest

from gpt import read_config
from solutions import kv_cache as lab2
from solutions import paged_attention as lab4
from solutions.kv_cache import kv_bytes_per_token
from tests.common.timed import prepared, requests
from timing.table import Continuous, kv_bytes, workloads
from timing.table.workloads import RAGGED, Workload

pytestmark = pytest.mark.usefixtures("quick")


def test_the_pool_has_the_memory_of_the_slots(tiny):
    workload, per_token = workloads.ragged(read_config(tiny)), kv_bytes_per_token(read_config(tiny))
    run = prepared("paged", RAGGED, tiny).run(workload)
    reserved = 16 * workload.longest * per_token
    assert reserved - 16 * per_token < run.kv_bytes_reserved <= reserved
    assert run.notes["used"] is None


def test_a_request_that_is_preempted_keeps_the_times_of_its_tokens(tiny):
    model = lab2.CachedLMHead.from_pretrained(tiny)
    engines = []

    def new_engine(model: Any, workload: Workload) -> lab4.PagedBatcher:
        engines.append(lab4.PagedBatcher(model, num_blocks=3, block_size=4, max_running=2))
        return engines[0]

    workload = requests([4, 4], [6, 6])
    run = Continuous("", model, new_engine, kv_bytes.of_blocks, 2).run(workload)
    assert engines[0].preemptions > 0
    assert [len(times) for times in run.token_times] == [6, 6]
    assert run.kv_bytes == run.kv_bytes_reserved  # the pool ran empty
    assert run.tokens_computed is not None
    assert run.tokens_computed > 2 * (4 + 6 - 1)
