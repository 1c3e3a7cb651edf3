"""Lab 24: free text that may call tools. It wins nothing; the row shows what its mask costs."""

from dataclasses import replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTLMHead, load_tokenizer
from solutions.calls.dialogues import ADD, FIND
from solutions.decoding import CachedRows
from solutions.gguf.file import gguf_in
from timing.table import HAIR, Batches, Bench, Ids, Lossy, NotTimed, Rows, kv_bytes
from timing.table.workloads import LENGTHS

WHY = "no text ends before its length, so EOS is forbidden"


class Endless(nn.Module):
    """The naive model, without EOS: all that the mask forbids in a text without a call."""

    def __init__(self, model: Any, eos: int) -> None:
        super().__init__()
        self.model, self.eos = model, eos

    def forward(
        self, inputs: Int[Tensor, "1 seq"], position_ids: Int[Tensor, "1 seq"]
    ) -> Float[Tensor, "1 seq vocab"]:
        logits: Float[Tensor, "1 seq vocab"] = self.model(inputs, position_ids)
        logits[..., self.eos] = -2 * logits.abs().amax()  # not -inf: a tie is relative to it
        return logits


def tools(bench: Bench) -> Batches:
    if gguf_in(bench.folder) is not None:
        raise NotTimed("its guide needs a folder of the hub with a tokenizer, and this is a GGUF.")
    lab, masks = bench.lab("tools"), bench.lab("constrained")
    tokenizer = load_tokenizer(bench.folder)
    eos = tokenizer.eos_token_id
    automaton = replace(lab.language((ADD, FIND), "auto", True), accepting=frozenset())
    index = masks.token_index(automaton, masks.vocabulary_bytes(tokenizer))

    def generate(model: Any, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        [prompt], [limit] = prompts, new_tokens
        rows = CachedRows(model, prompt, len(prompt) + limit)
        texts = masks.generate_constrained(rows, automaton, index, limit, eos)
        return [prompt + new for new in texts]

    about = "free text that may call two tools, under their mask (lab 24)"
    lossy = Lossy(WHY, Endless(bench.load(GPTLMHead), eos), HAIR)
    return Batches(about, bench.quick(), generate, kv_bytes.of_object, lossy=lossy)


ROWS: Rows = {"tools": {LENGTHS: tools}}
