"""Hostile submissions, and honest ones that look odd: each gets the points that it must get."""

import os
from collections import Counter
from pathlib import Path

import pytest

from autograder.grading.jail import Jail, JailError
from autograder.grading.oracle import grade_one
from autograder.grading.results import Result, from_json, to_json
from autograder.grading.submission import Submission, read_submission
from autograder.lesson import lessons
from tests.hostile import CORPUS
from tests.hostile.notebooks import Hostile
from tests.hostile.reaching import WALLS

SECRET = bytes(range(32))
SECONDS = 2.0  # of processor time for an exercise; the reference needs tenths

EVERY = 4  # of a family, so many are tried by `make soak` for one that is tried each time


def samples() -> list[Hostile]:
    """Every fourth of each family, and all honest ones."""
    numbers = Counter[str]()
    found = []
    for hostile in CORPUS:
        if hostile.family == "honest" or numbers[hostile.family] % EVERY == 0:
            found.append(hostile)
        numbers[hostile.family] += 1
    return found


SAMPLES = samples()
every_submission = pytest.mark.parametrize(
    "hostile",
    [pytest.param(h, marks=() if h in SAMPLES else pytest.mark.soak) for h in CORPUS],
    ids=lambda h: f"{h.family}-{h.name}",
)


@pytest.fixture(scope="module")
def jail():
    try:
        with Jail(seconds=SECONDS) as jail:
            require_walls(jail)
            yield jail
    except JailError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, and there is no sandbox: {error}")
        pytest.skip(f"no sandbox: {error}")


def require_walls(jail):
    """What comes after this kills, fills and floods whatever it can reach."""
    outside = grade_one(Submission(WALLS.student, WALLS.lab, WALLS.content), SECRET, jail)
    assert outside.points == 0, "The sandbox has a hole: nothing hostile is run here."


@pytest.fixture(scope="module")
def results(jail, tmp_path_factory):
    """Grades a submission once, whichever test asks first."""
    known: dict[str, Result] = {}

    def result_of(hostile: Hostile) -> Result:
        if hostile.name not in known:
            folder = tmp_path_factory.mktemp("submitted")
            known[hostile.name] = grade_one(handed_in(hostile, folder), SECRET, jail)
        return known[hostile.name]

    return result_of


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


@every_submission
def test_every_score_is_exact_and_says_why(hostile, results):
    result = results(hostile)
    assert {mark.exercise: mark.points for mark in result.marks} == hostile.points
    assert hostile.says in words(result, hostile.exercise)


@every_submission
def test_what_is_told_can_be_kept_and_shown(hostile, results):
    result = results(hostile)
    kept = to_json(result).encode()
    assert from_json(kept.decode()) == result
    told = [*result.remarks, *(p for mark in result.marks for p in mark.paragraphs)]
    assert all(text.isprintable() and len(text) < 5000 for text in told)


@pytest.mark.parametrize(
    "corpus", [SAMPLES, pytest.param(CORPUS, marks=pytest.mark.soak)], ids=["samples", "all"]
)
def test_no_forgery_no_abort_and_no_student_lost(corpus, results):
    found = [(hostile, results(hostile)) for hostile in corpus]
    forged = [h.name for h, result in found if result.points > sum(h.points.values())]
    lost = [h.name for h, result in found if {m.exercise for m in result.marks} != {*h.points}]
    assert (forged, lost, len(found)) == ([], [], len(corpus))


def test_every_family_of_attacks_is_there():
    families = Counter(hostile.family for hostile in CORPUS)
    assert sum(families.values()) - families["honest"] >= 60
    assert families["honest"] >= 15
    assert {name for name, number in families.items() if number >= 10} == {*families}
    assert len({hostile.name for hostile in CORPUS}) == len(CORPUS)
