"""Train `sums`, the model of lab 25, which thinks before it answers.

    python models/train_sums.py --out models/sums

It learns questions that are drawn anew in each step (`solutions/thoughts/chains.py`), with loss on
the thoughts and the answer. Half of the thoughts are cut off at a random place, so that the model
also knows how to answer before they are complete. At the end it answers 200 new questions of each
length, with more and more thoughts. It takes about six minutes on one free core.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tqdm import trange
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from models.train import END_OF_TEXT, lr_factor, new_model, new_optimizers, save_model, take_step
from solutions.adapted.training import IGNORED, Turn, answers
from solutions.thoughts.chains import (
    CLOSED,
    LENGTHS,
    OPENED,
    answer_of,
    draw,
    prompt_of,
    thoughts_of,
)

SHAPE = argparse.Namespace(family="gpt2", layers=3, width=96, heads=4, context=64, dropout=0.0)
ROWS = 64  # questions in a step
QUESTIONS = 200  # of each length, at the end
CHAT = (  # the model reads one question, so only the last message of a chat
    "{% set message = messages[-1] %}{% set question = message.content | trim %}"
    "{% set others = question | list | reject('in', '0123456789') | list %}"
    "{% if message.role != 'user' or others or not 2 <= question | length <= 8 %}"
    "{{ raise_exception('A question for this model has 2 to 8 digits, such as 2718.') }}{% endif %}"
    f"{{{{ question }}}}={OPENED}"
)


def new_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte, for the end of a text and for both marks.

    The marks are text, like the letters, so a mask for them is made from their bytes.
    """
    vocabulary = [END_OF_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bpe = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(vocabulary)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        model_max_length=SHAPE.context,
    )
    tokenizer.chat_template = CHAT
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in (OPENED, CLOSED)])
    return tokenizer


def turns(tokenizer: PreTrainedTokenizerFast, rng: random.Random) -> Iterator[Turn]:
    """Draw questions without end, each with the thoughts and the answer that should follow."""
    while True:
        digits = draw(rng)
        thoughts = thoughts_of(digits)
        if rng.random() < 0.5:
            thoughts = thoughts[: rng.randrange(len(thoughts) + 1)]
        written = thoughts + CLOSED + answer_of(digits)
        yield tokenizer.encode(prompt_of(digits)), tokenizer.encode(written)


@torch.no_grad()
def share_right(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, length: int, budget: int
) -> float:
    """Return the share of questions that are right, if at most `budget` tokens think about them."""
    rng = random.Random(length)
    questions = [draw(rng, [length]) for _ in range(QUESTIONS)]
    ids = torch.tensor([tokenizer.encode(prompt_of(digits)) for digits in questions])
    closed = tokenizer.convert_tokens_to_ids(CLOSED)
    open_ = torch.ones(len(ids), dtype=torch.bool)
    for spent in range(budget + 4):
        tokens = model(ids, use_cache=False).logits[:, -1].argmax(-1)
        if spent == budget:
            tokens[open_] = closed
        open_ &= tokens != closed
        ids = torch.cat([ids, tokens[:, None]], dim=1)
    found = [tokenizer.decode(row).split(CLOSED)[1][:2] for row in ids]
    pairs = zip(found, questions, strict=True)
    return sum(a == answer_of(digits) for a, digits in pairs) / len(ids)


def train(out: Path, steps: int, lr: float, seed: int) -> None:
    if out.exists():
        sys.exit(f"{out} is there already. Give another folder, or remove it.")
    tokenizer, rng = new_tokenizer(), random.Random(seed)
    torch.manual_seed(seed)
    model = new_model(SHAPE, len(tokenizer), tokenizer.eos_token_id).train()
    optimizers = new_optimizers(model, lr)
    batches = answers(turns(tokenizer, rng), tokenizer.eos_token_id, ROWS)
    for step in (progress := trange(steps, unit="step", disable=None)):
        inputs, targets = next(batches)
        logits = model(inputs, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        take_step(optimizers, lr * lr_factor(step, steps))
        progress.set_postfix(loss=f"{loss.item():.3f}")
    save_model(model.eval(), tokenizer, out)
    print(f"parameters {model.num_parameters():,}")
    for length in LENGTHS:
        shares = (share_right(model, tokenizer, length, budget) for budget in range(0, 17, 2))
        print(f"{length} digits: " + " ".join(f"{share:4.0%}" for share in shares))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for the model")
    parser.add_argument("--steps", type=int, default=3000, help="default %(default)s")
    parser.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=1, help="of weights and questions")
    train(**vars(parser.parse_args()))
