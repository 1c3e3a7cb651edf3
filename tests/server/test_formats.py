"""Answers that keep to a JSON schema: alone, in batches, drafted, sampled, preempted."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import BaseModel
from tokenizers import Tokenizer

from gpt import find_checkpoint
from solutions.constrained import IndexGuide, automaton_of, vocabulary_bytes
from solutions.grammars.json_schema import pattern_of
from solutions.server.formats import Names, TrieGuide, trie_of

PERSON = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["king", "queen", "witch", "wolf"]},
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


def value_of(response):
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return json.loads(choice["text"])


def require_person(person):
    assert list(person) == list(PERSON["properties"])
    assert person["kind"] in ["king", "queen", "witch", "wolf"]
    assert 1 <= person["age"] <= 120
    assert person["word"].isalpha()


@pytest.mark.parametrize("more", [{"temperature": 0}, {"seed": 3}, {"seed": 4, "top_k": 5}])
@pytest.mark.parametrize("speculation", [False, True])
def test_an_answer_is_a_value_of_the_schema(client, more, speculation):
    require_person(value_of(asked(client, PERSON, speculation=speculation, **more)))


def test_speculation_doesnt_change_a_greedy_answer(client):
    texts = [
        asked(client, PERSON, temperature=0, speculation=speculation).json()["choices"][0]["text"]
        for speculation in (False, True)
    ]
    assert texts[0] == texts[1]


def test_requests_of_one_batch_have_their_own_schemas(client):
    with ThreadPoolExecutor(12) as threads:
        futures = [
            threads.submit(asked, client, [PERSON, LIST][number % 2], seed=number, speculation=True)
            for number in range(12)
        ]
        plain = threads.submit(
            client.post, "/v1/completions", json={"model": "fable", "prompt": PROMPT, "seed": 1}
        )
    for number, future in enumerate(futures):
        value = value_of(future.result())
        if number % 2:
            assert 2 <= len(value) <= 3
        else:
            require_person(value)
    assert plain.result().json()["choices"][0]["finish_reason"] == "length"


def test_a_text_that_is_cut_at_its_limit_says_so(client):
    [choice] = asked(client, PERSON, max_tokens=3).json()["choices"]
    assert choice["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["text"])


def test_the_openai_client_parses_an_answer_into_a_model(server):
    import openai

    class Answer(BaseModel):
        kind: str
        age: int
        word: str

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as ai:
        answer = ai.chat.completions.create(
            model="fable",
            messages=[{"role": "user", "content": "Who?"}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            },
        )
    Answer.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"$ref": "#/definitions/a"}, "$ref"),
        ({"type": ["string", "null"]}, "anyOf"),
        ({"type": "string", "format": "date"}, "'format'"),
        ({"type": "string", "maxLength": 900}, "tightly"),
        (nested({"type": "null"}, 450), "nested"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, "at least 5"),
    ],
)
def test_a_schema_that_isnt_supported_is_refused_with_a_sentence(client, schema, word):
    response = asked(client, schema)
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["json_object", "grammar"])
def test_another_format_is_refused(client, kind):
    body = {"model": "fable", "prompt": PROMPT, "response_format": {"type": kind}}
    assert client.post("/v1/completions", json=body).status_code in (400, 422)


def test_plain_text_is_a_format_too(client):
    body = {"model": "fable", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    texts = [
        client.post("/v1/completions", json=body | more).json()["choices"][0]["text"]
        for more in ({}, {"response_format": {"type": "text"}})
    ]
    assert texts[0] == texts[1]


def test_a_trie_gives_the_masks_of_an_index():
    tokenizer = Tokenizer.from_file(str(find_checkpoint("fable") / "tokenizer.json"))
    vocabulary = vocabulary_bytes(Names(tokenizer))
    automaton = automaton_of(pattern_of(PERSON))
    index, trie = (
        IndexGuide(automaton, vocabulary, 0),
        TrieGuide(automaton, vocabulary, trie_of(vocabulary), 0),
    )
    for state, ends in enumerate(index.index):
        assert trie.allowed(state).equal(index.allowed(state))
        assert [trie.advance(state, token) for token in ends] == list(ends.values())
