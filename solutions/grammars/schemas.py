"""Lab 14, given: what JSON schemas say together, and whether two of them leave each other out.

A schema is *plain* here if it has no `allOf`, `anyOf`, `oneOf` and `$ref`; its types are a list,
and its `const` is an `enum` of one value.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from solutions.grammars.json_text import SCHEMA
from solutions.grammars.regex import (
    LAST,
    AnyOf,
    Either,
    Regex,
    Star,
    Then,
    characters,
    parse,
    star,
    take_step,
)

Schema = Mapping[str, Any]
KINDS = ["object", "array", "string", "number", "boolean", "null"]
# The keywords that are kept, by the type of value that they are about.
KEYWORDS: dict[str, set[str]] = {
    "object": {
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependencies", "dependentRequired"),
    },
    "array": {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
}
KEYWORDS["integer"] = KEYWORDS["number"]
KEPT = {"type", "enum", *(keyword for keywords in KEYWORDS.values() for keyword in keywords)}
DECIDED = {  # by `misfits`
    *("minLength", "maxLength", "pattern"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
AT_LEAST = "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"
AT_MOST = "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_bound(value: Any) -> bool:
    is_number = type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e25
    return is_number and (Fraction(repr(value)) * 10**15).denominator == 1


def are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("properties", "patternProperties", "dependencies", "dependentRequired"),
        (lambda value: isinstance(value, Mapping), "an object"),
    ),
    "required": (are_names, "a list of texts"),
    "prefixItems": (lambda value: isinstance(value, list), "a list"),
    **dict.fromkeys(("pattern", "format"), (lambda value: isinstance(value, str), "a text")),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (is_count, "a whole number, 0 or more"),
    ),
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        (is_bound, "a number below 10^25, with at most 15 decimal places"),
    ),
}


def plain_part(schema: Schema) -> dict[str, Any]:
    """Return what a schema says itself, as a plain schema. Raises ValueError if it is malformed."""
    found = {keyword: value for keyword, value in schema.items() if keyword in KEPT}
    if isinstance(found.get("required"), bool):  # draft 3's way
        del found["required"]
    if "type" in found:
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        if not kinds or not all(isinstance(kind, str) and kind in KEYWORDS for kind in kinds):
            raise ValueError(
                f"A type is one of {sorted(KEYWORDS)}, not {repr(schema['type'])[:100]}."
            )
        found["type"] = kinds
    for end, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(found.get(end), bool) and found.pop(end) and bound in found:
            found[end] = found.pop(bound)  # in draft 4, it says how `minimum` is meant
    for keyword, value in found.items():
        has_shape, told = SHAPES.get(keyword, (lambda _: True, ""))
        if not has_shape(value):
            raise ValueError(f"{keyword!r} is {told}, not {repr(value)[:100]}.")
    if "enum" in found:
        found["enum"] = list_of(schema, "enum")
    return merged(found, {"enum": [schema["const"]]}) if "const" in schema else found


def list_of(schema: Schema, keyword: str) -> list[Any]:
    """Return the list that a keyword has. Raises ValueError for anything else."""
    options = schema[keyword]
    if not isinstance(options, list) or not options:
        raise ValueError(f"{keyword!r} needs a list that isn't empty, not {repr(options)[:100]}.")
    return options


def kinds_of(schema: Schema) -> list[str]:
    """Return the types of the values that are written for a plain schema.

    If it doesn't say, they are those that its keywords are about.
    """
    told = schema.get("type", KINDS)
    about = [kind for kind in KINDS if KEYWORDS[kind] & set(schema)]
    return [kind for kind in told if "type" in schema or not about or kind in about]


def numbers_alike(kinds: Sequence[str]) -> set[str]:
    return {"number" if kind == "integer" else kind for kind in kinds}


def kind_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "integer" if value == value // 1 else "number"
    return "object" if isinstance(value, Mapping) else "array"


# -------------------------------------------------------------------------------- two at a time


def merged(one: Schema, other: Schema) -> dict[str, Any]:
    """Return the plain schema of the values that fit two plain ones.

    Its `type` or `enum` is an empty list if there are none. Raises ValueError for keywords that
    can't be one.
    """
    found = {**one, **other}
    for keyword in one.keys() & other.keys():
        if one[keyword] != other[keyword] or keyword == "enum":
            found[keyword] = both(keyword, one[keyword], other[keyword])
    names = {**one.get("properties", {}), **other.get("properties", {})}
    if names:
        found["properties"] = {
            name: all_of(said_of(name, one), said_of(name, other)) for name in names
        }
    return found


def both(keyword: str, one: Any, other: Any) -> Any:
    """Return one value of a keyword that says what two say."""
    if keyword in AT_LEAST:
        return max(one, other)
    if keyword in AT_MOST:
        return min(one, other)
    match keyword:
        case "type":
            exact, numbers = [kind for kind in one if kind in other], {"integer", "number"}
            is_whole = numbers & {*one} and numbers & {*other} and not numbers & {*exact}
            return [*exact, "integer"] if is_whole else exact
        case "enum":
            texts = set(map(json.dumps, other))
            return [value for value in one if json.dumps(value) in texts]
        case "required":
            return [*one, *(name for name in other if name not in one)]
        case "properties":
            return {}  # `merged` sees to them
        case "additionalProperties" | "propertyNames":
            return all_of(one, other)
        case "items" if not isinstance(one, list) and not isinstance(other, list):
            return all_of(one, other)
    raise ValueError(f"Two different values of {keyword!r} can't both be kept. Leave one out.")


def all_of(*schemas: Any) -> Any:
    """Return one schema that says what several say."""
    if False in schemas:
        return False
    saying = [schema for schema in schemas if schema is not True]
    return {"allOf": saying} if len(saying) > 1 else saying[0] if saying else True


def said_of(name: str, schema: Schema) -> Any:
    """Return what a plain schema says of a property's value: a schema, True or False."""
    patterns = schema.get("patternProperties", {})
    found = [patterns[pattern] for pattern in patterns if fits_pattern(name, pattern)]
    own = schema.get("properties", {})
    if name in own:
        found.append(own[name])
    return all_of(*found) if found else schema.get("additionalProperties", True)


# ------------------------------------------------------------------------- what doesn't fit


def misfits(value: Any, schema: Schema) -> bool:
    """Return whether the type or the keywords in DECIDED forbid a value in a plain schema."""
    take_step()
    kind = kind_of(value)
    told = schema.get("type", KINDS)
    if kind not in told and not (kind == "integer" and "number" in told):
        return True
    if kind == "string":
        length = len(value)
        is_short = length < schema.get("minLength", 0) or length > schema.get("maxLength", length)
        return is_short or ("pattern" in schema and not fits_pattern(value, schema["pattern"]))
    if kind in ("integer", "number"):
        return not (
            schema.get("minimum", value) <= value <= schema.get("maximum", value)
            and schema.get("exclusiveMinimum", value - 1) < value
            and value < schema.get("exclusiveMaximum", value + 1)
        )
    return False


BARE = SCHEMA._replace(outside=star(characters([(0, LAST)])), escapes={})


def fits_pattern(text: str, pattern: str) -> bool:
    """Return whether a pattern fits a text somewhere. The work is limited, unlike that of `re`."""
    read = text.encode(errors="surrogatepass")

    @cache
    def ends(regex: Regex, start: int) -> frozenset[int]:
        take_step()
        starts = {start}
        while isinstance(regex, Then):
            starts = {end for place in starts for end in ends(regex.first, place)}
            regex = regex.second
        return frozenset(end for place in starts for end in last_ends(regex, place))

    def last_ends(regex: Regex, start: int) -> set[int] | frozenset[int]:
        match regex:
            case AnyOf(allowed):
                return {start + 1} if start < len(read) and read[start] in allowed else set()
            case Either(options):
                return {end for option in options for end in ends(option, start)}
            case Star(body):
                found, seen = [start], {start}
                for place in found:  # which grows meanwhile
                    take_step()
                    new = ends(body, place) - seen
                    found += new
                    seen |= new
                return seen
        return {start}

    return len(read) in ends(parse(pattern, BARE), 0)


RANGES = {
    "number": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
}


def are_apart(written: Schema, other: Schema) -> bool:
    """Return whether the types, values or bounds say that nothing written for one fits the other.

    Both are plain. That their properties say it, is for the caller to find out.
    """
    kinds = numbers_alike(kinds_of(written))
    if not kinds & numbers_alike(other.get("type", KINDS)):
        return True
    if "enum" in written:
        values = both("enum", written["enum"], other.get("enum", written["enum"]))
        return all(misfits(value, other) for value in values)
    if kinds == {"object"} and written.get("properties"):
        names = {*written["properties"], *written.get("required", [])}
        is_closed = other.get("additionalProperties") is False and "patternProperties" not in other
        unknown = names - other.get("properties", {}).keys() if is_closed else set()
        too_many = any(is_always_written(name, written) for name in unknown)
        return too_many or not names.issuperset(other.get("required", []))
    return any(
        lower in one and upper in two and one[lower] > two[upper]
        for kind, (lower, upper) in RANGES.items()
        for one, two in ((written, other), (other, written))
        if kinds == {kind}
    )


def is_always_written(name: str, schema: Schema) -> bool:
    """Return whether each text of a plain schema has a property, even if that may refer back."""
    value = schema.get("properties", {}).get(name, False)
    is_optional = isinstance(value, Mapping) and "$ref" in json.dumps(value)
    if "required" in schema:
        return name in schema["required"]
    return value is not False and not is_optional
