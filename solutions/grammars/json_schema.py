"""Lab 14, given: a JSON schema as a regular expression, and JSON of any depth as regions.

The text has the form that Python's `json.dumps` writes: `, ` and `: ` as separators, no other
spaces, properties in the schema's order and all of them present. So every text of the pattern fits
the schema, but not every text that fits the schema is one of the pattern.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from solutions.grammars.regex import (
    EMPTY,
    LAST,
    MOST,
    NOTHING,
    Ranges,
    Regex,
    between,
    either,
    literal,
    parse,
    repeat,
    then,
)


def quoted(characters: Regex) -> Regex:
    return then(literal('"'), characters, literal('"'))


QUOTE, BACKSLASH = ord('"'), ord("\\")
ESCAPED: Ranges = [(0, 0x1F), (QUOTE, QUOTE), (BACKSLASH, BACKSLASH)]  # never bare in a string
COMMA = literal(", ")
HEX = "[0-9a-fA-F]"
# One character of a string. The halves of a UTF-16 pair, \ud800 to \udfff, are no characters.
CHARACTER = either(
    parse(f"[\x20-{chr(LAST)}]", ESCAPED),
    parse(r'\\["\\/bfnrt]'),
    parse(rf"\\u([0-9a-cefA-CEF]{HEX}{{3}}|[dD][0-7]{HEX}{{2}})"),
)
STRING = quoted(repeat(CHARACTER, 0))
INTEGER = parse("0|-?[1-9][0-9]*")
FRACTION = r"(\.[0-9]+)?"
NUMBER = parse(rf"-?(0|[1-9][0-9]*){FRACTION}([eE][+-]?[0-9]+)?")
BOOLEAN, NULL = parse("true|false"), literal("null")

# The keywords that are understood, by type; those that only describe are understood anywhere.
KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set(),
    "null": set(),
}
CHOICES = "const", "enum", "anyOf"
DESCRIBING = {"title", "description", "default", "examples", "$schema", "$id", "$comment"}


def pattern_of(schema: Mapping[str, Any]) -> Regex:
    """Return the expression for texts that fit a JSON schema.

    Known are objects, arrays, strings, integers, numbers, booleans, null, `const`, `enum` and
    `anyOf`, with the keywords of KEYWORDS. Raises ValueError, with the keyword's name, for a schema
    that asks for anything else.
    """
    if not isinstance(schema, Mapping):
        raise ValueError(f"A schema is an object such as {{'type': 'string'}}, not {schema!r}.")
    asked = set(schema) - DESCRIBING
    for choice in CHOICES:
        if choice in schema:
            require_keywords(asked, {choice, "type"} if choice != "anyOf" else {choice}, choice)
            return one_of(choice, schema[choice])
    kind = schema.get("type")
    if isinstance(kind, list):
        raise ValueError(f"A list of types, {kind}, is not supported: write it as 'anyOf'.")
    require_keywords(asked, {"type"} | KEYWORDS.get(str(kind), set()), f"type {kind!r}")
    match kind:
        case "object":
            return object_of(schema)
        case "array":
            return array_of(schema)
        case "string":
            return string_of(schema)
        case "integer" | "number":
            return number_of(schema, kind)
        case "boolean":
            return BOOLEAN
        case "null":
            return NULL
    raise ValueError(f"A schema needs a type of {sorted(KEYWORDS)}, not {kind!r}.")


def require_keywords(asked: set[str], known: set[str], what: str) -> None:
    if unknown := sorted(asked - known):
        raise ValueError(
            f"The keyword {unknown[0]!r} is not supported with {what}. Leave it out, or describe "
            f"the values with {sorted(known)}."
        )


def one_of(choice: str, options: Any) -> Regex:
    """`const` has one value, `enum` a list of values, and `anyOf` a list of schemas."""
    values = [options] if choice == "const" else options
    if not isinstance(values, list) or not values:
        raise ValueError(f"{choice!r} needs a list that isn't empty, not {options!r}.")
    if choice == "anyOf":
        return either(*(pattern_of(option) for option in values))
    return either(
        *(literal(json.dumps(value, ensure_ascii=False, allow_nan=False)) for value in values)
    )


def object_of(schema: Mapping[str, Any]) -> Regex:
    properties: Any = schema.get("properties")
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not properties or not isinstance(required, list):
        raise ValueError("An object needs 'properties' with their schemas; 'required' is a list.")
    if missing := [name for name in required if name not in list(properties)]:
        raise ValueError(f"The property {missing[0]!r} is required, but it has no schema.")
    members = [
        then(literal(f"{json.dumps(name, ensure_ascii=False)}: "), pattern_of(value))
        for name, value in properties.items()
    ]
    more = [then(COMMA, member) for member in members[1:]]
    return then(literal("{"), members[0], *more, literal("}"))


def array_of(schema: Mapping[str, Any]) -> Regex:
    if "items" not in schema:
        raise ValueError("An array needs 'items', the schema of its items.")
    least, most = limits(schema, "minItems", "maxItems")
    item = pattern_of(schema["items"])
    more = repeat(then(COMMA, item), max(least - 1, 0), None if most is None else max(most - 1, 0))
    filled = NOTHING if most == 0 else then(item, more)
    return then(literal("["), either(filled, NOTHING if least else EMPTY), literal("]"))


def string_of(schema: Mapping[str, Any]) -> Regex:
    pattern = schema.get("pattern")
    if pattern is None:
        return quoted(repeat(CHARACTER, *limits(schema, "minLength", "maxLength")))
    if "minLength" in schema or "maxLength" in schema:
        raise ValueError("'pattern' together with a length is not supported: use (...){m,n} in it.")
    if not (isinstance(pattern, str) and pattern.startswith("^") and pattern.endswith("$")):
        raise ValueError(
            f"The pattern {pattern!r} may match anywhere in the string, as JSON Schema defines it. "
            "That is not supported: describe the whole string, from ^ to $."
        )
    return quoted(parse(pattern, ESCAPED))


def limits(schema: Mapping[str, Any], lower: str, upper: str) -> tuple[int, int | None]:
    least, most = schema.get(lower, 0), schema.get(upper)
    for limit in (least, 0 if most is None else most):
        if type(limit) is not int or not 0 <= limit <= MOST:
            raise ValueError(f"{lower!r} and {upper!r} are from 0 to {MOST}, not {limit!r}.")
    if most is not None and most < least:
        raise ValueError(f"{upper!r} is {most}, which is less than {lower!r}, {least}.")
    return least, most


def number_of(schema: Mapping[str, Any], kind: str) -> Regex:
    """Numbers within bounds are written without an exponent."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and high is None:
        return INTEGER if kind == "integer" else NUMBER
    for bound in (low, high):
        is_number = isinstance(bound, int | float) and abs(bound) < 1e18
        if bound is not None and not (is_number and (kind == "integer" or bound == int(bound))):
            raise ValueError(f"A bound of a number is a whole number here, not {bound!r}.")
    low, high = low if low is None else math.ceil(low), high if high is None else math.floor(high)
    if low is not None and high is not None and low > high:
        raise ValueError(f"No {kind} is at least {low} and at most {high}.")
    sign = NOTHING if low is not None and low >= 0 else literal("-")
    zero = 0 if kind == "number" else 1  # there is a number -0.5, but -0 is written 0
    below = magnitudes(kind, max(zero, -(high or 0)), None if low is None else -low)
    above = magnitudes(kind, max(0, low or 0), high)
    return either(then(sign, below), above)


def magnitudes(kind: str, low: int, high: int | None) -> Regex:
    """Numbers without a sign, from `low` to `high`; None means without an upper limit."""
    if kind == "integer":
        return whole_numbers(low, high)
    if high is None:
        return then(whole_numbers(low, None), parse(FRACTION))
    inside = then(whole_numbers(low, high - 1), parse(FRACTION))
    return either(inside, then(whole_numbers(max(low, high), high), parse(r"(\.0+)?")))


def whole_numbers(low: int, high: int | None) -> Regex:
    digits = len(str(low))
    if high is None:
        longer = then(parse("[1-9]"), repeat(parse("[0-9]"), digits))
        return either(whole_numbers(low, 10**digits - 1), longer)
    ends = [
        (max(low, 10 ** (count - 1) if count > 1 else 0), min(high, 10**count - 1))
        for count in range(digits, len(str(high)) + 1)
    ]
    zero, nine = b"09"
    pairs = [(str(first).encode(), str(last).encode()) for first, last in ends if first <= last]
    return either(*(between(first, last, zero, nine) for first, last in pairs))


# ----------------------------------------------------------------------------- JSON of any depth

# What may come next, up to the end of a value or to a bracket: a regular language, whatever else is
# open. The name says where: at the start, after an opening bracket, or after a value, and in which
# bracket.
VALUE = either(STRING, NUMBER, BOOLEAN, NULL, literal("["), literal("{"))
MEMBER = then(STRING, literal(": "), VALUE)
REGIONS: dict[str, Regex] = {
    "": VALUE,
    "[": either(VALUE, literal("]")),
    "{": either(MEMBER, literal("}")),
    "[,": either(then(COMMA, VALUE), literal("]")),
    "{,": either(then(COMMA, MEMBER), literal("}")),
    ",": EMPTY,  # after a value, and no bracket is open: the end
}
