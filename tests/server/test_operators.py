"""What an operator gives and sees: options, figures for Prometheus, the access log."""

import json
import logging
from itertools import pairwise

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

import serve
from solutions.server.here import RunningServer
from solutions.server.metrics import TIMES, Metrics
from solutions.server.requests import Pace
from solutions.server.settings import Settings
from solutions.server.web import plain_app
from tests.common.clients import body
from tests.server.test_faults import eventually
from tests.server.test_guard import no_drain

ORIGIN = "http://localhost:3000"
VLLMS_BOARD = (  # what the Grafana board in vLLM's examples asks for, with its labels
    *("e2e_request_latency_seconds_bucket", "inter_token_latency_seconds_bucket"),
    *("time_to_first_token_seconds_bucket", "request_queue_time_seconds_sum"),
    *("request_prompt_tokens_bucket", "request_generation_tokens_bucket"),
    *("prompt_tokens_total", "generation_tokens_total", "kv_cache_usage_perc"),
    *("num_requests_running", "num_requests_waiting", "request_success_total"),
    *("num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total"),
    "request_time_per_output_token_seconds_bucket",
)


def figures(text: str) -> dict[tuple, float]:
    """The value of each figure by its name and its labels' values, except the model's."""
    return {
        (sample.name, *(sample.labels[k] for k in sample.labels if k != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_count_each_request_and_have_the_names_of_vllms_board(client):
    before = figures(client.get("/metrics").text)
    client.post("/v1/completions", json=body(max_tokens=5, n=2))
    client.post("/v1/completions", json=body(n=99))
    after = figures(client.get("/metrics").text)
    grown = {name: after[name] - before[name] for name in after}  # so each was there before
    assert {name for name, *_ in after} >= {f"vllm:{name}" for name in VLLMS_BOARD}
    assert 'vllm:num_requests_running{model_name="fable"}' in client.get("/metrics").text
    prompt = grown["workbook_tokens_total", "prompt"]
    expected = {
        ("workbook_tokens_total", "completion"): 10,
        ("workbook_requests_total", "whole"): 1,
        ("workbook_responses_total", "200"): 2,  # the figures, too
        ("workbook_responses_total", "400"): 1,
        ("vllm:request_success_total", "length"): 2,
        ("vllm:time_to_first_token_seconds_count",): 2,
        ("vllm:inter_token_latency_seconds_count",): 8,
        ("vllm:e2e_request_latency_seconds_count",): 2,
        ("vllm:request_queue_time_seconds_count",): 2,
        ("vllm:request_generation_tokens_sum",): 10,
        ("vllm:generation_tokens_total",): 10,
        ("vllm:prompt_tokens_total",): prompt,
        ("vllm:prefix_cache_queries_total",): 2 * prompt,
    }
    assert {name: grown[name] for name in expected} == expected


def test_every_label_is_there_before_it_is_counted():
    view = {"running": [], "waiting_total": 0, "pool": {"refs": [0], "cached": []}}
    metrics = Metrics("fable")
    text = metrics.exposition({**view, "preemptions": 0}).decode()
    names = figures(text)
    assert ("workbook_requests_total", "failed") in names
    assert ("workbook_responses_total", "429") in names
    metrics.count("refused")
    assert figures(metrics.exposition({**view, "preemptions": 0}).decode()).keys() == names.keys()


def test_a_quantile_is_off_by_half_at_most():
    assert all(later <= 1.5 * earlier for earlier, later in pairwise(TIMES))


def test_the_rate_of_prompts_is_measured_only_while_steps_are_full():
    pace = Pace(100.0, 256)
    for second in range(5):
        pace.computed(10, 20, second)  # 10 tokens per second came: that is no limit
    assert pace.rate == 100
    for second in range(5, 15):
        pace.computed(1000, 2000, second)
    assert pace.rate == pytest.approx(1000, rel=0.01)
    pace.computed(1000, 0, 15)
    pace.computed(10, 2000, 1015)  # nothing waited in between
    assert pace.rate == pytest.approx(1000, rel=0.01)


@pytest.fixture
def logged(caplog):
    """A server without an engine that keeps a log, and the log."""
    settings = Settings(log=True, api_key="secret")
    app: FastAPI = plain_app(settings, None, Metrics("fable").responses)
    log = logging.getLogger("workbook.access")
    with RunningServer(app, settings, no_drain) as server:
        log.handlers = [caplog.handler]  # instead of stderr
        yield server.url, lambda: [json.loads(record.message) for record in caplog.records]


def test_each_request_has_a_line_with_its_id_but_neither_its_text_nor_its_key(logged):
    url, lines = logged
    for count, given in enumerate([{"x-request-id": "my-1"}, {"x-request-id": "no\tid"}, {}]):
        headers = {"authorization": "Bearer 12345", **given}
        response = httpx2.post(f"{url}/v1/completions?text", json=body(), headers=headers)
        eventually(lambda count=count: len(lines()) > count)
        line = lines()[-1]
        assert response.headers["x-request-id"] == line["id"]
        assert (line["id"] == "my-1") == (given.get("x-request-id") == "my-1")
        assert "\t" not in line["id"]
        assert (line["method"], line["path"]) == ("POST", "/v1/completions")
        assert (line["status"], line["bytes"]) == (401, len(response.content))
        assert "12345" not in str(line)


# ------------------------------------------------------------------------------------ options


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--host", "nonsense", "--api-key", "a"], "nonsense isn't an address of this machine"),
        (["--host", "192.0.2.1"], "Give it an --api-key"),
        (["--host", "::1", "--port", "99999"], "can't listen on ::1"),  # and wants no key
        (["--pool-mb", "-5"], "take 1 MB or more"),
        (["--target-ttft", "-1"], "a number of seconds"),
        (["--target-ttft", "nan"], "a number of seconds"),
        (["--name", "http://lab.example"], "isn't a host's name"),
    ],
)
def test_an_option_that_can_not_be_is_refused_with_a_sentence(capsys, args, words):
    assert serve.main(["--port", "0", *args]) == 1
    sentence = capsys.readouterr().err
    assert words in sentence
    assert len(sentence.splitlines()) == 1


def test_the_key_may_be_in_a_file_or_the_environment_and_is_no_argument_of_replicas(
    monkeypatch, tmp_path
):
    (tmp_path / "key").write_text("from a file\n")
    monkeypatch.setenv(serve.KEY, "from the environment")
    for args, expected in (
        ([], "environment"),
        (["--api-key-file", str(tmp_path / "key")], "file"),
    ):
        asked = serve.parser().parse_args(args)
        assert asked.api_key.endswith(expected)
        assert not any("from" in argument for argument in serve.arguments_for(asked))


def test_a_page_of_a_named_origin_may_call_and_must_have_the_key():
    settings = Settings(origins=(ORIGIN,), api_key="secret")
    app = plain_app(settings, None, Metrics("fable").responses)
    with RunningServer(app, settings, no_drain) as server, httpx2.Client() as client:

        def answer(method: str, origin: str, **headers: str) -> tuple[int, str | None]:
            given = {"origin": origin, "sec-fetch-site": "cross-site", **headers}
            response = client.request(method, f"{server.url}/v1/models", headers=given)
            return response.status_code, response.headers.get("access-control-allow-origin")

        asking = {"access-control-request-method": "POST"}
        assert answer("OPTIONS", ORIGIN, **asking) == (200, ORIGIN)
        assert answer("OPTIONS", "http://evil.example", **asking) == (400, None)
        assert answer("GET", ORIGIN) == (401, ORIGIN)
        assert answer("GET", ORIGIN, authorization="Bearer secret") == (404, ORIGIN)
        assert answer("GET", "http://evil.example", authorization="Bearer secret") == (403, None)
