"""Who may call the server, and how much they may send."""

import re

import httpx2
import pytest
from fastapi import FastAPI, Request

from solutions.server.guard import Guard
from solutions.server.here import RunningServer
from solutions.server.settings import Settings
from tests.common.clients import body


async def no_drain(seconds: float) -> None:
    pass


@pytest.fixture(scope="module")
def guarded():
    """A server without an engine, which takes a key, bodies of 100 bytes and another name."""
    settings = Settings(api_key="secret", max_body=100, hosts=("story.example",), idle=0.3)
    app = FastAPI()
    app.add_middleware(Guard, settings=settings)

    @app.post("/v1/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    @app.get("/health")
    async def health() -> str:
        return "ok"

    with RunningServer(app, settings, no_drain) as server:
        yield server


@pytest.fixture
def call(guarded):
    with httpx2.Client(base_url=guarded.url, headers={"authorization": "Bearer secret"}) as client:
        yield client


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8000", "LOCALHOST", "story.example:80"])
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
    told = client.post("/v1/completions", json=body(prompt={"$ref": "file"})).text
    assert ".py" not in told
