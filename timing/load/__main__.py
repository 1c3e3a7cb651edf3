"""Load a server that speaks OpenAI's API, and say what it is worth.

    python -m timing.load                             a few rates around what the server can serve
    python -m timing.load --rate 4,8,16 --seconds 30  requests per second, on average
    python -m timing.load --trace trace.jsonl         requests that came to another server
    python -m timing.load --users 16                  a closed loop, to see what it hides
    python -m timing.load --peers --rate 4            other servers that are installed here

The server is at --url, by default the one that `make serve` starts; any other that speaks the API
can be measured, too. Requests are sent when they are due, whether or not earlier ones have been
answered, and each time counts from then. A limit of the SLO is a multiple of the time that this
server takes for a decode step when it has only one request, so that a slow machine can meet it. In
a trace, each line is an object with `timestamp` (milliseconds), `input_length` and `output_length`
(tokens).

First, greedy answers are compared with the naive loop's, if the model is one of ours. The last
line of the output is the whole result as JSON.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from gpt import find_checkpoint
from serve import labs_of
from solutions.server.connections import allow_many_connections
from timing.command_line import Parser, new_console, plot_file, whole_number, writable_file
from timing.load.client import DEADLINE, Client, name_of_model
from timing.load.measure import Measurement
from timing.load.printed import environment, show_environment
from timing.load.requests import Drawer, Range, TracedRequest, read_trace
from timing.load.runs import Unusable
from timing.peers.servers import SERVERS, started
from timing.peers.worker import PeerFailed

# ------------------------------------------------------------------------------ the command line


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0.")
    return number


def rate_list(text: str) -> list[float]:
    return sorted({positive(part) for part in text.split(",")})


def token_range(text: str) -> Range:
    fewest, _, most = text.partition("-")
    both = whole_number(fewest), whole_number(most or fewest)
    if both[0] > both[1]:
        raise argparse.ArgumentTypeError(f"{text!r} has more than {both[1]} tokens at the least.")
    return both


def server_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address like http://127.0.0.1:8000.")
    return text.rstrip("/").removesuffix("/v1")


def trace_file(text: str) -> list[TracedRequest]:
    try:
        return read_trace(Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def new_parser() -> Parser:
    parser = Parser(
        prog="timing.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--url", type=server_url, default="http://127.0.0.1:8000", help="the server (%(default)s)")
    add("--model", help="the model's name (the first one that the server lists)")
    add("--api-key", help="if the server wants one")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--rate", "--rates", type=rate_list, help="requests per second: one or more")
    what.add_argument("--trace", type=trace_file, metavar="FILE", help="requests and their times")
    what.add_argument("--users", type=whole_number, help="who wait for each answer: a closed loop")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--requests", type=whole_number, help="of each load")
    size.add_argument("--seconds", type=positive, default=10.0, help="of arrivals (%(default)g)")
    add("--prompt-tokens", type=token_range, default=(16, 256), help="log-uniform (16-256)")
    add("--max-tokens", type=token_range, default=(8, 64), help="of an answer, likewise (8-64)")
    add("--seed", type=int, default=0, help="of prompts, lengths and arrivals (0)")
    add("--slo-ttft", type=positive, default=100.0, help="limit of the TTFT, in steps (100)")
    add("--slo-tpot", type=positive, default=5.0, help="limit of the TPOT, in steps (5)")
    add("--deadline", type=positive, default=DEADLINE,
        help="seconds after which a request is given up, as failed (%(default)g)")  # fmt: skip
    add("--lossy", action="store_true", help="measure a server whose greedy answers differ")
    add("--mine", action="store_true", help="with your own open_loop, percentile and goodput")
    add("--peers", action="store_true", help=f"start and measure {', '.join(SERVERS)}, in turn")
    add("--json", type=writable_file, metavar="FILE", help="write the last line there, too")
    add("--plot", type=plot_file, metavar="FILE", help="draw goodput and TTFT, as PNG")
    return parser


# ------------------------------------------------------------------------------------- what to do


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser()
    args = parser.parse_args(argv)
    if args.plot and (args.trace or args.users or args.peers):
        parser.error("--plot draws the rates of one server: take --rate, or neither.")
    longest = max(prompt for _, prompt, _ in args.trace) if args.trace else args.prompt_tokens[1]
    try:
        Drawer("").request_of(longest, 1)
        folder = find_checkpoint(args.model or "fable").resolve() if args.peers else None
    except ValueError as error:
        parser.error(str(error))
    allow_many_connections()
    lab, console = labs_of(args.mine)("serving"), new_console()
    found: dict[str, Any] = {"environment": environment(), "servers": {}, "not_measured": {}}
    show_environment(console, found["environment"], args)
    try:
        if folder:
            measure_peers(args, lab, console, folder, found)
        else:
            found["servers"][args.url] = measure(args, lab, console, args.url, args.model)
    except Unusable as error:
        sys.exit(f"Stopped: {error}")
    line = json.dumps(found)
    if args.json:
        args.json.write_text(line + "\n")
    print(line)


def measure(
    args: argparse.Namespace, lab: Any, console: Console, url: str, model: str | None
) -> dict[str, Any]:
    """Measure the server at `url` and print what was found. Raises Unusable."""

    async def run() -> dict[str, Any]:
        name = model or await name_of_model(url, args.api_key)
        console.print(f"\n{name} at {url}")
        async with Client(url, name, args.api_key, args.deadline) as client:
            return await Measurement(args, lab, client).run(console)

    return asyncio.run(run())


def measure_peers(
    args: argparse.Namespace, lab: Any, console: Console, folder: Path, found: dict[str, Any]
) -> None:
    """Start each server that is installed, one after the other, and measure it."""
    left_out = found["not_measured"]
    for name, server in SERVERS.items():
        if server.missing:
            left_out[name] = server.missing
            continue
        console.print(f"\n{name}:", style="bold", end="")
        try:
            with TemporaryDirectory() as scratch, started(name, folder, Path(scratch)) as at:
                found["servers"][name] = measure(args, lab, console, *at)
        except (PeerFailed, Unusable) as error:
            left_out[name] = str(error)
    for name, why in left_out.items():
        console.print(f"{name} wasn't measured: {why}", soft_wrap=True)


if __name__ == "__main__":
    main()
