"""Drivers of lab 13: arrivals, text, events, a pool, admission, routing, failover, figures."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from autograder.attempt.around import notebook_of
from autograder.attempt.drivers.virtual_time import (
    Reader,
    awaited,
    in_virtual_time,
    now,
    shown,
    stream_of,
)
from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import Strange, kind_of, kind_or_none, plain
from autograder.attempt.records import Attempt, Seen, one_call, tried

Step = tuple[Any, ...]  # of a script: ("wait", 1.5), ("piece", "Once")

# --------------------------------------------------------------------- classes of the notebook


class ServiceError(Exception):
    """The notebook's own is used if there is one, as of each class below that a notebook has."""


class ReplicaFault(Exception):
    """See ServiceError."""


class OtherError(Exception):
    """Any other error, which no attempt wants to catch."""


def own_class(attempt: Attempt, name: str) -> Any:
    """The class of this name in the attempt's notebook. If nothing needs it there, the driver's."""
    found = notebook_of(attempt).get(name)
    return found if isinstance(found, type) else globals()[name]


# ---------------------------------------------------------------------------------------- arrivals


@dataclass
class Load:
    """Requests: number i takes seconds[i], after it has kept the whole event loop busy for busy[i].

    fails: those that raise when they end. sent: what was seen of each, in the order of the calls.
    """

    seconds: list[float]
    results: list[int]
    busy: Sequence[float] = ()
    fails: Sequence[int] = ()
    sent: list[tuple[int, list[Seen]]] = field(default_factory=list)
    made: list[Coroutine[Any, Any, int]] = field(default_factory=list)

    def send(self, i: int, due: float) -> Coroutine[Any, Any, int]:
        if not is_index(i, len(self.seconds)):
            raise TypeError(f"`send` takes the number of a request; it was given {plain(i)!r}.")
        self.made.append(self.serve(i, due))
        return self.made[-1]

    async def serve(self, i: int, due: float) -> int:
        loop: Any = asyncio.get_running_loop()
        where = f"of request {i}" + ", sent once more" * (i in [number for number, _ in self.sent])
        self.sent.append((i, [Seen("The start", now(), where), Seen("`due`", due, where)]))
        loop.now += self.busy[i] if self.busy else 0
        await asyncio.sleep(self.seconds[i])
        if i in self.fails:
            raise OtherError(f"Request {i} has failed.")
        return self.results[i]


def open_loop(
    attempt: Attempt, uniforms: list[float], rate: float, start: float = 0.0, **requests: Any
) -> list[Seen]:
    """start: the time of the call. requests: see Load. If some fail, no result matters."""
    load, ended = Load(**requests), list[Seen]()

    async def call() -> None:
        await asyncio.sleep(start)
        try:
            found = await awaited("open_loop", attempt(sealed(load.send), uniforms, rate))
            if isinstance(found, (list, tuple)):
                found = [without_waiting(result) for result in found]
            ended.append(Seen("What it returned", found))
            ended.append(Seen("The time at which it returned", now()))
        except (OtherError, ExceptionGroup):
            await asyncio.sleep(1000)

    try:
        end = in_virtual_time(call(), "open_loop")
    finally:
        for coroutine in load.made:  # those that nothing has awaited, too
            coroutine.close()
    starts = [seen for _, both in sorted(load.sent, key=itemgetter(0)) for seen in both]
    return [end, *starts, *([] if load.fails else ended)]


def without_waiting(result: Any) -> Any:
    """A result, or that it is something that should have been awaited."""
    if isawaitable(result):
        return Strange(f"{kind_of(result)}, which nothing has awaited")
    return result


# ------------------------------------------------------------------------------------ text to show


def push(attempt: Attempt, tokens: list[list[int]], stop: list[str], ids: list[int]) -> list[Seen]:
    """Push the ids one by one, then finish. tokens: the bytes of each token."""

    def decode(given: Sequence[int]) -> str:
        return b"".join(bytes(tokens[i]) for i in given).decode(errors="replace")

    stream = attempt(sealed(decode), tuple(stop))
    seen = []
    for number, token in enumerate(ids, 1):
        where = f"of token {number}, {bytes(tokens[token])!r}"
        seen += [
            Seen("The piece", shown(stream.push(token)), where),
            Seen("`has_stopped`", stream.has_stopped, f"after token {number}"),
        ]
    return [*seen, Seen("What `finish()` returned", shown(stream.finish()), "at the end")]


# ------------------------------------------------------------------------------- events on the wire


def sse(
    attempt: Attempt,
    script: list[Step],
    head: dict[str, Any],
    usage: dict[str, Any] | None = None,
    **how: Any,
) -> list[Seen]:
    """Choices that come one by one. A script: ("wait", seconds), ("choice", what it holds),
    ("raise", words) for a fault, ("tell", words) for one whose words a client may read.

    how: the client reads, as a Reader has it.
    """
    seen: list[Seen] = []
    told: list[Seen] = []
    sent = 0

    async def choices() -> AsyncIterator[Any]:
        nonlocal sent
        try:
            for what, value in script:
                if what == "wait":
                    await asyncio.sleep(value)
                elif what == "choice":
                    sent += 1
                    yield value
                else:
                    raise (own_class(attempt, "ServiceError") if what == "tell" else OtherError)(
                        value
                    )
        except asyncio.CancelledError:
            told.append(Seen("The cancellation", f"reaches the choices at {now()} s"))
            raise

    def count() -> dict[str, Any]:
        told.append(Seen(f"Call {len(told) + 1} of `usage`", f"comes after {sent} choices"))
        return {**(usage or {}), "choices_so_far": sent}

    async def read() -> None:
        given = () if usage is None else (sealed(count),)
        stream = await stream_of("sse", attempt(choices(), head, *given))
        seen.extend(await Reader("Event", **how).read(stream, event_told))

    end = in_virtual_time(read(), "sse")
    return [end, *seen, *told]


def event_told(event: Any) -> str:
    """An event in words. It is read as strictly as a client may read it."""
    if type(event) is not bytes:
        return f"is {kind_or_none(event)}, where bytes are needed"
    if event == b"data: [DONE]\n\n":
        return "is data: [DONE]"
    begin, data, end = event[:5], event[5:-2], event[-2:]
    if begin != b"data:" or end != b"\n\n" or b"\n" in data or b"\r" in data:
        return f"is {event!r}, which isn't `data: `, one line and an empty line"
    try:
        return f"is {json.dumps(json.loads(data), sort_keys=True, ensure_ascii=False)}"
    except ValueError:
        return f"is {event!r}, in which no JSON follows `data: `"


# ------------------------------------------------------------------------------ a pool of requests


@dataclass
class Output:
    """What an engine delivers."""

    request: str
    new_ids: list[int]
    finish_reason: str | None


class LoggedEngine:
    """An engine that delivers what a script says, and notes what it is asked for.

    plans: by request, how long after the one before each output comes, its ids, its finish_reason;
    ids that are a text are a fault, and a request without a plan is refused. lag: seconds until an
    abort takes effect.
    """

    def __init__(self, plans: dict[str, list[Step]], lag: float) -> None:
        self.plans, self.lag, self.log = plans, lag, list[str]()
        self.deliver: Callable[[str, Any], None]
        self.aborted: dict[str, float] = {}

    def submit(self, request: Any) -> None:
        self.log.append(f"submit {request.id} at {now()} s")
        if not self.plans[request.id]:
            raise OtherError("The engine takes no more requests.")
        self.go_on(request.id, list(self.plans[request.id]))

    def go_on(self, request: str, left: list[Step]) -> None:
        """Deliver the outputs that come at once, and the others later."""
        if not left or now() > self.aborted.get(request, now()) + self.lag:
            return
        (after, ids, reason), *rest = left
        if after:
            left = [(0, ids, reason), *rest]
            asyncio.get_running_loop().call_later(after, self.go_on, request, left)
            return
        is_fault = isinstance(ids, str)
        self.deliver(request, OtherError(ids) if is_fault else Output(request, ids, reason))
        self.go_on(request, rest)

    def abort(self, request_id: str) -> None:
        self.log.append(f"abort {request_id} at {now()} s")
        self.aborted.setdefault(request_id, now())


def stream(attempt: Attempt, requests: list[dict[str, Any]], lag: float) -> list[Seen]:
    """Several clients, each with a request: what its engine does, when it comes, how it reads."""
    engine = LoggedEngine({request["id"]: request["plan"] for request in requests}, lag)
    pool = attempt(handle(engine, "submit abort"))
    engine.deliver = pool.deliver
    seen: list[list[Seen]] = [[] for _ in requests]

    async def client(number: int, id: str, plan: Any, comes: float = 0.0, **how: Any) -> None:
        await asyncio.sleep(comes)
        outputs = await stream_of("stream", pool.stream(SimpleNamespace(id=id)))
        reader = Reader("Output", f"of request {id}", **how)
        seen[number] = await reader.read(outputs, output_told)

    async def clients() -> None:
        await asyncio.gather(*(client(n, **request) for n, request in enumerate(requests)))
        await asyncio.sleep(100)  # for outputs after an abort

    end = in_virtual_time(clients(), "stream")
    left = plain(list(pool.queues)) if isinstance(pool.queues, dict) else plain(pool.queues)
    return [
        end,
        *(record for records in seen for record in records),
        Seen("What the engine is asked for", shown(engine.log)),
        Seen("The list of requests that have a queue", shown(left), "afterwards"),
    ]


def output_told(output: Any) -> str:
    if not isinstance(output, Output):
        return f"is {kind_or_none(output)} and no output"
    return f"is {output.new_ids} with the finish_reason {output.finish_reason!r}"


# --------------------------------------------------------------------------------------- admission


def admit(
    attempt: Attempt, target_ttft: float, prefill_rate: float, events: list[Step]
) -> list[Seen]:
    """Events: ("admit", tokens), ("release", tokens)."""
    admission = attempt(target_ttft, prefill_rate)
    seen = []
    for number, (what, tokens) in enumerate(events, 1):
        call = f"`{what}({tokens})`"
        if what == "admit":
            seen.append(Seen(f"What {call} returned", admission.admit(tokens), f"in call {number}"))
        else:
            admission.release(tokens)
        seen.append(Seen("`backlog`", admission.backlog, f"after call {number}, {call}"))
    return seen


# ----------------------------------------------------------------------------------------- routing


@dataclass
class Replica:
    """See ServiceError."""

    load: int
    served: int
    is_healthy: bool
    known: set[bytes]


BOOKS = "`load`, `served` and the number of `known` hashes of each replica"


def pick(
    attempt: Attempt, replicas: list[list[Any]], events: list[Step], slack: int | None = None
) -> list[Seen]:
    """Pick replicas. A replica: load, served, whether it is healthy, the hashes that it knows.

    Events: ("pick", hashes); ("serve", hashes), which also begins the request; ("end", n) for the
    n-th request that was served; ("down", replica), ("up", replica).
    """
    make = own_class(attempt, "Replica")
    own = [make(*figures, {h.encode() for h in known}) for *figures, known in replicas]
    router = attempt(own) if slack is None else attempt(own, slack)
    seen: list[Seen] = []
    chosen: list[Any] = []
    for number, (what, value) in enumerate(events, 1):
        if what in ("down", "up"):
            own[value].is_healthy = what == "up"
        elif what == "end":
            router.end(chosen[value])
        else:
            hashes = [h.encode() for h in value]
            given, before = list(hashes), books(own)
            replica, how = tried(router.pick, given, error="a ServiceError")
            seen.append(Seen("The request", how, f"in step {number}"))
            seen.append(Seen("The replica picked", replica, f"in step {number}"))
            same = "are as before" if books(own) == before else f"are {books(own)}"
            seen.append(Seen(BOOKS, same, f"after the pick in step {number}"))
            kept = "is as before" if given == hashes else "has been changed"
            seen.append(Seen("The list `hashes`", kept, f"after the pick in step {number}"))
            if what == "serve":
                if not is_index(replica, len(own)):
                    break
                router.begin(replica, hashes)
                chosen.append(replica)
    return [*seen, Seen(BOOKS, f"are {books(own)}", "at the end")]


def books(replicas: list[Any]) -> Any:
    return plain([[replica.load, replica.served, len(replica.known)] for replica in replicas])


def is_index(found: Any, most: int) -> bool:
    found = plain(found)
    return type(found) is int and 0 <= found < most


# ---------------------------------------------------------------------------------------- failover


def with_failover(
    attempt: Attempt,
    replicas: list[int],
    deadline: float,
    scripts: list[list[Step]],
    start: float = 0.0,
    **how: Any,
) -> list[Seen]:
    """Streams that do as their script says: ("wait", seconds), ("piece", text), ("hang", ""),
    ("fault", words) for a ReplicaFault, ("raise", words) for any other error.

    start: the time of the call. how: the client reads, as a Reader has it.
    """
    seen: list[Seen] = []
    tries: list[list[str]] = []
    opened: list[str] = []
    made: list[Any] = []  # so that no stream is closed because nothing refers to it

    def open_stream(replica: int) -> Any:
        opened.append(f"that of replica {replica} at {now()} s")
        made.append(pieces(replica))
        return made[-1]

    async def pieces(replica: int) -> AsyncIterator[str]:
        this = [f"goes to replica {replica} at {now()} s", "is left open"]
        tries.append(this)
        try:
            for what, value in scripts[replica]:
                if what == "wait":
                    await asyncio.sleep(value)
                elif what == "piece":
                    yield value
                elif what == "hang":
                    await asyncio.sleep(1e6)
                else:
                    raise (own_class(attempt, "ReplicaFault") if what == "fault" else OtherError)(
                        value
                    )
        finally:
            this[1] = f"ends at {now()} s"

    async def read() -> None:
        await asyncio.sleep(start)
        found = await stream_of("with_failover", attempt(sealed(open_stream), replicas, deadline))
        seen.extend(await Reader("Piece", **how).read(found, piece_told))
        for number, (where, end) in enumerate(tries, 1):
            seen.append(Seen(f"Try {number}", where))
            seen.append(Seen(f"The stream of try {number}", end))
        seen.append(Seen("The list of streams opened", f"is {', '.join(opened)}"))

    end = in_virtual_time(read(), "with_failover")
    return [end, *seen]


def piece_told(piece: Any) -> str:
    return f"is {plain(piece)!r}"


# ----------------------------------------------------------------------- what a service is worth


@dataclass(frozen=True)
class Served:
    """See ServiceError."""

    due: float
    first: float | None
    last: float | None
    tokens: int
    is_whole: bool

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.due

    @property
    def tpot(self) -> float | None:
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class SLO:
    """See ServiceError."""

    ttft: float
    tpot: float


percentile = one_call(__name__, "percentile", "What it returned", "values p")


def goodput(
    attempt: Attempt, served: list[list[Any]], slo: list[float], seconds: float
) -> list[Seen]:
    """A request: due, first, last, tokens, is_whole."""
    requests = [own_class(attempt, "Served")(*request) for request in served]
    given = list(requests)
    returned = attempt(given, own_class(attempt, "SLO")(*slo), seconds)
    kept = "is as before" if given == requests else "has been changed"
    return [Seen("What it returned", returned), Seen("The list `served`", kept, "afterwards")]
