"""Drivers of lab 7: a scheduler without a model, and an engine's steps."""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.drivers.queues import by_number, numbered, outgoing, shown
from autograder.attempt.drivers.queues import schedule as schedule
from autograder.attempt.lent import handle, sealed
from autograder.attempt.records import Seen
from gpt import GPTConfig
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.sequence import Sequence

Plan = dict[int, int]
Turns = list[dict[str, Any]]
PRIME = 101


def logits_after(text: list[int], salt: int) -> Float[Tensor, " vocab"]:
    """The likeliest token depends on the whole text and on the order of its tokens."""
    mixed = salt
    for token in text:
        mixed = (1103 * mixed + token + 1) % 1_000_003
    return ((1 + mixed % (PRIME - 1)) * torch.arange(1, PRIME) % PRIME).double() / 10


class TextRunner:
    """A runner without a model: instead of keys and values it keeps the tokens it receives.

    batches: for each forward pass of a step the chunks, by request.
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
    """A drafter with a prescribed guess for each place of a text.

    guesses: for each request its prompt, and the text to guess from.
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


class StopFailed(Exception):
    """What a request's own stop condition raises."""


@dataclass(frozen=True)
class Failing:
    """A stop condition that raises when the request has this many new tokens."""

    after: int

    def __call__(self, new_ids: list[int]) -> bool:
        if len(new_ids) == self.after:
            raise StopFailed("The request's own `stop` fails.")
        return False


def queue(drafter: Any, came: list[Sequence]) -> deque[Sequence]:
    """Return the queue of waiting requests. came: gets all that ever join at the end; there they
    get the drafter."""

    def append(self: deque[Sequence], sequence: Sequence) -> None:
        sequence.drafter = drafter
        came.append(sequence)
        deque.append(self, sequence)

    return type("Queue", (deque,), {"append": sealed(append)})()


class Planned:
    """A scheduler that repeats what a right one did, step by step.

    turns: the requests preempted and admitted, and the plan. calls: the calls of `schedule`. came:
    all requests that ever waited.
    """

    def __init__(self, turns: Turns, token_budget: int, runner: TextRunner, drafter: Any) -> None:
        self.turns, self.token_budget = turns, token_budget
        self.came: list[Sequence] = []
        self.waiting, self.running = queue(drafter, self.came), list[Sequence]()
        self.manager = Told(runner, self.running)
        self.preemptions = self.calls = 0

    def require_room(self, end: int) -> None:
        """There is room for every request."""

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
        if sequence not in self.running and sequence not in self.waiting:
            number = sequence.number
            raise ValueError(f"Request {number} neither runs nor waits: has it ended already?")
        (self.running if sequence in self.running else self.waiting).remove(sequence)

    def shown(self) -> SimpleNamespace:
        """Return what an engine has of it: both queues themselves, and nothing that is counted."""
        queues = {"waiting": self.waiting, "running": self.running}
        calls = {name: sealed(getattr(self, name)) for name in ("schedule", "retire")}
        room = {"token_budget": self.token_budget, "require_room": sealed(self.require_room)}
        return SimpleNamespace(**queues, **calls, **room, manager=handle(self.manager, "publish"))


class Told:
    """A block manager that records what it is told with `publish`."""

    def __init__(self, runner: TextRunner, running: list[Sequence]) -> None:
        self.runner, self.running = runner, running
        self.told: dict[int, list[Any]] = {}

    def publish(self, request: int, token_ids: Several[int], computed: int) -> None:
        """Tokens after the computed ones don't matter."""
        tokens = list(token_ids)[:computed]
        known = [s.text[: len(tokens)] for s in self.running if s.number == request]
        told = f"{len(tokens)} {'of its' if tokens in known else 'other'} tokens"
        when = "after the forward pass" if self.runner.batches else "before the forward pass"
        when = when if known else "when it isn't running"
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
    """Run an engine with a prescribed scheduler and a runner without a model.

    A request has a `prompt`, `max_new_tokens`, `params` or None, a `seed`, an `eos_token_id` or
    None, `guesses` for the places of its text, the step with which it `comes`, the step with which
    it is `aborted` or None, and the number of new tokens at which its stop condition `fails` or
    None. The outputs of a step that raises may come with the next step.
    """
    runner, outputs = TextRunner(salt), list[Any]()
    drafter = handle(Prescribed(requests), "propose truncate") if k else None
    scheduler = Planned(turns, token_budget, runner, drafter)
    new_drafter = None if drafter is None else sealed(lambda: drafter)
    parts = scheduler.shown(), handle(runner, "forward"), sealed(outputs.append)
    engine = attempt(GPTConfig(**config), *parts, new_drafter, k)
    seen: list[Seen] = []
    for number in range(1, len(turns) + 1):
        arrive(engine, requests, number)
        rows = len(engine.trace)
        failed = has_failed(engine)
        how = "passes the error of `stop` on" if failed else "raises nothing"
        seen.append(Seen("`step`", how, f"in step {number}"))
        passed = None if failed else outputs
        seen += stepped(engine, scheduler, runner.batches, passed, rows, number)
        if not failed:
            outputs.clear()
        runner.batches, scheduler.manager.told = [], {}
    return [
        *seen,
        Seen("The number of calls of `schedule`", scheduler.calls, "in all"),
        Seen("`sequences`, by number,", shown(sorted(engine.sequences)), "at the end"),
        *by_number(scheduler.came, "at the end"),
    ]


def arrive(engine: Any, requests: list[dict[str, Any]], step: int) -> None:
    """Submit the requests that come with a step, and abort others; numbers go by submission."""
    for request in requests:
        if request["comes"] == step:
            given = request["params"]
            params = GREEDY if given is None else SamplingParams(**given)
            rest = params, request["seed"], request["eos_token_id"]
            stop = None if request["fails"] is None else sealed(Failing(request["fails"]))
            engine.submit(request["prompt"], request["max_new_tokens"], *rest, stop)
    for number, request in enumerate(requests):
        if request["aborted"] == step:
            engine.abort(number)


def has_failed(engine: Any) -> bool:
    """Run a step; return whether it passed on the error of a request's stop condition."""
    try:
        engine.step()
    except StopFailed:
        return True
    return False


def stepped(
    engine: Any,
    scheduler: Planned,
    batches: list[dict[int, dict[str, Any]]],
    outputs: list[Any] | None,
    rows: int,
    step: int,
) -> Iterator[Seen]:
    """What happened in a step. outputs: None for a step that raised, which may write no trace.

    rows: of the trace before the step.
    """
    where = f"in step {step}"
    asked = {request: chunk for batch in batches for request, chunk in batch.items()}
    yield Seen("The number of forward passes", len(batches), where)
    yield Seen("What the runner receives, by request,", shown(asked), where)
    if outputs is not None:
        yield outgoing(outputs, where)
    published = scheduler.manager.told
    yield Seen("What `publish` receives, by request,", shown(published), where)
    if outputs is not None:
        added = [plain_row(row) for row in list(engine.trace)[rows:]]
        yield Seen("What is added to the trace", shown(added), where)
    both = [numbered(scheduler.running), numbered(scheduler.waiting)]
    yield Seen("[`running`, `waiting`], by number,", shown(both), f"after step {step}")


def plain_row(row: Any) -> Any:
    """Lists count as tuples."""
    several = isinstance(row, (list, tuple))
    return [list(part) if isinstance(part, tuple) else part for part in row] if several else row
