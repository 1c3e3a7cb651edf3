"""Hostile submissions, and honest ones that look odd: each gets the points that it must get."""

import time
from collections import Counter
from dataclasses import dataclass
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
every_submission = pytest.mark.parametrize(
    "hostile",
    [pytest.param(h, marks=pytest.mark.in_turn(6)) for h in CORPUS],
    ids=lambda h: f"{h.family}-{h.name}",
)


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


@dataclass(frozen=True)
class Graded:
    """result: of a hostile submission. memory: bytes that the grader took above its start, at most.
    seconds: of processor time that it took. next: the result of an honest one that came after it,
    where it tried to leave something."""

    result: Result
    memory: int
    seconds: float
    next: Result | None


@pytest.fixture(scope="module")
def results(jail, tmp_path_factory):
    """Grades a submission once, whichever test asks first, and then an honest one."""
    known: dict[str, Graded] = {}

    def graded_once(hostile: Hostile) -> Graded:
        if hostile.name not in known:
            submission = handed_in(hostile, tmp_path_factory.mktemp("submitted"))
            before = psutil.Process().memory_info().rss
            forget_peak()
            began = time.thread_time()
            result = graded(submission, jail)
            seconds = time.thread_time() - began
            memory = peak_bytes() - before
            leaves = hostile.family in ("spoiled", "left behind")
            after = graded(HONEST, jail) if leaves else None
            known[hostile.name] = Graded(result, memory, seconds, after)
        return known[hostile.name]

    return graded_once


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
@every_submission
def test_every_score_is_exact_and_says_why(hostile, results):
    result = results(hostile).result
    assert {mark.exercise: mark.points for mark in result.marks} == hostile.points
    assert hostile.says in words(result, hostile.exercise)


@pytest.mark.needs("bwrap")
@every_submission
def test_the_grader_keeps_its_memory_and_who_comes_next_all_points(hostile, results):
    found = results(hostile)
    assert found.memory <= MOST_MEMORY
    assert found.seconds <= MOST_SECONDS
    assert found.next is None or lost(found.next) == {}


@pytest.mark.needs("bwrap")
@every_submission
def test_what_is_told_can_be_kept_and_shown(hostile, results):
    result = results(hostile).result
    kept = to_json(result).encode()
    assert from_json(kept.decode()) == result
    told = [*result.remarks, *(p for mark in result.marks for p in mark.paragraphs)]
    assert all(text.isprintable() and len(text) < 5000 for text in told)


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
