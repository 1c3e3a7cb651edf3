"""The engine: requests in, tokens streamed out.

It combines all earlier labs in one loop: continuous batching over paged blocks under a token
budget, preemption, sampling parameters and a generator for each request, stop conditions, abort,
speculation. A step has three parts: schedule, run, postprocess.
"""

import collections.abc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from operator import index
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gpt import GPTConfig
from solutions.batching import require_request
from solutions.decoding import GREEDY, SamplingParams, next_token_probs
from solutions.engine.limits import Limits
from solutions.engine.managers import EngineHooks
from solutions.engine.runner import Chunk, FastCache, PackedCache, Runner, new_runner
from solutions.engine.scheduler import Scheduler
from solutions.engine.sequence import Sequence, StopCondition
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager, PagedCache
from solutions.speculative import Drafter, new_uniforms, prefixes, verify, verify_greedy

STEPS = 10_000  # how many of the latest steps the trace keeps


@dataclass(frozen=True)
class Parts:
    """The parts from other labs; each can be your own. scheduler: None means lab 7's."""

    block_manager: type[BlockManager] = BlockManager
    paged_cache: type[PagedCache] = PagedCache
    next_token_probs: Callable[..., Float[Tensor, "rows vocab"]] = next_token_probs
    verify: Callable[..., tuple[int, int]] = verify
    verify_greedy: Callable[..., tuple[int, int]] = verify_greedy
    scheduler: Callable[[EngineHooks, int, int], Scheduler] | None = None


@dataclass(frozen=True)
class Output:
    """A request's new tokens from one step, and why it ended, if it did.

    finish_reason: "stop" (EOS or the stop condition), "length", "abort" or "error"; None while the
    request goes on.
    """

    request: int
    new_ids: list[int]
    finish_reason: str | None


class Engine:
    """Serves requests, step by step.

    `submit` and `abort` may be called at any time and from any thread; they take effect at the
    beginning of the next step. Every step ends by passing its outputs to `on_output`. trace: for
    each step, a list with (request, tokens computed, whether it had caught up) for each request
    that the step served.
    """

    def __init__(
        self,
        config: GPTConfig,
        scheduler: Scheduler,
        runner: Runner,
        on_output: Callable[[Output], None],
        new_drafter: Callable[[], Drafter] | None = None,
        k: int = 0,
        parts: Parts = Parts(),
    ) -> None:
        if k < 0 or (k > 0) != (new_drafter is not None):
            raise ValueError(f"Drafting takes both a drafter and k of 1 or more; k is {k}.")
        if scheduler.token_budget <= k:
            raise ValueError(
                f"A token and its {k} drafts are verified in one step: the token budget must be "
                f"{k + 1} or more, not {scheduler.token_budget}."
            )
        self.config, self.scheduler, self.runner, self.parts = config, scheduler, runner, parts
        self.on_output, self.new_drafter, self.k = on_output, new_drafter, k
        self.numbers = count()
        self.inbox: deque[Sequence | int] = deque()  # new requests, and numbers to abort
        self.sequences: dict[int, Sequence] = {}  # all waiting and running requests
        self.outputs: deque[Output] = deque()
        self.trace: deque[list[tuple[int, int, bool]]] = deque(maxlen=STEPS)

    def submit(
        self,
        prompt: collections.abc.Sequence[int],
        max_new_tokens: int,
        params: SamplingParams = GREEDY,
        seed: int = 0,
        eos_token_id: int | None = None,
        stop: StopCondition | None = None,
        salt: bytes = b"",
        adapter: Any = None,
    ) -> int:
        """Add a request with the next step; return its number, counted from 0.

        If the manager shares blocks, then only among requests with the same salt. adapter: for an
        engine of lab 23. Raises ValueError for a request that can't be served. The prompt is not
        changed.
        """
        require_request(self.config, prompt, max_new_tokens)
        end = min(len(prompt) + max_new_tokens, self.config.n_positions)
        self.scheduler.require_room(end)
        sequence = Sequence(
            next(self.numbers),
            list(map(index, prompt)),  # integers of any type
            end,
            eos_token_id,
            params=params,
            generator=torch.Generator().manual_seed(seed),
            stop=stop,
            new_drafter=self.new_drafter,
            salt=salt,
            adapter=adapter,
        )
        self.inbox.append(sequence)
        return sequence.number

    def abort(self, request: int) -> None:
        """End a request with the next step; one that has already ended stays as it is."""
        self.inbox.append(request)

    @property
    def has_work(self) -> bool:
        return bool(self.inbox or self.sequences or self.outputs)

    def run(self) -> None:
        """Step until no request is waiting or running."""
        while self.has_work:
            self.step()

    @torch.inference_mode()
    def step(self) -> None:
        """Run one iteration: schedule, run, postprocess.

        The runner computes a chunk for every request in the plan, all in one forward pass. Then
        take the requests in the order of the plan, each completely before the next: count its
        tokens as computed; `publish` its `ids` and how many of them are computed; and if it has
        caught up, let it gain the tokens that `choose` takes from its logits. At the end, append
        one list to the trace, with (request, tokens, whether it has caught up) for each request in
        the plan; an empty list if the plan is empty. An error that a request raises is passed on:
        requests after it stay as they were, and the next step computes them again.
        """
        self.take_in()
        ### BEGIN SOLUTION
        plan = self.scheduler.schedule()
        logits = self.runner.forward([self.chunk(request, plan[request]) for request in plan])
        served = []
        for request, tokens in plan.items():
            sequence = self.sequences[request]
            sequence.num_computed_tokens += tokens
            self.scheduler.manager.publish(request, sequence.ids, sequence.num_computed_tokens)
            served.append((request, tokens, sequence.has_caught_up))
            if sequence.has_caught_up:
                self.gain(sequence, self.choose(sequence, logits[request]))
        self.trace.append(served)
        ### END SOLUTION
        while self.outputs:
            self.on_output(self.outputs.popleft())

    def take_in(self) -> None:
        """Add the requests submitted since the last step and end the aborted ones, in order."""
        for _ in range(len(self.inbox)):
            came = self.inbox.popleft()
            if isinstance(came, Sequence):
                self.sequences[came.number] = came
                self.scheduler.waiting.append(came)
                if len(came.ids) == came.end:  # the prompt fills the context
                    self.finish(came, "length")
            elif came in self.sequences:
                self.finish(self.sequences[came], "abort")

    def chunk(self, request: int, tokens: int) -> Chunk:
        """Return a request's next tokens. Logits are wanted after its last token and each draft."""
        source = self.sequences[request]
        start = source.num_computed_tokens
        wanted = max(0, start + tokens - len(source.ids) + 1)
        return Chunk(request, source.text[start : start + tokens], start, wanted)

    def choose(self, sequence: Sequence, logits: Float[Tensor, "wanted vocab"]) -> list[int]:
        """Return the accepted drafts and the token after them."""
        drafts, params, parts = sequence.drafts, sequence.params, self.parts
        with self.ending_at_errors(sequence):
            if params == GREEDY:
                accepted, token = parts.verify_greedy(logits.argmax(dim=-1).tolist(), drafts)
            else:
                probs = parts.next_token_probs(logits, prefixes(sequence.text, logits), params)
                uniforms = new_uniforms(len(logits), sequence.generator, logits.device)
                draft_probs = probs[:0] if sequence.draft_probs is None else sequence.draft_probs
                accepted, token = parts.verify(probs, draft_probs, drafts, uniforms)
        return [*drafts[:accepted], token]

    def gain(self, sequence: Sequence, tokens: list[int]) -> None:
        """Give a request its new tokens. If they don't end it, it drafts its next tokens."""
        with self.ending_at_errors(sequence):
            new_ids = sequence.extend(tokens)
            if sequence.finish_reason is not None:
                self.finish(sequence, sequence.finish_reason, new_ids)
            else:
                self.outputs.append(Output(sequence.number, new_ids, None))
                sequence.draft(self.k)

    @contextmanager
    def ending_at_errors(self, sequence: Sequence) -> Iterator[None]:
        """End only this request if its own parts raise an error; pass the error on."""
        try:
            yield
        except Exception:
            self.finish(sequence, "error")
            raise

    def finish(
        self, sequence: Sequence, reason: str, new_ids: collections.abc.Sequence[int] = ()
    ) -> None:
        """Remove a request that has ended, and send its last output."""
        self.scheduler.retire(sequence)
        del self.sequences[sequence.number]
        self.outputs.append(Output(sequence.number, list(new_ids), reason))


def new_engine(
    model: CachedLMHead,
    limits: Limits,
    on_output: Callable[[Output], None],
    new_drafter: Callable[[], Drafter] | None = None,
    k: int = 0,
    parts: Parts = Parts(),
) -> Engine:
    """Return an engine for this model, made of these parts. k: drafts per round.

    With the reference's cache of lab 4 it takes a path with fewer operations; with any other cache
    it calls that cache's `attend`.
    """
    manager_class: Any = parts.block_manager
    if not issubclass(manager_class, EngineHooks):
        manager_class = type("EngineManager", (EngineHooks, manager_class), {})
    manager = manager_class(limits.num_blocks, limits.block_size)
    weight = model.transformer.wte.weight
    cache = parts.paged_cache(model.config, manager, weight.device, weight.dtype)
    kv_cache = FastCache(cache) if parts.paged_cache is PagedCache else PackedCache(cache)
    scheduler = (parts.scheduler or Scheduler)(manager, limits.token_budget, limits.max_running)
    runner = new_runner(model, kv_cache)
    return Engine(model.config, scheduler, runner, on_output, new_drafter, k, parts)
