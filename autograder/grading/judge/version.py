"""The version of the course that a result comes from."""

import hashlib
from functools import cache

from autograder.text.reference import ROOT

PARTS = (
    *("gpt.py", "solutions/**/*.py", "labs/*/*.ipynb"),
    *(f"autograder/{room}/**/*.py" for room in ("attempt", "judging", "lending", "text")),
    *("autograder/exercises.py", "course/*/cases.py", "course/*/lesson.md", "course/*/wrong.md"),
    "autograder/notebook/verdict.py",
    *(f"autograder/grading/{name}.py" for name in ("oracle", "near", "rebuild", "submission")),
    *(f"autograder/grading/{name}.py" for name in ("border", "bounds", "jail", "foreign", "turns")),
)


@cache
def course_version() -> str:
    """Return a hash of everything that a verdict depends on."""
    digest = hashlib.sha256()
    for path in sorted(path for part in PARTS for path in ROOT.glob(part)):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
