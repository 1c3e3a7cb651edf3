"""The parts of lab 23, for any adapters: products agree, slots are never shared."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.judging.random_models import normals
from solutions.adapters import (
    AdapterCache,
    LowRank,
    NoSlot,
    delta,
    gathered,
    in_segments,
    merged,
    next_request,
    salted,
    served,
    stacked,
)

ranks = st.lists(st.tuples(st.integers(1, 4), st.floats(0.5, 9)), min_size=1, max_size=4)


def adapters_of(each: list[tuple[int, float]]) -> list[LowRank]:
    normal = normals(3)
    return [LowRank(normal((5, rank)), normal((rank, 6)), alpha) for rank, alpha in each]


@given(each=ranks, rows=st.lists(st.integers(0, 4), max_size=9))
def test_rows_of_many_adapters_get_what_each_adds_alone(each, rows):
    adapters = adapters_of(each)
    rows = [number % (len(adapters) + 1) for number in rows]
    hidden, weight, both = normals(1)((len(rows), 5)), normals(2)((5, 6)), stacked(adapters)
    numbers = torch.tensor(rows, dtype=torch.long)
    expected = torch.zeros(len(rows), 6, dtype=torch.float64)
    for row, number in enumerate(rows):
        if number:
            expected[row] = delta(hidden[row][None], adapters[number - 1])[0]
            whole = hidden[row] @ merged(weight, adapters[number - 1])
            torch.testing.assert_close(whole, hidden[row] @ weight + expected[row])
    for add in (gathered, in_segments):
        torch.testing.assert_close(add(hidden, *both, numbers), expected)


@given(st.data(), st.integers(1, 3))
def test_slots_of_running_requests_are_theirs_alone(data, size):
    held: dict[int, str] = {}  # what was loaded into each slot
    cache = AdapterCache(size, lambda adapter, slot: held.update({slot: str(adapter)}))
    running = list[tuple[str, int]]()
    for _ in range(data.draw(st.integers(0, 25))):
        if running and data.draw(st.booleans()):
            adapter, _ = running.pop(data.draw(st.integers(0, len(running) - 1)))
            cache.release(adapter)
        else:
            adapter = data.draw(st.sampled_from("abcde"))
            try:
                running.append((adapter, cache.take(adapter)))
            except NoSlot:
                assert len({name for name, _ in running} - {adapter}) == size
        assert all(held[slot] == adapter for adapter, slot in running)
        assert sum(cache.users.values()) == len(running)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=6),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(1, 3),
)
def test_a_chosen_request_fits_and_passes_no_late_one(waiting, running, most):
    place = next_request(
        [number for number, _ in waiting], running, [times for _, times in waiting], most, 2
    )
    late = [at for at, (_, times) in enumerate(waiting) if times > 2]
    if place is not None:
        assert len({*running, waiting[place][0]} - {0}) <= most
        assert not late or place == late[0]


@given(*[st.tuples(st.binary(max_size=3), st.text("1:x", max_size=3), st.integers(0, 12))] * 2)
def test_salts_are_equal_only_for_the_same_owner(one, other):
    assert (salted(*one) == salted(*other)) == (one == other)
    assert salted(one[0], None, 0) != salted(*one)


def test_an_unknown_model_is_refused_with_all_names():
    versions: dict[str, Any] = {"verse": 2}
    assert served("fable:verse", "fable", versions) == ("verse", 2)
    with pytest.raises(LookupError, match="these are: fable, fable:verse"):
        served("fable:vers", "fable", versions)
