"""Lines that would reveal a lab's answers."""

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, lab_module


def telling_lines(lab: str) -> list[str]:
    """Return the lines of a lab's solutions that aren't in gpt.py, an earlier lab or given code."""
    labs, module = list(lessons()), lab_module(lab)
    earlier = ["\n".join(lab_module(other).lines) for other in labs[: labs.index(lab)]]
    solved = {n for stretch in module.stretches.values() for n in stretch}
    given = "\n".join(line for n, line in enumerate(module.lines) if n not in solved)
    texts = [(ROOT / "gpt.py").read_text(encoding="utf-8"), *earlier, given]
    known = {line for text in texts for line in bare_lines(text)}
    lines = [
        line
        for solution in module.stretches
        for line in bare_lines("\n".join(module.stretch(solution)))
    ]
    return [line for line in lines if len(line) >= 15 and line not in known and line[0] != "#"]


def bare_lines(text: str) -> list[str]:
    """Return the lines of a text without indentation and without comments at their ends."""
    return [line.split("  # ")[0].strip() for line in text.splitlines()]
