"""The rule for a request's fields: what changes nothing is accepted, the rest heeded or refused."""

from typing import Any

import pytest
import torch

from solutions.server.adjusting import Adjustments
from tests.common.clients import body

CHAT = {"model": "fable", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}

IDLE: list[dict[str, Any]] = [
    {name: None}
    for name in ("temperature", "n", "stop", "stream", "min_p", "logit_bias", "tools", "a_new_one")
]
IDLE += [
    {"metadata": {"run": "7"}},
    {"store": True, "user": "me", "service_tier": "flex", "parallel_tool_calls": False},
    {"tools": [], "tool_choice": "none", "functions": []},
    {"logit_bias": {}, "stop": [], "best_of": 1, "suffix": ""},
    {"ignore_eos": False, "min_tokens": 0, "top_k": -1, "use_beam_search": False},
    {"stream_options": {"include_usage": None, "continuous_usage_stats": True}},
    {"logprobs": False},
]


@pytest.mark.parametrize("given", IDLE, ids=str)
def test_a_value_that_changes_nothing_is_accepted(client, given):
    for path, asked in [("chat/completions", CHAT), ("completions", body(max_tokens=2))]:
        response = client.post(f"/v1/{path}", json={**asked, **given})
        assert response.status_code == 200, response.text


def user(content):
    return {"role": "user", "content": content}


JSON = {"type": "json_object"}  # such a format says itself where the text ends


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"suffix": "end"}, "suffix", "`suffix` would change the answer"),
        ({"use_beam_search": True}, "use_beam_search", "not supported"),
        ({"n": True}, "n", "`n`: "),
        ({"temperature": "1"}, "temperature", "`temperature`: "),
        ({"stream": "yes"}, "stream", "`stream`: "),
        ({"messages": [user("a"), user(7)]}, "messages[1].content", "(role 'user'): "),
        ({"messages": [user("")], "max_tokens": 0}, "max_tokens", "`max_tokens`"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "(role 'user'): the content"),
        ({"messages": [user(None)]}, "messages[0].content", "(role 'user'): the content"),
        (
            {"messages": [user([{"type": "text", "text": "a"}, {"type": "image_url"}])]},
            "messages[0].content[1].type",
            "(role 'user'): input should be 'text'",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {}}},
         "response_format.json_schema.schema", "is missing"),
        ({"response_format": JSON, "ignore_eos": True}, "ignore_eos", "Leave `ignore_eos` out"),
        ({"response_format": JSON, "min_tokens": 2}, "min_tokens", "Leave `min_tokens` out"),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_would_change_the_answer_is_refused_by_its_path(client, given, param, words):
    response = client.post("/v1/chat/completions", json={**CHAT, **given})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


@pytest.mark.parametrize("content", [None, "", [], "…"])
def test_the_models_own_messages_may_be_empty(client, content):
    own = {"role": "assistant", "content": content, "refusal": None, "tool_calls": []}
    messages = [user("a"), own, user([{"type": "text", "text": "b"}])]
    assert client.post("/v1/chat/completions", json={**CHAT, "messages": messages}).is_success


# ----------------------------------------------------------------- what changes the model's logits


def test_penalties_count_the_answer_and_its_drafts_and_biases_are_added():
    adjustments = Adjustments(0.5, 0.25, {3: 7.0}, min_tokens=3, ends=(0,))
    logits = torch.zeros(3, 5)
    adjusted = adjustments.apply(logits, [1, 1], [2, 1])
    expected = [
        [-torch.inf, -1, 0, 7, 0],
        [0, -1, -0.75, 7, 0],
        [0, -1.25, -0.75, 7, 0],
    ]
    assert adjusted.tolist() == expected
    assert not logits.any()


def tokens_of(client, **given):
    choice = client.post("/v1/completions", json=body(**given, logprobs=0)).json()["choices"][0]
    return choice["logprobs"]["tokens"]


@pytest.mark.parametrize("speculation", [False, True])
def test_a_penalty_lets_no_token_come_twice(client, speculation):
    usual = tokens_of(client, max_tokens=40)
    assert len(set(usual)) < 40
    given = {"presence_penalty": 2, "frequency_penalty": 2, "max_tokens": 40}
    penalized = tokens_of(client, **given, speculation=speculation)
    assert len(set(penalized)) > len(set(usual))
    assert penalized == tokens_of(client, **given)


def test_a_bias_forces_a_token_or_keeps_it_out(client):
    def text(**given):
        return client.post("/v1/completions", json=body(**given)).json()["choices"][0]["text"]

    forced = text(logit_bias={"300": 100}, max_tokens=3)
    assert forced == text(prompt=[300] * 3, echo=True, max_tokens=0)
    kept_out = text(prompt=[300] * 3, logit_bias={"300": 100, "301": -100}, max_tokens=1)
    assert kept_out == text(prompt=[300], echo=True, max_tokens=0)


def test_eos_ends_a_text_unless_it_is_ignored_or_held_back(client):
    eos = {"logit_bias": {"0": 100}}  # the model's own likeliest token from now on
    ended = client.post("/v1/completions", json=body(**eos)).json()
    assert ended["choices"][0]["finish_reason"] == "stop"
    assert ended["usage"]["completion_tokens"] == 1
    ignored = client.post("/v1/completions", json=body(**eos, ignore_eos=True)).json()
    assert ignored["choices"][0]["finish_reason"] == "length"
    assert ignored["usage"]["completion_tokens"] == 16
    held = client.post("/v1/completions", json=body(**eos, min_tokens=5, speculation=True)).json()
    assert held["choices"][0]["finish_reason"] == "stop"
    assert held["usage"]["completion_tokens"] == 6
