"""The engine in a thread of its own, so that the event loop goes on while a step is computed.

PyTorch lets other Python threads run while it multiplies. All of the engine's state belongs to its
thread: requests and aborts wait in an inbox until the next step, and a step's outputs go to the
event loop together.
"""

import functools
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from solutions.decoding import GREEDY
from solutions.engine.engine import Output
from solutions.engine.integrity import BrokenPool, check_integrity
from solutions.engine.runner import Chunk
from solutions.engine.sequence import Sequence
from solutions.engine.watcher import Watcher, watch
from solutions.grammars.regex import EMPTY
from solutions.server.calls import call_guide
from solutions.server.formats import Guides, Vocabulary
from solutions.server.loaded import Loaded, read_tokenizer
from solutions.server.messages import (
    AdapterKey,
    Calling,
    EngineFault,
    Language,
    TextOutput,
    TextRequest,
    Thinking,
    TokenLogprob,
)
from solutions.server.reading import PromptReader, scored
from solutions.server.thoughts import ThoughtGuide
from solutions.server.tokens import stop_at

Deliver = Callable[[list[tuple[str, TextOutput | EngineFault]]], None]
LOOK_EVERY, BEAT = 0.15, 1.0  # seconds between two views of a busy engine, and of an idle one
WARM_UP = 16, 64, 256  # tokens of the prompts that measure how fast prompts are computed
LONG = 0.5  # seconds, after which no longer prompt is tried
log = logging.getLogger("workbook")


@dataclass(frozen=True)
class Facts:
    """What a server needs to know of its model. context: the longest text that it serves, in
    tokens; n_positions: the longest that the model reads. prefill_rate: prompt tokens per second,
    here. other_ends: tokens that end a text besides EOS.
    """

    context: int
    n_positions: int
    vocab_size: int
    eos_token_id: int | None
    prefill_rate: float
    other_ends: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a text."""
        first = () if self.eos_token_id is None else (self.eos_token_id,)
        return first + self.other_ends


class EngineThread(Watcher):
    """Runs an engine. deliver: called in its thread, with all outputs of a step.

    view: the engine as it was after one of its latest steps, for the page and the metrics;
    `on_view` is called when it is renewed. heard: when that was, which shows whether it works.
    """

    def __init__(self, loaded: Loaded, deliver: Deliver = lambda outputs: None) -> None:
        context = loaded.context  # first of all, because a pool may be too small for any engine
        self.loaded, self.engine = loaded, loaded.new_engine(self.note)
        self.deliver = deliver
        self.on_view: Callable[[], object] = lambda: None
        self.on_death = self.on_view
        self.inbox: deque[Any] = deque()  # what `submit` takes, and ids of requests to abort
        self.adapters: dict[AdapterKey, Any] = {}
        self.wake, self.is_stopped = threading.Event(), False
        self.numbers: dict[str, int] = {}  # the engine's number of each request that it serves
        self.requests: dict[int, TextRequest] = {}
        self.outputs: list[tuple[str, TextOutput | EngineFault]] = []
        self.followers: dict[str, list[TextRequest]] = {}  # by the text whose prompt they share
        self.constraints: dict[int, Any] = {}  # lab 14's, of requests with a language
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.cached: dict[int, int] = {}
        self.readers: dict[int, PromptReader] = {}  # of requests that ask about their prompt
        self.came: dict[int, float] = {}
        self.queued: dict[int, float] = {}  # seconds from then until it had blocks
        self.preempted: Counter[int] = Counter()
        self.steps, self.viewed = 0, 0.0
        watch(self.engine, self)
        config = loaded.model.config
        self.facts = Facts(
            context=context,
            n_positions=config.n_positions,
            vocab_size=config.vocab_size,
            eos_token_id=config.eos_token_id,
            prefill_rate=self.prefill_rate(context),
            other_ends=getattr(config, "eos_token_ids", ())[1:],
        )
        self.look()
        background = ThreadPoolExecutor(1, "vocabulary")  # it takes a second, and few texts need it
        self.vocabulary = background.submit(self.new_vocabulary)
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    def prefill_rate(self, context: int) -> float:
        """Return how many prompt tokens per second the engine computes, before it serves."""
        seconds = 0.0
        for turn, tokens in enumerate(WARM_UP[:1] + WARM_UP):  # the first one warms up
            if seconds >= LONG:
                break
            prompt, salt = [0] * min(tokens, context - 1), bytes([turn])  # none is cached
            self.add(TextRequest("warm-up", prompt, 1, GREEDY, seed=0, salt=salt))
            start = time.perf_counter()
            self.engine.run()
            seconds = time.perf_counter() - start
        self.outputs.clear()
        return len(prompt) / seconds

    # ----------------------------------------------------------------- called from any thread

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.is_stopped = True
        self.wake.set()
        self.thread.join()

    def submit(self, message: Any) -> None:
        """Let the next step take in a request, or an adapter, or the key of one to forget."""
        self.inbox.append(message)
        self.wake.set()

    def abort(self, request_id: str) -> None:
        self.inbox.append(request_id)
        self.wake.set()

    # ------------------------------------------------------------------- in the engine's thread

    def run(self) -> None:
        """Serve until it is stopped, or its pool breaks, which only `debug` looks for."""
        try:
            self.serve()
        except BrokenPool as fault:
            log.critical("%s The engine ends.", fault)
            self.on_death()

    def serve(self) -> None:
        while not self.is_stopped:
            if not (self.inbox or self.engine.has_work):
                self.look()
                self.wake.wait(BEAT)
            self.wake.clear()
            self.take_in()
            if self.engine.has_work:
                self.step()

    def take_in(self) -> None:
        while self.inbox:
            came = self.inbox.popleft()
            if isinstance(came, TextRequest):
                self.add(came)
            elif isinstance(came, tuple):
                del self.adapters[came]  # its running requests keep it
            elif not isinstance(came, str):
                self.adapters[came.name, came.version] = came
            elif came in self.numbers:
                self.engine.abort(self.numbers[came])
            else:
                for followers in self.followers.values():
                    followers[:] = [one for one in followers if one.id != came]

    def add(self, request: TextRequest) -> None:
        if request.shares in self.followers:  # whose prompt is being computed
            self.followers[request.shares].append(request)
            return
        if request.shares == request.id:
            self.followers[request.id] = []
        stop = None
        if request.stops or request.other_ends:
            stop = stop_at(request.stops, self.bytes_of, request.other_ends)
        number = self.submit_of(request)(
            request.prompt, request.max_new_tokens, request.params, request.seed,
            request.eos_token_id, stop,
        )  # fmt: skip
        if not request.speculation:
            self.engine.inbox[-1].new_drafter = None  # type: ignore[union-attr]
        if request.language is not None:
            guide = self.guide_of(request.language)
            self.constraints[number] = self.loaded.labs("constrained").Constraint(guide)
        if request.reads != "nothing":
            self.readers[number] = PromptReader(request, self.engine.runner.lm_head)
        self.numbers[request.id], self.requests[number] = number, request
        self.came[number] = time.monotonic()

    def submit_of(self, request: TextRequest) -> Callable[..., int]:
        """Return the engine's `submit`, which gets the request's salt and adapter."""
        if self.loaded.settings.adapters is None:
            return functools.partial(self.engine.submit, salt=request.salt)
        from solutions.adapted.engine import submit  # only now: an earlier lab's copy has none

        adapter = self.adapters[request.adapter] if request.adapter else None
        return functools.partial(submit, self.engine, salt=request.salt, adapter=adapter)

    def new_vocabulary(self) -> Vocabulary:
        return Vocabulary(read_tokenizer(self.loaded.settings.model), self.facts.ends)

    def bytes_of(self, token: int) -> bytes:
        return self.vocabulary.result().bytes_of(token)

    @functools.cached_property
    def guides(self) -> Guides:
        return Guides(self.loaded.labs("constrained"), self.vocabulary.result())

    def guide_of(self, language: Language | None) -> Any:
        if isinstance(language, Thinking):
            answer = self.guide_of(language.answer)
            return ThoughtGuide(self.loaded.labs("thinking"), answer, language.most)
        if not isinstance(language, Calling):
            return self.guides.guide(language)
        return call_guide(self.loaded.labs("tools"), self.guides.bounded(), language)

    def step(self) -> None:
        try:
            self.engine.step()
        except Exception:
            log.exception("A step of the engine has failed.")
            self.end_the_failed()
        if self.loaded.settings.debug:
            check_integrity(self.engine.scheduler.manager)
        self.steps += 1
        if self.outputs:
            outputs, self.outputs = self.outputs, []
            self.deliver(outputs)
        if time.monotonic() > self.viewed + LOOK_EVERY:
            self.look()

    def end_the_failed(self) -> None:
        """End the requests that a failed step served, unless the engine has ended the one at fault.

        Their blocks are freed, and the others go on.
        """
        engine = self.engine
        if not any(output.finish_reason == "error" for output in engine.outputs):
            for sequence in list(engine.scheduler.running) or list(engine.sequences.values()):
                engine.finish(sequence, "error")
        while engine.outputs:
            self.note(engine.outputs.popleft())

    def note(self, output: Output) -> None:
        """Translate an output of the engine. An aborted request has no reader any more."""
        number = output.request
        request = self.requests[number]
        self.inbox += self.followers.pop(request.id, ())  # they find the prompt in the cache now
        logprobs = self.logprobs.pop(number, [])[: len(output.new_ids)]
        cached, queued = self.cached.pop(number, 0), self.queued.pop(number, 0.0)
        if output.finish_reason is not None:
            del self.requests[number], self.numbers[request.id]
            self.preempted.pop(number, None)
            self.came.pop(number, None)
        constraint = self.constraints.pop(number, None) if output.finish_reason else None
        reader = self.readers.pop(number, None)
        if output.finish_reason == "error":
            self.outputs.append((request.id, EngineFault()))
        elif output.finish_reason != "abort":
            reason = output.finish_reason
            if constraint and constraint.guide.remains(constraint.state) is EMPTY:
                reason = "stop"  # there was room for the whole text, though not for EOS
            sent = TextOutput(request.id, output.new_ids, reason, logprobs, cached, queued)
            if reader is not None:
                sent = replace(sent, prompt_logprobs=reader.scores, embedding=reader.embedding())
            self.outputs.append((request.id, sent))

    # ------------------------------------------------------------------------ what is looked at

    def admitted(self, sequence: Sequence) -> None:
        number = sequence.number
        if not self.preempted[number]:
            self.cached[number] = sequence.num_computed_tokens
            self.queued[number] = time.monotonic() - self.came[number]

    def preempting(self, sequence: Sequence) -> None:
        self.preempted[sequence.number] += 1

    def computed(self, chunks: Iterable[Chunk], hidden: Tensor) -> None:
        place = 0
        for chunk in chunks:
            if reader := self.readers.get(chunk.request):
                reader.read(chunk.start, hidden[place : place + len(chunk.ids)])
            place += len(chunk.ids)

    def choosing(self, sequence: Sequence, logits: Tensor) -> Tensor:
        """Keep to the request's format, and adjust what may be chosen in it."""
        constraint = self.constraints.get(sequence.number)
        if constraint is not None:
            logits = constraint.constrain(logits, sequence.drafts)
        adjustments = self.requests[sequence.number].adjustments
        if adjustments is None:
            return logits
        answer = sequence.ids[sequence.prompt_length :]
        return adjustments.apply(logits, answer, sequence.drafts)

    def chosen(self, sequence: Sequence, logits: Tensor, ids: list[int]) -> None:
        constraint = self.constraints.get(sequence.number)
        if constraint is not None:
            for token in ids:
                constraint.advance(token)
        wanted = self.requests[sequence.number].logprobs
        if wanted is not None:
            self.logprobs[sequence.number] = logprobs_of(logits, ids, wanted)

    def look(self) -> None:
        """Renew the view of the engine as it is between two steps: plain data."""
        self.viewed = self.heard = time.monotonic()
        scheduler = self.engine.scheduler
        manager: Any = scheduler.manager
        known = getattr(manager, "block_hash", {})
        self.view = {
            "step": self.steps,
            "running": list(map(self.seen, scheduler.running)),
            "waiting": [self.seen(sequence) for sequence in list(scheduler.waiting)[:64]],
            "waiting_total": len(scheduler.waiting),
            "pool": {
                "block_size": manager.block_size,
                "refs": list(manager.ref_counts),
                "cached": [block for block in known if not manager.ref_counts[block]],
            },
            "preemptions": scheduler.preemptions,
            "prefix_hits": getattr(manager, "hits", 0),
        }
        self.on_view()

    def seen(self, sequence: Sequence) -> dict[str, Any]:
        return {
            "id": self.requests[sequence.number].id,
            "prompt": sequence.prompt_length,
            "tokens": len(sequence.ids),
            "computed": sequence.num_computed_tokens,
            "end": sequence.end,
            "blocks": list(self.engine.scheduler.manager.tables.get(sequence.number, [])),
            "preempted": self.preempted[sequence.number],
        }


def logprobs_of(logits: Tensor, ids: list[int], alternatives: int) -> list[TokenLogprob]:
    """Return the logprob of each new token, of which all but the last are accepted drafts."""
    *drafted, last = scored(logits, ids, alternatives)
    return [*(replace(one, is_drafted=True) for one in drafted), last]
