"""The router in front of replicas that fail in every way, and of real ones.

After each test no replica has any load: `router` looks at it.
"""

import contextlib
import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import psutil
import pytest

from solutions import serving
from solutions.router import prefixes, relay, replicas
from solutions.router.app import new_router_app
from solutions.router.figures import SUMS, merged
from solutions.router.prefixes import Recent, prompt_hashes
from solutions.server import events as sent_events
from solutions.server.here import RunningServer, serve_here
from solutions.server.settings import Settings
from tests.common.clients import BEGINNING, ROOT, body, connected, events, is_whole, started
from tests.server.test_faults import eventually, read_until
from tests.server.test_operators import figures

# ------------------------------------------------------------------------------- fake replicas


class Fake(ThreadingHTTPServer):
    """A replica that answers requests as `behave(connection)` does.

    asked: the headers and bodies of requests. ready: lets a behavior that waits go on.
    """

    daemon_threads = True

    def __init__(self, behave, port=0):
        super().__init__(("127.0.0.1", port), Connection)
        self.behave, self.health, self.asked = behave, 200, []
        self.ready, self.left = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.ready.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # a client that has left


class Connection(BaseHTTPRequestHandler):
    def do_GET(self):
        models = {"data": [{"id": "fable"}, {"id": self.server.url}]}
        self.answer(self.server.health, models if self.path == "/v1/models" else {})

    def do_POST(self):
        content = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append((self.path, self.headers, content))
        self.server.behave(self)

    def answer(self, status, content, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content if isinstance(content, bytes) else json.dumps(content).encode())

    def stream(self, *parts):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for part in parts:
            self.wfile.write(part)

    def log_message(self, *args):
        pass


def piece(text):
    return serving.event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})


DONE = b"data: [DONE]\n\n"
ERROR = serving.event({"error": {"message": "a secret of the replica"}})


def works(connection):
    if json.loads(connection.server.asked[-1][2]).get("stream"):
        connection.stream(piece("a"), piece("b"), DONE)
    else:
        connection.answer(200, {"text": "ab"})


def waits(connection):
    connection.server.ready.wait(30)
    connection.stream(piece("late"), DONE)


def waits_in_the_middle(connection):
    connection.stream(piece("a"))
    connection.server.ready.wait(30)
    connection.wfile.write(piece("b") + DONE)


def never_ends(connection):
    connection.stream()
    try:
        while True:
            connection.wfile.write(piece("a") * 100)
    except OSError:
        connection.server.left.set()


def refuses(status, **headers):
    error = {"error": {"message": "a secret of the replica", "code": status}}
    return lambda connection: connection.answer(status, error, **headers)


def says(content, status=200, **headers):
    return lambda connection: connection.answer(status, content, **headers)


def streams(*parts):
    return lambda connection: connection.stream(*parts)


def closes(connection):
    connection.connection.shutdown(socket.SHUT_RDWR)


FAULTS = {  # of a replica, before its first event
    "closes": closes,
    "closes before the first event": streams(),
    "closes within the first event": streams(b'data: {"choi'),
    "ends after a comment": streams(b": wait\n\n"),
    "an error is the first event": streams(ERROR, DONE),
    "an error after a comment": streams(b": wait\n\n" + ERROR, DONE),
    "too long an event": streams(b"data: " + b"a" * 5000),
    "500": refuses(500),
    "502": refuses(502),
    "503": refuses(503),
    "an unknown status": refuses(302, location="http://127.0.0.1/"),
    "a page": says(b"<html>It works!</html>"),
    "a page that is an error": says(b"<html>Not Found</html>", 404),
    "JSON that is no object": says(b'["It works!"]'),
    "compressed JSON": says(gzip.compress(b"{}"), content_encoding="gzip"),
    "compressed events": says(
        b"data: [DONE]\n\n", content_type="text/event-stream", content_encoding="gzip"
    ),
}


@pytest.fixture
def new_router(monkeypatch):
    """Start a router in front of fake replicas, or of addresses; return it with a client."""
    monkeypatch.setattr(replicas, "CHECK_EVERY", 0.02)
    monkeypatch.setattr(sent_events, "MOST_EVENT", 4000)
    monkeypatch.setattr(replicas, "MOST_ANSWER", 4000)
    with contextlib.ExitStack() as stack:
        opened = []

        def start(*behaviors, **settings):
            fakes = [
                one if isinstance(one, str) else stack.enter_context(Fake(one)) for one in behaviors
            ]
            urls = [one if isinstance(one, str) else one.url for one in fakes]
            given = Settings(**settings)
            app = new_router_app(given, urls)
            running = stack.enter_context(RunningServer(app, given, app.state.router.drain))
            client = httpx2.Client(base_url=running.url, timeout=30)
            opened.append(running)
            return running, stack.enter_context(client), fakes

        yield start
        for running in opened:
            eventually(lambda running=running: not loads(running))


def loads(running):
    router = running.app.state.router
    return sum(replica.load for replica in router.replicas.states) + len(router.running)


def counts(running):
    return running.app.state.router.metrics.counts


def ask(client, **given):
    return client.post("/v1/completions", json=body(**given))


def stream(client, **given):
    response = ask(client, stream=True, **given)
    assert response.status_code == 200, response.text
    return list(events(response.text))


def text_of(pieces):
    return "".join(one["choices"][0]["text"] for one in pieces)


# ------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_without_a_token_moves_to_another_replica(new_router, fault):
    _, client, fakes = new_router(FAULTS[fault], works)
    fakes[0].health = 500  # so that it is left out once it has failed
    assert text_of(stream(client)) == "ab"
    assert len(fakes[1].asked) == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_if_all_fail_the_client_is_told_so_and_not_what_they_said(new_router, fault):
    _, client, fakes = new_router(FAULTS[fault], FAULTS[fault])
    response = ask(client, stream=True)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert len(fakes[0].asked) <= 1 >= len(fakes[1].asked)


def test_a_whole_answer_moves_too_even_if_its_replica_fails_in_the_middle(new_router):
    def half(connection):
        connection.send_response(200)
        connection.send_header("content-length", "100")
        connection.end_headers()
        connection.wfile.write(b'{"text": "half')

    _, client, _ = new_router(half, works)
    assert ask(client).json() == {"text": "ab"}


def test_a_replica_that_refuses_connections_is_left_out_and_comes_back(new_router):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running, client, (_, other) = new_router(f"http://127.0.0.1:{port}", works)
    assert text_of(stream(client)) == "ab"
    replica = running.app.state.router.replicas.states[0]
    eventually(lambda: not replica.is_healthy)
    assert client.get("/health").status_code == 200
    other.health = 503
    eventually(lambda: client.get("/health").status_code == 503)
    assert ask(client).json()["error"]["message"].startswith("No replica can serve requests now.")
    with Fake(works, port) as back:
        eventually(lambda: replica.is_healthy)
        assert text_of(stream(client)) == "ab"
        assert len(back.asked) == 1


@pytest.mark.parametrize("end", [b"", b'data: {"choi', ERROR, b"data: " + b"a" * 5000])
def test_after_the_first_token_a_fault_is_an_error_event(new_router, end):
    running, client, fakes = new_router(streams(piece("a") + end), works)
    first, error = stream(client)
    assert text_of([first]) == "a"
    assert error["error"]["message"] == "The replica that wrote this answer has failed."
    assert not fakes[1].asked
    eventually(lambda: counts(running)["broken"] == 1)


def test_a_stream_that_has_finished_may_end_without_done(new_router):
    last = serving.event({"choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]})
    _, client, _ = new_router(streams(piece("a"), last))
    assert text_of(stream(client)) == "ab"


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_the_clients_own_errors_are_passed_on_unchanged(new_router, status):
    running, client, fakes = new_router(refuses(status), works)
    response = ask(client, stream=True)
    assert response.status_code == status
    assert response.json() == {"error": {"message": "a secret of the replica", "code": status}}
    assert not fakes[1].asked
    eventually(lambda: counts(running)["refused"] == 1)


def test_a_replica_that_is_full_is_passed_over(new_router):
    running, client, _ = new_router(refuses(429, retry_after="7"), works)
    assert text_of(stream(client)) == "ab"
    assert running.app.state.router.replicas.faults == [0, 0]  # being full is none


@pytest.mark.parametrize("other", [refuses(429, retry_after="7"), closes])
def test_if_no_replica_has_room_its_refusal_is_passed_on(new_router, other):
    _, client, fakes = new_router(other, refuses(429, retry_after="7"))
    response = ask(client)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert response.json()["error"]["code"] == 429
    assert all(fake.asked for fake in fakes)


def test_one_deadline_holds_for_all_replicas_together(new_router, monkeypatch):
    monkeypatch.setattr(relay, "FIRST_EVENT", 2)
    _, client, fakes = new_router(closes, waits, waits)
    response = ask(client, stream=True)
    assert response.status_code == 503
    assert response.json()["error"]["message"].startswith("No replica has answered in time.")
    assert [len(fake.asked) for fake in fakes] == [1, 1, 0]


def test_a_stream_that_stalls_is_broken_off(new_router, monkeypatch):
    monkeypatch.setattr(relay, "FIRST_EVENT", 2)
    _, client, _ = new_router(waits_in_the_middle)
    first, error = stream(client)
    assert text_of([first]) == "a"
    assert "error" in error


def test_a_client_that_leaves_closes_the_replicas_stream(new_router):
    running, _, (fake,) = new_router(never_ends)
    with connected(running) as opened:
        read_until(opened, b"data: ")
    assert fake.left.wait(10)
    eventually(lambda: counts(running)["left"] == 1)


def test_a_client_that_leaves_before_the_first_token_is_no_fault(new_router):
    running, _, (fake, other) = new_router(waits, works)
    with connected(running):
        eventually(lambda: fake.asked)
    eventually(lambda: counts(running)["left"] == 1)
    assert not other.asked
    assert running.app.state.router.replicas.faults == [0, 0]


# ---------------------------------------------------------------------------- health, draining


def test_a_replica_that_drains_gets_no_request_and_ends_what_it_has(new_router):
    running, client, (draining, other) = new_router(waits_in_the_middle, works)
    with client.stream("POST", "/v1/completions", json=body(stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        draining.health = 503
        eventually(lambda: not running.app.state.router.replicas.states[0].is_healthy)
        for _ in range(3):
            assert text_of(stream(client)) == "ab"
        draining.ready.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert (len(draining.asked), len(other.asked)) == (1, 3)


def test_the_router_drains(new_router):
    running, client, (fake,) = new_router(waits_in_the_middle)
    with client.stream("POST", "/v1/completions", json=body(stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        running.server.begin_to_stop()
        with httpx2.Client(base_url=running.url) as late:
            eventually(lambda: late.get("/health").status_code == 503)
            refused = ask(late)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        fake.ready.set()
        assert [line for line in lines if line][-1] == "data: [DONE]"
    running.thread.join(10)
    assert not running.thread.is_alive()


def test_what_takes_longer_than_draining_may_ends_with_an_error_event(new_router):
    running, client, _ = new_router(waits_in_the_middle, drain=0.1)
    with client.stream("POST", "/v1/completions", json=body(stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        running.server.begin_to_stop()
        *_, error, done = [line for line in lines if line]
    assert "The server is shutting down." in error
    assert done == "data: [DONE]"


# ------------------------------------------------------------------------- what is passed on


def test_a_body_is_passed_on_as_it_came_with_the_api_key(new_router):
    _, client, (fake,) = new_router(works, api_key="key")
    content = b'{"model": "other",  "prompt": "a", "guided_regex": "[ab]", "top_p": 3}'
    headers = {"content-type": "application/json", "authorization": "Bearer key"}
    assert client.post("/v1/chat/completions", content=content).status_code == 401
    client.post("/v1/chat/completions", content=content, headers=headers)
    path, given, passed = fake.asked[-1]
    assert (path, passed) == ("/v1/chat/completions", content)
    assert given["authorization"] == "Bearer key"


@pytest.mark.parametrize("content", [b"", b"[[", b"[]", b"[" * 100_000, b'{"messages": [[' * 900])
def test_a_body_that_is_no_object_reaches_no_replica(new_router, content):
    _, client, (fake,) = new_router(works)
    headers = {"content-type": "application/json"}
    response = client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert not fake.asked


@pytest.mark.parametrize("prompt", [7, None, [], {}, [[]], "\ud800", [None], [[[["a"]]]]])
def test_the_replica_judges_what_a_prompt_may_be(new_router, prompt):
    _, client, (fake,) = new_router(works)
    content = json.dumps({"prompt": prompt}).encode()
    headers = {"content-type": "application/json"}
    response = client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 200
    assert fake.asked[0][2] == content


def test_a_connection_is_kept_and_one_that_has_died_unseen_is_no_fault(new_router, monkeypatch):
    monkeypatch.setattr(replicas, "CHECK_EVERY", 60)  # a check uses the same connections
    used = []

    def keeps(connection):
        used.append(connection.client_address)
        if len(used) == 3:
            return closes(connection)
        connection.protocol_version, connection.close_connection = "HTTP/1.1", False
        if len(used) == 1:
            said = piece("a") + DONE
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(said), said)
            kind = {"content_type": "text/event-stream", "transfer_encoding": "chunked"}
            return connection.answer(200, chunks, **kind)
        return connection.answer(200, {}, content_length="2")

    running, client, _ = new_router(keeps)
    assert text_of(stream(client)) == "a"
    assert [ask(client).status_code for _ in range(3)] == [200] * 3
    first, second, third, again, _ = used
    assert first == second == third != again
    assert counts(running)["failovers"] == running.app.state.router.replicas.faults[0] == 0


def test_a_replica_gets_the_requests_id(new_router):
    _, client, (fake,) = new_router(works)
    assert ask(client).headers["x-request-id"] == fake.asked[0][1]["x-request-id"]


def test_events_arrive_as_they_are_written(new_router):
    _, client, (fake,) = new_router(waits_in_the_middle)
    with client.stream("POST", "/v1/completions", json=body(stream=True)) as response:
        lines = response.iter_lines()
        assert "choices" in next(lines)  # the replica is still waiting
        fake.ready.set()
        list(lines)


def test_the_models_are_those_of_all_replicas(new_router):
    _, client, fakes = new_router(works, works)
    models = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert models == ["fable", fakes[0].url, fakes[1].url]
    assert client.get("/v1/models/fable").json() == {"id": "fable"}
    assert client.get("/v1/models/other").json()["error"]["code"] == "model_not_found"
    assert client.head("/health").status_code == 200


def test_metrics_and_the_live_view_count_requests_and_failovers(new_router):
    _, client, fakes = new_router(closes, works)
    for _ in range(3):
        stream(client)
    text = client.get("/metrics").text
    assert 'router_requests_total{status="broken"} 0.0' in text
    faults = float(re.search(r"^router_failovers_total (.+)", text, re.MULTILINE)[1])
    assert 1 <= faults <= 3
    assert f'router_replica_faults_total{{replica="1",url="{fakes[0].url}"}} {faults}' in text
    assert f'router_replica_load{{replica="2",url="{fakes[1].url}"}} 0.0' in text
    with client.stream("GET", "/live") as response:
        view = json.loads(next(response.iter_lines()).removeprefix("data: "))
    assert [replica["served"] for replica in view["replicas"]] == [faults, 3]
    assert view["failovers"] == faults
    assert client.get("/").headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://a", "http://", "http://a/b", "http://u@a"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="isn't the address of a server"):
        new_router_app(Settings(), [url])


def test_the_ending_of_openais_base_url_may_be_given(new_router):
    with Fake(works) as fake:
        _, client, _ = new_router(f"{fake.url}/v1/")
        assert text_of(stream(client)) == "ab"


# ------------------------------------------------------------------------------ prefix hashes


def test_a_chat_shares_the_hashes_of_its_beginning_and_another_doesnt():
    def chat(*texts):
        return prompt_hashes({"messages": [{"role": "user", "content": text} for text in texts]})

    first, second, third = chat("a" * 300), chat("a" * 300, "b" * 100), chat("b" * 300)
    assert len(first) == 5
    assert second[:5] == first
    assert len(second) > 6
    assert not {*third} & {*second}


def test_hashes_of_ids_texts_and_the_first_of_several_prompts():
    text, ids = "a" * 200, list(range(100))
    assert prompt_hashes({"prompt": text}) == prompt_hashes({"prompt": [text, "b"]})
    assert prompt_hashes({"prompt": ids}) == prompt_hashes({"prompt": [ids, [1]]})
    assert prompt_hashes({"prompt": ids})[0] == prompt_hashes({"prompt": ids[:50]})[0]
    assert prompt_hashes({"prompt": "a" * 50}) == []


def test_only_the_latest_hashes_are_remembered(monkeypatch):
    monkeypatch.setattr(prefixes, "MOST_KNOWN", 4)
    known = Recent()
    known.update([b"1", b"2", b"3"])
    known.update([b"1", b"4", b"5"])
    assert known == {b"1", b"4", b"5", b"2"}  # the end of the older prompt was dropped


# ------------------------------------------------------------------------------- real replicas


@pytest.fixture(scope="module")
def pair():
    with serve_here(technique="prefix") as one, serve_here(technique="prefix") as other:
        yield one, other


@pytest.fixture
def before(pair):
    """A router in front of two real servers, with a client."""
    settings = Settings()
    app = new_router_app(settings, [server.url for server in pair])
    with (
        RunningServer(app, settings, app.state.router.drain) as running,
        httpx2.Client(base_url=running.url, timeout=60) as client,
    ):
        yield running, client
        eventually(lambda: not loads(running))
        eventually(lambda: all(map(is_whole, pair)))


def test_texts_through_a_router_are_those_of_one_server(before, pair):
    _, client = before
    with httpx2.Client(base_url=pair[0].url, timeout=60) as direct:
        expected = ask(direct).json()["choices"]
    assert ask(client).json()["choices"] == expected
    assert text_of(stream(client)) == expected[0]["text"]


def test_the_figures_of_all_replicas_are_the_routers_too(before):
    _, client = before
    stream(client)
    text = client.get("/metrics").text
    values = figures(text)
    counted = [values["vllm:time_to_first_token_seconds_count", str(n)] for n in (1, 2)]
    assert sum(counted) >= 1
    assert ("workbook_blocks", "1", "free") in values
    assert values["router_time_to_first_token_seconds_count",] == 1
    assert values["router_request_latency_seconds_count",] == 1
    assert values["router_responses_total", "200"] == 1
    assert len(re.findall(r"^# TYPE process_resident_memory_bytes", text, re.MULTILINE)) == 1


def test_chats_stay_with_the_replica_that_has_their_beginning(before):
    running, client = before
    chats = [[{"role": "user", "content": f"{n}. {BEGINNING} " * 8}] for n in range(4)]
    cached = []
    for _ in range(3):
        for chat in chats:
            asked = {"model": "fable", "messages": chat, "max_tokens": 8, "temperature": 0}
            answer = client.post("/v1/chat/completions", json=asked).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            chat += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    first, second, third = cached[:4], cached[4:8], cached[8:]
    assert all(a < b < c for a, b, c in zip(first, second, third, strict=True))
    assert [replica.served for replica in running.app.state.router.replicas.states] == [6, 6]


def test_a_client_that_leaves_frees_its_replicas_blocks(before, pair):
    running, _ = before
    with connected(running, max_tokens=900) as opened:
        read_until(opened, b"data: ")
    eventually(lambda: not loads(running), seconds=5)
    eventually(lambda: all(map(is_whole, pair)), seconds=5)  # 900 tokens would take longer


def test_the_page_sees_the_engines_of_all_replicas_as_one(before, pair):
    _, client = before
    blocks = [len(server.app.state.service.engine.view["pool"]["refs"]) for server in pair]
    with client.stream("GET", "/live") as response:
        for line in response.iter_lines():
            view = json.loads(line.removeprefix("data: ") or "{}")
            if len(view.get("pool", {}).get("refs", [])) == sum(blocks):
                break
    assert (view["model"], view["technique"]) == ("fable", "prefix")


def test_blocks_of_several_views_are_numbered_on():
    def view(blocks, refs):
        row = {"id": "a", "blocks": blocks}
        pool = {"block_size": 16, "refs": refs, "cached": [0]}
        others = {"waiting": [], "pool": pool, "model": "m", "technique": "t"}
        others["tpot"] = {"latest": [0.001 * len(refs)] * len(refs)}
        return {"running": [row], **others, **dict.fromkeys(SUMS, 2)}

    whole = merged({1: view([1], [0, 1]), 0: view([2], [0, 0, 1])})
    assert whole["pool"] == {"block_size": 16, "refs": [0, 0, 1, 0, 1], "cached": [0, 3]}
    assert [(one["replica"], one["blocks"]) for one in whole["running"]] == [(0, [2]), (1, [4])]
    assert whole["step"] == 4
    assert (whole["tpot"]["p50"], whole["tpot"]["p95"]) == (0.003, 0.003)  # of all five texts


# ------------------------------------------------------------------------ real processes


@pytest.fixture
def process():
    """A router with two replicas, all in processes of their own, and its address."""
    with started("--replicas", "2", serving="2 replicas of fable") as process:
        yield process


def metric(client, name):
    """The values of one of the router's metrics."""
    text = client.get("/metrics").text
    return [float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)]


@pytest.mark.slow
def test_a_replica_that_is_killed_under_load(process):
    started, url = process
    killed, _ = psutil.Process(started.pid).children()
    with (
        ThreadPoolExecutor(8) as pool,
        httpx2.Client(base_url=url, timeout=60) as client,
        contextlib.ExitStack() as stack,
    ):
        begun = []
        for _ in range(4):  # two on each replica
            given = body(stream=True, max_tokens=300)
            response = stack.enter_context(client.stream("POST", "/v1/completions", json=given))
            begun.append(response.iter_lines())
            next(begun[-1])
        killed.suspend()  # so that it keeps its requests without a token
        asked = [pool.submit(stream, client, max_tokens=20) for _ in range(4)]
        eventually(lambda: metric(client, "router_requests_total")[0] >= 2)
        killed.kill()
        assert len({text_of(one.result(60)) for one in asked}) == 1
        ends = [[line for line in lines if line] for lines in begun]
        assert all(lines[-1] == "data: [DONE]" for lines in ends)
        assert ["error" in lines[-2] for lines in ends].count(True) == 2
        assert metric(client, "router_failovers_total") != [0]
        eventually(lambda: metric(client, "router_replica_load") == [0, 0])
        eventually(lambda: metric(client, "router_replica_healthy") == [1, 1])
    replicas = psutil.Process(started.pid).children()
    started.send_signal(signal.SIGTERM)
    assert started.wait(60) == 0
    assert len(replicas) == 2
    assert not any(replica.is_running() for replica in replicas)
    assert re.search(r"Replica [12] has ended by signal 9\. It starts again", started.stderr.read())


@pytest.mark.slow
def test_replicas_end_with_a_router_that_is_killed(process):
    started, _ = process
    replicas = psutil.Process(started.pid).children(recursive=True)
    started.kill()
    assert psutil.wait_procs(replicas, timeout=30)[1] == []


@pytest.mark.slow
def test_a_replica_that_can_not_start_is_told():
    command = [sys.executable, "serve.py", "--replicas", "2", "--port", "0", "--model", "none"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[-1] == "Replica 1 has ended before it could serve."
    assert len(lines) <= 3  # and what each of them says, but no word of Python's
    assert "Python" not in ended.stderr


def test_a_router_starts_without_pytorch():
    code = "import sys, solutions.router.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
