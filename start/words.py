"""Lengths of time and lists of labs, as the page writes them."""

from collections.abc import Iterable

from autograder.text.lesson import Lesson


def duration(minutes: int) -> str:
    """Return "45 min", "3 h" or "1 h 15"."""
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{rest} min"
    return f"{hours} h {rest:02}" if rest else f"{hours} h"


def time_of(lesson: Lesson) -> str:
    """Return a lab's time, and apart that of the sections that it can be finished without."""
    beyond = f" + {duration(lesson.beyond)} beyond" if lesson.beyond else ""
    return duration(lesson.minutes) + beyond


def numbers(labs: Iterable[Lesson]) -> str:
    """Return the numbers of labs, which are in order, as "1, 2, 4–7"."""
    runs: list[list[int]] = []
    for lesson in labs:
        if runs and lesson.number == runs[-1][-1] + 1:
            runs[-1].append(lesson.number)
        else:
            runs.append([lesson.number])
    return ", ".join(f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)


def labeled(labs: list[Lesson]) -> str:
    return f"{'lab' if len(labs) == 1 else 'labs'} {numbers(labs)}"


def title(lesson: Lesson) -> str:
    return lesson.lab.replace("_", " ")
