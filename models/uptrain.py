"""Uptrain grouped heads: measure how much of the loss due to pooling a little training recovers.

    python models/uptrain.py books.txt
    python models/uptrain.py books.txt --steps 5 --kv-heads 2  # to try it

Lab 11 pools the KV heads, and a model that is only pooled is bad. Here its training continues, for
a small part of the original number of steps (Ainslie et al., "GQA", EMNLP 2023, section 2.1).
Further training changes the loss by itself, so there is a control: the model with all its heads
gets the same steps on the same windows in the same order.

Losses are in bits per byte of the passages in models/text/held_out.txt, compared with fable as
shipped, or with the control in the last column. ± is the standard error over the passages; it
doesn't include the effect of drawing other windows. Train on fable's own training text, if you have
it: the passages are from its last 3%, which is left out. Of any text, the first 97% is used for
training, and it must not contain the passages.

A row is printed as soon as it is known, so an interrupt loses at most one. Nothing is written to
disk, and the shipped models don't change. A step takes some seconds, fewer on Linux with the two
settings at the top of models/train.py. The run takes up to 2.5 GB of memory.
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
    """Takes the place of a KV cache when a text is computed in one forward pass. It stores nothing.

    It computes the same as `grouped_attention` with a causal mask, but with a kernel that writes
    neither the mask nor the attention weights to memory. With gradients, that takes a fraction of
    the time.
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
    """Return the bits per byte of the second half of the context, given all tokens before it."""
    shown: Any = tqdm(texts, "bits per byte", leave=False, disable=None)
    return bits_per_byte(partial(logits_of, model), shown, MODEL, model.config.n_positions // 2)


def uptrain(
    model: CachedLMHead, tokens: Int[Tensor, " corpus"], steps: int, lr: float, batch: int
) -> None:
    """Train the model in place, on windows of its full context.

    A step's windows depend only on the number of the step, so they are the same for every model.
    """
    model.requires_grad_(True)
    optimizers = new_optimizers(model, lr)
    progress = trange(steps, desc="uptraining", unit="step", leave=False, disable=None)
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
    """The loss of a model with `kv_heads` KV heads.

    pooled, after: before and after the training steps, compared with the original model.
    beside_control: after the steps, compared with the control after the same number of steps.
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
    """Yield the control's row, then one for each of `args.kv_heads`. `model` doesn't change."""
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
            f"{path} has a passage of {HELD_OUT.name} in its first 97%, so the model would be "
            "trained on the text that it is measured on. Remove the passage."
        )


def plain_words(text: str) -> str:
    """Keep the letters only: editions of a book differ in line breaks and quotation marks."""
    return " ".join(re.findall("[a-z]+", text.lower()))


def training_tokens(path: Path, train_text: str, context: int) -> Int[Tensor, " corpus"]:
    tokens = encode(load_tokenizer(MODEL), train_text)
    if len(tokens) <= context:
        sys.exit(
            f"{path} is too short: it has {len(tokens)} tokens to train on, and a window takes "
            f"{context + 1}. Pass a longer text."
        )
    return tokens


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    heads, shown = [4, 2, 1], "numbers of KV heads, one row each (default 4 2 1)"
    add("text", type=Path, help="a UTF-8 text file")
    add("--steps", type=int, default=120, help="training steps (default %(default)s)")
    add("--kv-heads", type=int, nargs="+", default=heads, metavar="HEADS", help=shown)
    add("--lr", type=float, default=2e-3, help="peak learning rate (default %(default)s)")
    add("--batch", type=int, default=4, help="windows per step (default %(default)s)")
    args = parser.parse_args(words)
    if min(args.steps, args.lr, args.batch) <= 0:
        parser.error("--steps, --lr and --batch must be above 0.")
    return args


if __name__ == "__main__":
    try:
        report(parse_arguments())
    except KeyboardInterrupt:
        sys.exit("Interrupted. The rows above are complete; only the unfinished one is lost.")
