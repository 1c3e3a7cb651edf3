"""Lab 9's own pieces: prompts in chunks, the policies, gaps, what is sent, and leases."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig
from solutions.disaggregation import (
    Leases,
    PrefillFirst,
    RequestLevel,
    StallFree,
    adopt,
    pack_kv,
    prefill_in_chunks,
    token_gaps,
    unpack_kv,
)
from solutions.engine import runner
from solutions.engine.engine import Engine, Output, Parts, new_engine
from solutions.engine.managers import EngineManager
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.prefix_caching import PrefixManager
from solutions.two_processes.messages import Prefilled
from solutions.two_processes.sides import reserve
from tests.common.engines import (
    CONFIGS,
    assert_same,
    continuations,
    model_of,
    naive,
    naive_logits,
    shapes_of_forwards,
)
from tests.common.serving import Load, WatchedEngine, loads

CONFIG = CONFIGS[1]  # a context of 16


@pytest.fixture(autouse=True, scope="module")
def _short_stretches() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STRETCH", 5)
        yield


# ----------------------------------------------------------------------------- a prompt in chunks


@given(continuations(), st.integers(1, 20), st.integers(1, 3))
def test_a_prompt_in_chunks_is_a_prompt_in_one(
    case: tuple[GPTConfig, int, list[int], int], chunk: int, rows: int
) -> None:
    """The same logits and the same cache, in as many forwards as there are chunks."""
    config, seed, prompt, _ = case
    model = model_of(CachedLMHead, config, seed)
    texts = [[(token + row) % config.vocab_size for token in prompt] for row in range(rows)]
    whole, chunked = (
        KVCache(config, rows, config.n_positions, dtype=torch.float64) for _ in range(2)
    )
    ids = torch.tensor(texts)
    before = ids.clone()
    with shapes_of_forwards(model) as shapes:
        logits = prefill_in_chunks(model, chunked, ids, chunk)
    sizes = [min(chunk, len(prompt) - start) for start in range(0, len(prompt), chunk)]
    assert shapes == [(rows, size) for size in sizes]
    assert_same(logits, naive_logits(config, seed, texts))
    assert torch.equal(ids, before)
    model(ids, torch.arange(len(prompt)).expand_as(ids), whole)
    assert chunked.length == whole.length == len(prompt)
    for one, other in ((chunked.keys, whole.keys), (chunked.values, whole.values)):
        assert_same(one, other)


@pytest.mark.parametrize(("length", "chunk"), [(3, 0), (3, -1), (0, 2)])
def test_a_chunk_and_a_prompt_have_a_token(length: int, chunk: int) -> None:
    model, cache = model_of(CachedLMHead, CONFIG, 0), KVCache(CONFIG, 1, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"these have {chunk} and {length}"):
        prefill_in_chunks(model, cache, torch.zeros(1, length, dtype=torch.int64), chunk)
    assert cache.length == 0


# ------------------------------------------------------------------------------------- policies

POLICIES = [RequestLevel, PrefillFirst, StallFree]


class LooselyWatched(WatchedEngine):
    """One that leaves the order within a step to the policy. plans: of every step, with whom."""

    plans: list[Any]

    def watched_schedule(self) -> dict[int, int]:
        self.steps, scheduler = len(self.engine.trace), self.engine.scheduler
        before = {s.number: s.num_computed_tokens >= len(s.ids) - 1 for s in scheduler.running}
        preemptions = scheduler.preemptions
        self.plan = plan = self.schedule()
        left = scheduler.token_budget - sum(plan.values())
        numbers = [s.number for s in scheduler.running]
        assert left >= 0
        assert all(tokens > 0 for tokens in plan.values())
        assert plan.keys() <= set(numbers)
        waiting = [s.number for s in scheduler.waiting]
        assert sorted(numbers + waiting) == sorted(self.engine.sequences)
        assert plan or not self.engine.sequences  # so that `run` comes to an end
        self.plans.append((before, plan, left, scheduler.preemptions > preemptions))
        return plan


def serve_with(policy: Any, load: Load) -> LooselyWatched:
    """To its end, all of it greedily; of those who leave, nothing is asked here."""
    room: dict[str, Any] = {**load.room, "parts": replace(load.parts, scheduler=policy)}
    watched = LooselyWatched(load.model, **room)
    watched.plans = []
    for step in range(max(visit.comes for visit in load.visits) + 1):
        for visit in load.visits:
            if visit.comes == step:
                watched.submit(visit.prompt, visit.limit, eos_token_id=visit.eos)
        watched.step()
    watched.run()
    return watched


def enough_for_all(load: Load) -> Load:
    """Room for whole prompts in a step, which PrefillFirst asks for."""
    longest = max(len(visit.prompt) for visit in load.visits)
    budget = max(load.room["token_budget"], len(load.visits) * longest)
    return replace(load, room={**load.room, "token_budget": budget})


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_changes_a_text(policy: Any) -> None:
    @given(loads(st.none()))
    def each_load(load: Load) -> None:
        load = enough_for_all(load) if policy is PrefillFirst else load
        watched = serve_with(policy, load)
        for visit, story in zip(load.visits, watched.stories.values(), strict=True):
            assert story.ids == load.naive(visit)

    each_load()


def test_a_batch_is_closed_until_all_have_ended() -> None:
    @given(loads(st.none()))
    def each_load(load: Load) -> None:
        watched = serve_with(RequestLevel, load)
        for before, plan, _, _ in watched.plans:
            assert not before or plan.keys() <= before.keys()

    each_load()


def test_a_step_is_prompts_or_decodes() -> None:
    happened: Counter[str] = Counter()

    @given(loads(st.none()))
    def each_load(load: Load) -> None:
        watched = serve_with(PrefillFirst, enough_for_all(load))
        for before, plan, _, _ in watched.plans:
            new = plan.keys() - before.keys()
            assert not new or new == plan.keys()
            happened["prompts" if new else "decodes"] += 1
            happened["others wait"] += bool(new and before)

    each_load()
    assert min(happened.values()) > 20, happened


def test_nobody_who_decodes_waits_for_a_prompt() -> None:
    """Each that decodes is in the plan, whatever else is; and what is left goes to prompts."""
    happened: Counter[str] = Counter()

    @given(loads(st.none()))
    def each_load(load: Load) -> None:
        watched = serve_with(StallFree, load)
        budget = load.room["token_budget"]
        for before, plan, _, preempted in watched.plans:
            decoding = [number for number, decodes in before.items() if decodes]
            if preempted:
                assert not plan.keys() - before.keys()
                continue
            served = [number for number in decoding if number in plan]
            assert len(served) == min(len(decoding), budget)
            assert all(plan[number] == 1 for number in served)
            assert list(plan)[: len(served)] == served
            happened["beside prompts"] += bool(served) and len(plan) > len(served)
            happened["in chunks"] += any(
                number in plan for number, decodes in before.items() if not decodes
            )

    each_load()
    assert min(happened.values()) > 20, happened


def gaps_with(policy: Any, budget: int) -> list[int]:
    """Between the tokens of a short request, beside which a long prompt comes."""
    outputs: list[Output] = []
    model = model_of(CachedLMHead, CONFIG, 0)
    engine = new_engine(
        model, 64, 4, budget, 4, outputs.append, parts=replace(Parts(), scheduler=policy)
    )
    engine.submit([3, 14], 12)
    engine.step()
    engine.step()
    engine.submit(list(range(14)), 2)
    engine.run()
    return token_gaps(list(engine.trace), 0)


def test_what_a_long_prompt_costs_others_is_the_policy() -> None:
    assert max(gaps_with(PrefillFirst, 32)) == 14 + 2
    assert max(gaps_with(StallFree, 32)) == 14 + 1
    assert max(gaps_with(StallFree, 4)) == 4
    assert max(gaps_with(RequestLevel, 32)) == 1


# ------------------------------------------------------------------------------------------- gaps

served = st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans())
traces = st.lists(st.lists(served, max_size=4, unique_by=lambda part: part[0]), max_size=12)


@given(traces, st.integers(0, 4))
def test_a_gap_is_all_that_is_computed_between_two_tokens(trace: Any, request: int) -> None:
    gaps, since, has_any = [], 0, False
    for step in trace:
        gains = False
        for number, tokens, sampled in step:
            since += tokens
            gains = gains or (number == request and sampled)
        if gains:
            gaps += [since] if has_any else []
            since, has_any = 0, True
    assert token_gaps(trace, request) == gaps


# ---------------------------------------------------------------------------- keys and values sent


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Any, ...]:
    """Two pools of random numbers and a table in each, with a range of tokens."""
    tokens = draw(st.integers(1, 20))
    start = draw(st.integers(0, tokens))
    end = draw(st.integers(start, tokens))
    layers, seed = draw(st.integers(1, 3)), draw(st.integers(0, 99))
    generator = torch.Generator().manual_seed(seed)
    both = []
    for size in draw(st.tuples(st.integers(1, 6), st.integers(1, 6))):
        blocks = -(-tokens // size)
        table = draw(st.permutations(range(blocks + 3)))[:blocks]
        shape = 2, layers, blocks + 3, size, 2, 3
        both += [torch.randn(shape, generator=generator, dtype=torch.float64), table]
    return *both, start, end


def slot_of(table: list[int], token: int, size: int) -> tuple[int, int]:
    return table[token // size], token % size


@given(transfers())
def test_what_is_packed_here_is_unpacked_there_and_nothing_else(transfer: Any) -> None:
    here, table, there, other_table, start, end = transfer
    tables = list(table), list(other_table)
    here_before, there_before = here.clone(), there.clone()
    kv = pack_kv(here, table, start, end)
    assert kv.shape == (2, here.shape[1], end - start, 2, 3)
    assert kv.is_contiguous()
    for token in range(start, end):
        block, place = slot_of(table, token, here.shape[3])
        assert torch.equal(kv[:, :, token - start], here[:, :, block, place])
    here.fill_(torch.nan)  # it is a copy
    unpack_kv(there, other_table, start, kv)
    wanted = there_before
    for token in range(start, end):
        mine, its = (
            slot_of(t, token, p.shape[3]) for t, p in ((table, here), (other_table, there))
        )
        wanted[:, :, its[0], its[1]] = here_before[:, :, mine[0], mine[1]]
    assert torch.equal(there, wanted)
    assert (list(table), list(other_table)) == tables


@given(transfers(), st.data())
def test_one_layer_goes_by_itself(transfer: Any, data: st.DataObject) -> None:
    """A slice of a pool is a pool."""
    here, table, there, other_table, start, end = transfer
    layer = data.draw(st.integers(0, here.shape[1] - 1))
    others = [n for n in range(here.shape[1]) if n != layer]
    before = there.clone()
    kv = pack_kv(here[:, layer : layer + 1], table, start, end)
    unpack_kv(there[:, layer : layer + 1], other_table, start, kv)
    assert torch.equal(there[:, others], before[:, others])
    assert torch.equal(pack_kv(there, other_table, start, end)[:, layer : layer + 1], kv)


# ------------------------------------------------------------------------------------------ adopt


def decoding_engine(outputs: list[Output], manager: Any = EngineManager) -> Engine:
    model = model_of(CachedLMHead, CONFIG, 0)
    parts = Parts(block_manager=manager)
    return new_engine(model, 32, 4, 16, 4, outputs.append, parts=parts)


def prefilled(prompt: list[int], limit: int, start: int, eos: int | None = None) -> Prefilled:
    """As another engine has computed it, with blocks of another size."""
    model = model_of(CachedLMHead, CONFIG, 0)
    outputs: list[Output] = []
    engine = new_engine(model, 32, 3, 16, 4, outputs.append)
    number = engine.submit(prompt, 2)
    engine.step()
    pool, table = engine.runner.kv_cache.cache.pool, engine.scheduler.manager.tables[number]
    kv, [token] = pack_kv(pool, table, start, len(prompt)), outputs[0].new_ids
    return Prefilled(prompt, token, len(prompt) + limit, start, kv, eos)


@given(st.lists(st.integers(0, 47), min_size=1, max_size=10), st.integers(1, 6), st.data())
def test_an_adopted_request_goes_on_as_if_it_had_been_prefilled_here(
    prompt: list[int], limit: int, data: st.DataObject
) -> None:
    """Part of its keys and values may have come before."""
    outputs: list[Output] = []
    engine = decoding_engine(outputs)
    start = data.draw(st.integers(0, len(prompt)))
    message, whole = prefilled(prompt, limit, start), prefilled(prompt, limit, 0)
    number, _ = reserve(engine, prompt, message.end)
    pool, table = engine.runner.kv_cache.cache.pool, engine.scheduler.manager.tables[number]
    unpack_kv(pool, table, 0, whole.kv[:, :, :start])
    adopt(engine, number, message)
    assert not outputs  # it goes out with the next step
    engine.run()
    assert prompt + [t for o in outputs for t in o.new_ids] == naive(CONFIG, 0, prompt, limit)
    assert [o.finish_reason for o in outputs] == [None] * (limit - 1) + ["length"]
    assert sum(tokens for step in engine.trace for _, tokens, _ in step) == limit - 1
    assert sorted(engine.scheduler.manager.free_blocks) == list(range(32))


def test_an_adopted_request_may_end_with_its_first_token() -> None:
    outputs: list[Output] = []
    engine = decoding_engine(outputs)
    message = prefilled([3, 14, 15], 9, 0)
    number, _ = reserve(engine, message.prompt, message.end)
    adopt(engine, number, replace(message, eos_token_id=message.first_token))
    engine.run()
    assert outputs == [Output(number, [message.first_token], "stop")]
    assert sorted(engine.scheduler.manager.free_blocks) == list(range(32))


def test_an_adopted_prompt_is_found_by_who_comes_later() -> None:
    outputs: list[Output] = []
    engine = decoding_engine(outputs, PrefixManager)
    message = prefilled(list(range(9)), 3, 0)
    number, start = reserve(engine, message.prompt, message.end)
    assert start == 0
    adopt(engine, number, message)
    _, start = reserve(engine, message.prompt, message.end)
    assert start == 8


# ----------------------------------------------------------------------------------------- leases

acts = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 9)),
    st.tuples(st.just("due"), st.lists(st.integers(0, 12), max_size=4)),
    st.tuples(st.just("wait"), st.integers(0, 4)),
)


@given(st.integers(1, 6), st.lists(acts, max_size=60))
def test_a_lease_ends_once_when_it_is_confirmed_or_its_time_is_up(seconds: int, acts: Any) -> None:
    """Beside a list of (request, when it was held)."""
    leases, model, now = Leases(seconds), list[tuple[int, int]](), 0
    for act, given_ in acts:
        if act == "wait":
            now += given_
        elif act == "due":
            held = [request for request, _ in model]
            wanted = [r for n, r in enumerate(given_) if r in held and r not in given_[:n]]
            wanted += [r for r, at in model if now - at >= seconds and r not in wanted]
            before = list(given_)
            assert leases.due(now, given_) == wanted
            assert given_ == before
            model = [(r, at) for r, at in model if r not in wanted]
        elif given_ in [request for request, _ in model]:
            with pytest.raises(ValueError, match=f"Request {given_} has a lease already"):
                leases.hold(given_, now)
        else:
            leases.hold(given_, now)
            model.append((given_, now))
        assert list(leases.ends) == [request for request, _ in model]


@pytest.mark.parametrize("seconds", [0, -1])
def test_a_lease_lasts_some_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="are none"):
        Leases(seconds)
