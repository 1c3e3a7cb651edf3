"""Lines that would give a lab's answers away."""

from autograder.build import read_modules
from autograder.course.lesson import LESSONS, lessons


def telling_lines(lab: str) -> list[str]:
    """Lines of a lab's solutions that give something away: not in gpt.py or an earlier lab."""
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
    """The lines of a text without their margins and the comments behind them."""
    return [line.split("  # ")[0].strip() for line in text.splitlines()]
