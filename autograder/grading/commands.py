"""What `python -m autograder` does, command by command."""

import argparse
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autograder.grading import collect as collecting
from autograder.grading import report as reporting
from autograder.grading.foreign import shown
from autograder.grading.gradebook import NotEntered, gradebook
from autograder.grading.jail import Jail
from autograder.grading.local import graded_here
from autograder.grading.results import Result
from autograder.grading.store import COURSE, Course
from autograder.grading.submission import Submission
from autograder.lesson import Lesson


class Refused(Exception):
    """Why a command does nothing, and what to do."""


def grade(given: argparse.Namespace) -> int:
    """Grade, keep the results, enter them into nbgrader's gradebook, and sum up."""
    if not COURSE.submitted.is_dir():
        raise Refused(f"There is no {COURSE.submitted}. Collect what was handed in first.")
    return grade_course(
        COURSE,
        given.lab,
        Jail(sandboxed=not given.unsandboxed),
        jobs=given.jobs,
        scheduler=given.scheduler,
        student=given.student,
    )


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
        raise Refused(f"Nobody has handed in {lesson.name}: {course.submitted} has nothing of it.")
    console = Console()
    results: dict[str, Result] = {}
    not_entered: dict[str, str] = {}
    with bar(console) as progress, gradebook(course, lesson) as enter:
        task = progress.add_task(lesson.name, total=len(submissions))
        for submission, result in graded(course, submissions, jail, jobs, scheduler, student):
            results[submission.student] = result
            try:
                if not course.is_entered(submission):
                    enter(submission.student)
            except NotEntered as error:
                not_entered[submission.student] = str(error)
            progress.advance(task)
    for name, why in not_entered.items():
        console.print(f"nbgrader did not take {shown(name)}: {why}", markup=False)
    sum_up(console, list(results.values()))
    return 1 if not_entered else 0


def graded(
    course: Course,
    submissions: Iterable[Submission],
    jail: Jail,
    jobs: int,
    scheduler: str | None,
    again: str | None,
) -> Iterator[tuple[Submission, Result]]:
    """Every submission with its result: those that are kept first, then those that must be graded.

    A result from outside a sandbox is not kept for long: with one, it is graded anew.
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
        found = graded_here(open_ones, course.secret, jail, jobs)
    else:
        from autograder.grading.cluster import graded_there

        found = graded_there(open_ones, course.secret, jail, scheduler)
    for submission, result in found:
        course.keep(submission, result)
        yield submission, result


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
    for limit in results[0].limits:
        console.print(f"- {limit}", markup=False)


def report(given: argparse.Namespace) -> int:
    """Write the report of a lab, as a page and as a table."""
    results = COURSE.results(given.lab)
    if not results:
        raise Refused(f"Nothing of {given.lab.name} is graded yet: python -m autograder grade")
    found = reporting.report(results, given.lab)
    folder = COURSE.folder / "reports"
    folder.mkdir(exist_ok=True)
    for suffix, text in ((".html", reporting.to_html(found)), (".csv", reporting.to_csv(found))):
        path = folder / f"{given.lab.name}{suffix}"
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0


def collect(given: argparse.Namespace) -> int:
    """Put a download into submitted/, and tell what was left out."""
    try:
        found = collecting.collect(given.file, COURSE.submitted, given.lab)
    except collecting.NotCollected as error:
        raise Refused(str(error)) from None
    print(found)
    return 0


def demo(given: argparse.Namespace) -> int:
    """Make a small class and grade it."""
    from autograder.grading import demo as tour

    return tour.run(given.jobs)
