"""The course's settings for nbgrader: start it in this folder. README.md lists the commands."""

import glob
import os
import sys
from pathlib import Path

c = get_config()  # traitlets defines it when it reads this file

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
c.Execute.timeout = 120  # seconds per cell, for `nbgrader validate`, which runs a student's code

# The process with the gradebook neither trusts nor runs a submission: see
# grading/give_back/plugins.py. The first pass over it has nothing to do.
SUBMITTED = REPOSITORY / "autograder" / "submitted"
PLUGINS = "autograder.grading.give_back.plugins"
c.Autograde.exporter_class = f"{PLUGINS}.EmptyExporter"
c.Autograde.sanitize_preprocessors = []
c.Autograde.autograde_preprocessors = [
    f"{PLUGINS}.GradeSubmission",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.GradeSubmission.submitted = str(SUBMITTED)

# Other files next to a submitted notebook are not copied, and links are not followed. The exchange
# uses these patterns, too. This one has slashes, so it matches nothing that the exchange copies.
c.CourseDirectory.ignore = [
    ".ipynb_checkpoints", "*.pyc", "__pycache__", "feedback",
    f"{glob.escape(str(SUBMITTED))}/*/*",
]  # fmt: skip
c.ExchangeFactory.collect = "autograder.grading.collect.exchange.Collect"

# How formgrader and feedback show students' Markdown and code.
c.HTMLExporter.filters = {
    "markdown2html": "autograder.grading.give_back.pages.prose",
    "highlight_code": "autograder.grading.give_back.pages.code",
}

# nbgrader starts `alembic` by name, which fails if its environment is not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
