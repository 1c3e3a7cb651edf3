"""The requests of a load: prompts from a text, lengths and arrivals drawn or read from a trace."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from gpt import load_tokenizer
from solutions.quality.bits_per_byte import HELD_OUT

TOKENIZER = "fable"  # a server with another one counts the same prompts a little differently
TRACE_FIELDS = "timestamp", "input_length", "output_length"

Range = tuple[int, int]  # the fewest tokens and the most
TracedRequest = tuple[float, int, int]  # its time in seconds, tokens of its prompt and its answer


@dataclass(frozen=True)
class Request:
    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Arrivals:
    """When requests come, in the form that the lab's `open_loop` takes. rate: per second."""

    uniforms: list[float]
    rate: float


class Drawer:
    """Draws requests, the same ones from the same seed. Prompts are pieces of a held-out text."""

    def __init__(self, seed: str, prompts: Range = (16, 256), answers: Range = (8, 64)) -> None:
        self.random, self.prompts, self.answers = Random(seed), prompts, answers

    def request(self) -> Request:
        """Draw a request with log-uniform lengths: most are short and a few are long."""
        prompt, answer = (self.log_uniform(ends) for ends in (self.prompts, self.answers))
        return self.request_of(prompt, answer)

    def requests(self, count: int) -> list[Request]:
        return [self.request() for _ in range(count)]

    def request_of(self, prompt_tokens: int, max_tokens: int) -> Request:
        """Draw a request of these lengths. The prompt begins with a word."""
        tokenizer, ids, words = text_to_draw_from()
        begins = [place for place in words if place + prompt_tokens <= len(ids)]
        if not begins:
            raise ValueError(f"A prompt has at most {len(ids) - words[0]:,} tokens.")
        begin = self.random.choice(begins)
        return Request(tokenizer.decode(ids[begin : begin + prompt_tokens]), max_tokens)

    def log_uniform(self, ends: Range) -> int:
        fewest, most = ends
        return round(fewest * (most / fewest) ** self.random.random())

    def arrivals(self, count: int, rate: float) -> Arrivals:
        """Draw the arrivals of a Poisson process."""
        return Arrivals([self.random.random() for _ in range(count)], rate)


@cache
def text_to_draw_from() -> tuple[Any, list[int], list[int]]:
    """Return a tokenizer, the tokens of a text, and the places of those that begin a word."""
    tokenizer = load_tokenizer(TOKENIZER)
    ids = tokenizer(HELD_OUT.read_text(encoding="utf-8"), verbose=False)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return tokenizer, ids, [place for place, token in enumerate(tokens) if token.startswith("Ġ")]


# ------------------------------------------------------------------------------------------ traces


def read_trace(path: Path) -> list[TracedRequest]:
    """Read a trace: when each request came, in seconds from the first, and its two lengths.

    Each line is an object with TRACE_FIELDS, the timestamp in milliseconds, as in the traces
    published with Mooncake (Qin et al., FAST 2025). Raises ValueError with a sentence.
    """
    found: list[TracedRequest] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            at, prompt, answer = (json.loads(line)[name] for name in TRACE_FIELDS)
            found.append((at / 1000, int(prompt), int(answer)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: each line must be a JSON object with the numbers "
                f"{', '.join(TRACE_FIELDS)}."
            ) from error
        if min(found[-1][1:]) < 1:
            raise ValueError(f"{path}, line {number}: a request has 1 token or more.")
    if len(found) < 2 or any(later < earlier for (earlier, *_), (later, *_) in pairwise(found)):
        raise ValueError(f"{path} must hold two requests or more, in the order of their times.")
    return [(at - found[0][0], prompt, answer) for at, prompt, answer in found]


def arrivals_at(times: Sequence[float]) -> Arrivals:
    """Return the arrivals at these times, the first one at once.

    `open_loop` makes a gap of -log(1 - u) / rate seconds of a uniform u, so the gap's own uniform
    is 1 - exp(-gap * rate). The rate is 1 / the longest gap, at which no uniform is close to 1.
    """
    gaps = [0.0, *(later - earlier for earlier, later in pairwise(times))]
    rate = 1 / (max(gaps) or 1)
    return Arrivals([-math.expm1(-gap * rate) for gap in gaps], rate)
