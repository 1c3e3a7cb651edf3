"""Train Medusa's heads on a shipped model: a few small layers that guess the tokens further ahead.

    python models/train_heads.py books.txt --out models/fable-heads

The model's own weights don't change. First it continues short prompts from the text, greedily. The
heads learn from what it wrote, because that is what they have to guess (Cai et al., "Medusa", ICML
2024, section 2.3.2). The last 3% of the text is held out; at the end, the model continues prompts
from there, and the share of its tokens that each head guesses is printed. It takes 20 minutes.
"""

import argparse
import sys
from pathlib import Path

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
HEADS = 3
PROMPT, NEW = 32, 64  # tokens of an example
EXAMPLES, HELD_OUT = 1024, 128
STEPS, BATCH = 250, 16
LR = 4e-3  # at its peak
WARMUP = 0.1  # share of the steps


def own_text(
    model: CachedLMHead, tokens: Int[Tensor, " corpus"], examples: int
) -> Int[Tensor, "examples length"]:
    """Return short prompts from the text with the model's greedy continuations."""
    prompts = draw_windows(tokens, PROMPT, SEED, examples)[:, :PROMPT]
    parts = tqdm(prompts.split(128), "the model's own text", leave=False, disable=None)
    return torch.cat([generate(model, part, NEW) for part in parts])


def train(heads: Heads, model: CachedLMHead, texts: Int[Tensor, "examples length"]) -> None:
    """Train the heads in place. The texts of a step depend only on the number of the step."""
    optimizer = torch.optim.AdamW(heads.parameters(), lr=LR, weight_decay=0.0)
    for step in (progress := trange(STEPS, unit="step", disable=None)):
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
        chosen = torch.randint(len(texts), (BATCH,), generator=generator)
        nats = heads_loss(heads, model, texts[chosen])
        nats.backward()
        take_step([optimizer], LR * lr_factor(step, STEPS, max(1, int(WARMUP * STEPS))))
        progress.set_postfix(loss=f"{nats.item():.3f}")


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


def report(text: Path, out: Path) -> None:
    model, tokenizer = CachedLMHead.from_pretrained(MODEL), load_tokenizer(MODEL)
    tokens, held_out = (encode(tokenizer, part) for part in split_text(text))
    if len(held_out) <= PROMPT:
        sys.exit(
            f"{text} is too short: the last 3% of it have {len(held_out)} tokens, and a prompt "
            f"takes {PROMPT}. Pass a longer text."
        )
    heads = Heads(model.config.n_embd, HEADS)
    train(heads, model, own_text(model, tokens, EXAMPLES))
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: w.half() for name, w in heads.state_dict().items()}, out / WEIGHTS)
    rates = hit_rates(heads, model, own_text(model, held_out, HELD_OUT)).tolist()
    for number, rate in enumerate(rates):
        print(f"head {number}, {2 + number} tokens ahead: {rate:.1%} of the model's own tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path, help="a UTF-8 text file")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the heads")
    report(**vars(parser.parse_args()))
