"""How far a learner has come: `status`."""

from dataclasses import dataclass
from pathlib import Path

from autograder.judging.verdicts import NOT_ATTEMPTED, PASSED, WRONG
from autograder.notebook.card import COLORS, show
from autograder.notebook.passed import OPEN, RED, Progress, newest_lab, progress_in
from autograder.text.lesson import Card, Lesson, lessons
from autograder.text.reference import has_reference
from autograder.text.templates import render

STATUS = Path(__file__).with_name("status.html")
SHOWN = {PASSED: COLORS[PASSED], OPEN: COLORS[NOT_ATTEMPTED], RED: COLORS[WRONG]}
START = "start.ipynb"  # next to the folders of the labs


@dataclass(frozen=True, repr=False)
class Status:
    """One lab with the state of each exercise, and the sentences about it and what comes next.

    start: the path of the start page, which shows the whole course; "" where there is none.
    """

    title: str
    rows: list[tuple[Card, str]]
    sentences: list[str]
    start: str = ""

    def __repr__(self) -> str:
        width = max(len(card.exercise) for card, _ in self.rows)
        lines = [
            f"{state:9}  {card.exercise:{width}}  {card.minutes:3} min  {named(card)}"
            for card, state in self.rows
        ]
        return "\n".join([self.title, *lines, *self.sentences])

    def _repr_html_(self) -> str:
        return render(STATUS, status=self, colors=SHOWN, named=named)


def named(card: Card) -> str:
    return f"{card.title}{' (beyond)' * card.beyond}"


def status() -> None:
    """Show this lab: what has passed, what is open, and where to go on in the course."""
    show(status_of(this_lab()))


def status_of(lesson: Lesson) -> Status:
    progress = progress_in(lesson)
    return Status(
        f"Lab {lesson.number}, {lesson.lab}",
        [(card, progress.states[name]) for name, card in lesson.cards.items()],
        [open_here(progress), *questions(lesson), *elsewhere(lesson)],
        f"../{START}" if Path("..", START).exists() else "",
    )


def open_here(progress: Progress) -> str:
    total, left = len(progress.states), progress.left
    if not left:
        return f"All {total} exercises of this lab passed."
    earned, points = progress.points
    needed, beyond = progress.minutes_left(beyond=False), progress.minutes_left(beyond=True)
    minutes = [f"about {needed} minutes left"] * (not progress.is_finished)
    minutes += [f"about {beyond} minutes beyond the lab"] * (beyond > 0)
    go_on = "This lab is finished. If you like, go" if progress.is_finished else "Go"
    return (
        f"{len(progress.passed)} of {total} exercises passed ({earned} of {points} points), "
        f"{' and '.join(minutes)}. {go_on} on with {left[0].exercise}."
    )


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
    done = [f"{o.lab} {len(progress_in(o).passed)} of {len(o.cards)}" for o in others]
    later = [other for other in others if other.name > lesson.name]
    found = [f"The other labs: {', '.join(done)}."] if done else []
    if later:
        found.append(f"The next lab is {later[0].notebook}.")
    elif has_reference(lesson.lab):  # a bundle knows of no later one
        found.append("This is the last lab.")
    return [" ".join(found)] if found else []


def this_lab() -> Lesson:
    """The lab of this folder's notebook; in another folder, the lab of the newest pass."""
    here = [lesson for lesson in lessons().values() if lesson.name == Path.cwd().name]
    return here[0] if here else newest_lab()
