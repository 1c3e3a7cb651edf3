"""Run the solved notebooks that aren't kept, several at a time, and print how far they are."""

import os
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from autograder.executed import FAILURES, WHOLE, execute, kept, new_kernel, run_and_keep
from autograder.text.lesson import Lesson


def executed(lessons: Iterable[Lesson]) -> dict[str, NotebookNode]:
    """Return the executed notebooks of these lessons by name, without those in which a cell fails.

    Run as many at a time as there are cores, and print a line as each ends.
    """
    lessons = list(lessons)
    found = {lesson.name: notebook for lesson in lessons if (notebook := kept(lesson, WHOLE))}
    waiting = [lesson for lesson in lessons if lesson.name not in found]
    running: dict[Future[NotebookNode], tuple[Lesson, float]] = {}
    if found:
        say(f"Kept, because nothing that they use has changed: {', '.join(found)}.")
    with ThreadPoolExecutor() as pool:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                lesson = waiting.pop(0)
                running[pool.submit(run_alone, lesson)] = lesson, time.perf_counter()
            say(f"Running {', '.join(lesson.name for lesson, _ in running.values())}.")
            ended = next(as_completed(running))
            lesson, start = running.pop(ended)
            number = len(lessons) - len(waiting) - len(running)
            line = f"{number} of {len(lessons)}: {lesson.name}, {time.perf_counter() - start:.0f} s"
            try:
                found[lesson.name] = ended.result()
                say(line)
            except FAILURES as error:
                say(f"{line}, failed. {described(error)}")
    return found


def say(line: str) -> None:
    print(line, flush=True)  # also where the output is a file


def run_alone(lesson: Lesson, kind: str = WHOLE) -> NotebookNode:
    """Run a notebook in a kernel of its own: what it shows depends on no other."""

    def run(notebook: NotebookNode) -> None:
        with new_kernel() as kernel, tempfile.TemporaryDirectory() as folder:
            execute(notebook, kernel, Path(folder), kind)

    return run_and_keep(lesson, kind, run)


def described(error: Exception) -> str:
    """Say in a few lines which cell failed, and how."""
    told = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
    return "\n    ".join([*error.__notes__, *told.strip().splitlines()[:3]])
