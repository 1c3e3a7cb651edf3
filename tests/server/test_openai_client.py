"""The unchanged `openai` client, as its own examples use it."""

import json

import openai
import pytest

from tests.common.clients import BEGINNING, Herd


@pytest.fixture
def ai(server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60
    ) as client:
        yield client


def test_a_completion_whole_and_streamed(ai):
    given = {"model": "fable", "prompt": BEGINNING, "max_tokens": 12, "temperature": 0}
    whole = ai.completions.create(**given)
    pieces = list(ai.completions.create(**given, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 12


def test_a_chat_whole_and_streamed(ai):
    given = {
        "model": "fable",
        "messages": [{"role": "user", "content": "Tell me about the wolf."}],
        "max_completion_tokens": 12,
        "temperature": 0,
    }
    whole = ai.chat.completions.create(**given).choices[0].message
    pieces = ai.chat.completions.create(
        **given, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for piece in pieces:
        text += "".join(choice.delta.content or "" for choice in piece.choices)
        usage = piece.usage or usage
    assert text == whole.content
    assert whole.role == "assistant"
    assert usage is not None
    assert usage.completion_tokens == 12


def test_a_model_of_models_is_parsed(ai):
    given = {"model": "fable", "messages": [{"role": "user", "content": "Tell me of the wolves."}]}
    answer = ai.chat.completions.parse(**given, response_format=Herd, max_tokens=300)
    assert isinstance(answer.choices[0].message.parsed, Herd)


def test_a_json_object_is_asked_for_without_a_schema(ai):
    answer = ai.completions.create(
        model="fable",
        prompt=BEGINNING,
        max_tokens=12,
        extra_body={"response_format": {"type": "json_object"}},
    )
    [choice] = answer.choices
    assert choice.text.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.text), dict)


def test_our_own_parameters_go_in_the_extra_body(ai):
    answer = ai.completions.create(
        model="fable", prompt=BEGINNING, max_tokens=6, extra_body={"top_k": 1, "speculation": True}
    )
    assert answer.choices[0].text


def test_the_models_are_listed(ai):
    assert [model.id for model in ai.models.list()] == ["fable"]
    assert ai.models.retrieve("fable").id == "fable"


def test_embeddings_come_as_bytes_or_as_numbers(ai):
    given = {"model": "fable", "input": ["The wolf", "a fox"]}
    packed = ai.embeddings.create(**given)  # asks for base64 by itself
    plain = ai.embeddings.create(**given, encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    assert packed.usage.prompt_tokens == plain.usage.total_tokens > 0


def test_an_answer_may_be_sent_back_as_it_came(ai):
    asked = [{"role": "user", "content": "Hello"}]
    given = {"model": "fable", "max_tokens": 4}
    answer = ai.chat.completions.create(**given, messages=asked).choices[0].message
    again = ai.chat.completions.create(**given, messages=[*asked, answer, *asked])
    assert again.choices[0].message.content


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError),
        ({"temperature": 9}, openai.BadRequestError),
        ({"max_tokens": 9999}, openai.APIStatusError),
    ],
)
def test_errors_have_openais_types(ai, given, error):
    with pytest.raises(error) as caught:
        ai.completions.create(**{"model": "fable", "prompt": "a", **given})
    assert caught.value.body["message"].endswith(".")


def test_a_stream_may_be_closed_early(ai):
    stream = ai.completions.create(model="fable", prompt="a", max_tokens=900, stream=True)
    next(iter(stream))
    stream.close()  # the fixture of `server` sees that its blocks become free


def test_a_fault_after_the_first_token_is_raised(ai, failing):
    failing(4)
    stream = ai.completions.create(model="fable", prompt="a", max_tokens=50, stream=True)
    with pytest.raises(openai.APIError, match=r"The server failed on this request\."):
        list(stream)
