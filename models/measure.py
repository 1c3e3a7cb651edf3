"""Measure the embedded models. The figures of their model cards come from this script.

    python models/measure.py books.txt

`books.txt` is the text they were trained on. On its last 3%, which no training has seen, the script
measures the bits per byte of each model, the time of a forward pass of one or several new tokens on
this machine, and speculative decoding with each draft, compared with plain cached decoding: tokens
per second, the share of drafts that the target accepts, and the speed-up, predicted and measured.
Every greedy output must equal that of plain decoding.
"""

import argparse
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from gpt import GPTLMHead, load_tokenizer, shipped_models
from models.train import split_text
from solutions.decoding import GREEDY, SamplingParams, stream
from solutions.kv_cache import CachedLMHead, generate
from solutions.speculative import (
    Drafter,
    ModelDrafter,
    NgramDrafter,
    Round,
    Speculated,
    expected_tokens,
    first_layers,
    generate_speculative,
    new_cache,
    new_logits,
)
from timing.machine import processor_name
from timing.table import HAIR

STRIDE = 512  # tokens from one scored window to the next
PROMPT_LENGTH, NEW_TOKENS = 32, 64
OWN_TEXT = 128  # greedy tokens of the target's own, after which its text repeats in a loop
DRAFTS = 4  # tokens that are drafted before the target verifies them
DRAFT_MODELS = "fable-draft", "fable-small"  # measured if they are shipped
FIRST_LAYERS = 2  # of the target, used as a draft
SAMPLED = SamplingParams(temperature=0.8)
CACHED = 60  # cached tokens before those that are timed
TARGET_SIZES, DRAFT_SIZES = [1, 4, 5, 8], [1]  # new tokens per timed forward pass
ROUNDS, FORWARDS = 40, 5  # rounds over all shapes, and forward passes in a row for each shape

# Continues a prompt; returns the continuation, and the seconds that its drafts took.
Way = Callable[[list[int], SamplingParams, torch.Generator], tuple[Speculated, float]]
Times = dict[tuple[str, int], list[float]]  # milliseconds, by model and number of new tokens


@torch.no_grad()
def bits_per_byte(
    model: GPTLMHead, tokens: Int[Tensor, " text"], n_bytes: int, stride: int = STRIDE
) -> float:
    """Return the bits per byte that the model needs for the text.

    Windows of the full context start `stride` tokens apart. The first is scored completely, every
    other one only at its last `stride` tokens, so that each of these has the rest of the window
    before it.
    """
    window = model.config.n_positions
    nats, scored = 0.0, 1  # nothing predicts the first token
    for end in tqdm(
        window_ends(len(tokens), window, stride), "bits per byte", leave=False, disable=None
    ):
        inputs = tokens[max(0, end - window) : end].unsqueeze(0)
        position_ids = torch.arange(inputs.shape[1]).unsqueeze(0)
        new = end - scored
        logits = model(inputs[:, :-1], position_ids[:, :-1])[0, -new:]
        nats += F.cross_entropy(logits, inputs[0, -new:], reduction="sum").item()
        scored = end
    return nats / math.log(2) / n_bytes


def window_ends(length: int, window: int, stride: int) -> list[int]:
    return [*range(min(window, length), length, stride), length]


# --------------------------------------------------------------------- ways to continue a prompt


def plain_decode(target: CachedLMHead) -> Way:
    """One token per forward pass, with lab 2's cache; lab 5's loop if tokens are sampled."""

    def go_on(
        prompt: list[int], params: SamplingParams, generator: torch.Generator
    ) -> tuple[Speculated, float]:
        if params == GREEDY:
            ids = generate(target, torch.tensor([prompt]), NEW_TOKENS)[0].tolist()
        else:
            ids = [*prompt, *stream(target, prompt, NEW_TOKENS, params, generator)]
        return Speculated(ids, [Round([], 0, [token]) for token in ids[len(prompt) :]]), 0.0

    return go_on


class Timed:
    """A drafter, and the seconds that its drafts took."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.seconds = drafter, 0.0
        self.truncate = drafter.truncate

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Tensor]:
        start = time.perf_counter()
        proposed = self.drafter.propose(ids, k, params, generator)
        self.seconds += time.perf_counter() - start
        return proposed


def speculative(target: CachedLMHead, new_drafter: Callable[[], Drafter]) -> Way:
    def go_on(
        prompt: list[int], params: SamplingParams, generator: torch.Generator
    ) -> tuple[Speculated, float]:
        timed = Timed(new_drafter())
        request = prompt, NEW_TOKENS, DRAFTS, params, generator
        return generate_speculative(target, timed, *request), timed.seconds

    return go_on


def ways_of(target: CachedLMHead, drafts: dict[str, CachedLMHead]) -> dict[str, Way]:
    longest = PROMPT_LENGTH + OWN_TEXT + NEW_TOKENS
    ways = {"plain": plain_decode(target)}
    for name, draft in drafts.items():
        ways[name] = speculative(target, partial(ModelDrafter, draft, longest))
    ways["n-grams"] = speculative(target, partial(NgramDrafter, target.config.vocab_size))
    return ways


@dataclass
class Tally:
    """The results of one way to continue all prompts.

    seconds: the total time. drafting: the part of it that the drafts took. ties: greedy outputs
    that differ from plain decoding's, beginning with a tie of two logits.
    """

    seconds: float = 0.0
    drafting: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    ties: int = 0

    @property
    def proposed(self) -> int:
        return sum(len(done.drafts) for done in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(done.accepted for done in self.rounds)

    @property
    def tokens_per_call(self) -> float:
        return sum(len(done.new) for done in self.rounds) / len(self.rounds)

    @property
    def tokens_per_second(self) -> float:
        return sum(len(done.new) for done in self.rounds) / self.seconds

    @property
    def acceptance(self) -> float:
        """The share accepted of the drafts judged: those after a rejection are not judged."""
        rejected = sum(done.accepted < len(done.drafts) for done in self.rounds)
        return self.accepted / max(1, self.accepted + rejected)

    @property
    def seconds_a_draft(self) -> float:
        return self.drafting / max(1, self.proposed)

    @property
    def seconds_a_pass(self) -> float:
        """The time of a round without its drafts: the target's forward pass and verification."""
        return (self.seconds - self.drafting) / len(self.rounds)

    def predicted_speed_up(self, step: float) -> float:
        """Lab 6's `speed_up` at this acceptance, if a decode step takes `step` seconds.

        A round without drafts produces one token.
        """
        with_drafts = sum(bool(done.drafts) for done in self.rounds) / len(self.rounds)
        tokens = with_drafts * expected_tokens(self.acceptance, DRAFTS) + 1 - with_drafts
        seconds = with_drafts * DRAFTS * self.seconds_a_draft + self.seconds_a_pass
        return tokens * step / seconds


def in_turns(
    target: CachedLMHead,
    ways: dict[str, Way],
    prompts: list[list[int]],
    params: SamplingParams,
    about: str,
) -> dict[str, Tally]:
    """Continue each prompt in every way, so that a slow moment of the machine affects all of them.

    The first prompt is continued once beforehand as a warm-up, which isn't counted.
    """
    tallies = {name: Tally() for name in ways}
    for turn, prompt in enumerate(tqdm([prompts[0], *prompts], about, leave=False, disable=None)):
        texts = {}
        for name, way in ways.items():
            generator = torch.Generator().manual_seed(turn)
            start = time.perf_counter()
            made, drafting = way(prompt, params, generator)
            seconds = time.perf_counter() - start
            texts[name] = made.ids
            if turn:
                tallies[name].seconds += seconds
                tallies[name].drafting += drafting
                tallies[name].rounds += made.rounds
        for name, ids in texts.items():
            if params == GREEDY and ids != texts["plain"]:
                require_tie(target, name, texts["plain"], ids)
                tallies[name].ties += bool(turn)
    return tallies


@torch.no_grad()
def require_tie(target: CachedLMHead, name: str, expected: list[int], ids: list[int]) -> None:
    """Verify that two greedy outputs first differ where the best logits tie, up to rounding."""
    place = next(n for n, (a, b) in enumerate(zip(ids, expected, strict=True)) if a != b)
    logits = new_logits(target, ids[:place], new_cache(target, place))[-1]
    gap = (logits.max() - logits[[ids[place], expected[place]]]).max() / logits.abs().max()
    if gap > HAIR:
        sys.exit(
            f"Stopped: with {name} the greedy output differs from token {place} on. The logits of "
            f"the two tokens there are {gap:.1e} apart (a tie is at most {HAIR:.0e})."
        )


# ---------------------------------------------------------------------------- forward passes


@torch.no_grad()
def forward_times(target: CachedLMHead, drafts: dict[str, CachedLMHead]) -> Times:
    """Time forward passes of T new tokens after `CACHED` cached ones.

    Each round times every shape, so that a slow moment of the machine affects all of them. The
    first round is a warm-up, which isn't counted.
    """
    sizes_of = {"target": TARGET_SIZES, **dict.fromkeys(drafts, DRAFT_SIZES)}
    times: Times = {}
    for turn in tqdm(range(ROUNDS + 1), "forward times", leave=False, disable=None):
        for name, model in {"target": target, **drafts}.items():
            sizes = sizes_of[name]
            kv_cache = new_cache(model, CACHED + max(sizes))
            new_logits(model, [1] * CACHED, kv_cache)
            for size in sizes:
                for _ in range(FORWARDS):
                    start = time.perf_counter()
                    new_logits(model, [1] * (CACHED + size), kv_cache)
                    taken = time.perf_counter() - start
                    kv_cache.truncate(CACHED)
                    if turn:
                        times.setdefault((name, size), []).append(1000 * taken)
    return times


# --------------------------------------------------------------------------------- reports


def report_losses(text: str, tokens: Int[Tensor, " text"], names: list[str]) -> None:
    print(f"held-out text: {len(text.encode()):,} bytes, {len(tokens):,} tokens")
    for name in names:
        model = GPTLMHead.from_pretrained(name)
        parameters = sum(weight.numel() for weight in model.parameters())
        bits = bits_per_byte(model, tokens, len(text.encode()))
        print(f"{name:24} {parameters / 1e6:6.2f} M parameters  {bits:.3f} bits per byte")


def report_times(times: Times) -> None:
    about = f"one forward pass of T new tokens, {CACHED} cached"
    print(f"\n{about}:  median ms (10th to 90th percentile)")
    for (name, size), values in times.items():
        tenths = statistics.quantiles(values, n=10)
        median = statistics.median(values)
        print(f"  {name:16} T={size}  {median:7.2f}  ({tenths[0]:.2f} to {tenths[-1]:.2f})")
    decode, verify = (statistics.median(times["target", size]) for size in (1, DRAFTS + 1))
    print(f"  T={DRAFTS + 1} / T=1 of the target   {verify / decode:.2f}")


def report_speculation(about: str, tallies: dict[str, Tally]) -> None:
    plain = tallies["plain"]
    step = plain.seconds_a_pass
    print(f"\n{about}, {NEW_TOKENS} new tokens, {DRAFTS} drafts a round:")
    print(
        "  draft           tokens/s  per call  speed-up, predicted  accepted, of judged  "
        " ms per draft, pass"
    )
    for name, tally in tallies.items():
        shown = f"  {name:15} {tally.tokens_per_second:8.1f}"
        if tally is plain:
            shown += f"{1000 * step:67.2f}"
        else:
            speed_up = tally.tokens_per_second / plain.tokens_per_second
            share = tally.accepted / max(1, tally.proposed)
            shown += (
                f"  {tally.tokens_per_call:8.2f}  {speed_up:8.2f}"
                f"  {tally.predicted_speed_up(step):9.2f}  {share:8.1%}  {tally.acceptance:9.1%}"
                f"  {1000 * tally.seconds_a_draft:11.2f}  {1000 * tally.seconds_a_pass:6.2f}"
            )
        shown += f"  ties: {tally.ties}" if tally.ties else ""
        print(shown)


def environment() -> str:
    return (
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"{processor_name(torch.device('cpu'))}"
    )


def prompts_of(tokens: Int[Tensor, " text"], count: int) -> list[list[int]]:
    """Return `count` prompts at equal distances in the text."""
    if len(tokens) < PROMPT_LENGTH:
        sys.exit(
            f"The held-out text has {len(tokens)} tokens, and a prompt takes {PROMPT_LENGTH}. "
            "Pass a longer text."
        )
    starts = torch.linspace(0, len(tokens) - PROMPT_LENGTH, count).long().tolist()
    return [tokens[start : start + PROMPT_LENGTH].tolist() for start in starts]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="the text that the models were trained on")
    parser.add_argument("--target", default="fable", help="name or folder (default %(default)s)")
    shipped = [name for name in DRAFT_MODELS if name in shipped_models()]
    parser.add_argument(
        "--drafts",
        nargs="+",
        default=shipped,
        help=f"names or folders (default {' '.join(shipped)}); n-grams and the target's first "
        "layers are always measured, too",
    )
    parser.add_argument(
        "--prompts", type=int, default=200, help="number of prompts (default %(default)s)"
    )
    args = parser.parse_args()
    if args.prompts < 1:
        parser.error(f"--prompts must be at least 1, not {args.prompts}")
    _, held_out = split_text(args.text)
    tokens = torch.tensor(load_tokenizer(args.target).encode(held_out, verbose=False))
    prompts = prompts_of(tokens, args.prompts)
    target = CachedLMHead.from_pretrained(args.target)
    drafts = {name: CachedLMHead.from_pretrained(name) for name in args.drafts}

    report_losses(held_out, tokens, [args.target, *args.drafts])
    drafts[f"first {FIRST_LAYERS} layers"] = first_layers(target, FIRST_LAYERS)
    times = forward_times(target, drafts)
    report_times(times)

    ways = ways_of(target, drafts)
    about = f"{len(prompts)} held-out prompts of {PROMPT_LENGTH} tokens"
    for how, params in (("greedy", GREEDY), (f"temperature {SAMPLED.temperature}", SAMPLED)):
        tallies = in_turns(target, ways, prompts, params, how)
        report_speculation(f"{about}, {how}", tallies)
    longer = [
        generate(target, torch.tensor([prompt]), OWN_TEXT)[0].tolist()
        for prompt in tqdm(prompts, "its own text", leave=False, disable=None)
    ]
    tallies = in_turns(target, ways, longer, GREEDY, "on its own text")
    report_speculation(f"{about} and {OWN_TEXT} of the target's own, greedy", tallies)
    print(
        "\nper call: tokens per forward pass of the target. judged: drafts before which none was "
        "rejected.\npredicted: from the share accepted of the drafts judged, and from the times at "
        "the end of the line,\nwhich were measured in the loop; a pass is a round without its "
        "drafts. ties: outputs that first\ndiffer from plain decoding's where the two best logits "
        f"are equal up to rounding.\n{environment()}"
    )


if __name__ == "__main__":
    main()
