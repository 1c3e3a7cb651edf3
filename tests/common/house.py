"""The house as a whole: what a lab lacks, who imports whom, and how long a lab takes."""

import ast
import re
from collections.abc import Container, Iterator
from pathlib import Path

import jupytext

from autograder.course.lesson import Lesson, read_lesson
from autograder.course.reference import AuthorError, parts_of, read_module
from autograder.judging.catalogue import parsed

FILES = {
    "visuals/{lab}.py": "its pictures",
    "autograder/drivers/{lab}.py": "how an attempt is run on a case",
    "autograder/exercises/{lab}.py": "the cases of each exercise",
    "autograder/misconceptions/{lab}.md": "the wrong solutions that people write",
    "timing/rows/{lab}.py": "its rows on the timing table",
    "labs/{name}/{lab}.ipynb": "what `make labs` makes of the lesson",
    "tests/visuals/test_visuals_{lab}.py": "the tests of its pictures",
    "tests/answers/{lab}.py": "right answers in other styles, and wrong ones that are told why",
}
WORDS_A_MINUTE, MINUTES_A_CELL, MINUTES_A_QUESTION = 120, 0.5, 5


# ----------------------------------------------------------------------------- what a lab lacks


def lacking(root: Path, registered: Container[str]) -> Iterator[str]:
    """A sentence for everything that a lab of the course at `root` lacks.

    registered: the names of its exercises.
    """
    for path in sorted((root / "solutions" / "lessons").glob("*.md")):
        try:
            lesson = read_lesson(path)
        except AuthorError as error:
            yield str(error)
            continue
        missing = [
            f"{path.name} has no {file.format(name=lesson.name, lab=lesson.lab)}: {what}."
            for file, what in {solution_of(lesson.lab): "the solution", **FILES}.items()
            if not (root / file.format(name=lesson.name, lab=lesson.lab)).exists()
        ]
        yield from missing or exercises_lacking(root, lesson, registered)
        yield from lines_lacking(root, lesson)


def solution_of(lab: str) -> str:
    return f"solutions/{parts_of(lab)[-1]}.py"


def exercises_lacking(root: Path, lesson: Lesson, registered: Container[str]) -> Iterator[str]:
    lab = lesson.lab
    catalogue = parsed(text(root / "autograder" / "misconceptions" / f"{lab}.md"), f"{lab}.md")
    for path in read_module(root / solution_of(lab)).stretches:
        name = f"{lab}.{path}"
        if name not in lesson.cards:
            yield f"{lesson.name}.md has no card with hints for {name}."
        if name not in registered:
            yield f"autograder/exercises/{lab}.py has no exercise {name}."
        if not catalogue.get(name):
            yield f"autograder/misconceptions/{lab}.md has nothing for {name}."


def lines_lacking(root: Path, lesson: Lesson) -> Iterator[str]:
    number = number_of(lesson)
    rows = root / "timing" / "rows" / f"{lesson.lab}.py"
    if rows.exists() and f"(lab {number})" not in text(rows):
        yield f"timing/rows/{lesson.lab}.py has no row that ends with (lab {number})."
    if f"timing.rows.{lesson.lab}" not in imports(root / "timing" / "table" / "techniques.py"):
        yield f"timing/table/techniques.py leaves the rows of {lesson.lab} out."
    if readme_line(root, lesson) is None:
        yield f"README.md has no line | [{number} · {lesson.lab}] in its table of labs."
    own = root / "tests" / "solutions" / f"test_{lesson.lab}.py"
    shared = root / "tests" / "solutions" / "test_solutions.py"
    if not own.exists() and f"solutions.{lesson.lab}" not in imports(shared):
        name = f"tests/solutions/test_{lesson.lab}.py"
        yield f"{name} is missing, and test_solutions.py beside it leaves it out."


def readme_line(root: Path, lesson: Lesson) -> str | None:
    begin = f"| [{number_of(lesson)} · {lesson.lab}]"
    lines = text(root / "README.md").splitlines()
    return next((line for line in lines if line.startswith(begin)), None)


def number_of(lesson: Lesson) -> int:
    return int(lesson.name.split("_")[0])


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


# ------------------------------------------------------------------------------ who imports whom


def imports(path: Path) -> set[str]:
    """The full names of all that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


# -------------------------------------------------------------------------- how long a lab takes


def minutes_needed(lesson: Path) -> float:
    """The cards' minutes, the prose read, each cell run and looked at, each question answered.

    Hints and model answers are not counted.
    """
    cells = jupytext.read(lesson).cells
    prose = [
        cell.source
        for cell in cells
        if cell.cell_type == "markdown" and not {"exercise", "answer"} & set(cell.metadata)
    ]
    read = read_lesson(lesson)
    return (
        sum(card.minutes for card in read.cards.values())
        + len(" ".join(prose).split()) / WORDS_A_MINUTE
        + MINUTES_A_CELL * sum(cell.cell_type == "code" for cell in cells)
        + MINUTES_A_QUESTION * len(read.questions)
    )


def promised_in_lesson(lesson: Path) -> int | None:
    """ "about 2 hours 45 minutes in all" in minutes."""
    found = re.search(r"about (?:(\d+) hours?)? ?(?:(\d+) minutes)? in all", text(lesson))
    return in_minutes(found)


def promised_in_readme(line: str) -> int | None:
    """ "2 h 45" in the last column, in minutes."""
    return in_minutes(re.search(r"\| (?:(\d+) h)? ?(\d+)? (?:min )?\|$", line))


def in_minutes(found: re.Match | None) -> int | None:
    return 60 * int(found[1] or 0) + int(found[2] or 0) if found else None
