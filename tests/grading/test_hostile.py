"""Hostile submissions, and honest ones that look odd: each gets the points that it must get."""

import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from autograder.grading.judge import oracle
from autograder.grading.judge.jail import Jail
from autograder.grading.judge.oracle import grade_one
from autograder.grading.judge.results import Result, from_json, to_json
from autograder.grading.judge.secret import key_of
from autograder.grading.judge.submission import Submission, read_submission
from autograder.grading.local import graded_here
from autograder.text.lesson import lessons
from tests.common.graded import lost
from tests.hostile import CORPUS
from tests.hostile.notebooks import Hostile, as_bytes, solved
from tests.hostile.reaching import WALLS
from timing.peak import forget_peak, peak_bytes

pytestmark = pytest.mark.slow

SECRET = bytes(range(32))
SECONDS = 2.0  # of processor time for an exercise; the reference needs tenths
IDLE = 2.0  # of waiting
MOST_MEMORY = 500_000_000  # bytes
MOST_SECONDS = 20.0  # of the grader's own, for all exercises of a lab
HONEST = Submission("ada", "generate", as_bytes(solved("generate")))

CLASS = {"spoiled", "left behind", "lending", "kills"}  # those that might cost others something


@pytest.fixture(scope="module")
def jail():
    with pytest.MonkeyPatch.context() as patch, Jail(seconds=SECONDS) as jail:
        patch.setattr(oracle, "IDLE", IDLE)
        require_walls(jail)
        yield jail


def graded(submission: Submission, jail: Jail) -> Result:
    return grade_one(submission, key_of(SECRET, submission), jail)


def require_walls(jail):
    """What comes after this kills, fills and floods whatever it can reach."""
    outside = graded(Submission(WALLS.student, WALLS.lab, WALLS.content), jail)
    assert outside.points == 0, "The sandbox has a hole: nothing hostile is run here."


def handed_in(hostile: Hostile, submitted: Path) -> Submission:
    lesson = lessons()[hostile.lab]
    folder = submitted / hostile.student / lesson.name
    hostile.files(folder, hostile.content)
    return read_submission(submitted, hostile.student, lesson)


def words(result: Result, exercise: str | None) -> str:
    """What a student is told, of one exercise or of the whole."""
    if exercise is None:
        return " ".join(result.remarks)
    mark = result.mark(exercise)
    return " ".join([*mark.paragraphs, *(part for row in mark.rows for part in row)])


@pytest.mark.needs("bwrap")
@pytest.mark.in_turn(24)
@pytest.mark.parametrize("hostile", CORPUS, ids=lambda h: f"{h.family}-{h.name}")
def test_every_score_is_exact_and_no_attack_costs_others_anything(hostile, jail, tmp_path):
    """It says why, in words that can be kept and shown; the grader keeps its time and memory; and
    what is graded after one that leaves something behind gets all points."""
    submission = handed_in(hostile, tmp_path)
    before = psutil.Process().memory_info().rss
    forget_peak()
    began = time.thread_time()
    result = graded(submission, jail)
    assert time.thread_time() - began <= MOST_SECONDS
    assert peak_bytes() - before <= MOST_MEMORY
    assert {mark.exercise: mark.points for mark in result.marks} == hostile.points
    assert hostile.says in words(result, hostile.exercise)
    assert from_json(to_json(result).encode().decode()) == result
    sentences = [*result.remarks, *(text for mark in result.marks for text in mark.paragraphs)]
    assert all(text.isprintable() and len(text) < 5000 for text in sentences)
    if hostile.family in ("spoiled", "left behind"):
        assert lost(graded(HONEST, jail)) == {}


@pytest.mark.needs("bwrap")
@pytest.mark.soak
@pytest.mark.parametrize("hostile", [h for h in CORPUS if h.family in CLASS], ids=lambda h: h.name)
def test_seven_classmates_of_an_attacker_have_full_marks(hostile, jail):
    right = as_bytes(solved(hostile.lab))
    honest = [Submission(f"student{number}", hostile.lab, right) for number in range(7)]
    attacker = Submission(hostile.student, hostile.lab, hostile.content)
    submissions = [*honest[:3], attacker, *honest[3:]]
    found = dict(graded_here(submissions, SECRET, Jail(), jobs=2))
    assert {each.student: lost(found[each]) for each in honest} == {e.student: {} for e in honest}
    assert found[attacker].points == sum(hostile.points.values())


def test_every_family_of_attacks_is_there_and_no_name_twice():
    families = Counter(hostile.family for hostile in CORPUS)
    assert len(families) == 14
    assert min(families.values()) >= 10
    assert len({hostile.name for hostile in CORPUS}) == len(CORPUS)
