"""Lab 23's rows: each request is verified against the model that its adapter is merged into."""

from dataclasses import replace
from typing import Any

import pytest

from timing.table import Bench, Prepare
from timing.table.workloads import EQUAL


@pytest.mark.slow
def test_both_rows_write_what_the_merged_models_write(table) -> None:
    _, result = table("--techniques", "cached,adapters,merged", "--workloads", EQUAL)
    assert {row["technique"] for row in result["rows"]} == {"cached", "adapters", "merged"}


@pytest.mark.slow
def test_a_request_with_anothers_adapter_is_never_timed(assert_stopped) -> None:
    def shifted(prepare: Prepare, bench: Bench) -> Any:
        served: Any = prepare(bench)

        def new_engine(*given: Any) -> Any:
            engine = served.new_engine(*given)
            cache = engine.scheduler.cache
            take = cache.take
            cache.take = lambda adapter: take(adapter) % cache.size + 1
            return engine

        return replace(served, new_engine=new_engine)

    assert_stopped("adapters", EQUAL, shifted)
