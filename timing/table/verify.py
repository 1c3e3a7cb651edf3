"""Verify what a technique generates, so that no row of the table shows a wrong one."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from timing.cores import OtherPrograms
from timing.table.lossy import Lossy
from timing.table.runs import Prepared, Run
from timing.table.workloads import Workload

HAIR = 1e-4  # two logits this close, relative to the largest one, are a tie in float32
COARSE_HAIR = 2**-6  # the same where activations are in bfloat16: four of its steps at most
ROUNDED = "its weights are rounded"
REPLAYED, REPLAYED_TOKENS = 2, 24  # drawn again without caches: requests, new tokens of each


Key = tuple[str, str]  # workload and technique


@dataclass(frozen=True)
class Verifier:
    """Runs techniques, verifies their outputs, and keeps what the table has to say about them.

    A workload's reference runs first and is verified against the naive model. Other techniques must
    produce the reference's tokens; a lossy one must produce the tokens of a naive model with the
    same rounding or window. expected: the reference's outputs, by workload. ties: differences that
    float32 could not decide. differing: how far a lossy technique agrees with the reference. lossy:
    the lossy techniques of this course, by name. replayed: those that have drawn once more without
    their caches.
    """

    naive_model: nn.Module
    expected: dict[str, list[list[int]]] = field(default_factory=dict)
    ties: dict[Key, str] = field(default_factory=dict)
    differing: dict[Key, str] = field(default_factory=dict)
    lossy: dict[str, Lossy] = field(default_factory=dict)
    replayed: set[Key] = field(default_factory=set)

    def run(self, workload: Workload, name: str, technique: Prepared) -> Run:
        """Run the workload once. Raises SystemExit with a message if an output is wrong."""
        key = workload.name, name
        if workload.temperature and key not in self.replayed:
            verify_replay(name, workload, technique)
            self.replayed.add(key)
        with OtherPrograms() as others:
            run = technique.run(workload)
        wanted, lossy = self.expected.get(workload.name), technique.lossy
        if lossy is None:
            tie = verify(name, workload, run.outputs, wanted, self.naive_model)
            if tie:
                self.ties[key] = tie
        else:
            assert wanted is not None, "no reference is lossy, and it comes first"
            if lossy.naive_model:
                verify(name, workload, run.outputs, None, lossy.naive_model, lossy.hair)
            if lossy.wins:
                self.lossy[name] = lossy
            self.differing[key] = difference(name, workload, run.outputs, wanted, lossy.why)
        self.expected.setdefault(workload.name, run.outputs)
        return replace(run, others=others.cores)

    def forget(self, key: Key) -> None:
        """Drop the remarks about a row that is left out in the end."""
        for remarks in (self.ties, self.differing):
            remarks.pop(key, None)


def verify_replay(name: str, workload: Workload, technique: Any) -> None:
    """Verify that a technique draws the same tokens with its caches as without them.

    Two sampling techniques draw different texts, each from the right distribution, so their tokens
    can't be compared. Raises SystemExit if the caches change the text.
    """
    short = replace(workload, new_tokens=[REPLAYED_TOKENS] * len(workload.prompts))
    for number in range(REPLAYED):
        cached, uncached = technique.replayed(short, number)
        if cached != uncached:
            sys.exit(
                f"Stopped: {name} draws other tokens with its caches than without them, although "
                f"the random numbers are the same, for request {number} of {workload.name}."
            )


@dataclass(frozen=True)
class Text:
    """What a technique has generated for one request of a workload.

    request: its number in the workload. ids: prompt and new tokens.
    """

    technique: str
    workload: Workload
    request: int
    prompt: list[int]
    ids: list[int]

    @property
    def place(self) -> str:
        several = len(self.workload.prompts) > 1
        return f"request {self.request} of {self.workload.name}" if several else self.workload.name

    def differences(self, wanted: Sequence[int]) -> list[int]:
        """Return the positions at which another text has other tokens."""
        both = enumerate(zip(self.ids, wanted, strict=True))
        return [position for position, (token, other) in both if token != other]


def texts_of(name: str, workload: Workload, outputs: Sequence[list[int]]) -> Iterator[Text]:
    """Yield the text of each request. Raises SystemExit if its length is wrong."""
    for number, ids in enumerate(outputs):
        text = Text(name, workload, number, workload.prompt(number, outputs), ids)
        length = len(text.prompt) + workload.new_tokens[number]
        if len(ids) != length:
            sys.exit(
                f"Stopped: {name} returned {len(ids)} tokens for {text.place}; the prompt and the "
                f"new tokens make {length}."
            )
        yield text


def verify(
    name: str,
    workload: Workload,
    outputs: Sequence[list[int]],
    expected: Sequence[list[int]] | None,
    naive_model: nn.Module,
    hair: float = HAIR,
) -> str | None:
    """Verify outputs. Returns a sentence if they differ in ties that float32 can't decide.

    Without `expected` they are compared with the naive model's choices. Raises SystemExit with a
    message if an output is wrong.
    """
    ties = []
    for text in texts_of(name, workload, outputs):
        wanted = None if expected is None else expected[text.request]
        if text.ids != wanted and not workload.temperature:
            tie = hold_against_naive(text, wanted, naive_model, hair)
            ties += [tie] if tie else []
    if len(ties) > 1:
        return f"{ties[0]} The same happened in {len(ties) - 1} more requests."
    return ties[0] if ties else None


def difference(
    name: str,
    workload: Workload,
    outputs: Sequence[list[int]],
    expected: Sequence[list[int]],
    why: str = ROUNDED,
) -> str:
    """Return a sentence: why outputs may differ from the reference's, and how far they agree.

    Raises SystemExit if a prompt has changed or the number of new tokens is wrong.
    """
    before = 0  # new tokens that come before their text's first difference
    for text, wanted in zip(texts_of(name, workload, outputs), expected, strict=True):
        if text.ids[: len(text.prompt)] != text.prompt:
            sys.exit(f"Stopped: {name} changes the prompt of {text.place}.")
        before += next(iter(text.differences(wanted)), len(wanted)) - len(text.prompt)
    same = sum(ids == wanted for ids, wanted in zip(outputs, expected, strict=True))
    share = before / sum(workload.new_tokens)
    return (
        f"{name}, {workload.name}: {why}. {same} of {len(outputs)} texts equal the reference's; "
        f"{share:.0%} of the new tokens come before the first difference."
    )


def hold_against_naive(
    text: Text, wanted: list[int] | None, naive_model: nn.Module, hair: float
) -> str | None:
    """Verify that every new token of one request is the naive model's choice, or ties with it.

    After the first difference the two texts diverge, so from there on the naive model judges the
    technique's own text: each token must have the best logit, or one a hair below it. The same
    holds for later turns of a chat. Returns a sentence if there is a tie.
    """
    ids, length = text.ids, len(text.prompt)
    logits = logits_after(naive_model, ids)[length - 1 :]
    if wanted is None:
        wanted = text.prompt + logits.argmax(dim=-1).tolist()
    differences = text.differences(wanted)
    if not differences:
        return None
    first = differences[0]
    picked = logits.gather(-1, torch.tensor(ids[length:], device=logits.device)[:, None])
    gaps = (logits.amax(-1) - picked[:, 0]) / logits.abs().amax(-1)  # of each new token
    if ids[:length] != text.prompt or gaps.max() > hair:
        sys.exit(
            f"Stopped: {text.technique} does not generate what the naive model does. For "
            f"{text.place} the first difference is at position {first} (the prompt has {length} "
            f"tokens), and the chosen logits are up to {gaps.max():.1e} below the best one (a tie "
            f"is {hair:.0e})."
        )
    if first < length:  # in an earlier turn, already reported
        return None
    return (
        f"{text.technique}, {text.place}: the first difference is at position {first}, where the "
        f"two best logits are {gaps[first - length]:.1e} apart: a tie in float32."
    )


@torch.no_grad()
def logits_after(model: nn.Module, ids: list[int]) -> Float[Tensor, "positions vocab"]:
    """Return the logits after every token but the last, in one forward pass without a cache."""
    inputs = torch.tensor([ids[:-1]], device=next(model.parameters()).device)
    return model(inputs, torch.arange(inputs.shape[1], device=inputs.device)[None])[0]
