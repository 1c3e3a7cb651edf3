"""Graders that fail: each costs what it was grading and not the batch, and says why."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autograder.grading import local
from autograder.grading.judge.jail import Jail, JailError, remove_leftover_groups
from autograder.grading.judge.results import NotGraded, Result
from autograder.grading.judge.secret import key_of
from autograder.grading.judge.submission import Submission
from autograder.grading.local import graded_here, graded_or_not
from autograder.grading.refused import Refused
from autograder.grading.temporary import PREFIXES, remove_leftovers
from autograder.text.reference import ROOT
from tests.common import faulty
from tests.common.disks import NO_ROOM, full_disk

SECRET = bytes(range(32))


def handed_in(student: str) -> Submission:
    return Submission(student, "generate", b"a notebook")


# ------------------------------------------------------------------------------- one submission


def too_large() -> Exception:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    return raised.value


MEMORY = r"Grading it took more memory than there is\. Is there enough memory\? Try fewer --jobs\."


@pytest.mark.parametrize(
    ("error", "why"),
    [
        *((error, MEMORY) for error in (MemoryError(), too_large(), OSError(12, os.strerror(12)))),
        (JailError("Install it."), r"Install it\."),
        (LookupError("lost"), r"Grading it failed: LookupError in test_local\.py, line \d+: lost"),
    ],
)
def test_what_stops_a_grade_is_told(error, why, monkeypatch):
    def grade_one(*_: object) -> Result:
        raise error

    monkeypatch.setattr(local, "grade_one", grade_one)
    found = graded_or_not(handed_in("ada"), key_of(SECRET, handed_in("ada")), Jail())
    assert isinstance(found, NotGraded)
    assert re.fullmatch(why, found.why)


def test_memory_is_suspected_only_where_a_process_was_killed() -> None:
    asked = {code: "Is there enough memory?" in local.died(code).why for code in (-9, -11, 1)}
    assert asked == {-9: True, -11: False, 1: False}
    assert "with exit code -11." in local.died(-11).why


# ------------------------------------------------------------------------------------ a batch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that tells the graders what fails, and holds their temporary files."""
    monkeypatch.setenv("FAULTS", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(local, "serve", faulty.serve)
    return tmp_path


def noted(method: Callable, sent: list[bytes]) -> Callable:
    def call(grader: local.Grader, *what: object) -> object:
        sent.append(pickle.dumps(what))
        return method(grader, *what)

    return call


@pytest.mark.slow
def test_a_sandbox_that_is_gone_costs_one_submission_and_no_more_to_be_had_ends_it(
    folder, monkeypatch
):
    """And no grader gets the secret, and nothing is left of the batch."""
    students = "ada", faulty.GONE, "bob", "cat", faulty.GONE_FOR_EVER, "dan"
    results: dict[str, Result | NotGraded] = {}
    sent: list[bytes] = []
    for name in ("__init__", "begin"):
        monkeypatch.setattr(local.Grader, name, noted(getattr(local.Grader, name), sent))
    graded = graded_here(map(handed_in, students), SECRET, Jail(), 1)
    with pytest.raises(JailError, match=r"^There is no sandbox to be had\.$"):
        results.update((submission.student, result) for submission, result in graded)
    assert (
        results[faulty.GONE] == results[faulty.GONE_FOR_EVER] == NotGraded("The sandbox is gone.")
    )
    ada, bob, cat = (vars(results[student])["seconds"] for student in ("ada", "bob", "cat"))
    assert ada != bob == cat  # the next is graded by a new process, which has tried one out
    assert "dan" not in results
    assert any(key_of(SECRET, handed_in("bob")).value in each for each in sent)
    assert not any(SECRET in each for each in sent)
    assert [path for path in folder.iterdir() if path.name.startswith(PREFIXES)] == []


KILLED = """
from autograder.grading import local
from tests.common import faulty
local.serve = faulty.serve
these = [local.Submission(faulty.WAITS, "generate", b"a notebook")]
list(local.graded_here(these, bytes(32), local.Jail(), 1))
"""


@pytest.mark.slow
def test_a_killed_graders_folder_goes_when_its_last_process_has_ended(tmp_path: Path) -> None:
    """The process that grades doesn't notice at once, and needs its files until it ends."""
    places = {"FAULTS": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **places}) as running:
        while not (tmp_path / "waits").exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.kill()
    (left,) = tmp_path.glob("inference-grader-*")
    remove_leftovers(tmp_path)
    assert left.exists()
    (tmp_path / "go_on").touch()
    while left.exists():  # that process takes it away at its end
        time.sleep(0.05)


def test_the_cgroups_of_killed_graders_go_and_no_others(tmp_path: Path) -> None:
    ended = [subprocess.Popen(["true"]) for _ in range(2)]
    numbers = [process.pid for process in ended if process.wait() == 0]
    folders = (tmp_path / f"inference-grader-{number}" for number in (*numbers, os.getpid()))
    dead, used, alive = folders
    for folder in (dead, used / "with something in it", alive):
        folder.mkdir(parents=True)
    remove_leftover_groups(tmp_path)
    assert (dead.exists(), used.exists(), alive.exists()) == (False, True, True)


# ---------------------------------------------------------------------------------- no room


def test_a_TMPDIR_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    with (
        full_disk(tmp_path / "disk", (shutil, "copyfile")),
        Jail(sandboxed=False) as jail,
        pytest.raises(JailError) as refusal,
    ):
        jail.stage("generate")
    assert str(refusal.value) == (
        f"{tmp_path / 'disk'} can't be written to: {NO_ROOM}. Free space on its disk, or set "
        "TMPDIR to another folder. The results so far are kept: run the same command again to "
        "continue from there."
    )


def test_a_TMPDIR_that_is_not_there_is_told(tmp_path, monkeypatch):
    nowhere = str(tmp_path / "nowhere")
    monkeypatch.setenv("TMPDIR", nowhere)
    monkeypatch.setattr(tempfile, "tempdir", nowhere)
    with pytest.raises(JailError, match=f"{nowhere} can't be written to: No such file"):
        Jail().__enter__()
    with pytest.raises(Refused, match=r"or set TMPDIR to another folder\."):
        list(graded_here([], SECRET, Jail(), 1))
