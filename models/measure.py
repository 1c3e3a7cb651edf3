"""Measure the embedded models: what their model cards say comes from here.

    python models/measure.py books.txt

`books.txt` is the text they were trained on. Measured on its last 3%, which no training has seen:
the bits that each model needs for a byte of text; how many of the draft's tokens the target
accepts; and what a forward of one or several new tokens costs on this machine.
"""

import argparse
import math
import os
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor
from tqdm import tqdm

from gpt import GPTLMHead, load_tokenizer
from models.train import split_text
from solutions.kv_cache import CachedLMHead, KVCache
from timing.machine import processor_name

STRIDE = 512  # tokens from one scored window to the next
PROMPTS, PROMPT_LENGTH, NEW_TOKENS = 200, 32, 32
DRAFTS = 4  # tokens that the draft proposes before the target verifies them
CACHED = 60  # tokens before those that are timed
TIMED = {"target": (1, 4, 5, 8), "draft": (1,)}  # new tokens in one forward
ROUNDS, FORWARDS = 40, 5  # each round times every shape, with so many forwards in a row


@torch.no_grad()
def bits_per_byte(
    model: GPTLMHead, tokens: Int[Tensor, " text"], n_bytes: int, stride: int = STRIDE
) -> float:
    """Bits the model needs for one byte of the text.

    Windows of the full context follow each other at `stride`. The first is scored whole; of every
    other only the last `stride` tokens are, so that each has the rest of the window before it.
    """
    window = model.config.n_positions
    nats, scored = 0.0, 1  # nothing predicts the first token
    for end in tqdm(window_ends(len(tokens), window, stride), "bits per byte", leave=False):
        inputs = tokens[max(0, end - window) : end].unsqueeze(0)
        position_ids = torch.arange(inputs.shape[1]).unsqueeze(0)
        new = end - scored
        logits = model(inputs[:, :-1], position_ids[:, :-1])[0, -new:]
        nats += F.cross_entropy(logits, inputs[0, -new:], reduction="sum").item()
        scored = end
    return nats / math.log(2) / n_bytes


def window_ends(length: int, window: int, stride: int) -> list[int]:
    return [*range(min(window, length), length, stride), length]


@dataclass
class Speculation:
    """Counts of what speculative decoding did."""

    proposed: int = 0
    accepted: int = 0
    new_tokens: int = 0
    target_calls: int = 0


@torch.no_grad()
def speculate(
    target: CachedLMHead,
    draft: CachedLMHead,
    prompt: Int[Tensor, "1 seq"],
    new_tokens: int,
    drafts: int,
    counts: Speculation,
) -> Int[Tensor, "1 seq_and_new"]:
    """Greedy speculative decoding (Leviathan et al., 2023), up to at least `new_tokens` tokens.

    The draft proposes; the target computes them all in one forward and keeps those that it would
    have chosen itself, up to the first that differs, and then one token of its own. Every round
    counts whole, also where the last goes beyond `new_tokens`.
    """
    longest = prompt.shape[1] + new_tokens + drafts
    target_cache, draft_cache = new_cache(target, longest), new_cache(draft, longest)
    ids = prompt
    while ids.shape[1] < prompt.shape[1] + new_tokens:
        known = ids.shape[1]
        proposed = ids
        for _ in range(drafts):
            next_id = next_logits(draft, proposed, draft_cache)[:, -1:].argmax(-1)
            proposed = torch.cat([proposed, next_id], dim=1)
        choices = next_logits(target, proposed, target_cache)[:, -drafts - 1 :].argmax(-1)
        agree = choices[0, :-1] == proposed[0, known:]
        accepted = int(agree.cumprod(0).sum())
        ids = torch.cat([proposed[:, : known + accepted], choices[:, accepted, None]], dim=1)
        for cache in (target_cache, draft_cache):
            cache.truncate(min(cache.length, ids.shape[1] - 1))
        counts.proposed += drafts
        counts.accepted += accepted
        counts.new_tokens += accepted + 1
        counts.target_calls += 1
    return ids


def new_cache(model: CachedLMHead, max_length: int) -> KVCache:
    weight = model.transformer.wte.weight
    return KVCache(model.config, 1, max_length, weight.device, weight.dtype)


def next_logits(model: CachedLMHead, ids: Int[Tensor, "1 seq"], cache: KVCache) -> Tensor:
    """Logits of the tokens that the cache does not hold yet."""
    new_ids = ids[:, cache.length :]
    position_ids = torch.arange(cache.length, ids.shape[1]).expand_as(new_ids)
    return model(new_ids, position_ids, cache)


def acceptance(
    target: CachedLMHead, draft: CachedLMHead, tokens: Int[Tensor, " text"]
) -> Speculation:
    """Speculate from prompts at even distances in the text."""
    counts = Speculation()
    starts = torch.linspace(0, len(tokens) - PROMPT_LENGTH, PROMPTS).long().tolist()
    for start in tqdm(starts, "acceptance", leave=False):
        prompt = tokens[start : start + PROMPT_LENGTH].unsqueeze(0)
        speculate(target, draft, prompt, NEW_TOKENS, DRAFTS, counts)
    return counts


@torch.no_grad()
def forward_times(target: CachedLMHead, draft: CachedLMHead) -> dict[tuple[str, int], list[float]]:
    """Milliseconds of forwards of T new tokens behind `CACHED` ones, by model and T.

    Rounds take turns, so that a slow moment of the machine meets every shape. The first is thrown
    away.
    """
    times: dict[tuple[str, int], list[float]] = {}
    for turn in tqdm(range(ROUNDS + 1), "forward times", leave=False):
        for name, model in (("target", target), ("draft", draft)):
            cache = new_cache(model, CACHED + max(TIMED[name]))
            next_logits(model, torch.ones(1, CACHED, dtype=torch.int64), cache)
            for size in TIMED[name]:
                ids = torch.ones(1, CACHED + size, dtype=torch.int64)
                for _ in range(FORWARDS):
                    start = time.perf_counter()
                    next_logits(model, ids, cache)
                    taken = time.perf_counter() - start
                    cache.truncate(CACHED)
                    if turn:
                        times.setdefault((name, size), []).append(1000 * taken)
    return times


def report_losses(text: str, tokens: Tensor, target: str, draft: str) -> None:
    print(f"held-out text: {len(text.encode()):,} bytes, {len(tokens):,} tokens")
    for name in (target, draft):
        model = GPTLMHead.from_pretrained(name)
        parameters = sum(weight.numel() for weight in model.parameters())
        bits = bits_per_byte(model, tokens, len(text.encode()))
        print(f"{name:24} {parameters / 1e6:6.2f} M parameters  {bits:.3f} bits per byte")


def report_speculation(counts: Speculation) -> None:
    share = counts.accepted / counts.proposed
    per_call = counts.new_tokens / counts.target_calls
    print(f"{PROMPTS} prompts of {PROMPT_LENGTH} tokens, {NEW_TOKENS} new tokens, greedy:")
    print(f"  acceptance at {DRAFTS} drafts   {share:.1%} ({counts.accepted} of {counts.proposed})")
    print(f"  tokens per target call  {per_call:.2f}")


def report_times(times: dict[tuple[str, int], list[float]], per_call: float) -> None:
    print(f"one forward of T new tokens, {CACHED} cached:  median ms (10th to 90th percentile)")
    medians = {key: statistics.median(values) for key, values in times.items()}
    for (name, size), values in times.items():
        tenths = statistics.quantiles(values, n=10)
        median = medians[name, size]
        print(f"  {name:7} T={size}  {median:7.2f}  ({tenths[0]:.2f} to {tenths[-1]:.2f})")
    decode, verify = medians["target", 1], medians["target", DRAFTS + 1]
    speed_up = per_call * decode / (verify + DRAFTS * medians["draft", 1])
    print(f"  T={DRAFTS + 1} / T=1 of the target   {verify / decode:.2f}")
    print(f"  speed-up these figures predict   {speed_up:.2f}")


def environment() -> str:
    return (
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"{processor_name(torch.device('cpu'))}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="the text that the models were trained on")
    parser.add_argument("--target", default="fable", help="name or folder (default %(default)s)")
    parser.add_argument(
        "--draft", default="fable-draft", help="name or folder (default %(default)s)"
    )
    args = parser.parse_args()
    _, held_out = split_text(args.text)
    tokens = torch.tensor(load_tokenizer(args.target).encode(held_out, verbose=False))
    target, draft = (CachedLMHead.from_pretrained(name) for name in (args.target, args.draft))

    report_losses(held_out, tokens, args.target, args.draft)
    counts = acceptance(target, draft, tokens)
    report_speculation(counts)
    report_times(forward_times(target, draft), counts.new_tokens / counts.target_calls)
    print(environment())


if __name__ == "__main__":
    main()
