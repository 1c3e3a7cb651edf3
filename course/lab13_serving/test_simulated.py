"""The clock and the engine in virtual time that lab 13 is practiced on."""

import asyncio
import time
from itertools import pairwise

import pytest

from solutions.serving import RequestPool
from solutions.simulated.clock import Stuck, run
from solutions.simulated.service import (
    BLOCK,
    BUDGET,
    SLOTS,
    STEP,
    TOKEN,
    Request,
    SimulatedEngine,
    new_chats,
    new_requests,
)


async def served(requests: list[Request], engine: SimulatedEngine | None = None) -> SimulatedEngine:
    """Serve requests that come at once, each with a pool's stream, and return the engine."""
    engine = engine or SimulatedEngine()
    pool = RequestPool(engine)
    engine.deliver = pool.deliver

    async def read(request: Request) -> None:
        count = sum([len(output.new_ids) async for output in pool.stream(request)])
        assert count == request.tokens == request.answer

    await asyncio.gather(*map(read, requests))
    return engine


# ---------------------------------------------------------------------------------------- the clock


def test_sleeping_sets_the_clock_and_takes_no_time():
    async def two_hours() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        return asyncio.get_running_loop().time()

    before = time.monotonic()
    assert run(two_hours()) == 7200
    assert time.monotonic() - before < 60


def test_tasks_that_wait_for_each_other_are_told_so():
    async def waits() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="Every task waits"):
        run(waits())


# --------------------------------------------------------------------------------------- the engine


def test_one_request_takes_a_prefill_and_a_step_for_each_later_token():
    request = Request("a", prompt=300, answer=3)
    engine = run(served([request]))
    first = STEP + BUDGET * TOKEN + STEP + (300 - BUDGET) * TOKEN
    assert request.first == pytest.approx(first)
    assert request.last == pytest.approx(first + 2 * (STEP + TOKEN))
    assert (request.due, request.started, request.ended) == (0, 0, request.last)
    assert (request.outcome, engine.computed) == ("whole", 300 + 2)


def test_a_prompt_shares_its_steps_with_decodes_and_slots_are_limited():
    requests = [Request(str(i), prompt=16, answer=4) for i in range(SLOTS + 1)]
    engine = run(served(requests))
    first = STEP + SLOTS * 16 * TOKEN  # exactly the budget
    assert [request.first for request in requests[:-1]] == [pytest.approx(first)] * SLOTS
    assert requests[-1].started == pytest.approx(first + 3 * (STEP + SLOTS * TOKEN))
    assert engine.computed == (SLOTS + 1) * (16 + 3)


def test_a_slower_engine_takes_longer_for_each_step():
    ended = []
    for slowdown in (1, 3):
        requests = new_requests(20)
        run(served(requests, SimulatedEngine(slowdown)))
        ended.append(max(request.ended or 0 for request in requests))
    assert ended[1] == pytest.approx(3 * ended[0])


def test_a_stall_lengthens_one_step():
    request, engine = Request("a", prompt=16, answer=8), SimulatedEngine()
    engine.stall = 2.0
    run(served([request], engine))
    assert request.first == pytest.approx(2.0 + STEP + 16 * TOKEN)
    assert request.last == pytest.approx(request.first + 7 * (STEP + TOKEN))


def test_aborting_ends_a_request_and_costs_no_further_step():
    async def leave(after: float) -> tuple[SimulatedEngine, Request]:
        engine, request = SimulatedEngine(), Request("a", prompt=100, answer=50)
        engine.submit(request)
        await asyncio.sleep(after)
        engine.abort("a")
        engine.abort("a")  # too late does no harm
        await asyncio.sleep(10)
        return engine, request

    for after, computed in ((0.001, 100), (STEP + 100 * TOKEN + 0.001, 101)):
        engine, request = run(leave(after))
        assert (request.outcome, request.ended) == ("aborted", pytest.approx(after))
        assert (engine.computed, engine.running, len(engine.waiting)) == (computed, [], 0)


def test_a_fault_ends_every_request_now_and_later():
    async def fail() -> list[str | None]:
        engine = SimulatedEngine()
        pool = RequestPool(engine)
        engine.deliver = pool.deliver
        requests = [Request(str(i), 16, 8) for i in range(SLOTS + 2)]
        streams = [asyncio.ensure_future(anext(pool.stream(one))) for one in requests[:-1]]
        await asyncio.sleep(0.001)
        engine.fail(OSError("gone"))
        streams.append(asyncio.ensure_future(anext(pool.stream(requests[-1]))))
        faults = await asyncio.gather(*streams, return_exceptions=True)
        assert {str(fault) for fault in faults} == {"gone"}
        return [request.outcome for request in requests]

    assert set(run(fail())) == {"failed"}


def test_known_blocks_are_found_from_the_beginning_and_one_token_is_always_computed():
    hashes = (b"one", b"two", b"three")
    first, again = (Request(name, 3 * BLOCK, 2, hashes) for name in "ab")
    other = Request("c", 4 * BLOCK, 2, (b"one", b"else", b"three"))

    async def in_turn() -> None:
        engine = SimulatedEngine()
        for request in (first, again, other):
            await served([request], engine)

    run(in_turn())
    assert [request.found for request in (first, again, other)] == [0, 3 * BLOCK - 1, BLOCK]


# ------------------------------------------------------------------------------------------ traffic


def test_requests_are_the_same_every_time_and_within_their_limits():
    requests = new_requests(500, seed=1)
    sizes = [(request.prompt, request.answer) for request in requests]
    assert sizes == [(request.prompt, request.answer) for request in new_requests(500, seed=1)]
    assert sizes != [(request.prompt, request.answer) for request in new_requests(500, seed=2)]
    assert all(16 <= prompt <= 256 and 8 <= answer <= 64 for prompt, answer in sizes)
    assert 200 < sum(prompt < 64 for prompt, _ in sizes) < 300  # half of them, in logarithms


def test_each_turn_of_a_chat_begins_with_the_turns_before():
    one, other = new_chats(chats=2, turns=3, instructions=2 * BLOCK)
    for before, after in pairwise(one):
        assert after.hashes[: len(before.hashes)] == before.hashes
        assert after.prompt > before.prompt + before.answer
        assert len(after.hashes) == after.prompt // BLOCK
    assert one[0].hashes[:2] == other[0].hashes[:2]
    assert not set(one[2].hashes[2:]) & set(other[2].hashes[2:])
