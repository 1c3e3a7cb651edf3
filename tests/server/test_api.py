"""The server's API: right texts, whole and streamed, and a sentence for bad input."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTLMHead, load_tokenizer
from solutions.generate import generate
from solutions.server.service import Growing
from tests.common.clients import BEGINNING, body, events

TOKENIZER = load_tokenizer("fable")


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


def test_a_stop_string_ends_the_text_before_it(client, naive):
    whole = naive(BEGINNING, 24)
    stop = whole[10:14]
    choice = client.post("/v1/completions", json=body(max_tokens=24, stop=[stop])).json()
    assert choice["choices"][0]["text"] == whole[: whole.index(stop)]
    assert choice["choices"][0]["finish_reason"] == "stop"
    pieces = streamed(client, max_tokens=24, stop=stop)
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole[: whole.index(stop)]


@pytest.mark.parametrize("speculation", [False, True])
def test_logprobs_are_those_of_the_model(client, speculation):
    given = body(logprobs=2, max_tokens=8, speculation=speculation)
    choice = client.post("/v1/completions", json=given).json()["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    ids = torch.tensor([TOKENIZER(BEGINNING + choice["text"])["input_ids"]])
    positions = torch.arange(ids.shape[1])[None]
    logprobs = GPTLMHead.from_pretrained("fable")(ids, positions)[0, -9:-1].log_softmax(-1)
    expected = logprobs.gather(1, ids[0, -8:, None])[:, 0].tolist()
    assert found["token_logprobs"] == pytest.approx(expected, rel=1e-3)
    for logprob, top in zip(found["token_logprobs"], found["top_logprobs"], strict=True):
        assert max(top.values()) == logprob  # greedy
        assert len(top) == 2
    assert len(found["text_offset"]) == len(found["drafted"]) == 8
    assert any(found["drafted"]) <= speculation


def test_the_second_of_two_equal_prompts_is_found_in_the_cache(client):
    prompt = "A prompt of more than one block of the cache. " * 5
    first, again = (
        client.post("/v1/completions", json=body(prompt=prompt, max_tokens=2)).json()["usage"]
        for _ in range(2)
    )
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens"] - 32
    assert again["prompt_tokens"] == first["prompt_tokens"]


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
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["fable"]
    assert client.get("/health").json() == {"status": "ok"}


def test_far_too_long_a_text_is_refused_before_it_is_tokenized(server, client, monkeypatch):
    monkeypatch.setattr(server.app.state.service, "tokenizer", None)
    response = client.post("/v1/completions", json=body(prompt="a" * 100_000))
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_body_without_a_length_is_refused_like_one_with_it(client):
    pieces = iter([b'{"prompt": "', b"a" * 600_000, b"a" * 600_000])
    assert client.post("/v1/completions", content=pieces).status_code == 413


def test_the_live_view_counts_what_it_shows(client):
    with client.stream("GET", "/live") as response:
        view = json.loads(next(response.iter_lines()).removeprefix("data: "))
    assert view["model"] == "fable"
    assert len(view["pool"]["refs"]) > 100
    assert {"running", "waiting", "preemptions", "ttft", "tpot", "tokens_per_second"} <= set(view)


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        ({"model": "gpt-5"}, 404, "isn't served"),
        ({"max_tokens": 0}, 400, "`max_tokens`"),
        ({"max_tokens": 5000}, 413, "context of 1024"),
        ({"temperature": -1}, 400, "`temperature`"),
        ({"temperature": 1e-9}, 400, "temperature is 0"),
        ({"top_p": 0}, 400, "`top_p`"),
        ({"prompt": []}, 400, "`prompt`"),
        ({"prompt": [5000]}, 400, "Token 5000"),
        ({"prompt": [[]]}, 400, "`prompt`"),
        ({"prompt": {"a": 1}}, 400, "`prompt`"),
        ({"prompt": "a" * 300_000}, 400, "`prompt`"),
        ({"prompt": "a" * 20_000}, 413, "context of 1024"),
        ({"n": 17}, 400, "`n`"),
        ({"n": 16, "prompt": ["a", "b"]}, 400, "at most 16 texts"),
        ({"stop": ["a"] * 5}, 400, "`stop`"),
        ({"stop": ""}, 400, "`stop`"),
        ({"logprobs": 6}, 400, "`logprobs`"),
        ({"frequency_penalty": 1}, 400, "`frequency_penalty`"),
        ({"logit_bias": {}}, 400, "`logit_bias` is not supported"),
        ({"seed": "x"}, 400, "`seed`"),
    ],
)
def test_bad_input_gets_a_sentence(client, given, status, told):
    response = client.post("/v1/completions", json=body(**given))
    error = response.json()["error"]
    assert response.status_code == status, error
    assert told in error["message"]
    assert error["message"].endswith(".")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b"nul"])
def test_a_body_that_is_no_object_is_refused(client, content):
    response = client.post("/v1/completions", content=content)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "The body must be a JSON object."


def test_unknown_paths_and_methods_are_refused(client):
    assert client.get("/v1/nothing").json()["error"]["message"] == "There is no such path."
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


@given(st.lists(st.integers(0, 4095), max_size=40))
def test_a_growing_text_is_decoded_as_a_whole_one(ids):
    def decode(ids):
        return TOKENIZER.decode(ids, skip_special_tokens=True)

    growing = Growing(decode)
    for count in range(1, len(ids) + 1):
        assert growing(ids[:count]) == decode(ids[:count])


def test_an_empty_prompt_begins_a_text(client):
    assert text_of(client.post("/v1/completions", json=body(prompt="")))
