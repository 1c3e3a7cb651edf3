"""The engine: whoever else is in the batch, each request gets the text that it would get alone.

`WatchedEngine` looks at every step: the budget, the books, the order, the trace, the work.
"""

import gc
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from threading import Event
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.course.reference import fresh_copy
from gpt import load_tokenizer
from solutions.decoding import GREEDY, SamplingParams, stream
from solutions.engine import engine as lab_7
from solutions.engine import runner
from solutions.engine.engine import Output, Parts, new_engine
from solutions.engine.managers import EngineManager, FreeBlocks
from solutions.engine.sequence import Sequence, stop_at_text
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager, OutOfBlocks
from solutions.speculative import ModelDrafter, NgramDrafter, generate_speculative
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
    loads,
    serve,
    the_text_itself,
)

CONFIG = CONFIGS[1]  # a context of 16
PROMPTS = [[3, 14, 15], [9], [2, 6, 5, 35], [8, 9], [7, 9, 3], [23, 8, 4, 6, 2], [6, 43], [38, 32]]
AMPLE: dict[str, Any] = {"num_blocks": 64, "block_size": 4, "token_budget": 64, "max_running": 8}


@pytest.fixture(autouse=True, scope="module")
def _short_stretches() -> Iterator[None]:
    """The texts here are short; they too shall be served apart where their lengths differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STRETCH", 5)
        yield


def watched_engine(kind: Any = None, k: int = 0, **changed: Any) -> WatchedEngine:
    model, drafter = model_of(CachedLMHead, CONFIG, 0), drafters(kind, CONFIG, 0)
    return WatchedEngine(model, **{**AMPLE, "new_drafter": drafter, "k": k, **changed})


def expected(prompt: list[int], limit: int, eos: int | None = None) -> list[int]:
    return naive(CONFIG, 0, prompt, limit, eos)


# ------------------------------------------------------------------------------- the contract


def assert_texts(watched: WatchedEngine, load: Load, texts: list[list[int]]) -> None:
    """Each request got its text, or the beginning of it, and the right reason for its end."""
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


def test_any_load_gets_the_tokens_of_the_naive_loop() -> None:
    happened: Counter[str] = Counter()

    @given(loads())
    def each_load(load: Load) -> None:
        watched = serve(load)
        assert_texts(watched, load, [load.naive(visit) for visit in load.visits])
        stories, forwards = watched.stories.values(), watched.batches
        happened["loads"] += 1
        happened["preempted"] += any(story.preempted for story in stories)
        happened["aborted"] += any("abort" in story.reasons for story in stories)
        happened["in chunks"] += any(c.wanted == 0 for batch in forwards for c in batch)
        happened["verified"] += any(c.wanted > 1 for batch in forwards for c in batch)
        happened["together"] += any(len(batch) > 2 for batch in forwards)
        for story, visit in zip(stories, load.visits, strict=True):
            if load.kind is None and not story.preempted and story.reasons != ["abort"]:
                full = len(visit.prompt) == load.config.n_positions
                assert story.computed == (0 if full else len(story.ids) - 1)  # nothing twice

    each_load()
    often = happened["loads"] / 10
    assert all(times > often for times in happened.values()), happened


SAMPLED = [
    SamplingParams(temperature=3.0),
    SamplingParams(temperature=4.0, top_k=5),
    SamplingParams(temperature=4.0, top_p=0.9, min_p=0.02),
    SamplingParams(temperature=2.0, top_k=8, top_p=0.8, repetition_penalty=1.5),
    SamplingParams(temperature=0, repetition_penalty=1.7),
]


def test_a_seed_gives_the_same_text_in_any_batch() -> None:
    """That of lab 5's stream; with drafts that of lab 6's loop after the first token."""
    happened: Counter[str] = Counter()

    def alone(load: Load, params: SamplingParams, number: int) -> list[int]:
        visit, generator = load.visits[number], torch.Generator().manual_seed(number)
        limit = visit.limit if load.kind is None else 1
        new = stream(load.model, visit.prompt, limit, params, generator, visit.eos)
        ids = [*visit.prompt, *new]
        if load.kind is None or len(ids) == load.end(visit) or ids[-1] == visit.eos:
            return ids
        drafter, left = load.kind(load.config, load.seed), visit.limit - 1
        given = drafter, ids, left, load.k, params, generator, visit.eos
        return generate_speculative(load.model, *given).ids

    @given(loads(), st.sampled_from(SAMPLED))
    def each_load(load: Load, params: SamplingParams) -> None:
        watched = serve(load, params)
        texts = [alone(load, params, number) for number in range(len(load.visits))]
        assert_texts(watched, load, texts)
        happened["loads"] += 1
        happened["preempted"] += any(story.preempted for story in watched.stories.values())
        happened["varied"] += texts != [load.naive(visit) for visit in load.visits]

    each_load()
    assert all(times > happened["loads"] / 10 for times in happened.values()), happened


def test_two_seeds_give_two_texts() -> None:
    watched = watched_engine()
    for seed in range(6):
        watched.submit([3, 14, 15], 9, SamplingParams(temperature=4.0), seed // 2)
    watched.run()
    texts = [tuple(story.ids) for story in watched.stories.values()]
    assert texts[0::2] == texts[1::2]
    assert len(set(texts)) == 3


# ------------------------------------------------------------------------------- plans by hand


def traced(watched: WatchedEngine, *requests: tuple[list[int], int]) -> Any:
    for prompt, limit in requests:
        watched.submit(prompt, limit)
    watched.run()
    assert [story.ids for story in watched.stories.values()] == [expected(*r) for r in requests]
    return list(watched.engine.trace)


def test_a_long_prompt_is_computed_in_chunks() -> None:
    """Under a budget of 8, while the others go on; and three may run."""
    watched = watched_engine(token_budget=8, max_running=3)
    prompts = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14], [15]
    assert traced(watched, *[(prompt, 2) for prompt in prompts]) == [
        [(0, 5, True), (1, 3, False)],
        [(0, 1, True), (1, 3, True), (2, 3, True)],
        [(1, 1, True), (2, 1, True), (3, 1, True)],
        [(3, 1, True)],
    ]


def test_who_was_preempted_is_computed_anew() -> None:
    """Four blocks of two. Both get to 5 tokens; then the first needs a third block for its fifth,
    and the second waits until that one has ended."""
    watched = watched_engine(num_blocks=4, block_size=2)
    alone = [[(0, 1, True)]] * 3
    assert traced(watched, ([3, 14, 15], 5), ([9, 2, 6], 5)) == [
        [(0, 3, True), (1, 3, True)],
        [(0, 1, True), (1, 1, True)],
        *alone,
        [(1, 5, True)],
        [(1, 1, True)],
        [(1, 1, True)],
    ]
    assert watched.engine.scheduler.preemptions == 1


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
    assert list(watched.engine.trace)[3:7] == [
        [(0, 1, True), (1, 1, True)],
        [(0, 1, True), (1, 4, True)],
        [(0, 1, True)],
        [(0, 1, True), (1, 3, True)],
    ]


def test_drafts_wait_for_a_step_that_has_room_for_all_of_them() -> None:
    """A budget of 4 is enough for one with its three drafts; beside it nobody's drafts fit."""
    watched = watched_engine(a_perfect_draft, 3, token_budget=4)
    assert traced(watched, ([3, 14, 15], 7), ([9], 6)) == [
        [(0, 3, True), (1, 1, True)],  # a token each; then three drafts each
        [(0, 4, True)],  # four more, and the last two tokens need one draft
        [(0, 2, True)],
        [(1, 4, True)],
        [(1, 1, True)],
    ]


def test_who_waits_is_let_in_beside_drafts_that_wait() -> None:
    """Of 6 tokens 2 are left: too few for the second's drafts, enough for a prompt."""
    watched = watched_engine(a_perfect_draft, 3, token_budget=6)
    watched.submit([3, 14, 15], 9)
    watched.submit([9], 6)
    watched.step()
    watched.submit([8, 9], 1)
    watched.run()
    assert list(watched.engine.trace) == [
        [(0, 3, True), (1, 1, True)],
        [(0, 4, True), (2, 2, True)],
        [(0, 4, True)],
        [(1, 4, True)],
        [(1, 1, True)],
    ]


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


def test_whoever_has_ended_drafts_no_more() -> None:
    asked: list[int] = []

    class Asked(Contrary):
        def propose(self, ids: Any, k: int, *given: Any) -> Any:
            asked.append(k)
            return super().propose(ids, k, *given)

    target = model_of(CachedLMHead, CONFIG, 0)
    watched = watched_engine(k=3, new_drafter=lambda: Asked(target))
    watched.submit([3, 14, 15], 6)
    watched.run()
    assert asked == [3, 3, 2, 1, 0]  # five tokens are followed by another


# -------------------------------------------------------------------------- where a text ends


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_an_eos_is_kept_as_the_last_token(kind: Any) -> None:
    text = expected([3, 14, 15], 13)
    for place in range(3, len(text)):
        watched = watched_engine(kind, 4 if kind else 0)
        watched.submit(text[:3], 13, eos_token_id=text[place])
        watched.run()
        cut = text.index(text[place], 3) + 1
        assert watched.stories[0].ids == text[:cut]
        assert watched.stories[0].reasons == ["stop"]


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
    watched.submit([9], 13)
    watched.run()
    assert watched.stories[0].ids == text[: 3 + new]
    assert watched.stories[0].reasons == ["stop"]  # also where it would have been "length"
    assert asked == [text[3 : 3 + n] for n in range(1, new + 1)]
    assert watched.stories[1].ids == expected([9], 13)
    assert watched.stories[1].reasons == ["length"]


def test_an_eos_in_the_prompt_ends_nothing() -> None:
    watched = watched_engine(a_perfect_draft, 3)
    [prompt] = [[first, 15] for first in range(48) if first not in expected([first, 15], 9)[2:]][:1]
    watched.submit(prompt, 9, eos_token_id=prompt[0])
    watched.run()
    assert watched.stories[0].ids == expected(prompt, 9)


def test_a_prompt_that_fills_the_context_needs_no_forward() -> None:
    watched = watched_engine()
    watched.submit(list(range(16)), 5)
    watched.run()
    assert watched.outputs == [Output(0, [], "length")]
    assert not any(watched.batches)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("fable")


texts = st.text(alphabet="ab. \n'é😀", max_size=20)
stop_texts = st.text(alphabet="ab. \n'é😀", min_size=1, max_size=6)


@given(text=texts, stops=st.lists(stop_texts, min_size=1, max_size=3))
def test_a_stop_text_is_seen_with_its_newest_token(
    tokenizer: Any, text: str, stops: list[str]
) -> None:
    """Wherever the borders of tokens and of characters are."""
    has_stop, ids = stop_at_text(tokenizer, stops), tokenizer.encode(text)
    for n in range(1, len(ids) + 1):
        shown = tokenizer.decode(ids[:n])
        expected = any(stop in shown for stop in stops)
        assert has_stop(ids[:n]) == expected
        if expected:
            break


@pytest.mark.parametrize("stop", ["😀", "é!", "a 😀é", "tale", " fox."])
def test_a_stop_text_of_several_tokens(tokenizer: Any, stop: str) -> None:
    has_stop = stop_at_text(tokenizer, [stop])
    ids = tokenizer.encode(f"Once upon a time. A long tale of a fox. a 😀é! The end; {stop} and")
    found = next(n for n in range(1, len(ids)) if stop in tokenizer.decode(ids[:n]))
    assert [has_stop(ids[:n]) for n in range(1, found + 1)] == [False] * (found - 1) + [True]


@pytest.mark.parametrize("kind", [None, "ngrams", "itself"])
def test_the_shipped_model_stops_at_a_text_across_tokens(tokenizer: Any, kind: Any) -> None:
    model, prompt = CachedLMHead.from_pretrained("fable"), tokenizer.encode("Once upon a time")
    own = list(stream(model, prompt, 24, GREEDY, torch.Generator()))
    text = tokenizer.decode(own)
    ends = [len(tokenizer.decode(own[:n])) for n in range(25)]
    stop = text[ends[9] - 2 : ends[10]]  # it begins in one token and ends in the next
    needed = next(n for n in range(25) if stop in text[: ends[n]])
    new_drafter = {
        None: None,
        "ngrams": lambda: NgramDrafter(model.config.vocab_size),
        "itself": lambda: ModelDrafter(model, 64),
    }[kind]
    room = {"num_blocks": 16, "block_size": 16, "token_budget": 16}
    watched = WatchedEngine(model, **room, new_drafter=new_drafter, k=4 if kind else 0)
    watched.submit(prompt, 24, stop=stop_at_text(tokenizer, [stop]))
    watched.run()
    assert watched.stories[0].ids == prompt + own[:needed]
    assert watched.stories[0].reasons == ["stop"]


# --------------------------------------------------------------------------------------- aborts


def test_an_abort_ends_whoever_waits_or_runs_and_nobody_else() -> None:
    watched = watched_engine(max_running=1)
    for prompt in PROMPTS[:4]:
        watched.submit(prompt, 6)
    watched.step()
    for request in (0, 2, 2, 0, 77, -1):  # one runs, one waits
        watched.engine.abort(request)
    watched.step()
    assert watched.outputs[1:3] == [Output(0, [], "abort"), Output(2, [], "abort")]
    assert watched.outputs[3].request == 1  # whose turn it is, in the same step
    for request in (0, 2):  # too late
        watched.engine.abort(request)
    watched.run()
    reasons = [story.reasons for story in watched.stories.values()]
    assert reasons == [["abort"], ["length"]] * 2
    for number in (1, 3):
        assert watched.stories[number].ids == expected(PROMPTS[number], 6)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_may_come_with_the_request_in_its_last_step_or_after_it(steps: int) -> None:
    """The request needs three steps. Of an abort after those nothing comes."""
    watched = watched_engine()
    watched.submit([9], 3)
    for _ in range(steps):
        watched.step()
    watched.engine.abort(0)
    assert watched.engine.has_work
    watched.run()
    assert watched.stories[0].ids == expected([9], steps or 1)[: 1 + steps]
    assert watched.stories[0].reasons == ["length" if steps == 3 else "abort"]
    assert len(watched.outputs) == min(steps + 1, 3)


def test_an_abort_out_of_the_callback_in_the_step_in_which_a_request_ends() -> None:
    outputs: list[Output] = []

    def on_output(output: Output) -> None:
        outputs.append(output)
        engine.abort(0)
        engine.abort(1)

    engine = new_engine(model_of(CachedLMHead, CONFIG, 0), 8, 4, 16, 4, on_output)
    engine.submit([9], 1)
    engine.submit([8, 9], 5)
    engine.run()
    seen = [(output.request, output.finish_reason) for output in outputs]
    assert seen == [(0, "length"), (1, None), (1, "abort")]


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
    engine = new_engine(model, 8, 4, 16, 4, raise_at_times, drafter if k else None, k)
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
    """Each request that has two tokens brings the next one and is itself aborted."""
    received: dict[int, list[int]] = {}
    reasons: dict[int, str | None] = {}

    def on_output(output: Output) -> None:
        assert_books_are_kept(engine)
        received.setdefault(output.request, []).extend(output.new_ids)
        reasons[output.request] = output.finish_reason
        if output.finish_reason is None and len(received[output.request]) == 2:
            engine.abort(output.request)
            if output.request + 1 < len(PROMPTS):
                assert engine.submit(PROMPTS[output.request + 1], 5) == output.request + 1

    engine = new_engine(model_of(CachedLMHead, CONFIG, 0), 8, 4, 16, 2, on_output)
    engine.submit(PROMPTS[0], 5)
    engine.run()
    assert {n: PROMPTS[n] + new for n, new in received.items()} == {
        n: expected(prompt, 2) for n, prompt in enumerate(PROMPTS)
    }
    assert set(reasons.values()) == {"abort"}


def test_outputs_leave_the_thread_that_steps_while_others_submit_and_abort() -> None:
    """Four threads bring 25 requests each, and abort every third; a fifth one steps.

    Once `abort` has returned, the step that runs may still give tokens, and none after it.
    """
    outputs: list[tuple[int, Output]] = []
    room = 12, 2, 9, 5
    engine = new_engine(
        model_of(CachedLMHead, CONFIG, 0),
        *room,
        lambda output: outputs.append((len(engine.trace), output)),
        lambda: the_text_itself(CONFIG, 0),
        2,
    )
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
        own = [(step, output) for step, output in outputs if output.request == number]
        ids = prompt + [token for _, output in own for token in output.new_ids]
        reasons = [output.finish_reason for _, output in own]
        assert reasons[:-1] == [None] * (len(own) - 1)
        if reasons[-1] == "abort":
            assert number in aborted
            assert ids == expected(prompt, 8)[: len(ids)]
        else:
            assert reasons[-1] == "length"
            assert ids == expected(prompt, 8)
        if number in aborted:
            # a step counts itself before its outputs leave; one may have been on its way
            assert own[-1][0] <= aborted[number] + 2
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
        target, 64, 4, 64, 8, outputs.append, new_drafter, 2 if new_drafter else 0, parts
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


# --------------------------------------------------------------------------------- the products


@pytest.mark.parametrize("total", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("n_out", [1, 6, 7, 12, 48])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_product_is_that_of_f_linear(total: int, n_out: int, dtype: torch.dtype) -> None:
    """Whatever it goes by: in parts, by oneDNN, or as usual. The weight may lie transposed."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, hidden = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((n_out, 10), (n_out,), (total, 10))
    )
    for bias_or_none in (bias, None):
        wanted = torch.nn.functional.linear(hidden, weight, bias_or_none)
        for laid_out in (weight, weight.T.contiguous().T):
            found = runner.Linear(laid_out, bias_or_none)(hidden)
            torch.testing.assert_close(found, wanted)


@pytest.mark.skipif(not runner.HAS_ONEDNN, reason="this PyTorch has no oneDNN")
def test_weights_are_read_in_parts_for_one_token_alone() -> None:
    linear = runner.Linear(torch.ones(8, 3))
    assert [len(part) for part in linear.parts] == [8 // runner.PARTS] * runner.PARTS
    assert linear.parts.data_ptr() == linear.weight.data_ptr()  # no second copy
    linear.parts = 2 * linear.parts
    assert linear(torch.ones(1, 3)).tolist() == [[6.0] * 8]
    assert linear(torch.ones(2, 3)).tolist() == [[3.0] * 8] * 2


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


class Noted(int):
    """A block that counts how often it is compared with another."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Noted.comparisons += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_a_block_leaves_the_middle_without_a_look_at_the_others() -> None:
    numbers = [Noted(number) for number in range(1000)]
    blocks = FreeBlocks(numbers)
    Noted.comparisons = 0
    for number in range(300, 700):
        blocks.remove(numbers[number])
    assert Noted.comparisons <= 2 * 400
    assert [int(block) for block in blocks] == [*range(300), *range(700, 1000)]
    with pytest.raises(KeyError):
        blocks.remove(numbers[300])


@given(st.integers(1, 8), st.integers(1, 5), st.lists(st.integers(0, 30), max_size=12))
def test_a_request_grows_to_so_many_tokens_or_not_at_all(
    num_blocks: int, block_size: int, sizes: list[int]
) -> None:
    manager, length = EngineManager(num_blocks, block_size), 1
    assert manager.admit(0, [7]) == 0
    for size in sizes:
        if size > num_blocks * block_size:
            before = list(manager.tables[0]), list(manager.free_blocks)
            with pytest.raises(OutOfBlocks):
                manager.grow(0, size)
            assert before == (manager.tables[0], list(manager.free_blocks))
        else:
            manager.grow(0, size)
            length = max(length, size)
        assert manager.lengths == {0: length}
        assert len(manager.tables[0]) == manager.blocks_for(length)
        assert sorted([*manager.tables[0], *manager.free_blocks]) == list(range(num_blocks))


def test_what_admit_finds_in_the_cache_is_not_computed() -> None:
    """A sketch of what a later lab does with the hooks: who begins like one who runs shares the
    full blocks of the beginning."""
    config, prompt = CONFIGS[2], [5, 9, 2, 6, 5, 3, 5, 8, 9]
    model, block_size = model_of(CachedLMHead, config, 0), 4
    engine = new_engine(model, 16, block_size, 64, 4, lambda output: outputs.append(output))
    outputs: list[Output] = []
    manager: Any = engine.scheduler.manager
    filled: dict[int, list[int]] = {}

    def admit(request: int, token_ids: Any, num_drafts: int, salt: bytes) -> int:
        ids = list(token_ids)
        for other, known in filled.items():
            shared = (len(ids) - 1) // block_size  # one token at least is computed
            if known[: shared * block_size] == ids[: shared * block_size]:
                blocks = manager.tables[other][:shared]
                manager.allocate(request, len(ids) - shared * block_size)
                for block in blocks:
                    manager.ref_counts[block] += 1
                manager.tables[request][:0] = blocks
                manager.lengths[request] = len(ids)
                return shared * block_size
        manager.allocate(request, len(ids))
        return 0

    def publish(request: int, token_ids: Any, computed: int) -> None:
        filled[request] = list(token_ids[:computed])

    manager.admit, manager.publish = admit, publish
    engine.submit(prompt, 9)
    engine.step()
    engine.submit(prompt, 3)
    engine.step()
    assert engine.trace[-1] == [(0, 1, True), (1, 1, True)]
    engine.run()
    for number, limit in ((0, 9), (1, 3)):
        new = [token for o in outputs if o.request == number for token in o.new_ids]
        assert prompt + new == naive(config, 0, prompt, limit)
    assert manager.used_blocks == 0


# ------------------------------------------------------------------------------ parts of your own


def parts_in_another_style() -> Parts:
    """Labs 4 to 6 as somebody else would write them."""
    from tests.common.styles import names_in_another_style  # reads all exercises

    names = {
        **names_in_another_style("paged_attention"),
        **names_in_another_style("speculative"),
        **names_in_another_style("decoding"),
    }
    return Parts(
        names["BlockManager"],
        names["PagedCache"],
        names["next_token_probs"],
        names["verify"],
        names["verify_greedy"],
    )


def parts_of_notebooks() -> Parts:
    """Labs 4 to 6 as `mine` gives them: with classes of their own, exceptions among them."""
    blocks, decoding, speculative = map(fresh_copy, ["paged_attention", "decoding", "speculative"])
    return Parts(
        blocks.BlockManager,
        blocks.PagedCache,
        decoding.next_token_probs,
        speculative.verify,
        speculative.verify_greedy,
    )


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
    for kind in (None, a_perfect_draft, a_useless_draft):
        room = {"num_blocks": 8, "block_size": 2, "token_budget": 7, "parts": own}
        watched = watched_engine(kind, 2 if kind else 0, **room)
        reference = watched_engine(kind, 2 if kind else 0)
        drawn = SamplingParams(temperature=4.0, top_k=9)
        for number, prompt in enumerate(PROMPTS):
            watched.submit(prompt, 6, GREEDY if number % 2 else drawn, number)
            reference.submit(prompt, 6, GREEDY if number % 2 else drawn, number)
        watched.run()
        reference.run()
        assert [s.ids for s in watched.stories.values()] == [
            s.ids for s in reference.stories.values()
        ]
        for number in range(1, len(PROMPTS), 2):
            assert watched.stories[number].ids == expected(PROMPTS[number], 6)
        assert watched.engine.scheduler.preemptions > 0
        assert isinstance(watched.engine.scheduler.manager, own.block_manager)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_cache_has_the_dtype_of_the_weights(dtype: torch.dtype) -> None:
    """In few bits the texts of others would differ; each is still as long as it should be."""
    model = CachedLMHead(CONFIG).to(dtype).eval()
    kinds = None, lambda: the_text_itself(CONFIG, 0)
    for new_drafter in kinds:
        room = {"num_blocks": 8, "block_size": 2, "token_budget": 7, "k": 2 if new_drafter else 0}
        watched = WatchedEngine(model, **room, new_drafter=new_drafter)
        for number, prompt in enumerate(PROMPTS):
            watched.submit(prompt, 6, SamplingParams(top_p=0.9) if number % 2 else GREEDY, number)
        watched.run()
        assert all(
            len(s.ids) == len(p) + 6 for s, p in zip(watched.stories.values(), PROMPTS, strict=True)
        )
        assert watched.engine.runner.kv_cache.cache.pool.dtype == dtype


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("k", [0, 2])
def test_on_a_gpu_the_tokens_are_the_same(k: int) -> None:
    model = deepcopy(model_of(CachedLMHead, CONFIG, 0)).to("cuda")
    room = {"num_blocks": 8, "block_size": 2, "token_budget": 7}
    drafts: Any = k and (lambda: ModelDrafter(model, CONFIG.n_positions))
    watched = WatchedEngine(model, **room, new_drafter=drafts or None, k=k)
    drawn = SamplingParams(temperature=4.0, top_k=9)
    for number, prompt in enumerate(PROMPTS):
        watched.submit(prompt, 6, GREEDY if number % 2 else drawn, number)
    watched.run()
    for number in range(1, len(PROMPTS), 2):
        assert watched.stories[number].ids == expected(PROMPTS[number], 6)


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
        ({"token_budget": 0}, "one token of one request at least; token_budget is 0 and max"),
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


@pytest.mark.parametrize("count", [201, pytest.param(10_002, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", [None, the_text_itself, a_perfect_draft])
def test_random_requests_leak_nothing(
    monkeypatch: pytest.MonkeyPatch, count: int, kind: Any
) -> None:
    """Neither blocks nor requests, generators, drafters or steps; the process stays as large."""
    monkeypatch.setattr(lab_7, "STEPS", 50)  # that a trace remembers
    rng, happened, reasons = random.Random(0), Counter[str](), {}
    model, drafter = model_of(CachedLMHead, CONFIG, 0), drafters(kind, CONFIG, 0)

    def on_output(output: Output) -> None:
        assert output.request not in reasons
        happened[str(output.finish_reason)] += 1
        if output.finish_reason:
            reasons[output.request] = output.finish_reason

    engine = new_engine(model, 9, 2, 12, 6, on_output, drafter, 3 if kind else 0)
    sampled = [GREEDY, SamplingParams(temperature=3.0), SamplingParams(top_k=4)]
    process, sizes = psutil.Process(), []
    before = living()
    for third in range(3):
        for number in range(count // 3 * third, count // 3 * (third + 1)):
            prompt = [rng.randrange(48) for _ in range(rng.choice([1, 2, 5, 9, 16]))]
            limit = rng.randint(1, 19 - len(prompt)) if len(prompt) < 16 else 1
            engine.submit(prompt, limit, rng.choice(sampled), number, rng.randrange(48))
            if rng.random() < 0.2:
                engine.abort(rng.randint(max(0, number - 9), number))
            while number - len(reasons) > 8:
                engine.step()
        engine.run()
        assert living() == before
        assert sorted(engine.scheduler.manager.free_blocks) == list(range(9))
        assert not engine.sequences
        assert not engine.outputs
        assert len(engine.trace) <= 50
        sizes.append(process.memory_info().rss)
    assert reasons.keys() == set(range(count))
    assert min(happened.values()) > count / 30
    assert engine.scheduler.preemptions > count / 30
    if count > 1000:
        assert sizes[-1] - sizes[0] < 2**24  # 16 MiB; a KV cache for each would be ten times that
