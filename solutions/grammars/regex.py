"""Lab 14, given: regular expressions over bytes, as objects, and a parser for patterns.

A model's tokens are pieces of bytes, not of characters: half an é may be a token. So every pattern
here is about the UTF-8 bytes of a text. Build expressions with the small functions (`any_of`,
`then`, `either`, `star`), because they simplify: two expressions that differ only in an obvious way
become equal. Sources: Brzozowski, "Derivatives of regular expressions", JACM 1964; Owens et al.,
"Regular-expression derivatives re-examined", JFP 2009 (which simplifications are enough).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from re import _parser  # type: ignore[attr-defined]  # Python's own parser of patterns
from typing import Any

LARGEST = 200_000  # parts of an expression
MOST = 1000  # the largest repetition in a pattern

# ----------------------------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Regex:
    """The base of all expressions. An expression stands for a set of texts, its language.

    hashed, size: computed once, because long expressions are looked up often.
    """

    hashed: int = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        size = 1 + sum(part.size for part in self.parts)
        if size > LARGEST:
            raise ValueError(
                f"The pattern grows beyond {LARGEST:,} parts. Bound its repetitions more tightly."
            )
        object.__setattr__(self, "hashed", hash(tuple(vars(self).values())))
        object.__setattr__(self, "size", size)

    def __hash__(self) -> int:
        return self.hashed

    @property
    def parts(self) -> tuple[Any, ...]:
        """The expressions that this one is made of."""
        return ()


@dataclass(frozen=True)
class Empty(Regex):
    """Only the empty text."""

    __hash__ = Regex.__hash__


@dataclass(frozen=True)
class AnyOf(Regex):
    """One byte, any of these. If there are none, no text at all."""

    allowed: frozenset[int]
    __hash__ = Regex.__hash__


@dataclass(frozen=True)
class Then(Regex):
    """A text of `first`, followed by a text of `second`."""

    first: Regex
    second: Regex
    __hash__ = Regex.__hash__

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.first, self.second


@dataclass(frozen=True)
class Either(Regex):
    """A text of any of the options. They are a set: equal options are one."""

    options: frozenset[Regex]
    __hash__ = Regex.__hash__

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.options)


@dataclass(frozen=True)
class Star(Regex):
    """No text of `body`, one, or several in a row."""

    body: Regex
    __hash__ = Regex.__hash__

    @property
    def parts(self) -> tuple[Any, ...]:
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
    flat = list[Regex]()
    for part in parts:
        while isinstance(part, Then):
            flat.append(part.first)
            part = part.second
        flat += [part] if part != EMPTY else []
    whole = flat.pop() if flat else EMPTY
    while flat:
        whole = Then(flat.pop(), whole)
    return NOTHING if NOTHING in parts else whole


def either(*options: Regex) -> Regex:
    """Any of the options. Equal options become one, and so do all options of one byte."""
    flat: set[Regex] = set()
    for option in options:
        flat |= option.options if isinstance(option, Either) else {option}
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


def repeat(body: Regex, least: int, most: int | None = None) -> Regex:
    """The body `least` to `most` times; None means without an upper limit."""
    rest = star(body) if most is None else EMPTY
    for _ in range((most or least) - least):
        rest = either(EMPTY, then(body, rest))
    return then(*[body] * least, rest)


def literal(text: str) -> Regex:
    return then(*(any_of([byte]) for byte in text.encode()))


def nullable(regex: Regex) -> bool:
    """Return whether the empty text belongs to the language."""
    match regex:
        case Then(first, second):
            return nullable(first) and nullable(second)
        case Either(options):
            return any(nullable(option) for option in options)
        case AnyOf():
            return False
    return True  # EMPTY, and every star


def byte_classes(regex: Regex) -> list[list[int]]:
    """Return the bytes in groups: the expression treats all bytes of a group alike."""
    sets: set[frozenset[int]] = set()
    seen, todo = {regex}, [regex]
    while todo:
        part = todo.pop()
        if isinstance(part, AnyOf):
            sets.add(part.allowed)
        todo += set(part.parts) - seen
        seen.update(part.parts)
    groups: dict[tuple[bool, ...], list[int]] = {}
    for byte in range(256):
        groups.setdefault(tuple(byte in allowed for allowed in sets), []).append(byte)
    return list(groups.values())


# ------------------------------------------------------------------------ characters as bytes

Ranges = list[tuple[int, int]]  # of code points, both ends included

LAST = 0x10FFFF
# A range is cut where the UTF-8 form gets longer. UTF-16's surrogates are no characters.
PIECES = (0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, LAST)


def between(low: bytes, high: bytes, least: int, most: int) -> Regex:
    """All byte strings from `low` to `high`, which are equally long.

    After their first byte, bytes go from `least` to `most`. With the digits 0 and 9, these are the
    numbers from one to the other.
    """
    first, last = low[:1], high[:1]
    if len(low) == 1:
        return any_of(range(low[0], high[0] + 1))
    if first == last:
        return then(any_of(first), between(low[1:], high[1:], least, most))
    lowest, highest = bytes([least]) * (len(low) - 1), bytes([most]) * (len(low) - 1)
    return either(
        then(any_of(first), between(low[1:], highest, least, most)),
        then(any_of(range(first[0] + 1, last[0])), between(lowest, highest, least, most)),
        then(any_of(last), between(lowest, high[1:], least, most)),
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
    return either(*(between(low, high, 0x80, 0xBF) for low, high in ends))


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
    "CATEGORY_SPACE": SPACES,
    "CATEGORY_NOT_SPACE": complement(SPACES),
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


def parse(pattern: str, banned: Ranges | None = None) -> Regex:
    """Return the expression whose texts are those that `re.fullmatch` accepts, as UTF-8 bytes.

    Literals, classes, `. * + ? {m,n} | ( )` and escapes work; `\\d`, `\\w` and `\\s` are ASCII, as
    with re.ASCII. A `^` at the beginning and a `$` at the end change nothing. Texts with a
    character in `banned` are left out. Raises ValueError for a pattern that is malformed, or that
    isn't a regular expression in the strict sense.
    """
    try:
        parsed = _parser.parse(pattern)
    except _parser.error as error:
        raise ValueError(f"The pattern {pattern!r} is malformed: {error}.") from error
    if parsed.state.flags != _parser.parse("").state.flags:
        raise ValueError(refusal("a flag such as (?i)", pattern))
    items = list(parsed)
    if items and str(items[0][1]) == "AT_BEGINNING":
        items = items[1:]
    if items and str(items[-1][1]) == "AT_END":
        items = items[:-1]
    try:
        return sequence(items, banned or [])
    except NotImplementedError as found:
        raise ValueError(refusal(str(found), pattern)) from found


def refusal(what: str, pattern: str) -> str:
    return (
        f"The pattern {pattern!r} has {what}, which this parser doesn't know. Use literals, "
        "classes, groups, | and repetitions."
    )


def sequence(items: Iterable[tuple[Any, Any]], banned: Ranges) -> Regex:
    return then(*(expression(str(op), argument, banned) for op, argument in items))


def expression(op: str, argument: Any, banned: Ranges) -> Regex:
    """Translate one item of Python's parser. Raises NotImplementedError with the item's name."""
    match op:
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            allowed = code_points(op, argument)
            return characters(complement([*complement(allowed), *banned]))
        case "BRANCH":
            return either(*(sequence(branch, banned) for branch in argument[1]))
        case "SUBPATTERN" if not any(argument[1:3]):  # no flags of its own
            return sequence(argument[3], banned)
        case "MAX_REPEAT":
            least, most, body = argument
            limit = None if most == _parser.MAXREPEAT else int(most)
            if max(least, limit or 0) > MOST:
                raise NotImplementedError(f"a repetition of more than {MOST}")
            return repeat(sequence(body, banned), least, limit)
    raise NotImplementedError(REFUSED.get(op, "a flag such as (?i:...)"))


def code_points(op: str, argument: Any) -> Ranges:
    """Return the code points that one item of Python's parser allows."""
    match op:
        case "LITERAL":
            return [(argument, argument)]
        case "NOT_LITERAL":
            return complement([(argument, argument)])
        case "ANY":  # the dot
            return complement([(ord("\n"), ord("\n"))])
        case "RANGE":
            return [argument]
        case "CATEGORY":
            return CATEGORIES[str(argument)]
    negated = str(argument[0][0]) == "NEGATE"
    members = argument[negated:]
    ranges = [piece for name, value in members for piece in code_points(str(name), value)]
    return complement(ranges) if negated else ranges
