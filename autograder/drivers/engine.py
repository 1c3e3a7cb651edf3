"""Drivers of lab 7: a queue that is played without a model, and an engine's step by step."""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from autograder.drivers.queues import by_number, numbered, outgoing, shown
from autograder.drivers.queues import schedule as schedule
from autograder.drivers.seen import Seen
from gpt import GPTConfig
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.sequence import Sequence

Plan = dict[int, int]
Turns = list[dict[str, Any]]
PRIME = 101


def logits_after(text: list[int], salt: int) -> Float[Tensor, " vocab"]:
    """Which token is the likeliest depends on all of the text, and on where each token stands."""
    mixed = salt
    for token in text:
        mixed = (1103 * mixed + token + 1) % 1_000_003
    return ((1 + mixed % (PRIME - 1)) * torch.arange(1, PRIME) % PRIME).double() / 10


class TextRunner:
    """Stands for a runner: for keys and values it keeps the tokens that it has been handed.

    batches: for each forward of a step the chunks, by request.
    """

    def __init__(self, salt: int) -> None:
        self.salt = salt
        self.texts: dict[int, list[int]] = {}
        self.batches: list[dict[int, dict[str, Any]]] = []

    def forward(self, batch: Iterable[Any]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        chunks = sorted(batch, key=lambda chunk: len(chunk.ids))
        if chunks:
            self.batches.append({chunk.request: parts_of(chunk) for chunk in chunks})
        return {chunk.request: self.logits(chunk) for chunk in chunks}

    def logits(self, chunk: Any) -> Float[Tensor, "wanted vocab"]:
        before = [*self.texts.get(chunk.request, []), *[0] * chunk.start][: chunk.start]
        text = self.texts[chunk.request] = before + list(chunk.ids)
        ends = range(len(text) - chunk.wanted + 1, len(text) + 1)
        rows = [logits_after(text[:end], self.salt) for end in ends]
        return torch.stack(rows) if rows else torch.empty(0, PRIME - 1, dtype=torch.float64)


def parts_of(chunk: Any) -> dict[str, Any]:
    return {"ids": list(chunk.ids), "start": chunk.start, "wanted": chunk.wanted}


class Prescribed:
    """Stands for a drafter: it knows by heart what it will guess for each place of a text.

    guesses: those of each request, behind its prompt.
    """

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        self.guesses = [(request["prompt"], request["guesses"]) for request in requests]

    def propose(
        self, ids: Several[int], k: int, params: Any, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        text = list(ids)
        own = (guesses for prompt, guesses in self.guesses if text[: len(prompt)] == prompt)
        drafts: list[int] = next(own, [])[len(text) :][: max(k, 0)]
        certain = torch.tensor(drafts, dtype=torch.int64)
        return drafts, F.one_hot(certain, PRIME - 1).double()

    def truncate(self, n: int) -> None:
        """It holds no tokens."""


class Queue(deque[Sequence]):
    """Those who wait. came: all who have ever joined it at its end; they have the drafter then."""

    def __init__(self, drafter: Prescribed | None) -> None:
        super().__init__()
        self.drafter = drafter
        self.came: list[Sequence] = []

    def append(self, sequence: Sequence) -> None:
        sequence.drafter = self.drafter
        self.came.append(sequence)
        super().append(sequence)


class Planned:
    """Stands for a scheduler: does what a right one did, step by step.

    turns: whom it preempted, whom it admitted, and the plan. calls: of `schedule`.
    """

    def __init__(
        self, turns: Turns, token_budget: int, runner: TextRunner, drafter: Prescribed | None
    ) -> None:
        self.turns, self.token_budget, self.waiting = turns, token_budget, Queue(drafter)
        self.running: list[Sequence] = []
        self.manager = Told(runner, self.running)
        self.preemptions = self.calls = 0

    def require_room(self, end: int) -> None:
        """There is room for everybody."""

    def schedule(self) -> Plan:
        turn = self.turns[self.calls] if self.calls < len(self.turns) else None
        self.calls += 1
        if turn is None:
            return {}
        for sequence in self.those(self.running, turn["preempted"]):
            self.running.remove(sequence)
            sequence.num_computed_tokens = 0
            self.waiting.appendleft(sequence)
            self.preemptions += 1
        for sequence in self.those(self.waiting, turn["admitted"]):
            self.waiting.remove(sequence)
            self.running.append(sequence)
        numbers = numbered(self.running)
        return {number: count for number, count in turn["plan"].items() if number in numbers}

    def those(self, where: Iterable[Sequence], numbers: list[int]) -> list[Sequence]:
        """The requests with these numbers, in their order; an attempt may have lost some."""
        found = {sequence.number: sequence for sequence in where}
        return [found[number] for number in numbers if number in found]

    def retire(self, sequence: Sequence) -> None:
        (self.running if sequence in self.running else self.waiting).remove(sequence)


class Told:
    """Stands for a block manager: takes down what it is told with `publish`."""

    def __init__(self, runner: TextRunner, running: list[Sequence]) -> None:
        self.runner, self.running = runner, running
        self.told: dict[int, list[Any]] = {}

    def publish(self, request: int, token_ids: Several[int], computed: int) -> None:
        """Tokens beyond those that are computed say nothing."""
        tokens = list(token_ids)[:computed]
        known = [s.text[: len(tokens)] for s in self.running if s.number == request]
        told = f"{len(tokens)} {'of its' if tokens in known else 'other'} tokens"
        when = "after the forward" if self.runner.batches else "before the forward"
        when = when if known else "when it runs no more"
        self.told.setdefault(request, []).append(f"{told} {when}")


def step(
    attempt: type,
    config: dict[str, Any],
    requests: list[dict[str, Any]],
    k: int,
    turns: Turns,
    token_budget: int,
    salt: int,
) -> list[Seen]:
    """With a scheduler whose turns are prescribed and a runner without a model.

    A request has a `prompt`, `max_new_tokens`, `params` or None, a `seed`, an `eos_token_id` or
    None, `guesses` for the places of its text, and the steps with which it `comes` and with which
    it is `aborted`, or None.
    """
    runner, outputs = TextRunner(salt), list[Any]()
    drafter = Prescribed(requests) if k else None
    scheduler = Planned(turns, token_budget, runner, drafter)
    new_drafter = None if drafter is None else lambda: drafter
    engine = attempt(GPTConfig(**config), scheduler, runner, outputs.append, new_drafter, k)
    seen: list[Seen] = []
    for number in range(1, len(turns) + 1):
        arrive(engine, requests, number)
        rows = len(engine.trace)
        engine.step()
        seen += stepped(engine, outputs, rows, f"in step {number}", f"after step {number}")
        outputs.clear()
        runner.batches, scheduler.manager.told = [], {}
    return [
        *seen,
        Seen("The number of calls of `schedule`", scheduler.calls, "in all"),
        Seen("`sequences`, by number,", shown(sorted(engine.sequences)), "at the end"),
        *by_number(scheduler.waiting.came, "at the end"),
    ]


def arrive(engine: Any, requests: list[dict[str, Any]], step: int) -> None:
    """Submit who comes with a step, abort whom it aborts. They are numbered as they come."""
    for request in requests:
        if request["comes"] == step:
            given = request["params"]
            params = GREEDY if given is None else SamplingParams(**given)
            rest = params, request["seed"], request["eos_token_id"]
            engine.submit(request["prompt"], request["max_new_tokens"], *rest)
    for number, request in enumerate(requests):
        if request["aborted"] == step:
            engine.abort(number)


def stepped(engine: Any, outputs: list[Any], rows: int, where: str, after: str) -> Iterator[Seen]:
    """What happened in a step; the trace had so many rows before."""
    batches = engine.runner.batches
    asked = {request: chunk for batch in batches for request, chunk in batch.items()}
    yield Seen("The number of forwards", len(batches), where)
    yield Seen("What the runner is asked for, by request,", shown(asked), where)
    yield outgoing(outputs, where)
    published = engine.scheduler.manager.told
    yield Seen("What `publish` is told, by request,", shown(published), where)
    added = [plain_row(row) for row in list(engine.trace)[rows:]]
    yield Seen("What is added to the trace", shown(added), where)
    both = [numbered(engine.scheduler.running), numbered(engine.scheduler.waiting)]
    yield Seen("[`running`, `waiting`], by number,", shown(both), after)


def plain_row(row: Any) -> Any:
    """Lists are as good as tuples."""
    several = isinstance(row, (list, tuple))
    return [list(part) if isinstance(part, tuple) else part for part in row] if several else row
