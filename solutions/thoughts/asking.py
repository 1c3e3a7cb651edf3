"""An engine whose requests have guides, and that notes what its answers cost."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from solutions.constrained import Constraint, Guide
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.engine import Engine, Output, Parts, new_engine
from solutions.engine.limits import Limits
from solutions.engine.sequence import Sequence as Running
from solutions.engine.watcher import Watcher, watch
from solutions.kv_cache import CachedLMHead
from solutions.prefix_caching import PrefixManager
from solutions.speculative import Drafter
from solutions.thoughts.chains import CLOSED


@dataclass
class Sample:
    """A text of the engine. logprobs: the model's own, of each of its tokens, EOS included."""

    text: str
    ids: list[int]
    logprobs: list[float]

    @property
    def answer(self) -> str | None:
        """What comes after the thoughts; None if they weren't closed."""
        _, found, answer = self.text.partition(CLOSED)
        return answer if found else None

    @property
    def sure(self) -> float:
        """The log-probability of the answer and EOS after these thoughts; a digit is a token."""
        return sum(self.logprobs[-len(self.answer or "") - 1 :])


class Asking(Watcher):
    """Lab 7's engine with lab 8's cache, which keeps each request to its guide.

    A block has one token, so of a prompt that is in the cache only the last token is computed
    again. work: how many tokens were computed in all steps.
    """

    def __init__(
        self,
        model: CachedLMHead,
        tokenizer: Any,
        new_drafter: Callable[[], Drafter] | None = None,
        k: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        limits = Limits(num_blocks=4096, block_size=1, token_budget=512, max_running=128)
        parts = Parts(block_manager=PrefixManager)
        self.engine: Engine = new_engine(model, limits, self.note, new_drafter, k, parts)
        watch(self.engine, self)
        self.constraints = dict[int, Constraint]()
        self.ids = defaultdict[int, list[int]](list)
        self.logprobs = defaultdict[int, list[float]](list)

    @property
    def work(self) -> int:
        return sum(tokens for step in self.engine.trace for _, tokens, _ in step)

    def submit(
        self, prompt: str, guide: Guide, new: int, params: SamplingParams = GREEDY, seed: int = 0
    ) -> int:
        ids, eos = self.tokenizer.encode(prompt), self.tokenizer.eos_token_id
        number = self.engine.submit(ids, new, params, seed, eos)
        self.constraints[number] = Constraint(guide)
        return number

    def samples(self, numbers: Sequence[int]) -> list[Sample]:
        """Let the engine run, and return the texts of these requests."""
        self.engine.run()
        eos = self.tokenizer.eos_token_id
        return [
            Sample(
                self.tokenizer.decode([token for token in self.ids[n] if token != eos]),
                self.ids[n],
                self.logprobs[n][: len(self.ids[n])],
            )
            for n in numbers
        ]

    def note(self, output: Output) -> None:
        self.ids[output.request] += output.new_ids

    def choosing(self, sequence: Running, logits: Float[Tensor, "wanted vocab"]) -> Tensor:
        return self.constraints[sequence.number].constrain(logits, sequence.drafts)

    def chosen(
        self, sequence: Running, logits: Float[Tensor, "wanted vocab"], ids: list[int]
    ) -> None:
        rows = logits.log_softmax(dim=-1)
        for row, token in zip(rows, ids, strict=False):
            self.logprobs[sequence.number].append(float(row[token]))
            self.constraints[sequence.number].advance(token)
