"""Answers that keep to a JSON schema: alone, in batches, drafted, sampled, preempted."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from tokenizers import Tokenizer

from gpt import find_checkpoint
from solutions import constrained as lab_14
from solutions.grammars.json_schema import pattern_of
from solutions.server.formats import Guides

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


def test_the_openai_client_asks_for_a_schema(server):
    known = {"name": "person", "schema": PERSON, "strict": True}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as ai:
        answer = ai.chat.completions.create(
            model="fable",
            messages=[{"role": "user", "content": "Who?"}],
            response_format={"type": "json_schema", "json_schema": known},
        )
    require_person(answer.choices[0].message.content)


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
def test_masks_are_those_of_an_index(schema):
    tokenizer = Tokenizer.from_file(str(find_checkpoint("fable") / "tokenizer.json"))
    regex, guides = pattern_of(schema), Guides(lab_14, tokenizer, 0)
    index = lab_14.IndexGuide(lab_14.automaton_of(regex), guides.masks.vocabulary, 0)
    lazy = guides.guide(json.dumps(schema))
    pairs = [(index.start(), lazy.start())]
    for state, remains in pairs:  # which grows meanwhile
        allowed = lazy.allowed(remains)
        assert allowed.equal(index.allowed(state))
        some = allowed.nonzero().flatten().tolist()[:: max(1, int(allowed.sum()) // 5)]
        new = [(index.advance(state, token), lazy.advance(remains, token)) for token in some]
        pairs += [pair for pair in dict.fromkeys(new) if pair not in pairs][: 60 - len(pairs)]
