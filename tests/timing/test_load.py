"""Loads on a server: what a client makes of every answer, what is counted, and what is told."""

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gpt import load_tokenizer
from solutions import serving
from solutions.server.events import data_of, whole_events
from solutions.server.here import RunningServer, serve_here
from solutions.serving import SLO, Served
from solutions.simulated import clock
from timing.load import __main__ as command
from timing.load import measure, requests, runs
from timing.load.client import REFUSED, Answer, Client
from timing.load.printed import is_late, knee, remarks, show_loads
from timing.load.requests import Arrivals, Drawer, Request, arrivals_at, read_trace
from timing.load.runs import Load, closed_run, open_run, search_knee
from timing.peers import servers
from timing.peers.servers import Server

ASKED = Request("Once upon a time", 8)
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
Reply = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


def piece(text: str, reason: str | None = None, **others: Any) -> bytes:
    event = {"choices": [{"index": 0, "text": text, "finish_reason": reason}], **others}
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n'
WHOLE = EVENTS + piece("a") + piece("b", "length") + USAGE + b"data: [DONE]\n\n"


@asynccontextmanager
async def fake_server(reply: Reply):
    """A server that reads each request and lets `reply` write what it likes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = map(int, re.findall(rb"content-length: (\d+)", head.lower()))
        await reply(json.loads(await reader.readexactly(length)), writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


def asked_of(reply: Reply, use: Callable[[Client], Awaitable[Any]]) -> Any:
    """What `use` returns, given a client of a fake server."""

    async def run() -> Any:
        async with fake_server(reply) as url, Client(url, "fable") as client, asyncio.timeout(20):
            return await use(client)

    return asyncio.run(run())


def writing(content: bytes) -> Reply:
    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter):
        writer.write(content)

    return reply


def ask_now(client: Client, early: float = 0) -> Awaitable[Answer]:
    return client.ask(ASKED, asyncio.get_running_loop().time() - early)


# ------------------------------------------------------------------------------------- one answer


@pytest.mark.parametrize(
    ("content", "why", "text", "tokens", "has_usage"),
    [
        (WHOLE, "", "ab", 3, True),
        (EVENTS + piece("a") + piece("b") + piece("", "stop"), "", "ab", 2, False),
        (EVENTS + piece("", "stop", usage={"completion_tokens": 1}), "", "", 1, True),
        (EVENTS + piece("a\u2028b\x85") + piece("", "stop"), "", "a\u2028b\x85", 1, False),
        (EVENTS + b": ping\n\n" + piece("a", "stop").replace(b"\n", b"\r\n"), "", "a", 1, False),
        (EVENTS + piece("a"), "the answer broke off", "a", 1, False),
        (EVENTS + piece("a", "stop")[:-2], "the answer broke off", "", 0, False),
        (EVENTS + b'data: {"error": {"message": "no"}}\n\n', "an error event: no", "", 0, False),
        (EVENTS + b"data: {nonsense\n\n", "an event that isn't one of this API", "", 0, False),
        (EVENTS + b"data: [1]\n\n", "an event that isn't one of this API", "", 0, False),
        (b"HTTP/1.1 429 Too Many\r\nconnection: close\r\n\r\n", REFUSED, "", 0, False),
        (
            b'HTTP/1.1 400 Bad\r\nconnection: close\r\n\r\n{"error": {"message": "too long"}}',
            "status 400: too long",
            *("", 0, False),
        ),
        (b"HTTP/1.1 500 Oh\r\nconnection: close\r\n\r\nsorry", "status 500: sorry", "", 0, False),
        (b"", "the connection failed (RemoteProtocolError)", "", 0, False),
        (
            EVENTS.replace(b"connection: close", b"transfer-encoding: chunked") + b"5\r\nda",
            "the connection failed (RemoteProtocolError)",
            *("", 0, False),
        ),
    ],
)
def test_every_answer_is_whole_or_refused_or_failed_for_a_reason(
    content, why, text, tokens, has_usage
):
    answer = asked_of(writing(content), ask_now)
    assert (answer.why, answer.text, answer.served.tokens) == (why, text, tokens)
    assert answer.has_usage == has_usage
    assert answer.served.is_whole == (not why)
    if not why:
        assert answer.sent <= answer.served.first <= answer.served.last <= answer.end


def test_a_redirect_leads_nowhere():
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:9/\r\nconnection: close\r\n\r\n"
    assert asked_of(writing(moved), ask_now).why == "status 307: "


def test_it_asks_for_what_every_server_knows():
    bodies = []

    async def reply(body, writer):
        bodies.append(body)
        writer.write(WHOLE)

    asked_of(reply, ask_now)
    assert bodies == [
        {
            "model": "fable",
            "prompt": ASKED.prompt,
            "max_tokens": 8,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


def test_an_event_may_come_in_pieces():
    async def chunks():
        for byte in WHOLE.removeprefix(EVENTS):
            yield bytes([byte])

    async def run():
        return [data async for events in whole_events(chunks()) for data in data_of(events)]

    assert [data[:9] for data in asyncio.run(run())] == [b'{"choices'] * 3 + [b"[DONE]"]


def test_times_count_from_when_a_request_was_due():
    answer = asked_of(writing(WHOLE), partial(ask_now, early=5))
    assert min(answer.lag, answer.served.ttft, answer.latency) >= 5


def test_several_tokens_in_an_event_are_divided_over_the_time_after_the_first_one():
    usage = b'data: {"choices": [], "usage": {"completion_tokens": 16}}\n\n'
    whole = EVENTS + piece("four") * 3 + piece("last", "length") + usage
    served = asked_of(writing(whole), ask_now).served
    assert (served.tokens, served.in_first) == (16, 4)
    assert replace(served, first=1.0, last=1.24).tpot == pytest.approx(0.02)
    assert replace(served, in_first=16).tpot is None


def test_a_server_that_never_ends_is_given_up():
    is_over = asyncio.Event()

    async def reply(body, writer):
        writer.write(EVENTS + piece("a"))
        await is_over.wait()

    async def use(client):
        client.deadline = 0.2
        answer = await ask_now(client)
        is_over.set()
        return answer

    answer = asked_of(reply, use)
    assert answer.why == "no whole answer within 0.2 s"
    assert not answer.served.is_whole


# ------------------------------------------------------------------------------------------ loads


class Meeting:
    """Answers no request before `size` of them have come together."""

    def __init__(self, size: int) -> None:
        self.size, self.here, self.most = size, 0, 0
        self.all_here = asyncio.Event()

    async def __call__(self, body: dict[str, Any], writer: asyncio.StreamWriter):
        self.here += 1
        self.most = max(self.most, self.here)
        if self.here == self.size:
            self.all_here.set()
        await self.all_here.wait()
        writer.write(WHOLE)
        await writer.drain()
        self.here -= 1


def test_an_open_loop_waits_for_no_answer():
    arrivals = Arrivals([0.1] * 12, 500.0)
    answers = asked_of(Meeting(12), lambda c: open_run(c, serving, [ASKED] * 12, arrivals))
    assert [answer.why for answer in answers] == [""] * 12
    dues = [answer.served.due for answer in answers]
    assert dues == sorted(dues)


def test_in_a_closed_loop_each_user_has_one_request():
    meeting = Meeting(3)
    answers = asked_of(meeting, lambda client: closed_run(client, [ASKED] * 10, 3))
    assert len(answers) == 10
    assert meeting.most == 3


def answer(due: float, first: float | None, end: float, tokens: int = 5, **given: Any) -> Answer:
    given = {"why": "", "has_usage": True, "sent": due, **given}
    served = Served(due, first, end if first else None, tokens, is_whole=not given["why"])
    return Answer(served, given["sent"], end, given["why"], "", given["has_usage"])


def load_of(*answers: Answer, name: str = "2/s", lab: Any = serving) -> Load:
    return Load(name, 2.0, list(answers), SLO(ttft=1.0, tpot=0.5), lab)


MIXED = (
    answer(0, 0.5, 2.5),  # good
    answer(1, 3, 4, tokens=1),  # too late
    answer(2, 2.5, 9),  # too slow
    answer(3, None, 3.5, tokens=0, why=REFUSED),
    answer(4, 4.5, 5, tokens=2, why="the answer broke off"),
)


def test_a_load_is_counted_exactly():
    row = load_of(*MIXED).row()
    counts = {"sent": 5, "whole": 3, "refused": 1, "failed": 1}
    assert {key: row[key] for key in counts} == counts
    assert row["seconds"] == 9
    assert (row["req_per_s"], row["tok_per_s"]) == (3 / 9, 11 / 9)
    assert (row["ttft_p50_s"], row["ttft_p95_s"], row["ttft_p99_s"]) == (0.5, 2, 2)
    assert row["tpot_p50_s"] == 0.5
    assert (row["goodput"], row["good_share"]) == (pytest.approx(1 / 9), pytest.approx(1 / 5))
    # Of the 4 seconds of arrivals, the requests were there for 2.5, 3, 2, .5 and 0.
    assert row["in_flight"] == 8 / 4
    assert row["in_flight_by_little"] == (2.5 + 3 + 7 + 0.5 + 1) / 4


def test_the_lab_s_own_percentile_and_goodput_count():
    own = SimpleNamespace(percentile=lambda values, p: p, goodput=lambda *given: 7.0)
    row = load_of(*MIXED, lab=own).row()
    assert (row["ttft_p95_s"], row["tpot_p99_s"], row["goodput"]) == (95, 99, 7)


def test_a_load_without_a_whole_answer_has_no_times():
    row = load_of(MIXED[3], MIXED[4]).row()
    assert row["ttft_p50_s"] is row["tpot_p99_s"] is None
    assert (row["whole"], row["goodput"]) == (0, 0)


def told(*answers: Answer) -> str:
    return "\n".join(remarks([load_of(*answers)]))


def test_what_makes_a_table_doubtful_is_told():
    many = [answer(i, i + 0.1, i + 0.2) for i in range(1500)]
    assert "*" not in told(*many)
    assert "steady" not in told(*many)
    assert "The p99 of 300 answers is number 4 from the top" in told(*many[:300])
    assert "The p99 of 3 answers is the largest" in told(*MIXED)
    assert "(Little's law): not steady.\nNot steady: many requests had" in told(*MIXED)
    assert "1 failed: the answer broke off." in told(*MIXED)
    assert "its events with text" not in told(*MIXED)
    assert "its events with text" in told(*MIXED, answer(5, 6, 7, has_usage=False))


@pytest.mark.parametrize(("lag", "late"), [(0.09, False), (0.11, True)])  # the SLO's TTFT is 1 s
def test_a_generator_that_was_late_says_that_the_times_are_its_own(lag, late):
    answers = answer(0, 0.5, 1), answer(2, 2.5, 3, sent=2 + lag)
    assert is_late(load_of(*answers)) == late
    assert ("These times are the generator's" in told(*answers)) == late


def test_the_table_is_whole_and_marks_a_p99_of_few_answers(capsys):
    slow = [answer(0, 12.5, 90.0 + i, tokens=64) for i in range(999)]
    show_loads(command.new_console(), [load_of(*MIXED), load_of(*slow), load_of(MIXED[3])])
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.startswith((" load", " 2/s "))]
    header = "load sent whole refused failed req/s tok/s TTFT p50 p95 p99 TPOT p50 goodput"
    assert rows[0] == header.split()
    assert [row[9] for row in rows[1:]] == ["2,000*", "12,500*", "-"]
    assert "…" not in printed


# ------------------------------------------------------------------------------------- the knee


def searched(shares: dict[float, float]) -> list[float]:
    """The rates that are measured, where `shares` of the requests are good, by the rate's floor."""

    async def measured(rate: float) -> Any:
        return SimpleNamespace(rate=rate, good_share=shares[int(rate)])

    return [int(load.rate or 0) for load in asyncio.run(search_knee(measured, 20.0))]


def test_rates_rise_until_half_of_the_requests_miss_the_slo():
    assert searched({10: 1, 14: 0.95, 19: 0.7, 27: 0.4}) == [10, 14, 19, 27]


def test_rates_fall_where_even_the_first_is_too_high():
    assert searched({10: 0.2, 7: 0.5, 5: 0.9}) == [5, 7, 10]


def test_the_search_ends():
    always = searched(dict.fromkeys(range(1000), 1.0))
    assert len(always) == runs.MOST_RATES
    assert len(searched(dict.fromkeys(range(1000), 0.0))) == runs.MOST_RATES


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ([1, 0.95, 0.5, 0.92], "The knee: up to 2/s, 90% of the requests or more meet the SLO."),
        ([0.8, 0.95], "Even at 1/s, fewer than 90% of the requests meet the SLO."),
        ([1, 0.9], "At 2/s, 90% of the requests or more still meet the SLO."),
    ],
)
def test_the_knee_is_the_last_rate_before_the_first_bad_one(shares, sentence):
    loads = [SimpleNamespace(name=f"{n}/s", good_share=s) for n, s in enumerate(shares, start=1)]
    assert knee(loads).startswith(sentence)


# --------------------------------------------------------------------------------------- requests


def test_requests_are_the_same_from_the_same_seed_and_as_long_as_asked():
    tokenizer = load_tokenizer("fable")
    drawn = Drawer("3", (4, 100), (2, 9)).requests(200)
    assert drawn == Drawer("3", (4, 100), (2, 9)).requests(200) != Drawer("4").requests(200)
    assert {request.max_tokens for request in drawn} == set(range(2, 10))
    lengths = [len(tokenizer(request.prompt)["input_ids"]) for request in drawn]
    assert min(lengths) >= 4
    assert max(lengths) <= 100
    assert sorted(lengths)[100] < 30  # log-uniform: the median is near 20
    assert len({request.prompt for request in drawn}) > 190


def test_a_trace_is_sent_at_its_times(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [(27000, 30, 5), (27000, 3, 1), (27250, 90, 64), (47250, 7, 2)]
    path.write_text(
        "".join(json.dumps(dict(zip(requests.TRACE_FIELDS, line, strict=True))) + "\n"
                for line in lines)
    )  # fmt: skip
    trace = read_trace(path)
    assert trace == [(0, 30, 5), (0, 3, 1), (0.25, 90, 64), (20.25, 7, 2)]
    arrivals = arrivals_at([at for at, *_ in trace])
    dues = []

    async def send(number: int, due: float):
        dues.append(due)

    async def run():
        start = asyncio.get_running_loop().time()
        await serving.open_loop(send, arrivals.uniforms, arrivals.rate)
        return [due - start for due in dues]

    assert clock.run(run()) == pytest.approx([0, 0, 0.25, 20.25])


EARLY = '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
LATE = EARLY.replace("0", "9")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("{}\n", "line 1: each line must be a JSON object with the numbers timestamp, "),
        (EARLY + "no", "line 2: each line"),
        (EARLY + LATE.replace("1", "0"), "line 2: a request has 1 token or more"),
        (EARLY, "two requests or more"),
        (LATE + EARLY, "in the order of their times"),
    ],
)
def test_a_trace_that_is_none_is_refused(tmp_path, lines, sentence):
    path = tmp_path / "trace.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        read_trace(path)


# ------------------------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serve_here() as running:
        yield running


@pytest.fixture
def quick(monkeypatch):
    sizes = {"UNIT_ROUNDS": 1, "DECODED": (8, 4), "PREFILLED": 16, "MOST_RATES": 2}
    for name, size in {**sizes, "VERIFIED": 1, "VERIFIED_LENGTHS": (8, 6)}.items():
        monkeypatch.setattr(runs, name, size)
    monkeypatch.setattr(measure, "BURST", 4)


SHORT = ["--prompt-tokens", "4-16", "--max-tokens", "2-6"]


@pytest.fixture
def load(quick, capsys) -> Callable[..., tuple[str, dict[str, Any]]]:
    """Run the command; return what it printed, and the last line read as JSON."""

    def run(*args: str) -> tuple[str, dict[str, Any]]:
        command.main([*SHORT, *([] if "--requests" in args else ["--seconds", "0.2"]), *args])
        *lines, result = capsys.readouterr().out.splitlines()
        return "\n".join(lines), json.loads(result)

    return run


def test_it_verifies_and_measures_a_server_at_each_rate(load, server, tmp_path):
    files = [str(tmp_path / name) for name in ("load.json", "load.png")]
    args = "--rates", "40,20", "--json", files[0], "--plot", files[1]
    text, result = load("--url", f"{server.url}/v1/", *args)
    assert "Greedy answers verified: they are the naive loop's." in text
    assert "SLO: TTFT of at most 100 steps (" in text
    found = result["servers"][server.url]
    assert (found["model"], found["verified"]) == ("fable", True)
    assert [row["load"] for row in found["loads"]] == ["20/s", "40/s"]
    assert [row["whole"] for row in found["loads"]] == [4, 8]
    assert found["slo"]["ttft_s"] == pytest.approx(100 * found["step_s"])
    assert json.loads((tmp_path / "load.json").read_text()) == result
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_rate_it_finds_some_by_itself(load, server):
    text, result = load("--url", server.url)
    first, second = (row["rate"] for row in result["servers"][server.url]["loads"])
    assert second == pytest.approx(runs.FACTOR * first)
    assert re.search(r"The knee|Even at|still meet", text)


def test_a_trace_is_cut_to_the_seconds_or_to_the_requests(load, server, tmp_path):
    path, row = tmp_path / "trace.jsonl", '{"timestamp": %d, "input_length": 5, "output_length": 2}'
    path.write_text("\n".join(row % at for at in (0, 50, 100, 600_000)))
    for args, sent in (([], 3), (["--requests", "2"], 2)):
        _, result = load("--url", server.url, "--trace", str(path), *args)
        [found] = result["servers"][server.url]["loads"]
        assert (found["load"], found["sent"], found["whole"]) == ("trace", sent, sent)


def test_requests_without_an_answer_end_at_a_deadline_and_are_counted_with_the_reason(load):
    is_over = asyncio.Event()

    async def reply(body, writer):
        if body["max_tokens"] == 6:  # not one of those that measure a step
            await is_over.wait()
        writer.write(WHOLE)

    async def run():
        args = "--model", "gpt", "--users", "5", "--requests", "5", "--deadline", "1"
        lengths = "--max-tokens", "6", "--slo-ttft", "1000000"
        async with fake_server(reply) as url:
            found = await asyncio.to_thread(load, "--url", url, *args, *lengths)
            is_over.set()
        return found

    text, result = asyncio.run(run())
    [server] = result["servers"].values()
    [row] = server["loads"]
    assert row["failures"] == {"no whole answer within 1 s": 5}
    assert (row["sent"], row["failed"], row["good_share"]) == (5, 5, 0)
    assert "each is given up after 1 s." in " ".join(text.split())
    assert "5 failed: no whole answer within 1 s." in text


def test_users_wait_in_a_closed_loop(load, server):
    _, result = load("--url", server.url, "--users", "2", "--model", "fable")
    [found] = result["servers"][server.url]["loads"]
    assert (found["load"], found["sent"]) == ("2 users", 16)


def test_a_learner_s_own_pieces_send_and_count(load, server, monkeypatch):
    sent = []

    async def open_loop(send, uniforms, rate):
        sent.append(len(uniforms))
        return await serving.open_loop(send, uniforms, rate)

    own = SimpleNamespace(**{**vars(serving), "open_loop": open_loop, "goodput": lambda *given: 7})
    monkeypatch.setattr("autograder.check.mine", lambda name: own)
    _, result = load("--url", server.url, "--rate", "20", "--mine")
    assert sent == [4]
    assert [row["goodput"] for row in result["servers"][server.url]["loads"]] == [7]


class OtherText(serving.TextStream):
    def push(self, token_id: int) -> str:
        return super().push(token_id).upper()


def test_a_server_with_another_text_is_not_measured(load):
    lab = SimpleNamespace(**{**vars(serving), "TextStream": OtherText})
    with serve_here(lab) as other:
        with pytest.raises(SystemExit, match="The server's greedy answer isn't the naive loop's"):
            load("--url", other.url, "--rate", "20")
        text, result = load("--url", other.url, "--rate", "20", "--lossy")
    assert "Greedy answers not verified: with --lossy, any answer will do." in text
    assert not result["servers"][other.url]["verified"]


def test_a_model_of_others_is_not_verified(load):
    async def run():
        async with fake_server(writing(WHOLE)) as url:
            await asyncio.to_thread(load, "--url", url, "--model", "gpt", "--rate", "20")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (b"HTTP/1.1 429 Too Many\r\nconnection: close\r\n\r\n", "comes alone: refused."),
        (EVENTS + piece("a", "stop"), "end with their first token"),
    ],
)
def test_a_server_that_cannot_be_measured_is_told_why(load, reply, sentence):
    async def run():
        async with fake_server(writing(reply)) as url:
            await asyncio.to_thread(load, "--url", url, "--model", "gpt")

    with pytest.raises(SystemExit, match=f"Stopped: .*{sentence}"):
        asyncio.run(run())


def test_where_no_server_is_one_is_told_how_to_start_it(load):
    with pytest.raises(SystemExit, match=r"Stopped: No server answers at .* `make serve`"):
        load("--url", f"http://127.0.0.1:{servers.free_port()}")


def test_a_server_that_wants_a_key_says_so(load):
    with serve_here(api_key="secret") as locked:
        with pytest.raises(SystemExit, match=r"status 401: The API key is missing or wrong"):
            load("--url", locked.url)
        _, result = load("--url", locked.url, "--api-key", "secret", "--rate", "20")
    assert "secret" not in json.dumps(result)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--rate", "4,x"], "'x' is not a number above 0."),
        (["--rate", "0"], "'0' is not a number above 0."),
        (["--rate", "nan"], "'nan' is not a number above 0."),
        (["--rate", "1", "--users", "2"], "not allowed with"),
        (["--users", "0"], "'0' is not a whole number from 1 up."),
        (["--requests", "2", "--seconds", "3"], "not allowed with"),
        (["--seconds", "inf"], "'inf' is not a number above 0."),
        (["--prompt-tokens", "9-3"], "'9-3' has more than 3 tokens at the least."),
        (["--max-tokens", "a-3"], "'a' is not a whole number from 1 up."),
        (["--url", "127.0.0.1:8000"], "is not an address like http://127.0.0.1:8000."),
        (["--url", "ftp://host"], "is not an address"),
        (["--trace", "no such file"], "No such file"),
        (["--users", "2", "--plot", "a.png"], "--plot draws the rates of one server"),
        (["--peers", "--url", "http://127.0.0.1:1", "--plot", "a.png"], "--plot draws"),
        (["--prompt-tokens", "90000", "--peers"], "A prompt has at most"),
        (["--peers", "--model", "no such model"], "There is no model 'no such model'"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(capsys, args, sentence):
    with pytest.raises(SystemExit) as stopped:
        command.main(args)
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("timing.load: ")
    assert sentence in told
    assert len(told.splitlines()) == 1


# -------------------------------------------------------------------------------------- the peers

HEALTHY = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.send_response(429); self.end_headers()
    def log_message(self, *given): pass
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def program(text: str) -> Callable[..., list[str]]:
    return lambda folder, port, scratch: [sys.executable, "-c", text, str(port)]


def test_each_server_is_started_measured_and_stopped_or_told_why_not(load, monkeypatch, server):
    absent = Server(program(""), ("json", "no_such_module"), ("no-such-program",), "Take another.")
    monkeypatch.setattr(
        command,
        "SERVERS",
        servers_now := {
            "absent": absent,
            "dies": Server(program("import sys; sys.exit('no memory')")),
            "refuses": Server(program(HEALTHY)),
            "hangs": Server(program("import time; time.sleep(60)")),
        },
    )
    monkeypatch.setattr(servers, "SERVERS", servers_now)
    monkeypatch.setattr(servers, "START_SECONDS", 2)
    started: list[Any] = []

    class Noted(servers.subprocess.Popen):
        def __init__(self, *given, **named) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(servers.subprocess, "Popen", Noted)
    text, result = load("--peers", "--rate", "20")
    assert result["servers"] == {}
    assert result["not_measured"] == {
        "absent": "not installed: it needs no_such_module and no-such-program. Take another.",
        "dies": "its process ended: no memory",
        "refuses": "The server doesn't answer a request that comes alone: refused.",
        "hangs": "it didn't answer within 2 seconds.",
    }
    assert all(process.poll() is not None for process in started)
    assert "hangs wasn't measured: it didn't answer within 2 seconds." in text


@pytest.mark.slow
def test_our_own_server_is_a_peer_like_the_others(load, monkeypatch):
    monkeypatch.setattr(command, "SERVERS", {"ours": servers.SERVERS["ours"]})
    _, result = load("--peers", "--rate", "20")
    assert result["servers"]["ours"]["verified"]
    assert result["servers"]["ours"]["loads"][0]["whole"] == 4
