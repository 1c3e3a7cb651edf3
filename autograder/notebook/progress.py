"""How far a learner has come: `status`."""

import html
from dataclasses import dataclass
from pathlib import Path

from autograder.course.lesson import FILE, Lesson, lessons
from autograder.course.reference import has_reference
from autograder.exercises import exercises
from autograder.judging.exercise import Exercise
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.notebook.card import CELL, COLORS, TABLE, show
from autograder.notebook.kept import is_kept, is_red, kept_file

RED = "red again"
SHOWN = {PASSED: COLORS[PASSED], "open": COLORS[NOT_ATTEMPTED], RED: COLORS[WRONG]}


@dataclass(frozen=True, repr=False)
class Progress:
    """One lab with the state of each exercise, and the sentences about it and what comes next."""

    title: str
    rows: list[tuple[Exercise, str]]
    sentences: list[str]

    def __repr__(self) -> str:
        width = max(len(exercise.name) for exercise, _ in self.rows)
        lines = [
            f"{state:9}  {e.name:{width}}  {e.card.minutes:3} min  {e.card.title}"
            for e, state in self.rows
        ]
        return "\n".join([self.title, *lines, *self.sentences])

    def _repr_html_(self) -> str:
        rows = "".join(table_row(exercise, state) for exercise, state in self.rows)
        sentences = "".join(f"<div>{html.escape(sentence)}</div>" for sentence in self.sentences)
        return f'<b>{self.title}</b><table style="{TABLE}">{rows}</table>{sentences}'


def table_row(exercise: Exercise, state: str) -> str:
    cells = [
        f'<span style="color:{SHOWN[state]}">{state}</span>',
        f"<code>{exercise.name}</code>",
        f"{exercise.card.minutes} min",
        html.escape(exercise.card.title),
    ]
    columns = "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
    return f'<tr style="background:none">{columns}</tr>'


def status() -> None:
    """Show this lab: what has passed, what is open, and where to go on in the course."""
    show(progress(this_lab()))


def progress(lesson: Lesson) -> Progress:
    rows = [(exercise, state_of(exercise)) for exercise in of_lab(lesson.lab)]
    still = [exercise for exercise, state in rows if state != PASSED]
    number = lesson.name.split("_")[0].lstrip("0")
    return Progress(
        f"Lab {number}, {lesson.lab}",
        rows,
        [*open_here(len(rows), still), *questions(lesson), *elsewhere(lesson)],
    )


def of_lab(lab: str) -> list[Exercise]:
    return [exercise for exercise in exercises().values() if exercise.lab == lab]


def state_of(exercise: Exercise) -> str:
    if is_red(exercise):
        return RED
    return PASSED if is_kept(exercise) else "open"


def open_here(total: int, still: list[Exercise]) -> list[str]:
    if not still:
        return [f"All {total} exercises of this lab passed."]
    minutes = sum(exercise.card.minutes for exercise in still)
    return [
        (
            f"{total - len(still)} of {total} exercises passed, about {minutes} minutes left. "
            f"Go on with {still[0].name}."
        )
    ]


def questions(lesson: Lesson) -> list[str]:
    """The questions that are answered in prose, which no check can see."""
    if not lesson.questions:
        return []
    points = sum(lesson.questions.values())
    return [
        (
            f"{len(lesson.questions)} questions are answered in prose at the end of the notebook "
            f"({points} points), and not checked here."
        )
    ]


def elsewhere(lesson: Lesson) -> list[str]:
    """The other labs: how much of each is done, and the next one."""
    others = [other for other in lessons().values() if other != lesson]
    done = [
        f"{other.lab} {sum(state_of(e) == PASSED for e in of_lab(other.lab))} of {len(other.cards)}"
        for other in others
    ]
    later = [other for other in others if other.name > lesson.name]
    found = [f"The other labs: {', '.join(done)}."] if done else []
    if later:
        found.append(f"The next lab is {later[0].notebook}.")
    elif has_reference(lesson.lab):  # a bundle knows of no later one
        found.append("This is the last lab.")
    return [" ".join(found)] if found else []


def this_lab() -> Lesson:
    """The lab of this folder's notebook; in another folder, the lab of the newest pass."""
    here = FILE.fullmatch(Path.cwd().name)
    if here and here[1] in lessons():
        return lessons()[here[1]]
    passed = [exercise for exercise in exercises().values() if is_kept(exercise)]
    newest = max(passed, key=lambda exercise: kept_file(exercise).stat().st_mtime, default=None)
    return lessons()[newest.lab] if newest else next(iter(lessons().values()))
