"""Lab 14, given: the parts of JSON as expressions, with numbers in bounds and common formats.

A text has the form that Python's `json.dumps` writes: `, ` and `: ` as separators, no other spaces.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from solutions.grammars.regex import (
    EMPTY,
    LAST,
    NOTHING,
    Dialect,
    Either,
    Regex,
    between,
    characters,
    either,
    literal,
    parse,
    repeat,
    star,
    then,
)


def quoted(inside: Regex) -> Regex:
    return then(literal('"'), inside, literal('"'))


COMMA, COLON = literal(", "), literal(": ")
HEX = "[0-9a-fA-F]"
SHORT = {ord(bare): "\\" + short for bare, short in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)}
ESCAPES = {**dict.fromkeys(range(0x20)), **SHORT}  # never bare in a string
# One character of a string. The halves of a UTF-16 pair, \ud800 to \udfff, are no characters.
CHARACTER = either(
    characters([(0x20, 0x21), (0x23, 0x5B), (0x5D, LAST)]),
    parse(r'\\["\\/bfnrt]'),
    parse(rf"\\u([0-9a-cefA-CEF]{HEX}{{3}}|[dD][0-7]{HEX}{{2}})"),
)
# Patterns in a schema are ECMAScript's; what Python's validators take for a space is one as well.
SCHEMA = Dialect(
    line_ends=[(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)],
    spaces=[
        *((0x09, 0x0D), (0x1C, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680)),
        *((0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F)),
        *((0x3000, 0x3000), (0xFEFF, 0xFEFF)),
    ],
    outside=star(CHARACTER),
    escapes=ESCAPES,
)
DIGIT = parse("[0-9]")
STRING = quoted(star(CHARACTER))
INTEGER = parse("0|-?[1-9][0-9]*")
NUMBER = parse(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
BOOLEAN, NULL = parse("true|false"), literal("null")


@dataclass(eq=False)
class Reference:
    """The options of an expression that holds itself: a JSON value in a JSON value, for example.

    target: the expression, set once it is known. It has no empty text.
    """

    target: Regex = NOTHING
    has_empty = False
    depth = 10  # of an object, an array, or a choice of them

    @property
    def inner(self) -> tuple[Regex, ...]:
        return (self.target,)

    def made(self) -> frozenset[Regex]:
        return frozenset([self.target])


def array(item: Regex, least: int = 0, most: int | None = None) -> Regex:
    """An array of `least` to `most` items; None means without an upper limit."""
    return then(literal("["), listed(item, least, most), literal("]"))


def mapping(member: Regex, least: int = 0, most: int | None = None) -> Regex:
    """An object of `least` to `most` members, each a name, a colon and a value."""
    return then(literal("{"), listed(member, least, most), literal("}"))


def listed(part: Regex, least: int, most: int | None) -> Regex:
    limit = None if most is None else max(most - 1, 0)
    filled = then(part, repeat(then(COMMA, part), max(least - 1, 0), limit))
    return either(NOTHING if most == 0 else filled, NOTHING if least else EMPTY)


def any_value() -> Regex:
    """Any value of JSON, however deep."""
    itself = Reference()
    value = Either(itself)
    inner = array(value), mapping(then(STRING, COLON, value))
    itself.target = either(STRING, NUMBER, BOOLEAN, NULL, *inner)
    return itself.target


ANY_VALUE = any_value()

# --------------------------------------------------------------------------- numbers in bounds

MORE = parse("[0-9]{1,9}")  # places; with many, a number could be rounded to its bound
MORE_THAN_ZERO = parse("0{0,8}[1-9][0-9]{0,8}")


class Bounds(NamedTuple):
    """From `low` to `high`, None for no limit; an end that is open doesn't belong to it."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_is_open: bool = False
    high_is_open: bool = False

    @property
    def mirrored(self) -> "Bounds":
        low, high = (None if end is None else -end for end in self[:2])
        return Bounds(high, low, self.high_is_open, self.low_is_open)

    @property
    def places(self) -> int:
        """The decimal places that it takes to write both ends."""
        ends = [end for end in self[:2] if end is not None]
        return next(n for n in range(16) if all((end * 10**n).denominator == 1 for end in ends))

    def magnitudes(self, places: int) -> tuple[int, int | None]:
        """Return the least and the greatest from 0 on, in units of the last decimal place."""
        least, most, unit = 0, None, 10**places
        if self.low is not None and self.low >= 0:
            least = math.ceil(self.low * unit)
            least += self.low_is_open and least == self.low * unit
        if self.high is not None:
            most = math.floor(self.high * unit)
            most -= self.high_is_open and most == self.high * unit
        return least, most


def within(*several: Bounds) -> Bounds:
    """Return the bounds of the numbers that are within all of these."""
    lows = [(one.low, one.low_is_open) for one in several if one.low is not None]
    highs = [(-one.high, one.high_is_open) for one in several if one.high is not None]
    low, low_is_open = max(lows, default=(None, False))
    high, high_is_open = max(highs, default=(None, False))
    return Bounds(low, None if high is None else -high, low_is_open, high_is_open)


def whole_number(bounds: Bounds) -> Regex:
    """An integer within bounds, written without a point or an exponent."""
    least, most = bounds.mirrored.magnitudes(0)
    below = decimals(max(1, least), most, 0)
    return either(decimals(*bounds.magnitudes(0), 0), then(literal("-"), below))


def number(bounds: Bounds) -> Regex:
    """A number within bounds, written without an exponent."""
    fractions = [
        then(sign, fraction(side))
        for sign, side in ((EMPTY, bounds), (literal("-"), bounds.mirrored))
    ]
    return either(whole_number(bounds), *fractions)


def fraction(bounds: Bounds) -> Regex:
    """A number that isn't negative, with digits behind a point."""
    most = max(1, bounds.places)
    exact = [decimals(*bounds.magnitudes(places), places) for places in range(1, most + 1)]
    least, greatest = bounds._replace(low_is_open=False, high_is_open=True).magnitudes(most)
    is_open = bounds.low_is_open and bounds.low is not None and bounds.low >= 0
    if is_open and (greatest is None or least <= greatest):
        exact.append(then(decimals(least, least, most), MORE_THAN_ZERO))
    return either(*exact, then(decimals(least + is_open, greatest, most), MORE))


def decimals(low: int, high: int | None, places: int) -> Regex:
    """The numbers from `low` to `high`, in units of the last of so many decimal places."""
    count = max(1, len(str(low)) - places)  # digits before the point
    if high is None:
        point = then(literal("."), *[DIGIT] * places) if places else EMPTY
        longer = then(parse("[1-9]"), repeat(DIGIT, count), point)
        return either(decimals(low, 10 ** (count + places) - 1, places), longer)
    found: Regex = NOTHING
    while low <= high:
        last = min(high, 10 ** (count + places) - 1)
        ends = [low, last, 0, 10 ** (count + places) - 1]
        found = either(found, between(*(written(end, count, places) for end in ends)))
        low, count = last + 1, count + 1
    return found


def written(number: int, count: int, places: int) -> bytes:
    text = str(number).zfill(count + places)
    return f"{text[:count]}.{text[count:]}".encode() if places else text.encode()


# ------------------------------------------------------------------------------ formats of texts

# Python's dates begin with the year 1.
YEAR = r"([1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
FOURTH = "(0[48]|[2468][048]|[13579][26])"
LEAP = rf"(\d\d{FOURTH}|{FOURTH}00)"
DATE = (
    rf"({YEAR}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|"
    rf"02-(0[1-9]|1\d|2[0-8]))|{LEAP}-02-29)"
)
TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+\-]([01]\d|2[0-3]):[0-5]\d)"
BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?"
HOST = rf"{LABEL}(\.{LABEL}){{0,2}}"
WORD = r"[a-zA-Z0-9_+\-]{1,20}"
GROUP = r"[0-9a-fA-F]{1,4}"
PATH_CHARACTER = r"([a-zA-Z0-9\-._~!$&'()*+,;=:@/]|%[0-9a-fA-F]{2})"
PATH = rf"{PATH_CHARACTER}{{0,100}}"  # bounded, since Pydantic limits the length of a URL
CLOCK = r"T(\d{1,3}H(\d{1,3}M(\d{1,3}S)?)?|\d{1,3}M(\d{1,3}S)?|\d{1,3}S)"
FORMATS = {
    name: f"^({pattern})$"
    for name, pattern in {
        "date": DATE,
        "time": TIME,
        "date-time": f"{DATE}T{TIME}",
        "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
        "email": rf"{WORD}(\.{WORD}){{0,2}}@{HOST}",
        "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
        "ipv6": rf"{GROUP}(:{GROUP}){{7}}|({GROUP}(:{GROUP}){{0,5}})?::({GROUP})?",
        "uri": rf"https?://{HOST}(:[1-9]\d{{0,3}})?(/{PATH})?(\?{PATH})?(#{PATH})?",
        "hostname": HOST,
        "duration": rf"P(\d{{1,5}}D({CLOCK})?|{CLOCK})",
    }.items()
}
FREE_FORMATS = {"password", "binary", "path"}  # they only describe
FORMATS_OF_NUMBERS = {  # of OpenAPI
    "int32": Bounds(Fraction(-(2**31)), Fraction(2**31 - 1)),
    "int64": Bounds(Fraction(-(2**63)), Fraction(2**63 - 1)),
    "float": Bounds(),
    "double": Bounds(),
}

# ----------------------------------------------------------------------------- JSON of any depth

# What may come next, up to the end of a value or to a bracket: a regular language, whatever else is
# open. The name says where: at the start, after an opening bracket, or after a value, and in which
# bracket.
VALUE = either(STRING, NUMBER, BOOLEAN, NULL, literal("["), literal("{"))
MEMBER = then(STRING, COLON, VALUE)
REGIONS: dict[str, Regex] = {
    "": VALUE,
    "[": either(VALUE, literal("]")),
    "{": either(MEMBER, literal("}")),
    "[,": either(then(COMMA, VALUE), literal("]")),
    "{,": either(then(COMMA, MEMBER), literal("}")),
    ",": EMPTY,  # after a value, and no bracket is open: the end
}
