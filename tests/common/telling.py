"""Lines that would reveal a lab's answers."""

from autograder.build import read_modules
from autograder.course.lesson import LESSONS, lessons


def telling_lines(lab: str) -> list[str]:
    """Return the lines of a lab's solutions that are neither in gpt.py nor in an earlier lab."""
    modules, labs = read_modules(LESSONS.parent), list(lessons())
    earlier = [modules[name].lines for name in ("gpt", *labs[: labs.index(lab)])]
    known = {line for lines in earlier for line in bare_lines("\n".join(lines))}
    lines = [
        line
        for solution in modules[lab].stretches
        for line in bare_lines("\n".join(modules[lab].stretch(solution)))
    ]
    return [line for line in lines if len(line) >= 12 and line not in known and line[0] != "#"]


def bare_lines(text: str) -> list[str]:
    """Return the lines of a text without indentation and without comments at their ends."""
    return [line.split("  # ")[0].strip() for line in text.splitlines()]
