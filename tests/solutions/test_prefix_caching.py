"""Prefix caching: what is known is found, nothing else is, and no text is changed by it.

`WatchedPrefixes` looks at every step of an engine, and at what lies in each block that is known.
`Plain` is the manager once more, with the texts themselves in the place of hashes.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from sys import byteorder
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig
from solutions.engine import runner
from solutions.engine.engine import Engine, Parts, new_engine
from solutions.engine.scheduler import Scheduler
from solutions.engine.sequence import Sequence as Waiting
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.paged_attention import OutOfBlocks
from solutions.prefix_caching import (
    LongestMatch,
    Node,
    PrefixManager,
    RadixTree,
    block_hashes,
    choose_next,
    shared_length,
)
from tests.common import serving
from tests.common.engines import CONFIGS, assert_same, configs, model_of, naive, seeds
from tests.common.serving import (
    KINDS,
    Load,
    Visit,
    WatchedEngine,
    a_perfect_draft,
    assert_requests_are_kept,
    drafters,
    serve,
)

PARTS = Parts(block_manager=PrefixManager)
prefix_engine = partial(new_engine, parts=PARTS)

# -------------------------------------------------------------------------------------- the hashes

LETTERS = [1, 2, 3, 12, 23, 123, 257, 258]  # some are others written together, or 256 apart
letters = st.sampled_from(LETTERS)
salts = st.sampled_from([b"", b"", b"a", b"ab"])


@given(
    st.lists(st.tuples(st.lists(letters, max_size=9), salts), min_size=2, max_size=6),
    st.integers(1, 4),
)
@example([([1, 2, 3, 12], b""), ([3, 12], b"")], 2)  # deep in a text, and at a beginning
@example([([1, 2, 3, 12], b""), ([2, 1, 3, 12], b"")], 2)  # in the same place, after others
@example([([1, 23], b""), ([12, 3], b"")], 2)
@example([([1], b""), ([257], b"")], 1)
@example([([1, 2], b""), ([1, 2], b"a")], 1)
@example([([1, 2, 3], b""), ([1, 2, 3, 12], b"")], 2)
def test_two_blocks_have_one_hash_where_all_up_to_their_end_is_the_same(
    texts: list[tuple[list[int], bytes]], block_size: int
) -> None:
    hash_of: dict[Any, bytes] = {}
    for ids, salt in texts:
        hashes = block_hashes(ids, block_size, salt)
        assert len(hashes) == len(ids) // block_size
        for number, key in enumerate(hashes, start=1):
            assert hash_of.setdefault((salt, *ids[: number * block_size]), key) == key
    assert len(set(hash_of.values())) == len(hash_of)


def test_a_hash_is_a_sha_256_of_what_stands_before_and_of_its_ids() -> None:
    """Of nothing that another process would have otherwise."""
    before, hashes = bytes(32), block_hashes([7, 300, 50256, 0, 9], 2, b"tenant")
    for ids, key in zip([(7, 300), (50256, 0)], hashes, strict=True):
        written = b"".join(token.to_bytes(8, byteorder) for token in ids)
        assert key == (before := sha256(before + written + b"tenant").digest())
    assert block_hashes((7, 300, 50256, 0, 9), 2, b"tenant")[-1] == before  # ids of any sequence


def test_a_salt_that_is_a_hash_opens_nothing() -> None:
    text = [1, 2, 3, 12]
    known = block_hashes(text, 2)
    ids = b"".join(token.to_bytes(8, byteorder) for token in text[:2])
    for salt in (known[0], bytes(32) + ids, ids):
        assert not {*known} & {*block_hashes(text, 2, salt), *block_hashes(text[2:], 2, salt)}


# ------------------------------------------------------------------------------------- the manager


class Plain:
    """What a manager must do, by texts: (salt, ids up to a block's end) in the place of a hash."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.tables: dict[int, list[int]] = {}
        self.free_blocks = list(range(num_blocks))
        self.known: dict[tuple[bytes, ...], int] = {}
        self.queried = self.hits = 0

    def beginnings(self, ids: Sequence[int], salt: bytes) -> list[Any]:
        size = self.block_size
        return [(salt, *ids[:end]) for end in range(size, len(ids) + 1, size)]

    def match(self, ids: Sequence[int], salt: bytes) -> list[int]:
        found = []
        for beginning in self.beginnings(ids, salt):
            if beginning not in self.known or len(beginning) - 1 == len(ids):
                break
            found.append(self.known[beginning])
        return found

    def take(self, count: int) -> list[int]:
        taken, self.free_blocks = self.free_blocks[:count], self.free_blocks[count:]
        self.known = {text: block for text, block in self.known.items() if block not in taken}
        return taken

    def admit(self, request: int, ids: Sequence[int], salt: bytes, drafts: int) -> int | None:
        length, ids = len(ids), ids[: len(ids) - drafts]
        found = self.match(ids[:-1] if drafts else ids, salt)
        others = [block for block in self.free_blocks if block not in found]
        needed = -(-length // self.block_size) - len(found)
        if needed > len(others):
            return None
        self.free_blocks = others
        self.tables[request] = found + self.take(needed)
        self.queried += len(ids) - (drafts > 0)
        self.hits += len(found) * self.block_size
        return len(found) * self.block_size

    def grow(self, request: int, length: int) -> bool:
        needed = -(-length // self.block_size) - len(self.tables[request])
        if needed > len(self.free_blocks):
            return False
        self.tables[request] += self.take(max(0, needed))
        return True

    def publish(self, request: int, ids: Sequence[int], salt: bytes, computed: int) -> None:
        for place, text in enumerate(self.beginnings(ids, salt)):
            if len(text) - 1 <= computed:
                self.known.setdefault(text, self.tables[request][place])

    def free(self, request: int) -> None:
        for block in reversed(self.tables.pop(request)):
            if not any(block in table for table in self.tables.values()):
                self.free_blocks.append(block)


def assert_books_are_kept(manager: Any) -> None:
    held = Counter(block for table in manager.tables.values() for block in table)
    assert manager.ref_counts == [held[block] for block in range(manager.num_blocks)]
    free = [block for block in range(manager.num_blocks) if not held[block]]
    assert sorted(manager.free_blocks) == free
    assert {block: key for key, block in manager.cached.items()} == manager.block_hash
    assert len(manager.cached) == len(manager.block_hash)


def state(manager: PrefixManager) -> Any:
    tables = {request: list(table) for request, table in manager.tables.items()}
    return (
        *(tables, dict(manager.lengths), list(manager.ref_counts), list(manager.free_blocks)),
        *(dict(manager.block_hash), dict(manager.cached), manager.queried, manager.hits),
    )


def a_life(rng: random.Random, length: int) -> Iterator[tuple[Any, ...]]:
    """What is done, by whom, a text or what is added to one, a salt, and how many drafts there are
    or how many tokens are not computed yet."""
    for _ in range(length):
        yield (
            rng.choice(["admit", "admit", "grow", "compute", "compute", "free", "free"]),
            rng.randrange(5),
            rng.choices([0, 1], [4, 1], k=rng.randint(1, 9)),
            rng.choice([b"", b"", b"", b"a"]),
            rng.randrange(4),
        )


def live(num_blocks: int, block_size: int, life: Sequence[Any]) -> Counter[str]:
    """Let requests come, grow, be computed and go, in a manager and in a plain one."""
    manager, plain = PrefixManager(num_blocks, block_size), Plain(num_blocks, block_size)
    texts: dict[int, list[int]] = {}
    happened: Counter[str] = Counter(lives=1)
    for what, who, more, salt, few in life:
        before = state(manager)
        if what == "admit" and who not in texts:
            drafts = few if few < len(more) - 1 else 0
            found = plain.admit(who, more, salt, drafts)
            if found is None:
                with pytest.raises(OutOfBlocks):
                    manager.admit(who, more, drafts, salt)
                assert state(manager) == before
                happened["refused"] += 1
            else:
                assert manager.admit(who, more, drafts, salt) == found
                assert manager.salts[who] == salt
                assert manager.lengths[who] == len(more)
                texts[who] = more[: len(more) - drafts]
                happened["found"] += found > 0
                happened["shared"] += max(manager.ref_counts) > 1
        elif what == "grow" and who in texts:
            ids = texts[who] + more
            if plain.grow(who, len(ids)):
                manager.grow(who, len(ids))
                texts[who] = ids
            else:
                with pytest.raises(OutOfBlocks):
                    manager.grow(who, len(ids))
                assert state(manager) == before
        elif what == "compute" and who in texts:
            computed = max(0, len(texts[who]) + 1 - few)  # 0: a draft beyond the text
            plain.publish(who, texts[who], manager.salts[who], computed)
            manager.publish(who, texts[who], computed)
        elif what == "free" and who in texts:
            plain.free(who)
            manager.free(who)
            del texts[who]
        happened["evicted"] += len(before[4]) > len(manager.block_hash)
        assert_books_are_kept(manager)
        assert manager.tables == plain.tables
        assert list(manager.free_blocks) == plain.free_blocks
        assert (manager.queried, manager.hits) == (plain.queried, plain.hits)
        before = state(manager)
        assert manager.match(more, salt) == plain.match(more, salt)
        assert state(manager) == before
        happened["revived"] += any(not manager.ref_counts[b] for b in manager.match(more, salt))
    return happened


@pytest.mark.parametrize(
    ("lives", "length"), [(300, 80), pytest.param(400, 3000, marks=pytest.mark.soak)]
)
def test_a_manager_finds_what_is_known_and_nothing_else(lives: int, length: int) -> None:
    rng, happened = random.Random(0), Counter[str]()
    for _ in range(lives):
        life = list(a_life(rng, length))
        happened.update(+live(rng.randint(1, 24), rng.randint(1, 3), life))
    assert all(times > lives / 2 for times in happened.values()), happened
    assert len(happened) == 6


def manager_with(*texts: list[int], num_blocks: int = 8, block_size: int = 2) -> PrefixManager:
    """One in which these texts were computed, one after the other, and are held no more."""
    manager = PrefixManager(num_blocks, block_size)
    for text in texts:
        compute(manager, text)
    return manager


def compute(manager: PrefixManager, text: list[int]) -> None:
    """Serve a text from its beginning to its end."""
    manager.admit(0, text)
    manager.publish(0, text, len(text))
    manager.free(0)


def test_the_last_token_is_always_computed() -> None:
    manager = manager_with([1, 2, 3, 4])
    lengths = {n: len(manager.match([1, 2, 3, 4, 5][:n])) for n in range(1, 6)}
    assert lengths == {1: 0, 2: 0, 3: 1, 4: 1, 5: 2}
    assert manager.match([]) == []


def test_a_text_is_found_as_far_as_all_of_its_beginning_is() -> None:
    """Its last block is taken by others first; without the first one nothing is found."""
    manager = manager_with([1, 2, 3, 4, 5, 6], num_blocks=3)
    assert len(manager.match([1, 2, 3, 4, 5, 6, 7])) == 3
    manager.admit(1, [9])
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == [0, 1]
    del manager.cached[manager.block_hash.pop(0)]  # a hole at the beginning
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == []


def test_a_request_that_is_refused_has_changed_nothing() -> None:
    """What it finds is free, and known; so it can't be taken as well. Nor is it counted."""
    manager = manager_with([1, 2, 3, 4], num_blocks=4)
    manager.admit(1, [7])
    before = state(manager)
    for _ in range(3):
        with pytest.raises(OutOfBlocks, match="4 blocks are needed; 3 are free"):
            manager.admit(2, [1, 2, 3, 4, 5, 6, 7])
        assert state(manager) == before
    assert manager.admit(2, [1, 2, 3, 4, 5, 6]) == 4
    assert not manager.free_blocks
    with pytest.raises(ValueError, match="has blocks already"):
        manager.admit(2, [1, 2, 3])


def test_a_known_block_has_as_many_holders_as_came() -> None:
    manager = manager_with([1, 2, 3, 4])
    for request in (1, 2, 3):
        assert manager.admit(request, [1, 2, request]) == 2
    [block] = set.intersection(*(set(table) for table in manager.tables.values()))
    for left in (2, 1, 0):
        manager.free(left + 1)
        assert manager.ref_counts[block] == left
        assert (block in manager.free_blocks) == (left == 0)


def test_whoever_runs_shares_what_is_computed_so_far() -> None:
    """Also of its answer, and also a block that was filled by two forwards."""
    manager = PrefixManager(8, 4)
    manager.admit(0, [1, 2, 3])
    lengths = []
    for computed in range(1, 9):
        ids = [1, 2, 3, 4, 5, 6, 7, 8, 9][: computed + 1]  # the newest is not computed
        manager.grow(0, computed)
        manager.publish(0, ids, computed)
        lengths.append(len(manager.match([1, 2, 3, 4, 5, 6, 7, 8, 9])))
    assert lengths == [0, 0, 0, 1, 1, 1, 1, 2]


def test_drafts_are_neither_published_nor_found() -> None:
    """And before drafts two tokens stay: one to be verified with them, one to be computed now."""
    manager = PrefixManager(8, 1)
    manager.admit(0, [1, 2, 3, 4, 5])
    manager.publish(0, [1, 2, 3], 5)  # 4 and 5 were drafts
    assert len(manager.match([1, 2, 3, 4, 5, 6])) == 3
    manager.publish(0, [1, 2, 3, 4, 5], 5)
    manager.free(0)
    found = []
    for drafts in range(4):
        found.append(manager.admit(0, [1, 2, 3, 4, 5], drafts))
        assert len(manager.tables[0]) == manager.lengths[0] == 5
        manager.free(0)
    assert found == [4, 2, 1, 0]


def test_salts_keep_tenants_apart() -> None:
    manager, text = PrefixManager(32, 2), [1, 2, 3, 4, 5]
    found = []
    for request, salt in enumerate([b"", b"a", b"b", b"a", b"", b"b", b""]):
        found.append(manager.admit(request, text, 0, salt))
        manager.publish(request, text, 5)
    assert found == [0, 0, 0, 4, 4, 4, 4]
    assert manager.match(text) == manager.tables[0][:2]
    assert manager.match(text, b"a") == manager.tables[1][:2]
    assert manager.match(text, b"c") == []


def test_an_unknown_request_cannot_be_freed() -> None:
    with pytest.raises(ValueError, match="There is no request 3 in this pool"):
        PrefixManager(2, 2).free(3)


# -------------------------------------------------------------------------------------- the engine


@pytest.fixture(autouse=True, scope="module")
def _watched_engines_have_prefix_caches() -> Iterator[None]:
    """And the texts here are short; they too shall be served apart where their lengths differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "assert_books_are_kept", assert_engine_is_kept)
        patch.setattr(runner, "STRETCH", 5)
        yield


def assert_engine_is_kept(engine: Engine) -> None:
    """Blocks may be shared."""
    assert_books_are_kept(engine.scheduler.manager)
    assert_requests_are_kept(engine)


@cache
def keys_and_values(config: GPTConfig, seed: int, *ids: int) -> Tensor:
    """[2, layers, seq, heads, head_dim] of a text, computed in one forward."""
    model = model_of(CachedLMHead, config, seed)
    kv_cache = KVCache(config, 1, len(ids), dtype=torch.float64)
    model(torch.tensor([ids]), torch.arange(len(ids))[None], kv_cache)
    return torch.stack([kv_cache.keys[:, 0], kv_cache.values[:, 0]]).transpose(2, 3)


@dataclass(frozen=True)
class TenantVisit(Visit):
    salt: bytes


@dataclass(frozen=True)
class PrefixLoad(Load):
    def engine(self) -> WatchedEngine:
        return WatchedPrefixes(self)


class WatchedPrefixes(WatchedEngine):
    """Looks at what is found, too, and at the keys and values of all that can be found."""

    def __init__(self, load: PrefixLoad) -> None:
        drafter = drafters(load.kind, load.config, load.seed)
        super().__init__(load.model, **load.room, new_drafter=drafter, k=load.k, parts=PARTS)
        self.load = load
        self.texts: dict[bytes, tuple[bytes, list[int]]] = {}  # by hash: salt and beginning
        self.happened: Counter[str] = Counter()

    @property
    def manager(self) -> Any:
        return self.engine.scheduler.manager

    def submit(self, prompt: list[int], *given: Any, **named: Any) -> int:
        visit: Any = self.load.visits[len(self.stories)]
        return super().submit(prompt, *given, **named, salt=visit.salt)

    def watched_admit(self, request: int, token_ids: Any, num_drafts: int, salt: bytes) -> int:
        story, sequence = self.stories[request], self.engine.sequences[request]
        assert list(token_ids) == story.ids + sequence.drafts
        assert num_drafts == len(sequence.drafts)
        assert salt == sequence.salt
        ids = story.ids
        story.cached = found = self.admit(request, token_ids, num_drafts, salt)
        assert found < len(ids)
        size = self.manager.block_size
        for number, block in enumerate(self.manager.tables[request][: found // size], start=1):
            text = salt, ids[: number * size]
            assert self.texts[self.manager.block_hash[block]] == text
        self.happened["found at once"] += found > 0 and not story.preempted
        self.happened["of answers"] += found > len(self.load.visits[request].prompt)
        self.happened["with drafts"] += found > 0 and num_drafts > 0
        self.happened["after preemption"] += found > 0 and story.preempted > 0
        story.admitted += 1
        return found

    def watched_publish(self, request: int, token_ids: Any, computed: int) -> None:
        super().watched_publish(request, token_ids, computed)
        salt, size = self.manager.salts[request], self.manager.block_size
        for number, key in enumerate(block_hashes(token_ids, size, salt), start=1):
            self.texts[key] = salt, list(token_ids[: number * size])
            is_computed = number * size <= computed
            assert (key in self.manager.cached) >= is_computed

    def step(self) -> None:
        super().step()
        assert_engine_is_kept(self.engine)
        pool, size = self.engine.runner.kv_cache.cache.pool, self.manager.block_size
        blocks = list(self.manager.block_hash)
        if blocks:
            beginnings = [self.texts[self.manager.block_hash[block]][1] for block in blocks]
            right = [self.of_block(beginning)[:, :, -size:] for beginning in beginnings]
            assert_same(pool[:, :, blocks], torch.stack(right, dim=2))

    def of_block(self, beginning: list[int]) -> Tensor:
        """From the whole text of whoever has it, so that each is computed once."""
        for story, visit in zip(self.stories.values(), self.load.visits, strict=False):
            if story.ids[: len(beginning)] == beginning:
                ids = whole(self.load.config, self.load.seed, *visit.prompt)
                return keys_and_values(self.load.config, self.load.seed, *ids)[
                    :, :, : len(beginning)
                ]
        raise AssertionError(f"nobody has the text {beginning}")


@cache
def whole(config: GPTConfig, seed: int, *prompt: int) -> list[int]:
    """What the naive loop makes of a prompt, up to the end of the context."""
    return naive(config, seed, list(prompt), config.n_positions)


@st.composite
def prefix_loads(draw: st.DrawFn, kinds: Any) -> PrefixLoad:
    """Up to 6 requests, most of which begin like another one's prompt and answer."""
    config, seed = draw(configs), draw(seeds)
    ids, full = st.integers(0, config.vocab_size - 1), config.n_positions
    texts = [draw(st.lists(ids, min_size=6, max_size=6))]
    visits: list[Visit] = []
    step = 0
    for _ in range(draw(st.sampled_from([5, 6, 4, 2, 1]))):
        begins = draw(st.sampled_from(texts))[: draw(st.sampled_from([full, 3, 4, 6, 8, 9]))]
        tail = draw(st.lists(ids, min_size=1, max_size=3)) if draw(st.booleans()) else []
        prompt = (begins + tail)[: draw(st.sampled_from([full - 4] * 4 + [full - 1, full]))]
        limit = draw(st.sampled_from([8, 7, 6, full, 4, 2, 1]))
        text = whole(config, seed, *prompt)[: len(prompt) + limit]
        texts.append(text)
        step += draw(st.sampled_from([0, 0, 0, 1, 3, 8]))
        stay = draw(st.sampled_from([None] * 8 + [0, 1, 2, 4, 8, 12]))
        leaves = None if stay is None else step + stay
        ends = draw(st.sampled_from([None, None, None, *text[len(prompt) :]]))
        salt = draw(st.sampled_from([b"", b"", b"", b"tenant"]))
        visits.append(TenantVisit(prompt, limit, ends, step, leaves, salt))
    kind = draw(st.sampled_from(kinds))
    k = draw(st.integers(1, 5)) if kind else 0
    block_size = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 17]))
    longest = max(min(len(v.prompt) + v.limit, full) for v in visits) - 1
    room = {
        "num_blocks": max(1, -(-longest // block_size)) + draw(st.sampled_from([3, 0, 1, 9, 99])),
        "block_size": block_size,
        "token_budget": k + draw(st.sampled_from([24, 16, 9, 5, 3, 2, 1])),
        "max_running": draw(st.sampled_from([6, 6, 3, 2, 1])),
    }
    return PrefixLoad(config, seed, visits, room, kind, k, Parts())


def assert_load_is_served(load: PrefixLoad) -> Counter[str]:
    watched: Any = serve(load)
    for visit, story in zip(load.visits, watched.stories.values(), strict=True):
        text = load.naive(visit)
        if story.reasons == ["abort"]:
            assert story.ids == text[: len(story.ids)]
        else:
            assert story.ids == text
    stories, forwards = watched.stories.values(), watched.batches
    watched.happened["loads"] += 1
    watched.happened["preempted"] += any(story.preempted for story in stories)
    watched.happened["in chunks"] += any(c.wanted == 0 for batch in forwards for c in batch)
    watched.happened["verified"] += any(c.wanted > 1 for batch in forwards for c in batch)
    return watched.happened


@pytest.mark.parametrize("kinds", [[None], KINDS], ids=["alone", "with-drafts"])
def test_any_load_gets_the_tokens_of_the_naive_loop(kinds: list[Any]) -> None:
    """And every block that can be found holds, after each step, what a forward over its text
    gives."""
    happened: Counter[str] = Counter()

    @given(prefix_loads(kinds))
    def each_load(load: PrefixLoad) -> None:
        seen = assert_load_is_served(load)
        happened.update({what for what, times in seen.items() if times})

    each_load()
    often = happened["loads"] / 20
    assert all(times > often for times in happened.values()), happened
    assert len(happened) == (8 if kinds == KINDS else 6)


CONFIG = CONFIGS[2]  # a context of 20
PROMPT = [5, 9, 2, 6, 5, 3, 5, 8, 9]


def new_tokens(engine: Engine, outputs: list[Any], *requests: tuple[list[int], int]) -> list[Any]:
    numbers = [engine.submit(prompt, limit) for prompt, limit in requests]
    engine.run()
    of = {n: [t for o in outputs if o.request == n for t in o.new_ids] for n in numbers}
    return [prompt + of[n] for n, (prompt, _) in zip(numbers, requests, strict=True)]


def test_a_second_turn_computes_what_is_new() -> None:
    """Of the first turn all but the newest token is there: in blocks of 4 that is 12 of 14."""
    outputs: list[Any] = []
    model = model_of(CachedLMHead, CONFIG, 0)
    engine = prefix_engine(model, 16, 4, 64, 4, outputs.append)
    [first] = new_tokens(engine, outputs, (PROMPT, 5))
    engine.trace.clear()
    [second] = new_tokens(engine, outputs, ([*first, 7, 1], 2))
    assert list(engine.trace) == [[(1, 4, True)], [(1, 1, True)]]
    assert second == naive(CONFIG, 0, [*first, 7, 1], 2)
    assert (engine.scheduler.manager.queried, engine.scheduler.manager.hits) == (25, 12)  # type: ignore[attr-defined]


def test_who_was_preempted_finds_its_own_blocks() -> None:
    """Taken away and let in again at once: only the last token, which was not computed, is."""
    outputs: list[Any] = []
    model = model_of(CachedLMHead, CONFIG, 0)
    engine = prefix_engine(model, 32, 1, 64, 4, outputs.append)
    engine.submit(PROMPT, 5)
    engine.step()
    engine.step()
    engine.scheduler.preempt(engine.scheduler.running[-1])
    engine.run()
    assert list(engine.trace) == [[(0, 9, True)], *[[(0, 1, True)]] * 4]
    assert [token for o in outputs for token in o.new_ids] == naive(CONFIG, 0, PROMPT, 5)[9:]


@pytest.mark.parametrize("budget", range(4, 9))
@pytest.mark.parametrize("block_size", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_drafts_are_verified_though_their_tokens_are_known(
    steps: int, block_size: int, budget: int
) -> None:
    """Somebody else has said what two requests draft. Both lose their blocks with drafts pending;
    when they come back, whoever runs gets a token at least, in every step."""
    outputs: list[Any] = []
    model, drafter = model_of(CachedLMHead, CONFIG, 0), drafters(a_perfect_draft, CONFIG, 0)
    engine = prefix_engine(model, 99, block_size, budget, 4, outputs.append, drafter, 3)
    right = naive(CONFIG, 0, PROMPT, 10)
    assert new_tokens(engine, outputs, (PROMPT, 10)) == [right]
    engine.trace.clear()
    for _ in range(2):
        engine.submit(PROMPT, 10)
    for _ in range(steps):
        engine.step()
    for sequence in reversed(list(engine.scheduler.running)):
        engine.scheduler.preempt(sequence)
    engine.run()
    assert all(tokens > 0 for step in engine.trace for _, tokens, _ in step)
    for number in (1, 2):
        assert PROMPT + [t for o in outputs if o.request == number for t in o.new_ids] == right


# ------------------------------------------------------------------------------------------ counts


def question(chat: int, turn: int, number: int, length: int) -> list[int]:
    """Tokens that stand in no other chat and no other turn."""
    return [1000 * (100 * chat + turn + 1) + 100 * number + place for place in range(length)]


def prompt_of(chat: int, turn: int) -> list[int]:
    """96 tokens that all have in common, then questions of 24 and answers of 32 in turn."""
    past = [question(chat, t, 0, 24) + question(chat, t, 1, 32) for t in range(turn)]
    return [*range(96), *(token for both in past for token in both), *question(chat, turn, 0, 24)]


TURNS = [(chat, turn) for turn in range(6) for chat in range(8)]


def prefill_tokens(manager: PrefixManager, running: int) -> int:
    """Of 8 chats of 6 turns, so many of them at a time: how many tokens of prompts are computed."""
    computed = 0
    for start in range(0, len(TURNS), running):
        group = TURNS[start : start + running]
        for chat, turn in group:
            prompt = prompt_of(chat, turn)
            computed += len(prompt) - manager.admit(chat, prompt)
        for chat, turn in group:
            text = prompt_of(chat, turn) + question(chat, turn, 1, 32)
            manager.grow(chat, len(text) - 1)  # the last token is not computed
            manager.publish(chat, text, len(text) - 1)
        for chat, _ in group:
            manager.free(chat)
    assert manager.queried == 12_480
    assert manager.queried - manager.hits == computed
    return computed


@pytest.mark.parametrize(
    ("block_size", "tokens"),
    [(1, 1960), (4, 2080), (8, 2240), (16, 2368), (32, 2752), (64, 3264), (128, 4288)],
)
def test_smaller_blocks_find_more(block_size: int, tokens: int) -> None:
    assert prefill_tokens(PrefixManager(8192 // block_size, block_size), 8) == tokens


@pytest.mark.parametrize(
    ("num_blocks", "tokens"),
    [(174, 1792), (160, 2080), (140, 3744), (120, 4992), (100, 6128), (80, 7088), (60, 7552)],
)
def test_a_larger_pool_finds_more(num_blocks: int, tokens: int) -> None:
    """Two of the chats at a time, in turn."""
    assert prefill_tokens(PrefixManager(num_blocks, 16), 2) == tokens


class HeadFirst(PrefixManager):
    def free(self, request_id: int) -> None:
        super(PrefixManager, self).free(request_id)


class NewestFirst(PrefixManager):
    def take_block(self) -> int:
        self.free_blocks.move_to_end(next(reversed(self.free_blocks)), last=False)
        return super().take_block()


@pytest.mark.parametrize(
    ("cls", "tokens"), [(PrefixManager, 2048), (HeadFirst, 2784), (NewestFirst, 7968)]
)
def test_the_end_of_what_is_oldest_is_evicted_first(cls: Any, tokens: int) -> None:
    """The other orders cost more: 160 blocks, one chat at a time, in turn."""
    assert prefill_tokens(cls(160, 16), 1) == tokens


CHATS = GPTConfig(vocab_size=64, n_positions=448, n_embd=16, n_layer=1, n_head=1)


@pytest.mark.parametrize(("running", "tokens"), [(8, 2368), (2, 1792)])
def test_chats_that_begin_alike_compute_a_fifth_of_their_prompts(running: int, tokens: int) -> None:
    """By an engine, which finds answers that it has given: 12,480 tokens without."""
    outputs: list[Any] = []
    model = model_of(CachedLMHead, CHATS, 0)
    engine = prefix_engine(model, 400, 16, 4096, running, outputs.append)
    rng = random.Random(0)
    texts = [[token % 64 for token in range(96)] for _ in range(8)]
    for _ in range(6):
        texts = [[*text, *rng.choices(range(64), k=24)] for text in texts]
        texts = new_tokens(engine, outputs, *[(text, 32) for text in texts])
    manager: Any = engine.scheduler.manager
    computed = sum(tokens for step in engine.trace for _, tokens, _ in step)
    assert manager.queried == 12_480
    assert computed - 48 * 31 == tokens == manager.queried - manager.hits
    assert tokens <= 0.2 * 12_480
    assert len(engine.trace) == 192 * 8 / running  # it is no fewer forwards


@pytest.mark.parametrize(("documents", "rate"), [(1, 0.78125), (7, 0.78125), (8, 0.78125), (9, 0)])
def test_a_circle_that_is_larger_than_the_pool_finds_nothing(documents: int, rate: float) -> None:
    """Documents of 16 blocks, six times around, where 8 have room."""
    manager = PrefixManager(128, 16)
    for document in 6 * list(range(documents)):
        compute(manager, question(0, document, 0, 256))
    assert manager.hits / manager.queried == rate


def test_a_date_at_the_head_of_a_prompt_finds_nothing() -> None:
    manager = PrefixManager(64, 16)
    for day in range(5):
        compute(manager, [10_000 + day, *range(96)])
    assert manager.hits == 0


# ------------------------------------------------------------------------------------ a radix tree


def nodes_of(tree: RadixTree) -> dict[tuple[int, ...], Node]:
    """By the text of its path; the structure is looked at on the way."""
    nodes: dict[tuple[int, ...], Node] = {}
    paths: list[tuple[tuple[int, ...], Node]] = [((), tree.root)]
    assert tree.root.parent is None
    assert tree.root.ids == tree.root.blocks == []
    while paths:
        path, node = paths.pop()
        nodes[path] = node
        assert len(node.blocks) == len(node.ids)
        for first, child in node.children.items():
            assert child.ids[0] == first
            assert child.parent is node
            assert child.stamp <= node.stamp
            paths.append(((*path, *child.ids), child))
    assert all(node.ids for path, node in nodes.items() if path)
    return nodes


def test_one_edge_is_split_in_its_middle() -> None:
    tree = RadixTree()
    assert tree.insert([1, 2, 3, 4], [10, 20, 30, 40]) == 0
    assert tree.insert([1, 2, 3, 4, 5], [11, 21, 31, 41, 51]) == 4
    assert tree.insert([1, 2, 7], [12, 22, 72]) == 2
    nodes = nodes_of(tree)
    blocks = {path: (node.blocks, node.stamp) for path, node in nodes.items()}
    assert blocks == {
        (): ([], 3),
        (1, 2): ([10, 20], 3),
        (1, 2, 7): ([72], 3),
        (1, 2, 3, 4): ([30, 40], 2),
        (1, 2, 3, 4, 5): ([51], 2),
    }
    node, length = tree.walk([1, 2, 3])
    assert (node.ids, node.blocks, length, node.stamp) == ([3], [30], 3, 4)
    assert [child.ids for child in node.children.values()] == [[4]]
    assert tree.walk([]) == (tree.root, 0)
    assert tree.walk([2, 1]) == (tree.root, 0)


def test_a_text_is_found_token_by_token() -> None:
    tree = RadixTree()
    tree.insert([1, 2, 3, 4], [10, 20, 30, 40])
    assert [tree.match(text) for text in ([1], [1, 2, 3], [1, 9], [2], [1, 2, 3, 4, 5], [])] == [
        *([10], [10, 20, 30], [10], [], [10, 20, 30, 40], [])
    ]


def test_each_token_needs_a_block() -> None:
    with pytest.raises(ValueError, match="there are 1 blocks and 2 tokens"):
        RadixTree().insert([1, 2], [10])


def evicted_from(tree: RadixTree, needed: int, held: set[int]) -> list[int]:
    """What must go, by the texts of the paths; in this order."""
    left = {path: (node.stamp, node.blocks) for path, node in nodes_of(tree).items() if path}
    gone: list[int] = []
    while len(gone) < needed:
        leaves = [
            (stamp, path)
            for path, (stamp, blocks) in left.items()
            if not held & {*blocks} and not any(p != path and p[: len(path)] == path for p in left)
        ]
        if not leaves:
            break
        gone += left.pop(min(leaves)[1])[1]
    return gone


@pytest.mark.parametrize("lives", [200, pytest.param(3000, marks=pytest.mark.soak)])
def test_a_tree_finds_what_a_dict_of_all_beginnings_finds(lives: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(lives):
        rng, tree = random.Random(seed), RadixTree()
        block_of: dict[tuple[int, ...], int] = {}
        stamps: dict[tuple[int, ...], int] = {}  # of every beginning, which walk was the last
        for walks in range(1, 40):
            text = rng.choices([0, 1, 2], [3, 1, 1], k=rng.randint(0, 8))
            beginnings = [tuple(text[:end]) for end in range(1, len(text) + 1)]
            known = [block_of[b] for b in beginnings if b in block_of]
            before = [*text]
            what = rng.choice(["match", "walk", "insert", "insert"])
            if what == "match":
                assert tree.match(text) == known
            elif what == "walk":
                node, length = tree.walk(text)
                assert length == len(known)
                assert nodes_of(tree)[tuple(text[:length])] is node
            else:
                blocks = [100 * walks + place for place in range(len(text))]
                assert tree.insert(tuple(text), tuple(blocks)) == len(known)
                for beginning, block in zip(beginnings, blocks, strict=True):
                    block_of.setdefault(beginning, block)
                happened["split"] += 0 < len(known) < len(text)
            assert text == before
            stamps.update({b: walks for b in [(), *beginnings] if b in block_of or not b})
            nodes = nodes_of(tree)
            assert {path: node.stamp for path, node in nodes.items()} == {
                path: stamps[path] for path in nodes
            }
            spelled = {
                path[: len(path) - len(node.blocks) + place + 1]: block
                for path, node in nodes.items()
                for place, block in enumerate(node.blocks)
            }
            assert spelled == block_of
            if rng.random() < 0.15:
                held = {block for block in block_of.values() if rng.random() < 0.1}
                needed = rng.choice([0, 1, 2, 4, 9, 99])
                right = evicted_from(tree, needed, held)
                assert tree.evict(needed, lambda block: block not in held) == right  # noqa: B023
                block_of = {b: block for b, block in block_of.items() if block not in right}
                happened["evicted"] += bool(right)
                happened["too few"] += len(right) < needed
                assert {b for n in nodes_of(tree).values() for b in n.blocks} == {
                    *block_of.values()
                }
    assert all(times > lives for times in happened.values()), happened
    assert len(happened) == 3


def test_the_oldest_leaf_goes_as_a_whole_and_then_its_parent() -> None:
    tree = RadixTree()
    tree.insert([1, 2, 3], [10, 20, 30])
    tree.insert([1, 2, 4, 5], [10, 20, 40, 50])
    tree.insert([6], [60])
    tree.match([1, 2, 3])

    def unused(block: int) -> bool:
        return block != 60

    assert tree.evict(0, unused) == []
    assert tree.evict(1, unused) == [40, 50]
    assert tree.match([1, 2, 4]) == [10, 20]
    assert tree.evict(2, unused) == [30, 10, 20]
    assert tree.match([1, 2, 3]) == []
    assert tree.evict(1, unused) == []
    assert tree.evict(1, lambda block: True) == [60]
    assert nodes_of(tree).keys() == {()}


def test_who_holds_the_end_of_a_text_keeps_its_beginning() -> None:
    tree = RadixTree()
    tree.insert([1, 2, 3], [10, 20, 30])
    tree.insert([1, 4], [10, 40])
    assert tree.evict(9, lambda block: block not in (20, 30)) == [40]
    assert tree.match([1, 2, 3]) == [10, 20, 30]


def test_a_tree_finds_what_blocks_of_one_token_find() -> None:
    """The chats once more, 8 at a time; blocks of 16 leave 2,368 tokens to compute."""
    tree, computed = RadixTree(), 0
    for turn in range(6):
        for chat in range(8):
            prompt = prompt_of(chat, turn)
            computed += len(prompt) - len(tree.match(prompt[:-1]))
        for chat in range(8):
            text = (prompt_of(chat, turn) + question(chat, turn, 1, 32))[:-1]
            tree.insert(text, range(len(text)))
    assert computed == 1960


@given(st.lists(letters, max_size=6), st.lists(letters, max_size=6))
def test_how_much_two_texts_share(one: list[int], other: list[int]) -> None:
    length = shared_length(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == len(one)


# ------------------------------------------------------------------------------- who is served next


@pytest.mark.parametrize(
    ("matched", "waited", "patience", "chosen"),
    [
        ([0], [0], 0, 0),
        ([16, 64, 32], [2, 1, 0], 9, 1),
        ([16, 64, 64], [2, 1, 0], 9, 1),  # of equals the first
        ([0, 0, 0], [2, 1, 0], 9, 0),
        ([16, 64, 32], [9, 9, 0], 9, 1),  # 9 is not more than 9
        ([0, 64, 32], [10, 9, 0], 9, 0),
        ([0, 64, 32], [12, 11, 10], 9, 0),  # who has waited longest, not who finds most
        ([0, 64, 32], [10, 12, 11], 9, 1),  # also where it was not the first to come
        ([0, 64, 32], [10, 12, 12], 9, 1),
        ([64, 0], [0, 1], 0, 1),
    ],
)
def test_who_is_next(matched: list[int], waited: list[int], patience: int, chosen: int) -> None:
    given = list(matched), list(waited)
    assert choose_next(matched, waited, patience) == chosen
    assert given == (matched, waited)


@pytest.mark.parametrize(("matched", "waited"), [([], []), ([1], []), ([1, 2], [1])])
def test_somebody_must_wait(matched: list[int], waited: list[int]) -> None:
    with pytest.raises(ValueError, match="Somebody must wait"):
        choose_next(matched, waited, 3)


# Four groups of 8, each with 64 tokens in common and 16 of one's own.
GROUPED = [
    question(0, ord(group), 0, 64) + question(1, number, 0, 16)
    for number, group in enumerate("DDACCCADBBCBDDAABBDCCCACABBAADDB")
]
FIRST_COME, LONGEST_MATCH = -1, 99  # patience: everybody is late, or nobody ever


def tokens_computed(patience: int, num_blocks: int, running: int) -> int:
    """Of all of them, so many at a time."""
    manager, waiting, waited = PrefixManager(num_blocks, 16), list(GROUPED), [0] * len(GROUPED)
    while waiting:
        group = []
        for _ in range(running):
            matched = [len(manager.match(text)) for text in waiting]
            place = choose_next(matched, waited, patience)
            group.append(waiting.pop(place))
            waited.pop(place)
            waited = [times + 1 for times in waited]
        for act in (manager.admit, lambda n, text: manager.publish(n, text, len(text))):
            for number, text in enumerate(group):
                act(number, text)
        for number in range(running):
            manager.free(number)
    return manager.queried - manager.hits


def test_the_longest_match_first_computes_each_group_once() -> None:
    """One at a time, with room for one: 4 * 64 + 32 * 16 can't be avoided. Patience costs."""
    found = [tokens_computed(patience, 5, 1) for patience in (FIRST_COME, 8, 16, LONGEST_MATCH)]
    assert found == [1792, 1536, 1024, 768]


def test_the_longest_match_first_brings_together_who_could_not_share_yet() -> None:
    """Eight at a time, with room for all: a group's requests all come in one step."""
    found = [tokens_computed(patience, 400, 8) for patience in (FIRST_COME, LONGEST_MATCH)]
    assert found == [1216, 1536]


@pytest.mark.parametrize("patience", [0, 5, 200])
def test_nobody_waits_for_ever(patience: int) -> None:
    """Others keep coming, and find more."""
    matched, waited = [64, 64, 0, 64], [0, 0, 0, 0]
    for times in range(300):
        place = choose_next(matched, waited, patience)
        if matched[place] == 0:
            assert times >= patience
            assert times <= patience + 4
            return
        matched.append(matched.pop(place))
        waited = [n + 1 for at, n in enumerate(waited) if at != place] + [0]
    raise AssertionError("the one who finds nothing was never chosen")


def queue_of(
    manager: PrefixManager, *texts: list[int], running: int = 9, patience: int = 99
) -> LongestMatch:
    """These texts wait, each for one new token."""
    scheduler = LongestMatch(manager, 999, running, patience)
    scheduler.waiting.extend(Waiting(n, list(text), len(text) + 1) for n, text in enumerate(texts))
    return scheduler


def numbers(sequences: Iterable[Waiting]) -> list[int]:
    return [sequence.number for sequence in sequences]


def test_who_finds_most_is_let_in_and_the_others_stand_as_they_came() -> None:
    manager = manager_with([1, 2, 3, 4], num_blocks=16)
    texts = [9, 9, 9], [1, 2, 9], [1, 2, 3, 4, 9], [1, 2, 3, 4, 8], [1, 2, 3]
    scheduler = queue_of(manager, *texts)
    for let_in in ([2], [2, 3], [2, 3, 1], [2, 3, 1, 4], [2, 3, 1, 4, 0]):
        assert scheduler.admit()
        assert numbers(scheduler.running) == let_in
        assert numbers(scheduler.waiting) == [n for n in range(5) if n not in let_in]
    assert not scheduler.admit()
    assert [s.num_computed_tokens for s in scheduler.running] == [4, 4, 2, 2, 0]


def test_what_others_have_computed_under_another_salt_counts_for_nothing() -> None:
    scheduler = queue_of(manager_with([1, 2, 3, 4], num_blocks=16), [1, 2, 3, 4, 5], [1, 2, 9])
    scheduler.waiting[0].salt = b"tenant"
    assert scheduler.admit()
    assert numbers(scheduler.running) == [1]


def test_a_step_serves_whom_it_lets_in_by_their_matches() -> None:
    scheduler = queue_of(manager_with([1, 2, 3, 4]), [9, 9, 9], [1, 2, 9], [1, 2, 3, 4, 9])
    assert scheduler.schedule() == {2: 1, 1: 1, 0: 3}


def test_a_refused_choice_leaves_the_queue_as_it_was() -> None:
    """The one who finds most has no room, or nobody may run beside those who do. Others who would
    have room are not let in instead."""
    manager = manager_with([1, 2, 3, 4], num_blocks=4)
    manager.admit(7, [9])
    for running in (9, 1):
        scheduler = queue_of(manager, [8], [1, 2, 3, 4, 5, 6, 7], [6], running=running)
        scheduler.waited.update([0, 1, 1])
        if running == 1:
            scheduler.running.append(Waiting(7, [9], 2))
        before = state(manager), numbers(scheduler.running)
        for _ in range(2):
            assert not scheduler.admit()
            assert numbers(scheduler.waiting) == [0, 1, 2]
            assert scheduler.waited == {0: 1, 1: 2}
            assert (state(manager), numbers(scheduler.running)) == before


def test_how_often_others_were_chosen_is_counted_until_one_is_let_in() -> None:
    """Whoever is preempted has waited for nobody yet, and stands in front."""
    scheduler = queue_of(manager_with([1, 2, 3, 4], num_blocks=16), [9], [1, 2, 3], [8])
    assert scheduler.admit()
    assert scheduler.waited == {0: 1, 2: 1}
    scheduler.waiting.append(Waiting(3, [1, 2, 3, 4, 5], 6))
    assert scheduler.admit()
    assert numbers(scheduler.running) == [1, 3]
    assert scheduler.waited == {0: 2, 2: 2}
    scheduler.preempt(scheduler.running[-1])
    assert numbers(scheduler.waiting) == [3, 0, 2]
    assert scheduler.admit()
    assert numbers(scheduler.running) == [1, 3]
    assert scheduler.waited == {0: 3, 2: 3}
    assert scheduler.admit()
    assert scheduler.admit()
    assert numbers(scheduler.running) == [1, 3, 0, 2]
    assert not scheduler.waited


def test_who_has_waited_too_often_is_let_in_before_others_who_find_more() -> None:
    manager = manager_with([1, 2, 3, 4], num_blocks=64)
    scheduler = queue_of(manager, [9], *[[1, 2, 3, 4, n] for n in range(6)], patience=3)
    while scheduler.waiting:
        assert scheduler.admit()
    assert numbers(scheduler.running) == [1, 2, 3, 4, 0, 5, 6]


@given(st.lists(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=7), min_size=2, max_size=8))
def test_without_patience_it_is_first_come_once_somebody_has_waited(texts: list[list[int]]) -> None:
    """With each that is let in another one comes."""
    manager = manager_with([1, 1, 1, 1, 1, 1], [2, 1, 2, 1, 2], num_blocks=64)
    half = len(texts) // 2
    scheduler = queue_of(manager, *texts[:half], patience=0)
    matched = [len(manager.match(text)) for text in texts[:half]]
    for number, text in enumerate(texts[half:], start=half):
        assert scheduler.admit()
        scheduler.waiting.append(Waiting(number, text, len(text) + 1))
    first = matched.index(max(matched))
    others = [n for n in range(half) if n != first]
    assert numbers(scheduler.running)[:half] == [first, *others]


@pytest.mark.parametrize("kinds", [[None], KINDS], ids=["alone", "with-drafts"])
def test_the_order_changes_no_text(kinds: list[Any]) -> None:
    """Two run at a time, so that many wait while others are computed that begin like them."""
    happened: Counter[str] = Counter()

    @given(prefix_loads(kinds), st.sampled_from([99, 2, 1, 0]))
    def each_load(load: PrefixLoad, patience: int) -> None:
        scheduler: Any = partial(LongestMatch, patience=patience)
        outputs: list[Any] = []
        engine = new_engine(
            load.model,
            **load.room | {"max_running": 2},
            on_output=outputs.append,
            new_drafter=drafters(load.kind, load.config, load.seed),
            k=load.k,
            parts=Parts(block_manager=PrefixManager, scheduler=scheduler),
        )
        visits: Any = load.visits
        for visit in visits:
            engine.submit(visit.prompt, visit.limit, eos_token_id=visit.eos, salt=visit.salt)
        engine.run()
        for number, visit in enumerate(visits):
            new = [token for o in outputs if o.request == number for token in o.new_ids]
            assert visit.prompt + new == load.naive(visit)
        scheduler = engine.scheduler
        assert not scheduler.waited
        served = list(dict.fromkeys(n for step in engine.trace for n, _, _ in step))
        happened["loads"] += 1
        happened["out of turn"] += served != sorted(served)
        happened["preempted"] += scheduler.preemptions > 0

    each_load()
    assert happened["out of turn"] > happened["loads"] / 20
    assert happened["preempted"] > happened["loads"] / 20, happened


SHOTS = GPTConfig(vocab_size=64, n_positions=96, n_embd=16, n_layer=1, n_head=1)


@pytest.mark.parametrize(
    ("scheduler", "num_blocks", "running", "tokens"),
    [
        (Scheduler, 5, 1, 1792),
        (partial(LongestMatch, patience=8), 5, 1, 1536),
        (partial(LongestMatch, patience=99), 5, 1, 768),
        (Scheduler, 400, 8, 1216),
        (partial(LongestMatch, patience=99), 400, 8, 1536),
    ],
)
def test_an_engine_computes_as_many_tokens_of_grouped_prompts(
    scheduler: Any, num_blocks: int, running: int, tokens: int
) -> None:
    """The groups once more, of 2,560 tokens; what comes out is the same in every order."""
    rng = random.Random(0)
    texts = [[token % 64 for token in text[:64]] + rng.choices(range(64), k=16) for text in GROUPED]
    outputs: list[Any] = []
    engine = new_engine(
        model_of(CachedLMHead, SHOTS, 0),
        *(num_blocks, 16, 640, running, outputs.append),
        parts=Parts(block_manager=PrefixManager, scheduler=scheduler),
    )
    found = new_tokens(engine, outputs, *[(text, 1) for text in texts])
    assert found == [naive(SHOTS, 0, text, 1) for text in texts]
    assert sum(tokens for step in engine.trace for _, tokens, _ in step) == tokens
    manager: Any = engine.scheduler.manager
    assert (manager.queried, manager.queried - manager.hits) == (2560, tokens)
