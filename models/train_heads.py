"""Train Medusa's heads on a shipped model: a few small layers that guess the tokens further ahead.

    python models/train_heads.py books.txt --out models/fable-heads

The model's own weights don't change. First it continues short prompts from the text, greedily. The
heads learn from what it wrote, because that is what they have to guess (Cai et al., "Medusa", ICML
2024, section 2.3.2). The last 3% of the text is held out; at the end, the model continues prompts
from there, and the share of its tokens that each head guesses is printed.

You can interrupt it at any time: the same command continues from the last checkpoint and ends with
the same weights. It takes some minutes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm, trange

from gpt import load_tokenizer
from models.train import draw_windows, encode, lr_factor, split_text, take_step
from solutions.kv_cache import CachedLMHead, generate
from solutions.parallel.proposers import WEIGHTS, Heads
from solutions.parallel_decoding import final_hidden, head_labels, heads_loss

MODEL = "fable"
SEED = 1
PROMPT, NEW = 32, 64  # tokens of an example
HELD_OUT = 128  # examples
WARMUP = 0.1  # share of the steps
CHECKPOINT_EVERY = 25  # steps


def own_text(
    model: CachedLMHead, tokens: Int[Tensor, " corpus"], examples: int
) -> Int[Tensor, "examples length"]:
    """Return short prompts from the text with the model's greedy continuations."""
    prompts = draw_windows(tokens, PROMPT, SEED, examples)[:, :PROMPT]
    parts = tqdm(prompts.split(128), "the model's own text", leave=False)
    return torch.cat([generate(model, part, NEW) for part in parts])


def train(
    heads: Heads, model: CachedLMHead, tokens: Int[Tensor, " corpus"], args: argparse.Namespace
) -> None:
    """Train the heads in place. The examples of a step depend only on the number of the step."""
    optimizer = torch.optim.AdamW(heads.parameters(), lr=args.lr, weight_decay=0.0)
    path = args.out / "checkpoint.pt"
    names = "heads", "examples", "steps", "lr", "batch"
    settings: dict[str, Any] = {name: getattr(args, name) for name in names}
    first, texts = load_checkpoint(path, heads, optimizer, settings)
    if texts is None:
        texts = own_text(model, tokens, args.examples)
    progress = trange(first, args.steps, initial=first, total=args.steps, unit="step")
    for step in progress:
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
        nats = heads_loss(
            heads, model, texts[torch.randint(len(texts), (args.batch,), generator=generator)]
        )
        nats.backward()
        lr = args.lr * lr_factor(step, args.steps, max(1, int(WARMUP * args.steps)))
        take_step([optimizer], lr)
        progress.set_postfix(loss=f"{nats.item():.3f}")
        if step == first or (step + 1) % CHECKPOINT_EVERY == 0:
            states = {"heads": heads.state_dict(), "optimizer": optimizer.state_dict()}
            unfinished = path.with_suffix(".tmp")  # a run may be killed while it writes
            torch.save(
                {"step": step + 1, "settings": settings, "texts": texts, **states}, unfinished
            )
            unfinished.replace(path)


def load_checkpoint(
    path: Path, heads: Heads, optimizer: torch.optim.Optimizer, settings: dict[str, Any]
) -> tuple[int, Tensor | None]:
    """Restore an interrupted run, if there is one. Return its number of steps, and its texts."""
    if not path.exists():
        return 0, None
    state = torch.load(path, weights_only=True)
    if state["settings"] != settings:
        sys.exit(
            f"{path} belongs to a run with {state['settings']}, not {settings}. Use the same "
            "settings, delete it, or pass another --out."
        )
    heads.load_state_dict(state["heads"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"], state["texts"]


@torch.no_grad()
def hit_rates(
    heads: Heads, model: CachedLMHead, texts: Int[Tensor, "examples length"]
) -> Float[Tensor, " heads"]:
    """Return for each head the share of the model's own new tokens that it guesses."""
    hits, weight = [], model.transformer.wte.weight
    for ids in texts.split(8):
        hidden = final_hidden(model, ids)
        labels = head_labels((hidden @ weight.T).argmax(dim=-1), len(heads.layers))
        guesses = (heads(hidden) @ weight.T).argmax(dim=-1)
        hit = torch.where(labels < 0, torch.nan, (guesses == labels).float())
        hits.append(hit[:, PROMPT - 1 :])
    return torch.cat(hits).nanmean(dim=(0, 1))


def report(args: argparse.Namespace) -> None:
    model, tokenizer = CachedLMHead.from_pretrained(MODEL), load_tokenizer(MODEL)
    tokens, held_out = (encode(tokenizer, text) for text in split_text(args.text))
    if len(held_out) <= PROMPT:
        sys.exit(
            f"{args.text} is too short: the last 3% of it have {len(held_out)} tokens, and a "
            f"prompt takes {PROMPT}. Pass a longer text."
        )
    args.out.mkdir(parents=True, exist_ok=True)
    heads = Heads(model.config.n_embd, args.heads)
    train(heads, model, tokens, args)
    save_file({name: w.half() for name, w in heads.state_dict().items()}, args.out / WEIGHTS)
    rates = hit_rates(heads, model, own_text(model, held_out, HELD_OUT)).tolist()
    for number, rate in enumerate(rates):
        print(f"head {number}, {2 + number} tokens ahead: {rate:.1%} of the model's own tokens")


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("text", type=Path, help="a UTF-8 text file")
    add("--out", type=Path, required=True, help="the folder for the heads")
    add("--heads", type=int, default=3, help="how many (default %(default)s)")
    add("--examples", type=int, default=1024, help="texts to learn from (default %(default)s)")
    add("--steps", type=int, default=250, help="training steps (default %(default)s)")
    add("--lr", type=float, default=4e-3, help="peak learning rate (default %(default)s)")
    add("--batch", type=int, default=16, help="texts per step (default %(default)s)")
    args = parser.parse_args(words)
    if min(args.heads, args.examples, args.steps, args.lr, args.batch) <= 0:
        parser.error("--heads, --examples, --steps, --lr and --batch must be above 0.")
    return args


if __name__ == "__main__":
    try:
        report(parse_arguments())
    except KeyboardInterrupt:
        sys.exit("Interrupted. The same command continues from the last checkpoint.")
