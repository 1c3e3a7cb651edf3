"""Half an hour of clients of all kinds: the memory stays flat, and at the end nothing is left."""

import json
import os
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest

from tests.common.clients import BEGINNING, body

MINUTES = float(os.environ.get("SOAK_MINUTES", 30))
CLIENTS = 24
GROWTH = 1.05  # the allocator's own unrest


def streams(client: httpx2.Client, dice: random.Random) -> None:
    asked = {"max_tokens": dice.randint(1, 200), "n": dice.randint(1, 3)}
    given = body(stream=True, temperature=dice.choice([0, 1]), **asked)
    text = client.post("/v1/completions", json=given).text
    assert text.endswith("data: [DONE]\n\n")
    assert '"error"' not in text


def leaves(client: httpx2.Client, dice: random.Random) -> None:
    given = body(stream=True, max_tokens=500, prompt=BEGINNING * dice.randint(1, 20))
    with client.stream("POST", "/v1/completions", json=given) as response:
        for _ in zip(response.iter_bytes(), range(dice.randint(0, 5)), strict=False):
            pass


def chats(client: httpx2.Client, dice: random.Random) -> None:
    turns = [{"role": "user", "content": f"Tale {dice.randrange(1000)}. {BEGINNING}"}]
    given = {"model": "fable", "messages": turns, "max_tokens": 30, "speculation": True}
    assert client.post("/v1/chat/completions", json=given).status_code == 200


def errs(client: httpx2.Client, dice: random.Random) -> None:
    content = dice.choice([b"{", b"[]", b'{"model": 1}', json.dumps(body(n=99)).encode()])
    assert client.post("/v1/completions", content=content).status_code == 400


@pytest.mark.soak
def test_half_an_hour_of_clients_leaves_memory_flat_and_nothing_behind(process):
    started, url = process
    server = psutil.Process(started.pid)
    both = [server, *server.children()]
    began = time.monotonic()
    until = began + 60 * MINUTES

    def work(number: int) -> int:
        dice, count = random.Random(number), 0
        with httpx2.Client(base_url=url, timeout=120) as client:
            while time.monotonic() < until:
                dice.choice([streams, streams, leaves, chats, errs])(client, dice)
                count += 1
        return count

    sizes = []
    with ThreadPoolExecutor(CLIENTS) as pool:
        counts = [pool.submit(work, number) for number in range(CLIENTS)]
        while time.monotonic() < until:
            time.sleep(MINUTES)  # sixty times
            sizes.append(sum(one.memory_info().rss for one in both))
        assert all(count.result() > 0 for count in counts)
    third = len(sizes) // 3
    early, late = (statistics.median(some) for some in (sizes[third : 2 * third], sizes[-third:]))
    print(f"{sum(c.result() for c in counts)} requests; {early / 1e6:.0f} MB, {late / 1e6:.0f} MB")
    assert late < GROWTH * early
    with httpx2.Client(base_url=url) as client, client.stream("GET", "/live") as response:
        view = json.loads(next(response.iter_lines()).removeprefix("data: "))
    assert view["running"] == view["waiting"] == []
    assert not any(view["pool"]["refs"])
