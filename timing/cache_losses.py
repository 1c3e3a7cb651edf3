"""What a smaller KV cache loses: fewer tokens, bits or heads, by every method in lab 11.

    python -m timing.cache_losses [--passages 4] [--threads 1]

A loss is how many more bits per byte of held-out text fable needs with such a cache than with all
of its keys and values in float32, on the same passages, with its standard error. The text goes
through the cache token by token. The last column gives what the cache holds at the end, in
kilobytes per passage; it is empty where a rule was tried on a cache that keeps everything.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import (
    HeavyCache,
    PerLayer,
    QuantizedCache,
    TokenValues,
    WindowCache,
    pool_heads,
)
from solutions.kv_variants.grouped_model import grouped
from solutions.kv_variants.masked_cache import MaskedCache, last_and
from solutions.quality.bits_per_byte import LENGTH, SCORED, Passage, loss, passages
from solutions.quality.streamed import streamed_bits
from timing.losses import number_of_passages
from timing.threads import parse_with_threads

MODEL = "fable"
CHUNK = 128  # tokens at a time, where a cache's answers don't depend on that
KEPT = 512, 256, 128, 64
FEW = 64  # rows, where it is asked which they should be
BITS, GROUP, RECENT = (8, 4, 2), 32, 32
FEWER_HEADS = 4, 2, 1


@dataclass(frozen=True)
class Row:
    """chunk: the most tokens per forward pass that don't change the cache's results."""

    name: str
    new_cache: Callable[[], Any]
    chunk: int = 1
    model: CachedLMHead | None = None  # another than the one that all are compared with


Table = tuple[str, list[Row]]


def evenly(count: int) -> list[int]:
    """Return evenly spaced positions of a passage."""
    return [(2 * place + 1) * LENGTH // (2 * count) for place in range(count)]


def kept_tokens(n_layer: int) -> Iterator[Row]:
    for kept in KEPT:
        half = kept // 2
        window = partial(WindowCache, n_layer)
        spread = partial(MaskedCache, n_layer, last_and(half, *evenly(half)))
        heavy = partial(HeavyCache, n_layer, kept, half)
        yield Row(f"the last {kept}", partial(window, kept), CHUNK)
        yield Row(f"the first 4, the last {kept - 4}", partial(window, kept - 4, 4), CHUNK)
        yield Row(f"{half} evenly spread, the last {half}", spread, LENGTH)
        yield Row(f"the {half} heaviest, the last {half}", heavy)


def whose(n_layer: int) -> Iterator[Row]:
    """Yield rules that keep FEW rows, some of them chosen by position."""
    later = range(LENGTH // 5, LENGTH // 5 + 4)
    chosen = {
        "the first 4": range(4),
        f"tokens {later[0]} to {later[-1]}": later,
        "4 evenly spread": evenly(4),
        "the first 32": range(32),
        "32 evenly spread": evenly(32),
    }
    for name, tokens in chosen.items():
        last = FEW - len(tokens)
        rule = last_and(last, *tokens)
        yield Row(f"{name}, the last {last}", partial(MaskedCache, n_layer, rule), LENGTH)


def some_layers(n_layer: int) -> Iterator[Row]:
    """Yield caches with a window of FEW in some layers and everything in the others."""
    everywhere = range(n_layer)
    some = {
        "layer 0": [0],
        "layers 0 and 1": [0, 1],
        "layers 3 to 7": everywhere[3:8],
        "the last three layers": everywhere[-3:],
        "every layer of even number": everywhere[::2],
        "every layer of odd number": everywhere[1::2],
    }

    def new_cache(layers: Sequence[int]) -> PerLayer:
        widths = [FEW if layer in layers else LENGTH for layer in everywhere]
        return PerLayer([WindowCache(1, width) for width in widths])

    for name, layers in some.items():
        yield Row(f"the last {FEW} in {name}", partial(new_cache, layers), CHUNK)


def fewer_bits(n_layer: int) -> Iterator[Row]:
    def by_token(bits: int, recent: int) -> QuantizedCache:
        """Quantize keys the way values are: a scale and a zero for each token and head."""
        cache: Any = QuantizedCache(n_layer, bits, GROUP, recent)
        cache.keys = [TokenValues(bits, recent) for _ in range(n_layer)]
        return cache

    for bits in BITS:
        for name, recent in (("", 0), (f", {RECENT} recent", RECENT)):
            by_channel = partial(QuantizedCache, n_layer, bits, GROUP, recent)
            yield Row(f"{bits} bits, keys by token{name}", partial(by_token, bits, recent))
            yield Row(f"{bits} bits, keys by channel{name}", by_channel)


def first_head(weight: Tensor, bias: Tensor, n_head: int, kv_heads: int) -> tuple[Tensor, Tensor]:
    """Do as `pool_heads` does, with the first head of each group instead of the mean."""
    queries, *others = torch.arange(len(bias)).view(3, n_head, -1)
    kept = torch.cat([queries, *(heads[:: n_head // kv_heads] for heads in others)]).flatten()
    return weight[:, kept], bias[kept]


def fewer_heads(model: CachedLMHead) -> Iterator[Row]:
    new_cache = partial(WindowCache, model.config.n_layer, LENGTH)
    for kv_heads in FEWER_HEADS:
        for name, pool in (("the mean of each group", pool_heads), ("the first", first_head)):
            made = grouped(model, kv_heads, pool)
            yield Row(f"{kv_heads} heads, {name}", new_cache, CHUNK, made)


def tables(model: CachedLMHead) -> Iterator[Table]:
    n_layer = model.config.n_layer
    yield "fewer tokens", [*kept_tokens(n_layer)]
    yield f"{FEW} tokens: which?", [*whose(n_layer)]
    yield f"{FEW} tokens: where?", [*some_layers(n_layer)]
    yield "fewer bits", [*fewer_bits(n_layer)]
    yield "fewer heads, without training", [*fewer_heads(model)]


def lines(
    table: Table, model: CachedLMHead, texts: Sequence[Passage], compared: Tensor
) -> Iterator[str]:
    title, rows = table
    yield f"| {title} | loss, bits per byte | KB |"
    yield "|---|---:|---:|"
    for row in tqdm(rows, title, leave=False, disable=None):
        kv_cache = row.new_cache()
        streamed = row.model or model, lambda held=kv_cache: held, texts, SCORED, row.chunk, MODEL
        lost = loss(streamed_bits(*streamed), compared)
        held = getattr(kv_cache, "bytes_held", None)
        size = f"{held / len(texts) / 1000:,.0f}" if held else "–"
        yield f"| {row.name} | {lost} | {size} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing.cache_losses", description=__doc__)
    parser.add_argument("--passages", type=number_of_passages, default=4)
    given = parse_with_threads(parser)
    model = CachedLMHead.from_pretrained(MODEL)
    texts = passages(model=MODEL, length=LENGTH)[: given.passages]
    everything = WindowCache(model.config.n_layer, LENGTH)
    compared = streamed_bits(model, lambda: everything, texts, SCORED, LENGTH, MODEL)
    print(
        f"{MODEL} with all keys and values: {compared.mean():.4f} bits per byte, on the last "
        f"{SCORED} of {LENGTH} tokens of {len(texts)} passages, and "
        f"{everything.bytes_held / len(texts) / 1000:,.0f} KB of them each.\n"
        f"Torch {torch.__version__}."
    )
    for table in tables(model):
        print()
        for line in lines(table, model, texts, compared):
            tqdm.write(line)


if __name__ == "__main__":
    main()
