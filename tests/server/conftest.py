"""One real server for all tests of a file, and a look at it after each: nothing may be left."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from solutions.server.here import RunningServer, serve_here
from tests.common.clients import is_whole

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def shared() -> Iterator[RunningServer]:
    with serve_here(technique="prefix") as running:
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
def process():
    """A server in a process of its own, and its address."""
    command = [sys.executable, "serve.py", "--port", "0", "--threads", "1"]
    started = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    line = started.stdout.readline()
    assert line.startswith("Serving fable at http://127.0.0.1:")
    yield started, line.split()[-1]
    started.kill()
    started.communicate()
