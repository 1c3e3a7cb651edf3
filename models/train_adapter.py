"""Train an adapter of a shipped model that writes in another style: lab 23's, which ship.

    python models/train_adapter.py verse --out models/fable/adapters/verse
    python models/train_adapter.py capitals --out models/fable/adapters/capitals

It learns from 16 of the held-out passages, in that style, and is measured on the other 4: in the
style, which it should have learned, and as they are, which shows what that costs everybody else.
It takes two minutes on two cores.
"""

import argparse
import sys
from pathlib import Path

import torch
from tqdm import tqdm

from gpt import GPTLMHead, load_tokenizer
from models.train import encode
from solutions.adapted.files import write_adapter
from solutions.adapted.styles import STYLES, TRAINED_ON, passages_in
from solutions.adapted.training import adapt, matrices_of, train
from solutions.quality.bits_per_byte import HELD_OUT, bits_per_byte, logits_of, loss, texts_in

MODEL = "fable"
RANK, ALPHA, STEPS, SEED = 8, 16.0, 100, 0
SCORED = 512  # tokens at the end of each passage


def report(style: str, out: Path) -> None:
    if out.exists():
        sys.exit(f"{out} is there already. Give another folder, or remove it.")
    model, tokenizer = GPTLMHead.from_pretrained(MODEL), load_tokenizer(MODEL)
    learned, unseen = passages_in(style)
    plain = texts_in(HELD_OUT)[TRAINED_ON:]
    length = model.config.n_positions
    texts = [[encode(tokenizer, t)[:length] for t in both] for both in (unseen, plain)]
    before = [bits_per_byte(logits_of(model), its, scored=SCORED) for its in texts]
    torch.manual_seed(SEED)
    adapt(model, RANK, ALPHA)
    ids = encode(tokenizer, "\n\n".join(learned))
    losses = train(model, ids, STEPS, seed=SEED)
    for nats in (progress := tqdm(losses, total=STEPS, unit="step", disable=None)):
        progress.set_postfix(loss=f"{nats:.2f}")
    write_adapter(out, matrices_of(model), MODEL)
    for name, its, base in zip((f"in {style}", "as they are"), texts, before, strict=True):
        print(f"passages {name}: {loss(bits_per_byte(logits_of(model), its, scored=SCORED), base)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("style", choices=STYLES)
    parser.add_argument("--out", type=Path, required=True, help="the folder for the adapter")
    report(**vars(parser.parse_args()))
