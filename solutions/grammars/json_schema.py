"""Lab 14, given: a JSON schema as a regular expression.

The text has the form that Python's `json.dumps` writes: `, ` and `: ` as separators, no other
spaces, and properties in the schema's order. If the schema says which are required, the others may
be left out; if it doesn't, all are present. So every text of the pattern fits the schema, but not
every text that fits the schema is one of the pattern.

Source: JSON Schema, drafts 4 to 2020-12. Keywords that this module doesn't know only describe, as
the standard says; those that it knows and can't keep are refused by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any
from urllib.parse import unquote

from solutions.grammars.json_text import (
    ANY_VALUE,
    BOOLEAN,
    CHARACTER,
    COLON,
    COMMA,
    FORMATS,
    FORMATS_OF_NUMBERS,
    FREE_FORMATS,
    INTEGER,
    NULL,
    NUMBER,
    REGIONS,
    SCHEMA,
    STRING,
    Bounds,
    Reference,
    array,
    mapping,
    number,
    quoted,
    whole_number,
    within,
)
from solutions.grammars.regex import (
    EMPTY,
    NOTHING,
    AnyOf,
    Either,
    Regex,
    Then,
    either,
    literal,
    one_of,
    parse,
    repeat,
    then,
)
from solutions.grammars.schemas import (
    DECIDED,
    KEPT,
    KEYWORDS,
    KINDS,
    Schema,
    are_apart,
    are_names,
    is_always_written,
    kind_of,
    kinds_of,
    list_of,
    merged,
    misfits,
    plain_part,
    said_of,
)

__all__ = ["REGIONS", "pattern_of"]
MOST_PARTS = 20_000  # schemas in a schema, with those that `allOf` and `$ref` lead to
MOST_LEVELS = 64  # of schemas, one in the other
BOUNDS = "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"
OPEN = {  # keywords about properties that the schema doesn't name
    *("additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties"),
}
CHOICES = {"const", "enum", "anyOf", "oneOf", "allOf", "$ref"}
REFUSED = {
    *("not", "if", "contains", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
    *("$dynamicRef", "$recursiveRef"),
}


def pattern_of(schema: Any, require: Callable[[Regex], object] = lambda regex: None) -> Regex:
    """Return the expression for texts that fit a JSON schema.

    require: called with the expression of each `pattern`; it may raise ValueError. Raises
    ValueError for a schema that can't be kept. It names the keyword, and the place of the schema
    that has it.
    """
    try:
        return Reader(schema, require).whole()
    except RecursionError:
        raise ValueError("The schema is nested too deeply. Use fewer levels.") from None


class Located(ValueError):
    """A sentence that says in which place of the schema."""


class Reader:
    """Reads one schema. root: the whole, in which `$ref` finds others. require: as above.

    open: the places that are being read, with the options of the expression that will stand for
    each. done: those that have been read, and which open ones they lead back to. back: the open
    ones that what is being read leads back to.
    """

    def __init__(self, root: Any, require: Callable[[Regex], object]) -> None:
        self.root, self.require = root, require
        self.parts, self.path = 0, list[str]()
        self.open = dict[str, Reference]()
        self.done = dict[str, tuple[Regex, set[str]]]()
        self.back = set[str]()
        self.recursive = dict[str, Reference]()

    def whole(self) -> Regex:
        found = self.referred("#")
        finite = with_texts(found) if self.recursive else set()
        for place, reference in self.recursive.items():
            if reference.target not in finite:
                raise ValueError(
                    f"The schema at {place} holds itself without an end. Let it be null there, or "
                    "an array that may be empty, or don't require it."
                )
        return found

    # -------------------------------------------------------------------- schemas and their places

    def at(self, place: str, schema: Any) -> Regex:
        """Return the expression of a schema at a place in the one that is being read."""
        self.path.append(place)
        try:
            return self.pattern(schema)
        except Located:
            raise
        except ValueError as error:
            place = "/".join(self.path) if len(self.path) < 9 else f"…/{'/'.join(self.path[-8:])}"
            raise Located(f"At #/{place}: {error}") from None
        finally:
            self.path.pop()

    def referred(self, pointer: str) -> Regex:
        """Return the expression of the schema at a place of the root, read once.

        If that is being read already, its options are made when a text comes to them.
        """
        if pointer in self.open:
            self.back.add(pointer)
            return Either(self.open[pointer])
        if pointer not in self.done:
            outer, self.back = self.back, set()
            self.open[pointer] = Reference()
            found = self.pattern(self.target(pointer))
            itself = self.open.pop(pointer)
            itself.target = found
            if pointer in self.back:
                self.recursive[pointer] = itself
            self.done[pointer] = found, self.back - {pointer}
            self.back = outer
        found, back = self.done[pointer]
        self.back |= back & self.open.keys()
        return found

    def target(self, pointer: str) -> Any:
        """Return the schema that `$ref` leads to."""
        found = self.root
        for part in unquote(pointer).split("/")[1:]:
            key: Any = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (KeyError, IndexError, TypeError, ValueError):
                raise ValueError(f"'$ref' leads to {pointer!r}, which isn't there.") from None
        return found

    def pattern(self, schema: Any) -> Regex:
        asked = set(schema) & (KEPT | CHOICES | REFUSED) if isinstance(schema, Mapping) else set()
        if len(self.path) > MOST_LEVELS:
            raise ValueError(f"The schema is nested too deeply: at most {MOST_LEVELS} levels.")
        if asked == {"$ref"}:
            return self.referred(pointer_of(schema))
        if asked == {"anyOf"}:
            options = list_of(schema, "anyOf")
            return either(*(self.at(f"anyOf/{n}", option) for n, option in enumerate(options)))
        found = either(*map(self.plain_pattern, self.alternatives(schema)))
        if found is NOTHING:
            raise ValueError("No value fits this schema.")
        return found

    def alternatives(self, schema: Any) -> list[Schema]:
        """Return plain schemas: a value that fits one of them fits this one."""
        self.count(1)
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, Mapping):
            raise ValueError(f"A schema is an object such as {{'type': 'string'}}, not {schema!r}.")
        if refused := sorted(REFUSED & set(schema)):
            raise ValueError(f"The keyword {refused[0]!r} is not supported. Leave it out.")
        found: list[Schema] = [plain_part(schema)]
        if "$ref" in schema:
            found = self.both(found, self.alternatives(self.target(pointer_of(schema))))
        for part in list_of(schema, "allOf") if "allOf" in schema else []:
            found = self.both(found, self.alternatives(part))
        if "anyOf" in schema:
            options = map(self.alternatives, list_of(schema, "anyOf"))
            found = self.both(found, [one for option in options for one in option])
        if "oneOf" in schema:
            each = [self.both(found, self.alternatives(one)) for one in list_of(schema, "oneOf")]
            self.require_apart(each)
            found = [of_written_kinds(one) for option in each for one in option]
        return found

    def count(self, parts: int) -> None:
        self.parts += parts
        if self.parts > MOST_PARTS:
            raise ValueError(
                f"The schema has more than {MOST_PARTS:,} parts, with those that 'allOf', 'oneOf' "
                "and '$ref' combine. Combine fewer."
            )

    def both(self, some: Sequence[Schema], others: Sequence[Schema]) -> list[Schema]:
        """Return the alternatives for values that fit one of `some` and one of `others`."""
        self.count(len(some) * len(others))
        found = [merged(one, other) for one in some for other in others]
        return [one for one in found if one.get("type") != [] and one.get("enum") != []]

    def require_apart(self, options: Sequence[Sequence[Schema]]) -> None:
        for first, one in enumerate(options):
            for second, other in enumerate(options):
                if first != second and not self.all_apart(one, other):
                    raise ValueError(
                        f"A value may fit both options {first} and {second} of 'oneOf', which asks "
                        "for exactly one. Use 'anyOf', or a property with another 'const' in each."
                    )

    def all_apart(self, written: Sequence[Schema], others: Sequence[Schema]) -> bool:
        """Return whether it is plain that no text written for one of some fits one of others."""
        self.count(len(written) * len(others))
        return all(
            are_apart(one, other) or self.have_apart_properties(one, other)
            for one in written
            for other in others
        )

    def have_apart_properties(self, written: Schema, other: Schema) -> bool:
        own, theirs = written.get("properties", {}), other.get("properties", {})
        return kinds_of(written) == ["object"] and any(
            self.all_apart(self.alternatives(own[name]), self.alternatives(theirs[name]))
            for name in own
            if name in theirs and is_always_written(name, written)
        )

    # ------------------------------------------------------------------------ values of each type

    def plain_pattern(self, schema: Schema) -> Regex:
        kinds = kinds_of(schema)
        if "enum" in schema:
            return one_of(fitting(schema))
        if kinds == KINDS and not set(schema) - {"type"}:
            return ANY_VALUE
        makers = {
            "object": self.object_of,
            "array": self.array_of,
            "string": self.string_of,
            "integer": number_of,
            "number": number_of,
            "boolean": lambda _: BOOLEAN,
            "null": lambda _: NULL,
        }
        return either(*(makers[kind]({**schema, "type": kind}) for kind in kinds))

    def object_of(self, schema: Schema) -> Regex:
        least, most = limits(schema, "minProperties", "maxProperties")
        required = schema.get("required", [])
        names = self.named(schema, required)
        if not names:
            return self.mapping_of(schema, least, most)
        require_dependencies(schema)
        members, may_lack = list[Regex](), list[bool]()
        for name, value in names.items():
            outer, self.back = self.back, set()
            pattern = self.at(f"properties/{name}", value)
            members.append(then(literal(text_of(name)), COLON, pattern))
            may_lack.append(name not in required and ("required" in schema or bool(self.back)))
            self.back |= outer
        if may_lack.count(False) < least or len(names) > (len(names) if most is None else most):
            raise ValueError(
                f"All {len(names)} properties are written. That must be between 'minProperties' "
                "and 'maxProperties'."
            )
        return then(literal("{"), in_order(members, may_lack), literal("}"))

    def named(self, schema: Schema, required: Any) -> dict[str, Any]:
        """Return the properties that are written, with what is said of their values."""
        names = {name: said_of(name, schema) for name in [*schema.get("properties", {}), *required]}
        if forbidden := [name for name in required if names[name] is False]:
            raise ValueError(f"The property {forbidden[0]!r} is required and forbidden.")
        return {name: value for name, value in names.items() if value is not False}

    def mapping_of(self, schema: Schema, least: int, most: int | None) -> Regex:
        """Return the expression of an object whose names the schema leaves open."""
        patterns = schema.get("patternProperties", {})
        if least > 1 or len(patterns) > 1 or (patterns and "propertyNames" in schema):
            raise ValueError(
                "Names that are left open are supported with 'minProperties' up to 1, and with one "
                "of 'patternProperties' or 'propertyNames'. Write 'properties'."
            )
        is_empty = "properties" in schema and not OPEN & set(schema)
        name, value = STRING, schema.get("additionalProperties", not is_empty)
        for pattern, own in patterns.items():
            name, value = self.string_of({"pattern": pattern}), own
        if "propertyNames" in schema:
            texts = self.both([{"type": ["string"]}], self.alternatives(schema["propertyNames"]))
            name = either(*map(self.plain_pattern, texts))
        if value is False:
            return mapping(NOTHING, least, 0)
        return mapping(then(name, COLON, self.at("additionalProperties", value)), least, most)

    def array_of(self, schema: Schema) -> Regex:
        least, most = limits(schema, "minItems", "maxItems")
        items, rest = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(rest, list):  # as in the drafts before 2020
            items, rest = rest, schema.get("additionalItems", True)
        if schema.get("uniqueItems") is True and most not in (0, 1):
            raise ValueError("'uniqueItems' is not supported with several items. Leave it out.")
        first = [self.at(f"items/{n}", item) for n, item in enumerate(items[:most])]
        most = len(first) if rest is False else most
        item = NOTHING if most == len(first) else self.at("items", rest)
        if not first:
            return array(item, least, most)
        limit = None if most is None else most - len(first)
        more = repeat(then(COMMA, item), max(least - len(first), 0), limit)
        return then(literal("["), in_order(first, [False] * len(first)), more, literal("]"))

    def string_of(self, schema: Schema) -> Regex:
        least, most = limits(schema, "minLength", "maxLength")
        pattern, known = schema.get("pattern"), schema.get("format")
        known = None if known in FREE_FORMATS else known
        if pattern is None and known is None:
            return quoted(repeat(CHARACTER, least, most))
        if known is not None and known not in FORMATS:
            names = ", ".join(FORMATS)
            raise ValueError(f"The format {known!r} is not supported. Known are {names}.")
        # Beside a pattern, a format only describes: zod writes both, and means the pattern.
        found = parse(FORMATS[known or ""] if pattern is None else pattern, SCHEMA, least, most)
        if found is NOTHING:
            raise ValueError(f"No text fits the pattern {pattern!r}.")
        self.require(found)
        return quoted(found)


def of_written_kinds(schema: Schema) -> Schema:
    """Say which types are written: the options of a `oneOf` are apart for values of these only."""
    return schema if "enum" in schema else {**schema, "type": kinds_of(schema)}


def pointer_of(schema: Schema) -> str:
    pointer = schema["$ref"]
    if not isinstance(pointer, str) or not f"{pointer}/".startswith("#/"):
        raise ValueError(f"'$ref' leads to a place of this schema, '#/…', not to {pointer!r}.")
    return pointer


def in_order(members: Sequence[Regex], may_lack: Sequence[bool]) -> Regex:
    """Return members one after the other, with commas between those that are there."""
    begun: Regex = EMPTY  # what comes after a member
    started: Regex = EMPTY  # what comes at the beginning
    for member, lacks in zip(reversed(members), reversed(may_lack), strict=True):
        with_member = then(member, begun)
        started = either(with_member, started) if lacks else with_member
        begun = either(then(COMMA, with_member), begun) if lacks else then(COMMA, with_member)
    return started


def with_texts(regex: Regex) -> set[Regex]:
    """Return the parts of an expression that have a text, if no expression is read for ever."""
    found, todo = [regex], {regex}
    for part in found:  # which grows meanwhile
        found += set(part.inner) - todo
        todo |= set(part.inner)
    finite, before = set[Regex](), -1
    while len(finite) > before:
        before = len(finite)
        for part in reversed(found):
            needed = all if isinstance(part, Then) else any
            has_parts = bool(part.inner) and needed(inner in finite for inner in part.inner)
            if part.has_empty or has_parts or (isinstance(part, AnyOf) and part is not NOTHING):
                finite.add(part)
    return finite


# -------------------------------------------------------------------------- values of one type


def text_of(value: Any) -> str:
    """Return a value as JSON. Raises ValueError for one that JSON doesn't have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        raise ValueError(
            f"{repr(value)[:100]} can't be written in JSON, which has no NaN, no infinity and no "
            "half of a UTF-16 pair."
        ) from None
    return text


def fitting(schema: Schema) -> list[str]:
    """Return the values of `enum` that fit the rest of a plain schema, as JSON."""
    texts = {text_of(value): value for value in schema["enum"]}
    fit = {text: value for text, value in texts.items() if not misfits(value, schema)}
    if not fit:
        raise ValueError(f"No value of {repr(schema['enum'])[:100]} fits the rest of the schema.")
    beside = {word for value in fit.values() for word in KEYWORDS[kind_of(value)] & set(schema)}
    if undecided := sorted(beside - DECIDED):
        raise ValueError(f"The keyword {undecided[0]!r} is not supported beside these values.")
    return list(fit)


def require_dependencies(schema: Schema) -> None:
    asked = {**schema.get("dependencies", {}), **schema.get("dependentRequired", {})}
    for name, others in asked.items():
        is_kept = are_names(others) and all(is_always_written(other, schema) for other in others)
        if name in schema.get("properties", {}) and not is_kept:
            raise ValueError(f"What depends on {name!r} can't be kept. Require it instead.")
    if "propertyNames" in schema:
        raise ValueError("'propertyNames' beside 'properties' is not supported. Leave it out.")


def limits(schema: Schema, lower: str, upper: str) -> tuple[int, int | None]:
    least, most = schema.get(lower, 0), schema.get(upper)
    if most is not None and most < least:
        raise ValueError(f"{upper!r} is {most}, which is less than {lower!r}, {least}.")
    return least, most


def number_of(schema: Schema) -> Regex:
    """Numbers within bounds are written without an exponent."""
    is_whole, known = schema["type"] == "integer", schema.get("format")
    step = schema.get("multipleOf", 1)
    if step != 1 or ("multipleOf" in schema and not is_whole):
        raise ValueError(f"'multipleOf' {step!r} is not supported. Leave it out.")
    if known is not None and known not in FORMATS_OF_NUMBERS:
        raise ValueError(
            f"The format {known!r} is not supported for numbers. Known are "
            f"{', '.join(FORMATS_OF_NUMBERS)}."
        )
    ends = {word: exact(schema[word]) for word in BOUNDS if word in schema}
    bounds = within(
        Bounds(ends.get("minimum"), ends.get("maximum")),
        Bounds(ends.get("exclusiveMinimum"), ends.get("exclusiveMaximum"), True, True),
        FORMATS_OF_NUMBERS[known] if known else Bounds(),
    )
    if bounds[:2] == (None, None):
        return INTEGER if is_whole else NUMBER
    found = whole_number(bounds) if is_whole else number(bounds)
    if found is NOTHING:
        raise ValueError(f"No {schema['type']} is within the bounds.")
    return found


def exact(value: float) -> Fraction:
    """Return a bound as it is written, 0.1; a whole one as validators have it, in binary: 1e23."""
    return Fraction(value) if value % 1 == 0 else Fraction(repr(value))
