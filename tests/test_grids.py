"""Each case of a large grid gets its turn, and what a change touches is tried whole."""

import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from tests.common import turns
from tests.common.turns import TURNS, changed_files, distance, is_due, thin

EXERCISES = [name for lesson in lessons().values() for name in lesson.cards]


class Case:
    """A case of a grid, as pytest collects it."""

    path = ROOT / "tests" / "judging" / "test_mutants.py"

    def __init__(self, exercise: str, every: int = 4) -> None:
        self.nodeid = f"{self.path.name}::test_every_mutant_is_rejected[{exercise}]"
        self.callspec = SimpleNamespace(params={"exercise": SimpleNamespace(name=exercise)})
        self.every = every

    def get_closest_marker(self, name: str) -> Any:
        return SimpleNamespace(args=(self.every,)) if name == "in_turn" else None


def case(exercise: str, every: int = 4) -> Any:
    return Case(exercise, every)


@pytest.fixture
def run(monkeypatch):
    """The exercises that a run tries in a turn, after a change of some files."""

    def tried(turn: int | str, *changed: str, every: int = 4) -> tuple[set[str], list[str]]:
        monkeypatch.setenv("TURN", str(turn))
        monkeypatch.setenv("SINCE", "0123456789abcdef")
        monkeypatch.setenv("CHANGED_FILES", os.pathsep.join(changed))
        thinned = thin([case(exercise, every) for exercise in EXERCISES])
        return {turns.subject_of(item) for item in thinned.tried}, thinned.report()

    return tried


def of_lab(lab: str) -> set[str]:
    return {exercise for exercise in EXERCISES if exercise.split(".")[0] == lab}


# ------------------------------------------------------------------------------------- the turn


@given(st.integers(0), st.integers(1, TURNS), st.integers(0))
def test_of_24_turns_in_a_row_each_case_is_in_one(number, every, first):
    assert any(is_due(number, every, turn) for turn in range(first, first + TURNS))


def test_each_exercise_has_its_turn_and_another_run_has_another_share(run):
    shares = [run(turn)[0] for turn in range(4)]
    assert set.union(*shares) == set(EXERCISES)
    assert sum(map(len, shares)) == len(EXERCISES)
    assert run("all")[0] == set(EXERCISES)


def test_a_share_that_would_take_more_than_24_turns_is_refused(run):
    with pytest.raises(pytest.UsageError, match="in_turn\\(25\\)"):
        run(0, every=25)


def test_a_run_says_what_it_left_out_and_how_to_repeat_it(run):
    tried, report = run(5)
    text = "\n".join(report)
    assert f"Turn 5: {len(tried)} of {len(EXERCISES)} cases." in text
    assert "TURN=5 repeats it" in text
    assert f"{len(tried)} of   {len(EXERCISES)}  test_mutants.py" in text


def test_what_is_about_no_exercise_has_its_turn_by_its_own_number():
    hostile = SimpleNamespace(exercise="generate.generate", name="it forges", lab="generate")
    item = case("moe.keep")
    item.callspec.params = {"hostile": hostile}
    assert turns.subject_of(item) == ""
    item.callspec.params = {"answer": SimpleNamespace(exercise=SimpleNamespace(name="moe.keep"))}
    assert turns.subject_of(item) == "moe.keep"


# ----------------------------------------------------------------------------------- the change


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("solutions/moe.py", 0),
        ("solutions/experts/layers.py", 0),
        ("course/lab17_moe/lesson.md", 0),
        ("course/lab17_moe/wrong.md", 0),
        ("course/lab17_moe/answers.py", 0),
        ("solutions/kv_cache.py", 1),
        ("autograder/judging/judge.py", 1),
        ("tests/common/mutants.py", 1),
        ("solutions/parallelism.py", None),
        ("course/lab18_parallelism/answers.py", None),
        ("docs/serving.md", None),
    ],
)
def test_a_change_is_near_what_it_may_break(changed, expected):
    assert distance(case("moe.keep"), [changed]) == expected


def test_what_a_change_touches_is_tried_whole_in_any_turn(run):
    for turn in range(4):
        tried, report = run(turn, "course/lab17_moe/wrong.md")
        assert tried == run(turn)[0] | of_lab("moe")
        assert f"since 0123456789 touches {len(of_lab('moe'))} cases." in report[0]


def test_what_would_be_too_many_is_tried_in_turns_and_the_nearest_whole(run):
    tried, report = run(1, "autograder/judging/judge.py", "solutions/moe.py")
    assert tried == run(1)[0] | of_lab("moe")
    assert f"touches {len(EXERCISES)} cases, too many for one run" in report[0]


@pytest.mark.needs("git")
def test_changed_files_are_those_since_a_commit_and_the_new_ones(tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        who = "-c", "user.name=a", "-c", "user.email=a@b.c"
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(turns, "ROOT", tmp_path)
    monkeypatch.delenv("SINCE", raising=False)
    monkeypatch.delenv("TURN", raising=False)
    git("init")
    for number, day in enumerate(("2026-01-01", "2026-01-02", "2026-01-03")):
        (tmp_path / f"{number}.py").write_text("")
        git("add", "-A")
        monkeypatch.setenv("GIT_COMMITTER_DATE", f"{day}T12:0{number}:00Z")
        git("commit", "-m", day)
    (tmp_path / "new.py").write_text("")
    assert turns.turn_now() == "3"
    assert changed_files(turns.begin()) == ["2.py", "new.py"]
    monkeypatch.setenv("SINCE", git("rev-list", "--max-parents=0", "HEAD"))
    assert changed_files(turns.begin()) == ["1.py", "2.py", "new.py"]
