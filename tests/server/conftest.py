"""One real server for all tests of a file, and a look at it after each: nothing may be left."""

import time
from collections.abc import Iterator

import httpx2
import pytest

from solutions.server.here import RunningServer, serve_here
from tests.common.clients import is_whole, started


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
def process():
    """A server in a process of its own, and its address."""
    with started("--debug") as process:
        yield process
