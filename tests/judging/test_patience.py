"""How long an attempt may go on, by a clock that the tests turn: nothing here waits."""

from collections.abc import Iterable
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.attempt.failure import Starved, TookTooLong, Waited
from autograder.judging.interrupt import LOOK
from autograder.judging.patience import LONGEST, Patience

Step = tuple[float, float, bool | None, bool]  # seconds, of work, whether it can run, is asked
LIMIT = 10.0
MANY = 100_000  # looks


def works(passed: float = LOOK, share: float = 1.0, can_run: bool | None = True) -> Step:
    return passed, share * passed, can_run, False


def sleeps(passed: float = LOOK, can_run: bool | None = False) -> Step:
    return passed, 0.0, can_run, False


def is_asked(passed: float = LOOK) -> Step:
    return passed, 0.0, False, True


def ended(steps: Iterable[Step]) -> tuple[type[TookTooLong] | None, int]:
    """Return what ended an attempt that does this between two looks, and after how many looks."""
    now, used = 0.0, 0.0
    state: tuple[bool | None, bool] = (True, False)
    patience = Patience(LIMIT, LIMIT, lambda: used, lambda: state[0], lambda: state[1], lambda: now)
    looks = 0
    for passed, work, can_run, asked in steps:
        now, used, state, looks = now + passed, used + work, (can_run, asked), looks + 1
        if error := patience.look():
            return error, looks
    return None, looks


LOOKS = LIMIT / LOOK  # in which a limit is reached
RIGHT_BUT_STARVED = [works(share=0.001)] * int(0.9 * LONGEST * LOOKS)
NEVER = {
    "starved": RIGHT_BUT_STARVED,
    "starved, on a system that says nothing of threads": [works(share=0.02, can_run=None)] * 1000,
    "starved together with the one who looks": [works(20.0, 0.01)] * 40,
    "stopped with the one who looks, again and again": [works(), sleeps(7200.0)] * 35,
    "stopped while its question was under way": [works(), is_asked(7200.0)] * 35,
    "lent what is slow": [works(share=0.1), *[is_asked()] * 50] * 300,
    "sleeping a little": [works()] * 30 + [sleeps()] * 30,
}
ENDED = {
    "a busy loop": (repeat(works()), TookTooLong, LOOKS),
    "a busy loop in four threads": (repeat(works(share=4.0)), TookTooLong, LOOKS / 4),
    "a busy loop on a busy machine": (repeat(works(share=0.1)), TookTooLong, 10 * LOOKS),
    "a busy loop that asks": (chain.from_iterable(repeat((works(), is_asked()))), TookTooLong, 80),
    "sleeping": (repeat(sleeps()), Waited, LOOKS),
    "sleeping, where nothing is said of threads": (repeat(sleeps(can_run=None)), Waited, LOOKS),
    "sleeping, with late looks": (repeat(sleeps(3.0)), Waited, LOOKS),
    "sleeping, and working now and then": (
        repeat(works(share=0.1, can_run=False)),
        Waited,
        LOOKS / 0.9,
    ),
    "asking while it sleeps": (
        chain.from_iterable(repeat((is_asked(), sleeps()))),
        Waited,
        2 * LOOKS,
    ),
    "starved forever": (repeat(sleeps(can_run=True)), Starved, LONGEST * LOOKS),
}


@pytest.mark.parametrize("name", NEVER)
def test_an_attempt_that_the_machine_keeps_waiting_goes_on(name: str) -> None:
    assert ended(NEVER[name]) == (None, len(NEVER[name]))


@pytest.mark.parametrize("name", ENDED)
def test_an_attempt_that_does_not_end_is_ended_by_its_own_limit(name: str) -> None:
    steps, error, looks = ENDED[name]
    assert ended(steps) == (error, pytest.approx(looks, abs=2))


PASSED = st.sampled_from([LOOK / 5, LOOK, 2 * LOOK, 30.0, 10_000.0])
HONEST = st.builds(works, PASSED, st.sampled_from([0.0, 1e-6]), st.just(True))


@given(st.lists(HONEST | st.builds(is_asked, PASSED), max_size=200))
def test_only_its_own_work_and_waiting_count(steps: list[Step]) -> None:
    assert ended(steps) == (None, len(steps))


@given(st.lists(st.builds(sleeps, PASSED) | HONEST | st.builds(is_asked, PASSED), max_size=200))
def test_waiting_counts_in_all_and_no_look_counts_more_than_one_in_time(steps: list[Step]) -> None:
    idle = (passed for passed, _, can_run, asked in steps if not (can_run or asked))
    waited = sum(min(passed, LOOK) for passed in idle)
    is_ended = ended(steps)[0] is Waited
    assert is_ended == (waited > LIMIT) or waited == pytest.approx(LIMIT)
