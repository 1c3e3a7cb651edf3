"""Count the results of a class."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autograder.grading.collect.inventory import Inventory
from autograder.grading.judge.results import Mark, Result
from autograder.judging.catalogue import misconceptions
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.text.lesson import Lesson

# The measured difficulty is the first of these whose share of attempts has passed.
DIFFICULTIES = {1: 0.9, 2: 0.75, 3: 0.5, 4: 0.25, 5: 0.0}
FEWEST = 3  # attempts needed for a measured difficulty
NOT_YET = "not graded yet: python -m autograder grade {}"


@dataclass(frozen=True)
class Mistake:
    """A misconception and the number of students who hold it."""

    exercise: str
    name: str
    sentence: str
    students: int


@dataclass(frozen=True)
class ExerciseNumbers:
    """One exercise, over all students.

    number: its place in the lab. promised: the difficulty on its card, None for an exercise that
    the lesson no longer has. measured: the difficulty by the share of attempts that passed, None
    for fewer than FEWEST attempts. middle, largest: median and maximum of the attempts' processor
    seconds. unexplained: the students whose answer is wrong for an unknown reason.
    """

    number: int
    name: str
    title: str
    promised: int | None
    passed: int
    wrong: int
    not_attempted: int
    measured: int | None
    middle: float | None
    largest: float | None
    mistakes: tuple[Mistake, ...]
    unexplained: tuple[str, ...]

    @property
    def is_harder(self) -> bool:
        """Whether it was harder than its card says."""
        return (self.measured or 0) > (self.promised or len(DIFFICULTIES))


@dataclass(frozen=True)
class StudentRow:
    """One student. marks: in the order of the exercises, None if one was not graded."""

    student: str
    marks: tuple[Mark | None, ...]
    points: float
    most: float
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """limits, versions, secrets: each with the number of submissions that it applies to.

    not_graded: folders of submitted/, each with the reason. notes: on everything else found there.
    """

    lesson: Lesson
    exercises: tuple[ExerciseNumbers, ...]
    rows: tuple[StudentRow, ...]
    unsandboxed: int
    limits: tuple[tuple[str, int], ...]
    versions: tuple[tuple[str, int], ...]
    secrets: tuple[tuple[str, int], ...]
    not_graded: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def mistakes(self) -> list[Mistake]:
        """All misconceptions found, the most frequent first."""
        mistakes = [each for exercise in self.exercises for each in exercise.mistakes]
        return sorted(mistakes, key=lambda each: -each.students)


def report(results: Sequence[Result], lesson: Lesson, submitted: Inventory | None = None) -> Report:
    """Count the results of a class. Raises ValueError for results of another lab.

    results: one for each student. submitted: so that the report also lists what is not graded.
    """
    others = sorted({result.lab for result in results} - {lesson.lab})
    if others:
        raise ValueError(f"A report on {lesson.lab} can't contain results of {', '.join(others)}.")
    ordered = sorted(results, key=lambda result: result.student)
    graded = dict.fromkeys(mark.exercise for result in ordered for mark in result.marks)
    names = list(lesson.cards | graded)
    waiting = dict.fromkeys(submitted.students, NOT_YET.format(lesson.lab)) if submitted else {}
    misplaced = submitted.misplaced if submitted else {}
    return Report(
        lesson,
        tuple(numbers(i, name, ordered, lesson) for i, name in enumerate(names, 1)),
        tuple(row(result, names, misplaced) for result in ordered),
        sum(not result.sandboxed for result in ordered),
        counts(limit for result in ordered for limit in dict.fromkeys(result.limits)),
        counts(result.version for result in ordered),
        counts(result.secret for result in ordered),
        not_graded({result.student for result in ordered}, waiting, misplaced),
        tuple(submitted.notes) if submitted else (),
    )


def counts(texts: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return each text with its count, the most frequent first."""
    return tuple(Counter(texts).most_common())


def not_graded(graded: set[str], *reasons: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return each student without a result, with the reasons."""
    students = sorted(set().union(*reasons) - graded)
    return tuple((each, " ".join(r[each] for r in reasons if each in r)) for each in students)


def row(result: Result, names: Sequence[str], misplaced: Mapping[str, str]) -> StudentRow:
    marks = {mark.exercise: mark for mark in result.marks}
    odd = [misplaced[result.student]] if result.student in misplaced else []
    return StudentRow(
        result.student,
        tuple(marks.get(name) for name in names),
        result.points,
        result.most,
        (*result.remarks, *odd),
    )


def numbers(number: int, name: str, results: Sequence[Result], lesson: Lesson) -> ExerciseNumbers:
    marks = [(result.student, m) for result in results for m in result.marks if m.exercise == name]
    status = Counter(mark.status for _, mark in marks)
    seconds = [mark.seconds for _, mark in marks if mark.status != NOT_ATTEMPTED]
    wrong = [(student, mark) for student, mark in marks if mark.status == WRONG]
    card = lesson.cards.get(name)
    return ExerciseNumbers(
        number,
        name,
        card.title if card else name,
        card.difficulty if card else None,
        status[PASSED],
        status[WRONG],
        status[NOT_ATTEMPTED],
        difficulty(status[PASSED], status[PASSED] + status[WRONG]),
        median(seconds) if seconds else None,
        max(seconds, default=None),
        mistakes(name, [mark.misconception for _, mark in wrong if mark.misconception]),
        tuple(student for student, mark in wrong if not mark.misconception),
    )


def difficulty(passed: int, attempted: int) -> int | None:
    if attempted < FEWEST:
        return None
    return next(level for level, share in DIFFICULTIES.items() if passed / attempted >= share)


def mistakes(exercise: str, names: Sequence[str]) -> tuple[Mistake, ...]:
    sentences = {known.name: known.sentence for known in misconceptions(exercise)}
    gone = "{}: no longer in the catalogue."
    return tuple(
        Mistake(exercise, name, sentences.get(name, gone.format(name)), students)
        for name, students in counts(names)
    )
