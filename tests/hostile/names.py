"""Submissions whose place in submitted/ is odd."""

import os
from collections.abc import Callable
from pathlib import Path

from nbformat import NotebookNode

from tests.hostile.notebooks import (
    LOOP,
    METRICS,
    NONE,
    Expected,
    Hostile,
    as_bytes,
    ordinary_file,
    right_lines,
    write,
)

FAMILY = "names"
FILE = "generate.ipynb"
FOUND = frozenset({LOOP})  # the notebook was read: what is written in it earns its points


def placed(
    name: str,
    files: Callable[[Path, bytes], None],
    expected: Expected = NONE,
    says: str = "",
    student: str = "mallory",
) -> Hostile:
    """One right exercise, wherever `files` puts the notebook."""

    def content(solved: NotebookNode, released: NotebookNode) -> bytes:
        return as_bytes(write(released, METRICS, right_lines(METRICS)))

    return Hostile(name, FAMILY, "generate", content, expected, says, files=files, student=student)


def linked_folder(folder: Path, content: bytes) -> None:
    folder.parent.mkdir(parents=True)
    friend = folder.parents[1] / "friend" / folder.name
    ordinary_file(friend, content)
    folder.symlink_to(friend)


def linked_student(folder: Path, content: bytes) -> None:
    friend = folder.parents[1] / "friend"
    ordinary_file(friend / folder.name, content)
    folder.parent.symlink_to(friend)


def linked_to_a_friend(folder: Path, content: bytes) -> None:
    friend = folder.parents[1] / "friend" / folder.name
    ordinary_file(friend, content)
    folder.mkdir(parents=True)
    (folder / FILE).symlink_to(friend / FILE)


def linked(target: str) -> Callable[[Path, bytes], None]:
    def files(folder: Path, content: bytes) -> None:
        folder.mkdir(parents=True)
        (folder / FILE).symlink_to(target)

    return files


def hard_linked(folder: Path, content: bytes) -> None:
    friend = folder.parents[1] / "friend" / folder.name
    ordinary_file(friend, content)
    folder.mkdir(parents=True)
    os.link(friend / FILE, folder / FILE)


def a_pipe(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    os.mkfifo(folder / FILE)


def a_folder(folder: Path, content: bytes) -> None:
    (folder / FILE / FILE).mkdir(parents=True)


def named(*names: str) -> Callable[[Path, bytes], None]:
    """The notebook under each of these names."""

    def files(folder: Path, content: bytes) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return files


def sparse(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    with (folder / FILE).open("wb") as file:
        file.truncate(1 << 40)


def empty(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)


def a_file_in_place_of_the_folder(folder: Path, content: bytes) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_bytes(content)


CORPUS = [
    placed(
        "the notebook is a link to the system's passwords", linked("/etc/passwd"), says="is a link"
    ),
    placed(
        "the notebook is a link to the grader's memory", linked("/proc/self/mem"), says="is a link"
    ),
    placed("the notebook is a link to endless zeros", linked("/dev/zero"), says="is a link"),
    placed("the notebook is a link to itself", linked(FILE), says="is a link"),
    placed("the notebook is a link to nothing", linked("/nowhere/at/all"), says="is a link"),
    placed("the notebook is a link to a friend's", linked_to_a_friend, says="is a link"),
    placed("the folder is a link to a friend's", linked_folder, says="is a link or a file"),
    placed("the student is a link to a friend", linked_student, says="is a link or a file"),
    placed("the notebook is a friend's, by a hard link", hard_linked, FOUND),
    placed("the notebook is a pipe that nobody writes to", a_pipe, says="is not an ordinary file"),
    placed("the notebook is a folder", a_folder, says="is not an ordinary file"),
    placed(
        "a file stands in the place of the folder",
        a_file_in_place_of_the_folder,
        says="is a link or a file",
    ),
    placed("the notebook is a terabyte of nothing", sparse, says="is larger than"),
    placed("the folder is empty", empty, says="There is no notebook"),
    placed("only a notebook of another name", named("my work.ipynb"), FOUND),
    placed("only a notebook in a folder below", named(f"work/{FILE}"), says="There is no notebook"),
    placed("the notebook and copies of it", named(FILE, "generate-Copy1.ipynb", "x.ipynb"), FOUND),
    placed("code beside the notebook", named(FILE, "torch.py", "gpt.py", "conftest.py"), FOUND),
    placed("a configuration of nbgrader's beside it", named(FILE, "nbgrader_config.py"), FOUND),
    *(
        placed(f"a student called {name!r}", ordinary_file, FOUND, student=name)
        for name in [
            "ada lovelace",
            "Łukasz Żółć 李",
            "*",
            "-rf",
            "a\nb",
            "a'b\"c",
            "$(id)",
            "{student_id}",
            "<b>ada",
            "x" * 255,
        ]
    ),
]
