"""Answers that keep to a JSON schema: alone, in batches, drafted, sampled, preempted."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from tokenizers import Tokenizer

from gpt import find_checkpoint
from solutions.constrained import IndexGuide, automaton_of, vocabulary_bytes
from solutions.grammars.json_schema import pattern_of
from solutions.server.formats import Names, TrieGuide, trie_of

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
        ({"type": "string", "maxLength": 900}, "tightly"),
        (nested({"type": "null"}, 450), "nested"),
    ],
)
def test_a_schema_that_isnt_supported_is_refused_with_a_sentence(client, schema, word):
    response = asked(client, schema)
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]


@pytest.mark.parametrize(("kind", "fine"), [("text", True), ("json_object", False), ("xml", False)])
def test_plain_text_is_a_format_too_and_others_are_refused(client, kind, fine):
    body = {"model": "fable", "prompt": PROMPT, "response_format": {"type": kind}}
    status = client.post("/v1/completions", json=body).status_code
    assert status in ((200,) if fine else (400, 422))


def test_a_trie_gives_the_masks_of_an_index():
    tokenizer = Tokenizer.from_file(str(find_checkpoint("fable") / "tokenizer.json"))
    vocabulary, automaton = vocabulary_bytes(Names(tokenizer)), automaton_of(pattern_of(PERSON))
    index = IndexGuide(automaton, vocabulary, 0)
    trie = TrieGuide(automaton, vocabulary, trie_of(vocabulary), 0)
    for state, ends in enumerate(index.index):
        assert trie.allowed(state).equal(index.allowed(state))
        assert [trie.advance(state, token) for token in ends] == list(ends.values())
