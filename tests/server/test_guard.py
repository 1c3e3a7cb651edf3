"""Who may call the server, and how much they may send."""

import itertools
import re

import httpx2
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from solutions.server.guard import Guard
from solutions.server.here import RunningServer
from solutions.server.settings import Settings
from tests.common.clients import body, connected
from tests.server.test_faults import eventually, read_until


async def no_drain(seconds: float) -> None:
    pass


@pytest.fixture(scope="module")
def guarded():
    """A server without an engine, which takes a key, bodies of 100 bytes and other names."""
    settings = Settings(
        api_key="secret", max_body=100, idle=0.3, stalled=0.3,
        hosts=("Story.Example", "lab.example:8000", "::2"),
    )  # fmt: skip
    app = FastAPI()
    app.add_middleware(Guard, settings=settings)

    @app.post("/v1/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/health")
    async def health() -> str:
        return "ok"

    @app.get("/")
    async def endless() -> StreamingResponse:
        return StreamingResponse(itertools.repeat(b"a" * 1000))

    with RunningServer(app, settings, no_drain) as server:
        yield server


@pytest.fixture
def call(guarded):
    with httpx2.Client(base_url=guarded.url, headers={"authorization": "Bearer secret"}) as client:
        yield client


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "story.example:80",
                                  "Lab.example", "lab.example:8000", "[::2]:8000"])  # fmt: skip
def test_the_servers_own_names_are_known(call, host):
    assert call.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "story.example.x"])
def test_another_name_is_refused(call, host):
    assert call.get("/health", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_origin_is_refused(call, headers):
    response = call.post("/v1/length", content=b"a", headers=headers)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_the_page_itself_may_call(call, guarded):
    for headers in ({"origin": guarded.url}, {"sec-fetch-site": "same-origin"}):
        assert call.post("/v1/length", content=b"ab", headers=headers).json() == 2


@pytest.mark.parametrize("key", ["", "Bearer wrong", "secret", "Bearer secret2", "Bearer \u00e9"])
def test_a_wrong_key_is_refused_but_health_needs_none(call, key):
    headers = {"authorization": key.encode("latin-1")}
    response = call.post("/v1/length", content=b"a", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert call.get("/health", headers=headers).status_code == 200


def test_a_long_body_is_refused_whether_its_length_is_told_or_not(call):
    def pieces():
        yield b"a" * 60
        yield b"a" * 60

    assert call.post("/v1/length", content=b"a" * 100).json() == 100
    for content in (b"a" * 101, pieces()):
        response = call.post("/v1/length", content=content)
        assert response.status_code == 413
        assert response.json()["error"]["message"] == "The body has more than 100 bytes."


HEAD = b"host: localhost\r\nauthorization: Bearer secret\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n"
POST = b"POST /v1/length HTTP/1.1\r\n" + HEAD


def statuses(server, content: bytes) -> list[int]:
    """The statuses of all answers on one connection, until the server ends it."""
    with connected(server, content) as opened:
        read = b"".join(iter(lambda: opened.recv(65536), b""))
    heads = re.findall(rb"HTTP/1.1 (\d+) .*?\r\n\r\n", read, re.DOTALL)
    assert read.count(b"nosniff") == len(heads)  # each is an answer like any other
    return list(map(int, heads))


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 102,
        b"GET /health HTTP/1.1\r\na: " + b"a" * 400_000,
        b"GET /health HTTP/1.1\r\n" + (b"a: " + b"a" * 7000 + b"\r\n") * 12,
        b"GET /" + b"a" * 70_000,
    ],
)
def test_a_head_without_end_is_refused_before_the_key(guarded, head):
    assert statuses(guarded, head) == [431]
    assert statuses(guarded, HEALTH + head) == [200, 431]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"GET /hea", [408]),
        (POST + b"content-length: 9\r\n\r\na", [408]),
        (HEALTH + POST + b"content-length: 9\r\n\r\na", [200, 408]),
        (POST + b"content-length: 1\r\n\r\na more", [200, 400]),
        (POST + b"transfer-encoding: chunked\r\n\r\nnonsense", [400]),
        (HEALTH + POST + b"transfer-encoding: chunked\r\n\r\nnonsense", [200, 400]),
        (b"\r\n", []),
        (b"GET /health HTTP/1.1\r\nhost: evil.example\r\n" + HEAD + b"\r\n\x00", [400, 400]),
    ],
)
def test_what_can_not_be_read_is_told_after_the_answers_before_it(guarded, content, expected):
    assert statuses(guarded, content) == expected


def test_line_breaks_keep_no_connection_open(guarded):
    with connected(guarded, HEALTH) as opened:
        read_until(opened, b'"ok"')
        opened.sendall(b"\r\n")
        assert opened.recv(100) == b""


def test_a_client_that_reads_nothing_is_dropped_even_if_it_asks_again(guarded):
    connections = guarded.server.server_state.connections
    with connected(guarded, HEALTH.replace(b"/health", b"/")) as opened:
        eventually(lambda: any(one.flow.write_paused for one in list(connections)))
        opened.sendall(HEALTH)
        eventually(lambda: not connections, seconds=10)


def test_every_answer_has_the_usual_headers(call):
    for response in (call.get("/health"), call.get("/health", headers={"host": "x"})):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cache-control"] == "no-store"
        assert "server" not in response.headers


def test_the_page_allows_only_its_own_script_and_style(client):
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert len(re.findall(r"'sha256-", policy)) == 2
    html = response.text.replace("http://www.w3.org/2000/svg", "")  # a name, never fetched
    for forbidden in ("http://", "https://", "innerHTML", "eval("):
        assert forbidden not in html


def test_no_refusal_repeats_the_servers_paths(client):
    for path in ("/../../etc/passwd", "/%2e%2e/gpt.py", "/static"):
        response = client.get(path)
        assert response.status_code == 404
        assert "Traceback" not in response.text
    text = client.post("/v1/completions", json=body(prompt={"$ref": "file"})).text
    assert ".py" not in text
