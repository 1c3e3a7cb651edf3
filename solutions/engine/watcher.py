"""What an engine tells of its steps beside its outputs, and where its logits may be changed.

The engine and its scheduler may be a learner's own, kept from an older version of lab 7. So they
aren't asked to tell anything: `watch` puts itself around the given methods that all versions have.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from solutions.engine.sequence import Sequence


class Watcher:
    """Is told what happens. Here it does nothing: override what you want to know."""

    def admitted(self, sequence: Sequence) -> None:
        """A request has got blocks; `num_computed_tokens` of its tokens were in them already."""

    def preempting(self, sequence: Sequence) -> None:
        """A request is about to lose its blocks."""

    def computed(self, chunks: list[Any], hidden: Float[Tensor, "total n_embd"]) -> None:
        """A forward pass has computed the hidden states of these chunks, one after the other."""

    def choosing(
        self, sequence: Sequence, logits: Float[Tensor, "wanted vocab"]
    ) -> Float[Tensor, "wanted vocab"]:
        """Return the logits from which the request's new tokens are chosen."""
        return logits

    def chosen(
        self, sequence: Sequence, logits: Float[Tensor, "wanted vocab"], ids: list[int]
    ) -> None:
        """These tokens were chosen. The logits are the model's, as `choosing` received them."""


def watch(engine: Any, watcher: Watcher) -> None:
    """Let an engine tell this watcher. An error in `choosing` or `chosen` ends that request."""
    scheduler = engine.scheduler
    admit, preempt, choose = scheduler.admit, scheduler.preempt, engine.choose

    def telling_admit() -> bool:
        is_admitted: bool = admit()
        if is_admitted:
            watcher.admitted(scheduler.running[-1])
        return is_admitted

    def telling_preempt(sequence: Sequence) -> None:
        watcher.preempting(sequence)
        preempt(sequence)

    def telling_choose(sequence: Sequence, logits: Tensor) -> list[int]:
        with engine.ending_at_errors(sequence):
            adjusted = watcher.choosing(sequence, logits)
        ids: list[int] = choose(sequence, adjusted)
        with engine.ending_at_errors(sequence):
            watcher.chosen(sequence, logits, ids)
        return ids

    scheduler.admit, scheduler.preempt = telling_admit, telling_preempt
    engine.choose, engine.runner.watcher = telling_choose, watcher
