"""What a sandbox shows of the course follows from imports, and holds no answer."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.grading.judge.border import shown_files
from autograder.text.imports import files_named, imports
from autograder.text.reference import ROOT, SOLUTIONS, module_files
from tests.common.trials import LABS

ROOMS = "autograder", "course", "solutions"
SHOW = """
from autograder.grading.judge.border import shown_files
from autograder.text.lesson import lessons

for lab in lessons():
    for path in shown_files(lab):
        print(path)
"""
every_lab = pytest.mark.parametrize("lab", LABS)


@every_lab
def test_it_holds_earlier_solutions_and_no_other(lab: str) -> None:
    shown, number = shown_files(lab), LABS.index(lab)
    assert shown >= {ROOT / "gpt.py", *module_files(LABS[:number])}
    assert shown.isdisjoint(module_files(LABS[number:]))


@every_lab
def test_it_holds_nothing_that_judges(lab: str) -> None:
    """Of the autograder, what runs beside an attempt: with the driver of its own lab alone."""
    attempt = ROOT / "autograder" / "attempt"
    shown = {path for path in shown_files(lab) if ROOT / "autograder" in path.parents}
    assert shown >= set(attempt.glob("*.py")) > {attempt / "worker.py"}
    others = {attempt / "drivers" / f"{other}.py" for other in LABS if other != lab}
    assert shown - {ROOT / "autograder" / "__init__.py"} <= set(attempt.rglob("*.py")) - others


@every_lab
def test_what_it_holds_finds_what_it_imports(lab: str) -> None:
    """All but an answer that the package around lab 7's files asks for when it is needed."""
    shown = shown_files(lab)
    needed = {(p, file) for p in shown for name in imports(p) for file in files_named(name)}
    missing = {(p.name, file) for p, file in needed if file not in shown}
    late = {("__init__.py", SOLUTIONS / "engine" / "engine.py")}
    assert missing <= (late if lab == "engine" else set())


def test_a_new_file_is_in_no_sandbox(tmp_path: Path) -> None:
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("source"))
    shutil.copy(ROOT / "gpt.py", tmp_path)
    fresh = [tmp_path / "solutions" / place for place in ("fresh.py", "engine/fresh.py")]
    for file in fresh:
        file.write_text("ANSWER = 42\n", encoding="utf-8")
    command = [sys.executable, "-c", SHOW]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = ran.stdout.split()
    assert str(tmp_path / "solutions" / "kv_cache.py") in shown
    assert not set(map(str, fresh)) & set(shown)
