"""All loads that were asked for, on one server."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from tqdm import tqdm

from timing.load.client import Answer, Client
from timing.load.printed import knee, plot, show_loads, show_unit
from timing.load.requests import Arrivals, Drawer, Request, arrivals_at
from timing.load.runs import (
    BURST,
    Load,
    capacity,
    closed_run,
    measure_unit,
    open_run,
    search_knee,
    verify,
)

ROUNDS_OF_USERS = 8  # requests of each user of a closed loop


class Measurement:
    """One server under the loads that `args` ask for. lab: whose pieces send and judge them."""

    def __init__(self, args: argparse.Namespace, lab: Any, client: Client) -> None:
        self.args, self.lab, self.client = args, lab, client

    async def run(self, console: Console) -> dict[str, Any]:
        """Measure and print; return everything as plain data. Raises Unusable."""
        args, drawer = self.args, Drawer(str(self.args.seed))
        is_verified = not args.lossy and await verify(self.client, drawer)
        console.print(verified(is_verified, args.lossy))
        unit = await measure_unit(self.client, drawer)
        self.slo = self.lab.SLO(args.slo_ttft * unit.step, args.slo_tpot * unit.step)
        show_unit(console, unit, self.slo)
        loads = await self.loads()
        show_loads(console, loads)
        if len(loads) > 1:
            console.print(knee(loads))
        if args.plot:
            plot(args.plot, loads)
            console.print(f"The plot: {args.plot}")
        return {
            "model": self.client.model,
            "verified": is_verified,
            "step_s": unit.step,
            "prefill_tok_per_s": unit.prefill_rate,
            "slo": {"ttft_s": self.slo.ttft, "tpot_s": self.slo.tpot},
            "loads": [load.row() for load in loads],
        }

    async def loads(self) -> list[Load]:
        args = self.args
        if args.users:
            name, count = f"{args.users} users", args.requests or ROUNDS_OF_USERS * args.users
            requests = self.drawer("users").requests(count)
            with self.progress(name, count):
                answers = await closed_run(self.client, requests, args.users)
            return [self.load(name, answers)]
        if args.trace:
            trace = [one for one in args.trace if args.requests or one[0] <= args.seconds]
            times, drawer = [at for at, *_ in trace[: args.requests]], self.drawer("trace")
            requests = [drawer.request_of(*lengths) for _, *lengths in trace[: args.requests]]
            return [await self.opened("trace", requests, arrivals_at(times))]
        if args.rate:
            return [await self.at(rate) for rate in args.rate]
        found = await capacity(self.client, self.lab, self.drawer("burst").requests(BURST))
        return await search_knee(self.at, found)

    def drawer(self, load: str) -> Drawer:
        """Return what draws a load's requests: the same on every server, others in each load."""
        return Drawer(f"{self.args.seed} {load}", self.args.prompt_tokens, self.args.max_tokens)

    async def at(self, rate: float) -> Load:
        name = f"{rate:.4g}/s"
        drawer, count = self.drawer(name), self.args.requests or round(rate * self.args.seconds)
        requests = drawer.requests(max(2, count))
        return await self.opened(name, requests, drawer.arrivals(len(requests), rate), rate)

    async def opened(
        self,
        name: str,
        requests: Sequence[Request],
        arrivals: Arrivals,
        rate: float | None = None,
    ) -> Load:
        with self.progress(name, len(requests)):
            answers = await open_run(self.client, self.lab, requests, arrivals)
        return self.load(name, answers, rate)

    @contextmanager
    def progress(self, name: str, count: int) -> Iterator[None]:
        """Show on a terminal how many requests have ended."""
        with tqdm(total=count, desc=name, unit="answer", leave=False, disable=None) as progress:
            self.client.on_answer = progress.update
            yield

    def load(self, name: str, answers: list[Answer], rate: float | None = None) -> Load:
        return Load(name, rate, answers, self.slo, self.lab)


def verified(is_verified: bool, lossy: bool) -> str:
    if is_verified:
        return "Greedy answers verified: they are the naive loop's."
    why = "with --lossy, any answer will do" if lossy else "the model isn't one of ours"
    return f"Greedy answers not verified: {why}."
