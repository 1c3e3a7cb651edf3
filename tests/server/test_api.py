"""The server's API: right texts, whole and streamed, and a sentence for bad input."""

import json
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTLMHead, load_tokenizer
from solutions.generate import generate
from solutions.server.guard import Guard
from solutions.server.loaded import read_tokenizer
from solutions.server.settings import Settings
from solutions.server.tokens import Growing, TokenBytes
from tests.common.clients import BEGINNING, body, events

TOKENIZER = load_tokenizer("fable")
TOKEN_BYTES = TokenBytes(read_tokenizer("fable"))


@pytest.fixture(scope="module")
def naive():
    """The naive loop's greedy continuation of a text, by `limit` tokens."""
    model = GPTLMHead.from_pretrained("fable")

    def continued(text: str, limit: int) -> str:
        ids = torch.tensor([TOKENIZER(text)["input_ids"]])
        return TOKENIZER.decode(generate(model, ids, limit)[0, ids.shape[1] :].tolist())

    return continued


def text_of(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def streamed(client, **given):
    response = client.post("/v1/completions", json=body(stream=True, **given))
    assert response.headers["content-type"].startswith("text/event-stream")
    return list(events(response.text))


@pytest.mark.parametrize("speculation", [False, True])
def test_greedy_text_is_that_of_the_naive_loop(client, naive, speculation):
    given = body(max_tokens=24, speculation=speculation)
    assert text_of(client.post("/v1/completions", json=given)) == naive(BEGINNING, 24)


def test_the_streamed_pieces_make_up_the_whole_answer(client):
    whole = client.post("/v1/completions", json=body()).json()
    *pieces, usage = streamed(client, stream_options={"include_usage": True})
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole["choices"][0]["text"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 16
    reasons = [piece["choices"][0]["finish_reason"] for piece in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["length"]
    assert len({piece["id"] for piece in pieces}) == 1


def test_without_include_usage_no_event_has_usage(client):
    assert all("usage" not in event for event in streamed(client))


def test_token_ids_are_taken_like_their_text(client):
    ids = TOKENIZER(BEGINNING)["input_ids"]
    both = [client.post("/v1/completions", json=body(prompt=p)) for p in (BEGINNING, ids)]
    assert text_of(both[0]) == text_of(both[1])


def test_several_prompts_and_several_texts_are_numbered_in_order(client, naive):
    prompts = ["The wolf said", "The queen said"]
    given = body(prompt=prompts, n=2, max_tokens=6)
    answer = client.post("/v1/completions", json=given).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    expected = [naive(prompt, 6) for prompt in prompts for _ in range(2)]
    assert [choice["text"] for choice in answer["choices"]] == expected
    texts = [""] * 4
    for event in streamed(client, prompt=prompts, n=2, max_tokens=6):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == expected
    assert answer["usage"]["completion_tokens"] == 24


def test_a_seed_repeats_a_sampled_text_and_texts_of_one_request_differ(client):
    given = body(temperature=1, seed=7, n=3)
    first, again = (client.post("/v1/completions", json=given).json() for _ in range(2))
    texts = [choice["text"] for choice in first["choices"]]
    assert texts == [choice["text"] for choice in again["choices"]]
    assert len(set(texts)) == 3


def test_no_two_seeds_share_a_text(client):
    texts = list[str]()
    for seed, n in [(3, 2), (4, 1), (-1, 1), (2**63 - 1, 1), (2**64 - 1, 1)]:
        given = body(temperature=1, max_tokens=8, seed=seed, n=n)
        choices = client.post("/v1/completions", json=given).json()["choices"]
        texts += (choice["text"] for choice in choices)
    assert len(set(texts)) == len(texts) == 6


def test_a_stop_string_ends_the_text_before_it(client, naive):
    whole = naive(BEGINNING, 24)
    stop = whole[10:14]
    choice = client.post("/v1/completions", json=body(max_tokens=24, stop=[stop])).json()
    assert choice["choices"][0]["text"] == whole[: whole.index(stop)]
    assert choice["choices"][0]["finish_reason"] == "stop"
    pieces = streamed(client, max_tokens=24, stop=stop)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole[: whole.index(stop)]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("speculation", [False, True])
def test_tokens_behind_a_stop_string_are_neither_counted_nor_reported(client, speculation, streams):
    prompt = "“Good morning,” said the wolf to the little girl."
    given = {"prompt": prompt, "max_tokens": 30, "logprobs": 1, "speculation": speculation}
    if streams:
        *pieces, last = streamed(
            client, **given, stop="ked", stream_options={"include_usage": True}
        )
        usage, logprobs = last["usage"], [p["choices"][0]["logprobs"] for p in pieces]
        tokens = [token for one in logprobs if one for token in one["tokens"]]
    else:
        answer = client.post("/v1/completions", json=body(**given, stop="ked")).json()
        usage, tokens = answer["usage"], answer["choices"][0]["logprobs"]["tokens"]
    unstopped = client.post("/v1/completions", json=body(**given)).json()["choices"][0]
    written = unstopped["logprobs"]["tokens"]
    count = next(n for n in range(1, 31) if "ked" in "".join(written[:n]))
    assert tokens == written[:count]
    assert usage["completion_tokens"] == count


@pytest.mark.parametrize("speculation", [False, True])
def test_a_stop_string_ends_a_text_in_the_engine(server, client, naive, speculation, monkeypatch):
    aborted = list[str]()
    monkeypatch.setattr(server.app.state.service.engine, "abort", aborted.append)
    stop = naive(BEGINNING, 24)[40:44]
    given = body(max_tokens=900, stop=[stop], speculation=speculation)
    assert client.post("/v1/completions", json=given).is_success
    assert not aborted


def test_text_offsets_are_the_same_streamed_and_whole_and_count_whole_characters(client):
    given = {"prompt": "She said: ", "max_tokens": 12, "logprobs": 0, "echo": True}
    half = '{"type": "string", "pattern": "^„Grüße“ an alle$"}'
    given["response_format"] = {"type": "json_schema", "json_schema": {"schema": json.loads(half)}}
    choice = client.post("/v1/completions", json=body(**given)).json()["choices"][0]
    whole = choice["logprobs"]
    offsets = [
        offset
        for piece in streamed(client, **given, stop=["never found"])
        for offset in (piece["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]
    ]
    assert offsets == whole["text_offset"]
    for offset, token in zip(offsets, whole["tokens"], strict=True):
        if not token.startswith("bytes:"):
            assert choice["text"].startswith(token, offset)
    assert any(token.startswith("bytes:") for token in whole["tokens"])


def test_half_characters_have_their_own_bytes(client):
    given = {"model": "fable", "messages": [{"role": "user", "content": "x"}], "logprobs": True}
    schema = {"type": "string", "pattern": "^„Grüße“$"}
    given["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    choice = client.post("/v1/chat/completions", json={**given, "max_tokens": 40}).json()["choices"]
    entries = choice[0]["logprobs"]["content"]
    content = bytes(byte for entry in entries for byte in entry["bytes"])
    assert content.decode() == choice[0]["message"]["content"]


def test_an_echo_has_the_logprobs_that_the_model_gives_the_prompt(client):
    first = text_of(client.post("/v1/completions", json=body(max_tokens=40)))
    prompt = BEGINNING + first  # in the cache now, which an echo must not look at
    given = body(prompt=prompt, echo=True, logprobs=2, max_tokens=1)
    choice = client.post("/v1/completions", json=given).json()["choices"][0]
    scores = choice["logprobs"]
    ids = torch.tensor([TOKENIZER(prompt)["input_ids"]])
    model = GPTLMHead.from_pretrained("fable")
    logprobs = model(ids, torch.arange(ids.shape[1])[None])[0, :-1].log_softmax(-1)
    expected = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    assert scores["token_logprobs"][1:-1] == pytest.approx(expected, rel=1e-3, abs=1e-5)
    best = [max(top.values()) for top in scores["top_logprobs"][1:-1]]
    assert best == pytest.approx(logprobs.max(dim=-1).values.tolist(), rel=1e-3, abs=1e-5)
    assert choice["text"].startswith(prompt)
    assert "".join(scores["tokens"]) == choice["text"]
    *_, last = streamed(client, **{**given, "max_tokens": 0, "logprobs": None})
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("n", [1, 3])
def test_no_tokens_are_written_if_none_are_asked_for(client, n):
    answer = client.post("/v1/completions", json=body(echo=True, max_tokens=0, n=n)).json()
    assert [choice["text"] for choice in answer["choices"]] == [BEGINNING] * n
    assert answer["usage"]["completion_tokens"] == 0


def test_the_prompt_of_a_long_echo_is_read_in_several_steps(client):
    ids = list(range(1, 1001))
    given = body(prompt=[ids, ids[:500]], echo=True, logprobs=0, max_tokens=0)
    first, second = client.post("/v1/completions", json=given).json()["choices"]
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in (first, second)]
    assert list(map(len, logprobs)) == [1000, 500]
    assert logprobs[0][1:500] == pytest.approx(logprobs[1][1:], rel=1e-3, abs=1e-4)


def test_an_embedding_is_the_mean_of_the_last_hidden_states(client):
    texts = [BEGINNING, "A wolf."]
    model = GPTLMHead.from_pretrained("fable")
    for text, entry in zip(
        texts,
        client.post("/v1/embeddings", json={"model": "fable", "input": texts}).json()["data"],
        strict=True,
    ):
        ids = torch.tensor([TOKENIZER(text)["input_ids"]])
        hidden = model.transformer(ids, torch.arange(ids.shape[1])[None])[0]
        expected = hidden.mean(dim=0).tolist()
        assert entry["embedding"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("speculation", [False, True])
def test_logprobs_are_those_of_the_model(client, speculation):
    given = body(logprobs=2, max_tokens=8, speculation=speculation)
    choice = client.post("/v1/completions", json=given).json()["choices"][0]
    scores = choice["logprobs"]
    assert "".join(scores["tokens"]) == choice["text"]
    ids = torch.tensor([TOKENIZER(BEGINNING + choice["text"])["input_ids"]])
    positions = torch.arange(ids.shape[1])[None]
    logprobs = GPTLMHead.from_pretrained("fable")(ids, positions)[0, -9:-1].log_softmax(-1)
    expected = logprobs.gather(1, ids[0, -8:, None])[:, 0].tolist()
    assert scores["token_logprobs"] == pytest.approx(expected, rel=1e-3)
    for logprob, top in zip(scores["token_logprobs"], scores["top_logprobs"], strict=True):
        assert max(top.values()) == logprob  # greedy
        assert len(top) == 2
    assert len(scores["text_offset"]) == len(scores["drafted"]) == 8
    assert any(scores["drafted"]) <= speculation


def test_the_second_of_two_equal_prompts_is_found_in_the_cache(client):
    prompt = "A prompt of more than one block of the cache. " * 5
    first, again = (
        client.post("/v1/completions", json=body(prompt=prompt, max_tokens=2)).json()["usage"]
        for _ in range(2)
    )
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens"] - 32
    assert again["prompt_tokens"] == first["prompt_tokens"]


def test_copies_of_a_prompt_find_no_more_of_it_than_it_has(client):
    given = body(prompt=list(range(100, 612)), max_tokens=1, n=8)
    first, again = (client.post("/v1/completions", json=given).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert 512 - 16 <= again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_a_chat_is_a_plain_transcript(client, naive):
    messages = [{"role": "user", "content": [{"type": "text", "text": "Who is there?"}]}]
    given = {"model": "fable", "messages": messages, "max_tokens": 12, "temperature": 0}
    given |= {"logprobs": True, "top_logprobs": 1}
    choice = client.post("/v1/chat/completions", json=given).json()["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == naive("user: Who is there?\n\nassistant:", 12)
    tops = [one["top_logprobs"][0]["token"] for one in choice["logprobs"]["content"]]
    assert "".join(tops) == choice["message"]["content"]


def test_models_and_health(client):
    [listed] = client.get("/v1/models").json()["data"]
    assert listed == client.get("/v1/models/fable").json()
    assert listed["id"] == "fable"
    assert client.get("/v1/models/gpt-5").json()["error"]["code"] == "model_not_found"
    assert client.get("/health").json() == {"status": "ok"}


def test_far_too_long_a_text_is_refused_before_it_is_tokenized(server, client, monkeypatch):
    monkeypatch.setattr(server.app.state.service.requests, "tokenizer", None)
    error = client.post("/v1/completions", json=body(prompt="a" * 100_000)).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_the_first_admission_of_lab_13_which_counts_nothing_is_enough(server, client, monkeypatch):
    admit_all = SimpleNamespace(admit=lambda tokens: None, release=lambda tokens: None)
    with monkeypatch.context() as patch:
        patch.setattr(server.app.state.service.requests, "admission", admit_all)
        assert client.post("/v1/completions", json=body(max_tokens=2)).status_code == 200


def test_the_live_view_counts_what_it_shows(client):
    with client.stream("GET", "/live") as response:
        view = json.loads(next(response.iter_lines()).removeprefix("data: "))
    assert view["model"] == "fable"
    assert len(view["pool"]["refs"]) > 100
    assert {"running", "waiting", "preemptions", "ttft", "tpot", "tokens_per_second"} <= set(view)


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"model": "gpt-5"}, 404, "isn't served"),
        ({"max_tokens": -1}, 400, "`max_tokens`"),
        ({"max_tokens": 5000}, 400, "context of 1024"),
        ({"temperature": -1}, 400, "`temperature`"),
        ({"temperature": 1e-9}, 400, "temperature is 0"),
        ({"top_p": 0}, 400, "`top_p`"),
        ({"prompt": []}, 400, "`prompt`"),
        ({"prompt": [5000]}, 400, "Token 5000"),
        ({"prompt": [[]]}, 400, "`prompt`"),
        ({"prompt": {"a": 1}}, 400, "`prompt`"),
        ({"prompt": "a" * 300_000}, 400, "`prompt`"),
        ({"prompt": "a " * 5_000}, 400, "context of 1024"),
        ({"prompt": "a" * 100_000}, 400, "100,000 characters, more than the model's context"),
        ({"n": 17}, 400, "`n`"),
        ({"n": 16, "prompt": ["a", "b"]}, 400, "at most 16 texts"),
        ({"stop": ["a"] * 5}, 400, "`stop`"),
        ({"stop": ""}, 400, "`stop`"),
        ({"logprobs": 6}, 400, "`logprobs`"),
        ({"frequency_penalty": 3}, 400, "`frequency_penalty`"),
        ({"logit_bias": {"5000": 1}}, 400, "Token 5000"),
        ({"logit_bias": {"wolf": 1}}, 400, "`logit_bias.wolf`"),
        ({"min_tokens": 17}, 400, "max_tokens is 16"),
        ({"min_tokens": 2, "stop": "a"}, 400, "Leave one of them out"),
        ({"seed": "3"}, 400, "`seed`"),
        ({"seed": True}, 400, "`seed`"),
    ],
)
def test_bad_input_gets_a_sentence(client, given, status, words):
    response = client.post("/v1/completions", json=body(**given))
    error = response.json()["error"]
    assert response.status_code == status, error
    assert words in error["message"]
    assert error["message"].endswith(".")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((content, "must be a JSON object") for content in (b"", b"{", b"[]", b'"text"', b"nul")),
        (b'{"model": "\xff"}', "isn't UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "too many digits"),
    ],
)
def test_a_body_that_is_no_object_is_refused(client, content, words):
    said = {"content-type": "application/json"}
    response = client.post("/v1/completions", content=content, headers=said)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


def test_a_body_that_is_no_json_by_its_own_type_is_refused(client):
    response = client.post("/v1/completions", data={"model": "fable"})
    assert response.status_code == 400
    assert "content type application/json" in response.json()["error"]["message"]


def test_a_body_that_is_too_long_is_refused_though_it_says_no_length(client):
    said = {"content-type": "application/json"}
    content = (b" " * 100_000 for _ in range(11))
    response = client.post("/v1/completions", content=content, headers=said)
    assert response.status_code == 413
    assert "1,000,000 bytes" in response.json()["error"]["message"]


def test_unknown_paths_and_methods_are_refused(client):
    assert client.get("/v1/nothing").json()["error"]["message"] == "There is no such path."
    refused = client.get("/v1/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_a_missing_key_is_asked_for():
    scope = {"path": "/v1/models", "headers": [(b"host", b"localhost")]}
    refusal = Guard(None, Settings(api_key="a key")).refusal(scope)
    assert (refusal.status_code, refusal.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", "/v1/models/fable"])
def test_what_can_be_read_can_be_looked_at(client, path):
    looked = client.head(path)
    assert (looked.status_code, looked.content) == (200, b"")


@given(st.lists(st.integers(0, 4095), max_size=40))
def test_a_growing_text_is_decoded_as_a_whole_one(ids):
    growing = Growing(TOKEN_BYTES)
    for count in range(1, len(ids) + 1):
        text = TOKENIZER.decode(ids[:count], skip_special_tokens=True)
        assert growing(ids[:count]) == text


def test_tokens_that_never_become_a_character_are_decoded_once_each():
    asked = list[int]()

    def counting(token: int) -> bytes:
        asked.append(token)
        return TOKEN_BYTES(token)

    growing = Growing(counting)
    lone = next(token for token, known in TOKEN_BYTES.known.items() if known == b"\x80")
    for count in range(1, 301):
        text = growing([lone] * count)
    assert text == "\ufffd" * 300
    assert len(asked) == 300


def test_an_empty_prompt_begins_a_text(client):
    assert text_of(client.post("/v1/completions", json=body(prompt="")))
