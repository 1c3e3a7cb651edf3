"""Temporary folders and files that are written whole, with processes that are really killed."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autograder.grading.temporary import Temporary, remove_leftovers, write_whole
from autograder.text.reference import ROOT
from tests.common.disks import NO_ROOM, full_disk

MADE = "inference-grader-*"

MAKES_ONE = """
from autograder.grading.temporary import Temporary
made = Temporary("grader", Path(sys.argv[1]))
(made.path / "file").write_text("something")
"""
REPLACES = """
from autograder.grading import temporary
temporary.os.fsync = lambda descriptor: print("here", flush=True) or time.sleep(600)
temporary.write_whole(Path(sys.argv[1]), "new")
"""


@contextmanager
def process(code: str, path: Path) -> Iterator[subprocess.Popen]:
    """A process that has run the code and waits. It is killed at the end of the block."""
    lines = f"import sys, time\nfrom pathlib import Path\n{code}\nprint('here', flush=True)"
    command = [sys.executable, "-c", f"{lines}\ntime.sleep(600)", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "here\n"
            yield running
        finally:
            running.kill()


def test_it_goes_at_the_end_of_its_block_and_only_then(tmp_path: Path) -> None:
    with Temporary("grader", tmp_path) as folder:
        (folder / "file").touch()
        remove_leftovers(tmp_path)
        assert list(tmp_path.glob(MADE)) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_removing_it_twice_does_no_harm(tmp_path: Path) -> None:
    made = Temporary("grader", tmp_path)
    made.remove()
    again = Temporary("grader", tmp_path)  # it may get the same descriptor
    made.remove()
    remove_leftovers(tmp_path)
    assert again.path.exists()


def test_that_of_a_killed_process_goes_with_the_next(tmp_path: Path) -> None:
    with process(MAKES_ONE, tmp_path) as running:
        (folder,) = tmp_path.glob(MADE)
        remove_leftovers(tmp_path)
        assert (folder / "file").exists()
        running.kill()
        running.wait()
        assert (folder / "file").exists()
        with Temporary("gradebook", tmp_path) as mine:  # of whatever kind
            assert list(tmp_path.iterdir()) == [mine]


def test_nothing_else_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    inside = tmp_path / "inside"
    for folder in (elsewhere, inside / "inference-demo-kept", inside / "other"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (inside / "inference-grader-link").symlink_to(elsewhere)
    (inside / "inference-grader-file").touch()
    before = sorted(tmp_path.rglob("*"))
    remove_leftovers(inside)
    assert sorted(tmp_path.rglob("*")) == before
    (inside / "inference-grader-others").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_leftovers(inside)
    assert (inside / "inference-grader-others").exists()
    monkeypatch.undo()
    remove_leftovers(inside)
    assert sorted(tmp_path.rglob("*")) == before


def test_one_taken_for_a_leftover_before_it_is_held_is_made_anew(tmp_path, monkeypatch):
    real_flock = fcntl.flock
    taken: list[Path] = []

    def flock(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_SH and not taken:
            taken.extend(tmp_path.iterdir())
            remove_leftovers(tmp_path)
        real_flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with Temporary("grader", tmp_path) as folder:
        assert folder.is_dir()
        assert not taken[0].exists()


def test_where_a_file_system_has_no_locks_folders_are_spared(tmp_path, monkeypatch):
    def flock(descriptor: int, how: int) -> None:
        raise OSError

    monkeypatch.setattr(fcntl, "flock", flock)
    with Temporary("grader", tmp_path) as folder, Temporary("grader", tmp_path):
        assert folder.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_killed_leaves_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_whole(path, "old")
    with process(REPLACES, path) as running:
        running.kill()
        running.wait()
    assert path.read_text() == "old"
    assert len(list(path.parent.iterdir())) == 2
    write_whole(path, "newest")
    assert path.read_text() == "newest"
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file_whole_and_nothing_else(tmp_path: Path) -> None:
    with full_disk(tmp_path / "disk") as make_room:
        path = tmp_path / "disk" / "file"
        path.symlink_to("nowhere")  # takes no room
        before = sorted(path.parent.iterdir())
        with pytest.raises(OSError, match=NO_ROOM):
            write_whole(path, "new" * 1000)
        assert sorted(path.parent.iterdir()) == before
        assert path.is_symlink()
        make_room()
        write_whole(path, "new" * 1000)
        assert list(path.parent.iterdir()) == [path]
        assert path.read_text() == "new" * 1000


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """After a power cut the file has its old content or its new one."""
    path, seen, real_fsync = tmp_path / "file", [], os.fsync

    def fsync(descriptor: int) -> None:
        seen.append((os.fstat(descriptor), path.exists()))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, "text")
    (part, before), (folder, after) = seen
    assert os.path.samestat(part, path.stat())
    assert not before
    assert os.path.samestat(folder, tmp_path.stat())
    assert after
