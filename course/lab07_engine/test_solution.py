"""The engine: whoever else is in the batch, each request gets the text that it would get alone.

`WatchedEngine` looks at every step: the budget, the books, the order, the trace, the work.
"""

import gc
import random
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from threading import Event
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.text.reference import fresh_copy
from gpt import load_tokenizer
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine import engine as lab_7
from solutions.engine.engine import Output, Parts, new_engine
from solutions.engine.limits import Limits
from solutions.engine.managers import FreeBlocks
from solutions.engine.runner import Chunk, in_rectangles
from solutions.engine.sequence import Sequence, stop_at_text
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager, OutOfBlocks
from solutions.speculative import ModelDrafter, NgramDrafter
from tests.common.engines import BAD_REQUESTS, CONFIGS, model_of, naive
from tests.common.serving import (
    KINDS,
    Contrary,
    Load,
    WatchedEngine,
    a_perfect_draft,
    a_useless_draft,
    assert_books_are_kept,
    drafters,
    hold_often,
    loads,
    serve_each,
    the_text_itself,
)

pytestmark = pytest.mark.usefixtures("short_stretches")

CONFIG = CONFIGS[1]  # a context of 16
PROMPTS = [[3, 14, 15], [9], [2, 6, 5, 35], [8, 9], [7, 9, 3], [23, 8, 4, 6, 2], [6, 43], [38, 32]]
AMPLE: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "token_budget": 64, "max_running": 8}


def watched_engine(kind: Any = None, k: int = 0, **changed: Any) -> WatchedEngine:
    model, drafter = model_of(CachedLMHead, CONFIG, 0), drafters(kind, CONFIG, 0)
    return WatchedEngine(model, **{**AMPLE, "new_drafter": drafter, "k": k, **changed})


def expected(prompt: list[int], limit: int, eos: int | None = None) -> list[int]:
    return naive(CONFIG, 0, prompt, limit, eos)


# ------------------------------------------------------------------------------- the contract


def test_any_load_gets_the_tokens_of_the_naive_loop() -> None:
    def is_served(load: Load) -> dict[str, bool]:
        watched = serve_each(load)
        stories, forwards = watched.stories.values(), watched.batches
        for story, visit in zip(stories, load.visits, strict=True):
            if load.kind is None and not story.preempted and story.reasons != ["abort"]:
                full = len(visit.prompt) == load.config.n_positions
                assert story.computed == (0 if full else len(story.ids) - 1)  # nothing twice
        return {
            "preempted": any(story.preempted for story in stories),
            "aborted": any("abort" in story.reasons for story in stories),
            "in chunks": any(c.wanted == 0 for batch in forwards for c in batch),
            "verified": any(c.wanted > 1 for batch in forwards for c in batch),
            "together": any(len(batch) > 2 for batch in forwards),
        }

    hold_often(0.1, is_served, loads())


SAMPLED = [
    SamplingParams(temperature=3.0),
    SamplingParams(temperature=4.0, top_k=5),
    SamplingParams(temperature=4.0, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=2.0, top_k=8, top_p=0.8, repetition_penalty=1.5),
    SamplingParams(temperature=0, repetition_penalty=1.7),
]


chunks = st.builds(
    Chunk, st.just(0), st.lists(st.just(0), min_size=1, max_size=3), st.integers(0, 20), st.just(1)
)


@given(st.lists(chunks, min_size=1), st.integers(1, 40))
def test_rectangles_have_one_number_of_new_tokens_and_fit_their_room(batch, most):
    batch = sorted(batch, key=lambda chunk: chunk.shape)
    parts = list(in_rectangles(batch, most))
    assert [chunk for part in parts for chunk in part] == batch
    for part in parts:
        assert len({len(chunk.ids) for chunk in part}) == 1
        assert len(part) == 1 or len(part) * max(chunk.shape for chunk in part)[1] <= most
    for one, after in pairwise(parts):  # none is cut that could have been longer
        sizes, lengths = zip(*(chunk.shape for chunk in (*one, after[0])), strict=True)
        assert len({*sizes}) == 2 or (len(one) + 1) * lengths[-1] > most


def test_a_seed_gives_the_same_text_in_any_batch() -> None:
    """That of lab 5's stream; with drafts that of lab 6's loop after the first token."""

    def is_served(load: Load, params: SamplingParams) -> dict[str, bool]:
        watched, visits = serve_each(load, params), enumerate(load.visits)
        return {
            "preempted": any(story.preempted for story in watched.stories.values()),
            "varied": any(load.alone(n, params) != load.naive(visit) for n, visit in visits),
        }

    hold_often(0.1, is_served, loads(), st.sampled_from(SAMPLED))


# ------------------------------------------------------------------------------- plans by hand


ALONE = [(0, 1, True)]
PLANS: dict[str, Any] = {
    "a long prompt is computed in chunks, while the others go on": (
        {"token_budget": 8, "max_running": 3},
        [(0, [1, 2, 3, 4, 5], 2), (0, [6, 7, 8, 9, 10, 11], 2), (0, [12, 13, 14], 2), (0, [15], 2)],
        [
            [(0, 5, True), (1, 3, False)],
            [(0, 1, True), (1, 3, True), (2, 3, True)],
            [(1, 1, True), (2, 1, True), (3, 1, True)],
            [(3, 1, True)],
        ],
    ),
    # Both get to 5 tokens; then the first needs a third block for its fifth, and the second waits
    # until that one has ended.
    "who was preempted is computed anew": (
        {"num_blocks": 4, "block_size": 2},
        [(0, [3, 14, 15], 5), (0, [9, 2, 6], 5)],
        [
            [(0, 3, True), (1, 3, True)],
            [(0, 1, True), (1, 1, True)],
            *[ALONE] * 3,
            [(1, 5, True)],
            [(1, 1, True)],
            [(1, 1, True)],
        ],
    ),
    # A budget of 4 is enough for one with its three drafts. A token each; then four more each, and
    # the last two tokens need one draft.
    "drafts wait for a step that has room for all of them": (
        {"kind": a_perfect_draft, "k": 3, "token_budget": 4},
        [(0, [3, 14, 15], 7), (0, [9], 6)],
        [
            [(0, 3, True), (1, 1, True)],
            [(0, 4, True)],
            [(0, 2, True)],
            [(1, 4, True)],
            [(1, 1, True)],
        ],
    ),
    # Of 6 tokens 2 are left: too few for the second's drafts, enough for a prompt.
    "who waits is let in beside drafts that wait": (
        {"kind": a_perfect_draft, "k": 3, "token_budget": 6},
        [(0, [3, 14, 15], 9), (0, [9], 6), (1, [8, 9], 1)],
        [
            [(0, 3, True), (1, 1, True)],
            [(0, 4, True), (2, 2, True)],
            [(0, 4, True)],
            [(1, 4, True)],
            [(1, 1, True)],
        ],
    ),
}


@pytest.mark.parametrize(("room", "requests", "trace"), PLANS.values(), ids=PLANS)
def test_a_plan_by_hand(room: Any, requests: Any, trace: Any) -> None:
    watched = watched_engine(**room)
    for step in range(2):
        for comes, prompt, limit in requests:
            if comes == step:
                watched.submit(prompt, limit)
        watched.step()
    watched.run()
    assert list(watched.engine.trace) == trace
    for story, (_, prompt, limit) in zip(watched.stories.values(), requests, strict=True):
        assert story.ids == expected(prompt, limit)


class DraftsOnce(Contrary):
    """After its first new token a request is guessed at, in vain, and never again."""

    def propose(self, ids: Any, k: int, params: Any, generator: torch.Generator) -> Any:
        return super().propose(ids, k if len(ids) == 2 else 0, params, generator)


def test_nobody_is_let_in_in_a_step_that_has_preempted() -> None:
    """Though the blocks that a request got for its drafts would do for all its tokens."""
    target = model_of(CachedLMHead, CONFIG, 0)
    room = {"num_blocks": 10, "block_size": 1, "new_drafter": lambda: DraftsOnce(target)}
    watched = watched_engine(k=3, **room)
    watched.submit([9], 10)
    for _ in range(3):
        watched.step()
    watched.submit([8], 6)
    watched.run()
    assert list(watched.engine.trace)[5:7] == [ALONE, [(0, 1, True), (1, 3, True)]]


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_round_gains_all_of_a_perfect_draft_and_one_token_beside_a_useless_one(k: int) -> None:
    limit = 13
    for kind, gains in ((a_perfect_draft, k + 1), (a_useless_draft, 1)):
        watched = watched_engine(kind, k)
        watched.submit([3, 14, 15], limit)
        watched.run()
        sizes = [len(output.new_ids) for output in watched.outputs]
        assert sum(sizes) == limit
        assert sizes[:-1] == [1, *[gains] * (len(sizes) - 2)]


# -------------------------------------------------------------------------- where a text ends


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("new", range(1, 14))
def test_a_stop_condition_ends_a_text_also_inside_accepted_drafts(kind: Any, new: int) -> None:
    """It is asked once about every new token that is kept, with all new ones so far."""
    text, asked = expected([3, 14, 15], 13), []

    def stop(new_ids: list[int]) -> bool:
        asked.append(list(new_ids))
        return len(new_ids) == new

    watched = watched_engine(kind, 4 if kind else 0)
    watched.submit(text[:3], 13, stop=stop)
    watched.run()
    assert watched.stories[0].ids == text[: 3 + new]
    assert watched.stories[0].reasons == ["stop"]  # also where it would have been "length"
    assert asked == [text[3 : 3 + n] for n in range(1, new + 1)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("fable")


pieces = st.sampled_from([*"ab. \n'é😀", "tale", " fox", "é!"])
texts = st.lists(pieces, max_size=12).map("".join)
stop_texts = st.lists(pieces, min_size=1, max_size=4).map("".join)


@given(text=texts, stops=st.lists(stop_texts, min_size=1, max_size=3))
def test_a_stop_text_is_seen_with_its_newest_token(tokenizer, text, stops):
    """Wherever the borders of tokens and of characters are."""
    has_stop, ids = stop_at_text(tokenizer, stops), tokenizer.encode(text)
    for n in range(1, len(ids) + 1):
        shown = tokenizer.decode(ids[:n])
        expected = any(stop in shown for stop in stops)
        assert has_stop(ids[:n]) == expected
        if expected:
            break


# --------------------------------------------------------------------------------------- aborts


def test_an_abort_out_of_another_thread_is_never_lost() -> None:
    """One request comes and is aborted at once, while the engine is just taking in other aborts."""
    watched = watched_engine()
    manager: Any = watched.engine.scheduler.manager
    free = manager.free

    def free_meanwhile(request: int) -> None:
        manager.free = free
        free(request)
        watched.engine.abort(watched.submit([9], 9))  # what another thread may do now

    watched.submit([8, 9], 9)
    watched.step()
    manager.free = free_meanwhile
    watched.engine.abort(0)
    watched.run()
    assert watched.stories[1].reasons == ["abort"]


# ------------------------------------------------------------------------- callbacks and threads


class OopsError(Exception):
    pass


@pytest.mark.parametrize("every", [1, 2, 3])
@pytest.mark.parametrize("k", [0, 2])
def test_a_callback_that_raises_loses_nothing(k: int, every: int) -> None:
    """It has been handed what it raised at; all else comes, in order, once."""
    outputs: dict[int, list[Output]] = {number: [] for number in range(len(PROMPTS))}
    calls: Counter[str] = Counter()

    def raise_at_times(output: Output) -> None:
        assert_books_are_kept(engine)
        outputs[output.request].append(output)
        calls["all"] += 1
        if calls["all"] % every == 0:
            calls["raised"] += 1
            raise OopsError

    model, drafter = model_of(CachedLMHead, CONFIG, 0), drafters(a_perfect_draft, CONFIG, 0)
    engine = new_engine(model, Limits(8, 4, 16, 4), raise_at_times, drafter if k else None, k)
    for prompt in PROMPTS:
        engine.submit(prompt, 6)
    while engine.has_work:
        with suppress(OopsError):
            engine.run()
    for number, prompt in enumerate(PROMPTS):
        new = [token for output in outputs[number] for token in output.new_ids]
        assert prompt + new == expected(prompt, 6)
        *others, last = [output.finish_reason for output in outputs[number]]
        assert last == "length"
        assert not any(others)
    assert calls["raised"] == calls["all"] // every > 0
    assert not engine.sequences


def test_a_callback_may_submit_and_abort() -> None:
    """Each request that has two tokens brings the next one and is aborted, though every third has
    ended with them."""
    received: dict[int, list[int]] = {}
    reasons: list[str] = []

    def on_output(output: Output) -> None:
        assert_books_are_kept(engine)
        received.setdefault(output.request, []).extend(output.new_ids)
        if output.finish_reason is not None:
            reasons.append(output.finish_reason)
        if output.new_ids and len(received[output.request]) == 2:
            engine.abort(output.request)
            submit(output.request + 1)

    def submit(number: int) -> None:
        if number < len(PROMPTS):
            assert engine.submit(PROMPTS[number], 5 if number % 3 else 2) == number

    engine = new_engine(model_of(CachedLMHead, CONFIG, 0), Limits(8, 4, 16, 2), on_output)
    submit(0)
    engine.run()
    assert {n: PROMPTS[n] + new for n, new in received.items()} == {
        n: expected(prompt, 2) for n, prompt in enumerate(PROMPTS)
    }
    assert reasons == ["abort" if n % 3 else "length" for n in range(len(PROMPTS))]


def test_outputs_leave_the_thread_that_steps_while_others_submit_and_abort() -> None:
    """Four threads bring 25 requests each, and abort every third; a fifth one steps.

    Once `abort` has returned, the step that runs may still give tokens, and none after it.
    """
    outputs: dict[int, list[tuple[int, Output]]] = defaultdict(list)

    def on_output(output: Output) -> None:
        outputs[output.request].append((len(engine.trace), output))

    engine = new_engine(model_of(CachedLMHead, CONFIG, 0), Limits(12, 2, 9, 5), on_output)
    have_come = Event()
    prompts: dict[int, list[int]] = {}
    aborted: dict[int, int] = {}

    def come(client: int) -> None:
        rng = random.Random(client)
        for turn in range(25):
            prompt = rng.choice(PROMPTS)
            number = engine.submit(prompt, 8)
            prompts[number] = prompt
            if turn % 3 == 0:
                engine.abort(number)
                aborted[number] = len(engine.trace)

    def serve_all() -> None:
        while not have_come.is_set() or engine.has_work:
            engine.step()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that the threads really get in each other's way
    try:
        with ThreadPoolExecutor(5) as pool:
            serving = pool.submit(serve_all)
            try:
                list(pool.map(come, range(4)))
            finally:
                have_come.set()
            serving.result()
    finally:
        sys.setswitchinterval(interval)

    assert sorted(prompts) == list(range(100))
    for number, prompt in prompts.items():
        ids = prompt + [token for _, output in outputs[number] for token in output.new_ids]
        *others, (step, last) = outputs[number]
        assert not any(output.finish_reason for _, output in others)
        assert last.finish_reason == "length" or number in aborted
        assert ids == expected(prompt, 8)[: len(ids)]
        assert len(ids) == len(prompt) + 8 or last.finish_reason == "abort"
        # a step counts itself before its outputs leave; one may have been on its way
        assert number not in aborted or step <= aborted[number] + 2
    assert engine.scheduler.manager.free_blocks.keys() == set(range(12))
    assert not engine.sequences


def test_steps_without_work_do_nothing() -> None:
    watched = watched_engine()
    watched.step()
    watched.engine.abort(3)
    assert watched.engine.has_work
    watched.step()
    assert list(watched.engine.trace) == [[], []]
    assert not watched.engine.has_work
    assert watched.submit([9], 2) == 0
    watched.run()
    assert watched.stories[0].ids == expected([9], 2)


@pytest.mark.parametrize("kind", [None, the_text_itself])
def test_a_forward_that_raises_is_made_again_by_the_next_step(kind: Any) -> None:
    """Nothing of the step has been told by then; who was let in stays, and is computed now."""
    room = {"num_blocks": 8, "block_size": 2, "token_budget": 7}
    watched = watched_engine(kind, 2 if kind else 0, **room)
    forward, rng = watched.engine.runner.forward, random.Random(0)

    def fail_at_times(batch: Any) -> Any:
        if rng.random() < 0.4:
            raise OopsError
        return forward(batch)

    watched.engine.runner.forward = fail_at_times  # type: ignore[method-assign]
    for prompt in PROMPTS:
        watched.submit(prompt, 6)
    raised = 0
    while watched.engine.has_work:
        try:
            watched.engine.step()
        except OopsError:
            raised += 1
        assert_books_are_kept(watched.engine)
    assert raised > 3
    watched.assert_is_empty()
    assert [s.ids for s in watched.stories.values()] == [expected(p, 6) for p in PROMPTS]


def raising_stop(new_ids: list[int]) -> bool:
    if len(new_ids) == 2:
        raise OopsError
    return False


class RaisingDrafter(Contrary):
    """Guesses once."""

    def propose(self, ids: Any, k: int, *given: Any) -> Any:
        if len(ids) > 3:
            raise OopsError
        return super().propose(ids, k, *given)


def raising_probs(logits: Any, texts: Any, params: Any) -> Any:
    if len(texts[0]) > 3:
        raise OopsError
    return lab_7.next_token_probs(logits, texts, params)


@pytest.mark.parametrize("what", ["stop", "drafter", "probs"])
def test_what_is_raised_for_a_request_ends_it_alone(what: str) -> None:
    """Out of its own stop condition, its drafter, or what its parameters ask for."""
    target, outputs = model_of(CachedLMHead, CONFIG, 0), list[Output]()
    new_drafter: Any = (lambda: RaisingDrafter(target)) if what == "drafter" else None
    parts = Parts(next_token_probs=raising_probs) if what == "probs" else Parts()
    engine = new_engine(
        *(target, Limits(64, 4, 64, 8), outputs.append),
        *(new_drafter, 2 if new_drafter else 0, parts),
    )
    own = SamplingParams() if what == "probs" else GREEDY
    failing = engine.submit([9, 8], 6, own, stop=raising_stop if what == "stop" else None)
    others = [engine.submit(prompt, 1 if new_drafter else 6) for prompt in ([8, 9], [3, 14, 15])]
    raised = 0
    while engine.has_work:
        try:
            engine.run()
        except OopsError:
            raised += 1
            assert_books_are_kept(engine)
    assert raised == 1
    reasons = {o.request: o.finish_reason for o in outputs if o.finish_reason}
    assert reasons == {failing: "error", **dict.fromkeys(others, "length")}
    for number, prompt in zip(others, ([8, 9], [3, 14, 15]), strict=True):
        new = [token for o in outputs if o.request == number for token in o.new_ids]
        assert prompt + new == expected(prompt, 1 if new_drafter else 6)
    assert sorted(engine.scheduler.manager.free_blocks) == list(range(64))


# -------------------------------------------------------------------- hooks, and the block manager

operations = st.one_of(
    st.sampled_from(["popleft"]),
    st.tuples(st.sampled_from(["append", "remove"]), st.integers(0, 9)),
    st.tuples(st.just("extend"), st.lists(st.integers(0, 9), unique=True, max_size=4)),
)


@given(st.integers(0, 6), st.lists(operations, max_size=40))
def test_free_blocks_are_a_deque(count: int, operations: list[Any]) -> None:
    """As far as a block is free once."""
    blocks, model = FreeBlocks(range(count)), deque(range(count))
    for operation in operations:
        if operation == "popleft":
            assert not model or blocks.popleft() == model.popleft()
        else:
            name, given = operation
            are_free = [block in model for block in (given if name == "extend" else [given])]
            if all(are_free) if name == "remove" else not any(are_free):
                for own in (blocks, model):
                    getattr(own, name)(given)
        assert list(blocks) == list(model)
        assert len(blocks) == len(model)
        assert bool(blocks) == bool(model)


def test_a_block_leaves_the_middle_without_a_look_at_the_others() -> None:
    looked_at: list[int] = []

    class Noted(int):
        def __eq__(self, other: object) -> bool:
            looked_at.append(self)
            return int(self) == other

        __hash__ = int.__hash__

    numbers = [Noted(number) for number in range(1000)]
    blocks = FreeBlocks(numbers)
    looked_at.clear()
    for number in range(300, 700):
        blocks.remove(numbers[number])
    assert len(looked_at) <= 2 * 400


# ------------------------------------------------------------------------------ parts of your own


def parts_of(names_of_lab: Callable[[str], dict[str, Any]]) -> Parts:
    names: dict[str, Any] = {}
    for lab in ("paged_attention", "decoding", "speculative"):
        names |= names_of_lab(lab)
    own = "BlockManager", "PagedCache", "next_token_probs", "verify", "verify_greedy"
    return Parts(*(names[name] for name in own))


def parts_in_another_style() -> Parts:
    """Labs 4 to 6 as somebody else would write them."""
    from tests.common.styles import names_in_another_style  # reads all exercises

    return parts_of(names_in_another_style)


def parts_of_notebooks() -> Parts:
    """Labs 4 to 6 as `mine` gives them: with classes of their own, exceptions among them."""
    return parts_of(lambda lab: vars(fresh_copy(lab)))


class ListsManager(BlockManager):
    """Counts anew whatever it needs to know, keeps lists, and puts a deque where one was."""

    def allocate(self, request_id: int, num_tokens: int) -> None:
        needed = -(-num_tokens // self.block_size)
        table: list[int] = []
        try:
            while len(table) < needed:
                table.append(self.take_block())
        except OutOfBlocks:
            for block in table:
                self.ref_counts[block] = 0
                self.free_blocks.append(block)
            raise
        self.tables[request_id], self.lengths[request_id] = table, num_tokens

    def free(self, request_id: int) -> None:
        table = self.tables.pop(request_id)
        self.lengths.pop(request_id)
        held = [block for other in self.tables.values() for block in other]
        self.ref_counts = [held.count(block) for block in range(self.num_blocks)]
        self.free_blocks = deque([*self.free_blocks, *(b for b in table if b not in held)])


class AddingManager(BlockManager):
    """Adds to the free blocks in place, as a deque allows."""

    def free(self, request_id: int) -> None:
        table = self.tables.pop(request_id)
        del self.lengths[request_id]
        for block in table:
            self.ref_counts[block] -= 1
        self.free_blocks += [block for block in table if not self.ref_counts[block]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(parts_of_notebooks, id="notebooks"),
        pytest.param(parts_in_another_style, id="another-style"),
        pytest.param(lambda: Parts(block_manager=ListsManager), id="lists"),
        pytest.param(lambda: Parts(block_manager=AddingManager), id="adding"),
    ],
)
def test_an_engine_runs_with_parts_of_your_own(parts: Callable[[], Parts]) -> None:
    own = parts()

    @settings(max_examples=25)
    @given(loads(), st.sampled_from([GREEDY, SAMPLED[1]]))
    def each_load(load: Load, params: SamplingParams) -> None:
        watched = serve_each(replace(load, parts=own), params)
        assert isinstance(watched.engine.scheduler.manager, own.block_manager)

    each_load()


def test_each_part_is_asked() -> None:
    asked: Counter[str] = Counter()

    def noted(name: str) -> Any:
        def call(*given: Any) -> Any:
            asked[name] += 1
            return getattr(lab_7, name)(*given)

        return call

    names = "next_token_probs", "verify", "verify_greedy"
    watched = watched_engine(parts=Parts(**{name: noted(name) for name in names}))
    watched.submit([9], 3)
    watched.submit([8, 9], 3, SamplingParams())
    watched.run()
    assert asked == {"next_token_probs": 3, "verify": 3, "verify_greedy": 3}


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", torch.float32),
        ("cpu", torch.bfloat16),
        pytest.param("cuda", torch.float64, marks=pytest.mark.needs("cuda")),
    ],
    ids=str,
)
def test_the_cache_is_where_the_weights_are(device: str, dtype: torch.dtype, k: int) -> None:
    """And of their dtype. In few bits the texts are others; each is still as long as it should."""
    model = deepcopy(model_of(CachedLMHead, CONFIG, 0)).to(device, dtype)
    drafts: Any = (lambda: ModelDrafter(model, CONFIG.n_positions)) if k else None
    room: Any = {"num_blocks": 8, "block_size": 2, "token_budget": 7}
    watched = WatchedEngine(model, **room, new_drafter=drafts, k=k)
    drawn = SamplingParams(temperature=4.0, top_k=9)
    for number, prompt in enumerate(PROMPTS):
        watched.submit(prompt, 6, GREEDY if number % 2 else drawn, number)
    watched.run()
    for number, prompt in enumerate(PROMPTS):
        ids = watched.stories[number].ids
        assert len(ids) == len(prompt) + 6
        assert dtype != torch.float64 or number % 2 == 0 or ids == expected(prompt, 6)
    pool = watched.engine.runner.kv_cache.cache.pool
    assert (pool.device.type, pool.dtype) == (device, dtype)


# ------------------------------------------------------------------------- what is refused, and how


@pytest.mark.parametrize(("prompt", "limit", "sentence"), BAD_REQUESTS)
def test_a_request_that_cannot_be_is_refused(prompt: list[int], limit: int, sentence: str) -> None:
    """It takes no number and leaves nothing behind."""
    config = CONFIGS[0]
    watched = WatchedEngine(model_of(CachedLMHead, config, 0), **AMPLE)
    with pytest.raises(ValueError, match=sentence):
        watched.engine.submit(prompt, limit)
    assert not watched.engine.has_work
    assert watched.submit([3], 2) == 0
    watched.run()
    assert watched.stories[0].ids == naive(config, 0, [3], 2)


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "prompt", "limit", "end", "needed"),
    [(2, 4, 5, 5, 10, 3), (2, 4, 10, 1, 11, 3), (3, 4, 3, 99, 16, 4), (14, 1, 9, 7, 16, 15)],
)
def test_a_text_that_would_not_fit_into_the_pool_is_refused(
    num_blocks: int, block_size: int, prompt: int, limit: int, end: int, needed: int
) -> None:
    """With one block more it is served."""
    watched = watched_engine(num_blocks=num_blocks, block_size=block_size)
    sentence = rf"grow to {end} tokens, which takes {needed} blocks; the pool has {num_blocks}\."
    with pytest.raises(ValueError, match=sentence):
        watched.engine.submit(list(range(prompt)), limit)
    assert not watched.engine.has_work
    watched = watched_engine(num_blocks=num_blocks + 1, block_size=block_size)
    watched.submit(list(range(prompt)), limit)
    watched.run()
    assert watched.stories[0].ids == expected(list(range(prompt)), limit)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"token_budget": 0}, "least one token of one request; token_budget is 0 and max"),
        ({"max_running": 0}, "token_budget is 64 and max_running 0"),
        ({"token_budget": 4, "k": 4}, "its 4 drafts .* must be 5 or more, not 4"),
        ({"num_blocks": 0}, "at least one block"),
        ({"block_size": 0}, "room for one token"),
    ],
)
def test_an_engine_that_cannot_be_is_refused(changed: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        watched_engine(the_text_itself, **{"k": 0, **changed})


@pytest.mark.parametrize("stops", [[""], ["a", ""], "stop", ""])
def test_a_stop_text_that_is_everywhere_is_refused(tokenizer: Any, stops: Any) -> None:
    with pytest.raises(ValueError, match="list of texts that aren't empty, not"):
        stop_at_text(tokenizer, stops)


# ------------------------------------------------------------------------------ nothing is leaked


def living() -> list[int]:
    """How many requests, generators and drafters there are in this process."""
    gc.collect()
    kinds = Counter(type(thing) for thing in gc.get_objects())
    return [kinds[cls] for cls in (Sequence, torch.Generator, ModelDrafter, NgramDrafter)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [201, pytest.param(10_002, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", [None, the_text_itself, a_perfect_draft])
def test_random_requests_leak_nothing(monkeypatch, count, kind):
    """Neither blocks nor requests, generators, drafters or steps; the process stays as large."""
    monkeypatch.setattr(lab_7, "STEPS", 50)  # that a trace remembers
    rng, ended = random.Random(0), Counter[str | None]()
    model, drafter = model_of(CachedLMHead, CONFIG, 0), drafters(kind, CONFIG, 0)
    engine = new_engine(
        *(model, Limits(9, 2, 12, 6), lambda output: ended.update([output.finish_reason])),
        *(drafter, 3 if kind else 0),
    )
    sampled = [GREEDY, SamplingParams(temperature=3.0), SamplingParams(top_k=4)]
    process, sizes = psutil.Process(), []
    before = living()
    for _ in range(3):
        for number in range(count // 3):
            prompt = [rng.randrange(48) for _ in range(rng.choice([1, 2, 5, 9, 16]))]
            limit = rng.randint(1, 19 - len(prompt)) if len(prompt) < 16 else 1
            last = engine.submit(prompt, limit, rng.choice(sampled), number, rng.randrange(48))
            if rng.random() < 0.2:
                engine.abort(rng.randint(max(0, last - 9), last))
            while len(engine.inbox) + len(engine.sequences) > 8:
                engine.step()
        engine.run()
        assert living() == before
        assert sorted(engine.scheduler.manager.free_blocks) == list(range(9))
        assert not engine.sequences
        assert len(engine.trace) <= 50
        sizes.append(process.memory_info().rss)
    assert ended.total() - ended[None] == count
    assert min(ended.values()) > count / 30
    assert engine.scheduler.preemptions > count / 30
    if count > 1000:
        assert sizes[-1] - sizes[0] < 2**24  # 16 MiB; a KV cache for each would be ten times that
