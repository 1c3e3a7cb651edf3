"""Run a workload once, while hooks watch the model from outside.

The loops need no code for timing: the hooks record when each forward pass ended and how many tokens
it computed. Which requests got a token in it follows from the kind of loop.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NoReturn, Protocol, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from solutions import batching as lab3
from solutions import generate as lab1
from solutions.decoding import SamplingParams
from solutions.kv_cache import KVCache
from solutions.speculative import Round
from timing.cores import disturb
from timing.stopwatch import synchronize
from timing.table.kv_bytes import Bytes
from timing.table.lossy import Lossy
from timing.table.workloads import Workload
from timing.work import weight_bytes

Ids = list[int]


@dataclass(frozen=True)
class Run:
    """The result of running one workload with one technique.

    outputs: prompt and new tokens of each request. token_times: for each request, when each of its
    new tokens was available, in seconds, on the same clock as `start`. tokens_computed: the tokens
    that went through the model, including padding and finished rows. kv_bytes, kv_bytes_reserved:
    keys and values at the peak. In another process these three can't be seen and are None. batch:
    how many requests are served at a time. notes: values that only some techniques have, see NOTES.
    others: how many cores other programs kept busy meanwhile.
    """

    outputs: list[Ids]
    start: float
    token_times: list[list[float]]
    tokens_computed: int | None
    kv_bytes: int | None
    kv_bytes_reserved: int | None
    batch: int
    notes: Mapping[str, Any] = field(default_factory=dict)
    others: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        return disturb(self.others, self.notes.get("threads", torch.get_num_threads()))

    @property
    def seconds(self) -> float:
        return max(times[-1] for times in self.token_times) - self.start

    def metrics(self, turns: int = 1) -> list[lab1.Metrics]:
        """Return the metrics of each request, counted from its arrival, so waiting counts.

        Requests arrive at the start; with several `turns`, at the end of the previous turn.
        """
        at_start = len(self.token_times) // turns
        ends = [times[-1] for times in self.token_times]
        came = [self.start] * at_start + ends
        return [lab1.metrics(*both) for both in zip(came, self.token_times, strict=False)]


# The notes that a technique may add to a run; in a row, a missing note is None. used: the share of
# fixed slots, over all steps, that served a request. preemptions, pool_used: an engine's number of
# preemptions, and the share of its blocks that were held, on average over its steps. queried, hits:
# how many prompt tokens were looked up in a prefix cache, and how many were found. acceptance: the
# share of drafts that were accepted. tokens_per_pass: new tokens per forward pass that verifies
# drafts. A note `threads`, from another process, replaces our own number of threads.
NOTES = "used", "preemptions", "pool_used", "queried", "hits", "acceptance", "tokens_per_pass"


class NotTimed(Exception):
    """Its message is a sentence that says why a technique has no row on the table."""


class Prepared(Protocol):
    """A technique with its weights loaded: the interface of every row of the table."""

    @property
    def about(self) -> str:
        """The one line about it under the table."""

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of weights read for every token; None if several tokens share one reading."""

    @property
    def lossy(self) -> Lossy | None:
        """How the outputs may differ from the reference's; None if they must be equal."""

    def run(self, workload: Workload) -> Run:
        """Run the workload once. Raises NotTimed."""


class OtherEngine:
    """The base of techniques that aren't the course's: if one is wrong, only its row is lost."""

    weight_bytes = None  # the bytes it reads for a token can't be seen from outside


@dataclass(frozen=True)
class Absent:
    """A row that can't be timed here. why: a sentence."""

    why: str

    about, lossy, weight_bytes = "", None, None

    def run(self, workload: Workload) -> Run:
        raise NotTimed(self.why)

    def replayed(self, workload: Workload, number: int) -> NoReturn:
        raise NotTimed(self.why)


# ---------------------------------------------------------------------------------- watching


class Watch:
    """A context manager that records the forward passes of a model.

    start, ends: when it was entered and when each forward pass ended. A token is picked right after
    the forward pass that computed its logits. A hook takes microseconds, a forward pass
    milliseconds. On an accelerator, the clock waits until the forward pass has ended, because
    reading the token would wait, too. after_each: called at the end of each forward pass, if given.
    """

    def __init__(
        self,
        model: nn.Module,
        kv_bytes: Callable[[Sequence[Any], Any], Bytes],
        after_each: Callable[[], None] | None = None,
    ) -> None:
        self.model, self.kv_bytes, self.after_each = model, kv_bytes, after_each
        self.device = next(model.parameters()).device
        self.ends: list[float] = []
        self.tokens_computed = self.held = self.reserved = 0

    def __enter__(self) -> Self:
        model: Any = self.model
        theirs = getattr(model, "get_input_embeddings", None)  # of a model of transformers
        embedding = theirs() if theirs else model.transformer.wte
        self.hooks = [
            embedding.register_forward_pre_hook(self.count),
            self.model.register_forward_hook(self.note, with_kwargs=True),
        ]
        synchronize(self.device)
        self.start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def count(self, embedding: nn.Module, args: tuple[torch.Tensor]) -> None:
        self.tokens_computed += args[0].numel()

    def note(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict, output: Any) -> None:
        synchronize(self.device)
        self.ends.append(time.perf_counter())
        held, reserved = self.kv_bytes((*args, *kwargs.values()), output)
        self.held, self.reserved = max(self.held, held), max(self.reserved, reserved)
        if self.after_each:
            self.after_each()

    def run(
        self,
        outputs: list[Ids],
        token_times: list[list[float]],
        batch: int,
        **notes: float | None,
    ) -> Run:
        counted = self.tokens_computed, self.held, self.reserved
        return Run(outputs, self.start, token_times, *counted, batch, notes)


def one_prompt_at_a_time(loop: Callable[[Any, Tensor, int], Tensor]) -> Callable:
    """Wrap a loop of labs 1 and 2, so that Batches can call it."""

    def generate(model: nn.Module, prompts: list[Ids], new_tokens: list[int]) -> list[Ids]:
        input_ids = torch.tensor(prompts, device=next(model.parameters()).device)
        return loop(model, input_ids, *new_tokens).tolist()

    return generate


# ------------------------------------------------------------------- batches, one after another


@dataclass(frozen=True)
class OneModel:
    """A technique that runs one model, reading its weights for every token of a request."""

    about: str
    model: nn.Module
    lossy: Lossy | None = field(default=None, kw_only=True)

    @property
    def weight_bytes(self) -> int:
        return weight_bytes(self.model)


@dataclass(frozen=True)
class Batches(OneModel):
    """Requests in batches of `size`, in order of arrival. A batch ends with its longest request.

    generate: called as generate(model, prompts, new_tokens) for each batch, returns prompt and new
    tokens of each request. A batch's first forward pass gives each row its first token, and so on.
    """

    generate: Callable[[Any, list[Ids], list[int]], list[Ids]]
    kv_bytes: Callable[[Sequence[Any], Any], Bytes]
    size: int = 1

    def run(self, workload: Workload) -> Run:
        outputs: list[Ids] = []
        token_times: list[list[float]] = []
        with Watch(self.model, self.kv_bytes) as watch:
            for first in range(0, len(workload.prompts), self.size):
                limits = workload.new_tokens[first : first + self.size]
                numbers = range(first, first + len(limits))
                prompts = [workload.prompt(number, outputs) for number in numbers]
                forwards = len(watch.ends)
                outputs += self.generate(self.model, prompts, limits)
                token_times += [watch.ends[forwards : forwards + limit] for limit in limits]
        used = sum(workload.new_tokens) / (len(watch.ends) * self.size)
        return watch.run(outputs, token_times, self.size, used=used)


class BestBatches:
    """Batches of the fastest size, found in a trial that times every size once.

    The trial generates a quarter of the new tokens, because it only has to choose a size.
    """

    def __init__(self, candidates: list[Batches]) -> None:
        self.candidates = candidates
        self.best: Batches | None = None
        self.lossy, self.weight_bytes = None, candidates[0].weight_bytes

    @property
    def about(self) -> str:
        sizes = ", ".join(str(batches.size) for batches in self.candidates)
        return f"{self.candidates[0].about}, padded batches of the best of the sizes {sizes}"

    def run(self, workload: Workload) -> Run:
        if self.best is None:
            trial = replace(workload, new_tokens=[-(-n // 4) for n in workload.new_tokens])
            warm_up = replace(trial, prompts=trial.prompts[:1], new_tokens=trial.new_tokens[:1])
            self.candidates[0].run(warm_up)
            self.best = min(self.candidates, key=lambda batches: batches.run(trial).seconds)
        return self.best.run(workload)


# --------------------------------------------------------------- rounds of one token or of several


@dataclass(frozen=True)
class Rounds:
    """Requests one after another, in a loop that produces one or more tokens per forward pass.

    generate: called as generate(models, prompt, max_new_tokens, params, generator), returns the
    round of each forward pass of the first model. The other models are drafts: their keys and
    values count and their work takes time, but their tokens don't count as computed. Each request
    has a generator of its own. one_token_each: whether every forward pass produces just one token.
    """

    about: str
    models: Sequence[Any]
    generate: Callable[..., list[Round]]
    kv_bytes: Callable[[Sequence[Any], Any], Bytes]
    one_token_each: bool = False
    lossy: Lossy | None = field(default=None, kw_only=True)

    @property
    def weight_bytes(self) -> int | None:
        return weight_bytes(self.models[0]) if self.one_token_each else None

    def run(self, workload: Workload) -> Run:
        outputs: list[Ids] = []
        token_times: list[list[float]] = []
        all_rounds: list[Round] = []
        with ExitStack() as stack:
            watch, *others = [
                stack.enter_context(Watch(model, self.kv_bytes)) for model in self.models
            ]
            for number in range(len(workload.prompts)):
                first = len(watch.ends)
                rounds = self.rounds_of(self.models, workload, number)
                ends = watch.ends[first:]
                outputs.append(continued(workload.prompts[number], rounds))
                token_times.append(
                    [end for r, end in zip(rounds, ends, strict=True) for _ in r.new]
                )
                all_rounds += rounds
        watch.held += sum(other.held for other in others)
        watch.reserved += sum(other.reserved for other in others)
        notes = {}
        if drafted := sum(len(round.drafts) for round in all_rounds):
            notes["acceptance"] = sum(round.accepted for round in all_rounds) / drafted
            notes["tokens_per_pass"] = sum(workload.new_tokens) / len(all_rounds)
        return watch.run(outputs, token_times, batch=1, **notes)

    def rounds_of(self, models: Sequence[Any], workload: Workload, number: int) -> list[Round]:
        params = SamplingParams(temperature=workload.temperature)
        generator = torch.Generator().manual_seed(number)
        request = workload.prompts[number], workload.new_tokens[number]
        return self.generate(models, *request, params, generator)

    def replayed(self, workload: Workload, number: int) -> tuple[Ids, Ids]:
        """Return the text of one request with this loop's caches, and the text without them.

        In float64, so that no random number falls between two roundings of a probability.
        """
        exact = [deepcopy(model).double() for model in self.models]
        anew = [Uncached(model) for model in exact]
        prompt = workload.prompts[number]
        cached, uncached = (
            continued(prompt, self.rounds_of(models, workload, number)) for models in (exact, anew)
        )
        return cached, uncached


class Uncached(nn.Module):
    """A model that recomputes every token in each forward pass.

    It only reads the length of the cache that it receives: the number of tokens seen so far.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config, self.transformer = model, model.config, model.transformer

    def forward(
        self,
        inputs: Int[Tensor, "1 q_len"],
        position_ids: Int[Tensor, "1 q_len"],
        kv_cache: KVCache,
    ) -> Float[Tensor, "1 q_len vocab"]:
        seen = kv_cache.length
        self.ids: Tensor = torch.cat([self.ids[:, :seen], inputs], dim=1) if seen else inputs
        length = kv_cache.length = self.ids.shape[1]
        positions = torch.arange(length, device=inputs.device).unsqueeze(0)
        weight = self.transformer.wte.weight
        empty = KVCache(self.config, 1, length, weight.device, weight.dtype)
        return self.model(self.ids, positions, empty)[:, seen:]


def continued(prompt: Ids, rounds: Sequence[Round]) -> Ids:
    return [*prompt, *(token for round in rounds for token in round.new)]


# ------------------------------------------------------------------------- continuous batching


@dataclass(frozen=True)
class Continuous(OneModel):
    """An engine whose requests join and leave between any two steps.

    new_engine: called as new_engine(model, workload), returns a ContinuousBatcher or PagedBatcher
    that serves `size` requests at a time. fixed_slots: whether each of these has a slot of its own,
    which may be idle.
    """

    new_engine: Callable[[Any, Workload], Any]
    kv_bytes: Callable[[Sequence[Any], Any], Bytes]
    size: int
    fixed_slots: bool = True

    def run(self, workload: Workload) -> Run:
        """Serve all requests. A request that has grown after a forward pass got a token in it.

        When a forward pass ends, its tokens have not been picked yet, so the lengths recorded then
        are the lengths before it.
        """
        requests: list[Any] = []
        lengths: list[list[int]] = []

        def note_lengths() -> None:
            lengths.append([len(request.ids) for request in requests])

        with Watch(self.model, self.kv_bytes, after_each=note_lengths) as watch:
            engine = self.new_engine(self.model, workload)
            for prompt, limit in zip(workload.prompts, workload.new_tokens, strict=True):
                engine.submit(prompt, limit)
            requests += engine.waiting
            engine.run()
        note_lengths()
        outputs = [engine.outputs[number] for number in range(len(requests))]
        used = lab3.utilisation(engine.trace) if self.fixed_slots else None
        return watch.run(outputs, times_of_growth(watch.ends, lengths), self.size, used=used)


def times_of_growth(ends: list[float], lengths: list[list[int]]) -> list[list[float]]:
    """Return for each request the ends of the forward passes in which it grew.

    `lengths` has a list for the time before each forward pass, and one for after the last.
    """
    steps = list(zip(ends, pairwise(lengths), strict=True))
    requests = range(len(lengths[0]))
    return [[end for end, (old, new) in steps if new[r] > old[r]] for r in requests]
