"""How far a learner has come: `status`."""

import html
from dataclasses import dataclass

from autograder.card import CELL, COLOURS, TABLE, show
from autograder.exercise import NOT_ATTEMPTED, PASSED, Exercise
from autograder.exercises import exercises
from autograder.kept import is_kept, kept_file


@dataclass(frozen=True, repr=False)
class Progress:
    """Every exercise of the course with whether it has passed, and what comes next."""

    rows: list[tuple[Exercise, bool]]
    next_up: Exercise | None

    @property
    def summary(self) -> str:
        done = sum(passed for _, passed in self.rows)
        if self.next_up is None:
            return f"All {done} exercises passed."
        minutes = sum(exercise.minutes for exercise, passed in self.rows if not passed)
        return (
            f"{done} of {len(self.rows)} exercises passed, about {minutes} minutes left. "
            f"Go on with {self.next_up.name} in {notebook(self.next_up)}."
        )

    def __repr__(self) -> str:
        width = max(len(exercise.name) for exercise, _ in self.rows)
        lines = [
            f"{'passed' if passed else 'open':6}  {exercise.name:{width}}  "
            f"{exercise.minutes:3} min  {exercise.title}"
            for exercise, passed in self.rows
        ]
        return "\n".join([*lines, self.summary])

    def _repr_html_(self) -> str:
        rows = "".join(table_row(exercise, passed) for exercise, passed in self.rows)
        return f'<table style="{TABLE}">{rows}</table><div>{html.escape(self.summary)}</div>'


def table_row(exercise: Exercise, passed: bool) -> str:
    colour = COLOURS[PASSED if passed else NOT_ATTEMPTED]
    cells = [
        f'<span style="color:{colour}">{"passed" if passed else "open"}</span>',
        f"<code>{exercise.name}</code>",
        f"{exercise.minutes} min",
        html.escape(exercise.title),
    ]
    columns = "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
    return f'<tr style="background:none">{columns}</tr>'


def status() -> None:
    """Show the course so far: what has passed, the minutes left, and where to go on."""
    everything = list(exercises().values())
    show(Progress([(exercise, is_kept(exercise)) for exercise in everything], next_up(everything)))


def next_up(everything: list[Exercise]) -> Exercise | None:
    """The first open exercise behind the one that passed last, for one may start at any lab."""
    passed = [exercise for exercise in everything if is_kept(exercise)]
    last = max(passed, key=lambda e: kept_file(e).stat().st_mtime, default=everything[0])
    start = everything.index(last)
    ahead = everything[start:] + everything[:start]
    return next((exercise for exercise in ahead if not is_kept(exercise)), None)


def notebook(exercise: Exercise) -> str:
    """A lab's notebook as it lies in work/: 02_kv_cache/kv_cache.ipynb."""
    labs = list(dict.fromkeys(e.lab for e in exercises().values()))
    return f"{labs.index(exercise.lab) + 1:02}_{exercise.lab}/{exercise.lab}.ipynb"
