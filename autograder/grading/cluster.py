"""Grading on many machines: each worker of a Dask cluster grades one submission at a time.

A worker gets the key of each submission that it grades, but never the secret. Dask runs any code
that it receives, so every connection needs a certificate: docs/cluster.md explains how to start a
cluster.
"""

import asyncio
import atexit
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import dask
import torch
from distributed import (
    CancelledError,
    Client,
    Future,
    KilledWorker,
    as_completed,
    connect,
    get_worker,
)
from distributed.security import Security

from autograder.grading.judge.jail import Jail, JailError
from autograder.grading.judge.results import NotGraded, Result
from autograder.grading.judge.secret import Key, key_of
from autograder.grading.judge.submission import MOST_BYTES, Submission
from autograder.grading.judge.version import course_version
from autograder.grading.local import graded_or_not
from autograder.grading.refused import Refused

PATIENCE = 60  # seconds to wait for the first worker
DIED = NotGraded(
    "Every worker that graded it has died. Do the workers have enough memory? See their logs."
)


@dataclass(frozen=True)
class Order:
    """A worker's task. Dask logs the tasks it is given, so their content is hidden from repr."""

    submission: Submission = field(repr=False)
    key: Key = field(repr=False)
    settings: Jail = field(repr=False)
    version: str

    @property
    def name(self) -> str:
        """Identify the task for the scheduler, from everything that the result depends on."""
        what = self.submission.student, self.submission.lab, self.submission.sha256
        how = self.version, self.key.secret, self.settings
        digest = hashlib.sha256(repr((what, how)).encode("utf-8", "surrogatepass")).hexdigest()
        return f"grade-{digest[:32]}"


# -------------------------------------------------------------------------------- on the grader


def graded_there(
    submissions: Iterable[Submission], secret: bytes, settings: Jail, address: str
) -> Iterator[tuple[Submission, Result | NotGraded]]:
    """Yield submissions with their results, as they arrive. Raises Refused.

    Workers may come and go in the meantime. If there is none, wait for one.
    """
    with cluster(address) as client:

        def ask(submission: Submission, when: str) -> Future:
            order = Order(submission, key_of(secret, submission), settings, course_version())
            return client.submit(done, order, key=f"{order.name}-{when}")

        suspected = []
        for submission, result in side_by_side(client, submissions, ask):
            if result is None:
                suspected.append(submission)
            else:
                yield submission, result
        # A submission queued behind one that killed its worker is suspected with it. Graded alone,
        # it gets its result; only the harmful one kills its worker again.
        for submission in suspected:
            yield submission, answer(ask(submission, "alone")) or DIED


def side_by_side(
    client: Client, submissions: Iterable[Submission], ask: Callable[[Submission, str], Future]
) -> Iterator[tuple[Submission, Result | NotGraded | None]]:
    """Yield submissions with their answers, as many at a time as there are workers."""
    left = iter(submissions)
    coming = as_completed(loop=client.loop)
    asked: dict[Future, Submission] = {}

    def ask_more() -> None:
        free = max(1, len(client.nthreads())) - len(asked)
        for submission in islice(left, max(0, free)):
            future = ask(submission, "first")
            asked[future] = submission
            coming.add(future)

    ask_more()
    for future in coming:
        submission, result = asked.pop(future), answer(future)
        ask_more()
        yield submission, result


@contextmanager
def cluster(address: str) -> Iterator[Client]:
    """Connect to a cluster that has a worker; at the end, open tasks are canceled."""
    large = {"distributed.admin.large-graph-warning-threshold": 2 * MOST_BYTES}
    with dask.config.set(large):  # otherwise it would warn about a large notebook
        asyncio.run(require_a_scheduler(address))
        with Client(address, set_as_default=False) as client:
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except TimeoutError:
                raise Refused(
                    f"The scheduler at {address} has no worker. Start some, as docs/cluster.md "
                    "explains, and run the same command again."
                ) from None
            require_the_course(client)
            try:
                yield client
            except (CancelledError, OSError):
                raise Refused(
                    f"The scheduler at {address} is gone. The results so far are kept: start a "
                    "scheduler and run the same command again to continue from there."
                ) from None


async def require_a_scheduler(address: str) -> None:
    """Raise Refused if no scheduler with this machine's key answers at the address.

    A Client without an answer is never closed, and may block the next one when it is garbage
    collected.
    """
    if not address.startswith("tls://"):
        raise Refused(
            f"{address} is not encrypted. Start the scheduler and the workers with TLS, as "
            "docs/cluster.md explains, and give the address as tls://HOST:PORT."
        )
    try:
        ours = Security().get_connection_args("client")
        if ours["ssl_context"] is None:
            raise Refused(
                "This machine has no certificate for a cluster. Make one with "
                "`python -m autograder certificates`, and copy it to the cluster's other machines."
            )
        there = await connect(address, **ours)
    except (OSError, ValueError) as error:
        raise Refused(f"There is no Dask scheduler at {address}: {error}") from None
    await there.close()


def require_the_course(client: Client) -> None:
    """Raise Refused if a worker or the scheduler doesn't have this version of the course."""

    def version() -> str:  # sent as source, because this module may be missing there
        from autograder.grading.judge.version import course_version

        return course_version()

    versions = {f"worker {name}": v for name, v in client.run(version, on_error="return").items()}
    try:
        versions["scheduler"] = client.run_on_scheduler(version)
    except ImportError as error:
        versions["scheduler"] = error
    for who, theirs in versions.items():
        if isinstance(theirs, ImportError):
            raise Refused(
                f"The {who} can't load the course ({theirs}). Start it in the course's "
                "environment, as docs/cluster.md explains."
            )
        if isinstance(theirs, str) and theirs != course_version():
            raise Refused(other_version(who, theirs, course_version()))


def other_version(who: str, theirs: str, ours: str) -> str:
    return (
        f"The {who} has another version of the course ({theirs}) than this machine ({ours}). "
        "Install the same version on both, and restart it."
    )


def answer(future: Future) -> Result | NotGraded | None:
    """Return the result, or None if several workers died while grading it."""
    try:
        return future.result()
    except KilledWorker:
        return None


# -------------------------------------------------------------------------------- on each worker


JAILS: dict[str, Jail] = {}  # entered by this process, by their settings
ONE_AT_A_TIME = threading.Lock()  # judging replaces functions of whole modules


def done(order: Order) -> Result | NotGraded:
    """Carry out a task. Raises Refused if this worker can't."""
    if order.version != course_version():  # it joined after the other workers were checked
        who = f"worker {get_worker().address}"
        raise Refused(other_version(who, course_version(), order.version))
    with ONE_AT_A_TIME:
        torch.set_num_threads(1)
        return graded_or_not(order.submission, order.key, entered(order.settings))


def entered(settings: Jail) -> Jail:
    """Return the jail of this process, which it leaves at its end."""
    name = repr(settings)
    if name not in JAILS:
        try:
            JAILS[name] = settings.__enter__()
        except (JailError, OSError) as error:
            raise Refused(f"The worker {get_worker().address} can't grade. {error}") from None
        atexit.register(settings.__exit__, None, None, None)
    return JAILS[name]
