"""Write the tables that follow from the labs into the texts that show them: `make labs` does it.

    python -m docs.tables

A table is between two comments that name it, and all else in a text is left as it is.
"""

import re
from collections.abc import Iterable, Sequence

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from start import paths
from start.words import time_of

# The files of a lab, for the one that CONTRIBUTING.md takes as its example.
EXAMPLE = "09_scheduling"
ROOM = f"course/lab{EXAMPLE}/"
FILES = {
    "solutions/scheduling.py": "the solution: the lines that a student writes are between "
    "`### BEGIN SOLUTION` and `### END SOLUTION`",
    f"{ROOM}lesson.md": "the lesson, a jupytext notebook, with the card and the hints of each "
    "exercise",
    f"{ROOM}lab.toml": "what is said about the lab in lists, and where its rows are on the table",
    f"{ROOM}cases.py": "the cases, and one expression for each exercise",
    f"{ROOM}wrong.md": "the wrong solutions that people write, as edits of the right one",
    f"{ROOM}style.py": "one right solution of each exercise in another style",
    f"{ROOM}answers.py": "more right answers, and wrong ones with the cause that a student is told",
    f"{ROOM}row.py": "its rows on the timing table",
    f"{ROOM}samples.py": "the objects given to its pictures in tests, each picture in `EXAMPLES`",
    f"{ROOM}test_solution.py": "tests of the solution",
    f"{ROOM}test_pictures.py": "tests of the pictures",
    "visuals/scheduling.py": "its pictures",
    "autograder/attempt/drivers/scheduling.py": "how an attempt is run on a case: plain data in, "
    "records of what was seen out",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def labs() -> str:
    rows = [
        (
            f"[{lesson.number} · {lesson.lab}](labs/{lesson.notebook})",
            lesson.line,
            time_of(lesson),
        )
        for lesson in lessons().values()
    ]
    return table(["lab", "you build", "time"], rows)


def solutions() -> str:
    rows = [
        (" " if number else str(lesson.number), files, what)
        for lesson in lessons().values()
        for number, (files, what) in enumerate(lesson.solution.items())
    ]
    return table(["lab", "files", "what they add"], rows)


def files() -> str:
    return table(["", ""], [(f"`{file}`", what) for file, what in FILES.items()])


TABLES = {
    "README.md": ("labs", labs),
    "solutions/README.md": ("solutions", solutions),
    "CONTRIBUTING.md": ("files", files),
    "docs/workshops.md": ("paths", paths.table),
}


def written(file: str) -> str:
    """Return the text of a file with its table as it should be."""
    name, made = TABLES[file]
    begin, end = f"<!-- {name}: written by `make labs` -->\n", f"<!-- end of {name} -->"
    text = (ROOT / file).read_text(encoding="utf-8")
    between = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)
    return between.sub(lambda _: f"\n{made().strip()}\n\n", text)


if __name__ == "__main__":
    for file in TABLES:
        (ROOT / file).write_text(written(file), encoding="utf-8")
