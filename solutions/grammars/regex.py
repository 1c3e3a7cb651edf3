"""Lab 14, given: regular expressions over bytes, as objects, and a parser for patterns.

A model's tokens are pieces of bytes, not of characters: half an é may be a token. So every pattern
here is about the UTF-8 bytes of a text. Build expressions with the small functions (`any_of`,
`then`, `either`, `star`), because they simplify: two expressions that differ only in an obvious way
become one object. Sources: Brzozowski, "Derivatives of regular expressions", JACM 1964; Owens et
al., "Regular-expression derivatives re-examined", JFP 2009 (which simplifications are enough).
"""

import math
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from re import _parser  # type: ignore[attr-defined]  # Python's own parser of patterns
from typing import Any, ClassVar, NamedTuple, Protocol
from weakref import WeakValueDictionary

DEEPEST = 150  # calls, one within the other, that read a byte
MOST_GROUPS = 50  # of a pattern, one within the other
LARGEST = 2000  # characters of a pattern whose repetitions are written out

# ----------------------------------------------------------------------------------- expressions


class Work(threading.local):
    """How many steps this thread may still take. One makes an expression, or looks at one."""

    left = math.inf


WORK = Work()


@contextmanager
def at_most(steps: int, what: str) -> Iterator[None]:
    """Raise ValueError as soon as more steps than these are taken. what: takes them."""
    outside, allowed = WORK.left, min(steps, WORK.left)
    try:
        WORK.left = allowed
        yield
    except TooMuchWork:
        raise ValueError(
            f"{what} takes more than {steps:,} steps. Repeat fewer times, or let a text fit in one "
            "way only."
        ) from None
    finally:
        WORK.left = outside - allowed + WORK.left if outside < math.inf else math.inf


def take_step() -> None:
    WORK.left -= 1
    if WORK.left < 0:
        raise TooMuchWork


class TooMuchWork(Exception):
    """More steps are taken than were allowed."""


class Interned(type):
    """Makes expressions of the same kind with the same parts one object.

    So comparing two expressions, or looking one up, takes no time, however long they are.
    """

    kept: ClassVar[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()
    lock = threading.Lock()

    def __call__(cls, *parts: Any) -> Any:
        take_step()
        with Interned.lock:
            found = Interned.kept.get((cls, *parts))
            if found is None:
                found = Interned.kept[cls, *parts] = super().__call__(*parts)
        return found


@dataclass(frozen=True, eq=False)
class Regex(metaclass=Interned):
    """The base of all expressions. An expression stands for a set of texts, its language.

    has_empty: whether the empty text is one of them. depth: how many calls, one within the other,
    read the first byte of a text. inner: the expressions that this one is made of.
    """

    hashed: int = field(init=False, repr=False)

    @cached_property
    def has_empty(self) -> bool:
        return True

    @cached_property
    def depth(self) -> int:
        return 1

    @property
    def inner(self) -> "tuple[Regex, ...]":
        return ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashed", hash(tuple(vars(self).values())))
        if self.depth > DEEPEST:
            raise ValueError(
                f"The pattern is nested too deeply: reading a character takes more than {DEEPEST} "
                "steps, one within the other. Use fewer groups, or fewer optional parts in a row."
            )

    def __hash__(self) -> int:
        """Return the same number in each run, so that the options of an `Either` keep an order."""
        return self.hashed

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, one.name) for one in fields(self) if one.init)


@dataclass(frozen=True, eq=False)
class Empty(Regex):
    """Only the empty text."""


@dataclass(frozen=True, eq=False)
class AnyOf(Regex):
    """One byte, any of these. If there are none, no text at all."""

    allowed: frozenset[int]
    has_empty = False


@dataclass(frozen=True, eq=False)
class Then(Regex):
    """A text of `first`, followed by a text of `second`."""

    first: Regex
    second: Regex

    @cached_property
    def has_empty(self) -> bool:
        return self.first.has_empty and self.second.has_empty

    @cached_property
    def depth(self) -> int:
        second = self.second.depth if self.first.has_empty else 0
        return 1 + max(self.first.depth, second)

    @property
    def inner(self) -> tuple[Regex, ...]:
        return self.first, self.second


class Unmade(Protocol):
    """Options that are made when they are asked for, because they would be many."""

    @property
    def has_empty(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    @property
    def inner(self) -> tuple[Regex, ...]: ...
    def made(self) -> frozenset[Regex]: ...


@dataclass(frozen=True, eq=False)
class Either(Regex):
    """A text of any of the options. They are a set: equal options are one."""

    given: frozenset[Regex] | Unmade
    __match_args__ = ("options",)

    @cached_property
    def options(self) -> frozenset[Regex]:
        return self.given if isinstance(self.given, frozenset) else self.given.made()

    @cached_property
    def has_empty(self) -> bool:
        if isinstance(self.given, frozenset):
            return any(option.has_empty for option in self.given)
        return self.given.has_empty

    @cached_property
    def depth(self) -> int:
        if isinstance(self.given, frozenset):
            return 1 + max(option.depth for option in self.given)
        return 1 + self.given.depth

    @property
    def inner(self) -> tuple[Regex, ...]:
        return tuple(self.given) if isinstance(self.given, frozenset) else self.given.inner


@dataclass(frozen=True, eq=False)
class Star(Regex):
    """No text of `body`, one, or several in a row."""

    body: Regex

    @cached_property
    def depth(self) -> int:
        return 2 + self.body.depth

    @property
    def inner(self) -> tuple[Regex, ...]:
        return (self.body,)


EMPTY = Empty()
NOTHING = AnyOf(frozenset())


def any_of(allowed: Iterable[int]) -> Regex:
    """One byte, any of these numbers from 0 to 255."""
    return AnyOf(frozenset(allowed))


def then(*parts: Regex) -> Regex:
    """One after the other. Empty parts are left out; with a part that is nothing, all is nothing.

    The result is nested to the right, a Then(b Then(c ...)), so that equal texts look equal.
    """
    if NOTHING in parts:
        return NOTHING
    whole: Regex = EMPTY
    for part in reversed(parts):
        firsts = list[Regex]()
        while whole is not EMPTY and isinstance(part, Then):
            firsts.append(part.first)
            part = part.second
        for one in [part, *reversed(firsts)]:
            whole = one if whole is EMPTY else whole if one is EMPTY else Then(one, whole)
    return whole


def either(*options: Regex) -> Regex:
    """Any of the options. Equal options become one, and so do all options of one byte."""
    flat: set[Regex] = set()
    for option in options:
        is_made = isinstance(option, Either) and isinstance(option.given, frozenset)
        flat |= option.options if is_made else {option}  # type: ignore[attr-defined]
    single = {option for option in flat if isinstance(option, AnyOf)}
    merged = any_of(byte for option in single for byte in option.allowed)
    flat = (flat - single) | ({merged} - {NOTHING})
    if len(flat) > 1:
        return Either(frozenset(flat))
    return flat.pop() if flat else NOTHING


def star(body: Regex) -> Regex:
    """The body any number of times, also not at all."""
    if body in (EMPTY, NOTHING):
        return EMPTY
    return body if isinstance(body, Star) else Star(body)


class Counted(NamedTuple):
    """The body, which isn't empty, `least` to `most` times. Its options are made one by one."""

    body: Regex
    least: int
    most: int

    @property
    def has_empty(self) -> bool:
        return not self.least

    @property
    def depth(self) -> int:
        return 1 + self.body.depth

    @property
    def inner(self) -> tuple[Regex, ...]:
        return (self.body,)

    def made(self) -> frozenset[Regex]:
        rest = repeat(self.body, max(self.least - 1, 0), self.most - 1)
        return frozenset([then(self.body, rest)] + ([] if self.least else [EMPTY]))


def repeat(body: Regex, least: int, most: int | None = None) -> Regex:
    """The body `least` to `most` times; None means without an upper limit."""
    if body.has_empty:
        body, least = without_empty(body), 0
    if most is None:
        return then(repeat(body, least, least), star(body))
    if body is NOTHING or most == 0:
        return NOTHING if least else EMPTY
    if most == 1:
        return body if least else either(EMPTY, body)
    return Either(Counted(body, least, most))


def without_empty(regex: Regex) -> Regex:
    """Return the expression for the same texts but the empty one."""
    match regex:
        case Then(first, second) if regex.has_empty:
            return either(then(without_empty(first), second), without_empty(second))
        case Either(options):
            return either(*map(without_empty, options))
        case Star(body):
            return then(without_empty(body), regex)
    return NOTHING if regex is EMPTY else regex


def literal(text: str) -> Regex:
    return then(*(any_of([byte]) for byte in text.encode()))


def one_of(texts: Iterable[str]) -> Regex:
    """Any of the texts. Common beginnings are shared, so that reading a byte takes no search."""
    after: list[dict[int, int]] = [{}]
    ends = set[int]()
    for text in texts:
        place = 0
        for byte in text.encode():
            if byte not in after[place]:
                after[place][byte] = len(after)
                after.append({})
            place = after[place][byte]
        ends.add(place)
    made = dict[int, Regex]()
    for place in reversed(range(len(after))):  # places come after those that lead to them
        going = [then(any_of([byte]), made.pop(end)) for byte, end in after[place].items()]
        made[place] = either(*going, EMPTY if place in ends else NOTHING)
    return made[0]


def nullable(regex: Regex) -> bool:
    """Return whether the empty text belongs to the language."""
    return regex.has_empty


def byte_classes(regex: Regex) -> list[list[int]]:
    """Return the bytes in groups: the expression treats all bytes of a group alike."""
    sets: set[frozenset[int]] = set()
    seen, todo = {regex}, [regex]
    while todo:
        part = todo.pop()
        if isinstance(part, AnyOf):
            sets.add(part.allowed)
        todo += set(part.inner) - seen
        seen.update(part.inner)
    groups: dict[tuple[bool, ...], list[int]] = {}
    for byte in range(256):
        groups.setdefault(tuple(byte in allowed for allowed in sets), []).append(byte)
    return list(groups.values())


# ------------------------------------------------------------------------ characters as bytes

Ranges = list[tuple[int, int]]  # of code points, both ends included

LAST = 0x10FFFF
# A range is cut where the UTF-8 form gets longer. UTF-16's surrogates are no characters.
PIECES = (0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST)


def between(low: bytes, high: bytes, lowest: bytes, highest: bytes) -> Regex:
    """All byte strings from `low` to `high`; each of their bytes is in a range of its own.

    lowest, highest: the ends of these ranges. From 000 to 999, they are the digits of numbers.
    """
    if (low, high) == (lowest, highest):
        return then(*(any_of(range(a, b + 1)) for a, b in zip(low, high, strict=True)))
    first, last = low[0], high[0]
    rest = lowest[1:], highest[1:]
    if first == last:
        return then(any_of([first]), between(low[1:], high[1:], *rest))
    return either(
        then(any_of([first]), between(low[1:], rest[1], *rest)),
        then(any_of(range(first + 1, last)), between(*rest, *rest)),
        then(any_of([last]), between(rest[0], high[1:], *rest)),
    )


def characters(ranges: Ranges) -> Regex:
    """One character with a code point in these ranges, in its UTF-8 form."""
    pieces = [
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in PIECES
        if low <= last and first <= high
    ]
    ends = [(chr(low).encode(), chr(high).encode()) for low, high in pieces]
    later = [(b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)) for low, _ in ends]
    return either(
        *(
            between(low, high, low[:1] + least, high[:1] + most)
            for (low, high), (least, most) in zip(ends, later, strict=True)
        )
    )


def complement(ranges: Ranges) -> Ranges:
    """All code points outside the ranges."""
    gaps, start = [], 0
    for low, high in sorted(ranges):
        gaps.append((start, low - 1))
        start = max(start, high + 1)
    return [(low, high) for low, high in [*gaps, (start, LAST)] if low <= high]


# ------------------------------------------------------------------------------------- patterns

DIGITS = [(0x30, 0x39)]
SPACES = [(0x09, 0x0D), (0x20, 0x20)]
WORD = [*DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
CATEGORIES = {  # as with re.ASCII
    "CATEGORY_DIGIT": DIGITS,
    "CATEGORY_NOT_DIGIT": complement(DIGITS),
    "CATEGORY_WORD": WORD,
    "CATEGORY_NOT_WORD": complement(WORD),
}
REFUSED = {
    "AT": "an anchor or a word boundary",
    "GROUPREF": "a reference to a group",
    "GROUPREF_EXISTS": "a condition on a group",
    "ASSERT": "a lookahead or lookbehind",
    "ASSERT_NOT": "a lookahead or lookbehind",
    "FAILURE": "a lookahead that always fails",
    "MIN_REPEAT": "a lazy repetition (*?)",
    "POSSESSIVE_REPEAT": "a possessive repetition (*+)",
    "ATOMIC_GROUP": "an atomic group",
}


class Dialect(NamedTuple):
    """How patterns are read and their texts are written.

    line_ends, spaces: what `.` and `\\S` leave out. outside: what may come before a pattern that
    doesn't begin with ^, and after one that doesn't end with $. escapes: characters that a text
    can't have as they are, and how it writes them, if at all.
    """

    line_ends: Ranges
    spaces: Ranges
    outside: Regex
    escapes: dict[int, str | None]


PYTHON = Dialect([(0x0A, 0x0A)], SPACES, EMPTY, {})  # a whole text, as re.fullmatch takes it


def parse(
    pattern: str, dialect: Dialect = PYTHON, least: int = 0, most: int | None = None
) -> Regex:
    """Return the expression whose texts are those that `re.fullmatch` accepts, as UTF-8 bytes.

    They have `least` to `most` characters; None means without an upper limit.

    Literals, classes, `. * + ? {m,n} | ( )` and escapes work; `\\d`, `\\w` and `\\s` are ASCII, as
    with re.ASCII. A `^` at the beginning and a `$` at the end change nothing. Raises ValueError for
    a pattern that is malformed, too long, or no regular expression in the strict sense.
    """
    try:
        opened = accumulate({"(": 1, ")": -1}.get(character, 0) for character in pattern)
        if max(opened, default=0) > MOST_GROUPS:
            raise NotImplementedError(f"more than {MOST_GROUPS} groups, one within the other")
        with warnings.catch_warnings():  # Python warns of [a&&b], which may get a meaning one day
            warnings.simplefilter("ignore", FutureWarning)
            parsed = _parser.parse(pattern)
        if parsed.state.flags != _parser.parse("").state.flags or pattern.startswith("(?u"):
            raise NotImplementedError("a flag such as (?i)")
        if "[[:" in pattern:
            raise NotImplementedError("a class such as [[:alpha:]]")
        if (length := sum(map(characters_in, parsed))) > LARGEST:
            raise ValueError(
                f"The pattern {pattern!r} has {length:,} characters when its repetitions are "
                f"written out. At most {LARGEST:,} are possible: repeat fewer times."
            )
        return limited(parsed, dialect, least, most)
    except _parser.error as error:
        if error.msg.startswith("bad escape"):
            raise ValueError(refusal(error.msg.removeprefix("bad escape "), pattern)) from None
        if error.msg.startswith("unknown extension"):
            raise ValueError(refusal("a group such as (?<name>...)", pattern)) from None
        raise ValueError(f"The pattern {pattern!r} is malformed: {error}.") from error
    except NotImplementedError as found:
        raise ValueError(refusal(str(found), pattern)) from found


def refusal(what: str, pattern: str) -> str:
    return (
        f"The pattern {pattern!r} has {what}, which this parser doesn't know. Use literals, "
        "classes, groups, | and repetitions."
    )


def characters_in(item: tuple[Any, Any]) -> int:
    """Return the characters of one item of Python's parser, its repetitions written out."""
    match str(item[0]), item[1]:
        case "BRANCH", (_, branches):
            return sum(characters_in(item) for branch in branches for item in branch)
        case "SUBPATTERN", (*_, inner):
            return sum(map(characters_in, inner))
        case "MAX_REPEAT", (least, most, body):
            times = least + 1 if most == _parser.MAXREPEAT else int(most)
            return times * sum(map(characters_in, body))
    return 1


def limited(parsed: Any, dialect: Dialect, least: int, most: int | None) -> Regex:
    """Translate a whole pattern, for texts of `least` to `most` characters."""
    items, (shortest, longest) = list(parsed), parsed.getwidth()
    is_open = dialect.outside is not EMPTY and (
        str(items[:1]) + str(items[-1:]) != "[(AT, AT_BEGINNING)][(AT, AT_END)]"
    )
    if shortest >= least and (most is None or (longest <= most and not is_open)):
        return anchored(items, dialect)
    inside = [argument for op, argument in items[1:-1] if str(op) == "MAX_REPEAT"]
    if len(items) == 3 and inside and not is_open and inside[0][2].getwidth() == (1, 1):
        low, high, body = inside[0]
        limits = [int(end) for end in (high, most) if end not in (None, _parser.MAXREPEAT)]
        low, limit = max(low, least), min(limits, default=None)
        is_possible = limit is None or low <= limit
        return repeat(sequence(body, dialect), low, limit) if is_possible else NOTHING
    raise NotImplementedError("other lengths than those asked for")


def anchored(items: list[tuple[Any, Any]], dialect: Dialect) -> Regex:
    """Translate a whole pattern. Its alternatives may have their own anchors."""
    *before, (op, argument) = items or [("", None)]
    if str(op) == "BRANCH" and "(AT, AT_" in str(items):
        return either(*(anchored([*before, *branch], dialect) for branch in argument[1]))
    if str(op) == "SUBPATTERN" and not before and not any(argument[1:3]):
        return anchored(list(argument[3]), dialect)
    begins = bool(items) and str(items[0][1]) == "AT_BEGINNING"
    ends = bool(items) and str(items[-1][1]) == "AT_END"
    inside = sequence(items[begins : len(items) - ends], dialect)
    outside = dialect.outside
    return then(EMPTY if begins else outside, inside, EMPTY if ends else outside)


def sequence(items: Iterable[tuple[Any, Any]], dialect: Dialect) -> Regex:
    return then(*(expression(str(op), argument, dialect) for op, argument in items))


def expression(op: str, argument: Any, dialect: Dialect) -> Regex:
    """Translate one item of Python's parser. Raises NotImplementedError with the item's name."""
    match op:
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            return written(code_points(op, argument, dialect), dialect)
        case "BRANCH":
            return either(*(sequence(branch, dialect) for branch in argument[1]))
        case "SUBPATTERN" if not any(argument[1:3]):  # no flags of its own
            return sequence(argument[3], dialect)
        case "MAX_REPEAT":
            least, most, body = argument
            limit = None if most == _parser.MAXREPEAT else int(most)
            return repeat(sequence(body, dialect), least, limit)
    raise NotImplementedError(REFUSED.get(op, "a flag such as (?i:...)"))


def written(ranges: Ranges, dialect: Dialect) -> Regex:
    """One of these characters, as texts of the dialect have it."""
    escapes = dialect.escapes
    bare = complement([*complement(ranges), *((point, point) for point in escapes)])
    within = [point for point in escapes if any(low <= point <= high for low, high in ranges)]
    return either(characters(bare), one_of(text for point in within if (text := escapes[point])))


def code_points(op: str, argument: Any, dialect: Dialect, is_negated: bool = False) -> Ranges:
    """Return the code points that one item of Python's parser allows.

    is_negated: it stands in a class such as [^...], so that too many leave out too many.
    """
    match op:
        case "LITERAL":
            return [(argument, argument)]
        case "NOT_LITERAL":
            return complement([(argument, argument)])
        case "ANY":  # the dot
            return complement(dialect.line_ends)
        case "RANGE":
            return [argument]
        case "CATEGORY" if str(argument) == "CATEGORY_SPACE":
            return dialect.spaces if is_negated else SPACES
        case "CATEGORY" if str(argument) == "CATEGORY_NOT_SPACE":
            return complement(SPACES if is_negated else dialect.spaces)
        case "CATEGORY":
            return CATEGORIES[str(argument)]
    negated = str(argument[0][0]) == "NEGATE"
    members = argument[negated:]
    ranges = [
        piece
        for name, value in members
        for piece in code_points(str(name), value, dialect, negated)
    ]
    return complement(ranges) if negated else ranges
