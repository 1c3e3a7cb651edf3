"""Lab 14: endless records of JSON, token by token under a mask, and with jumps over forced text."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

import solutions.constrained as reference
from gpt import GPTLMHead, load_tokenizer
from solutions.decoding import CachedRows
from solutions.gguf.file import gguf_in
from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import literal, star, then
from solutions.speculative import Round
from timing.table import HAIR, Batches, Bench, Ids, Lossy, NotTimed, Rounds, Rows, kv_bytes
from timing.table.workloads import LENGTHS, PROMPT

NAME = {"type": "string", "minLength": 1, "maxLength": 12}
AGE = {"type": "integer", "minimum": 1, "maximum": 99}
KIND = {"enum": ["king", "queen", "witch", "wolf"]}
RECORD = {"type": "object", "properties": {"name": NAME, "age": AGE, "kind": KIND}}


@functools.cache  # both rows and what verifies them use the same
def new_guide(lab: Any, folder: Path) -> tuple[Any, list[list[int]]]:
    """Return the guide for records, one a line, and the jump of each state."""
    if gguf_in(folder) is not None:
        raise NotTimed("its guide needs a folder of the hub with a tokenizer, and this is a GGUF.")
    tokenizer = load_tokenizer(folder)
    automaton = lab.automaton_of(star(then(pattern_of(RECORD), literal("\n"))))
    endless = replace(automaton, accepting=frozenset())  # so that no EOS ends a request early
    guide = lab.IndexGuide(endless, lab.vocabulary_bytes(tokenizer), tokenizer.eos_token_id)
    states = range(len(endless.edges))
    return guide, [lab.jump(guide, s, lambda text: tokenizer(text).input_ids) for s in states]


class Masked(nn.Module):
    """The naive model, under the mask of the reference's guide after each new token of the text.

    jumping: with the forced text as the tokenizer writes it, after each chosen token.
    """

    def __init__(self, bench: Bench, jumping: bool) -> None:
        super().__init__()
        self.model, self.jumping = bench.load(GPTLMHead), jumping
        self.guide, self.jumps = new_guide(reference, bench.folder)
        self.prompt = len(load_tokenizer(bench.folder)(PROMPT).input_ids)

    def forward(
        self, inputs: Int[Tensor, "1 seq"], position_ids: Int[Tensor, "1 seq"]
    ) -> Float[Tensor, "1 seq vocab"]:
        logits = self.model(inputs, position_ids)
        lowest = -2 * logits.abs().amax()  # in place of -inf, because a tie is relative to it
        state, due, new = self.guide.start(), list[int](), inputs[0, self.prompt :].tolist()
        for row in range(self.prompt - 1, inputs.shape[1]):
            allowed = self.guide.allowed(state)
            mask = reference.mask_of(due[:1], len(allowed)) if due else allowed
            logits[0, [row]] = reference.constrain(logits[0, [row]], mask[None].to(logits.device))
            if not new or not allowed[new[0]]:
                break
            state = self.guide.advance(state, new[0])
            due = due[1:] or (self.jumps[state] if self.jumping and not due else [])
            new = new[1:]
        return logits.clamp(min=lowest)


def lossy(bench: Bench, jumping: bool) -> Lossy:
    return Lossy("every line is JSON of one form", Masked(bench, jumping), HAIR)


def json(bench: Bench) -> Batches:
    lab, model = bench.lab("constrained"), bench.quick()
    guide, _ = new_guide(lab, bench.folder)

    def generate(model: Any, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        [prompt], [limit] = prompts, new_tokens
        rows = CachedRows(model, prompt, len(prompt) + limit)
        request = rows, guide.automaton, guide.index, limit, guide.eos
        return [prompt + new for new in lab.generate_constrained(*request)]

    about = "records of JSON, each token chosen under a mask (lab 14)"
    return Batches(about, model, generate, kv_bytes.of_object, lossy=lossy(bench, False))


def json_jump(bench: Bench) -> Rounds:
    lab = bench.lab("constrained")
    made = new_guide(lab, bench.folder)

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *how: Any) -> list[Round]:
        rounds = lab.generate_jumping(models[0], prompt, *made, limit)
        return [Round([], 0, new) for new in rounds]

    about = "the same without passes for forced tokens (lab 14)"
    watched = [bench.quick()], generate, kv_bytes.of_object
    return Rounds(about, *watched, lossy=lossy(bench, True))


ROWS: Rows = {"json": {LENGTHS: json}, "json-jump": {LENGTHS: json_jump}}
