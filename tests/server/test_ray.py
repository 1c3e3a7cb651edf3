"""Two replicas on a local Ray cluster, one of which is killed under load.

Runs with `make soak` if the extra `ray` is installed (docs/serving.md).
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.common.clients import body, events
from tests.server.test_faults import eventually

pytestmark = [pytest.mark.needs("ray"), pytest.mark.soak]
ROOT = Path(__file__).resolve().parents[2]
CLIENTS = 8


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory):
    """A cluster with two replicas, in a process that ends it, and its address."""
    output = tmp_path_factory.mktemp("ray") / "output"
    module = "solutions.router.on_ray"
    command = [sys.executable, "-m", module, "--port", "0", "--technique", "prefix"]
    with output.open("w") as file:
        started = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=file,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip
    try:
        address = re.compile(r"Serving on Ray at (\S+)")
        eventually(lambda: started.poll() is not None or address.search(output.read_text()), 120)
        yield started, address.search(output.read_text())[1]
    finally:
        started.terminate()
        started.wait(60)


def replicas_of(started):
    """The processes of a cluster's replicas."""
    below = psutil.Process(started.pid).children(recursive=True)
    return [one for one in below if "ServeReplica" in " ".join(one.cmdline())]


def test_a_client_that_leaves_frees_its_blocks_through_ray(on_ray):
    _, url = on_ray
    with httpx2.Client(base_url=url, timeout=60) as client:
        with client.stream("GET", "/live") as live:
            view = json.loads(next(live.iter_lines()).removeprefix("data: "))
        behind = view["replicas"][0]["url"]

        def used():
            """The blocks in use, as the metrics of one replica after the other show them."""
            texts = [httpx2.get(f"{behind}/metrics", timeout=60).text for _ in range(8)]
            return max(float(re.search(r'state="used"} (.+)', text)[1]) for text in texts)

        given = body(max_tokens=900, stream=True)
        with (  # one on each replica: Ray would ask the idle one for its metrics
            client.stream("POST", "/v1/completions", json=given) as one,
            client.stream("POST", "/v1/completions", json=given) as other,
        ):
            begun = one.iter_lines(), other.iter_lines()
            assert all("choices" in next(lines) for lines in begun)
            eventually(lambda: used() > 0)
        eventually(lambda: used() == 0, seconds=5)  # 900 tokens would take longer


def test_a_replica_that_is_killed_costs_no_request_without_a_token(on_ray):
    started, url = on_ray
    ended = threading.Event()
    answers = []

    def ask(number):
        with httpx2.Client(base_url=url, timeout=60) as client:
            while not ended.is_set():
                prompt = f"{number} {len(answers)}"
                given = body(max_tokens=60, stream=number % 2 == 0, prompt=prompt)
                response = client.post("/v1/completions", json=given)
                assert response.status_code == 200, response.text
                answers.append(list(events(response.text)) if given["stream"] else response.json())

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask, number) for number in range(CLIENTS)]
        try:
            eventually(lambda: len(answers) > 5 * CLIENTS, 60)
            assert len(replicas_of(started)) == 2
            replicas_of(started)[0].kill()
            count = len(answers)
            eventually(lambda: len(answers) > count + 5 * CLIENTS, 60)
            eventually(lambda: len(replicas_of(started)) == 2, 60)
        finally:
            ended.set()
        for client in clients:
            client.result(60)
    broken = [answer for answer in answers if isinstance(answer, list) and "error" in answer[-1]]
    assert len(broken) <= CLIENTS  # those that had a token
    assert all(len(answer) > 1 for answer in broken)
    with httpx2.Client(base_url=url) as client:
        text = client.get("/metrics").text
    assert set(re.findall(r"replica_load{.*?} (.*)", text)) == {"0.0"}
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 0
