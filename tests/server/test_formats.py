"""Answers that keep to a JSON schema: alone, in batches, drafted, sampled, preempted."""

import inspect
import json
import queue
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from autograder.check import mine
from autograder.notebook.passed import kept_file
from solutions import constrained as lab_14
from solutions.decoding import GREEDY
from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import at_most
from solutions.server import formats
from solutions.server.engine_process import EngineProcess
from solutions.server.formats import Guides, read_format
from solutions.server.loaded import read_tokenizer
from solutions.server.messages import TextRequest
from solutions.server.settings import Settings

KINDS = ["king", "queen", "witch", "wolf"]
PERSON = {
    "type": "object",
    "properties": {
        "kind": {"enum": KINDS},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
        "word": {"type": "string", "pattern": "^[a-z]{1,8}$"},
    },
}
LIST = {"type": "array", "items": {"enum": ["yes", "no"]}, "minItems": 2, "maxItems": 3}
PROMPT = "The old woman said: "


def nested(schema, levels):
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def asked(client, schema, **more):
    body = {"model": "fable", "prompt": PROMPT, "max_tokens": 80, **more}
    body["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return client.post("/v1/completions", json=body)


def finished(response):
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return choice["text"]


def require_person(text):
    person = json.loads(text)
    assert list(person) == list(PERSON["properties"])
    assert person["kind"] in KINDS
    assert 1 <= person["age"] <= 120
    assert person["word"].isalpha()


@pytest.mark.parametrize("more", [{"temperature": 0}, {"seed": 3}, {"seed": 4, "top_k": 5}])
def test_an_answer_is_a_value_of_the_schema_also_with_drafts(client, more):
    texts = [
        finished(asked(client, PERSON, speculation=speculation, **more))
        for speculation in (False, True)
    ]
    for text in texts:
        require_person(text)
    assert "temperature" not in more or texts[0] == texts[1]


def test_requests_of_one_batch_have_their_own_schemas(client):
    plain = {"model": "fable", "prompt": PROMPT, "seed": 1}
    with ThreadPoolExecutor(12) as threads:
        people, lists = (
            [threads.submit(asked, client, schema, seed=n, speculation=True) for n in range(6)]
            for schema in (PERSON, LIST)
        )
        free = threads.submit(client.post, "/v1/completions", json=plain)
    for person in people:
        require_person(finished(person.result()))
    for answer in lists:
        assert 2 <= len(json.loads(finished(answer.result()))) <= 3
    assert free.result().json()["choices"][0]["finish_reason"] == "length"


def test_a_text_that_is_cut_at_its_limit_says_so(client):
    [choice] = asked(client, PERSON, max_tokens=3).json()["choices"]
    assert choice["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["text"])


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"$ref": "#/definitions/a"}, "$ref"),
        ({"properties": {"a": {"type": "string", "pattern": "^(.*x){100}$"}}}, "properties/a"),
        (nested({"type": "null"}, 450), "nested"),
    ],
)
def test_a_schema_that_isnt_supported_is_refused_with_a_sentence(client, schema, word):
    response = asked(client, schema)
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]


def test_a_whole_text_has_stopped_also_without_room_for_the_token_that_ends_it(client):
    def greedy(**limit):
        return asked(client, {"const": KINDS}, temperature=0, **limit)

    tokens = greedy().json()["usage"]["completion_tokens"]
    assert json.loads(finished(greedy(max_tokens=tokens - 1))) == KINDS


@pytest.mark.parametrize(("kind", "fine"), [("text", True), ("json_object", True), ("xml", False)])
def test_plain_text_is_a_format_too_and_others_are_refused(client, kind, fine):
    body = {"model": "fable", "prompt": PROMPT, "response_format": {"type": kind}}
    status = client.post("/v1/completions", json=body).status_code
    assert status in ((200,) if fine else (400, 422))


SCHEMAS = [
    PERSON,
    {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 5}, "maxItems": 2},
    {"type": "string", "pattern": "^(a|an?|[b-e]{0,30}é)*(the|ther)?.$"},
    {"type": "number", "exclusiveMinimum": -2.5, "maximum": 40},
    {"anyOf": [{"const": "the"}, {"enum": ["there", 12, None]}, {"type": "boolean"}]},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_masks_are_those_of_an_index(schema, vocabulary):
    regex, guides = pattern_of(schema), Guides(lab_14, vocabulary)
    index = lab_14.IndexGuide(lab_14.automaton_of(regex), guides.masks.vocabulary.texts, 0)
    lazy = guides.guide(json.dumps(schema))
    pairs = [(index.start(), lazy.start())]
    for state, remains in pairs:  # which grows meanwhile
        allowed = lazy.allowed(remains)
        assert allowed.equal(index.allowed(state))
        some = allowed.nonzero().flatten().tolist()[:: max(1, int(allowed.sum()) // 5)]
        new = [(index.advance(state, token), lazy.advance(remains, token)) for token in some]
        pairs += [pair for pair in dict.fromkeys(new) if pair not in pairs][: 60 - len(pairs)]


# ------------------------------------------------------------------------------------------ work


def strings(*lengths):
    fields = {f"field {n}": {"type": "string", "maxLength": most} for n, most in enumerate(lengths)}
    return {"type": "object", "properties": fields}


def pattern(text):
    return {"type": "string", "pattern": text}


LARGE = [
    strings(10, 127, 10, 3, 50, 127),
    strings(*[20] * 8),
    strings(255, 1000, 10**9),
    {"enum": [f"America/City {n * 7919 % 1000}" for n in range(430)]},
    {"const": 19 * "abcdefghijklmnopqrstuvwxyz"},
    {"properties": {f"property number {n}": {"type": "boolean"} for n in range(30)}},
    {"anyOf": [{"properties": {"kind": {"const": n}, "x": {"type": "null"}}} for n in range(100)]},
    {"properties": {"a": {"type": "boolean"}, "b": {"const": "x" * 350}}},
    {"type": "integer", "minimum": -(2**53 - 1), "maximum": 2**53 - 1},
    {"type": "integer", "minimum": 10**16},
    *map(pattern, ["^(é|.{2}){0,60}$", "^[^x]*x[^y]{0,300}$", "[0-9]{1,300}x[0-9]{1,300}"]),
]


@pytest.mark.parametrize("schema", LARGE)
def test_the_work_is_as_the_schema_is_long_however_much_it_repeats(schema, vocabulary, monkeypatch):
    """Work is counted in expressions: for the schema, for each mask and for each token."""
    text, draw = json.dumps(schema), random.Random(3)
    most = 10_000 + 3 * len(text)
    monkeypatch.setattr(formats, "MOST_FOR_A_MASK", most)
    read_format.cache_clear()
    with at_most(most, "The schema"):
        guide = Guides(lab_14, vocabulary).guide(text)
    state, token = guide.start(), -1
    for _ in range(30):
        token = draw.choice(guide.allowed(state).nonzero().flatten().tolist())
        if token == 0:
            break
        with at_most(most, "A token"):
            state = guide.advance(state, token)


@pytest.mark.parametrize(
    "text",
    ["^(.*x){100}$", "^(a?){1000}a{1000}$", f"^{'a?' * 90}{'a' * 90}b$"],
)
def test_a_pattern_that_takes_long_is_refused_after_little_work_and_remembered(text):
    schema = json.dumps(pattern(text))
    read_format.cache_clear()
    with at_most(5000, "The schema"):
        sentence = read_format(lab_14.derivative, schema)
    assert isinstance(sentence, str)
    with at_most(0, "The schema again"):
        assert read_format(lab_14.derivative, schema) == sentence


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [f"{n:040}" for n in range(20_000)], "pattern": "(1*)*2"},
        {"properties": {"a" * 10_000: {}}, "patternProperties": {"(a*)*b": False}},
        {"allOf": [{"anyOf": [{"minLength": n}, {"maxLength": n}]} for n in range(20)]},
    ],
)
def test_a_schema_that_takes_long_is_refused(schema):
    sentence = read_format(lab_14.derivative, json.dumps(schema))
    assert isinstance(sentence, str)
    assert re.search("takes more than 300,000 steps|more than 20,000 parts", sentence)


def test_nothing_is_computed_before_a_text_comes_to_it_and_masks_are_forgotten(
    vocabulary, monkeypatch
):
    monkeypatch.setattr(formats, "MOST_MASKS", 9)
    guides, most = Guides(lab_14, vocabulary), 0
    for n in range(20):
        guide = guides.guide(json.dumps({"enum": [f"{n} kings", f"{n} queens"]}))
        assert len(guides.masks.kept) <= 9
        before = len(guides.masks.kept)
        guide.start()
        assert len(guides.masks.kept) == before
        guide.allowed(guide.start())
        most = max(most, len(guides.masks.kept) - before)
    assert most < 5


@pytest.mark.slow
def test_a_learners_own_lab_writes_formats_in_another_process(tmp_path, monkeypatch):
    """Its classes can't be sent between processes: only the schema's text is."""
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path))
    kept, own = kept_file("constrained.derivative"), inspect.getsource(lab_14.derivative)
    kept.parent.mkdir(parents=True)
    kept.write_text(f"{own}\n\nopen({str(tmp_path / 'read')!r}, 'w').close()\n")
    engine, outputs = EngineProcess(Settings(model="fable", threads=1), mine), queue.Queue()
    engine.deliver = outputs.put
    engine.wait()
    engine.start()
    kinds = json.dumps({"enum": KINDS})
    engine.submit(TextRequest("one", [5, 6], 40, GREEDY, 1, 0, language=kinds))
    came, reason = [], None
    while reason is None:
        for _, output in outputs.get(timeout=120):
            came, reason = came + output.new_ids, output.finish_reason
    engine.stop()
    assert json.loads(read_tokenizer("fable").decode(came)) in KINDS
    assert (tmp_path / "read").exists()
