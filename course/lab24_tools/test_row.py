"""Lab 24's row: under the mask of free text, a model writes what it writes without it."""

import dataclasses
from typing import Any

import pytest

from solutions import tools as reference
from tests.common.timed import broken
from timing.table.workloads import LENGTHS


@pytest.mark.slow
def test_free_text_is_verified(table) -> None:
    chosen = "--techniques", "cached,tools", "--workloads", LENGTHS
    _, result = table(*chosen, "--tokens", "7")
    assert {row["technique"] for row in result["rows"]} == {"cached", "tools"}


def without_vowels(*request: Any) -> Any:
    automaton = reference.language(*request)
    edges = [{b: s for b, s in out.items() if b not in b"aeiou"} for out in automaton.edges]
    return dataclasses.replace(automaton, edges=edges)


@pytest.mark.in_turn(4)
def test_a_mask_that_forbids_more_is_never_timed(assert_stopped) -> None:
    assert_stopped("tools", LENGTHS, broken("tools", language=without_vowels))
