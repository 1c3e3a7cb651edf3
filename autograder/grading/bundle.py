"""A lab for a class: a zip with the notebook and the files it needs, without its answers.

It contains the solutions of earlier labs, those of this lab with TODOs, and no grading code. Of the
lessons it contains only cards, hints and points. The results of the reference and the
misconceptions, which a check needs, are recorded (judging/recorded.py). The same course always
gives the same bytes.
"""

import io
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from autograder.exercises import exercises
from autograder.grading.refused import Refused
from autograder.judging.exercise import Exercise, Record
from autograder.judging.judge import drawn, run_all
from autograder.judging.recorded import RECORDS, frame
from autograder.text.imports import files_used
from autograder.text.lesson import REGION, SECTION, Lesson, is_beyond, lessons
from autograder.text.reference import (
    ROOT,
    TODO,
    importing,
    lab_module,
    module_file,
    module_files,
)
from autograder.text.release import LABS, code_of

FOLDER = "inference-labs"  # in the zip; students unpack later labs over it
AS_THEY_ARE = (
    "autograder/notebook/*.html",
    *("LICENSE", "gpt.py", "workbook.py", "pyproject.toml", "constraints.txt", "environment.yml"),
    *(".jupyter/*/*.json", "models/README.md"),
    *(f"models/*/*.{kind}" for kind in ("json", "md", "safetensors", "gguf")),
    "models/fable/adapters/*/*",
    "models/text/*.txt",
)
PROGRAMS = "import workbook, autograder.check"
MAKEFILE = """\
# Sets up everything and opens the lab in JupyterLab. Without make, run:
# `python3 workbook.py lab`.

PYTHON ?= python3
JUPYTER_ARGS ?=

.PHONY: lab
lab:
\t@$(PYTHON) workbook.py lab $(JUPYTER_ARGS)
"""
SEED = 0  # of the cases that `check` runs
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def release(lesson: Lesson, path: Path) -> int:
    """Write the bundle of a lab to `path` and return its size in bytes.

    Raises Refused if the lab is not built or if `path` exists.
    """
    if path.exists():
        raise Refused(f"{path} already exists. Move it away, or choose another file with --out.")
    if not (LABS / lesson.notebook).exists():
        raise Refused(f"{LABS / lesson.notebook} is missing. Build it first: make labs")
    content = zipped(files_of(lesson))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return len(content)


def zipped(files: dict[str, bytes]) -> bytes:
    """Pack the files into a zip whose bytes depend only on them, not on the date or the user."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{FOLDER}/{name}", LONG_AGO)
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    return content.getvalue()


def files_of(lesson: Lesson) -> dict[str, bytes]:
    """Return all files of a bundle, by name."""
    lab, known = lesson.lab, list(lessons())
    upto = known[: known.index(lab) + 1]
    of_lab = [in_bundle(exercise) for exercise in exercises().values() if exercise.lab == lab]
    skeleton = skeleton_of(lab)
    copied = [path for pattern in AS_THEY_ARE for path in ROOT.glob(pattern)]
    copied += [LABS / lesson.notebook, *modules(lab, of_lab, skeleton)]
    copied += [lessons()[earlier].room / "wrong.md" for earlier in upto[:-1]]
    for_assistants = list(LABS.glob("AGENTS.md"))  # unless an instructor has deleted it
    copied += for_assistants
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in copied} | {
        "README.md": readme(lesson).encode(),
        "Makefile": MAKEFILE.encode(),
        **{path.name: path.read_bytes() for path in for_assistants},  # in the bundle's root, too
        **{f"course/lab{lessons()[name].name}/lesson.md": cards(name).encode() for name in upto},
        module_file(lab).relative_to(ROOT).as_posix(): skeleton.encode(),
        (RECORDS / f"{lab}.frames").relative_to(ROOT).as_posix(): b"".join(map(recorded, of_lab)),
    }


def readme(lesson: Lesson) -> str:
    return (
        (Path(__file__).parent / "for_students.md")
        .read_text(encoding="utf-8")
        .replace("{number}", lesson.name.split("_")[0].lstrip("0"))
        .replace("{lab}", lesson.lab)
        .replace("{notebook}", lesson.notebook)
        .replace("{example}", next(iter(lesson.cards)))
    )


# --------------------------------------------------------------------------------------- records


def in_bundle(exercise: Exercise) -> Exercise:
    """Return the exercise in a form that needs only records of the reference."""
    return replace(exercise, services=exercise.in_bundle or exercise.services)


def recorded(exercise: Exercise) -> bytes:
    cases = drawn(exercise, SEED)
    exercise = replace(exercise, record=Record({}, ()))  # so that it runs as it will in the bundle
    drivers = [exercise.driver, *([exercise.as_built] if exercise.as_built else [])]
    right = {
        driver.__name__: run_all(exercise, driver, exercise.reference, cases) for driver in drivers
    }
    expected = right[exercise.driver.__name__]
    wrong = [
        (misconception, run_all(exercise, exercise.driver, code, cases, expected))
        for misconception in exercise.misconceptions
        for code in misconception.attempts()
    ]
    return frame(exercise, cases, Record(right, wrong))


# ------------------------------------------------------------------------------- without answers


def skeleton_of(lab: str) -> str:
    """Return a lab's module as a student gets it, with TODOs."""
    module = lab_module(lab)
    lines = list(module.lines)
    for stretch in sorted(module.stretches.values(), key=lambda s: s.start, reverse=True):
        first = next(line for line in module.lines[stretch.start : stretch.stop] if line.strip())
        margin = first[: -len(first.lstrip())]
        lines[stretch.start : stretch.stop] = [f"{margin}{TODO}"]
    return "\n".join(lines) + "\n"


def cards(lab: str) -> str:
    """Return a lesson's cards, hints and points, without its text and model answers."""
    text = (lessons()[lab].room / "lesson.md").read_text(encoding="utf-8")
    kept = ["Cards and hints. The lesson itself is the notebook in labs/.\n"]
    for section in SECTION.split(text):
        kept.append("## (beyond)\n" if is_beyond(section) else "##\n")
        kept += [
            f"<!-- #region {head} -->\n{body if head.startswith('exercise=') else ''}\n"
            "<!-- #endregion -->\n"
            for head, body in REGION.findall(section)
            if head.startswith(("exercise=", "answer="))
        ]
    return "\n".join(kept)


# ------------------------------------------------------------------------------- needed modules


def modules(lab: str, of_lab: Iterable[Exercise], skeleton: str) -> set[Path]:
    """Return the files of the course that the notebook, the checks and the programs import."""
    known = list(lessons())
    earlier, from_here = known[: known.index(lab)], known[known.index(lab) :]
    looked_up = [
        *importing(earlier),
        *(f"import {lessons()[other].package}.cases" for other in earlier),
        *(f"import {f.__module__}" for e in of_lab for f in (e.driver, e.compare, e.services)),
    ]
    sources = [PROGRAMS, skeleton, *looked_up, *code_of(lab)]
    return files_used(sources, without={*module_files(from_here)})
