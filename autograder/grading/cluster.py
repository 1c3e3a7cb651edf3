"""Grading on many machines: the workers of a Dask cluster grade, one submission at a time each.

A worker gets the key of each submission that it grades, and never the secret. Dask runs all code
that it is sent, so every connection needs a certificate: docs/cluster.md says how to start one.
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

from autograder.grading.jail import Jail, JailError
from autograder.grading.local import graded_or_not
from autograder.grading.refused import Refused
from autograder.grading.results import NotGraded, Result
from autograder.grading.secret import Key, key_of
from autograder.grading.submission import MOST_BYTES, Submission
from autograder.grading.version import course_version

PATIENCE = 60  # seconds for the first worker to come
DIED = NotGraded(
    "Every worker that graded it has died. Have the workers enough memory? Their logs may tell."
)


@dataclass(frozen=True)
class Order:
    """What a worker is to do. Dask writes what it is handed into its logs: this shows nothing."""

    submission: Submission = field(repr=False)
    key: Key = field(repr=False)
    settings: Jail = field(repr=False)
    version: str

    @property
    def name(self) -> str:
        """By which the scheduler knows it: made of all that the result depends on."""
        what = self.submission.student, self.submission.lab, self.submission.sha256
        how = self.version, self.key.secret, self.settings
        digest = hashlib.sha256(repr((what, how)).encode("utf-8", "surrogatepass")).hexdigest()
        return f"grade-{digest[:32]}"


# ---------------------------------------------------------------------------- where it is asked for


def graded_there(
    submissions: Iterable[Submission], secret: bytes, settings: Jail, address: str
) -> Iterator[tuple[Submission, Result | NotGraded]]:
    """Submissions with their results, as they come. Raises Refused.

    The workers may come and go meanwhile. While there is none, it waits for one.
    """
    with cluster(address) as client:

        def ask(submission: Submission, when: str) -> Future:
            order = Order(submission, key_of(secret, submission), settings, course_version())
            return client.submit(done, order, key=f"{order.name}-{when}")

        suspected = []
        for submission, found in side_by_side(client, submissions, ask):
            if found is None:
                suspected.append(submission)
            else:
                yield submission, found
        # What waited behind a submission that killed its worker is suspected with it. Alone, it is
        # graded; only the killer kills again.
        for submission in suspected:
            yield submission, answer(ask(submission, "alone")) or DIED


def side_by_side(
    client: Client, submissions: Iterable[Submission], ask: Callable[[Submission, str], Future]
) -> Iterator[tuple[Submission, Result | NotGraded | None]]:
    """Submissions with the answers, as they come: as many at once as there are workers."""
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
        submission, found = asked.pop(future), answer(future)
        ask_more()
        yield submission, found


@contextmanager
def cluster(address: str) -> Iterator[Client]:
    """A connection with a cluster that has a worker; at its end, what is open is cancelled."""
    large = {"distributed.admin.large-graph-warning-threshold": 2 * MOST_BYTES}
    with dask.config.set(large):  # or it would warn of a large notebook
        asyncio.run(require_a_scheduler(address))
        with Client(address, set_as_default=False) as client:
            try:
                client.wait_for_workers(1, timeout=PATIENCE)
            except TimeoutError:
                raise Refused(
                    f"The scheduler at {address} has no worker. Start some, as docs/cluster.md "
                    "tells, and give the same command again."
                ) from None
            require_the_course(client)
            try:
                yield client
            except (CancelledError, OSError):
                raise Refused(
                    f"The scheduler at {address} is gone. What was graded is kept: start one, and "
                    "the same command goes on from there."
                ) from None


async def require_a_scheduler(address: str) -> None:
    """Raise Refused where no scheduler with this machine's key answers at the address.

    A Client that gets no answer is never closed, and may block the next one when it is collected.
    """
    if not address.startswith("tls://"):
        raise Refused(
            f"{address} is not encrypted. Start the scheduler and the workers with TLS, as "
            "docs/cluster.md says, and give the address as tls://HOST:PORT."
        )
    try:
        ours = Security().get_connection_args("client")
        if ours["ssl_context"] is None:
            raise Refused(
                "This machine has no certificate for a cluster. Make one, and copy it to the "
                "cluster's other machines: python -m autograder certificates"
            )
        there = await connect(address, **ours)
    except (OSError, ValueError) as error:
        raise Refused(f"There is no Dask scheduler at {address}: {error}") from None
    await there.close()


def require_the_course(client: Client) -> None:
    """Raise Refused where a worker or the scheduler lacks this version of the course."""

    def version() -> str:  # sent as it stands here, because over there this module may be missing
        from autograder.grading.version import course_version

        return course_version()

    found = {f"worker {name}": v for name, v in client.run(version, on_error="return").items()}
    try:
        found["scheduler"] = client.run_on_scheduler(version)
    except ImportError as error:
        found["scheduler"] = error
    for who, theirs in found.items():
        if isinstance(theirs, ImportError):
            raise Refused(
                f"The {who} can't load the course ({theirs}). Start it in the course's "
                "environment, as docs/cluster.md tells."
            )
        if isinstance(theirs, str) and theirs != course_version():
            raise Refused(other_version(who, theirs, course_version()))


def other_version(who: str, theirs: str, ours: str) -> str:
    return (
        f"The {who} has another version of the course ({theirs}) than this machine ({ours}). Bring "
        "both to the same state, and start it anew."
    )


def answer(future: Future) -> Result | NotGraded | None:
    """None where one worker after the other has died with it."""
    try:
        return future.result()
    except KilledWorker:
        return None


# -------------------------------------------------------------------------------- on each worker


JAILS: dict[str, Jail] = {}  # that this process has entered, by their settings
ONE_AT_A_TIME = threading.Lock()  # judging lends functions to modules, which are the process's


def done(order: Order) -> Result | NotGraded:
    """Carry out an order. Raises Refused where this worker can't."""
    if order.version != course_version():  # it has come since the others were asked
        who = f"worker {get_worker().address}"
        raise Refused(other_version(who, course_version(), order.version))
    with ONE_AT_A_TIME:
        torch.set_num_threads(1)
        return graded_or_not(order.submission, order.key, entered(order.settings))


def entered(settings: Jail) -> Jail:
    """The jail of this process, which leaves it when it ends."""
    name = repr(settings)
    if name not in JAILS:
        try:
            JAILS[name] = settings.__enter__()
        except (JailError, OSError) as error:
            raise Refused(f"The worker {get_worker().address} can't grade. {error}") from None
        atexit.register(settings.__exit__, None, None, None)
    return JAILS[name]
