"""Lab 23's rows: each request is verified against the model that its adapter is merged into."""

import pytest

from timing.table.workloads import EQUAL


@pytest.mark.slow
def test_both_rows_write_what_the_merged_models_write(table) -> None:
    _, result = table("--techniques", "cached,adapters,merged", "--workloads", EQUAL)
    assert {row["technique"] for row in result["rows"]} == {"cached", "adapters", "merged"}
