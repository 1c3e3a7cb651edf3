"""How often a model calls the right tool: 40 questions, with every `tool_choice` of lab 24.

    python -m timing.calls [--threads 1]

The questions are those of `solutions.calls.dialogues`: 13 sums, 18 about where someone is, 9 for
talk. No sum and only half of the names were in a dialogue to train on. Answers are greedy, under
the mask of `language`. The models are fable, fable with its adapter `tools`, and SmolLM2 where
`make chat` has installed it, which is told of the tools in a system message, without an example.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from gpt import SHIPPED
from solutions.adapted.adapter import merged_model
from solutions.adapted.files import read_adapter
from solutions.calls.dialogues import ADD, FIND, Dialogue, questions
from solutions.calls.prompt import tool_prompt
from solutions.constrained import PaddedRows, generate_constrained, token_index
from solutions.families import find_checkpoint, load_chat, load_model, load_tokenizer
from solutions.llama import Expanded
from solutions.server.tokens import TokenBytes
from solutions.tools import TRIGGER, CallStream, Message, assembled, language
from timing.threads import parse_with_threads

CHOICES = "none", "auto", "required"
NEW_TOKENS = 96  # enough for a call that is written letter by letter
TOGETHER = 20  # questions in a batch


class Model(NamedTuple):
    """A model, and the ids of a question as it reads it."""

    whole: Any
    tokenizer: Tokenizer
    ids: Callable[[Dialogue], list[int]]


def models() -> dict[str, Model]:
    path = SHIPPED / "fable"
    base, tokenizer = load_model(path), load_tokenizer(path)
    learned = merged_model(base, read_adapter(path / "adapters" / "tools", base.config))

    def ids(asked: Dialogue) -> list[int]:
        return tokenizer.encode(asked.turns()[0][0]).ids

    found = {"fable": Model(base, tokenizer, ids), "fable:tools": Model(learned, tokenizer, ids)}
    try:
        path = find_checkpoint("smollm2")
    except ValueError as error:
        print(error)
        return found
    return found | {"smollm2": chat_model(path)}


def chat_model(path: Any) -> Model:
    tokenizer = load_tokenizer(path)
    chat = load_chat(path, tokenizer)
    assert chat is not None
    told = {"role": "system", "content": tool_prompt((ADD, FIND))}

    def ids(asked: Dialogue) -> list[int]:
        return chat.ids([told, {"role": "user", "content": asked.question}])

    return Model(Expanded(load_model(path)), tokenizer, ids)


# ------------------------------------------------------------------------------------ their answers


def answers(model: Model, asked: Sequence[Dialogue]) -> dict[str, list[str]]:
    """Return the text of each answer, by `tool_choice`."""
    eos = model.whole.config.eos_token_id
    bytes_of = TokenBytes(model.tokenizer, [eos])
    vocabulary = [bytes_of(token) for token in range(model.whole.config.vocab_size)]
    texts: dict[str, list[str]] = {}
    for choice in CHOICES:
        automaton = language((ADD, FIND), choice, parallel=False)
        index, texts[choice] = token_index(automaton, vocabulary), []
        for start in tqdm(range(0, len(asked), TOGETHER), choice, leave=False, disable=None):
            prompts = [model.ids(dialogue) for dialogue in asked[start : start + TOGETHER]]
            rows = PaddedRows(model.whole, prompts, NEW_TOKENS)
            for ids in generate_constrained(rows, automaton, index, NEW_TOKENS, eos):
                content = b"".join(vocabulary[token] for token in ids)
                texts[choice].append(content.decode(errors="replace"))
    return texts


def call_in(text: str) -> Mapping[str, Any] | None:
    """Return the name and the arguments of an answer's call; None if there is no whole one."""
    stream = CallStream(lambda: "")
    message: Message = assembled([*stream.push(text), *stream.finish()])
    if "tool_calls" not in message:
        return None
    function = message["tool_calls"][0]["function"]
    try:
        return {"name": function["name"], "arguments": json.loads(function["arguments"])}
    except json.JSONDecodeError:
        return None


def counts(texts: Sequence[str], asked: Mapping[str, Sequence[Dialogue]]) -> list[str]:
    """Return how many answers call when they should, parse, name the tool, and are whole.

    The last count is given for each kind of question that needs a call.
    """
    every = [dialogue for its in asked.values() for dialogue in its]
    began = [TRIGGER in text for text in texts]
    calls = [call_in(text) for text in texts]
    when = sum(b == (d.call is not None) for b, d in zip(began, every, strict=True))
    named = sum(
        d.call is not None and call is not None and call["name"] == d.call["name"]
        for call, d in zip(calls, every, strict=True)
    )
    cells = [f"{when} of {len(every)}", f"{sum(c is not None for c in calls)} of {sum(began)}"]
    cells.append(f"{named} of {sum(d.call is not None for d in every)}")
    place = 0
    for its in asked.values():
        if its[0].call is not None:
            right = sum(c == d.call for c, d in zip(calls[place:], its, strict=False))
            cells.append(f"{right} of {len(its)}")
        place += len(its)
    return cells


@torch.no_grad()
def first_bytes(model: Model, asked: Sequence[Dialogue]) -> float:
    """Return the mean probability that an answer begins with the first token of a call."""
    token = model.tokenizer.encode(TRIGGER).ids[0]
    rows = PaddedRows(model.whole, [model.ids(dialogue) for dialogue in asked], 1)
    return float(rows.logits.softmax(dim=-1)[:, token].mean())


def report() -> None:
    asked = questions()
    every = [dialogue for its in asked.values() for dialogue in its]
    needed = [kind for kind, its in asked.items() if its[0].call is not None]
    head = ["model", "tool_choice", "calls when it should", "parses", "right tool"]
    print(" | ".join(head + [f"whole call, {kind}" for kind in needed]))
    for name, model in models().items():
        for choice, texts in answers(model, every).items():
            print(" | ".join([name, choice, *counts(texts, asked)]), flush=True)
        first = {kind: f"{first_bytes(model, its):.2g}" for kind, its in asked.items()}
        print(f"{name}: probability that the answer begins with a call: {first}", flush=True)


if __name__ == "__main__":
    parse_with_threads(argparse.ArgumentParser(description=__doc__))
    report()
