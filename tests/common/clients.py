"""Clients of a server, well-behaved and other ones."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, Field

from solutions.server.events import data_of
from solutions.server.here import RunningServer

ROOT = Path(__file__).resolve().parents[2]
BEGINNING = "Once upon a time there was a king who"
ONE_TEXT = 1024 * 2 * 12 * 256 * 4  # bytes of the keys and values of fable's longest text


class Animal(BaseModel):
    is_tame: bool
    legs: Annotated[int, Field(ge=0, le=8)]


class Herd(BaseModel):
    """A model of models. The schema refers to them, as clients write it."""

    leader: Animal
    others: Annotated[list[Animal], Field(max_length=2)]
    rival: Animal | None


def is_whole(server: RunningServer) -> bool:
    """Whether no request is left anywhere: in the pool, the queues, the engine or the counts."""
    service = server.app.state.service
    engine = service.engine
    manager = engine.engine.scheduler.manager
    answers, requests = service.answers, service.requests
    nothing = not (answers.pool.queues or answers.running or engine.inbox or engine.numbers)
    no_work = not (engine.engine.has_work or engine.requests or engine.followers or manager.tables)
    no_counts = requests.waiting == requests.waiting_tokens == requests.admission.backlog == 0
    return nothing and no_work and no_counts and not any(manager.ref_counts)


@contextmanager
def started(*arguments: str, serving: str = "fable") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    command = [sys.executable, "serve.py", *arguments, "--port", "0", "--threads", "1"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(f"Serving {serving} at http://127.0.0.1:")
    yield process, line.split()[-1]
    process.kill()
    process.communicate()


def body(**given: Any) -> dict[str, Any]:
    return {"model": "fable", "prompt": BEGINNING, "max_tokens": 16, "temperature": 0, **given}


def events(text: str) -> Iterator[Any]:
    """The data of each event of a stream, which must be well-formed; the last one is [DONE]."""
    *data, done = data_of(text.encode())
    assert done == b"[DONE]"
    assert text.encode() == b"".join(b"data: %b\n\n" % content for content in [*data, done])
    return map(json.loads, data)


class HasUrl(Protocol):
    url: str


def connected(server: HasUrl, content: bytes = b"", **given: Any) -> socket.socket:
    """A raw connection that has sent `content`, or else a request to stream `body(**given)`."""
    host, port = server.url.removeprefix("http://").split(":")
    if not content:
        asked = json.dumps(body(stream=True, **given)).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(asked)}\r\n"
        content = f"{head}content-type: application/json\r\n\r\n".encode() + asked
    opened = socket.create_connection((host, int(port)), timeout=30)
    opened.sendall(content)
    return opened
