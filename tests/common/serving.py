"""An engine whose every step is verified, and requests that come and go between its steps."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, target
from hypothesis import strategies as st

from gpt import GPTConfig
from solutions.decoding import GREEDY, SamplingParams, stream
from solutions.engine.engine import Engine, Output, Parts, new_engine
from solutions.engine.integrity import check_integrity
from solutions.engine.limits import Limits
from solutions.engine.sequence import Sequence
from solutions.engine.watcher import Watcher, watch
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import PagedCache
from solutions.prefix_caching import PrefixManager
from solutions.speculative import Drafter, ModelDrafter, NgramDrafter, generate_speculative
from tests.common.engines import configs, model_of, naive, seeds

# ------------------------------------------------------------------------------------- drafters


class Contrary:
    """Drafts tokens that the target would not choose: each has probability 1 and is wrong."""

    def __init__(self, target: Any) -> None:
        self.own = ModelDrafter(target, target.config.n_positions)
        self.vocab_size = target.config.vocab_size

    def propose(self, ids: Any, k: int, _: Any, generator: torch.Generator) -> Any:
        drafts, _ = self.own.propose(ids, k, GREEDY, generator)
        wrong = torch.tensor([(token + 1) % self.vocab_size for token in drafts], dtype=torch.int64)
        return wrong.tolist(), F.one_hot(wrong, self.vocab_size).double()

    def truncate(self, n: int) -> None:
        self.own.truncate(n)


def a_perfect_draft(config: GPTConfig, seed: int) -> Drafter:
    return ModelDrafter(model_of(CachedLMHead, config, seed), config.n_positions)


def another_model(config: GPTConfig, seed: int) -> Drafter:
    return ModelDrafter(model_of(CachedLMHead, config, seed + 1), config.n_positions)


def a_useless_draft(config: GPTConfig, seed: int) -> Drafter:
    return Contrary(model_of(CachedLMHead, config, seed))


def the_text_itself(config: GPTConfig, seed: int) -> Drafter:
    return NgramDrafter(config.vocab_size)


Kind = Callable[[GPTConfig, int], Drafter]
KINDS: list[Kind] = [a_perfect_draft, another_model, a_useless_draft, the_text_itself]


def drafters(kind: Kind | None, config: GPTConfig, seed: int) -> Callable[[], Drafter] | None:
    return kind and (lambda: kind(config, seed))


# ---------------------------------------------------------------------- invariants of every step


def assert_books_are_kept(engine: Engine) -> None:
    """Assert that each request waits or runs, and that running ones hold just the blocks needed."""
    scheduler, manager = engine.scheduler, engine.scheduler.manager
    check_integrity(manager)
    assert isinstance(manager, PrefixManager) or max(manager.ref_counts) <= 1  # none is shared
    running, waiting = numbers_of(scheduler.running), numbers_of(scheduler.waiting)
    assert manager.tables.keys() == set(running)
    for sequence in scheduler.running:
        length = manager.lengths[sequence.number]
        assert sequence.num_computed_tokens <= length < sequence.end  # the last token isn't stored
    assert len(running) <= scheduler.max_running
    assert sorted(running + waiting) == sorted(engine.sequences)  # in exactly one of them, once
    assert not any(sequence.has_ended for sequence in engine.sequences.values())


def numbers_of(sequences: Iterable[Sequence]) -> list[int]:
    return [sequence.number for sequence in sequences]


@dataclass
class Story:
    """What is known of a request outside the engine. cached: tokens that the cache must hold."""

    ids: list[int]
    cached: int = 0
    computed: int = 0  # in total, including recomputed tokens and rejected drafts
    admitted: int = 0
    preempted: int = 0
    reasons: list[str] = field(default_factory=list)


class WatchedEngine(Watcher):
    """An engine, and assertions about everything that each `step` did.

    Requests must arrive in the order of their numbers. outputs: all outputs of the engine, in
    order.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_blocks: int,
        block_size: int,
        token_budget: int,
        max_running: int = 4,
        make: Callable[..., Engine] = new_engine,
        **others: Any,
    ) -> None:
        limits = Limits(num_blocks, block_size, token_budget, max_running)
        self.engine = make(model, limits, self.receive, **others)
        self.stories: dict[int, Story] = {}
        self.outputs: list[Output] = []
        self.batches: list[Any] = []
        self.published: list[int] = []
        scheduler: Any = self.engine.scheduler
        manager = scheduler.manager
        self.schedule, scheduler.schedule = scheduler.schedule, self.watched_schedule
        self.admit, manager.admit = manager.admit, self.watched_admit
        self.publish, manager.publish = manager.publish, self.watched_publish
        watch(self.engine, self)

    def submit(self, prompt: list[int], *given: Any, **named: Any) -> int:
        before = list(prompt)
        number = self.engine.submit(prompt, *given, **named)
        assert number == len(self.stories)
        assert prompt == before
        self.stories[number] = Story(before)
        return number

    def receive(self, output: Output) -> None:
        assert len(self.engine.trace) == self.steps + 1  # outputs leave at the end of the step
        assert_books_are_kept(self.engine)
        story = self.stories[output.request]
        assert not story.reasons  # nothing follows an end
        assert output.new_ids or output.finish_reason in ("abort", "length")
        story.ids += output.new_ids
        story.cached = len(story.ids) - 1  # the newest isn't computed; rejected drafts are gone
        if output.finish_reason is not None:
            story.reasons.append(output.finish_reason)
        self.outputs.append(output)

    def watched_admit(self, request: int, token_ids: Any, num_drafts: int, salt: bytes) -> int:
        story, sequence = self.stories[request], self.engine.sequences[request]
        assert list(token_ids) == story.ids + sequence.drafts
        assert num_drafts == len(sequence.drafts)
        assert salt == sequence.salt
        story.cached = self.admit(request, token_ids, num_drafts, salt)
        assert story.cached == 0 or isinstance(self.engine.scheduler.manager, PrefixManager)
        story.admitted += 1
        return story.cached

    def watched_publish(self, request: int, token_ids: Any, computed: int) -> None:
        """Called after the forward pass, before the request gains a token."""
        story = self.stories[request]
        assert list(token_ids[: len(story.ids)]) == story.ids
        assert min(computed, len(story.ids)) == min(story.cached, len(story.ids))
        assert computed <= story.cached  # drafts or not
        self.published.append(request)
        self.publish(request, token_ids, computed)

    def preempting(self, sequence: Any) -> None:
        scheduler, manager = self.engine.scheduler, self.engine.scheduler.manager
        assert sequence is scheduler.running[-1]
        missing = [
            manager.blocks_for(len(s.ids + s.drafts)) - len(manager.tables[s.number])
            for s in scheduler.running
        ]
        assert max(missing) > len(manager.free_blocks)  # a request can't get the blocks it needs
        story = self.stories[sequence.number]
        story.cached, story.preempted = 0, story.preempted + 1

    def watched_schedule(self) -> dict[int, int]:
        self.steps, scheduler = len(self.engine.trace), self.engine.scheduler
        before = {s.number: s.num_computed_tokens >= len(s.ids) - 1 for s in scheduler.running}
        preemptions = scheduler.preemptions
        self.plan = plan = self.schedule()
        left = scheduler.token_budget - sum(plan.values())
        assert left >= 0
        assert plan or not self.engine.sequences  # so that `run` comes to an end
        assert all(tokens > 0 for tokens in plan.values())
        running, preempted = numbers_of(scheduler.running), scheduler.preemptions - preemptions
        assert plan.keys() <= set(running)
        stay = len(before) - preempted
        assert running[:stay] == list(before)[:stay]
        assert not preempted or 0 < len(running) == stay  # no request is admitted in this step
        self.assert_policy(before, left, preempted)
        return plan

    def assert_policy(self, before: dict[int, bool], left: int, preempted: int) -> None:
        """Assert first come, first served, and that no request waits that could be served.

        before: the requests that ran, and whether each decodes. left: the rest of the budget.
        preempted: the number of preemptions.
        """
        scheduler = self.engine.scheduler
        running, waiting = numbers_of(scheduler.running), scheduler.waiting
        assert list(self.plan) == [number for number in running if number in self.plan]
        assert running + numbers_of(waiting) == sorted(self.engine.sequences)
        if not preempted and left and waiting and len(running) < scheduler.max_running:
            needed = scheduler.manager.blocks_for(len(waiting[0].text))
            assert needed > len(scheduler.manager.free_blocks)
        for sequence in scheduler.running:
            computed = self.stories[sequence.number].cached + self.plan.get(sequence.number, 0)
            missing = len(sequence.text) - computed
            are_drafts_late = computed == len(sequence.ids) - 1 and left < missing
            assert missing == 0 or left == 0 or are_drafts_late

    def computed(self, chunks: Any, hidden: Any) -> None:
        self.batches.append(chunks)
        assert {chunk.request: len(chunk.ids) for chunk in chunks} == self.plan
        self.sampled = set()
        for chunk in chunks:
            story, sequence = self.stories[chunk.request], self.engine.sequences[chunk.request]
            end = story.cached + len(chunk.ids)
            assert sequence.ids == story.ids
            assert chunk.start == story.cached
            assert chunk.ids == (story.ids + sequence.drafts)[chunk.start : end]
            assert end < len(story.ids) or end == len(story.ids) + len(sequence.drafts)
            assert chunk.wanted == max(0, end - len(story.ids) + 1)
            self.sampled |= {chunk.request} if chunk.wanted else set()
            story.cached += len(chunk.ids)
            story.computed += len(chunk.ids)

    def step(self) -> None:
        steps, before, forwards = len(self.engine.trace), len(self.outputs), len(self.batches)
        self.published.clear()
        drafts = {n: len(sequence.drafts) for n, sequence in self.engine.sequences.items()}
        self.engine.step()
        assert len(self.engine.trace) == steps + 1
        assert len(self.batches) == forwards + bool(self.plan)
        trace, new = self.engine.trace[-1], self.outputs[before:]
        assert trace == [(n, tokens, n in self.sampled) for n, tokens in self.plan.items()]
        assert self.published == list(self.plan)
        gained = [output for output in new if output.new_ids]
        assert [output.request for output in gained] == [n for n, _, sampled in trace if sampled]
        assert all(len(o.new_ids) <= drafts.get(o.request, 0) + 1 for o in gained)
        assert_books_are_kept(self.engine)
        for number, sequence in self.engine.sequences.items():
            story = self.stories[number]
            assert sequence.ids == story.ids
            assert sequence.num_computed_tokens == story.cached
            room = max(0, sequence.end - len(story.ids) - 1)  # without the target's own token
            assert len(sequence.drafts) <= min(self.engine.k, room)

    def run(self) -> None:
        while self.engine.has_work:
            self.step()
        self.assert_is_empty()

    def assert_is_empty(self) -> None:
        engine, scheduler = self.engine, self.engine.scheduler
        left = engine.sequences, engine.outputs, scheduler.waiting, scheduler.running
        assert not any(left)
        assert not engine.has_work
        assert sorted(scheduler.manager.free_blocks) == list(range(scheduler.manager.num_blocks))
        assert all(len(story.reasons) == 1 for story in self.stories.values())
        assert scheduler.preemptions == sum(story.preempted for story in self.stories.values())
        for story in self.stories.values():
            assert story.admitted - story.preempted in (0, 1)  # 0: aborted while it waited
            assert bool(story.admitted) == bool(story.computed)


# ---------------------------------------------------------------------- requests that come and go


@dataclass(frozen=True)
class Visit:
    """A request; the step before which it comes, and the step before which it is aborted."""

    prompt: list[int]
    limit: int
    eos: int | None
    comes: int
    leaves: int | None
    salt: bytes = b""


class OwnCache(PagedCache):
    """A cache that isn't lab 4's own class, so the engine computes with its `attend`."""


@dataclass(frozen=True)
class Load:
    """An engine's model, its limits, its drafter, and the requests to serve.

    make: creates the engine; `parts` are only for lab 7's `new_engine`.
    """

    config: GPTConfig
    seed: int
    visits: list[Visit]
    room: dict[str, int]
    kind: Kind | None
    k: int
    parts: Parts
    watch: Any = WatchedEngine
    make: Any = new_engine

    @property
    def model(self) -> Any:
        return model_of(CachedLMHead, self.config, self.seed)

    def engine(self) -> WatchedEngine:
        drafter = drafters(self.kind, self.config, self.seed)
        how = {"parts": self.parts} if self.make is new_engine else {}
        return self.watch(
            self.model, **self.room, new_drafter=drafter, k=self.k, make=self.make, **how
        )

    def naive(self, visit: Visit) -> list[int]:
        return naive(self.config, self.seed, visit.prompt, visit.limit, visit.eos)

    def alone(self, number: int, params: SamplingParams = GREEDY) -> list[int]:
        """Return the text of one request alone, with its number as the seed.

        Greedy text comes from lab 1's loop, sampled text from lab 5's stream; with drafts, lab 6's
        loop continues after the first new token.
        """
        visit, generator = self.visits[number], torch.Generator().manual_seed(number)
        if params == GREEDY:
            return self.naive(visit)
        limit = visit.limit if self.kind is None else 1
        new = stream(self.model, visit.prompt, limit, params, generator, visit.eos)
        ids = [*visit.prompt, *new]
        if self.kind is None or len(ids) == self.end(visit) or ids[-1] == visit.eos:
            return ids
        drafter, left = self.kind(self.config, self.seed), visit.limit - 1
        given = drafter, ids, left, self.k, params, generator, visit.eos
        return generate_speculative(self.model, *given).ids

    def end(self, visit: Visit) -> int:
        return min(len(visit.prompt) + visit.limit, self.config.n_positions)


@st.composite
def loads(draw: st.DrawFn, kinds: Any = None, text_of: Callable[..., list[int]] = naive) -> Load:
    """Draw up to 6 requests, and an engine with just enough room for the longest one, or more.

    Most requests come at once and grow, so the pool is often too small for the running ones. Many
    begin like the prompt and the answer of another request. text_of: returns both, of a model of
    another family.
    """
    config, seed = draw(configs), draw(seeds)
    ids, full = st.integers(0, config.vocab_size - 1), config.n_positions
    texts, visits, step = [draw(st.lists(ids, min_size=6, max_size=6))], list[Visit](), 0
    for _ in range(draw(st.sampled_from([5, 6, 4, 2, 1]))):
        length = draw(st.sampled_from([3, 4, 2, 5, 1, 3, 8, 9, full - 4, full - 1, full]))
        begins = draw(st.sampled_from(texts))[: draw(st.sampled_from([0, length, 3, 6, 8]))]
        begins, missing = begins[:length], max(0, length - len(begins))
        prompt = begins + draw(st.lists(ids, min_size=missing, max_size=missing))
        limit = draw(st.sampled_from([8, 7, 6, full, 4, 2, 1]))
        texts.append(text_of(config, seed, prompt, limit))
        step += draw(st.sampled_from([0, 0, 0, 0, 1, 3, 8]))
        stay = draw(st.sampled_from([None] * 8 + [0, 1, 2, 4, 8, 12]))
        leaves = None if stay is None else step + stay
        ends = draw(st.sampled_from([None, None, *texts[-1]]))
        salt = draw(st.sampled_from([b"", b"", b"", b"tenant"]))
        visits.append(Visit(prompt, limit, ends, step, leaves, salt))
    kind = draw(st.sampled_from([None, *KINDS]) if kinds is None else kinds)
    k = draw(st.integers(1, 5)) if kind else 0
    block_size = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 17]))
    longest = max(min(len(v.prompt) + v.limit, config.n_positions) for v in visits) - 1
    room = {
        "num_blocks": max(1, -(-longest // block_size))
        + draw(st.sampled_from([0, 0, 0, 1, 3, 9, 99])),
        "block_size": block_size,
        "token_budget": k + draw(st.sampled_from([24, 16, 9, 5, 3, 2, 1])),
        "max_running": draw(st.sampled_from([6, 6, 3, 2, 1])),
    }
    parts = Parts(paged_cache=draw(st.sampled_from([PagedCache, OwnCache])))
    return Load(config, seed, visits, room, kind, k, parts)


def serve(load: Load, params: SamplingParams = GREEDY) -> Any:
    """Serve a load to its end; request i has seed i. Aborts come twice, and for unknown numbers.

    Asserts that the engine responds correctly to an abort; the caller verifies the texts.
    """
    watched = load.engine()
    engine, step = watched.engine, 0
    last = max(max(visit.comes, visit.leaves or 0) for visit in load.visits)
    while step <= last or engine.has_work:
        for number, visit in enumerate(load.visits):
            if visit.comes == step:
                given = visit.limit, params, number, visit.eos
                watched.submit(visit.prompt, *given, salt=visit.salt)
        leaving = [number for number, visit in enumerate(load.visits) if visit.leaves == step]
        lengths = {number: len(watched.stories[number].ids) for number in leaving}
        ended = {number for number in leaving if watched.stories[number].reasons}
        for number in [*leaving, *leaving, -1, 10**6]:
            engine.abort(number)
        watched.step()
        for number in leaving:
            visit, story = load.visits[number], watched.stories[number]
            if len(visit.prompt) == load.config.n_positions:
                assert story.reasons == ["length"]
            elif number not in ended:
                assert story.reasons == ["abort"]
                assert len(story.ids) == lengths[number]
        step += 1
    watched.assert_is_empty()
    target(float(engine.scheduler.preemptions))  # hypothesis looks for loads with more of them
    return watched


def assert_texts(watched: WatchedEngine, load: Load, texts: list[list[int]]) -> None:
    """Assert that each request got its text or the start of it, and the right finish reason."""
    for visit, story, text in zip(load.visits, watched.stories.values(), texts, strict=True):
        [reason] = story.reasons
        if reason == "abort":
            assert story.ids == text[: len(story.ids)]
            assert len(story.ids) < load.end(visit)
            assert visit.leaves is not None
        else:
            assert story.ids == text
            has_stopped = text[-1] == visit.eos and len(text) > len(visit.prompt)
            assert reason == ("stop" if has_stopped else "length")


def serve_each(load: Load, params: SamplingParams = GREEDY) -> Any:
    """Serve a load, and assert that each request gets the text that it gets alone."""
    watched = serve(load, params)
    assert_texts(watched, load, [load.alone(n, params) for n in range(len(load.visits))])
    return watched


# ------------------------------------------------------------------------------------ properties


def hold_often(share: float, holds: Callable[..., Any], *strategies: Any) -> None:
    """Assert that a property holds in all cases, and that interesting events happened often enough.

    `holds` returns which events happened in a case, by name. Each must have happened in this share
    of all cases, because otherwise the property tests less than it seems to. The shares are only
    verified with 100 cases or more; `make test` runs fewer.
    """
    happened: Counter[str] = Counter()

    @given(st.tuples(*strategies))
    def each_case(drawn: Any) -> None:
        happened.update({"cases": True, **holds(*drawn)})

    each_case()
    often = all(times > share * happened["cases"] for times in happened.values())
    assert often or happened["cases"] < 100, happened
