"""What a model costs on a card, estimated before anything runs (lab 19).

    python -m timing.estimate gpt2 --card H100 --prompt 500 --new 100
    python -m timing.estimate Llama-3-8B --card L4 --tpot 50       at most 50 ms per token
    python -m timing.estimate path/to/config.json --cards 8        eight cards as one
    python -m timing.estimate fable --card this                    this machine, measured first
    python -m timing.estimate Mixtral-8x7B --mine                  by your own functions

MODEL is one of the lab's published shapes, a shipped model, a folder, a config.json, or any model
of the Hugging Face hub, of which only the config.json is fetched. All requests have the same
length. The times are floors: they count arithmetic and memory at full speed, and nothing of what
cards exchange or of what a processor does between two operations. Every engine takes longer.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from rich.box import SIMPLE_HEAD
from rich.table import Table

from gpt import SHIPPED, shipped_models
from solutions import estimating
from solutions.estimates.shapes import CARDS, MODELS, Machine, Shape, read_shape, together
from timing.command_line import Parser, new_console, whole_number
from timing.machine import measure_machine
from timing.table import milliseconds, number

USABLE = 0.9  # of a machine's memory; the rest is for activations and the runtime
THIS = "this"  # the machine that this runs on
MOST = 2**20  # tokens and cards; more is a typing error

Row = tuple[str, str]


# ------------------------------------------------------------------------------ the command line


def at_most(text: str) -> int:
    count = whole_number(text)
    if count > MOST:
        raise argparse.ArgumentTypeError(f"{text} is too many: take {MOST:,} or fewer.")
    return count


def bytes_of_number(text: str) -> int:
    if text not in ("1", "2", "4", "8"):
        raise argparse.ArgumentTypeError(f"a number takes 1, 2, 4 or 8 bytes, not {text!r}.")
    return int(text)


def card_name(text: str) -> str:
    for name in (*CARDS, THIS):
        if name.casefold() == text.casefold():
            return name
    known = ", ".join((*CARDS, THIS))
    raise argparse.ArgumentTypeError(f"there is no card {text!r}. There are {known}.")


def above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0.")
    return value


def new_parser() -> Parser:
    parser = Parser(
        prog="timing.estimate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help=f"for example {', '.join(MODELS)}")
    add("--card", type=card_name, default="H100", help=f"{', '.join((*CARDS, THIS))} (H100)")
    add("--cards", type=at_most, help="how many of them as one (as many as the model needs)")
    add("--prompt", type=at_most, default=500, help="tokens of a request's prompt (500)")
    add("--new", type=at_most, default=100, help="tokens of its answer (100)")
    widths = f"bytes of a weight and of a number in the KV cache (2; 4 with --card {THIS})"
    add("--width", type=bytes_of_number, help=widths)
    add("--tpot", type=above_zero, help="the most milliseconds of a decode step (no limit)")
    add("--price", type=above_zero, help="dollars per hour and card (that of the list)")
    add("--mine", action="store_true", help="use your own functions, as lab 19's checks kept them")
    return parser


def find_shape(name: str) -> Shape:
    """Read a model's shape. Raises ValueError, with what to do about it, if there is none."""
    path = Path(name)
    if name in MODELS:
        return MODELS[name]
    if path.is_dir():
        return read_shape(path / "config.json")
    if path.exists():
        return read_shape(path)
    if name in shipped_models():
        return read_shape(SHIPPED / name / "config.json")
    return read_shape(fetch_config(name))


def fetch_config(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["config.json"])) / "config.json"
    except Exception as error:  # no network, no such model, no such name: the advice is the same
        raise ValueError(
            f"There is no model {name!r}: it is neither a shape of the lab ({', '.join(MODELS)}), "
            "a shipped model, a folder nor a file, and fetching its config.json from the Hugging "
            f"Face hub failed ({type(error).__name__}). Check the name and the network."
        ) from error


def this_machine() -> Machine:
    """Measure this machine; its power and price are unknown."""
    measured, free = measure_machine(), psutil.virtual_memory().available
    return Machine(measured.flops, measured.bandwidth, free, source="this machine, measured now")


# ------------------------------------------------------------------------------------- the plan


def cards_needed(lab: Any, shape: Shape, card: Machine, tokens: int, width: int) -> int:
    """Return how many cards hold the weights and one request."""
    needed = width * lab.parameters(shape)["total"] + lab.kv_bytes(shape, tokens, width)
    return -(-needed // card.memory)


def rows_of(
    lab: Any, shape: Shape, machine: Machine, prompt: int, new: int, width: int, limit: float
) -> Iterator[Row]:
    """Yield the plan's lines. machine: all cards as one, with the memory that may be used.

    limit: seconds of a decode step, at most.
    """
    count, tokens = lab.parameters(shape), prompt + new
    active = count["active"]
    share = "" if active == count["total"] else f", {billions(active)} active per token"
    yield "parameters", billions(count["total"]) + share
    memory = f"{gigabytes(machine.memory)}, {USABLE:.0%} of the memory"
    yield "weights", f"{gigabytes(width * count['total'])} of {memory}"
    cache = lab.kv_bytes(shape, 1, width), lab.kv_bytes(shape, tokens, width)
    yield "KV cache", f"{cache[0]:,} bytes per token, {gigabytes(cache[1])} per request"
    yield "FLOPs", f"{billions(lab.forward_flops(shape, 1, tokens - 1))} for a request's last token"

    def step(batch: int, first: int, context: int) -> float:
        return lab.step_time(shape, machine, batch, first, context, width)

    ttft = step(1, prompt, 0)
    yield "TTFT", f"{told(ttft)} for one prompt alone"
    yield "TPOT, one request", told(step(1, 1, tokens - 1))
    ridge = lab.ridge_batch(shape, machine, tokens - 1, width)
    never = "at no batch: reading a KV cache takes longer"
    yield "compute takes over", never if ridge == math.inf else f"from batch {ridge:,}"
    batch, price = lab.plan(shape, machine, tokens, width, limit)
    if batch == 0:
        yield "largest batch", "0: one request alone takes longer than --tpot"
        return
    yield "largest batch", f"{batch:,} requests"
    tpot = step(batch, 1, tokens - 1)
    yield "TPOT, that batch", told(tpot)
    yield "decoding", f"{batch / tpot:,.0f} tokens per second"
    worth = lab.worth(machine, batch / tpot)
    if machine.watts:
        yield "per joule", f"{number(worth['joule'], 2)} tokens"
    if machine.price_per_hour:
        yield "10⁶ output tokens", f"${number(price, 3)}, without their prompts"
    # A request holds its slot while the prompts of all others in its batch are computed, too.
    rate = lab.max_rate(batch, batch * ttft, tpot, new)
    yield "with prompts", f"at most {number(rate, 2)} requests per second (Little's law)"
    if machine.price_per_hour:
        yield "10⁶ requests", f"${number(machine.price_per_hour / 3600 / rate * 10**6, 2)}"


def billions(count: int) -> str:
    return f"{count / 1e9:,.3g} billion" if count >= 1e9 else f"{count / 1e6:,.1f} million"


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def told(seconds: float) -> str:
    return f"{milliseconds(seconds, 2)} ms"


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser()
    args = parser.parse_args(argv)
    tokens = args.prompt + args.new
    try:
        shape = find_shape(args.model)
    except ValueError as error:
        parser.error(str(error))
    if 0 < shape.positions < tokens:
        parser.error(f"{args.model} sees at most {shape.positions} tokens: shorten the request.")
    lab: Any = estimating
    if args.mine:
        from autograder import check  # only --mine needs the autograder

        lab = check.mine("estimating")
    card = this_machine() if args.card == THIS else CARDS[args.card]
    price = args.price or card.price_per_hour
    card = replace(card, memory=int(USABLE * card.memory), price_per_hour=price)
    width = args.width or (4 if args.card == THIS else 2)
    needed = cards_needed(lab, shape, card, tokens, width)
    cards = args.cards or needed
    if cards < needed:
        parser.error(f"{args.model} doesn't fit: take --cards {needed}, or fewer bytes (--width).")
    machine = together(card, cards)
    where = "this machine" if args.card == THIS else f"{cards} × {args.card}"
    table = Table(box=SIMPLE_HEAD, title=f"{args.model} on {where}", show_header=False)
    limit = args.tpot / 1e3 if args.tpot else math.inf
    for row in rows_of(lab, shape, machine, args.prompt, args.new, width, limit):
        table.add_row(*row)
    console = new_console()
    console.print(table)
    speed = f"{card.flops / 1e12:,.4g} TFLOP/s, {card.bandwidth / 1e9:,.0f} GB/s"
    cost = f", ${price:g} per hour" if price else ""
    console.print(
        f"Requests of {args.prompt:,} + {args.new:,} tokens, numbers of {8 * width} bits. Each "
        f"card: {speed}{cost} ({card.source}). Times are floors: see --help."
    )


if __name__ == "__main__":
    main()
