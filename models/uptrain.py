"""Uptrain grouped heads: what a little further training wins back of what pooling has cost.

    python models/uptrain.py books.txt
    python models/uptrain.py books.txt --steps 5 --kv-heads 2  # to try it

Lab 11 pools heads of keys and values, and a model that is only pooled is bad. Here it is trained
on, for a small part of the steps that made it (Ainslie et al., "GQA", EMNLP 2023, section 2.1).
Training on wins or costs something by itself, so there is a control: the model with all its heads,
which gets the same steps on the same windows in the same order.

Losses are in bits per byte of the passages in models/text/held_out.txt, beside fable as shipped, or
beside the control where the column says so. Behind ± is the standard error over the passages; how
much another draw of windows would change isn't in it. Train on the text that made fable, if you
have it: its passages are from the last 3%, which are left out. Of any text the first 97% are
trained on, and they must not hold the passages.

A row is printed as soon as it is known, so an interrupt loses one at most. Nothing is kept on disk,
and the shipped models stay as they are. A step takes some seconds, fewer on Linux with the two
settings that models/train.py names, and all of it takes up to 2.5 GB of memory.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm, trange

from gpt import load_tokenizer
from models.train import (
    draw_windows,
    encode,
    lr_factor,
    new_optimizers,
    split_text,
    take_step,
)
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import kv_bytes_per_token, pool_heads, require_groups
from solutions.kv_variants.grouped_model import grouped
from solutions.quality.bits_per_byte import HELD_OUT, Loss, Passage, bits_per_byte, loss, passages

MODEL = "fable"
SEED = 1
WARMUP = 0.1  # share of the steps


class WholeText:
    """Stands where a cache would, for texts that are handed over whole: it keeps nothing.

    It attends as `grouped_attention` does under a causal mask, by a kernel that writes neither mask
    nor weights to memory: with gradients that takes a fraction of the time.
    """

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "batch heads seq head_dim"],
        keys: Float[Tensor, "batch kv_heads seq head_dim"],
        values: Float[Tensor, "batch kv_heads seq head_dim"],
    ) -> Float[Tensor, "batch heads seq head_dim"]:
        return F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, enable_gqa=True
        )


def logits_of(
    model: CachedLMHead, ids: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq vocab"]:
    whole: Any = WholeText()
    return model(ids, torch.arange(ids.shape[1]).expand_as(ids), whole)


def bits_of(model: CachedLMHead, texts: Sequence[Passage]) -> Float[Tensor, " passages"]:
    """Bits for a byte of what stands in the second half of the context, given all before it."""
    shown: Any = tqdm(texts, "bits per byte", leave=False)
    return bits_per_byte(partial(logits_of, model), shown, MODEL, model.config.n_positions // 2)


def uptrain(
    model: CachedLMHead, tokens: Int[Tensor, " corpus"], steps: int, lr: float, batch: int
) -> None:
    """Train the model itself, no copy, on windows of its full context.

    Which windows a step gets follows from the step alone: they are the same for every model.
    """
    model.requires_grad_(True)
    optimizers = new_optimizers(model, lr)
    progress = trange(steps, desc="uptraining", unit="step", leave=False)
    for step in progress:
        examples = draw_windows(tokens, model.config.n_positions, SEED * 1_000_003 + step, batch)
        with torch.autocast("cpu", torch.bfloat16):
            logits = logits_of(model, examples[:, :-1])
        nats = F.cross_entropy(logits.float().flatten(0, 1), examples[:, 1:].flatten())
        nats.backward()
        take_step(optimizers, lr * lr_factor(step, steps, max(1, int(WARMUP * steps))))
        progress.set_postfix(loss=f"{nats.item():.3f}")
    model.requires_grad_(False)


# ------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Row:
    """What a model with so many heads of keys and values has lost.

    pooled, after: before the steps and behind them, beside the model as it was. beside_control:
    behind the steps, beside the control behind as many.
    """

    kv_heads: int
    pooled: Loss
    after: Loss
    beside_control: Loss


def rows(
    model: CachedLMHead,
    tokens: Int[Tensor, " corpus"],
    texts: Sequence[Passage],
    args: argparse.Namespace,
) -> Iterator[Row]:
    """The control's, and one for each of `args.kv_heads`. The model stays as it was."""
    before, control = bits_of(model, texts), None
    for kv_heads in (model.config.n_head, *args.kv_heads):
        changed = grouped(model, kv_heads, pool_heads)
        pooled = bits_of(changed, texts)
        uptrain(changed, tokens, args.steps, args.lr, args.batch)
        after = bits_of(changed, texts)
        control = after if control is None else control
        yield Row(kv_heads, loss(pooled, before), loss(after, before), loss(after, control))


def report(args: argparse.Namespace) -> None:
    model = CachedLMHead.from_pretrained(MODEL)
    config = model.config
    require_divisors(config.n_head, args.kv_heads)
    train_text, _ = split_text(args.text)
    texts = passages(HELD_OUT, MODEL, config.n_positions)
    require_unseen(args.text, train_text, texts)
    tokens = training_tokens(args.text, train_text, config.n_positions)
    after = f"after {args.steps} steps"
    print(f"| KV heads | KB per token | pooled | {after} | compared with the control |")
    print("|---|---:|---:|---:|---:|", flush=True)
    for row in rows(model, tokens, texts, args):
        name = f"{row.kv_heads}, the control" if row.kv_heads == config.n_head else row.kv_heads
        size = kv_bytes_per_token(config, row.kv_heads) / 1024
        losses = f"{row.pooled} | {row.after} | {row.beside_control}"
        print(f"| {name} | {size:g} | {losses} |", flush=True)


# ------------------------------------------------------------------------------- what is refused


def require_divisors(n_head: int, kv_heads: Sequence[int]) -> None:
    try:
        for number in kv_heads:
            require_groups(n_head, number)
    except ValueError as error:
        sys.exit(f"--kv-heads: {error}")


def require_unseen(path: Path, train_text: str, texts: Sequence[Passage]) -> None:
    tokenizer, seen = load_tokenizer(MODEL), plain_words(train_text)
    if any(plain_words(tokenizer.decode(ids)) in seen for ids in texts):
        sys.exit(
            f"{path} has a passage of {HELD_OUT.name} in its first 97%, and a model that was "
            "trained on it would be measured on what it has seen. Take the passage out."
        )


def plain_words(text: str) -> str:
    """Letters alone: editions of a book differ in line ends and in quotation marks."""
    return " ".join(re.findall("[a-z]+", text.lower()))


def training_tokens(path: Path, train_text: str, context: int) -> Int[Tensor, " corpus"]:
    tokens = encode(load_tokenizer(MODEL), train_text)
    if len(tokens) <= context:
        sys.exit(
            f"{path} is too short: it gives {len(tokens)} tokens to train on, and a window takes "
            f"{context + 1}. Give a longer text."
        )
    return tokens


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    heads, shown = [4, 2, 1], "heads of keys and values, one row each (default 4 2 1)"
    add("text", type=Path, help="a UTF-8 text file")
    add("--steps", type=int, default=120, help="of training (default %(default)s)")
    add("--kv-heads", type=int, nargs="+", default=heads, metavar="HEADS", help=shown)
    add("--lr", type=float, default=2e-3, help="highest learning rate (default %(default)s)")
    add("--batch", type=int, default=4, help="windows in a step (default %(default)s)")
    args = parser.parse_args(words)
    if min(args.steps, args.lr, args.batch) <= 0:
        parser.error("--steps, --lr and --batch must be above 0.")
    return args


if __name__ == "__main__":
    try:
        report(parse_arguments())
    except KeyboardInterrupt:
        sys.exit("Interrupted. The rows above are complete; the next one is lost.")
