"""The course as nbgrader sees it: start nbgrader in this folder. README.md has the commands."""

import glob
import os
import sys
from pathlib import Path

c = get_config()  # traitlets defines it where it reads this file

REPOSITORY = Path(__file__).resolve().parent.parent

c.CourseDirectory.root = str(REPOSITORY)
c.CourseDirectory.course_id = "llm-inference"
c.CourseDirectory.source_directory = "autograder/source"
c.CourseDirectory.release_directory = "labs"
c.CourseDirectory.submitted_directory = "autograder/submitted"
c.CourseDirectory.autograded_directory = "autograder/autograded"
c.CourseDirectory.feedback_directory = "autograder/feedback"
c.CourseDirectory.db_url = f"sqlite:///{(REPOSITORY / 'autograder' / 'gradebook.db').as_posix()}"
c.ZipCollectApp.downloaded_directory = "autograder/downloaded"
c.Exchange.root = str(REPOSITORY / "autograder" / "exchange")

c.ClearSolutions.code_stub = {
    "python": '# TODO: write this part\nraise NotImplementedError("This TODO is not written yet.")'
}
c.Execute.timeout = 120  # seconds a cell, for `nbgrader validate`, which runs a student's own

# Grading neither reads nor runs a submission where the gradebook is: grading/plugins.py tells how.
SUBMITTED = REPOSITORY / "autograder" / "submitted"
PLUGINS = "autograder.grading.plugins"
c.Autograde.exporter_class = f"{PLUGINS}.SubmittedExporter"
c.Autograde.sanitize_preprocessors = [
    f"{PLUGINS}.RebuildFromRelease",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    f"{PLUGINS}.ApplyResults",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.SubmissionStep.submitted = str(SUBMITTED)

# What lies beside a submitted notebook is not copied, nor is a link to it followed. The pattern has
# slashes, so it matches nothing of what the exchange copies, which knows these patterns too.
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback",
    f"{glob.escape(str(SUBMITTED))}/*/*",
]  # fmt: skip
c.ExchangeFactory.collect = "autograder.grading.exchange.Collect"

# Students' Markdown and code, as formgrader and feedback show them.
c.HTMLExporter.filters = {
    "markdown2html": "autograder.grading.pages.prose",
    "highlight_code": "autograder.grading.pages.code",
}

# nbgrader starts `alembic` by name, which fails where its environment is not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
