"""Train an adapter of a shipped model: lab 23's two, which write in another style, and lab 24's.

    python models/train_adapter.py verse --out models/fable/adapters/verse
    python models/train_adapter.py capitals --out models/fable/adapters/capitals
    python models/train_adapter.py tools --out models/fable/adapters/tools

A style is learned from 16 of the held-out passages, and measured on the other 4: in the style,
which it should have learned, and as they are, which shows what that costs everybody else. It takes
two minutes on two cores. `tools` learns from dialogues to call two tools, in six minutes, and
`python -m timing.calls` measures it.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from gpt import GPTLMHead, load_tokenizer
from models.train import encode
from solutions.adapted.files import write_adapter
from solutions.adapted.styles import STYLES, TRAINED_ON, passages_in
from solutions.adapted.training import Batch, Turn, adapt, answers, matrices_of, train, windows
from solutions.calls.dialogues import dialogues
from solutions.quality.bits_per_byte import HELD_OUT, bits_per_byte, logits_of, loss, texts_in

MODEL, TOOLS = "fable", "tools"
RANK, ALPHA, SEED = 8, 16.0, 0
STEPS, LR = {TOOLS: 200}, {TOOLS: 3e-3}
STYLE_STEPS, STYLE_LR = 100, 1e-3
SCORED = 512  # tokens at the end of each passage


def text_in(style: str, tokenizer: PreTrainedTokenizerFast) -> Iterable[Batch]:
    learned, _ = passages_in(style)
    return windows(encode(tokenizer, "\n\n".join(learned)), seed=SEED)


def calls(tokenizer: PreTrainedTokenizerFast) -> Iterable[Batch]:
    return answers(turns(tokenizer), tokenizer.eos_token_id)


def turns(tokenizer: PreTrainedTokenizerFast) -> Iterator[Turn]:
    """Yield the ids of all that a model has read before a turn, and of what it should write."""
    for dialogue in dialogues(SEED):
        read = ""
        for new, answer in dialogue.turns():
            read += new
            yield tokenizer.encode(read), tokenizer.encode(answer)
            read += answer


def learn(name: str, model: GPTLMHead, tokenizer: PreTrainedTokenizerFast) -> None:
    """Train a new adapter of the model, in place."""
    torch.manual_seed(SEED)
    adapt(model, RANK, ALPHA)
    batches = calls(tokenizer) if name == TOOLS else text_in(name, tokenizer)
    steps, lr = STEPS.get(name, STYLE_STEPS), LR.get(name, STYLE_LR)
    losses = train(model, batches, steps, lr)
    for nats in (progress := tqdm(losses, total=steps, unit="step", disable=None)):
        progress.set_postfix(loss=f"{nats:.2f}")


def report(name: str, out: Path) -> None:
    if out.exists():
        sys.exit(f"{out} is there already. Give another folder, or remove it.")
    model, tokenizer = GPTLMHead.from_pretrained(MODEL), load_tokenizer(MODEL)
    texts = {}
    if name in STYLES:
        texts = {f"in {name}": passages_in(name)[1], "as they are": texts_in(HELD_OUT)[TRAINED_ON:]}
    length = model.config.n_positions
    passages = {how: [encode(tokenizer, t)[:length] for t in its] for how, its in texts.items()}
    before = {
        how: bits_per_byte(logits_of(model), its, scored=SCORED) for how, its in passages.items()
    }
    learn(name, model, tokenizer)
    write_adapter(out, matrices_of(model), MODEL)
    for how, its in passages.items():
        after = bits_per_byte(logits_of(model), its, scored=SCORED)
        print(f"passages {how}: {loss(after, before[how])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*STYLES, TOOLS])
    parser.add_argument("--out", type=Path, required=True, help="the folder for the adapter")
    report(**vars(parser.parse_args()))
