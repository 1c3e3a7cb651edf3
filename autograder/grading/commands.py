"""The commands of `python -m autograder`."""

import argparse
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autograder.grading import bundle as bundling
from autograder.grading.collect import submitted as collecting
from autograder.grading.collect.inventory import inventory
from autograder.grading.give_back import report as reporting
from autograder.grading.give_back.gradebook import NotEntered, entered, gradebook
from autograder.grading.judge.foreign import shown
from autograder.grading.judge.jail import Jail
from autograder.grading.judge.results import NotGraded, Result
from autograder.grading.judge.submission import Submission
from autograder.grading.local import graded_here
from autograder.grading.refused import Refused, writing
from autograder.grading.store import COURSE, Course
from autograder.grading.temporary import remove_leftovers, write_whole
from autograder.text.lesson import Lesson

ANOTHER = (
    "Another grader is at work on the course in {}. Wait until it is done, or stop it. Then run "
    "the same command again: what is graded by then is not graded again."
)


def grade(given: argparse.Namespace) -> int:
    """Grade, keep the results, enter them into nbgrader's gradebook, and print a summary."""
    require_submitted()
    return grade_course(
        COURSE,
        given.lab,
        Jail(sandboxed=not given.unsandboxed),
        jobs=given.jobs,
        scheduler=given.scheduler,
        student=given.student,
    )


def require_submitted() -> None:
    if not COURSE.submitted.is_dir():
        raise Refused(f"There is no folder {COURSE.submitted}. Collect the submissions first.")


def grade_course(
    course: Course,
    lesson: Lesson,
    jail: Jail,
    jobs: int = 1,
    scheduler: str | None = None,
    student: str | None = None,
) -> int:
    submissions = list(course.submissions(lesson, student))
    if not submissions:
        nobody = f"No student has handed in {lesson.name}: nothing of it is in {course.submitted}."
        raise Refused("\n".join([nobody, *inventory(course.submitted, lesson).lines]))
    console = Console()
    results: dict[str, Result] = {}
    not_graded: dict[str, str] = {}
    not_entered: dict[str, list[str]] = {}  # by reason
    known = entered(course, lesson)
    remove_leftovers(course.graded(lesson))
    with only_grader(course), bar(console) as progress, gradebook(course, lesson) as enter:
        task = progress.add_task(lesson.name, total=len(submissions))
        for submission, result in graded(course, submissions, jail, jobs, scheduler, student):
            if isinstance(result, NotGraded):
                not_graded[submission.student] = result.why
            else:
                results[submission.student] = result
                try:
                    if submission.student not in known or not course.is_given(result):
                        enter(submission.student)
                except NotEntered as error:
                    not_entered.setdefault(str(error), []).append(shown(submission.student))
            progress.advance(task)
    for why, names in not_entered.items():
        console.print(f"nbgrader did not accept {', '.join(names)}: {why}", markup=False)
    if results:
        sum_up(console, list(results.values()))
    for name, why in not_graded.items():
        console.print(f"{shown(name)} is not graded. {why}", markup=False)
    if not_graded:
        console.print("Run the same command again to retry only these.")
    for line in inventory(course.submitted, lesson).lines if student is None else ():
        console.print(line, markup=False)
    return 1 if not_entered or not_graded else 0


@contextmanager
def only_grader(course: Course) -> Iterator[None]:
    """Hold the course's folder in the block. Raises Refused while another `grade` holds it.

    Both would write nbgrader's copies of the same submissions. The system lets go of the folder
    when the process ends, however it ends.
    """
    folder = os.open(course.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise Refused(ANOTHER.format(course.folder)) from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(folder)


def graded(
    course: Course,
    submissions: Iterable[Submission],
    jail: Jail,
    jobs: int,
    scheduler: str | None,
    again: str | None,
) -> Iterator[tuple[Submission, Result | NotGraded]]:
    """Yield every submission with its result: first the kept results, then the new ones.

    A result from outside a sandbox is graded again as soon as there is a sandbox.
    """
    open_ones = []
    for submission in submissions:
        kept = course.kept(submission)
        if kept is None or submission.student == again or (jail.sandboxed and not kept.sandboxed):
            open_ones.append(submission)
        else:
            yield submission, kept
    if not open_ones:
        return
    if scheduler is None:
        results = graded_here(open_ones, course.secret, jail, jobs)
    else:
        results = graded_there(open_ones, course.secret, jail, scheduler)
    for submission, result in results:
        if isinstance(result, Result):
            course.keep(submission, result)
        yield submission, result


def graded_there(
    submissions: Iterable[Submission], secret: bytes, jail: Jail, scheduler: str
) -> Iterator[tuple[Submission, Result | NotGraded]]:
    """Grade submissions on a cluster."""
    with cluster_packages():
        from autograder.grading import cluster
    return cluster.graded_there(submissions, secret, jail, scheduler)


def certificates(given: argparse.Namespace) -> int:
    """Make a key and certificate for a cluster, and print where they are."""
    with cluster_packages():
        from autograder.grading.certificates import new_certificate

        print(new_certificate())
    return 0


@contextmanager
def cluster_packages() -> Iterator[None]:
    """Surround imports that only a cluster needs. Raises Refused if they are not installed."""
    try:
        yield
    except ImportError as error:
        raise Refused(
            f"A cluster needs more packages ({error}). Install them from the repository's root: "
            'pip install -e ".[grade,cluster]" -c constraints.txt'
        ) from None


def bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def sum_up(console: Console, results: list[Result]) -> None:
    points = [result.points for result in results]
    console.print(
        f"{len(results)} graded: {sum(points) / len(points):.1f} of {results[0].most:g} points on "
        f"average, from {min(points):g} to {max(points):g}."
    )
    for result in results:
        for remark in result.remarks:
            console.print(f"{shown(result.student)}: {remark}", markup=False)
    for limit in dict.fromkeys(limit for result in results for limit in result.limits):
        console.print(f"- {limit}", markup=False)


def report(given: argparse.Namespace) -> int:
    """Write the report of a lab, as a page and as a table."""
    require_submitted()
    results = COURSE.results(given.lab)
    handed_in = inventory(COURSE.submitted, given.lab)
    if not results:
        nothing = f"No submission of {given.lab.name} is graded yet: python -m autograder grade"
        raise Refused("\n".join([nothing, *handed_in.lines]))
    counts = reporting.report(results, given.lab, handed_in)
    folder = COURSE.folder / "reports"
    for suffix, text in ((".html", reporting.to_html(counts)), (".csv", reporting.to_csv(counts))):
        path = folder / f"{given.lab.name}{suffix}"
        with writing(folder):
            write_whole(path, text)
        print(path)
    return 0


def collect(given: argparse.Namespace) -> int:
    """Put a download into submitted/, and print what was left out."""
    print(collecting.collect(given.file, COURSE.submitted, given.lab))
    return 0


def release(given: argparse.Namespace) -> int:
    """Write the bundle of a lab, and print where it is."""
    path = given.out or Path(f"{given.lab.name}.zip")
    with writing(path):
        size = bundling.release(given.lab, path)
    print(f"{path}, {size / 1e6:.1f} MB")
    return 0
