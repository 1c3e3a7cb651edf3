"""What a server is measured by: its own step, its greedy answers, and loads of requests."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gpt import GPTLMHead, load_tokenizer, shipped_models
from solutions import generate as lab1
from timing.load.client import REFUSED, Answer, Client, Unusable
from timing.load.requests import Arrivals, Drawer, Request

UNIT_ROUNDS = 5  # after one that warms up
DECODED = 24, 48  # tokens of the prompt and of the answer that measure a step
PREFILLED = 256  # tokens of the prompt that measures the prefill
VERIFIED, VERIFIED_LENGTHS = 3, (24, 16)  # answers, and tokens of their prompts and of themselves
BURST = 32  # requests at once, which show about how many per second a server can serve
FIRST, FACTOR, MOST_RATES = 0.5, 1.4, 8  # of the search: where it begins, its steps, its length
GOOD, BAD = 0.9, 0.5  # shares of the requests: those that a rate below the knee meets, and beyond


@dataclass(frozen=True)
class Unit:
    """A server's own pace with one request. step: its TPOT. prefill_rate: tokens per second."""

    step: float
    prefill_rate: float


async def alone(client: Client, request: Request) -> Answer:
    """Send a request by itself. Raises Unusable if the answer isn't whole."""
    answer = await client.ask(request, asyncio.get_running_loop().time())
    if answer.why:
        raise Unusable(f"The server doesn't answer a request that comes alone: {answer.why}.")
    return answer


async def measure_unit(client: Client, drawer: Drawer) -> Unit:
    steps, rates = [], []
    for _ in range(1 + UNIT_ROUNDS):
        steps.append((await alone(client, drawer.request_of(*DECODED))).served.tpot)
        ttft = (await alone(client, drawer.request_of(PREFILLED, 1))).served.ttft
        rates.append(PREFILLED / (ttft or 1))
    known = [step for step in steps[1:] if step is not None]
    if not known:
        raise Unusable("The server's answers end with their first token, so there is no TPOT.")
    return Unit(median(known), median(rates[1:]))


async def verify(client: Client, drawer: Drawer) -> bool:
    """Compare greedy answers with the naive loop's, if the model is a shipped one.

    Returns whether it could. Raises Unusable if an answer differs.
    """
    name = Path(client.model).name
    if name not in shipped_models():
        return False
    for _ in range(VERIFIED):
        request = drawer.request_of(*VERIFIED_LENGTHS)
        answer, (expected, count) = await alone(client, request), naive_answer(name, request)
        if answer.text != expected or (answer.has_usage and answer.served.tokens != count):
            raise Unusable(
                f"The server's greedy answer isn't the naive loop's. It continues "
                f"{request.prompt[-40:]!r} with {answer.text!r} ({answer.served.tokens} tokens), "
                f"not with {expected!r} ({count} tokens). If its weights are rounded, measure it "
                "with --lossy."
            )
    return True


def naive_answer(name: str, request: Request) -> tuple[str, int]:
    """Return the naive loop's text, and the number of its tokens."""
    model, tokenizer = loaded(name)
    ids = tokenizer(request.prompt)["input_ids"]
    eos = tokenizer.eos_token_id
    new = lab1.generate(model, torch.tensor([ids]), request.max_tokens, eos)[0, len(ids) :]
    return tokenizer.decode(new, skip_special_tokens=True), len(new)


@cache
def loaded(name: str) -> tuple[GPTLMHead, Any]:
    return GPTLMHead.from_pretrained(name), load_tokenizer(name)


# ------------------------------------------------------------------------------------------- loads


async def open_run(
    client: Client, lab: Any, requests: Sequence[Request], arrivals: Arrivals
) -> list[Answer]:
    """Send each request when it is due, with the lab's `open_loop`."""

    async def send(number: int, due: float) -> Answer:
        return await client.ask(requests[number], due)

    return await lab.open_loop(send, arrivals.uniforms, arrivals.rate)


async def closed_run(client: Client, requests: Sequence[Request], users: int) -> list[Answer]:
    """Let each user send a request, wait for its answer, and send the next one.

    The users slow down with the server, so they never show what a queue does.
    """
    answers, rest = [], iter(requests)

    async def user() -> None:
        for request in rest:  # one iterator for all users
            answers.append(await client.ask(request, asyncio.get_running_loop().time()))

    await asyncio.gather(*(user() for _ in range(users)))
    return answers


@dataclass(frozen=True)
class Load:
    """Requests and their answers. name: the load's rate, or where it comes from.

    rate: requests per second, where that was asked for. slo: the lab's. lab: the module whose
    `percentile` and `goodput` count.
    """

    name: str
    rate: float | None
    answers: list[Answer]
    slo: Any
    lab: Any

    @property
    def seconds(self) -> float:
        """From the first request's due time to the last end."""
        return max(a.end for a in self.answers) - min(a.served.due for a in self.answers)

    @property
    def arriving(self) -> float:
        """Seconds from the first due time to the last."""
        dues = [answer.served.due for answer in self.answers]
        return max(dues) - min(dues)

    @property
    def whole(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.why]

    @property
    def failures(self) -> list[str]:
        return [answer.why for answer in self.answers if answer.why not in ("", REFUSED)]

    @property
    def goodput(self) -> float:
        return self.lab.goodput([answer.served for answer in self.answers], self.slo, self.seconds)

    @property
    def good_share(self) -> float:
        return self.goodput * self.seconds / len(self.answers)

    @property
    def max_lag(self) -> float:
        return max(answer.lag for answer in self.answers)

    @property
    def in_flight(self) -> float:
        """Requests that were due and had not ended, on average over the time of the arrivals."""
        last = max(answer.served.due for answer in self.answers)
        return sum(min(a.end, last) - a.served.due for a in self.answers) / (self.arriving or 1)

    @property
    def by_little(self) -> float:
        """The same by Little's law: the rate of arrivals times the mean latency."""
        return sum(answer.latency for answer in self.answers) / (self.arriving or 1)

    def row(self) -> dict[str, Any]:
        """Return the load's numbers, in seconds and per second."""
        served = [answer.served for answer in self.whole]
        ttfts = [one.ttft for one in served if one.ttft is not None]
        tpots = [one.tpot for one in served if one.tpot is not None]
        refused = sum(answer.why == REFUSED for answer in self.answers)
        return {
            "load": self.name,
            "rate": self.rate,
            "sent": len(self.answers),
            "whole": len(served),
            "refused": refused,
            "failed": len(self.failures),
            "failures": dict(Counter(self.failures)),
            "seconds": self.seconds,
            "req_per_s": len(served) / self.seconds,
            "tok_per_s": sum(one.tokens for one in served) / self.seconds,
            **{f"ttft_p{p}_s": self.percentile(ttfts, p) for p in (50, 95, 99)},
            **{f"tpot_p{p}_s": self.percentile(tpots, p) for p in (50, 99)},
            "goodput": self.goodput,
            "good_share": self.good_share,
            "in_flight": self.in_flight,
            "in_flight_by_little": self.by_little,
            "max_lag_s": self.max_lag,
        }

    def percentile(self, values: list[float], p: float) -> float | None:
        return self.lab.percentile(values, p) if values else None


async def capacity(client: Client, lab: Any, requests: Sequence[Request]) -> float:
    """Return how many requests per second the server serves when many come at once."""
    answers = await open_run(client, lab, requests, Arrivals([0.0] * len(requests), 1.0))
    load = Load("", None, answers, None, lab)
    if not load.whole:
        raise Unusable(f"The server answers none of {len(requests)} requests that come at once.")
    return len(load.whole) / load.seconds


async def search_knee(measure: Callable[[float], Awaitable[Load]], capacity: float) -> list[Load]:
    """Measure rates around the highest one at which the server keeps its SLO; sort them.

    From FIRST of the capacity the rates rise until the share of good requests is below BAD; or they
    fall until it is GOOD, if it wasn't so at the beginning.
    """
    rate = FIRST * capacity
    found = [await measure(rate)]
    rises = found[0].good_share >= GOOD
    while len(found) < MOST_RATES:
        share = found[-1].good_share
        if share < BAD if rises else share >= GOOD:
            break
        rate *= FACTOR if rises else 1 / FACTOR
        found.append(await measure(rate))
    return found if rises else found[::-1]
