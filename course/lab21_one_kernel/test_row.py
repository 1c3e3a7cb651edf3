"""Lab 21's rows: verified, timed, and left out with a sentence where there is no compiler."""

from dataclasses import replace
from typing import Any

import pytest

from timing.table import Bench, Prepare
from timing.table.workloads import RAGGED

ROWS = "kernel", "kernel-int8", "same-bits"


@pytest.fixture
def with_numba(table, monkeypatch) -> Any:
    """As it is here, whatever other tables of tests do without."""
    monkeypatch.setattr("course.lab21_one_kernel.row.find_spec", lambda _: "found")
    return table


def test_without_the_compiler_the_rows_say_what_is_missing(table) -> None:
    _, result = table("--techniques", f"engine,{','.join(ROWS)}", "--tokens", "3")
    assert [row["technique"] for row in result["rows"]] == ["engine"]
    assert result["not_timed"] == dict.fromkeys(
        ROWS, "3 new tokens: it needs numba: pip install numba"
    )


@pytest.mark.slow
@pytest.mark.needs("numba")
def test_each_row_is_verified_and_timed(with_numba) -> None:
    rows = f"engine,{','.join(ROWS)}"
    given = "--techniques", rows, "--workloads", f"lengths,{RAGGED}", "--tokens", "7"
    _, result = with_numba(*given)
    assert {row["technique"] for row in result["rows"]} == set(rows.split(","))


@pytest.mark.slow
@pytest.mark.needs("numba")
def test_a_kernel_that_is_wrong_is_never_timed(with_numba, assert_stopped) -> None:
    def one_off(prepare: Prepare, bench: Bench) -> Any:
        served: Any = prepare(bench)

        def new_engine(*given: Any) -> Any:
            engine = served.new_engine(*given)
            kernel = engine.runner.kernel
            engine.runner.kernel = lambda ids, *rest: kernel(ids ^ 1, *rest)
            return engine

        return replace(served, new_engine=new_engine)

    assert_stopped("same-bits", RAGGED, one_off)
