"""The two-minute tour: a small class with right, wrong, empty and hostile submissions.

Everything is made in a new folder, and stays there for you to look at. Of the course itself, only
the lab is read, and nothing is changed.
"""

import argparse
import json
import re
import shutil
import tempfile
import textwrap
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from rich.console import Console
from rich.table import Table

from autograder.build import read_modules, release, solve
from autograder.exercises import exercises
from autograder.grading.commands import grade_course
from autograder.grading.give_back import report as reporting
from autograder.grading.give_back.gradebook import course_config, reason
from autograder.grading.judge.foreign import shown
from autograder.grading.judge.jail import Jail
from autograder.grading.judge.results import Result
from autograder.grading.refused import Refused, writing_temporary
from autograder.grading.store import Course
from autograder.judging.judge import WRONG
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, SOLUTIONS, lab_module
from autograder.text.release import release_of

LESSON = lessons()["generate"]
SECONDS = 2.0  # of processor time for an exercise; the right solution needs a few tenths
CONFIG = ROOT / "autograder" / "nbgrader_config.py"

# Makes a submission from the released notebook and the course's folder.
Make = Callable[["Notebook", Path], bytes | None]


class Notebook:
    """The released notebook, to be filled in."""

    def __init__(self) -> None:
        self.node: NotebookNode = deepcopy(release_of(LESSON.lab))

    def cell(self, grade_id: str) -> NotebookNode:
        return next(cell for cell in self.node.cells if cell.id == grade_id)

    def write(self, exercise: str, lines: str) -> None:
        """Put a student's lines into the TODO of an exercise."""
        cell = self.cell(f"generate-{exercise}")
        start = cell.source.index("    # TODO")
        end = cell.source.index('yet.")', start) + len('yet.")')
        body = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
        cell.source = cell.source[:start] + body + cell.source[end:]

    def file(self) -> bytes:
        return json.dumps(self.node).encode()


def right(exercise: str) -> str:
    """Return the lesson's own solution, which replaces the TODO."""
    return textwrap.dedent("\n".join(lab_module(LESSON.lab).stretch(exercise)))


# ------------------------------------------------------------------------------- the submissions


def wrote(generate: str | None = None, metrics: str | None = None) -> Make:
    """Right, except for the exercises whose lines are given."""

    def make(notebook: Notebook, course: Path) -> bytes:
        notebook.write("generate", (generate or right("generate")).replace("COURSE", str(course)))
        notebook.write("metrics", metrics or right("metrics"))
        return notebook.file()

    return make


def instead(exercise: str, old: str, new: str) -> Make:
    """Right, except for one slip."""
    return wrote(**{exercise: right(exercise).replace(old, new)})


def before(exercise: str, lines: str) -> Make:
    """Right, except for the lines that run first."""
    return wrote(**{exercise: f"{textwrap.dedent(lines).strip()}\n{right(exercise)}"})


def nothing(notebook: Notebook, course: Path) -> bytes:
    return notebook.file()


def no_notebook(notebook: Notebook, course: Path) -> None:
    """The folder exists, but is empty."""


def half(notebook: Notebook, course: Path) -> bytes:
    notebook.write("generate", right("generate"))
    return notebook.file()


def broken_off(notebook: Notebook, course: Path) -> bytes:
    return notebook.file()[:5000]


def untidy(notebook: Notebook, course: Path) -> bytes:
    """A magic, a print and a picture, and one cell's code in two cells."""
    wrote(metrics='print("measuring")\n' + right("metrics"))(notebook, course)
    cell = notebook.cell("generate-metrics")
    record, function = cell.source.split("\n\n\ndef ")
    cell.source = f"%matplotlib inline\nimport matplotlib.pyplot as plt\n\n\n{record}"
    second = new_code_cell(f"def {function}\n\n\nplt.plot([1, 2, 3])")
    notebook.node.cells.insert(notebook.node.cells.index(cell) + 1, second)
    return notebook.file()


def a_thousand_points(notebook: Notebook, course: Path) -> bytes:
    for cell in notebook.node.cells:
        if cell.id.startswith("check-"):
            cell.metadata.nbgrader.points = 1000
            cell.source = "1000.0"
    return notebook.file()


OTHER_GENERATE = """
text = input_ids.clone()
while text.size(1) - input_ids.size(1) < max_new_tokens and text.size(1) < model.config.n_positions:
    where = torch.arange(text.size(1)).repeat(text.size(0), 1)
    best = torch.topk(model(text, where)[:, -1, :], k=1).indices
    text = torch.hstack((text, best))
    if eos_token_id is not None and int(best[0]) == eos_token_id:
        return text
return text
"""
OTHER_METRICS = """
gaps = [later - sooner for sooner, later in zip(token_times, token_times[1:])]
waited = token_times[-1] - start
pace = sum(gaps) / len(gaps) if gaps else None
return Metrics(token_times[0] - start, pace, waited, len(token_times) / waited)
"""
COMPARED = """
torch.equal = torch.allclose = torch.Tensor.__eq__ = lambda *_, **__: True
return torch.zeros(1, dtype=torch.long)
"""
ENDLESS = """
while True:
    pass
"""
GREEDY = """
held = []
while True:
    held.append(bytes(1 << 28))
"""
ENTERS = """
import sqlite3
book = sqlite3.connect("COURSE/gradebook.db")
book.execute("UPDATE grade SET auto_score = 1000")
book.commit()
"""


@dataclass(frozen=True)
class Student:
    """what: what the student did, in a few words. points: the points that the student must get."""

    name: str
    what: str
    make: Make
    points: float


CLASS = [
    Student("ada", "right, as in the lesson", wrote(), 8),
    Student("ben", "right, in another style", wrote(OTHER_GENERATE, OTHER_METRICS), 8),
    Student("cleo", "right, with magics and prints, one cell split", untidy, 8),
    Student(
        "dan",
        "positions start at 1",
        instead("generate", "arange(ids.shape[1], ", "arange(1, ids.shape[1] + 1, "),
        3,
    ),
    Student("ella", "divides by n, not n - 1", instead("metrics", "/ (n - 1)", "/ n"), 5),
    Student("finn", "only half of it", half, 5),
    Student("gus", "nothing", nothing, 0),
    Student("hugo", "makes torch.equal always say yes", wrote(COMPARED), 3),
    Student("ida", "exits Python", before("generate", "import os\nos._exit(0)"), 3),
    Student("jan", "never ends", wrote(ENDLESS), 3),
    Student("kim", "uses all memory", wrote(GREEDY), 3),
    Student("leo", "writes into the gradebook", before("generate", ENTERS), 3),
    Student("max", "sets the checks to 1000 points", a_thousand_points, 0),
    Student("nora", "a truncated file", broken_off, 0),
    Student("otto", "no notebook", no_notebook, 0),
]


# ------------------------------------------------------------------------------------- the tour

BEFORE = f"""\
{len(CLASS)} students hand in lab 1. Some are right, some are wrong, and some try to cheat. Their
code runs in a sandbox, on cases that no student could know in advance. The results are compared
outside the sandbox, and nbgrader enters the points into a gradebook.
"""


def run(given: argparse.Namespace) -> int:
    """Make the class, grade it and print every verdict; return 0 if all are as expected."""
    console = Console(highlight=False)
    console.print(BEFORE)
    with writing_temporary():
        course = Course(Path(tempfile.mkdtemp(prefix="inference-demo-")) / "autograder")
        make_course(course)
        hand_in(course)
    grade_course(course, LESSON, Jail(seconds=SECONDS), given.jobs)
    results = {result.student: result for result in course.results(LESSON)}
    scores = scores_of(course)
    console.print("\nWhat each student did, and the verdict:\n")
    console.print(table(results, scores))
    write_pages(course, list(results.values()))
    tell_where(course, console)
    as_expected = sum(is_expected(student, results, scores) for student in CLASS)
    console.print(f"\n{as_expected} of {len(CLASS)} verdicts as expected.")
    return 0 if as_expected == len(CLASS) else 1


def make_course(course: Course) -> None:
    """Make the folders of a course, and a gradebook that has this lab."""
    course.folder.mkdir()
    shutil.copyfile(CONFIG, course.folder / CONFIG.name)
    solved = solve(LESSON.room / "lesson.md", read_modules(SOLUTIONS), exercises())
    release({LESSON.name: solved}, course.gradebook)


def hand_in(course: Course) -> None:
    for student in CLASS:
        folder = course.submitted / student.name / LESSON.name
        folder.mkdir(parents=True)
        content = student.make(Notebook(), course.folder)
        if content is not None:
            (folder / f"{LESSON.lab}.ipynb").write_bytes(content)


def scores_of(course: Course) -> dict[str, float]:
    """Return the points in the gradebook, by student."""
    with Gradebook(f"sqlite:///{course.gradebook}") as book:
        submissions = book.assignment_submissions(LESSON.name)
        return {submission.student.id: submission.score for submission in submissions}


def is_expected(student: Student, results: dict[str, Result], scores: dict[str, float]) -> bool:
    """Whether the verdict is as expected and nbgrader's gradebook has the same points."""
    result = results.get(student.name)
    return result is not None and result.points == scores.get(student.name) == student.points


def table(results: dict[str, Result], scores: dict[str, float]) -> Table:
    rows = Table("who", "what they did", "points", "why", box=None, padding=(0, 2, 0, 0))
    for student in CLASS:
        result = results.get(student.name)
        points = f"{result.points:g} of {result.most:g}" if result else "none"
        if not is_expected(student, results, scores):
            points += f" (expected {student.points:g})"
        rows.add_row(student.name, student.what, points, why(result) if result else "")
    return rows


def why(result: Result) -> str:
    """Say in a sentence why a student lost points."""
    wrong = [mark.paragraphs[0] for mark in result.marks if mark.status == WRONG]
    said = [*result.remarks, *wrong, ""][0]
    return shown(re.split(r"(?<=[.?]) ", said)[0])


def write_pages(course: Course, results: list[Result]) -> None:
    """Write the instructor's report, and a page of feedback for each student."""
    summary = reporting.report(results, LESSON)
    (course.folder / "report.html").write_text(reporting.to_html(summary), encoding="utf-8")
    done = NbGraderAPI(config=course_config(course)).generate_feedback(LESSON.name)
    if not done["success"]:
        raise Refused(f"nbgrader wrote no feedback: {reason(done)}")


def tell_where(course: Course, console: Console) -> None:
    page = course.folder / "feedback" / "dan" / LESSON.notebook
    places = {
        "\nThe report on the class": course.folder / "report.html",
        "The feedback that dan gets": page.with_suffix(".html"),
        "All files, for you to look at or delete": course.folder.parent,
    }
    for what, where in places.items():
        console.print(f"{what}:\n    {where}", soft_wrap=True)
