"""Ten minutes of clients of all kinds: the memory stays flat, nothing is left, figures agree."""

import json
import os
import random
import re
import signal
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx2
import psutil
import pytest

from tests.common.clients import BEGINNING, body, connected, events
from tests.server.test_faults import eventually, read_until
from tests.server.test_operators import figures

MINUTES = float(os.environ.get("SOAK_MINUTES", 10))
CLIENTS = 24
GROWTH = 1.05  # the allocator's own unrest
USAGE = {"stream_options": {"include_usage": True}}
REQUESTS, TOKENS, RESPONSES = (f"workbook_{n}_total" for n in ("requests", "tokens", "responses"))


class Client:
    """Behaves in one way after the other. counts: what the server's figures should say."""

    def __init__(self, url: str, number: int) -> None:
        self.dice, self.counts = random.Random(number), Counter[tuple[str, str]]()
        self.http, self.raw = httpx2.Client(base_url=url, timeout=120), SimpleNamespace(url=url)

    def work(self, until: float) -> Counter[tuple[str, str]]:
        kinds = [self.streams, self.streams, self.chats, self.leaves, self.stalls, self.errs]
        kinds += [self.nonsense, self.half]
        with self.http:
            while time.monotonic() < until:
                self.dice.choice(kinds)()
        return self.counts

    def whole(self, response: httpx2.Response, usage: dict[str, int]) -> None:
        self.counts[RESPONSES, str(response.status_code)] += 1
        self.counts[REQUESTS, "whole"] += 1
        self.counts[TOKENS, "prompt"] += usage["prompt_tokens"]
        self.counts[TOKENS, "completion"] += usage["completion_tokens"]

    def left(self, prompt_tokens: int) -> None:
        self.counts[RESPONSES, "200"] += 1
        self.counts[REQUESTS, "left"] += 1
        self.counts[TOKENS, "prompt"] += prompt_tokens

    def streams(self) -> None:
        asked = {"max_tokens": self.dice.randint(1, 200), "n": self.dice.randint(1, 3), **USAGE}
        given = body(stream=True, temperature=self.dice.choice([0, 1]), **asked)
        response = self.http.post("/v1/completions", json=given)
        *_, last = events(response.text)
        self.whole(response, last["usage"])

    def chats(self) -> None:
        turns = [{"role": "user", "content": f"Tale {self.dice.randrange(1000)}. {BEGINNING}"}]
        given = {"model": "fable", "messages": turns, "max_tokens": 30, "speculation": True}
        response = self.http.post("/v1/chat/completions", json=given)
        self.whole(response, response.json()["usage"])

    def leaves(self) -> None:
        given = body(stream=True, max_tokens=500, prompt=[7] * self.dice.randint(1, 400))
        with self.http.stream("POST", "/v1/completions", json=given) as response:
            for _ in zip(response.iter_bytes(), range(self.dice.randint(0, 5)), strict=False):
                pass
        self.left(len(given["prompt"]))

    def stalls(self) -> None:
        prompt = [7] * self.dice.randint(1, 100)
        with connected(self.raw, prompt=prompt, max_tokens=900) as opened:
            read_until(opened, b"200 OK")
            time.sleep(self.dice.random())
        self.left(len(prompt))

    def errs(self) -> None:
        content = self.dice.choice([b"{", b"[]", b'{"model": 1}', json.dumps(body(n=99)).encode()])
        response = self.http.post("/v1/completions", content=content)
        assert response.status_code == 400
        self.counts[RESPONSES, "400"] += 1

    def nonsense(self) -> None:
        post = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
        content, expected = self.dice.choice(
            [
                (b"\x00\x01", "400"),
                (post + b"host: localhost\r\nconnection: close\r\n\r\n", "400"),
                (post + b"transfer-encoding: chunked\r\n\r\nnonsense", "400"),
                (post + b"a: " + b"a" * 400_000, "431"),
                (b"GET /%2e%2e HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", "404"),
            ]
        )
        with connected(self.raw, content) as opened:
            read = b"".join(iter(lambda: opened.recv(65536), b""))
        assert re.findall(rb"HTTP/1.1 (\d+)", read) == [expected.encode()]
        self.counts[RESPONSES, expected] += 1

    def half(self) -> None:
        with connected(self.raw, b"POST /v1/completions HTTP/1.1\r\nhost: local"):
            time.sleep(self.dice.random())


@pytest.mark.soak
def test_ten_minutes_of_clients_leave_memory_flat_and_nothing_behind(process):
    started, url = process
    server = psutil.Process(started.pid)
    both = [server, *server.children()]
    files = [one.num_fds() for one in both]
    until = time.monotonic() + 60 * MINUTES
    sizes = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        working = [pool.submit(Client(url, number).work, until) for number in range(CLIENTS)]
        while time.monotonic() < until:
            time.sleep(MINUTES)  # sixty times
            sizes.append(sum(one.memory_info().rss for one in both))
        counts = sum((one.result() for one in working), Counter())
    third = len(sizes) // 3
    early, late = (statistics.median(some) for some in (sizes[third : 2 * third], sizes[-third:]))
    print(f"{dict(counts)}; {early / 1e6:.0f} MB, {late / 1e6:.0f} MB")
    assert late < GROWTH * early
    eventually(lambda: [one.num_fds() for one in both] <= files)

    with httpx2.Client(base_url=url) as client:

        def look() -> dict[tuple, float]:
            values = figures(client.get("/metrics").text)
            counts[RESPONSES, "200"] += 1  # the next time
            return values

        def is_idle() -> bool:
            values = look()
            busy = ("vllm:num_requests_running",), ("vllm:num_requests_waiting",)
            return not any(values[name] for name in (*busy, ("workbook_blocks", "used")))

        eventually(is_idle)
        expected = dict(counts)
        values = look()
        assert {name: values[name] for name in expected} == expected
        assert values[REQUESTS, "failed"] == values[REQUESTS, "refused"] == 0
    started.send_signal(signal.SIGTERM)
    assert started.wait(20) == 0
    assert started.stderr.read() == ""
