"""The course as nbgrader sees it: start nbgrader in this folder. README.md has the commands."""

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
c.Execute.timeout = 120  # seconds a cell, so that a submission that hangs costs two minutes

# nbgrader starts `alembic` by name, which fails where its environment is not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
