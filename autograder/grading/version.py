"""The version of the course that a result comes from."""

import hashlib
from functools import cache

from autograder.course.reference import ROOT

PARTS = (
    *("gpt.py", "solutions/**/*.py", "solutions/lessons/*.md", "labs/*/*.ipynb"),
    *("autograder/*.py", "autograder/[!g]*/*.py", "autograder/misconceptions/*.md"),
    *(f"autograder/grading/{name}.py" for name in ("oracle", "near", "rebuild", "submission")),
)
# Building, a student's checks, displaying and keeping have no effect on a verdict.
WITHOUT = ("__main__", "build", "card", "cells", "check", "kept", "nbgrader_config", "progress")


@cache
def course_version() -> str:
    """Return a hash of everything that a verdict depends on."""
    digest = hashlib.sha256()
    found = (path for part in PARTS for path in ROOT.glob(part) if path.stem not in WITHOUT)
    for path in sorted(found):
        digest.update(path.relative_to(ROOT).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
