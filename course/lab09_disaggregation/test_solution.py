"""Lab 9's own pieces: prompts in chunks, the policies, gaps, what is sent, and leases."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
from solutions.engine.engine import Engine, Output, Parts, new_engine
from solutions.engine.limits import Limits
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
from tests.common.serving import Load, WatchedEngine, hold_often, loads, serve_each

pytestmark = pytest.mark.usefixtures("short_stretches")

CONFIG = CONFIGS[1]  # a context of 16


# ----------------------------------------------------------------------------- a prompt in chunks


@given(continuations(), st.integers(1, 20), st.integers(1, 3))
def test_chunked_prefill_is_a_whole_one(case, chunk, rows):
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
def test_empty_chunks_are_refused(length: int, chunk: int) -> None:
    model, cache = model_of(CachedLMHead, CONFIG, 0), KVCache(CONFIG, 1, 8, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"these have {chunk} and {length}"):
        prefill_in_chunks(model, cache, torch.zeros(1, length, dtype=torch.int64), chunk)
    assert cache.length == 0


# ------------------------------------------------------------------------------------- policies

Numbers = dict[int, Any]  # by request: whether it decoded before a step; how many tokens it got


def is_closed_until_all_have_ended(before: Numbers, plan: Numbers, _: int) -> dict[str, bool]:
    assert not before or plan.keys() <= before.keys()
    return {"closed": bool(before)}


def is_prompts_or_decodes(before: Numbers, plan: Numbers, _: int) -> dict[str, bool]:
    new = plan.keys() - before.keys()
    assert not new or new == plan.keys()
    return {"prompts": bool(new), "decodes": not new, "others wait": bool(new and before)}


def lets_no_decode_wait(before: Numbers, plan: Numbers, budget: int) -> dict[str, bool]:
    """Each that decodes is in the plan, whatever else is; and what is left goes to prompts."""
    decoding = [number for number, decodes in before.items() if decodes]
    served = [number for number in decoding if number in plan]
    assert len(served) == min(len(decoding), budget)
    assert all(plan[number] == 1 for number in served)
    assert list(plan)[: len(served)] == served
    return {
        "beside prompts": 0 < len(served) < len(plan),
        "in chunks": any(not before.get(number, True) for number in plan),
    }


class WatchedPolicy(WatchedEngine):
    """One that leaves the order within a step to the policy. plans: of steps without preemption."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.plans: list[tuple[Numbers, Numbers, int]] = []

    def assert_policy(self, before: Numbers, left: int, preempted: int) -> None:
        if not preempted:
            self.plans.append((before, self.plan, self.engine.scheduler.token_budget))


def enough_for_all(load: Load) -> Load:
    """Room for whole prompts in a step, which PrefillFirst asks for."""
    longest = max(load.end(visit) for visit in load.visits)
    return replace(load, room=load.room | {"token_budget": len(load.visits) * longest})


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (RequestLevel, is_closed_until_all_have_ended),
        (PrefillFirst, is_prompts_or_decodes),
        (StallFree, lets_no_decode_wait),
    ],
)
def test_policies_keep_their_rules(policy: Any, rule: Any) -> None:
    def is_served(load: Load) -> dict[str, bool]:
        load = enough_for_all(load) if policy is PrefillFirst else load
        parts = replace(load.parts, scheduler=policy)
        watched = serve_each(replace(load, watch=WatchedPolicy, parts=parts))
        happened: Counter[str] = Counter()
        for plan in watched.plans:
            happened.update(rule(*plan))
        return {what: times > 0 for what, times in happened.items()}

    hold_often(0.1, is_served, loads(st.none()))


# ------------------------------------------------------------------------------------------- gaps

served = st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans())
traces = st.lists(st.lists(served, max_size=4, unique_by=lambda part: part[0]), max_size=12)


@given(traces, st.integers(0, 4))
def test_gaps_count_tokens_between_tokens(trace: Any, request: int) -> None:
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
def test_packed_is_what_is_unpacked(transfer: Any) -> None:
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
    expected = there_before
    for token in range(start, end):
        mine, its = (
            slot_of(t, token, p.shape[3]) for t, p in ((table, here), (other_table, there))
        )
        expected[:, :, its[0], its[1]] = here_before[:, :, mine[0], mine[1]]
    assert torch.equal(there, expected)
    assert (list(table), list(other_table)) == tables


# ------------------------------------------------------------------------------------------ adopt


def decoding_engine(outputs: list[Output], manager: Any = EngineManager) -> Engine:
    model = model_of(CachedLMHead, CONFIG, 0)
    parts = Parts(block_manager=manager)
    return new_engine(model, Limits(32, 4, 16, 4), outputs.append, parts=parts)


def prefilled(prompt: list[int], limit: int, start: int, eos: int | None = None) -> Prefilled:
    """As another engine has computed it, with blocks of another size."""
    model = model_of(CachedLMHead, CONFIG, 0)
    outputs: list[Output] = []
    engine = new_engine(model, Limits(32, 3, 16, 4), outputs.append)
    number = engine.submit(prompt, 2)
    engine.step()
    pool, table = engine.runner.kv_cache.cache.pool, engine.scheduler.manager.tables[number]
    kv, [token] = pack_kv(pool, table, start, len(prompt)), outputs[0].new_ids
    return Prefilled(prompt, token, len(prompt) + limit, start, kv, eos)


@given(st.lists(st.integers(0, 47), min_size=1, max_size=10), st.integers(1, 6), st.data())
def test_adopted_request_goes_on(prompt, limit, data):
    """Part of its keys and values may have come before. Its first token may be the last."""
    outputs: list[Output] = []
    engine = decoding_engine(outputs)
    start = data.draw(st.integers(0, len(prompt)))
    eos = data.draw(st.none() | st.sampled_from(naive(CONFIG, 0, prompt, limit)[len(prompt) :]))
    message, whole = prefilled(prompt, limit, start, eos), prefilled(prompt, limit, 0)
    number, _ = reserve(engine, prompt, message.end)
    pool, table = engine.runner.kv_cache.cache.pool, engine.scheduler.manager.tables[number]
    unpack_kv(pool, table, 0, whole.kv[:, :, :start])
    adopt(engine, number, message)
    assert not outputs  # it goes out with the next step
    engine.run()
    new = [token for output in outputs for token in output.new_ids]
    assert prompt + new == naive(CONFIG, 0, prompt, limit, eos)
    reason = "stop" if new[-1] == eos else "length"
    assert [o.finish_reason for o in outputs] == [None] * (len(new) - 1) + [reason]
    assert sum(tokens for step in engine.trace for _, tokens, _ in step) == len(new) - 1
    assert sorted(engine.scheduler.manager.free_blocks) == list(range(32))


def test_adopted_prompt_is_found_later() -> None:
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
def test_leases_end_once(seconds: int, acts: Any) -> None:
    """Beside a list of (request, when it was held)."""
    leases, model, now = Leases(seconds), list[tuple[int, int]](), 0
    for act, given_ in acts:
        if act == "wait":
            now += given_
        elif act == "due":
            requests = [request for request, _ in model]
            due = [r for n, r in enumerate(given_) if r in requests and r not in given_[:n]]
            due += [r for r, at in model if now - at >= seconds and r not in due]
            before = list(given_)
            assert leases.due(now, given_) == due
            assert given_ == before
            model = [(r, at) for r, at in model if r not in due]
        elif given_ in [request for request, _ in model]:
            with pytest.raises(ValueError, match=f"Request {given_} has a lease already"):
                leases.hold(given_, now)
        else:
            leases.hold(given_, now)
            model.append((given_, now))
        assert list(leases.ends) == [request for request, _ in model]


@pytest.mark.parametrize("seconds", [0, -1])
def test_leases_last_over_0_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        Leases(seconds)
