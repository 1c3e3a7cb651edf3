"""A server with adapters: models of their own, that share its engine but no keys and values."""

import shutil

import httpx2
import pytest

from autograder.judging.random_models import normals
from gpt import GPTLMHead, load_tokenizer
from solutions.adapted.adapter import merged_model, shapes_of
from solutions.adapted.files import read_adapter, write_adapter
from solutions.adapters import LowRank
from solutions.generate import generate
from solutions.server.here import serve_here
from tests.common.clients import is_whole

PROMPT, NEW = "Once upon a time there was a king who had a daughter, and she", 12


@pytest.fixture(scope="module")
def base():
    return GPTLMHead.from_pretrained("fable")


@pytest.fixture(scope="module")
def folder(base, tmp_path_factory):
    """A folder with two adapters, strong enough to change a text."""
    found = tmp_path_factory.mktemp("adapters")
    for number, name in enumerate(["one", "two"]):
        normal = normals(number)
        matrices = {
            its: LowRank(normal((n_in, 2)).float(), 0.01 * normal((2, n_out)).float(), 2.0)
            for its, (n_in, n_out) in shapes_of(base.config).items()
        }
        write_adapter(found / name, matrices, "fable")
    return found


def expected(base, folder):
    """Return what the model continues the prompt with, once an adapter is merged into it."""
    model = merged_model(base, read_adapter(folder, base.config) if folder else {})
    tokenizer = load_tokenizer("fable")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    return tokenizer.decode(generate(model, ids, NEW)[0, ids.shape[1] :])


@pytest.fixture(scope="module")
def server(folder):
    with serve_here(technique="prefix", debug=True, adapters=folder) as running:
        yield running
        assert is_whole(running)


@pytest.fixture
def client(server):
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(client, model):
    given = {"model": model, "prompt": PROMPT, "max_tokens": NEW, "temperature": 0}
    return client.post("/v1/completions", json=given).json()


def text(client, model):
    return ask(client, model)["choices"][0]["text"]


def test_each_model_answers_as_its_merged_one_however_often_it_is_asked(client, base, folder):
    models = {"fable": None, "fable:one": folder / "one", "fable:two": folder / "two"}
    wanted = {model: expected(base, its) for model, its in models.items()}
    assert len(set(wanted.values())) == 3
    for model in [*models, *models]:
        assert text(client, model) == wanted[model]
    hits = {model: ask(client, model)["usage"]["prompt_tokens_details"] for model in models}
    assert len({found["cached_tokens"] for found in hits.values()}) == 1
    listed = client.get("/v1/models").json()["data"]
    assert [found["id"] for found in listed] == list(models)
    assert [found.get("parent") for found in listed] == [None, "fable", "fable"]
    error = ask(client, "fable:three")["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "fable, fable:one, fable:two" in error["message"]


def test_an_adapter_is_loaded_anew_and_dropped_while_the_server_runs(client, base, folder):
    before = text(client, "fable:two")
    kept = folder.parent / "kept"
    (folder / "two").rename(kept)
    shutil.copytree(folder / "one", folder / "two")
    try:
        assert text(client, "fable:two") == before  # until it is asked to load it
        post = client.post("/v1/load_lora_adapter", json={"lora_name": "two"})
        assert post.json()["id"] == "fable:two"
        assert text(client, "fable:two") == text(client, "fable:one") != before
        gone = client.post("/v1/unload_lora_adapter", json={"lora_name": "two"}).json()
        assert gone == {"id": "fable:two", "object": "model", "deleted": True}
        assert ask(client, "fable:two")["error"]["code"] == "model_not_found"
    finally:
        shutil.rmtree(folder / "two")
        kept.rename(folder / "two")
    client.post("/v1/load_lora_adapter", json={"lora_name": "two"})
    assert text(client, "fable:two") == before


@pytest.mark.parametrize("name", ["three", "../adapters", "", "one/..", "/etc"])
def test_only_what_is_in_the_folder_is_loaded(client, name):
    answer = client.post("/v1/load_lora_adapter", json={"lora_name": name})
    assert answer.status_code == 400
    assert "There is no adapter" in answer.json()["error"]["message"]
