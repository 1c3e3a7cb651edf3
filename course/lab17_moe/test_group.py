"""Ranks in one thread: what their calls return and count, and that they never wait forever."""

import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solutions.ranks.group import Group, Stuck, in_turns, ring_bytes

SIZES = st.integers(1, 5)


def tensor_of(group: Group, length: int = 3) -> torch.Tensor:
    return torch.arange(float(length)) + 10 * group.rank


@given(SIZES, st.integers(0, 4))
def test_every_rank_gets_the_same_sum_maximum_and_list(size, length):
    def work(group):
        x = tensor_of(group, length)
        return group.all_reduce(x), group.all_reduce(x, "max"), group.all_gather(x)

    handed_in = [torch.arange(float(length)) + 10 * rank for rank in range(size)]
    for total, largest, everyone in in_turns(size, work):
        assert total.equal(torch.stack(handed_in).sum(0))
        assert largest.equal(handed_in[-1])
        assert all(a.equal(b) for a, b in zip(everyone, handed_in, strict=True))


@given(st.data(), SIZES)
def test_parts_of_any_shape_go_to_their_ranks(data, size):
    shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)
    table = data.draw(st.lists(st.lists(shapes, min_size=size, max_size=size), min_size=size))

    def work(group):
        parts = [
            torch.full(shape, 10 * group.rank + to) for to, shape in enumerate(table[group.rank])
        ]
        return group.all_to_all(parts)

    for rank, received in enumerate(in_turns(size, work)):
        for source, part in enumerate(received):
            assert part.equal(torch.full(table[source][rank], 10 * source + rank))


@given(SIZES)
def test_a_reduce_scatter_and_an_all_gather_make_an_all_reduce(size):
    def work(group):
        x = tensor_of(group, 2 * size)
        parts = group.all_gather(group.reduce_scatter(x.split(2)))
        return torch.cat(parts), group.all_reduce(x)

    assert all(ours.equal(theirs) for ours, theirs in in_turns(size, work))


def test_a_send_waits_for_its_recv_and_the_order_is_always_the_same():
    def work(group, log):
        if group.rank == 0:
            group.send(torch.tensor([1.0]), 1)
            log.append("sent")
            return None
        log.append("before the recv")
        return group.recv(torch.empty(1), 0)

    log: list[str] = []
    assert in_turns(2, work, log)[1].tolist() == [1]
    assert log == ["before the recv", "sent"]


def test_calls_and_payload_bytes_are_counted_by_kind():
    def work(group):
        x = torch.zeros(6)  # 24 bytes
        group.all_reduce(x)
        group.all_reduce(x, "max")
        group.all_gather(x)
        group.reduce_scatter(list(x.split(2)))
        group.all_to_all([x[:to] for to in range(group.size)])
        if group.rank < 2:
            group.send(x, 1) if group.rank == 0 else group.recv(x, 0)
        return group.calls, group.sent

    both = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    for rank, (calls, sent) in enumerate(in_turns(3, work)):
        own = [{"send": 1}, {"recv": 1}, {}][rank]
        assert calls == Counter({"all_reduce": 2, **both, **own})
        parts = {"all_to_all": 12 - 4 * rank}  # of 0, 4 and 8 bytes, without its own
        received = {"send": 24} if rank == 0 else {}
        expected = {"all_reduce": 48, "all_gather": 24, "reduce_scatter": 24, **parts, **received}
        assert sent == Counter(expected)


def test_one_rank_sends_nothing_and_gets_copies():
    def work(group):
        x = torch.ones(2)
        given = [group.all_reduce(x), *group.all_gather(x), group.reduce_scatter([x])]
        given += group.all_to_all([x])
        assert all(y.equal(x) and y.data_ptr() != x.data_ptr() for y in given)
        return group.sent.total()

    assert in_turns(1, work) == [0]


def test_ring_bytes():
    assert ring_bytes("all_reduce", 100, 4) == 150
    assert ring_bytes("reduce_scatter", 100, 4) == 75
    assert ring_bytes("all_gather", 25, 4) == 75
    assert ring_bytes("send", 100, 4) == ring_bytes("all_to_all", 100, 4) == 100
    assert ring_bytes("all_reduce", 100, 1) == 0


def test_ranks_share_no_memory_and_no_gradients():
    def work(group):
        x = torch.full((2,), float(group.rank), requires_grad=True)
        total, everyone = group.all_reduce(x), group.all_gather(x)
        swapped = group.all_to_all([x, x])
        for result in (total, *everyone, *swapped):
            assert not result.requires_grad
            result += 100
        return x.tolist(), group.all_reduce(x).tolist()

    assert in_turns(2, work) == [([0, 0], [1, 1]), ([1, 1], [1, 1])]


def test_each_rank_has_its_own_modes():
    def modes() -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def work(group):
        context = [torch.no_grad, torch.inference_mode, torch.enable_grad][group.rank]
        found = [modes()]
        with context():
            group.all_reduce(torch.ones(1))
            found.append(modes())
            group.all_gather(torch.ones(1))
        group.all_reduce(torch.ones(1))
        return [*found, modes()]

    outside, usual = modes(), (True, False)
    found = in_turns(3, work)
    assert found == [[usual, m, usual] for m in [(False, False), (False, True), usual]]
    assert modes() == outside
    with torch.inference_mode():
        assert in_turns(2, lambda group: (group.all_reduce(torch.ones(1)), modes())[1]) == (
            [(False, True)] * 2
        )
        assert modes() == (False, True)


# --------------------------------------------------------------------------- calls that don't match

ONES = torch.ones(2)
NO_MATCH: list[tuple[Callable[[Group], Any], str]] = [
    (
        lambda group: group.send(ONES, 1 - group.rank),
        "to rank 1, and rank 1 waits in send of float32 [2] to rank 0: each send needs a recv",
    ),
    (
        lambda group: group.recv(torch.ones(3), 0) if group.rank else group.send(ONES, 1),
        "and rank 1 waits in recv of float32 [3] from rank 0: each send needs a recv of the same",
    ),
    (
        lambda group: group.all_gather(ONES) if group.rank else group.all_reduce(ONES),
        "rank 1 waits in all_gather of float32 [2]: all ranks must make the same collective calls",
    ),
    (
        lambda group: group.all_reduce(torch.ones(2 + group.rank)),
        "and rank 1 waits in all_reduce of float32 [3] (sum): in a collective call, shape, type",
    ),
    (
        lambda group: group.all_gather(ONES.to([torch.float32, torch.float64][group.rank])),
        "and rank 1 waits in all_gather of float64 [2]: in a collective call, shape, type",
    ),
    (
        lambda group: group.all_reduce(ONES, ["sum", "max"][group.rank]),
        "and rank 1 waits in all_reduce of float32 [2] (max): in a collective call",
    ),
    (
        lambda group: group.all_reduce(ONES) if group.rank else None,
        "Rank 0 has returned, and rank 1 waits in all_reduce of float32 [2] (sum): each call needs",
    ),
    (
        lambda group: group.all_reduce(ONES) if group.rank else group.send(ONES, 1),
        "Rank 0 waits in send of float32 [2] to rank 1, and rank 1 waits in all_reduce of float32",
    ),
]


@pytest.mark.parametrize(("work", "sentence"), NO_MATCH)
def test_ranks_that_cannot_go_on_say_what_each_waits_for(work, sentence):
    with pytest.raises(Stuck) as raised:
        in_turns(2, work)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_traceback_shows_where_a_rank_waits():
    def work(group):
        group.send(ONES, 1 - group.rank)  # here

    with pytest.raises(Stuck) as raised:
        in_turns(2, work)
    assert "# here" in "".join(traceback.format_tb(raised.value.__traceback__))


def test_a_rank_that_catches_everything_changes_nothing():
    def work(group):
        try:
            group.recv(ONES, 1 - group.rank)
        except RuntimeError:
            return

    with pytest.raises(Stuck):
        in_turns(2, work)


def test_an_exception_of_one_rank_ends_all():
    ended = []

    def work(group):
        try:
            if group.rank == 1:
                raise KeyError("rank 1")
            group.all_reduce(ONES)
            raise AssertionError
        finally:
            ended.append(group.rank)
            if group.rank != 1:
                group.all_gather(ONES)  # no call goes on after the end

    with pytest.raises(KeyError, match="rank 1"):
        in_turns(3, work)
    assert ended == [1, 0]  # rank 2 had not begun


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (lambda group: group.all_reduce(ONES, "mean"), "not 'mean'"),
        (lambda group: group.reduce_scatter([ONES]), "one part per rank, 2; it got 1"),
        (lambda group: group.reduce_scatter([ONES, ONES[:1]]), "differ: float32 \\[2\\], float32"),
        (lambda group: group.all_to_all([ONES] * 3), "one part per rank, 2; it got 3"),
        (lambda group: group.all_to_all([ONES, ONES.int()]), "differ: float32 \\[2\\], int32"),
        (lambda group: group.send(ONES, group.rank), "no other rank 0"),
        (lambda group: group.recv(ONES, -1), "no other rank -1"),
    ],
)
def test_bad_calls_are_refused_in_a_sentence(work, sentence):
    with pytest.raises(ValueError, match=sentence):
        in_turns(2, work)


def test_other_bad_input():
    with pytest.raises(TypeError, match="Ranks exchange tensors; this is a float"):
        in_turns(2, lambda group: group.all_reduce(1.0))
    with pytest.raises(ValueError, match="at least one rank; size is 0"):
        in_turns(0, print)
