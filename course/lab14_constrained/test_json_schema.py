"""A JSON schema as an expression: other people's validators accept each of its texts.

Schemas are random ones, and those that Pydantic, zod and OpenAPI write for everyday models. How
much work a schema takes is counted in expressions.
"""

import json
import math
import re
from contextlib import suppress
from datetime import date, datetime, timedelta
from enum import Enum
from fractions import Fraction
from itertools import product
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, HttpUrl, SecretStr

from solutions.grammars.json_schema import CHOICES, pattern_of
from solutions.grammars.json_text import FORMATS, SCHEMA, Bounds, number, whole_number
from solutions.grammars.regex import NOTHING, at_most, one_of, parse, repeat
from solutions.grammars.schemas import KEYWORDS, KINDS, fits_pattern
from tests.common.expressions import fits, random_text

seeds = st.integers(0, 9999)


def as_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


# ------------------------------------------------------------------- schemas, and who judges them

LATEST, OLDER = jsonschema.Draft202012Validator, jsonschema.Draft7Validator
NAMES = ["a", "b", "ab", "", 'é"']
PATTERNS = [
    *("", "^a", "b$", "x", "a+b?", "^[ab]{1,3}$", "^(a|b)$", "^x|1$", "^a$|^ab$", "(a$|b)", "^$"),
    *(r"^\d+$", r"^\w*$", r"\s", r"^\S{2,}$", r'^["\\]+$', "^.{2,4}$", "^[a-z]*$", r"^[^\s]{0,3}$"),
]
ENDS = [0.5, -0.5, 1.25, 10.01, -3.3, 1e-3, 0.1, 0.3, 1e-7, 99, 100, -1000, 1e20, 2**63]
VALUES = [None, True, False, -3, 0, 1, 1.0, 0.5, "a", "ab", "", "é\n", [], {}, [1], {"a": None}]
POINTERS = ["#", "#/$defs/one", "#/$defs/other"]


def joined(*parts: dict[str, Any]) -> dict[str, Any]:
    return {word: value for part in parts for word, value in part.items()}


def some(words: dict[str, Any], least: int = 0) -> Any:
    """Draw up to three of these keywords."""
    chosen = st.sets(st.sampled_from([*words]), min_size=least, max_size=3)
    return chosen.flatmap(lambda own: st.fixed_dictionaries({w: words[w] for w in sorted(own)}))


def larger(inner: Any, is_latest: bool) -> Any:
    """Draw a schema that has others in it."""
    names, patterns = st.sampled_from(NAMES), st.sampled_from(PATTERNS)
    ends, counts = st.integers(-12, 12) | st.sampled_from(ENDS), st.integers(0, 4)
    one = inner | st.booleans()
    several = st.lists(one, min_size=1, max_size=3)
    first, rest = ("prefixItems", "items") if is_latest else ("items", "additionalItems")
    numbers = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), ends)
    own = {
        "object": {
            "properties": st.dictionaries(names, one, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": one,
            "patternProperties": st.dictionaries(patterns, one, max_size=2),
            "propertyNames": st.fixed_dictionaries({"pattern": patterns}) | one,
            "minProperties": counts,
            "maxProperties": counts,
        },
        "array": {
            first: st.lists(one, max_size=3),
            rest: one,
            "minItems": counts,
            "maxItems": counts,
            "uniqueItems": st.booleans(),
        },
        "string": {"minLength": counts, "maxLength": st.integers(0, 9), "pattern": patterns},
        "number": numbers,
        "integer": numbers,
        "boolean": {"enum": st.just([True])},
        "null": {"enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=3)},
    }
    types = st.sampled_from([*own])
    typed = [st.builds(lambda words, kind=kind: words | {"type": kind}, some(words))
             for kind, words in own.items()]  # fmt: skip
    beside = st.one_of(*map(some, own.values()))
    choices = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
        "enum": st.lists(st.sampled_from(VALUES), min_size=1, max_size=4),
        "const": st.sampled_from(VALUES),
        "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
        **({"$ref": st.sampled_from(POINTERS)} if is_latest else {}),
    }
    tagged = st.dictionaries(names, one, max_size=2)
    return st.one_of(
        *typed,
        *typed,
        beside,
        st.builds(joined, beside, beside),
        st.builds(joined, beside, some(choices, 1)),
        some(choices, 1),
        st.sampled_from(POINTERS).map(lambda pointer: {"$ref": pointer}),
        st.sampled_from([*FORMATS]).map(lambda name: {"type": "string", "format": name}),
        st.tuples(tagged, tagged).map(
            lambda both: {"oneOf": [{"properties": {"kind": {"const": kind}, **more},
                                     "required": ["kind"]} for kind, more in enumerate(both)]}
        ),
    )  # fmt: skip


def schemas(is_latest: bool) -> Any:
    leaf = st.sampled_from(
        [*({"type": kind} for kind in KINDS), *({"$ref": place} for place in POINTERS), {}]
    )
    inner = st.recursive(leaf, lambda inner: larger(inner, is_latest), max_leaves=5)
    return st.builds(
        lambda root, one, other: root | {"$defs": {"one": one, "other": other}},
        *(larger(inner, is_latest) for _ in range(3)),
    )


@pytest.mark.parametrize("validator", [LATEST, OLDER])
def test_texts_of_a_random_schema_fit_it(validator):
    @given(schemas(validator is LATEST), seeds)
    def each(schema: Any, seed: int) -> None:
        try:
            with at_most(100_000, "This schema"):
                regex = pattern_of(schema)
        except ValueError:
            return
        judge = validator(schema, format_checker=validator.FORMAT_CHECKER)
        texts = [random_text(regex, n, 30) for n in (seed, seed + 1)]
        assert [text for text in texts if not judge.is_valid(json.loads(text))] == []

    each()


# --------------------------------------------------------------- what is written, and what isn't

A_STRING = {"type": "string", "maxLength": 5}
TRUTHS = {"type": "array", "items": {"type": "boolean"}}
OBJECT = {"type": "object", "properties": {"b": {"type": "null"}, "a": A_STRING}}


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        (A_STRING, ["", 'a"\\\n\u20ac'], ["longer", 3, None]),
        ({"type": "string", "pattern": ""}, ["", "é"], [None]),
        ({"type": "string", "pattern": r"^\S$"}, ["é"], list(" \u00a0\u2003\u2029\ufeff")),
        ({"type": "string", "pattern": "^.$"}, [" ", '"', "\\", "\u00a0"], list("\n\r\u2028")),
        ({"type": "string", "pattern": r'^["\\]$'}, ['"', "\\"], ["a"]),
        ({"type": "string", "pattern": "^a$|^ab$"}, ["a", "ab"], ["b", "aab", "aba"]),
        ({"type": "string", "format": "date"}, ["0001-02-28", "2000-02-29"], ["0000-01-01"]),
        ({"type": "integer", "minimum": 0, "maximum": 1e23}, [10**22], [10**23]),
        ({"type": "string", "enum": ["a", None]}, ["a"], [None]),
        (
            {"type": ["number", "null"], "allOf": [{"type": ["integer", "null"]}]},
            [1, None],
            [1.5],
        ),
        ({"type": ["integer", "null"], "enum": [1, False, "a", None]}, [1, None], [False, "a"]),
        ({"type": "string", "pattern": "^[a-z]{2}-.$"}, ["ab-é", 'ab-"'], ["ab-", "ab-cd"]),
        ({"enum": ["king", "wölf"]}, ["king", "wölf"], ["witch", "kin"]),
        (
            {"anyOf": [{"type": "null"}, {"const": {"of": [1, "x"]}}]},
            [None, {"of": [1, "x"]}],
            [{}],
        ),
        ({"type": "number"}, [0, -1.5e-07, 12.25], [True, "1"]),
        ({"type": "string", "minLength": 2}, ["éé", "é" * 9], ["", "é"]),
        ({"type": "string", "minLength": 2, "maxLength": 4}, ["éé", "é" * 4], ["é", "é" * 5]),
        (TRUTHS, [[], [True], [False] * 9], [[None]]),
        (TRUTHS | {"maxItems": 0}, [[]], [[True]]),
        (TRUTHS | {"minItems": 2}, [[True] * 2, [True] * 9], [[], [True]]),
        (TRUTHS | {"minItems": 1, "maxItems": 2}, [[True], [False, True]], [[], [True] * 3]),
        (OBJECT, [{"b": None, "a": "é"}], [{"a": "é", "b": None}, {"b": None}, {}]),
        (OBJECT | {"required": ["b"], "title": "Two"}, [{"b": None, "a": ""}], [[]]),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
        ({"properties": {}, "additionalProperties": {"type": "null"}}, [{"a": None}], [{"a": 1}]),
    ],
)
def test_texts_are_the_values_that_fit(schema, fitting, others):
    """As Python writes them. Each text is JSON, and fits when it is written again."""
    regex = pattern_of(schema)
    written = [json.loads(random_text(regex, seed)) for seed in range(20)]
    finite = [value for value in written if value not in (math.inf, -math.inf)]
    right, wrong = (list(map(as_json, values)) for values in (fitting + finite, others))
    for text in right + wrong:
        assert fits(regex, text) == (text in right), text


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"not": {}}, "'not' is not supported"),
        ({"$ref": "#/x"}, "which isn't there"),
        ({"$ref": "other.json"}, "a place of this schema"),
        ({"type": "string", "format": "color"}, "format 'color' is not supported. Known are date"),
        ({"type": "string", "pattern": "^(ab)+$", "maxLength": 3}, "other lengths"),
        ({"type": "string", "pattern": "^\ud800$"}, "No text fits the pattern"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "No integer is within the bounds"),
        ({"type": "integer", "minimum": True}, "'minimum' is a number below 10"),
        ({"type": "array", "items": A_STRING, "maxItems": -1}, "a whole number, 0 or more, not -1"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' is not supported"),
        ({"enum": []}, "a list that isn't empty"),
        ({"type": "integer", "enum": ["a", False]}, "No value of"),
        ({"const": math.nan}, "no NaN, no infinity"),
        ({"enum": [1e400]}, "inf can't be written in JSON"),
        ({"type": "array", "items": False, "minItems": 1}, "No value fits"),
        ({"type": ["integer", "number"], "allOf": [{"type": "object"}]}, "No value fits"),
        (
            {"type": "string", "allOf": [{"oneOf": [{"minimum": 2}, {"maximum": 1}]}]},
            "No value fits",  # a text would fit both
        ),
        ({"required": [["a"]]}, "'required' is a list of texts"),
        ({"$ref": {}}, "'#/…', not to {}"),
        (
            {"properties": {"a": {"type": "string", "pattern": "^a{3000}$"}}},
            "properties/a: .* has 3,002",
        ),
        ({"enum": ["\ud800"]}, "half of a UTF-16 pair"),
        (False, "No value fits"),
        (3, "A schema is an object"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, "both options 0 and 1 of 'oneOf'"),
        (
            {"properties": {"a": {"items": {"type": "odd"}}}},
            "At #/properties/a/items: A type is one of",
        ),
        (
            {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "The schema at # holds itself without an end",
        ),
        ({"type": "array", "items": {"anyOf": [{"$ref": "#"}]}, "minItems": 1}, "without an end"),
    ],
)
def test_refusals(schema, told):
    with pytest.raises(ValueError, match=told):
        pattern_of(schema)


odd = st.recursive(
    st.sampled_from([None, True, -1, 3, 0.5, "^a$", "a"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["a", *sorted(CHOICES)]), inner, max_size=1),
        *(
            st.fixed_dictionaries({"type": st.just(kind)}, optional=dict.fromkeys(words, inner))
            for kind, words in KEYWORDS.items()
        ),
    ),
    max_leaves=6,
)


@given(odd)
def test_any_schema_is_a_pattern_or_refused(schema):
    with suppress(ValueError):
        pattern_of(schema)


# --------------------------------------------------------------- parts of expressions and numbers

ends = st.none() | st.integers(-300, 300).map(lambda n: Fraction(n, 10)) | st.sampled_from(
    [Fraction(repr(end)) for end in (0, *ENDS)]
)  # fmt: skip
BITS = [-1, Fraction(-1, 10), Fraction(-1, 1000), 0, Fraction(1, 1000), Fraction(11, 200), 1]


@given(st.builds(Bounds, ends, ends, st.booleans(), st.booleans()), ends, seeds)
def test_bounds_of_numbers_are_exact(bounds, other, seed):
    low, high, low_is_open, high_is_open = bounds
    near = [end + bit for end in (low, high, other) if end is not None for bit in BITS]
    numbers, integers = number(bounds), whole_number(bounds)
    for value in [*near, *map(int, near)]:
        above = low is None or low < value or (low == value and not low_is_open)
        below = high is None or value < high or (high == value and not high_is_open)
        text = decimal(value).encode()
        assert fits(numbers, text) == (above and below), text
        assert fits(integers, text) == (above and below and b"." not in text), text
    for regex in {numbers, integers} - {NOTHING}:
        value = Fraction(random_text(regex, seed))
        assert low is None or low <= value
        assert high is None or value <= high
        assert low != value or not low_is_open
        assert high != value or not high_is_open
    for text in (b"00", b"01", b"-01", b"", b"-", b"1.", b"-.5", b"-0"):
        assert not fits(numbers, text)


def decimal(value: Fraction) -> str:
    """Write a number that has a finite number of decimal places."""
    places = next(n for n in range(400) if value * 10**n % 1 == 0)
    digits = str(abs(int(value * 10**places))).zfill(places + 1)
    point = f".{digits[-places:]}" if places else ""
    return ("-" if value < 0 else "") + digits[: len(digits) - places] + point


@given(st.lists(st.text("abé", max_size=3), min_size=1, max_size=8), st.text("abé", max_size=3))
def test_one_of_has_its_texts_and_no_others(texts, other):
    regex = one_of(texts)
    assert all(fits(regex, text.encode()) for text in texts)
    assert fits(regex, other.encode()) == (other in texts)


BODIES = ["a", "ab|a", "a*", "a?", "(a|b*)(a?)", "()", "b|", "(a?b?)+"]


@given(st.sampled_from(BODIES), st.integers(0, 4), st.none() | st.integers(0, 5))
def test_a_repetition_has_the_texts_of_fullmatch(body, least, more):
    regex = repeat(parse(body), least, None if more is None else least + more)
    most = "" if more is None else least + more
    for text in map("".join, (letters for n in range(5) for letters in product("ab", repeat=n))):
        wanted = bool(re.fullmatch(f"(?:{body}){{{least},{most}}}", text))
        assert fits(regex, text.encode()) == wanted, text


pieces = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\S", r"\s", '"', r"\\", "1"]
)
bodies = st.lists(
    st.builds(str.__add__, pieces, st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,3}"])),
    max_size=3,
).map("".join)
branches = st.tuples(st.sampled_from(["", "^"]), bodies, st.sampled_from(["", "$"])).map("".join)


@given(st.lists(branches, min_size=1, max_size=3), st.text('ab1"\\ _', max_size=6))
def test_schemas_search_for_their_pattern(several, text):
    pattern = "|".join(several)
    wanted = bool(re.search(pattern, text, re.ASCII))
    assert fits_pattern(text, pattern) == wanted
    assert fits(parse(pattern, SCHEMA), as_json(text)[1:-1]) == wanted


# ------------------------------------------------------------------------- models of other people


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: Annotated[int, Field(ge=0, lt=10)]


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    name: str | None = None


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []
    parent: "Tree | None" = None


class Order(BaseModel):
    """An order."""

    id: UUID
    day: date
    at: datetime
    length: timedelta
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    either: Cat | Dog | int | str
    color: Color
    stock: dict[str, int]
    pets: dict[str, Cat]
    lines: Annotated[list[Cat], Field(min_length=1, max_length=3)]
    price: Annotated[float, Field(gt=0, le=99.95)]
    amount: Annotated[int, Field(ge=0, le=2**53 - 1)]
    code: Annotated[str, Field(pattern=r"^[A-Z]{3}-\d{4}$")]
    word: Annotated[str, Field(min_length=1, max_length=255)]
    pair: tuple[int, str]
    site: HttpUrl
    secret: SecretStr
    anything: Any = None


@pytest.mark.parametrize("model", [Cat, Dog, Tree, Order])
def test_pydantic_reads_the_texts_of_its_schema(model):
    regex = pattern_of(model.model_json_schema())
    for seed in range(5):
        model.model_validate_json(random_text(regex, seed))


SAFE = {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1}
A, B = ({"type": "object", "properties": {name: SAFE}, "required": [name]} for name in "ab")
ZOD = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "year": SAFE | {"exclusiveMinimum": 0, "maximum": 3000},
        "scores": {
            "type": "object",
            "propertyNames": {"type": "string"},
            "additionalProperties": {"type": "number"},
        },
        "both": {"allOf": [A, B]},
        "self": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["year", "scores", "both", "self"],
    "additionalProperties": False,
}
OPENAPI = {
    "type": "object",
    "title": "Pet",
    "x-internal-id": 3,
    "xml": {"name": "Pet"},
    "externalDocs": {"url": "https://pets.example"},
    "discriminator": {"propertyName": "kind"},
    "required": ["id", "name"],
    "properties": {
        "id": {"type": "integer", "format": "int64", "readOnly": True, "example": 10},
        "kind": {"type": "string", "enum": ["cat", "dog"], "default": "cat"},
        "name": {"type": "string", "example": "Tom", "nullable": True, "deprecated": True},
        "weight": {"type": "number", "format": "double", "minimum": 0, "exclusiveMinimum": True},
        "owner": {"allOf": [{"$ref": "#/components/schemas/Owner"}], "description": "Who"},
        "status": {"type": "string", "nullable": True, "enum": ["sold", None]},
        "photos": {"type": "array", "items": {"type": "string", "format": "uri"}, "x-order": 1},
        "password": {"type": "string", "format": "password", "writeOnly": True},
    },
    "components": {
        "schemas": {
            "Owner": {
                "type": "object",
                "properties": {"since": {"type": "string", "format": "date-time"}},
            }
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "validator"), [(ZOD, LATEST), (OPENAPI, jsonschema.Draft4Validator)]
)
def test_schemas_of_zod_and_openapi_are_kept(schema, validator):
    regex, judge = pattern_of(schema), validator(schema, format_checker=validator.FORMAT_CHECKER)
    for seed in range(5):
        judge.validate(json.loads(random_text(regex, seed)))
