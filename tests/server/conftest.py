"""One real server for all tests of a file, and a look at it after each: nothing may be left."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from solutions.server.formats import Vocabulary
from solutions.server.here import RunningServer, serve_here
from solutions.server.loaded import read_tokenizer
from tests.common.clients import is_whole, started
from tests.common.llamas import write_chat_model


@pytest.fixture(scope="session")
def shared() -> Iterator[RunningServer]:
    with serve_here(technique="prefix", debug=True) as running:
        yield running


@pytest.fixture
def server(shared) -> Iterator[RunningServer]:
    yield shared
    latest = time.monotonic() + 30
    while not is_whole(shared) and time.monotonic() < latest:
        time.sleep(0.01)
    assert is_whole(shared)


@pytest.fixture
def client(server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def failing(server, monkeypatch):
    """Let the forward pass of some step fail."""
    runner = server.app.state.service.engine.engine.runner
    forward, steps = runner.forward, []

    def fail_at(step: int) -> None:
        def failing_forward(batch):
            steps.append(len(batch))
            if len(steps) == step:
                raise RuntimeError("a secret of the server")
            return forward(batch)

        monkeypatch.setattr(runner, "forward", failing_forward)

    return fail_at


@pytest.fixture
def says(shared, monkeypatch) -> Callable[..., None]:
    """Let the model want to write these texts, one for each request, and the last for all others.

    What isn't allowed stays impossible.
    """
    engine = shared.app.state.service.engine
    choosing, encode = engine.choosing, read_tokenizer("fable").encode

    def let(*texts: str) -> None:
        left, scripts = [[*encode(text).ids, 0] for text in texts], dict[int, list[int]]()

        def wanting(sequence, logits):
            if sequence.number not in scripts:
                scripts[sequence.number] = left.pop(0) if len(left) > 1 else left[0]
            logits, place = logits.clone(), len(sequence.ids) - sequence.prompt_length
            for row, token in zip(logits, scripts[sequence.number][place:], strict=False):
                row[token] = 1e4
            return choosing(sequence, logits)

        monkeypatch.setattr(engine, "choosing", wanting)

    return let


@pytest.fixture
def process():
    """A server in a process of its own, and its address."""
    with started("--debug") as process:
        yield process


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """That of fable, which nobody changes."""
    return Vocabulary(read_tokenizer("fable"), [0])


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory) -> Path:
    """The folder of a small random model that has learned to chat, called "chatty"."""
    folder = tmp_path_factory.mktemp("models") / "chatty"
    write_chat_model(folder)
    return folder


@pytest.fixture(scope="session")
def chatty(chat_model) -> Iterator[RunningServer]:
    with serve_here(model=str(chat_model), technique="prefix", debug=True) as running:
        yield running
        assert is_whole(running)
