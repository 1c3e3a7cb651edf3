"""What a sandbox shows of the course: the files that an attempt needs, without an answer.

They follow from imports alone: a file that nothing of a lab imports is in no sandbox of that lab.
"""

from pathlib import Path

from autograder.text.imports import files_used
from autograder.text.lesson import lessons
from autograder.text.reference import importing, module_files

PROGRAMS = "import autograder.attempt.__main__, autograder.attempt.worker"


def shown_files(lab: str) -> set[Path]:
    """Return the files of the course that an attempt at a lab may see.

    These are the programs that run beside it, its driver, the modules of earlier labs, all that
    these and the lab's own module import, and gpt.py. The lab's own module and those of later labs
    are not among them. A released notebook imports more for what it shows around the exercises, a
    server for instance, which is built around right solutions and stays out.
    """
    labs = list(lessons())
    earlier, from_here = labs[: labs.index(lab)], labs[labs.index(lab) :]
    own = [file.read_text(encoding="utf-8") for file in module_files([lab])]
    driver = f"import gpt, autograder.attempt.drivers.{lab}"
    answers = set(module_files(from_here))
    return files_used([PROGRAMS, driver, *own, *importing(earlier)], without=answers)
