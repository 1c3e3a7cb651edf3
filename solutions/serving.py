"""Lab 13: serving. From an engine to a service that many clients use at once.

The parts that stand between an engine and its clients: arrivals to load it with, text that is safe
to show, events on the wire, a pool of requests that ends what nobody reads any more, admission,
routing over replicas, failover, and the numbers by which a service is judged.

Sources: Zhong et al., "DistServe", OSDI 2024 (goodput); Qin et al., "Mooncake", FAST 2025 (early
rejection); Zheng et al., "SGLang", NeurIPS 2024 (cache-aware routing); WHATWG, "HTML Standard",
section 9.2 (server-sent events); Schroeder et al., "Open versus closed: a cautionary tale",
NSDI 2006 (open-loop load).
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")

# ------------------------------------------------------------------------------------- arrivals


async def open_loop(
    send: Callable[[int, float], Awaitable[Result]], uniforms: Sequence[float], rate: float
) -> list[Result]:
    """Send one request per uniform, at the times of a Poisson process; return their results.

    The gap before each request is -log(1 - u) / rate seconds, so request i is due when i + 1 gaps
    have passed since the call. It is sent then, whatever became of the requests before it:
    `send(i, due)` returns its result, and `due` is in seconds of the event loop's clock. The
    results are in the order of the requests. rate: requests per second, on average.
    """
    if rate <= 0:
        raise ValueError(f"A rate is a number of requests per second above 0, not {rate}.")
    ### BEGIN SOLUTION
    loop = asyncio.get_running_loop()
    due, tasks = loop.time(), []
    for i, u in enumerate(uniforms):
        due += -math.log(1 - u) / rate
        await asyncio.sleep(due - loop.time())
        tasks.append(asyncio.ensure_future(send(i, due)))
    return await asyncio.gather(*tasks)
    ### END SOLUTION


# --------------------------------------------------------------------------------- text to show

TORN = "\ufffd"  # what decoding makes of bytes that are no whole character


class TextStream:
    """Turns one request's tokens into pieces of text that may be shown at once.

    decode: from token ids to text. stop: strings that end the text, none of them empty.
    text: all the text of the tokens so far. shown: how many of its characters have been returned.
    has_stopped: whether a stop string was found; from then on every piece is empty.
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: tuple[str, ...] = ()) -> None:
        self.decode, self.stop = decode, stop
        self.ids: list[int] = []
        self.text, self.shown, self.has_stopped = "", 0, False

    def push(self, token_id: int) -> str:
        """Add a token; return the new text that may be shown now.

        Three things are held back: characters at the end that are torn (TORN), the longest ending
        that may be the beginning of a stop string, and the first stop string with all after it.
        """
        if self.has_stopped:
            return ""
        self.ids.append(token_id)
        ### BEGIN SOLUTION
        self.text = self.decode(self.ids)
        found = [self.text.find(stop) for stop in self.stop if stop in self.text]
        if found:
            self.has_stopped = True
            return self.show(min(found))
        whole = self.text.rstrip(TORN)
        return self.show(len(whole) - max((overlap(whole, s) for s in self.stop), default=0))
        ### END SOLUTION

    def finish(self) -> str:
        """Return the rest of the text when no token will come any more."""
        return "" if self.has_stopped else self.show(len(self.text))

    def show(self, end: int) -> str:
        """Return the characters from `shown` to `end`, and count them as shown."""
        piece = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest ending of `text` with which `stop` begins."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


# ------------------------------------------------------------------------------- events on the wire

Choice = dict[str, Any]  # one piece of one answer, as OpenAI's API has it


class ServiceError(Exception):
    """A fault that a client is told, in a sentence that was written for clients."""


def event(data: Any) -> bytes:
    """Return a server-sent event with this data as JSON, which has no line breaks of its own."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def error_body(error: Exception) -> dict[str, Any]:
    """Return what a client is told of an error: only a ServiceError's own sentence is shown."""
    told = str(error) if isinstance(error, ServiceError) else "The server failed on this request."
    return {"error": {"message": told, "type": "server_error", "param": None, "code": None}}


async def sse(
    choices: AsyncIterator[Choice], head: dict[str, Any], usage: Callable[[], Any] | None = None
) -> AsyncIterator[bytes]:
    """Yield the events of one streamed answer.

    First an event for each choice: `head` with the choice in the list "choices". Then, if the
    client has asked for `usage`, one event with an empty list of choices and what `usage()`
    returns, called after the last choice. At the end always b"data: [DONE]\\n\\n", the only one
    that isn't JSON. If `choices` raises an Exception, the event `error_body(error)` follows the
    choices so far, instead of the usage. A cancellation isn't an Exception, and is passed on.
    """
    ### BEGIN SOLUTION
    try:
        async for choice in choices:
            yield event({**head, "choices": [choice]})
        if usage is not None:
            yield event({**head, "choices": [], "usage": usage()})
    except Exception as error:
        yield event(error_body(error))
    yield b"data: [DONE]\n\n"
    ### END SOLUTION


# ------------------------------------------------------------------------------ a pool of requests


class HasId(Protocol):
    @property
    def id(self) -> str: ...


class ServedOutput(Protocol):
    """An output of lab 7's engine: finish_reason is None while the request goes on."""

    @property
    def request(self) -> Any: ...
    @property
    def new_ids(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str | None: ...


class ServedEngine(Protocol):
    """An engine that runs elsewhere: `submit` and `abort` take effect with one of its next steps.

    It calls the pool's `deliver` with each output, maybe even before `submit` has returned.
    """

    def submit(self, request: Any, /) -> None: ...
    def abort(self, request_id: str, /) -> None: ...


class RequestPool:
    """The requests that are being served, each with the queue in which its outputs arrive."""

    def __init__(self, engine: ServedEngine) -> None:
        self.engine = engine
        self.queues: dict[str, asyncio.Queue[ServedOutput | Exception]] = {}

    def deliver(self, request_id: str, output: ServedOutput | Exception) -> None:
        """Put an output, or the fault that ends a request, into its queue if it still has one."""
        if request_id in self.queues:
            self.queues[request_id].put_nowait(output)

    async def stream(self, request: HasId) -> AsyncIterator[ServedOutput]:
        """Submit a request, and yield its outputs up to the one that has a `finish_reason`.

        A fault in its queue is raised. However the stream ends, the request's queue is removed; and
        if the engine is still at work on it, because the stream was closed or cancelled, the
        request is aborted, once. A request that has finished or failed isn't aborted, nor one whose
        `submit` raises.
        """
        ### BEGIN SOLUTION
        queue = self.queues[request.id] = asyncio.Queue()
        is_running = False
        try:
            self.engine.submit(request)
            is_running = True
            while is_running:
                output = await queue.get()
                is_running = not isinstance(output, Exception) and output.finish_reason is None
                if isinstance(output, Exception):
                    raise output
                yield output
        finally:
            del self.queues[request.id]
            if is_running:
                self.engine.abort(request.id)
        ### END SOLUTION


# ---------------------------------------------------------------------------------------- admission


class Admission:
    """Refuses requests that would wait too long for their first token.

    target_ttft: seconds. prefill_rate: prompt tokens that the engine computes per second.
    backlog: prompt tokens of the admitted requests that have no token yet.
    """

    def __init__(self, target_ttft: float, prefill_rate: float) -> None:
        self.target_ttft, self.prefill_rate = target_ttft, prefill_rate
        self.backlog = 0

    def admit(self, tokens: int) -> float | None:
        """Admit a request with so many prompt tokens, and return None; or refuse it.

        It is admitted if the backlog, with its tokens, is computed within `target_ttft`, and always
        if there is no backlog. Otherwise nothing changes; return the seconds until it would be
        admitted, if no other request came.
        """
        ### BEGIN SOLUTION
        most = self.target_ttft * self.prefill_rate
        excess = self.backlog + tokens - most
        if self.backlog == 0 or excess <= 0:
            self.backlog += tokens
            return None
        return min(excess, self.backlog) / self.prefill_rate
        ### END SOLUTION

    def release(self, tokens: int) -> None:
        """Take a request's prompt tokens off: it has its first token, or has left before that."""
        self.backlog -= tokens


# ------------------------------------------------------------------------------------------ routing


@dataclass
class Replica:
    """One of several servers. load: requests that it is serving. served: requests so far.

    known: hashes of the blocks that its prefix cache probably holds.
    """

    load: int = 0
    served: int = 0
    is_healthy: bool = True
    known: set[bytes] = field(default_factory=set)


class Router:
    """Chooses a replica for each request. slack: how much more load a cached prefix is worth."""

    def __init__(self, replicas: Sequence[Replica], slack: int = 4) -> None:
        self.replicas, self.slack = replicas, slack

    def pick(self, hashes: Sequence[bytes]) -> int:
        """Return the index of the replica that serves a request with these block hashes.

        Among the healthy replicas whose load is at most `slack` above the least load of a healthy
        one, take the one that knows the longest beginning of `hashes`, counted in blocks. Of equal
        ones take the least load, then the fewest requests served, then the lowest index. Raises
        ServiceError if no replica is healthy. Nothing changes: `begin` counts the request.
        """
        ### BEGIN SOLUTION
        healthy = [i for i, replica in enumerate(self.replicas) if replica.is_healthy]
        if not healthy:
            raise ServiceError("No replica can serve requests now. Try again later.")
        most = min(self.replicas[i].load for i in healthy) + self.slack

        def rank(i: int) -> tuple[int, ...]:
            replica = self.replicas[i]
            return -known_beginning(hashes, replica.known), replica.load, replica.served, i

        return min((i for i in healthy if self.replicas[i].load <= most), key=rank)
        ### END SOLUTION

    def begin(self, index: int, hashes: Iterable[bytes]) -> None:
        """Count a request for a replica as soon as it is chosen."""
        replica = self.replicas[index]
        replica.load += 1
        replica.served += 1
        replica.known.update(hashes)

    def end(self, index: int) -> None:
        """Take a request off its replica's load, however it has ended."""
        self.replicas[index].load -= 1


def known_beginning(hashes: Sequence[bytes], known: set[bytes]) -> int:
    """Return how many of the hashes, counted from the first, a replica knows without a gap."""
    return next((n for n, block in enumerate(hashes) if block not in known), len(hashes))


class ReplicaFault(Exception):
    """The replica failed, not the request: another replica may serve it."""


async def with_failover(
    open_stream: Callable[[int], AsyncGenerator[Result, None]],
    replicas: Sequence[int],
    deadline: float,
) -> AsyncGenerator[Result, None]:
    """Yield the pieces of one answer, from the first of `replicas` that gives one.

    `open_stream(replica)` returns a stream of pieces. If it raises a ReplicaFault before its first
    piece, the next replica is tried; after the first piece the fault is raised, because the client
    has seen a beginning that another replica needn't continue. Raises the last fault if every
    replica has failed, and TimeoutError if no piece has come within `deadline` seconds of the call,
    over all replicas together. All other errors are raised at once. Every stream is closed.
    """
    if not replicas:
        raise ValueError("There is no replica to try.")
    ### BEGIN SOLUTION
    latest = asyncio.get_running_loop().time() + deadline
    for replica in replicas:
        has_begun = False
        try:
            async with aclosing(open_stream(replica)) as pieces, asyncio.timeout_at(latest) as wait:
                async for piece in pieces:
                    has_begun = True
                    wait.reschedule(None)
                    yield piece
            return
        except ReplicaFault:
            if has_begun or replica == replicas[-1]:
                raise
    ### END SOLUTION


# ------------------------------------------------------------------------ what a service is worth


@dataclass(frozen=True)
class Served:
    """What became of one request; times in seconds of one clock.

    due: when it should have been sent. first, last: when its first and last token came; None if
    none came. tokens: how many came. is_whole: False if it was refused, broke off or was given up.
    """

    due: float
    first: float | None
    last: float | None
    tokens: int
    is_whole: bool = True

    @property
    def ttft(self) -> float | None:
        """Seconds from the due time to the first token."""
        return None if self.first is None else self.first - self.due

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first; None for an answer of one token."""
        if self.first is None or self.last is None or self.tokens < 2:
            return None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class SLO:
    """A service-level objective: the most seconds for each request's TTFT and TPOT."""

    ttft: float
    tpot: float


def percentile(values: Sequence[float], p: float) -> float:
    """Return the nearest-rank percentile: the least value that p % of the values don't exceed.

    0 < p <= 100. The rank is p / 100 * len(values), rounded up, and counted from 1. `values` are in
    any order, and stay unchanged. Raises ValueError if there are none.
    """
    if not values:
        raise ValueError("No value has a percentile.")
    ### BEGIN SOLUTION
    rank = math.ceil(p * len(values) / 100)
    return sorted(values)[rank - 1]
    ### END SOLUTION


def goodput(served: Sequence[Served], slo: SLO, seconds: float) -> float:
    """Return how many requests per second met the whole SLO.

    A request is good if it is whole, and neither its TTFT nor its TPOT exceeds the SLO. An answer
    of one token has no TPOT, so only its TTFT counts. seconds: how long the requests were served.
    """
    ### BEGIN SOLUTION
    good = [
        one
        for one in served
        if one.is_whole
        and one.ttft is not None
        and one.ttft <= slo.ttft
        and (one.tpot is None or one.tpot <= slo.tpot)
    ]
    return len(good) / seconds
    ### END SOLUTION
