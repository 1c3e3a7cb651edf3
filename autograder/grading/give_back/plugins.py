"""The step of nbgrader's autograde in this course, set by configuration (nbgrader_config.py).

Stock nbgrader reads a submission and runs it with access to the gradebook. Here it does neither:
the exporter gives it an empty notebook, and GradeSubmission, which replaces Execute, replaces that
by a notebook rebuilt from the release and the student's own code, with the results of grading in
the check cells. Stock nbgrader reads the scores from there and keeps the gradebook, as it always
does.
"""

import unicodedata
from pathlib import Path
from typing import Any

from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbformat.v4 import new_notebook, new_output
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode
from traitlets.utils.importstring import import_item

from autograder.grading.collect import timestamp
from autograder.grading.collect.exchange import MOST_SECRET, SECRET
from autograder.grading.judge.foreign import HIDDEN
from autograder.grading.judge.rebuild import check_id, rebuild
from autograder.grading.judge.results import RESULT, Mark, Result, result_id
from autograder.grading.judge.submission import read_beside, read_submission
from autograder.notebook.card import VerdictCard
from autograder.text.lesson import Lesson, lessons
from autograder.text.release import release_of

UNSANDBOXED = "Graded without a sandbox."


class EmptyExporter(NotebookExporter):
    """Reads no file: every notebook starts empty."""

    def from_filename(
        self, filename: str, resources: Any = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        return self.from_notebook_node(new_notebook(), resources, **kw)


class GradeSubmission(NbGraderPreprocessor):
    """Replaces the notebook by the rebuilt one, with points and reason in each check cell.

    No other cell has an output. The submission is read once, so what nbgrader shows is what was
    graded. Only two other things are taken from the student's folder: the time of the submission,
    by which nbgrader finds late ones, and the secret with which the exchange returns the feedback.
    """

    submitted = Unicode(help="The course's folder of submissions.").tag(config=True)
    result_for = Unicode(
        "autograder.grading.store.result_for",
        help="The function from a Submission and the course's folder to the Result.",
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        submitted, student = Path(self.submitted), resources["nbgrader"]["student"]
        lesson = lesson_named(resources["nbgrader"]["assignment"])
        submission = read_submission(submitted, student, lesson)
        notebook = rebuild(submission, release_of(lesson.lab)).notebook
        apply(import_item(self.result_for)(submission, submitted.parent), notebook)
        resources["outputs"] = beside(submitted, student, lesson)
        return notebook, resources


def lesson_named(name: str) -> Lesson:
    """Raises ValueError for an assignment that is not a lab of the course."""
    for lesson in lessons().values():
        if lesson.name == name:
            return lesson
    known = ", ".join(lesson.name for lesson in lessons().values())
    raise ValueError(f"There is no lab {name!r}. The labs are {known}.")


def beside(submitted: Path, student: str, lesson: Lesson) -> dict[str, bytes]:
    """Return the files to write into the notebook's folder, by name."""
    files = {}
    if time := timestamp.handed_in_at(submitted, student, lesson):
        files[timestamp.NAME] = timestamp.written(time).encode()
    if secret := read_beside(submitted, student, lesson, SECRET, MOST_SECRET):
        files[SECRET] = secret
    return files


def apply(result: Result, notebook: NotebookNode) -> None:
    """Write a result into a notebook. Raises ValueError if it has no mark for a check."""
    notebook.metadata[RESULT] = result_id(result)
    marks = {check_id(mark.exercise): mark for mark in result.marks}
    for cell in notebook.cells:
        label = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "code" and label.get("grade"):
            cell.outputs = outputs(mark_for(label, marks), result)


def mark_for(label: NotebookNode, marks: dict[str, Mark]) -> Mark:
    mark = marks.get(label["grade_id"])
    if mark is None or mark.most != label["points"] or not 0 <= mark.points <= mark.most:
        raise ValueError(
            f"The kept result doesn't fit the check {label['grade_id']}. "
            "Run `make labs` and grade this lab again."
        )
    return mark


def outputs(mark: Mark, result: Result) -> list[NotebookNode]:
    """Return the card for the student, and the score as the cell's value for nbgrader."""
    card = card_of(mark, result)
    shown = {"text/html": card._repr_html_(), "text/plain": repr(card)}
    score = {"text/plain": repr(float(mark.points))}
    return [new_output("display_data", shown), new_output("execute_result", score)]


def card_of(mark: Mark, result: Result) -> VerdictCard:
    reread = [f"Read again: {mark.reread}"] if mark.reread else []
    unsafe = [] if result.sandboxed else [UNSANDBOXED]
    return VerdictCard(
        mark.exercise,
        mark.status,
        [visible(text) for text in (*mark.paragraphs, *reread, *result.remarks, *unsafe)],
        [(visible(label), visible(value)) for label, value in mark.rows],
        points=f"{mark.points:g} of {mark.most:g} point{'s' if mark.most != 1 else ''}",
    )


def visible(text: str) -> str:
    """Remove invisible characters, which could hide what a text says."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in HIDDEN)
