"""Calling objects that live on the other side of a wire.

Each side shares some of its objects by number. To the other they are `Far` ones: to read or call
something of theirs sends a question, and while a side waits for its answer it answers those of the
other. So a model over there may call a cache over here.
"""

import builtins
import dataclasses
import select
import socket
from collections.abc import Callable
from typing import Any

from autograder.attempt.lent import opaque, sealed
from autograder.attempt.plain import kind_of, plain
from autograder.attempt.wire import LENGTHS, WireError, lengths, packed, unpacked

NESTED = 16  # questions that wait for one another
Message = tuple[str, Any]  # its kind, and what it says


class Gone(ConnectionError):
    """The other end has gone."""


class Peer:
    """One end of a wire.

    shared: own objects that the other side may ask, by number. theirs: what stands here for objects
    of the other side, by their numbers. awaits: what it is waiting to do,
    send or receive. moves: the parts of messages that it has sent or received.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.shared: list[Any] = []
        self.theirs: dict[int, Far] = {}
        self.waiting = 0  # own questions without an answer
        self.awaits: Callable[[Any], Any] | None = None
        self.moves = 0

    # ------------------------------------------------------------------------ what differs by side

    def allows(self, thing: Any, verb: str, name: str) -> bool:
        """Whether the other side may do this with an object of ours."""
        return True

    def made(self, name: str, fields: dict[str, Any]) -> Any:
        """What replaces a record of theirs here."""
        raise WireError(f"nothing is known of the class {name!r}")

    def foreign(self, value: Any) -> dict[str, Any]:
        """How an object that is no plain data is sent."""
        return {"strange": kind_of(value)}

    # ------------------------------------------------------------------------------------ messages

    def send(self, kind: str, content: Any) -> None:
        left = memoryview(packed([kind, content], self.away))
        while left:
            left = left[self.awaited(self.connection.send, left) :]

    def receive(self) -> Message:
        """The next message that is no question; questions are answered on the way."""
        while True:
            header, body = lengths(self.exactly(LENGTHS.size))
            found = unpacked(self.exactly(header), self.exactly(body), self.home)
            if not isinstance(found, list) or len(found) != 2 or not isinstance(found[0], str):
                raise WireError("A message has a kind and a content.")
            kind, content = found
            if kind != "ask":
                return kind, content
            self.answer(content)

    def exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            part = self.awaited(self.connection.recv, min(size - len(found), 1 << 20))
            if not part:
                raise Gone
            found += part
        return bytes(found)

    def awaited(self, move: Callable[[Any], Any], given: Any) -> Any:
        """Send or receive a part of a message, however long the other side takes."""
        self.awaits = move
        try:
            while True:
                try:
                    return move(given)
                except TimeoutError:  # so that it can be interrupted
                    pass
        except OSError:
            raise Gone from None
        finally:
            self.awaits, self.moves = None, self.moves + 1

    def is_spoken_to(self) -> bool:
        """Return whether it is about to receive something, or the end of the connection."""
        reads = self.awaits == self.connection.recv
        return reads and bool(select.select([self.connection], [], [], 0)[0])

    # ----------------------------------------------------------------------------------- questions

    def share(self, thing: Any) -> int:
        """The number by which the other side may ask for an object from now on."""
        for number, known in enumerate(self.shared):
            if known is thing:
                return number
        self.shared.append(thing)
        return len(self.shared) - 1

    def ask(self, number: int, verb: str, name: str, *given: Any) -> Any:
        """Do something with an object of theirs: "get" or "call"; `name` may be ""."""
        self.waiting += 1
        try:
            if self.waiting > NESTED:
                raise RecursionError("Calls that wait for one another, too deep.")
            self.send("ask", [number, verb, name, *given])
            kind, content = self.receive()
        finally:
            self.waiting -= 1
        if kind == "answer":
            return content
        if kind == "raised":
            raise self.error(*content)
        raise WireError(f"An answer is expected, not {kind!r}.")

    def answer(self, question: Any) -> None:
        """Do what is asked; an error goes back as the answer."""
        try:
            number, verb, name, *given = question
            thing = self.shared[number]
            allowed = isinstance(number, int) and number >= 0 and isinstance(name, str)
        except (ValueError, TypeError, IndexError) as error:
            raise WireError(f"This is no question: {error}") from None
        if not allowed or not self.allows(thing, verb, name):
            self.send("raised", ["AttributeError", [f"{name!r} can't be asked for."], None])
            return
        try:
            found = self.done(thing, verb, name, given)
        except (Gone, WireError):
            raise
        except Exception as error:
            self.send("raised", self.told(error))
            return
        self.send(*found)

    def done(self, thing: Any, verb: str, name: str, given: list[Any]) -> Message:
        match verb:
            case "call":
                args, kwargs = given
                return "answer", (getattr(thing, name) if name else thing)(*args, **kwargs)
            case "get":
                value = getattr(thing, name)
                return ("method", None) if callable(value) else ("answer", value)
        raise WireError(f"Nothing is known of {verb!r}.")

    def method_or_value(self, number: int, name: str) -> Any:
        """An attribute of an object of theirs; a method can be called like one."""
        self.send("ask", [number, "get", name])
        kind, content = self.receive()
        if kind == "method":
            return lambda *args, **kwargs: self.ask(number, "call", name, list(args), kwargs)
        if kind == "raised":
            raise self.error(*content)
        return content

    # -------------------------------------------------------------------------------------- errors

    def told(self, error: Exception) -> list[Any]:
        """An error as it is sent: its class, what it was made with, and its number over there."""
        args = [arg if isinstance(arg, str) else str(plain(arg)) for arg in error.args]
        return [type(error).__name__, args, None]

    def error(self, name: str, args: list[Any], number: int | None) -> BaseException:
        """An error that came as an answer: one of Python's, or a RuntimeError."""
        kind = getattr(builtins, str(name), None)
        words = [str(arg) for arg in args][:4]
        if isinstance(kind, type) and issubclass(kind, Exception) and not is_picky(kind):
            return kind(*words)
        return RuntimeError(f"{name}: {' '.join(words)}")

    # -------------------------------------------------------------------- objects that are no data

    def away(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Far):
            return {"yours": self.number_of(value)}
        fields = fields_of(value)
        if fields is not None:
            return {"record": [type(value).__name__, fields]}
        return self.foreign(value)

    def home(self, kind: str, content: Any) -> Any:
        match kind, content:
            case "mine", int():
                return self.far(content)
            case "yours", int() if 0 <= content < len(self.shared):
                return self.shared[content]
            case "record", [str() as name, dict() as fields]:
                if all(isinstance(field, str) and field.isidentifier() for field in fields):
                    return self.made(name, fields)
        raise WireError(f"nothing is known of {kind!r}")

    def far(self, number: int) -> Any:
        """What stands here for an object of the other side: the same each time."""
        if number not in self.theirs:
            self.theirs[number] = new_far(self, number)
        return self.theirs[number]

    def number_of(self, far: "Far") -> int:
        for number, known in self.theirs.items():
            if known is far:
                return number
        raise WireError("This object of the other side is unknown.")


def is_picky(kind: type[Exception]) -> bool:
    """Whether an exception can't be made of words alone."""
    return issubclass(kind, (UnicodeError, ExceptionGroup, SystemError))


def fields_of(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass or a named tuple; None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    return None


class Far:
    """An object of the other side.

    It shows neither the peer that asks for it nor its number: with these, an attempt could speak in
    the place of its driver.
    """

    __slots__ = ()


def new_far(peer: Peer, number: int) -> Far:
    methods: dict[str, Any] = {}  # asked for once

    def get(_: Far, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in methods:
            return methods[name]
        found = peer.method_or_value(number, name)
        if callable(found) and not isinstance(found, Far):
            methods[name] = found = sealed(found)
        return found

    def call(_: Far, *args: Any, **kwargs: Any) -> Any:
        return peer.ask(number, "call", "", list(args), kwargs)

    far: Far = opaque("Far", (Far,), __getattr__=get, __call__=call)
    return far
