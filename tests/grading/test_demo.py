"""The two-minute tour, run as an instructor runs it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.grading import demo
from autograder.grading.judge.results import Mark
from autograder.text.reference import ROOT
from tests.common.fake_class import fake_result

OWN = ROOT / "autograder"
STUDENT = demo.Student("ada", "right", demo.wrote(), points=8)


def own_files() -> dict[Path, int]:
    """What grading writes, with the time of each file."""
    files = [OWN / "secret", OWN / "gradebook.db", *(OWN / "graded").glob("01_generate/*")]
    return {path: path.stat().st_mtime_ns for path in files if path.exists()}


@pytest.mark.needs("bwrap")
@pytest.mark.slow
@pytest.mark.in_turn(3)
def test_it_tells_of_everybody_and_why_counts_the_verdicts_and_names_its_pages():
    before = own_files()
    command = [sys.executable, "-m", "autograder", "demo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert own_files() == before, "the tour has written into the course's own folder"
    said, number = done.stdout, len(demo.CLASS)
    assert number >= 12
    assert said.splitlines()[-1] == f"{number} of {number} verdicts as expected."
    table = said[said.index("who ") :]
    for student in demo.CLASS:
        assert re.search(rf"^{student.name} .*{student.points:g} of 8", table, re.MULTILINE)
    assert "Every position is" in table
    assert "no network" in said
    pages = [Path(path) for path in re.findall(r"^ +(\S+\.html)$", said, re.MULTILINE)]
    report, feedback = (page.read_text(encoding="utf-8") for page in pages)
    assert all(student.name in report for student in demo.CLASS)
    assert "Every position is too high by 1" in feedback
    folder = Path(re.findall(r"^ +(\S+)$", said, re.MULTILINE)[-1])
    assert len([*folder.glob("autograder/feedback/*/*/*.html")]) == number
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("earned", "score", "expected"),
    [(8, 8, True), (5, 5, False), (8, 1000, False), (None, 8, False), (8, None, False)],
)
def test_a_verdict_is_as_expected_where_result_and_gradebook_say_the_same(earned, score, expected):
    marks = [Mark("generate.generate", earned, 8, "passed", ())]
    results = {} if earned is None else {"ada": fake_result("ada", demo.LESSON, tuple(marks))}
    scores = {} if score is None else {"ada": score}
    assert demo.is_expected(STUDENT, results, scores) == expected
