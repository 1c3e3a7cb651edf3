"""A class graded in many processes, here or on a cluster: whatever dies, nobody is lost or doubled.

A real scheduler and real workers, which really die, started as docs/cluster.md says.
"""

import asyncio
import json
import multiprocessing
import os
import pickle
import re
import shlex
import ssl
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import dask
import nbformat
import pytest
from distributed import Client, connect
from distributed.comm import CommClosedError
from distributed.security import Security

from autograder import grading
from autograder.__main__ import main
from autograder.grading import cluster, commands, local
from autograder.grading.certificates import new_certificate
from autograder.grading.judge.jail import Jail
from autograder.grading.judge.oracle import grade_one
from autograder.grading.judge.results import NotGraded, Result
from autograder.grading.judge.secret import key_of
from autograder.grading.judge.submission import Submission
from autograder.grading.refused import Refused
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from tests.common import mortal
from tests.common.graded import untimed
from tests.hostile.notebooks import released, solved

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.slow]

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
POINTS = {"ada": FULL, "bob": 0, mortal.DIES_ONCE: FULL, "dan": 0, "gus\udcff": FULL}


@pytest.fixture(scope="module")
def sandbox():
    with Jail() as jail:
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


@pytest.fixture(scope="module", autouse=True)
def certificate(folder):
    """The key of every cluster here, where this process and others look for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_CONFIG", str(folder / "dask"))
        patch.setattr(dask.config, "PATH", str(folder / "dask"))
        path = new_certificate()
        dask.config.refresh(paths=[path])
        yield path
    dask.config.refresh()


# -------------------------------------------------------------------------------- the processes


def recipe(command):
    """The options of the recipe for one machine."""
    text = (ROOT / "docs" / "cluster.md").read_text()
    found = re.search(rf"^dask {command} (.*127\.0\.0\.1.*)$", text, re.MULTILINE)
    return shlex.split(found[1])


def dask_command(command, log, *arguments, **environment):
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{command}", *arguments],
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
    arguments = *recipe("scheduler"), "--port", "0", "--scheduler-file", str(file)
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
        arguments = [address, *recipe("worker")[1:], "--nworkers", "2"]
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


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.in_turn(8)) for name in ("here", "there")],
)
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


@pytest.fixture(scope="module")
def alone(sandbox):
    """What a single process makes of those who have a grade."""
    these = [submission for submission in CLASS if submission.student in POINTS]
    return {s.student: untimed(grade_one(s, key_of(SECRET, s), sandbox)) for s in these}


def test_nobody_is_lost_or_doubled_and_a_process_that_dies_costs_no_grade(graded, graders, alone):
    assert Counter(student for student, _ in graded) == Counter(s.student for s in CLASS)
    deaths = Counter(mortal.deaths(graders.deaths))
    assert deaths[mortal.DIES_ONCE] == 1
    assert deaths[mortal.DIES_ALWAYS] >= local.TRIES
    results = {student: found for student, found in graded if isinstance(found, Result)}
    assert {student: found.points for student, found in results.items()} == POINTS
    assert {student: untimed(found) for student, found in results.items()} == alone


def test_who_has_no_grade_is_told_of_with_the_reason(graded):
    why = {student: found.why for student, found in graded if isinstance(found, NotGraded)}
    assert {*why} == {mortal.DIES_ALWAYS, mortal.FAILS}
    assert "memory" in why[mortal.DIES_ALWAYS]
    assert "LookupError in mortal.py, line" in why[mortal.FAILS]
    assert "a mistake of the grader's own" in why[mortal.FAILS]


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


def test_a_worker_of_another_version_is_named_even_if_it_comes_later(address, folder, monkeypatch):
    """And no log holds the secret or a notebook."""
    monkeypatch.setattr(cluster, "course_version", lambda: "another one")
    for _ in ("at the start", "later"):
        with pytest.raises(Refused, match=r"worker tls://127\.0\.0\.1:\d+ has another version"):
            list(cluster.graded_there(CLASS, SECRET, Jail(), address))
        monkeypatch.setattr(cluster, "require_the_course", lambda client: None)
    log = (folder / "workers.log").read_text()
    assert "Compute Failed" in log
    assert repr(SECRET)[2:20] not in log
    assert "nbformat" not in log


def test_a_scheduler_without_workers_is_refused_and_a_worker_without_the_course_named(
    tmp_path, monkeypatch
):
    """Dask has such a worker leave without a word as soon as it is asked for anything of ours."""
    package = tmp_path / "autograder" / "__init__.py"
    package.parent.mkdir()
    package.write_text("raise ImportError('no course')")
    with a_scheduler(tmp_path) as address:
        with monkeypatch.context() as patch:
            patch.setattr(cluster, "PATIENCE", 0.1)
            with pytest.raises(Refused, match="has no worker"):
                list(cluster.graded_there(CLASS, SECRET, Jail(), address))
        log = tmp_path / "worker.log"
        worker = dask_command("worker", log, address, PYTHONPATH=str(tmp_path))
        with stopped_after(worker), pytest.raises(Refused, match=r"worker .* can't load the"):
            list(cluster.graded_there(CLASS, SECRET, Jail(), address))


CONNECT, CERTIFICATE = "timeouts.connect", "tls.client.cert"


@pytest.mark.parametrize(
    ("address", "setting", "told"),
    [
        ("tls://127.0.0.1:1", {CONNECT: "100ms"}, "no Dask scheduler at tls://127.0.0.1:1"),
        ("tls://127.0.0.1", {CONNECT: "100ms"}, "no Dask scheduler at tls://127.0.0.1"),
        ("tls://127.0.0.1:x", {CONNECT: "100ms"}, "no Dask scheduler at tls://127.0.0.1:x"),
        ("tcp://127.0.0.1:8786", {}, "tcp://127.0.0.1:8786 is not encrypted.* tls://HOST"),
        ("tls://127.0.0.1:1", {CERTIFICATE: None}, "no certificate.* autograder certificates"),
    ],
)
def test_an_address_where_nothing_can_be_graded_is_refused(address, setting, told):
    settings = {f"distributed.comm.{name}": value for name, value in setting.items()}
    with dask.config.set(settings), pytest.raises(Refused, match=told):
        list(cluster.graded_there(CLASS, SECRET, Jail(), address))


def test_without_distributed_it_is_told_how_to_install_it(monkeypatch):
    monkeypatch.delattr(grading, "cluster")
    monkeypatch.delitem(sys.modules, "autograder.grading.cluster")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(Refused, match=r'distributed.* -e "\.\[grade,cluster\]"'):
        commands.graded_there(CLASS, SECRET, Jail(), "tls://127.0.0.1:1")


# ------------------------------------------------------------------- who may take part, and how


def answered(address, **connection):
    """What a scheduler says of itself. Raises CommClosedError where it doesn't talk to us."""

    async def ask():
        there = await connect(address, **connection)
        try:
            await there.write({"op": "identity", "reply": True})
            return await there.read()
        finally:
            there.abort()

    return asyncio.run(ask())


def unchecked(context):
    """For a client that talks to any scheduler, whether it knows its certificate or not."""
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return {"ssl_context": context}


def test_a_scheduler_takes_messages_from_holders_of_the_key_alone(address, folder):
    def refused():
        return (folder / "scheduler.log").read_text().count("TLS handshake failed")

    before = refused()
    plain = address.replace("tls://", "tcp://")
    keyless = unchecked(ssl.create_default_context())
    stranger = unchecked(Security.temporary().get_connection_args("client")["ssl_context"])
    holder = Security().get_connection_args("client")
    for where, connection in (plain, {}), (address, keyless), (address, stranger):
        with pytest.raises(CommClosedError):
            answered(where, **connection)
    assert answered(address, **holder)["type"] == "Scheduler"
    assert refused() == before + 3


def test_a_scheduler_with_another_key_is_given_nothing(address):
    another = {"distributed.comm.tls." + key: value for key, value in tls_of(Security.temporary())}
    with dask.config.set(another), pytest.raises(Refused, match="certificate does not match"):
        list(cluster.graded_there(CLASS, SECRET, Jail(), address))


def tls_of(security):
    client = security.get_tls_config_for_role("client")
    return ("ca-file", client["ca_file"]), ("client", {k: client[k] for k in ("cert", "key")})


def test_the_recipe_for_one_machine_opens_no_port_to_another(address):
    def listening():
        import psutil

        ports = psutil.Process().net_connections("inet")
        return {port.laddr.ip for port in ports if port.status == psutil.CONN_LISTEN}

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2)
        found = [client.run_on_scheduler(listening)]
        for nanny in False, True:
            found += client.run(listening, nanny=nanny).values()
    assert len(found) == 5
    assert all(addresses == {"127.0.0.1"} for addresses in found)


def test_without_a_certificate_the_recipe_starts_no_scheduler(tmp_path):
    log = tmp_path / "scheduler.log"
    nothing = dict.fromkeys(["DASK_CONFIG", "DASK_ROOT_CONFIG", "HOME"], str(tmp_path))
    process = dask_command("scheduler", log, *recipe("scheduler"), **nothing)
    assert process.wait() != 0
    assert "TLS" in log.read_text()


def test_every_recipe_is_for_tls_and_says_where_to_listen():
    text = (ROOT / "docs" / "cluster.md").read_text()
    assert "tcp://" not in text
    options = re.search(r'^options="(.*)"$', text, re.MULTILINE)[1]
    lines = text.replace("$options", options).replace('"', "").replace(",", "").splitlines()
    found = [line for line in lines if re.search(r"\bdask (scheduler|worker) [^i]", line)]
    assert len(found) == 8
    for line in found:
        assert re.search(r"tls://|--protocol tls|\$address", line)
        assert re.search(r"--host |--interface ", line)
        assert "--dashboard-address 127.0.0.1:0" in line


def test_a_worker_is_given_the_key_of_its_submission_and_never_the_secret(monkeypatch):
    class Sent:
        def submit(self, *arguments, **settings):
            return pickle.dumps((arguments, settings))

    def sent(client, submissions, ask):
        return [(submission, ask(submission, "first")) for submission in submissions]

    monkeypatch.setattr(cluster, "cluster", lambda address: nullcontext(Sent()))
    monkeypatch.setattr(cluster, "side_by_side", sent)
    messages = dict(cluster.graded_there(CLASS, SECRET, Jail(), "tls://127.0.0.1:1"))
    assert [*messages] == CLASS
    for submission, message in messages.items():
        assert SECRET not in message
        assert SECRET.hex().encode() not in message
        assert [s for s in CLASS if key_of(SECRET, s).value in message] == [submission]


def test_the_file_of_the_key_is_its_owner_s_alone_and_stays_as_it_is(certificate):
    assert stat.S_IMODE(certificate.stat().st_mode) == 0o600
    assert stat.S_IMODE(certificate.parent.stat().st_mode) == 0o700
    assert Security().require_encryption
    before = certificate.read_bytes()
    with pytest.raises(Refused, match=f"{certificate} exists"):
        new_certificate()
    assert certificate.read_bytes() == before


def test_the_command_tells_where_it_wrote_the_key(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dask.config, "PATH", str(tmp_path / "dask"))
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cryptography", None)
        assert main(["certificates"]) == 1
    assert '-e ".[grade,cluster]"' in capsys.readouterr().err
    assert main(["certificates"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "dask" / "tls.json")
    monkeypatch.setattr(dask.config, "PATH", str(tmp_path / "dask" / "tls.json"))
    assert main(["certificates"]) == 1
    assert "set DASK_CONFIG to another folder" in capsys.readouterr().err
