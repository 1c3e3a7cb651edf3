"""Answers to lab 13's exercises: arrivals, text, events, a pool, admission, routing, failover."""

import asyncio
import math

from solutions.serving import (
    Admission,
    ReplicaFault,
    RequestPool,
    Router,
    TextStream,
    goodput,
    open_loop,
    sse,
    with_failover,
)
from tests.common.attempts import wrong, wrong_result


@wrong(open_loop, "The start of request 1 is missing.")
async def in_a_group(send, uniforms, rate):
    """A group cancels all its tasks when one of them fails."""
    loop = asyncio.get_running_loop()
    due, tasks = loop.time(), []
    async with asyncio.TaskGroup() as group:
        for i, u in enumerate(uniforms):
            due -= math.log(1 - u) / rate
            await asyncio.sleep(due - loop.time())
            tasks.append(group.create_task(send(i, due)))
    return [task.result() for task in tasks]


@wrong(open_loop, "`open_loop` should be an `async def` that returns its result; a call of it gave")
def without_async(send, uniforms, rate):
    return [send(i, u / rate) for i, u in enumerate(uniforms)]


@wrong(open_loop, "`due` of request 0 is 0.0", "; expected 3.2")
async def due_from_the_call(send, uniforms, rate):
    began = asyncio.get_running_loop().time()
    return await open_loop(lambda i, due: send(i, due - began), uniforms, rate)


@wrong(TextStream.push, "The piece of token 1, b'a; b.' is 'a; b'; expected: it is 'a'.")
def at_the_first_in_the_list(self, token_id):
    text = self.decode([*self.ids, token_id])
    stop = next((stop for stop in self.stop if stop in text), None)
    if self.has_stopped or stop is None:
        return TextStream.push(self, token_id)
    self.text, self.has_stopped = text, True
    return self.show(text.index(stop))


@wrong(sse, "`sse` should be an `async def` with a `yield` for each of its results; a call of it")
async def in_a_list(choices, head, usage=None):
    return [made async for made in sse(choices, head, usage)]


@wrong(sse, "Event 1 is a str, where bytes are needed")
async def as_text(choices, head, usage=None):
    async for made in sse(choices, head, usage):
        yield made.decode()


@wrong(sse, '"choices_so_far": 0', '"choices_so_far": 3')
async def usage_too_early(choices, head, usage=None):
    used = usage() if usage else None
    async for made in sse(choices, head, (lambda: used) if usage else None):
        yield made


@wrong(RequestPool.stream, "What the engine is asked for is ['submit", "at 0.5 s', 'abort")
async def aborted_twice(self, request):
    stream = RequestPool.stream(self, request)
    try:
        async for output in stream:
            yield output
    except asyncio.CancelledError:
        self.engine.abort(request.id)
        raise


@wrong(RequestPool.stream, "`stream` waits for something that never comes; expected: it comes to")
async def without_an_end(self, request):
    queue = self.queues[request.id] = asyncio.Queue()
    self.engine.submit(request)
    while True:
        yield await queue.get()


wrong_result(
    Admission.admit,
    lambda seconds: seconds is None,
    "What `admit(100)` returned in call 1 should be None, not True.",
)


@wrong(Router.pick, "It raised ValueError: min()")
def without_a_refusal(self, hashes):
    least = min(replica.load for replica in self.replicas if replica.is_healthy)
    return Router.pick(self, hashes) if least >= 0 else None


@wrong(Router.pick, "The replica picked in step 1 is 0; expected 1.")
def less_than_the_slack(self, hashes):
    return Router.pick(Router(self.replicas, self.slack - 1), hashes)


@wrong(with_failover, "It raised RuntimeError: No replica has answered.")
async def an_error_of_its_own(open_stream, replicas, deadline):
    try:
        async for piece in with_failover(open_stream, replicas, deadline):
            yield piece
    except ReplicaFault:
        raise RuntimeError("No replica has answered.") from None


@wrong(goodput, "What it returned is 0.25; expected 0.")
def by_the_sum_of_both_limits(served, slo, seconds):
    """A token may come late if the others are early."""
    whole = [one for one in served if one.is_whole]
    longest = [slo.ttft + slo.tpot * (one.tokens - 1) for one in whole]
    good = [one.last - one.due <= most for one, most in zip(whole, longest, strict=True)]
    return sum(good) / seconds
