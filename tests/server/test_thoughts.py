"""Chats with a model that thinks: budgets, parts of the answer, prompts; and the best of texts.

`sums` thinks by itself. In other tests fable has a template that opens thoughts, and writes a text
that is given: it has no token for a mark, so these are written in several tokens.
"""

import json
import random
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solutions import constrained as lab_14
from solutions import thinking as lab_25
from solutions.checkpoints.templates import ChatTemplate
from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import any_of, star
from solutions.server.chats import ChatBody
from solutions.server.formats import Guides
from solutions.server.here import serve_here
from solutions.server.loaded import read_tokenizer
from solutions.server.thoughts import END, ThoughtGuide
from solutions.thoughts import chains
from tests.common.clients import connected, events

USER = {"role": "user", "content": "27182"}  # 10 tokens of thoughts, and 86
ONE_DIGIT = {"type": "integer", "minimum": 7, "maximum": 9}
FORMAT = {"type": "json_schema", "json_schema": {"schema": ONE_DIGIT}}
TOOL = {"type": "function", "function": {"name": "wait"}}
WAIT = '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>'
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% if message.reasoning_content %} ({{ message.reasoning_content }}){% endif %}. "
    "{% endfor %}<think>"
)


@pytest.fixture(scope="module")
def sums():
    with serve_here(model="sums", technique="prefix", debug=True) as running:
        yield running


@pytest.fixture
def thoughtful(server, monkeypatch):
    """A client of fable with a template that opens thoughts."""
    requests = server.app.state.service.requests
    monkeypatch.setattr(requests, "template", ChatTemplate(TEMPLATE, requests.tokenizer, {}))
    monkeypatch.setitem(requests.__dict__, "thinks", True)
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        yield client


def asked(at: Any, **more: Any) -> Any:
    """A chat's whole answer, which must be what its stream adds up to."""
    url = f"{getattr(at, 'url', None) or at.base_url}".rstrip("/") + "/v1/chat/completions"
    body = {"model": "sums", "messages": [USER], "temperature": 0, **more}
    whole = httpx2.post(url, json=body, timeout=60)
    assert whole.status_code == 200, whole.text
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *pieces, last = events(httpx2.post(url, json={**body, **options}, timeout=60).text)
    [choice] = whole.json()["choices"]
    parts = {"content": "", "reasoning_content": ""}
    for piece in pieces:
        delta = piece["choices"][0]["delta"]
        assert len(delta.keys() & {*parts, "tool_calls"}) == 1
        for name in parts:
            parts[name] += delta.get(name, "")
    assert parts["content"] == (choice["message"]["content"] or "")
    assert parts["reasoning_content"] == choice["message"].get("reasoning_content", "")
    assert pieces[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    usage = whole.json()["usage"]
    for name in "completion_tokens", "completion_tokens_details":
        assert last["usage"][name] == usage[name]
    choice["tokens"] = usage["completion_tokens"]
    choice["thought"] = usage["completion_tokens_details"]["reasoning_tokens"]
    return choice


# ----------------------------------------------------------------------------------- the budget


@given(st.integers(0, 8), st.sampled_from([None, ONE_DIGIT]), st.randoms(use_true_random=False))
def test_masks_are_those_of_lab_25s_automata(vocabulary, most, schema, rng: random.Random):
    """At each place of a text, of which each token is any that is allowed, often a mark's."""
    answer = star(any_of(range(256))) if schema is None else pattern_of(schema)
    whole, end = lab_25.thoughtful(answer, END.encode()), END.encode()
    free, closed = (
        lab_14.IndexGuide(one, vocabulary.texts, 0) for one in (whole, lab_25.closing(whole, end))
    )
    index = lab_25.Budget(free, closed, len(end), most)
    guide = Guides(lab_14, vocabulary).guide(schema and json.dumps(schema))
    lazy = ThoughtGuide(lab_25, guide, most)
    state, remains, text = index.start(), lazy.start(), b""
    for _ in range(40):
        mask = index.allowed(state)
        assert mask.equal(lazy.allowed(remains)), text
        allowed = mask.nonzero()[:, 0].tolist()
        marks = [token for token in allowed if vocabulary.texts[token][:1] in (b"<", b"/", b">")]
        token = rng.choice(marks if marks and rng.random() < 0.5 else allowed)
        if token == 0:
            break
        text += vocabulary.texts[token]
        state, remains = index.advance(state, token), lazy.advance(remains, token)
    assert end in text
    assert schema is None or text.partition(end)[2] in (b"7", b"8", b"9")


@pytest.mark.parametrize("speculation", [False, True])
@pytest.mark.parametrize("form", [None, FORMAT], ids=["free", "format"])
@pytest.mark.parametrize("budget", [0, 1, 5, 20, None])
def test_a_budget_is_exact_with_drafts_and_with_a_format_behind(sums, budget, form, speculation):
    choice = asked(sums, thinking_budget=budget, speculation=speculation, response_format=form)
    whole = chains.thoughts_of([2, 7, 1, 8, 2])
    thoughts = whole if budget is None else whole[:budget]
    assert choice["message"].get("reasoning_content", "") == thoughts
    assert choice["thought"] == len(thoughts)
    content = choice["message"]["content"]
    assert content in (("7", "8", "9") if form else (content[:2],))
    assert choice["tokens"] == len(thoughts) + 1 + len(content) + 1  # the mark, and EOS
    assert choice["finish_reason"] == "stop"
    if thoughts == whole and not form:
        assert content == chains.answer_of([2, 7, 1, 8, 2])


@pytest.mark.parametrize("most", [1, 10, 11, 12, 14])
def test_content_is_null_only_if_the_tokens_were_spent_on_thoughts(sums, most):
    choice = asked(sums, max_tokens=most)
    assert choice["tokens"] == most
    assert choice["finish_reason"] == ("length" if most < 14 else "stop")
    assert choice["message"]["content"] == (None if most <= 11 else "86"[: most - 11])
    assert choice["thought"] == min(most, 10)


def test_thoughts_can_not_end_the_text_and_words_can(thoughtful):
    """An end of the text is what the model wants most, everywhere."""
    choice = asked(thoughtful, model="fable", thinking_budget=3, logit_bias={"0": 100})
    assert (choice["thought"], choice["message"]["content"]) == (3, "")
    assert choice["finish_reason"] == "stop"


# -------------------------------------------------------------------------- the parts of an answer


@pytest.mark.parametrize("speculation", [False, True])
def test_thoughts_then_words_then_a_call(thoughtful, says, speculation):
    says(f"é < 2 </thin.</think>I wait.{WAIT}")
    choice = asked(thoughtful, model="fable", tools=[TOOL], speculation=speculation, logprobs=True)
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("é < 2 </thin.", "I wait.")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["wait"]
    assert choice["finish_reason"] == "tool_calls"
    written = b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"])
    assert written.decode() == f"é < 2 </thin.</think>I wait.{WAIT}"


def test_stop_strings_end_only_the_words(thoughtful, says):
    says("A wolf. </think>A fox, a wolf.")
    choice = asked(thoughtful, model="fable", stop=["wolf", "think"])
    assert choice["message"]["content"] == "A fox, a "
    assert choice["message"]["reasoning_content"] == "A wolf. "
    assert choice["finish_reason"] == "stop"


def test_each_of_several_texts_has_its_own_thoughts(sums):
    body = {"model": "sums", "messages": [USER], "n": 8, "temperature": 1.5, "seed": 2}
    answer = httpx2.post(f"{sums.url}/v1/chat/completions", json=body, timeout=60).json()
    messages = [choice["message"] for choice in answer["choices"]]
    assert len({message["reasoning_content"] for message in messages}) > 1
    thoughts = sum(len(message["reasoning_content"]) for message in messages)
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": thoughts}


def test_openais_client_reads_thoughts_whole_and_streamed(sums):
    with openai.OpenAI(base_url=f"{sums.url}/v1", api_key="none", max_retries=0) as ai:
        given: Any = {"model": "sums", "messages": [USER], "temperature": 0}
        given["extra_body"] = {"thinking_budget": 4}
        whole = ai.chat.completions.create(**given)
        assert whole.choices[0].message.reasoning_content == "0213"
        assert whole.usage.completion_tokens_details.reasoning_tokens == 4
        thoughts, words = "", ""
        for piece in ai.chat.completions.create(**given, stream=True):
            delta = piece.choices[0].delta
            thoughts += getattr(delta, "reasoning_content", None) or ""
            words += delta.content or ""
        assert (thoughts, words) == ("0213", whole.choices[0].message.content)


# ------------------------------------------------------------------------------------- prompts


def prompt_of(server: Any, *messages: dict[str, Any]) -> str:
    requests = server.app.state.service.requests
    body = ChatBody.model_validate({"model": "fable", "messages": [*messages]})
    return str(requests.tokenizer.decode(requests.chat_ids(body), skip_special_tokens=False))


def test_thoughts_of_earlier_turns_are_left_out(server, thoughtful):
    def answer(thoughts):
        return {"role": "assistant", "content": "Yes", "reasoning_content": thoughts}

    text = prompt_of(server, USER, answer("old"), USER, answer("new"))
    assert text == ("user: 27182. assistant: Yes. user: 27182. assistant: Yes (new). <think>")


def test_a_prompt_opens_the_thoughts_once(server, thoughtful, monkeypatch):
    """Some models open them by themselves, so their templates don't."""
    requests = server.app.state.service.requests
    for ending in "<think>", "<think>\n", "":
        template = TEMPLATE.removesuffix("<think>") + ending
        monkeypatch.setattr(requests, "template", ChatTemplate(template, requests.tokenizer, {}))
        assert prompt_of(server, USER).rstrip() == "user: 27182. <think>"


@pytest.mark.parametrize(
    ("model", "more", "param", "words"),
    [
        ("fable", {"thinking_budget": 5}, "thinking_budget", "doesn't think before it answers."),
        ("sums", {"thinking_budget": -1}, "thinking_budget", "greater than or equal to 0"),
        ("sums", {"thinking_budget": True}, "thinking_budget", "integer"),
        ("sums", {"messages": [{"role": "user", "content": "1+1"}]}, "messages", "2 to 8 digits"),
        ("sums", {"best_of": 2, "n": 3}, "best_of", "Of 2 texts, 3 can't be the best"),
        ("sums", {"best_of": 2, "stream": True}, "stream", "Leave `stream` out."),
        ("sums", {"best_of": 17}, "best_of", "less than or equal to 16"),
        ("sums", {"best_of": 16, "response_format": {"type": "text"}}, None, ""),
        ("fable", {"thinking_budget": 0}, None, ""),
    ],
    ids=str,
)
def test_refusals_name_the_field(client, sums, model, more, param, words):
    url = str(client.base_url).rstrip("/") if model == "fable" else sums.url
    body = {"model": model, "messages": [USER], "max_tokens": 2, **more}
    response = httpx2.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    error = response.json().get("error", {"param": None, "message": ""})
    assert (response.is_success, error["param"]) == (param is None, param), error
    assert words in error["message"]


# ------------------------------------------------------------------------------- several texts


def found(client: httpx2.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total{")]
    return float(line.split()[-1])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_prompt_of_several_texts_is_computed_once(client, n):
    """The others find its whole blocks of 16 tokens, of which the last token is computed again."""
    rng, before = random.Random(n), found(client)
    prompt = [rng.randrange(4096) for _ in range(100)]
    body = {"model": "fable", "prompt": prompt, "max_tokens": 3, "n": n}
    answer = client.post("/v1/completions", json=body).json()
    assert found(client) - before == (n - 1) * (100 - 1) // 16 * 16
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_first_of_several_texts_may_fail_or_leave(server, client, failing):
    """The others don't wait for it for ever: nothing is left, which the fixture looks for."""
    failing(1)
    body = {"model": "fable", "prompt": "Once", "max_tokens": 3, "n": 4}
    assert client.post("/v1/completions", json=body).status_code == 500
    connected(server, max_tokens=300, n=4, prompt="A wolf " * 50).close()
    assert client.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("more", [{}, {"logprobs": 2, "echo": True}], ids=["plain", "echo"])
def test_the_best_are_those_of_the_largest_mean_logprob(client, more):
    body = {"model": "fable", "prompt": ["Once", "A wolf"], "max_tokens": 6, "seed": 5, **more}
    all_ = client.post("/v1/completions", json={**body, "logprobs": 0, "n": 5}).json()["choices"]
    best = client.post("/v1/completions", json={**body, "best_of": 5, "n": 2}).json()

    def mean(choice):
        own = [score for score in choice["logprobs"]["token_logprobs"] if score is not None]
        own = own[-len(own) + choice["prompt"] :]
        return sum(own) / len(own)

    for place, prompt in enumerate(("Once", "A wolf")):
        group = all_[5 * place : 5 * place + 5]
        size = len(read_tokenizer("fable").encode(prompt).ids) - 1 if more else 0
        ranked = sorted((one | {"prompt": size} for one in group), key=mean, reverse=True)
        sent = best["choices"][2 * place : 2 * place + 2]
        assert [one["text"] for one in sent] == [one["text"] for one in ranked[:2]]
        assert [one["index"] for one in sent] == [2 * place, 2 * place + 1]
        assert all((one["logprobs"] is not None) == bool(more) for one in sent)
    total = sum(len(one["logprobs"]["tokens"]) for one in all_)
    echoed = 5 * sum(len(read_tokenizer("fable").encode(p).ids) for p in ("Once", "A wolf"))
    assert best["usage"]["completion_tokens"] == total - (echoed if more else 0)
