"""Serving: what clients see, what the engine is told, and when, in virtual time."""

import asyncio
import json
import math
from contextlib import aclosing
from copy import deepcopy
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solutions import serving
from solutions.serving import Admission, Replica, ReplicaFault, Served, ServiceError
from solutions.simulated.clock import run


def now() -> float:
    return asyncio.get_running_loop().time()


def test_timers_go_off_in_their_order_inside_a_notebooks_loop_too():
    async def notebook() -> list[float]:
        return run(timers())

    async def timers() -> list[float]:
        return [await one for one in asyncio.as_completed([asyncio.sleep(s, s) for s in (7, 2, 5)])]

    assert asyncio.run(notebook()) == [2, 5, 7]


# Uniform numbers, seconds that an answer takes, and seconds for which sending it stalls the loop.
REQUESTS = st.tuples(st.floats(0, 0.99), st.sampled_from([0, 5, 100]), st.sampled_from([0, 0, 3]))


@given(st.lists(REQUESTS, max_size=20))
def test_requests_are_sent_when_they_are_due_whatever_becomes_of_the_others(requests):
    sent: list[tuple[int, float, float]] = []

    async def send(i: int, due: float) -> int:
        sent.append((i, due, now()))
        asyncio.get_running_loop().now += requests[i][2]  # type: ignore[attr-defined]
        await asyncio.sleep(requests[i][1])
        return -i

    async def later() -> list[int]:
        await asyncio.sleep(10)
        return await serving.open_loop(send, [u for u, *_ in requests], rate=0.5)

    assert run(later()) == [-i for i in range(len(requests))]
    due = free = 10.0
    for i, (u, _, stall) in enumerate(requests):
        due -= 2 * math.log(1 - u)
        assert sent[i] == (i, pytest.approx(due), pytest.approx(max(due, free)))
        free = max(due, free) + stall


# Characters of one, two and three bytes, some of them cut.
BYTES = st.sampled_from([b"a", b"b", b"ab", b"b\xc3", b"\xa9", b"a\xe2\x80", b"\x94"])
STOPS = st.lists(st.text("ab", min_size=1, max_size=3), max_size=3).map(tuple)


@given(st.lists(BYTES, max_size=9), STOPS)
def test_the_pieces_are_the_text_up_to_the_first_stop_string(tokens, stop):
    """Nothing shown is torn or taken back, and nothing that may be shown is held back."""

    def decode(ids: list[int]) -> str:
        return b"".join(tokens[i] for i in ids).decode(errors="replace")

    stream, shown = serving.TextStream(decode, stop), ""
    for i in range(len(tokens)):
        shown += stream.push(i)
        text = decode([*range(i + 1)])
        whole = text.rstrip(serving.TORN)
        if ends := [text.find(s) for s in stop if s in text]:
            assert (shown, stream.has_stopped) == (text[: min(ends)], True)
            assert (stream.push(0), stream.finish()) == ("", "")
            return
        may_stop = [n for n in range(len(whole)) if any(s.startswith(whole[n:]) for s in stop)]
        assert shown == whole[: min(may_stop, default=len(whole))]
    assert shown + stream.finish() == decode([*range(len(tokens))])


FAULT = ReplicaFault("gone")
HAD_ALL, LEFT = StopAsyncIteration, None  # how a client's reading ends, other than by an error


async def read(stream: Any, most: int = 99, patience: float = 99) -> Any:
    """At most `most` pieces in `patience` seconds: what came and when, and the type of an error."""
    got: list[tuple[Any, float]] = []
    try:
        async with aclosing(stream), asyncio.timeout(patience):
            while len(got) < most:
                got.append((await anext(stream), now()))
    except (Exception, asyncio.CancelledError) as error:
        return got, type(error)
    return got, LEFT


async def replica(*steps: Any) -> Any:
    """Wait for seconds, yield a piece of text or an output, or raise an error."""
    for step in steps:
        if isinstance(step, int):
            await asyncio.sleep(step)
        elif isinstance(step, BaseException):
            raise step
        else:
            yield step


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("fault", [(), (OSError("/etc/secret"),), (ServiceError("Full."),)])
def test_events_end_with_done_whatever_happened(fault, asked):
    choices = [{"text": 'a "quoted"\n\nline \u2014'}, {"text": "", "finish_reason": "length"}]
    usage = (lambda: 7) if asked else None
    events, ended = run(read(serving.sse(replica(*choices, *fault), {"id": "x"}, usage)))
    *lines, done = [event.decode() for event, _ in events]
    assert (done, ended) == ("data: [DONE]\n\n", HAD_ALL)
    assert all(line.startswith("data: ") and line.find("\n") == len(line) - 2 for line in lines)
    assert "secret" not in "".join(lines)
    received = [json.loads(line.removeprefix("data: ")) for line in lines]
    if fault:
        assert received.pop() == serving.error_body(*fault)
    elif asked:
        assert received.pop() == {"id": "x", "choices": [], "usage": 7}
    assert received == [{"id": "x", "choices": [choice]} for choice in choices]


def test_a_client_that_has_left_gets_no_event():
    for most, how in ((1, LEFT), (9, asyncio.CancelledError)):
        events, ended = run(read(serving.sse(replica({}, asyncio.CancelledError()), {}), most))
        assert (len(events), ended) == (1, how)


ON, LAST = (SimpleNamespace(finish_reason=reason) for reason in (None, "length"))


@pytest.mark.parametrize(
    ("outputs", "most", "patience", "count", "ended", "aborts"),
    [
        ([ON, ON, LAST], 9, 9, 3, HAD_ALL, 0),
        ([ON, ON, LAST], 3, 9, 3, LEFT, 0),
        ([ON, ON, LAST], 1, 9, 1, LEFT, 1),
        ([ON, ON, LAST], 9, 0.5, 1, TimeoutError, 1),
        ([ON, OSError(), ON], 9, 9, 1, OSError, 0),
    ],
)
def test_unfinished_requests_are_aborted_once(outputs, most, patience, count, ended, aborts):
    """The engine delivers an output a second, the first one before `submit` returns."""

    async def main() -> None:
        log: list[str] = []

        def submit(request: Any) -> None:
            log.append("submitted")
            pool.deliver(request.id, outputs[0])
            for second, one in enumerate(outputs[1:], 1):
                asyncio.get_running_loop().call_later(second, pool.deliver, request.id, one)

        pool = serving.RequestPool(SimpleNamespace(submit=submit, abort=log.append))
        got, error = await read(pool.stream(SimpleNamespace(id="a")), most, patience)
        assert (got, error) == ([(one, at) for at, one in enumerate(outputs[:count])], ended)
        await asyncio.sleep(10)  # outputs that come now have no queue
        assert (pool.queues, log) == ({}, ["submitted"] + ["a"] * aborts)

    run(main())


@pytest.mark.parametrize(
    ("steps", "most", "patience", "tried", "pieces", "ended"),
    [
        ([[1, FAULT], [1, "a", 20, "b"]], 9, 99, 2, [("a", 2), ("b", 22)], HAD_ALL),
        ([[1, "a", 1, "b"], ["x"]], 1, 99, 1, [("a", 1)], LEFT),
        ([[2, "a"], ["x"]], 9, 1, 1, [], TimeoutError),
        ([[1, FAULT], [1, FAULT]], 9, 99, 2, [], ReplicaFault),
        ([["a", 1, FAULT], ["x"]], 9, 99, 1, [("a", 0)], ReplicaFault),
        ([[1, KeyError()], ["x"]], 9, 99, 1, [], KeyError),
        ([[9, "a"], ["x"]], 9, 99, 1, [], TimeoutError),
        ([[3, FAULT], [3, "a"]], 9, 99, 2, [], TimeoutError),
    ],
)
def test_other_replicas_are_tried_until_one_answers(steps, most, patience, tried, pieces, ended):
    async def main() -> None:
        opened = [replica(*script) for script in steps]
        stream = serving.with_failover(opened.__getitem__, range(len(steps)), deadline=5)
        assert await read(stream, most, patience) == (pieces, ended)
        assert [one.ag_frame is None for one in opened] == [n < tried for n in range(len(opened))]

    run(main())


LIMITS = st.tuples(st.sampled_from([0.25, 1.0]), st.sampled_from([64, 128]))  # exact in binary


@given(LIMITS, st.lists(st.integers(1, 150) | st.none(), max_size=30))
def test_admitted_requests_are_in_time_and_refused_ones_after_their_wait(limits, events):
    """Events: the tokens of the next request, or None to release the oldest one."""
    admission, admitted, (ttft, rate) = Admission(*limits), [0], limits
    for tokens in events:
        before = admission.backlog
        if tokens is None:
            admission.release(admitted.pop(0) if admitted else 0)
        elif (wait := admission.admit(tokens)) is None:
            admitted.append(tokens)
            assert before == 0 or before + tokens <= ttft * rate
        else:
            assert 0 < wait * rate <= before
            for left in (before - int(wait * rate), before - int(wait * rate) + 1):
                later = Admission(*limits)
                later.backlog = left
                assert (later.admit(tokens) is None) == (left == before - wait * rate)
        assert admission.backlog == sum(admitted) >= 0


BLOCKS, SMALL = [b"1", b"2", b"3"], st.integers(0, 3)
KNOWN = st.sampled_from([set(some) for n in range(4) for some in combinations(BLOCKS, n)])
REPLICAS = st.builds(Replica, SMALL, SMALL, st.sampled_from([True, True, False]), KNOWN)


@given(st.lists(REPLICAS, min_size=3, max_size=6), st.integers(0, 1), SMALL)
def test_no_replica_within_the_slack_knows_more_than_the_picked_one(replicas, slack, length):
    before = deepcopy(replicas := [*replicas, Replica(3)])
    picked = replicas[serving.Router(replicas, slack).pick(BLOCKS[:length])]
    healthy = [one for one in replicas if one.is_healthy]
    able = [one for one in healthy if one.load <= min(one.load for one in healthy) + slack]

    def merits(one: Replica) -> tuple[int, int, int]:
        known = max(n for n in range(length + 1) if one.known.issuperset(BLOCKS[:n]))
        return known, -one.load, -one.served

    assert picked in able
    assert merits(picked) == max(map(merits, able))
    assert replicas == before


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40), st.integers(1, 100))
def test_a_percentile_is_the_least_value_that_p_percent_do_not_exceed(values, p):
    enough = [v for v in values if 100 * sum(w <= v for w in values) >= p * len(values)]
    assert serving.percentile(values, p) == min(enough)


def test_goodput_counts_whole_requests_that_met_both_limits():
    good = [Served(0, 2, 6, 5), Served(5, 5, 5, 1), Served(1, 3, 3.5, 2)]
    bad = [Served(0, 2.5, 3, 5), Served(0, 1, 6, 5), Served(0, 3, 3, 1)]  # late, slow, late
    bad += [Served(0, 1, 2, 3, is_whole=False), Served(0, None, None, 0, is_whole=False)]
    assert [one.tpot for one in good] == [1, None, 0.5]
    assert serving.goodput(good + bad, serving.SLO(ttft=2, tpot=1), seconds=6) == 0.5
