"""A test without its tool is skipped with a reason, or fails where the tool is promised."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.common import tools


@pytest.fixture
def without(monkeypatch):
    """Return how a test ends whose second mark names an absent tool; "" if it goes on to run."""
    monkeypatch.setitem(tools.ABSENCE, "here", lambda: "")
    monkeypatch.setattr(tools, "PROMISED", {"promised", "here"})
    for name in ("promised", "another"):
        monkeypatch.setitem(tools.ABSENCE, name, lambda name=name: f"there is no {name}")

    def ending(tool: str, ci: str) -> str:
        monkeypatch.setenv("CI", ci)
        marks = [pytest.mark.needs("here"), pytest.mark.needs("here", tool)]
        item: Any = SimpleNamespace(iter_markers=lambda name: [m for m in marks if m.name == name])
        try:
            tools.require(item)
        except (pytest.skip.Exception, pytest.fail.Exception) as end:
            return f"{type(end).__name__}: {end.msg}"
        return ""

    return ending


def test_a_test_without_its_tool_is_skipped_and_says_which(without):
    assert without("here", ci="") == ""
    assert without("promised", ci="") == "Skipped: there is no promised"
    assert without("another", ci="") == "Skipped: there is no another"


def test_where_ci_promises_the_tool_the_test_fails(without):
    assert without("here", ci="1") == ""
    assert without("promised", ci="1") == "Failed: CI is set, but there is no promised"
    assert without("another", ci="1") == "Skipped: there is no another"


def test_where_no_sandbox_can_be_made_the_reason_is_the_graders_own(monkeypatch):
    monkeypatch.setattr("autograder.grading.judge.jail.shutil.which", lambda name: None)
    assert "apt install bubblewrap" in tools.without_sandbox()
