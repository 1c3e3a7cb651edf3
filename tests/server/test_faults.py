"""Clients that leave, stall or send nonsense, steps that fail, pools that are full, and the end.

After each test the server must be whole: `server` looks at it.
"""

import json
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import psutil
import pytest

from solutions.server.here import serve_here
from tests.common.clients import ONE_TEXT, body, connected, events, is_whole, started


@pytest.fixture(scope="module", autouse=True)
def many_files():
    """Both ends of a thousand connections are open here, and many users begin with 1,024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def read_until(opened: socket.socket, wanted: bytes) -> bytes:
    content = b""
    while wanted not in content:
        came = opened.recv(65536)
        assert came, content[-500:]
        content += came
    return content


def answers(client: httpx2.Client) -> None:
    assert client.post("/v1/completions", json=body(max_tokens=2)).status_code == 200


def running(server) -> int:
    return len(server.app.state.service.engine.engine.scheduler.running)


def eventually(condition, seconds: float = 30) -> None:
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest, "it didn't happen"
        time.sleep(0.005)


# ------------------------------------------------------------------------------------- clients


def test_a_client_that_leaves_in_the_middle_frees_its_blocks_with_the_next_step(server):
    engine = server.app.state.service.engine
    with connected(server, max_tokens=900) as opened:
        read_until(opened, b"data: ")
        eventually(lambda: running(server) == 1)
    eventually(lambda: engine.inbox or not engine.numbers)
    steps = engine.steps
    eventually(lambda: not engine.numbers)
    assert engine.steps - steps <= 2  # the one that was running, and the one that ends it


def test_a_client_that_leaves_before_a_whole_answer_ends_it(server, client):
    asked = json.dumps(body(max_tokens=900)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(asked)}\r\n"
    with connected(server, f"{head}content-type: application/json\r\n\r\n".encode() + asked):
        eventually(lambda: running(server) == 1)
    eventually(lambda: is_whole(server), seconds=2)  # 900 tokens would take longer


def test_one_of_several_texts_takes_the_others_with_it(server):
    with connected(server, max_tokens=900, n=4) as opened:
        read_until(opened, b"data: ")
        eventually(lambda: running(server) == 4)


def test_malformed_requests_and_half_open_connections_stop_no_other(server, client):
    contents = [
        b"GET",
        b"\x00\x01\x02\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100_000,
    ]
    opened = [connected(server, content) for content in contents]
    answers(client)
    for one in opened:
        one.close()
    answers(client)


@pytest.mark.slow
def test_a_client_that_doesnt_read_is_dropped_and_stops_no_other(monkeypatch):
    monkeypatch.setattr("solutions.server.app.LOOK_EVERY", 0)  # fills every buffer on the way
    with (
        serve_here(stalled=0.5) as server,
        httpx2.Client(base_url=server.url) as client,
        connected(server, b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    ):
        connections = server.server.server_state.connections
        eventually(lambda: len(connections) == 1)
        answers(client)
        eventually(lambda: not connections)
        answers(client)


# ------------------------------------------------------------------------------------- many


@pytest.mark.slow
def test_1000_streams_at_once_end_whole_or_are_refused(server):
    def ask(number: int) -> int:
        with connected(server, max_tokens=8, prompt=f"Number {number}") as opened:
            opened.settimeout(120)
            read = read_until(opened, b"\r\n\r\n")
            status = int(read.split()[1])
            if status == 200:
                read += b"" if b"[DONE]" in read else read_until(opened, b"[DONE]")
                assert b'"error"' not in read
            return status

    with ThreadPoolExecutor(1000) as pool:
        statuses = list(pool.map(ask, range(1000)))
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 64


@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_a_full_pool_preempts_and_every_text_is_that_of_an_empty_one(server, client):
    expected = client.post("/v1/completions", json=body(max_tokens=150)).json()["choices"][0]
    with (
        serve_here(pool_bytes=ONE_TEXT, debug=True) as small,
        httpx2.Client(base_url=small.url, timeout=120) as own,
    ):
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(own.post, "/v1/completions", json=body(max_tokens=150))
                     for _ in range(16)]  # fmt: skip
            texts = {one.result().json()["choices"][0]["text"] for one in asked}
        assert texts == {expected["text"]}
        assert small.app.state.service.engine.engine.scheduler.preemptions > 0
        assert is_whole(small)


def test_what_can_not_be_served_in_time_is_refused_with_a_time_to_try_again(server, client):
    admission = server.app.state.service.requests.admission
    admission.backlog = int(100 * admission.prefill_rate)  # other requests', for 100 seconds
    response = client.post("/v1/completions", json=body())
    admission.backlog = 0
    assert response.status_code == 429
    assert 70 < int(response.headers["retry-after"]) <= 100
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_only_so_many_requests_may_wait(server, client):
    requests = server.app.state.service.requests
    requests.waiting += requests.settings.max_waiting
    response = client.post("/v1/completions", json=body())
    requests.waiting -= requests.settings.max_waiting
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")


# ------------------------------------------------------------------------------------- the engine


def test_a_step_that_fails_ends_its_requests_with_an_error_event(client, failing):
    failing(5)
    text = client.post("/v1/completions", json=body(stream=True, max_tokens=50)).text
    *pieces, error = events(text)
    assert len(pieces) == 4
    assert error["error"]["message"] == "The server failed on this request."
    answers(client)


def test_a_step_that_fails_is_a_500_for_a_whole_answer(client, failing):
    failing(3)
    response = client.post("/v1/completions", json=body())
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    answers(client)


# ------------------------------------------------------------------------------------- the end


@pytest.mark.slow
def test_sigterm_finishes_what_runs_and_refuses_what_comes(process):
    started, url = process
    with httpx2.Client(base_url=url, timeout=60) as client:
        client.get("/health")  # so that it has a connection already
        with client.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=300)) as r:
            lines = r.iter_lines()
            next(lines)
            started.send_signal(signal.SIGTERM)
            with httpx2.Client(base_url=url) as late:
                eventually(lambda: late.get("/health").status_code == 503)
                refused = late.post("/v1/completions", json=body())
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert started.wait(20) == 0
    assert started.stderr.read() == ""


@pytest.mark.slow
def test_an_engine_that_dies_fails_its_requests_and_ends_the_server(process):
    started, url = process
    engine = psutil.Process(started.pid).children()
    with (
        httpx2.Client(base_url=url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=900)) as r,
    ):
        lines = r.iter_lines()
        next(lines)
        for one in engine:
            one.kill()
        *_, error, done = [line for line in lines if line]
    assert "The server failed on this request." in error
    assert done == "data: [DONE]"
    assert started.wait(20) == 1
    sentence = "The engine's process has ended by itself, so the server has stopped.\n"
    assert started.stderr.read() == sentence


def test_with_debug_a_broken_pool_ends_the_engine(caplog):
    with serve_here(debug=True) as server, httpx2.Client(base_url=server.url) as client:
        answers(client)  # with whole books it goes on
        with client.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=900)) as r:
            lines = r.iter_lines()
            next(lines)
            server.app.state.service.engine.engine.scheduler.manager.ref_counts[-1] += 1
            *_, error, done = [line for line in lines if line]
        assert "The server failed on this request." in error
        assert done == "data: [DONE]"
        eventually(lambda: server.app.state.fault)
    sentence = "has the ref count 1, and is in 0 tables. The engine ends."
    assert any(sentence in message for message in caplog.messages)


@pytest.mark.slow
def test_a_second_ctrl_c_breaks_off_what_runs(process):
    started, url = process
    given = body(stream=True, max_tokens=900, prompt=["a"] * 16)
    with (
        httpx2.Client(base_url=url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=given) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        started.send_signal(signal.SIGINT)
        eventually(lambda: httpx2.get(f"{url}/health").status_code == 503)
        started.send_signal(signal.SIGINT)
        *_, error, done = [line for line in lines if line]
    assert "The server is shutting down." in error
    assert done == "data: [DONE]"
    assert started.wait(20) == 0
    assert started.stderr.read() == ""


@pytest.mark.slow
def test_a_hung_engine_stops_neither_the_event_loop_nor_the_end():
    with (
        started("--drain", "1", "--target-ttft", "1000") as (process, url),
        httpx2.Client(base_url=url) as client,
    ):
        children = psutil.Process(process.pid).children()
        [engine] = [one for one in children if "spawn_main" in str(one.cmdline())]
        engine.suspend()
        long = body(stream=True, prompt=[list(range(900))] * 16)  # more than a pipe holds
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(client.post, "/v1/completions", json=long, timeout=60)
                     for _ in range(8)]  # fmt: skip
            eventually(lambda: client.get("/health").status_code == 503)
            assert client.get("/health").json() == {"status": "the engine hangs"}
            process.send_signal(signal.SIGTERM)
            assert all("shutting down" in one.result().text for one in asked)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
        assert not engine.is_running()


@pytest.mark.slow
def test_a_deadline_ends_what_takes_longer():
    given = body(stream=True, max_tokens=900, prompt=["a"] * 16)
    with (
        serve_here(drain=0.3) as server,
        httpx2.Client(base_url=server.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=given) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.server.begin_to_stop()
        *_, error, done = [line for line in lines if line]
    assert "The server is shutting down." in error
    assert done == "data: [DONE]"
