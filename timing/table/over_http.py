"""Run a workload once through a real HTTP server, whose engine has a process of its own.

It needs the packages of the extra `serve`, so only its row imports it.
"""

import asyncio
import atexit
import json
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import torch

from solutions import serving
from solutions.engine.limits import Limits
from solutions.families import kv_bytes, read_config
from solutions.server.app import new_app
from solutions.server.engine_process import EngineProcess
from solutions.server.events import data_of
from solutions.server.here import RunningServer
from solutions.server.settings import Settings, reference, with_lab
from timing.table.runs import Ids, Run
from timing.table.workloads import Workload

FLOAT32_BYTES = 4
NO_TOKEN = -1  # an EOS that no text has
NUMBERS = re.compile("\ue000([0-9]+)\ue001")  # two characters for private use, which no book has


@dataclass(frozen=True)
class OverHTTP:
    """A server on this machine, asked by one client that reads every answer as a stream.

    limits_for: returns the engine's limits.
    """

    about: str
    folder: Path
    limits_for: Callable[[Workload], Limits]

    lossy = weight_bytes = None

    def run(self, workload: Workload) -> Run:
        settings = settings_for(self.folder, self.limits_for(workload))
        return asyncio.run(ask_all(workload, settings, url_of(settings)))


def settings_for(folder: Path, limits: Limits) -> Settings:
    """Return the settings of a server with an engine of this size that refuses nothing."""
    config = read_config(folder)
    least = -(-config.n_positions // limits.block_size)  # as the server does
    slots = max(limits.num_blocks, least) * limits.block_size
    return Settings(
        model=str(folder),
        threads=torch.get_num_threads(),
        pool_bytes=slots * kv_bytes(config, FLOAT32_BYTES),
        block_size=limits.block_size,
        token_budget=limits.token_budget,
        max_running=limits.max_running,
        target_ttft=math.inf,
    )


async def ask_all(workload: Workload, settings: Settings, url: str) -> Run:
    """Send all requests at once, and note when each event comes.

    The client shares the server's cores, so it does no more than that: it reads bytes from sockets,
    and only looks into them at the end.
    """
    address = urlsplit(url)

    async def ask(number: int) -> list[tuple[float, bytes]]:
        body = {
            "model": settings.name,
            "prompt": workload.prompts[number],
            "max_tokens": workload.new_tokens[number],
            "temperature": 0,
            "stream": True,
        }
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(http_request(address.netloc, json.dumps(body).encode()))
        came: list[tuple[float, bytes]] = []
        while not came or not came[-1][1].endswith(b"data: [DONE]\n\n"):
            event = await reader.readuntil(b"\n\n")
            came.append((time.perf_counter(), event))
        writer.close()
        return came

    start = time.perf_counter()
    answers = await asyncio.gather(*map(ask, range(len(workload.prompts))))
    outputs: list[Ids] = [list(prompt) for prompt in workload.prompts]
    token_times: list[list[float]] = [[] for _ in outputs]
    for output, times, answer in zip(outputs, token_times, answers, strict=True):
        for came, event in answer:
            new_ids = [token for data in data_of(event) for token in ids_in(data)]
            output += new_ids
            times += [came] * len(new_ids)
    batch = min(settings.max_running, len(outputs))
    return Run(outputs, start, token_times, None, None, None, batch)


def http_request(host: str, body: bytes) -> bytes:
    lines = (
        "POST /v1/completions HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


def ids_in(data: bytes) -> Ids:
    """Return the tokens that an event shows. Raises RuntimeError if it is an error's."""
    if data == b"[DONE]":
        return []
    event = json.loads(data)
    if "error" in event:
        raise RuntimeError(event["error"]["message"])
    [choice] = event["choices"]
    return list(map(int, NUMBERS.findall(choice["text"])))


# -------------------------------------------------------------------------------------- the server


class NumberedText(serving.TextStream):
    """Shows each token's id after its text, at once, so that outputs can be verified as tokens."""

    def push(self, token_id: int) -> str:
        return f"{super().push(token_id)}\ue000{token_id}\ue001"


@cache
def url_of(settings: Settings) -> str:
    """Start a server in a process of its own, once, and return its address. It ends with ours."""
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=serve, args=(theirs, settings))
    process.start()
    atexit.register(ours.close)
    theirs.close()
    return ours.recv()


def serve(door: Connection, settings: Settings) -> None:
    """Serve until the other end of the door is closed."""
    engine = EngineProcess(settings, reference)
    engine.wait()
    engine.facts = replace(engine.facts, eos_token_id=NO_TOKEN)  # workloads have no EOS
    lab = SimpleNamespace(**{**vars(serving), "TextStream": NumberedText})
    app = new_app(settings, engine, with_lab("serving", lab))
    with RunningServer(app, settings, app.state.service.drain) as running:
        door.send(running.url)
        with suppress(EOFError):
            door.recv()
