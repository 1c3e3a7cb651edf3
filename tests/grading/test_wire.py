"""The wire: plain data comes back as it was, and whatever is no message gives a WireError."""

import json
import math
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autograder.attempt import wire
from autograder.attempt.peer import Gone, Peer
from autograder.attempt.plain import Strange
from autograder.attempt.wire import (
    DEEPEST,
    DTYPES,
    LENGTHS,
    MOST_BODY,
    MOST_HEADER,
    MOST_KEYS,
    WireError,
    lengths,
    packed,
    unpacked,
)

Home = Callable[[str, Any], Any]


def read(frame: bytes, home: Home | None = None) -> Any:
    """The value of a frame, read as a peer reads it."""
    header, body = lengths(frame[: LENGTHS.size])
    rest = frame[LENGTHS.size :]
    return unpacked(rest[:header], rest[header : header + body], home)


# ------------------------------------------------------------------------------------- plain data

WHOLE = st.integers(-(2**1024) + 1, 2**1024 - 1)
TEXT = st.text(st.characters())  # half a surrogate pair too, as a student's text may have it


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of every type, with up to four dimensions, which may be 0; transposes too."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    count = math.prod(shape)
    numbers = bytearray(draw(st.binary(min_size=8 * count, max_size=8 * count)))
    if dtype == torch.bool:
        numbers = bytearray(number % 2 for number in numbers)
    flat = torch.frombuffer(numbers, dtype=dtype)[:count] if count else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor.mT if len(shape) > 1 and draw(st.booleans()) else tensor


def lists_of(inner: st.SearchStrategy) -> st.SearchStrategy:
    items = st.lists(inner, max_size=4)
    names = TEXT | st.binary(max_size=4)
    keys = names | st.integers(-(2**60) + 1, 2**60 - 1) | st.none() | st.tuples(names, names)
    dicts = st.dictionaries(keys, inner, max_size=4)
    return st.one_of(items, items.map(tuple), items.map(deque), dicts, dicts.map(Counter))


NUMBERS = st.booleans() | WHOLE | st.floats()
PLAIN = st.recursive(
    st.none() | NUMBERS | TEXT | st.binary() | tensors() | st.builds(Strange, TEXT),
    lists_of,
    max_leaves=20,
)


def form(value: Any) -> Any:
    """Plain data as something that `==` compares, down to the last bit of a tensor."""
    if isinstance(value, Tensor):
        flat = value.contiguous().reshape(-1)
        bits = flat.view(torch.uint8).tolist() if flat.numel() else []
        return value.dtype, value.shape, bits
    if isinstance(value, float):
        return "a float", repr(value)  # every NaN is one; -0.0 is not 0.0
    if isinstance(value, dict):
        return type(value), [(form(key), form(item)) for key, item in value.items()]
    if isinstance(value, Strange):
        return value
    if isinstance(value, (list, tuple, deque)):
        return type(value), [form(item) for item in value]
    return type(value), value


@given(PLAIN)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    assert form(read(packed(value))) == form(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(-3), -3),
        (np.bool_(True), True),
        (torch.Size([2, 3]), torch.Size([2, 3])),
        (torch.nn.Parameter(torch.tensor([1.0])), torch.tensor([1.0])),
        (torch.arange(6).expand(2, 6)[:, ::2], torch.tensor([[0, 2, 4]] * 2)),
        (torch.arange(6.0).view(1, 6)[..., 3], torch.tensor([3.0])),  # one number, a stride of 6
    ],
    ids=str,
)
def test_what_is_like_plain_data_comes_back_as_such(value: Any, expected: Any) -> None:
    assert form(read(packed(value))) == form(expected)


def test_what_comes_back_is_memory_of_its_own() -> None:
    frame = packed(torch.zeros(3))
    read(frame)[0] = 1
    assert read(frame).tolist() == [0, 0, 0]


class Thing:
    """No plain data."""


def test_what_is_no_plain_data_goes_by_those_who_know_it() -> None:
    def away(value: Any) -> dict[str, Any]:
        return {"thing": [1, torch.ones(1)]}

    frame = packed([Thing()], away)
    assert form(read(frame, lambda kind, content: (kind, content))) == form(
        [("thing", [1, torch.ones(1)])]
    )
    with pytest.raises(WireError, match="nothing is known of 'thing'"):
        read(frame)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


IN_ITSELF: list[Any] = []
IN_ITSELF.append(IN_ITSELF)
CANT_BE_SENT: dict[str, tuple[Any, str | None]] = {
    "an object": (Thing(), "sent"),
    "a set": ({1}, "sent"),
    "an array of bytes": (bytearray(b"x"), "sent"),
    "a complex number": (1j, "sent"),
    "a tensor of complex numbers": (torch.zeros(2, dtype=torch.complex64), "sent"),
    "a sparse tensor": (torch.eye(2).to_sparse(), "sent"),
    "lists that are too deep": (nested(DEEPEST + 1), "sent"),
    "too much text": ("x" * MOST_HEADER, "sent"),
    "too many numbers": (torch.zeros(MOST_BODY + 1, dtype=torch.uint8), "sent"),
    "5,000 digits": (10**5000, None),
    "more than is read": (2**1024, None),
    "a long double": (np.longdouble(1), None),
    "a tensor without numbers": (torch.zeros(2, device="meta"), None),
    "a value in itself": (IN_ITSELF, "over 24 deep"),
}


@pytest.mark.parametrize(("value", "why"), CANT_BE_SENT.values(), ids=CANT_BE_SENT)
def test_what_cant_be_sent_is_refused(value: Any, why: str | None) -> None:
    with pytest.raises(WireError, match=why):
        packed(value)


# ------------------------------------------------------------------------------------------- junk


def require_refused_or_read(header: bytes, body: bytes, home: Home | None = None) -> None:
    """Nothing but a WireError may come of it."""
    with suppress(WireError):
        unpacked(header, body, home)


KINDS = st.sampled_from(
    [
        *("tensor", "strange", "dict", "counter", "tuple", "deque"),
        *("mine", "yours", "record", "set", "pickle"),
    ]
)
SHAPES = st.lists(st.integers(-2, 4) | st.sampled_from([2**26, 2**40, 2**63, True, 1.0]))
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.builds(lambda *t: {"tensor": t}, st.sampled_from([*DTYPES, "complex64", 1]), SHAPES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KINDS | st.text(max_size=3), inner, min_size=1, max_size=2)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """A peer that has shared one object."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(ours)
        peer.share(object())
        yield peer


@given(header=st.binary(max_size=64), body=st.binary(max_size=64))
def test_random_bytes_are_refused(peer: Peer, header: bytes, body: bytes) -> None:
    require_refused_or_read(header, body, peer.home)


@given(junk=JUNK, body=st.binary(max_size=64))
def test_junk_in_a_header_is_refused(peer: Peer, junk: Any, body: bytes) -> None:
    header = json.dumps(junk).encode()
    require_refused_or_read(header, body)
    require_refused_or_read(header, body, peer.home)


@given(value=PLAIN, data=st.data())
def test_a_frame_with_other_bytes_is_refused_or_says_something_else(peer, value, data):
    frame = bytearray(packed(value))
    for place in data.draw(st.lists(st.integers(0, len(frame) - 1), min_size=1, max_size=4)):
        frame[place] = data.draw(st.integers(0, 255))
    with suppress(WireError):
        read(bytes(frame), peer.home)


@given(value=PLAIN, data=st.data())
def test_a_frame_that_was_cut_is_refused(value: Any, data: st.DataObject) -> None:
    """Its lengths are those of what is left; a number may still be one without its last digits."""
    header, body = lengths(packed(value)[: LENGTHS.size])
    content = packed(value)[LENGTHS.size :]
    if body:
        with pytest.raises(WireError):
            unpacked(content[:header], content[header:-1])
    with pytest.raises(WireError):
        unpacked(content[:header], content[header:] + b"\0")
    with suppress(WireError):
        unpacked(content[: data.draw(st.integers(0, header - 1))], b"")


ITEMS = 20_000  # a tenth, because to read them takes time
REFUSED: dict[str, tuple[Any, bytes]] = {
    "a shape below 0": ({"tensor": ["uint8", [-1]]}, b"x"),
    "a shape below 0 twice": ({"tensor": ["uint8", [-1, -1]]}, b"x"),
    "a shape of no whole number": ({"tensor": ["uint8", [1.0]]}, b"x"),
    "a shape of True": ({"tensor": ["uint8", [True]]}, b"x"),
    "a shape that is a number": ({"tensor": ["uint8", 1]}, b"x"),
    "a huge shape": ({"tensor": ["uint8", [2**40]]}, b""),
    "a huge shape of small sizes": ({"tensor": ["uint8", [8192] * 8]}, b""),
    "a huge shape of no numbers": ({"tensor": ["float64", [MOST_BODY, MOST_BODY, 0]]}, b""),
    "a size beyond 64 bits": ({"size": [2**70]}, b""),
    "a shape of many dimensions": ({"tensor": ["uint8", [1] * 25]}, b"x"),
    "fewer numbers than its shape": ({"tensor": ["int64", [2]]}, b"12345678"),
    "more numbers than its shape": ({"tensor": ["int64", [1]]}, b"123456789"),
    "two tensors of the same numbers": ([{"tensor": ["uint8", [1]]}] * 2, b"x"),
    "a truth value of 2": ({"tensor": ["bool", [1]]}, b"\2"),
    "another type of numbers": ({"tensor": ["complex64", [1]]}, b"12345678"),
    "a type that is a list": ({"tensor": [["uint8"], [1]]}, b"x"),
    "a tensor of one part": ({"tensor": ["uint8"]}, b"x"),
    "an unknown kind": ({"pickle": "cos\nsystem"}, b""),
    "two kinds at once": ({"tuple": [], "deque": []}, b""),
    "no kind": ({}, b""),
    "a key that has no hash": ({"dict": [[[1], 2]]}, b""),
    "too many keys": ({"dict": [[k, 0] for k in range(MOST_KEYS + 1)]}, b""),
    "keys of one hash": ({"dict": [[k * (2**61 - 1), 0] for k in range(9)]}, b""),
    "keys that are tuples of numbers": ({"dict": [[{"tuple": [1, 2]}, 0]]}, b""),
    "too many keys in all": ([{"dict": [[k, 0] for k in range(9)]}] * (MOST_KEYS // 8), b""),
    "too many items": ([[]] * (ITEMS + 1), b""),
    "too many tensors": ([{"tensor": ["bool", [0]]}] * (ITEMS + 1), b""),
    "no pairs": ({"dict": [1, 2]}, b""),
    "a number of 1,000 digits": (10**1000, b""),
    "lists that are too deep": (nested(DEEPEST + 1), b""),
    "nothing": (b"", b""),
    "no JSON": (b"nonsense", b""),
    "half a list": (b"[", b""),
    "no text": (b"\xff\xfe", b""),
    "deep lists": (b"[" * 10**6, b""),
    "digits": (b"1" * 10**6, b""),
    "two values": (b"[]" * 2, b""),
}


@pytest.mark.parametrize(("header", "body"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_message_is_refused(header: Any, body: bytes, monkeypatch) -> None:
    monkeypatch.setattr(wire, "MOST_ITEMS", ITEMS)
    with pytest.raises(WireError):
        unpacked(header if isinstance(header, bytes) else json.dumps(header).encode(), body)


@pytest.mark.parametrize("given", [(MOST_HEADER + 1, 0), (0, MOST_BODY + 1), (2**32 - 1,) * 2])
def test_a_length_beyond_all_measure_is_refused_before_anything_is_read(given):
    with pytest.raises(WireError, match="longer than any may be"):
        lengths(LENGTHS.pack(*given))


# ---------------------------------------------------------------------------------- as it is read


def test_a_message_that_ends_in_the_middle_has_nobody_behind_it() -> None:
    with pytest.raises(Gone):
        receive(packed(["answer", 1])[:-1])


NO_MESSAGES = [[], "answer", ["answer"], [1, 2], {"answer": 1}]
QUESTIONS = [None, 1, [], [0], [0, "get"], [7, "get", "x"], ["0", "get", "x"], [[0], "get", "x"]]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((content, "a kind and a content") for content in NO_MESSAGES),
        *((["ask", question], "no question") for question in QUESTIONS),
    ],
    ids=str,
)
def test_a_message_has_a_kind_and_a_question_is_for_something_shared(content, why) -> None:
    with pytest.raises(WireError, match=why):
        receive(packed(content))


def receive(frame: bytes) -> Any:
    """What a peer that has shared one object makes of a frame."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = Peer(ours)
        peer.share(object())
        theirs.sendall(frame)
        theirs.shutdown(socket.SHUT_WR)
        return peer.receive()
