"""The course in a temporary folder, as it is after `make labs`, and nbgrader started in it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from html import unescape
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from autograder.build import build
from autograder.course.reference import ROOT
from autograder.exercises import exercises

FAKE = "tests.common.fake_results.result_for"


@cache
def built() -> tempfile.TemporaryDirectory:
    """What `make labs` makes, made once; it goes when the tests end."""
    folder = tempfile.TemporaryDirectory()
    build(ROOT / "solutions" / "lessons", Path(folder.name), exercises())
    return folder


class Course:
    """What grading comes to is made up by tests/common/fake_results.py: no code is run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "autograder"
        shutil.copytree(built().name, root, dirs_exist_ok=True)
        config = (ROOT / "autograder" / "nbgrader_config.py").read_text(encoding="utf-8")
        (self.folder / "nbgrader_config.py").write_text(
            f'{config}\nc.ApplyResults.result_for = "{FAKE}"\n', encoding="utf-8"
        )

    def solved(self, name: str) -> Path:
        return self.folder / "source" / name / f"{name.split('_', 1)[1]}.ipynb"

    def released(self, name: str) -> Path:
        return self.root / "labs" / name / f"{name.split('_', 1)[1]}.ipynb"

    def submit(self, student: str, name: str, notebook: str | bytes) -> Path:
        """Put a notebook into submitted/; return its folder."""
        folder = self.folder / "submitted" / student / name
        folder.mkdir(parents=True, exist_ok=True)
        content = notebook.encode() if isinstance(notebook, str) else notebook
        (folder / f"{name.split('_', 1)[1]}.ipynb").write_bytes(content)
        return folder

    # --------------------------------------------------------------- nbgrader in this process

    def api(self, **config: dict) -> NbGraderAPI:
        """As formgrader calls it; `config` holds settings by class, on top of the course's."""
        settings = PyFileConfigLoader("nbgrader_config.py", path=str(self.folder)).load_config()
        for section, values in config.items():
            settings[section].update(values)
        return NbGraderAPI(config=settings)

    def autograde(self, student: str, name: str, **config: dict) -> str:
        """What the log says of it."""
        done = self.api(**config).autograde(name, student)
        assert done["success"], done
        return done.get("log", "")

    def feedback(self, student: str, name: str) -> str:
        """The page that a student gets, as HTML."""
        done = self.api().generate_feedback(name, student)
        assert done["success"], done
        page = self.folder / "feedback" / student / name / f"{name.split('_', 1)[1]}.html"
        return page.read_text(encoding="utf-8")

    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}")

    def scores(self, student: str, name: str) -> dict[str, float | None]:
        """By grade_id; None where a person has to say."""
        with self.gradebook() as gradebook:
            notebook = gradebook.find_submission_notebook(name.split("_", 1)[1], name, student)
            return {
                grade.name: None if grade.needs_manual_grade else grade.score
                for grade in notebook.grades
            }

    # ------------------------------------------------------------ nbgrader as a person starts it

    def start(self, *command: str, **options) -> subprocess.Popen:
        """A Jupyter command, with nothing of the environment on PATH: it need not be activated."""
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": os.defpath},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    def nbgrader(self, *command: str) -> str:
        process = self.start("nbgrader", *command)
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        return said


def text_of(page: str) -> str:
    """What a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())
