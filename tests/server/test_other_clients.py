"""Other clients of OpenAI's API, each where it is installed: docs/serving.md has a table.

What the server refuses, it names, so that a client knows what to leave out.
"""

import json
import operator
from functools import reduce
from importlib import import_module

import pytest

from tests.common.clients import BEGINNING, Animal, Herd

pytestmark = pytest.mark.slow
MESSAGES = [{"role": "user", "content": "Tell me about the wolf."}]
SUM = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": 30}}\n</tool_call>'
DONE = " It is 42."


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.needs("langchain_openai")
def test_langchain(server, says):
    langchain = import_module("langchain_openai")
    given = {"base_url": f"{server.url}/v1", "api_key": "none", "model": "fable", "max_retries": 0}
    chat = langchain.ChatOpenAI(**given, max_tokens=60, presence_penalty=0.3)
    assert chat.invoke("Hello").content
    assert "".join(piece.content for piece in chat.stream("Hello"))
    history = [("human", "Hello"), ("ai", ""), ("human", "And then?")]
    assert chat.invoke(history).usage_metadata["output_tokens"]
    roomy = langchain.ChatOpenAI(**given, max_tokens=300)
    assert isinstance(roomy.with_structured_output(Herd).invoke("Wolves"), Herd)
    assert langchain.OpenAI(**given, max_tokens=4).invoke("Hello")
    embeddings = langchain.OpenAIEmbeddings(**given, check_embedding_ctx_length=False)
    assert len(embeddings.embed_documents(["a wolf", "a fox"])) == 2
    by_call = roomy.with_structured_output(Animal, method="function_calling")
    assert isinstance(by_call.invoke("A wolf"), Animal)
    says(SUM, DONE)
    bound = roomy.bind_tools([add])
    first = reduce(operator.add, bound.stream("Add 12 and 30."))
    [call] = first.tool_calls
    result = import_module("langchain_core.messages").ToolMessage("42", tool_call_id=call["id"])
    assert call["args"] == {"a": 12, "b": 30}
    assert bound.invoke([("human", "Add 12 and 30."), first, result]).content == DONE


@pytest.mark.needs("instructor")
def test_instructor(server):
    import openai

    instructor = import_module("instructor")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ai:
        given = {"model": "fable", "messages": MESSAGES, "response_model": Herd, "max_tokens": 300}
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
            client = instructor.from_openai(ai, mode=mode)
            assert client.chat.completions.create(**given, max_retries=0).leader.legs >= 0
            *_, last = client.chat.completions.create_partial(**given)
            assert last.leader.legs is not None


@pytest.mark.needs("pydantic_ai")
def test_pydantic_ai(server, says):
    ai = import_module("pydantic_ai")
    models = import_module("pydantic_ai.models.openai")
    providers = import_module("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{server.url}/v1", api_key="none")
    model = models.OpenAIChatModel("fable", provider=provider)
    settings = {"max_tokens": 60}
    plain = ai.Agent(model, instructions="Be kind.", model_settings=settings)
    first = plain.run_sync("Hello")
    assert plain.run_sync("And then?", message_history=first.all_messages()).output
    native = ai.Agent(model, output_type=ai.NativeOutput(Herd), model_settings={"max_tokens": 300})
    assert isinstance(native.run_sync("Wolves").output, Herd)
    assert isinstance(ai.Agent(model, output_type=Herd, model_settings={"max_tokens": 300})
                      .run_sync("Wolves").output, Herd)  # fmt: skip
    says(SUM, DONE)
    agent = ai.Agent(model, tools=[add])
    assert agent.run_sync("Add 12 and 30.").output == DONE


@pytest.mark.needs("litellm")
def test_litellm(server, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the network for prices
    litellm = import_module("litellm")
    where = {"api_base": f"{server.url}/v1", "api_key": "none", "num_retries": 0}
    given = {"messages": MESSAGES, **where, "max_tokens": 60}
    answer = litellm.completion("openai/fable", **given, presence_penalty=0.3, seed=3)
    assert answer.usage.completion_tokens > 0
    pieces = litellm.completion("hosted_vllm/fable", **given, stream=True)
    assert "".join(choice.delta.content or "" for piece in pieces for choice in piece.choices)
    given["max_tokens"] = 300
    answer = litellm.completion("openai/fable", **given, response_format=Herd)
    assert Herd.model_validate_json(answer.choices[0].message.content)
    assert litellm.embedding("openai/fable", input=["a wolf"], **where).data


@pytest.mark.needs("llm")
def test_llm(server, says, tmp_path, monkeypatch):
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    own = [{"model_id": "fable", "model_name": "fable", "api_base": f"{server.url}/v1",
            "supports_schema": True, "supports_tools": True}]  # fmt: skip
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(own))  # which is YAML, too
    model = import_module("llm").get_model("fable")
    assert model.prompt("Hello", system="Be kind.", max_tokens=8, seed=3).text()
    assert model.prompt("Hello", stream=False, max_tokens=8, frequency_penalty=0.5).text()
    conversation = model.conversation()
    for said in ("Hello", "And then?"):
        assert conversation.prompt(said, max_tokens=8).text()
    answer = model.prompt("Wolves", schema=Herd, max_tokens=300).text()
    assert Herd.model_validate_json(answer)
    for streams in (True, False):
        says(SUM, DONE)
        assert model.chain("Add 12 and 30.", tools=[add], stream=streams).text() == DONE


@pytest.mark.needs("lm_eval")
def test_lm_eval_reads_the_perplexity_that_the_model_gives(server):
    """A text's log-likelihood as the harness asks for it, and as the model computes it."""
    import torch

    from gpt import GPTLMHead, find_checkpoint, load_tokenizer

    registry = import_module("lm_eval.api.registry")
    import_module("lm_eval.models")
    instance = import_module("lm_eval.api.instance").Instance
    harness = registry.get_model("local-completions").create_from_arg_obj(
        {
            "model": "fable",
            "base_url": f"{server.url}/v1/completions",
            "tokenizer": str(find_checkpoint("fable")),
            "max_length": 1024,
        }
    )
    asked = [
        instance("loglikelihood", {}, given, index)
        for index, given in enumerate([(BEGINNING, " had three sons"), (BEGINNING, " had a wolf")])
    ]
    answers = harness.loglikelihood(asked, disable_tqdm=True)
    tokenizer, model = load_tokenizer("fable"), GPTLMHead.from_pretrained("fable")
    for one, (likelihood, is_greedy) in zip(asked, answers, strict=True):
        start, ids = (tokenizer(text)["input_ids"] for text in (BEGINNING, "".join(one.args)))
        inputs = torch.tensor([ids])
        rows = model(inputs, torch.arange(len(ids))[None])[0, len(start) - 1 : -1].log_softmax(-1)
        written = inputs[0, len(start) :]
        expected = rows.gather(1, written[:, None]).sum().item()
        assert likelihood == pytest.approx(expected, rel=1e-3)
        assert is_greedy == bool((rows.argmax(-1) == written).all())
