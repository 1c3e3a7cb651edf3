"""A class graded in many processes, here or on a cluster: whatever dies, nobody is lost or doubled.

A real scheduler and real workers, which really die.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import dask
import nbformat
import pytest
from distributed import Client

from autograder import grading
from autograder.grading import cluster, commands, local
from autograder.grading.jail import Jail
from autograder.grading.oracle import grade_one
from autograder.grading.refused import Refused
from autograder.grading.results import NotGraded, Result
from autograder.grading.store import Course
from autograder.grading.submission import Submission
from autograder.lesson import lessons
from autograder.reference import ROOT
from tests.common import mortal
from tests.common.fake_class import fake_result
from tests.common.jailed import jailed
from tests.hostile.notebooks import released, solved

pytestmark = pytest.mark.slow

SECRET = bytes(range(32))
LESSON = lessons()["generate"]
FULL = sum(card.points for card in LESSON.cards.values())
RIGHT, BLANK = (nbformat.writes(make("generate")).encode() for make in (solved, released))
CLASS = [
    Submission("ada", "generate", RIGHT),
    Submission("bob", "generate", BLANK),
    Submission(mortal.DIES_ALWAYS, "generate", RIGHT),
    Submission(mortal.DIES_ONCE, "generate", RIGHT),
    Submission("dan", "generate", None, "There is no notebook."),
    Submission(mortal.FAILS, "generate", RIGHT),
    Submission("gus\udcff", "generate", RIGHT),  # a file's name need not be text
]
OTHER_VERSION = r"worker tcp://127\.0\.0\.1:\d+ has another version"
POINTS = {"ada": FULL, "bob": 0, mortal.DIES_ONCE: FULL, "dan": 0, "gus\udcff": FULL}


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    with jailed() as jail:
        yield jail


@pytest.fixture(scope="module")
def folder():
    """Where the processes keep their things; whoever a sandbox runs as can look into it."""
    with tempfile.TemporaryDirectory() as name:
        for part in ("", "here", "there", "temporary", "workers"):
            Path(name, part).mkdir(exist_ok=True)
            Path(name, part).chmod(0o755)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TMPDIR", f"{name}/temporary")  # of the processes here
            yield Path(name)


# -------------------------------------------------------------------------------- the processes


def dask_command(command, log, *arguments, **environment):
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{command}", "--no-dashboard", *arguments],
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
        )


@contextmanager
def stopped_after(process):
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def a_scheduler(folder, **environment):
    """Its address."""
    file = folder / "scheduler.json"
    arguments = "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)
    log = folder / "scheduler.log"
    with stopped_after(dask_command("scheduler", log, *arguments, **environment)) as process:
        while not file.exists() or not file.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield json.loads(file.read_text())["address"]


@pytest.fixture(scope="module")
def address(folder):
    """Of a scheduler with two workers, each a process with a nanny, which starts another after it.

    It gives a submission up when as many have died as of the processes here.
    """
    allowed = str(local.TRIES - 1)
    with a_scheduler(folder, DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=allowed) as address:
        arguments = [address, "--nworkers", "2", "--nthreads", "1"]
        arguments += ["--preload", "tests.common.mortal", "--local-directory", str(folder)]
        places = {"DEATHS": str(folder / "there"), "TMPDIR": str(folder / "workers")}
        workers = dask_command("worker", folder / "workers.log", *arguments, **places)
        with (
            stopped_after(workers),
            Client(address, set_as_default=False) as client,
        ):
            client.wait_for_workers(2)
            yield address


@dataclass(frozen=True)
class Graders:
    """Two processes that grade, and the folder in which they count at whom they died."""

    grade: Callable[[Iterable[Submission]], Iterator[tuple[Submission, Result | NotGraded]]]
    deaths: Path


@pytest.fixture(scope="module", params=["here", "there"])
def graders(request, folder):
    deaths = folder / request.param
    if request.param == "here":
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DEATHS", str(deaths))
            patch.setattr(local, "serve", mortal.serve)
            yield Graders(lambda these: local.graded_here(these, SECRET, Jail(), jobs=2), deaths)
    else:
        address = request.getfixturevalue("address")
        yield Graders(lambda these: cluster.graded_there(these, SECRET, Jail(), address), deaths)


@pytest.fixture(scope="module")
def graded(graders):
    return [(submission.student, found) for submission, found in graders.grade(CLASS)]


# ------------------------------------------------------------------------------- here and there


def test_nobody_is_lost_and_nobody_doubled(graded):
    assert Counter(student for student, _ in graded) == Counter(s.student for s in CLASS)


def test_a_process_that_dies_costs_no_grade(graded, graders):
    deaths = Counter(mortal.deaths(graders.deaths))
    assert deaths[mortal.DIES_ONCE] == 1
    assert deaths[mortal.DIES_ALWAYS] >= local.TRIES
    assert {s: found.points for s, found in graded if isinstance(found, Result)} == POINTS


def test_who_has_no_grade_is_told_of_with_the_reason(graded):
    why = {student: found.why for student, found in graded if isinstance(found, NotGraded)}
    assert {*why} == {mortal.DIES_ALWAYS, mortal.FAILS}
    assert "memory" in why[mortal.DIES_ALWAYS]
    assert "LookupError in mortal.py, line" in why[mortal.FAILS]
    assert "a mistake of the grader's own" in why[mortal.FAILS]


def test_the_grades_are_those_of_a_single_process(graded, sandbox):
    found = dict(graded)
    for submission in CLASS:
        if submission.student in POINTS:
            expected = grade_one(submission, SECRET, sandbox)
            assert untimed(found[submission.student]) == untimed(expected)


def untimed(result):
    marks = tuple(replace(mark, seconds=0.0) for mark in result.marks)
    return replace(result, marks=marks, seconds=0.0)


def test_no_more_is_begun_than_is_needed_and_ctrl_c_ends_it(graders, folder):
    before, taken = temporary(folder), []
    found = graders.grade(taken.append(s) or s for s in 5 * CLASS[:2])
    next(found)
    assert len(taken) <= 3  # fewer where a worker that died is not back yet
    with pytest.raises(KeyboardInterrupt):
        found.throw(KeyboardInterrupt)
    assert multiprocessing.active_children() == []
    assert temporary(folder) <= before


def temporary(folder):
    return {*(folder / "temporary").glob("inference-grader-*")}


# ------------------------------------------------------------------------------- on a cluster only


def test_who_waited_behind_a_killer_is_graded_alone(address, monkeypatch):
    suspected, real_answer = [], cluster.answer

    def answer(future):
        if suspected:
            return real_answer(future)
        suspected.append(future.key)
        return None  # as where one worker after the other has died

    monkeypatch.setattr(cluster, "answer", answer)
    found = list(cluster.graded_there(CLASS[:2], SECRET, Jail(), address))
    assert {s.student: result.points for s, result in found} == {"ada": FULL, "bob": 0}
    assert len(found) == 2
    assert len(suspected) == 1


def test_nothing_stays_with_the_scheduler(address):
    with Client(address, set_as_default=False) as client:

        def tasks():
            return client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))

        found = cluster.graded_there(CLASS, SECRET, Jail(), address)
        next(found)
        assert tasks()
        found.close()
        while tasks():  # it is told, and does it when it comes to it
            time.sleep(0.05)


def test_a_worker_of_another_version_is_named(address, monkeypatch):
    monkeypatch.setattr(cluster, "course_version", lambda: "another one")
    with pytest.raises(Refused, match=OTHER_VERSION):
        list(cluster.graded_there(CLASS, SECRET, Jail(), address))


def test_one_that_comes_later_is_named_too_and_the_secret_is_in_no_log(
    address, folder, monkeypatch
):
    monkeypatch.setattr(cluster, "course_version", lambda: "another one")
    monkeypatch.setattr(cluster, "require_the_course", lambda client: None)
    with pytest.raises(Refused, match=OTHER_VERSION):
        list(cluster.graded_there(CLASS, SECRET, Jail(), address))
    log = (folder / "workers.log").read_text()
    assert "Compute Failed" in log
    assert repr(SECRET)[2:20] not in log
    assert "nbformat" not in log


def test_a_worker_without_the_course_is_named(tmp_path):
    """Dask has such a worker leave without a word as soon as it is asked for anything of ours."""
    package = tmp_path / "autograder" / "__init__.py"
    package.parent.mkdir()
    package.write_text("raise ImportError('no course')")
    with a_scheduler(tmp_path) as address:
        log = tmp_path / "worker.log"
        worker = dask_command("worker", log, address, PYTHONPATH=str(tmp_path))
        with stopped_after(worker), pytest.raises(Refused, match=r"worker .* can't load the"):
            list(cluster.graded_there(CLASS, SECRET, Jail(), address))


def test_a_scheduler_without_workers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.1)
    with a_scheduler(tmp_path) as address, pytest.raises(Refused, match="has no worker"):
        list(cluster.graded_there(CLASS, SECRET, Jail(), address))


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "tcp://127.0.0.1", "127.0.0.1:x", "tls://127.0.0.1:1"]
)
def test_where_no_scheduler_is_the_address_is_refused(address):
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "100ms"}),
        pytest.raises(Refused, match=f"no Dask scheduler at {address}"),
    ):
        list(cluster.graded_there(CLASS, SECRET, Jail(), address))


def test_without_distributed_it_is_told_how_to_install_it(monkeypatch):
    monkeypatch.delattr(grading, "cluster")
    monkeypatch.delitem(sys.modules, "autograder.grading.cluster")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(Refused, match=r'needs distributed.* -e "\.\[grade,cluster\]"'):
        commands.graded_there(CLASS, SECRET, Jail(), "tcp://127.0.0.1:1")


# --------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("graded", [["ada", "bob"], []])
def test_who_is_not_graded_is_told_at_the_end(graded, tmp_path, monkeypatch, capsys):
    course, entered = Course(tmp_path), []
    for student in ("ada", "bob", "mallory"):
        (course.submitted / student / LESSON.name).mkdir(parents=True)

    def graded_here(submissions, *how):
        for submission in submissions:
            known = submission.student in graded
            yield submission, result_of(submission) if known else NotGraded("It went wrong.")

    def result_of(submission):
        return replace(fake_result(submission.student, LESSON), submission=submission.sha256)

    monkeypatch.setattr(commands, "graded_here", graded_here)
    monkeypatch.setattr(commands, "entered", lambda *_: set())
    monkeypatch.setattr(commands, "gradebook", lambda *_: nullcontext(entered.append))
    assert commands.grade_course(course, LESSON, Jail()) == 1
    assert "mallory is not graded. It went wrong." in capsys.readouterr().out
    assert entered == graded == [result.student for result in course.results(LESSON)]
