"""Answers to lab 13's exercises: arrivals, text, events, a pool, admission, routing, failover."""

import asyncio
import json
import math

import numpy as np

from solutions.serving import (
    TORN,
    Admission,
    ReplicaFault,
    RequestPool,
    Router,
    ServiceError,
    TextStream,
    error_body,
    event,
    goodput,
    known_beginning,
    open_loop,
    percentile,
    sse,
    with_failover,
)
from tests.common.attempts import right, wrong

# ----------------------------------------------------------------------------- arrivals, and text


@right(open_loop)
async def with_timers(send, uniforms, rate):
    loop, tasks = asyncio.get_running_loop(), {}
    due = loop.time()

    def start(i, due):
        tasks[i] = loop.create_task(send(i, due))

    for i, u in enumerate(uniforms):
        due -= math.log1p(-u) / rate
        loop.call_at(due, start, i, due)
    while len(tasks) < len(uniforms):
        await asyncio.sleep(due - loop.time())
    return [await tasks[i] for i in range(len(tasks))]


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


@right(TextStream.push)
def before_each_stop_string(self, token_id):
    if self.has_stopped:
        return ""
    self.ids.append(token_id)
    self.text = self.decode(self.ids)
    before = min((self.text.partition(s)[0] for s in self.stop), key=len, default=self.text)
    self.has_stopped = before != self.text
    if self.has_stopped:
        return self.show(len(before))
    whole = before.rstrip(TORN)
    begun = (n for n in range(len(whole)) if any(s.startswith(whole[n:]) for s in self.stop))
    return self.show(next(begun, len(whole)))


@wrong(TextStream.push, "The piece of token 1, b'a; b.' is 'a; b'; expected: it is 'a'.")
def at_the_first_in_the_list(self, token_id):
    text = self.decode([*self.ids, token_id])
    stop = next((stop for stop in self.stop if stop in text), None)
    if self.has_stopped or stop is None:
        return TextStream.push(self, token_id)
    self.text, self.has_stopped = text, True
    return self.show(text.index(stop))


# ----------------------------------------------------------------------- events, and a request pool


@right(sse)
async def one_choice_at_a_time(choices, head, usage=None):
    """With JSON in ASCII, and the list of choices in front."""
    used, stream = usage is None, aiter(choices)
    while True:
        try:
            data = {"choices": [await anext(stream)]}
        except StopAsyncIteration:
            if used:
                break
            data, used = {"choices": [], "usage": usage()}, True
        except Exception as error:
            yield event(error_body(error))
            break
        yield f"data: {json.dumps(data | head)}\n\n".encode("ascii")
    yield b"data: [DONE]\n\n"


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


@right(RequestPool.stream)
async def with_a_note_of_its_end(self, request):
    self.queues[request.id] = asyncio.Queue()
    self.engine.submit(request)
    ended = False
    try:
        while not ended:
            output = await self.queues[request.id].get()
            ended = isinstance(output, Exception) or bool(output.finish_reason)
            if isinstance(output, Exception):
                raise output
            yield output
    except BaseException:
        if not ended:
            self.engine.abort(request.id)
        raise
    finally:
        self.queues = {key: queue for key, queue in self.queues.items() if key != request.id}


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


# ------------------------------------------------------------------- admission, routing, failover


@right(Admission.admit)
def in_seconds(self, tokens):
    waits, takes = self.backlog / self.prefill_rate, tokens / self.prefill_rate
    if waits and waits + takes > self.target_ttft:
        return min(waits, waits + takes - self.target_ttft)
    self.backlog += tokens
    return None


@wrong(Admission.admit, "What `admit(100)` returned in call 1 should be None, not True.")
def whether_it_is_admitted(self, tokens):
    return Admission.admit(self, tokens) is None


@right(Router.pick)
def the_last_of_those_in_order(self, hashes):
    healthy = [i for i, replica in enumerate(self.replicas) if replica.is_healthy]
    loads = sorted(self.replicas[i].load for i in healthy)
    able = [i for i in healthy if self.replicas[i].load <= loads[0] + self.slack]
    able.sort(reverse=True)
    able.sort(key=lambda i: self.replicas[i].served, reverse=True)
    able.sort(key=lambda i: self.replicas[i].load, reverse=True)
    able.sort(key=lambda i: known_beginning(hashes, self.replicas[i].known))
    if not able:
        raise ServiceError
    return able[-1]


@wrong(Router.pick, "It raised ValueError: min()")
def without_a_refusal(self, hashes):
    least = min(replica.load for replica in self.replicas if replica.is_healthy)
    return Router.pick(self, hashes) if least >= 0 else None


@wrong(Router.pick, "The replica picked in step 1 is 0; expected 1.")
def less_than_the_slack(self, hashes):
    return Router.pick(Router(self.replicas, self.slack - 1), hashes)


@right(with_failover)
async def first_piece_apart(open_stream, replicas, deadline):
    clock, left = asyncio.get_running_loop().time, list(replicas)
    latest, begun = clock() + deadline, False
    while left and not begun:
        stream = open_stream(left.pop(0))
        try:
            piece = await asyncio.wait_for(anext(stream, None), latest - clock())
            begun = True
            while piece is not None:
                yield piece
                piece = await anext(stream, None)
        except ReplicaFault:
            if begun or not left:
                raise
        finally:
            await stream.aclose()


@wrong(with_failover, "It raised RuntimeError: No replica has answered.")
async def an_error_of_its_own(open_stream, replicas, deadline):
    try:
        async for piece in with_failover(open_stream, replicas, deadline):
            yield piece
    except ReplicaFault:
        raise RuntimeError("No replica has answered.") from None


# -------------------------------------------------------------------------- what a service is worth


@right(percentile)
def in_the_order_of_the_docstring(values, p):
    """Rounding p / 100 must not matter in any case."""
    return sorted(values)[math.ceil(p / 100 * len(values)) - 1]


@wrong(percentile, "You interpolate between two values, as `numpy.percentile`")
def by_numpy(values, p):
    return float(np.percentile(values, p))


@right(goodput)
def with_times_of_its_own(served, slo, seconds):
    def is_good(due, first, last, tokens):
        return first - due <= slo.ttft and last - first <= slo.tpot * (tokens - 1)

    whole = [(one.due, one.first, one.last, one.tokens) for one in served if one.is_whole]
    return sum(is_good(*times) for times in whole) / seconds


@wrong(goodput, "What it returned is 0.25; expected 0.")
def by_the_sum_of_both_limits(served, slo, seconds):
    """A token may come late if the others are early."""
    whole = [one for one in served if one.is_whole]
    longest = [slo.ttft + slo.tpot * (one.tokens - 1) for one in whole]
    good = [one.last - one.due <= most for one, most in zip(whole, longest, strict=True)]
    return sum(good) / seconds
