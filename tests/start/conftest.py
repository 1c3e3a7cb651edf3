"""A learner, whose passed exercises are files in a folder of the test's own."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.notebook import passed


@pytest.fixture(autouse=True)
def mine_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    return tmp_path / "mine"


@pytest.fixture
def pass_all() -> Callable[..., None]:
    """Let exercises pass, each a second after the one before it."""

    def pass_all(*exercises: str) -> None:
        for second, exercise in enumerate(exercises):
            file = passed.kept_file(exercise)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            os.utime(file, (second, second))

    return pass_all
