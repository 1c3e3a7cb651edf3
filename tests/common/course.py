"""The course in a temporary folder, as `make labs` leaves it, with nbgrader running in it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

from filelock import FileLock
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI
from traitlets.config import PyFileConfigLoader

from autograder.build import build
from autograder.exercises import exercises
from autograder.text.reference import ROOT
from tests.common.browser import served

FAKE = "tests.common.fake_results.result_for"


def built_course() -> Path:
    """Build the labs as `make labs` does, once for all processes that share the tests."""
    folder = Path(os.environ["SHARED_FOLDER"]) / "course"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            new = folder.with_suffix(".new")
            build(ROOT, new, exercises())
            new.rename(folder)
    return folder


class Course:
    """A course whose grading runs no code: tests/common/fake_results.py makes up the results."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "autograder"
        shutil.copytree(built_course(), root, dirs_exist_ok=True)
        config = (ROOT / "autograder" / "nbgrader_config.py").read_text(encoding="utf-8")
        (self.folder / "nbgrader_config.py").write_text(
            f'{config}\nc.GradeSubmission.result_for = "{FAKE}"\n', encoding="utf-8"
        )

    def solved(self, name: str) -> Path:
        return self.folder / "source" / name / f"{name.split('_', 1)[1]}.ipynb"

    def released(self, name: str) -> Path:
        return self.root / "labs" / name / f"{name.split('_', 1)[1]}.ipynb"

    def submit(self, student: str, name: str, notebook: str | bytes) -> Path:
        """Put a notebook into submitted/. Return its folder."""
        folder = self.folder / "submitted" / student / name
        folder.mkdir(parents=True, exist_ok=True)
        content = notebook.encode() if isinstance(notebook, str) else notebook
        (folder / f"{name.split('_', 1)[1]}.ipynb").write_bytes(content)
        return folder

    # --------------------------------------------------------------- nbgrader in this process

    def api(self, **config: dict) -> NbGraderAPI:
        """Return the API that formgrader uses, with `config` (by class) on top of the settings."""
        settings = PyFileConfigLoader("nbgrader_config.py", path=str(self.folder)).load_config()
        for section, values in config.items():
            settings[section].update(values)
        return NbGraderAPI(config=settings)

    def autograde(self, student: str, name: str, **config: dict) -> str:
        """Autograde a submission. Return the log."""
        done = self.api(**config).autograde(name, student)
        assert done["success"], done
        return done.get("log", "")

    def feedback(self, student: str, name: str) -> str:
        """Return the HTML page that a student gets."""
        done = self.api().generate_feedback(name, student)
        assert done["success"], done
        page = self.folder / "feedback" / student / name / f"{name.split('_', 1)[1]}.html"
        return page.read_text(encoding="utf-8")

    def gradebook(self) -> Gradebook:
        return Gradebook(f"sqlite:///{self.folder / 'gradebook.db'}")

    def scores(self, student: str, name: str) -> dict[str, float | None]:
        """Return the scores by grade_id; None where a person has to grade."""
        with self.gradebook() as gradebook:
            notebook = gradebook.find_submission_notebook(name.split("_", 1)[1], name, student)
            return {
                grade.name: None if grade.needs_manual_grade else grade.score
                for grade in notebook.grades
            }

    # ------------------------------------------------------------- nbgrader as a user starts it

    @property
    def place(self) -> dict[str, Any]:
        """The folder and variables of a process; PATH is bare, as in a shell without the venv."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": os.defpath}
        return {"cwd": self.folder, "env": environment}

    def nbgrader(self, *command: str) -> str:
        """Run an nbgrader command. Return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "nbgrader", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            **self.place,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @contextmanager
    def formgrader(self) -> Iterator[str]:
        """Start formgrader without JupyterLab, as in autograder/README.md. Yield its address."""
        command = "jupyter", "server", "--ServerApp.root_dir=..", "--allow-root", "--ip=127.0.0.1"
        with served(self.root / "server.log", *command, **self.place) as address:
            yield f"{address}/formgrader"


def text_of(page: str) -> str:
    """Return a page's text, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())
