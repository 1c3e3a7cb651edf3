"""Submissions whose place in submitted/ is odd.

Each has one right exercise, which earns its points where the notebook is read.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tests.hostile.notebooks import (
    LOOP,
    METRICS,
    NONE,
    Hostile,
    as_bytes,
    ordinary_file,
    released,
    right_lines,
    write,
)

FAMILY = "names"
FILE = "generate.ipynb"
Files = Callable[[Path, bytes], None]


def linked(target: str) -> Files:
    def files(folder: Path, content: bytes) -> None:
        folder.mkdir(parents=True)
        (folder / FILE).symlink_to(target)

    return files


def hard_linked(folder: Path, content: bytes) -> None:
    friend = folder.parents[1] / "friend" / folder.name
    ordinary_file(friend, content)
    folder.mkdir(parents=True)
    os.link(friend / FILE, folder / FILE)


def sparse(folder: Path, content: bytes) -> None:
    folder.mkdir(parents=True)
    with (folder / FILE).open("wb") as file:
        file.truncate(1 << 40)


def named(*names: str) -> Files:
    """The notebook under each of these names."""

    def files(folder: Path, content: bytes) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    return files


TARGETS = ("/etc/passwd", "/proc/self/mem", "/dev/zero", FILE, "/nowhere/at/all")
REFUSED = {
    **{f"the notebook is a link to {to}": (linked(to), "is a link") for to in TARGETS},
    "the notebook is a terabyte of nothing": (sparse, "is larger than"),
    "only a notebook in a folder below": (named(f"work/{FILE}"), "There is no notebook"),
}
READ = {
    "the notebook is a friend's, by a hard link": hard_linked,
    "only a notebook of another name": named("my work.ipynb"),
    "the notebook and copies of it": named(FILE, "generate-Copy1.ipynb", "x.ipynb"),
    "code beside the notebook": named(FILE, "torch.py", "gpt.py", "conftest.py"),
    "a configuration of nbgrader's beside it": named(FILE, "nbgrader_config.py"),
}
STUDENTS = (
    *("ada lovelace", "Łukasz Żółć 李", "*", "-rf", "a\nb", "a'b\"c", "$(id)", "{student_id}"),
    *("<b>ada", "x" * 255),
)


def placed(
    name: str, files: Files = ordinary_file, says: str = "", student: str = "mallory"
) -> Hostile:
    def made() -> bytes:
        return as_bytes(write(released("generate"), METRICS, right_lines(METRICS)))

    expected = NONE if says else frozenset({LOOP})
    return Hostile(name, FAMILY, "generate", made, expected, says, files=files, student=student)


CORPUS = [
    *(placed(name, *refused) for name, refused in REFUSED.items()),
    *(placed(name, files) for name, files in READ.items()),
    *(placed(f"a student called {name!r}", student=name) for name in STUDENTS),
]
