"""The arguments of the pictures."""

from dataclasses import dataclass

from solutions.serving import SLO
from tests.samples import of
from visuals import serving as visuals


@dataclass
class Record:
    """What became of a request, in seconds."""

    due: float
    started: float | None
    first: float | None
    last: float | None
    ended: float | None
    outcome: str | None
    tokens: int = 0


LIMITS = SLO(ttft=0.25, tpot=0.025)
RECORDS = [  # all that can become of a request; the clock doesn't begin at 0
    Record(10.0, 10.05, 10.25, 10.5, 10.5, "whole", 11),  # both just in time
    Record(10.1, 10.12, 10.2, 10.8, 10.8, "whole", 21),  # tokens too slow
    Record(10.15, 10.45, 10.5, 10.7, 10.75, "whole", 9),  # first token too late
    Record(10.2, None, None, None, 10.2, "refused"),
    Record(10.25, None, None, None, 10.6, "aborted"),  # too late by then
    Record(10.3, 10.35, 10.4, 10.55, 10.6, "aborted", 9),
    Record(10.35, 10.45, None, None, 10.5, "failed"),
    Record(10.4, 10.5, 10.55, 10.55, 10.55, "whole", 1),  # no TPOT
]


def run(rate: int) -> list[Record]:
    """What becomes of two requests: the second waits for the first if the rate is high."""
    begin = max(1 / rate, 0.1)
    times = begin, begin + 0.02, begin + 0.1, begin + 0.1
    return [
        Record(0.0, 0.0, 0.02, 0.1, 0.1, "whole", 9),
        Record(1 / rate, *times, "whole", 9),
    ]


def run_many(rate: int) -> list[Record]:
    return 60 * run(rate)


RATES, THROUGHPUT, GOODPUT = [24, 8, 16, 32], [23.0, 8.0, 16.0, 27.0], [20.0, 8.0, 15.5, 9.0]
TTFTS = {
    "Poisson": [0.03, 0.01, 0.02, 0.5],
    "even, $x$": [n / 1000 for n in range(100, 0, -1)],
}
COUNTS = {
    "round robin": [[3, 0, 3, 0], [0, 3, 0, 3]],
    "prefix-aware": [[6, 1, 0, 0], [0, 5, 6, 1]],
}
HITS = {"round robin": 0.521, "prefix-aware": 0.86}
MANY_CHATS = {"one": [[chat % 40 for chat in range(100)]] * 8}

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def event(text: str) -> bytes:
    head = '"id":"cmpl-0123456789","object":"text_completion"'
    choice = f'{{"index":0,"text":"{text}","finish_reason":null}}'
    return f'data: {{{head},"choices":[{choice}]}}\n\n'.encode()


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"
ODD = event("$x$ \\n \u201cking\u201d \u738b \U0001f600").replace(b"king", b"\xff\x00")
STREAM = [
    (7.0, HEAD[:30]),  # cut within a header
    (7.001, HEAD[30:] + event("a")),
    (7.01, ODD),
    (7.02, USAGE + DONE),
]
CHUNKED = [
    (0.0, HEAD.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")),
    *((n / 100, b"75\r\n" + event(f"{n:03}") + b"\r\n") for n in range(200)),
    (2.0, b"e\r\n" + DONE + b"\r\n0\r\n\r\n"),
]
REFUSAL = [(0.0, b'HTTP/1.1 429 Too Many\r\nretry-after: 1\r\n\r\n{"error":' + b"9" * 200 + b"}")]

EXAMPLES = (
    of(visuals.bars, RECORDS, LIMITS),
    of(visuals.bars, RECORDS),
    of(visuals.bars, 10 * RECORDS, LIMITS),
    of(visuals.explore_rate, run),
    of(visuals.explore_rate, run, LIMITS, [2, 10, 50]),
    of(visuals.explore_rate, run_many, LIMITS, [2, 50]),
    of(visuals.knee, RATES, THROUGHPUT, GOODPUT),
    of(visuals.knee, [8], [8.0], [0.0]),
    of(visuals.ttft_curves, TTFTS),
    of(visuals.routing, COUNTS, HITS),
    of(visuals.routing, MANY_CHATS, {"one": 1.0}),
    of(visuals.on_the_wire, STREAM),
    of(visuals.on_the_wire, CHUNKED),
    of(visuals.on_the_wire, REFUSAL),
)
