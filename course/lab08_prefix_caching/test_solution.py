"""Prefix caching: what is known is found, nothing else is, and no text is changed by it.

`WatchedPrefixes` looks at every step of an engine, and at what lies in each block that is known.
`Plain` is the manager once more, with the texts themselves instead of hashes.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from sys import byteorder
from typing import Any, cast

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig
from solutions.engine.engine import Parts
from solutions.engine.integrity import check_integrity
from solutions.engine.scheduler import Scheduler
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.paged_attention import OutOfBlocks
from solutions.prefix_caching import (
    LongestMatch,
    Node,
    PrefixManager,
    RadixTree,
    block_hashes,
    choose_next,
)
from tests.common.engines import assert_same, model_of, naive
from tests.common.serving import (
    KINDS,
    Load,
    WatchedEngine,
    hold_often,
    loads,
    numbers_of,
    serve_each,
)

pytestmark = pytest.mark.usefixtures("short_stretches")


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
def test_equal_hash_means_equal_text(texts, block_size):
    hash_of: dict[Any, bytes] = {}
    for ids, salt in texts:
        hashes = block_hashes(ids, block_size, salt)
        assert len(hashes) == len(ids) // block_size
        for number, key in enumerate(hashes, start=1):
            assert hash_of.setdefault((salt, *ids[: number * block_size]), key) == key
    assert len(set(hash_of.values())) == len(hash_of)


def test_hash_is_a_sha_256_chain() -> None:
    """Of the hash before, the ids and the salt: the same in every process."""
    before, hashes = bytes(32), block_hashes([7, 300, 50256, 0, 9], 2, b"tenant")
    for ids, key in zip([(7, 300), (50256, 0)], hashes, strict=True):
        written = b"".join(token.to_bytes(8, byteorder) for token in ids)
        assert key == (before := sha256(before + written + b"tenant").digest())
    assert block_hashes((7, 300, 50256, 0, 9), 2, b"tenant")[-1] == before  # ids of any sequence


def test_salt_that_is_a_hash_opens_nothing() -> None:
    text = [1, 2, 3, 12]
    known = block_hashes(text, 2)
    ids = b"".join(token.to_bytes(8, byteorder) for token in text[:2])
    for salt in (known[0], bytes(32) + ids, ids):
        assert not {*known} & {*block_hashes(text, 2, salt), *block_hashes(text[2:], 2, salt)}


# ------------------------------------------------------------------------------------- the manager


class Plain:
    """What a manager must do, by texts: (salt, ids up to a block's end) instead of a hash."""

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
        blocks = []
        for beginning in self.beginnings(ids, salt):
            if beginning not in self.known or len(beginning) - 1 == len(ids):
                break
            blocks.append(self.known[beginning])
        return blocks

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
        check_integrity(manager)
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
def test_manager_finds_what_is_known(lives: int, length: int) -> None:
    rng, happened = random.Random(0), Counter[str]()
    for _ in range(lives):
        life = list(a_life(rng, length))
        happened.update(+live(rng.randint(1, 24), rng.randint(1, 3), life))
    assert all(times > lives / 2 for times in happened.values()), happened
    assert len(happened) == 6


def compute(manager: PrefixManager, text: list[int]) -> None:
    """Serve a text from its beginning to its end."""
    manager.admit(0, text)
    manager.publish(0, text, len(text))
    manager.free(0)


def test_match_ends_at_a_hole() -> None:
    manager = PrefixManager(3, 2)
    compute(manager, [1, 2, 3, 4, 5, 6])
    assert len(manager.match([1, 2, 3, 4, 5, 6, 7])) == 3
    del manager.cached[manager.block_hash.pop(0)]  # a hole at the beginning
    assert manager.match([1, 2, 3, 4, 5, 6, 7]) == []


def test_bad_admissions_are_refused() -> None:
    """What a request finds is free, and known; so it can't be taken as well."""
    manager = PrefixManager(4, 2)
    compute(manager, [1, 2, 3, 4])
    manager.admit(1, [7])
    with pytest.raises(OutOfBlocks, match="4 blocks are needed; 3 are free"):
        manager.admit(2, [1, 2, 3, 4, 5, 6, 7])
    with pytest.raises(ValueError, match="has blocks already"):
        manager.admit(1, [1, 2, 3])
    with pytest.raises(ValueError, match="There is no request 3 in this pool"):
        manager.free(3)


# -------------------------------------------------------------------------------------- the engine


@cache
def keys_and_values(model: Any, *ids: int) -> Tensor:
    """[2, layers, seq, heads, head_dim] of a text, computed in one forward."""
    kv_cache = KVCache(model.config, 1, len(ids), dtype=torch.float64)
    model(torch.tensor([ids]), torch.arange(len(ids))[None], kv_cache)
    return torch.stack([kv_cache.keys[:, 0], kv_cache.values[:, 0]]).transpose(2, 3)


class WatchedPrefixes(WatchedEngine):
    """Looks at what is found, too, and at the keys and values of all that can be found."""

    def __init__(self, model: Any, **given: Any) -> None:
        super().__init__(model, **given)
        self.model, self.manager = model, cast(Any, self.engine.scheduler.manager)
        self.texts: dict[bytes, tuple[bytes, list[int]]] = {}  # by hash: salt and beginning
        self.happened: Counter[str] = Counter()

    def watched_admit(self, request: int, token_ids: Any, num_drafts: int, salt: bytes) -> int:
        story = self.stories[request]
        found = super().watched_admit(request, token_ids, num_drafts, salt)
        assert found < len(story.ids)
        size = self.manager.block_size
        for number, block in enumerate(self.manager.tables[request][: found // size], start=1):
            text = salt, story.ids[: number * size]
            assert self.texts[self.manager.block_hash[block]] == text
        sequence = self.engine.sequences[request]
        self.happened["found at once"] += found > 0 and not story.preempted
        self.happened["of answers"] += found > sequence.prompt_length
        if num_drafts:
            self.happened["with drafts"] += found > 0
        self.happened["after preemption"] += found > 0 and story.preempted > 0
        return found

    def watched_publish(self, request: int, token_ids: Any, computed: int) -> None:
        super().watched_publish(request, token_ids, computed)
        salt, size = self.manager.salts[request], self.manager.block_size
        for number, key in enumerate(block_hashes(token_ids, size, salt), start=1):
            self.texts[key] = salt, list(token_ids[: number * size])
            is_computed = number * size <= computed
            assert (key in self.manager.cached) >= is_computed

    def step(self) -> None:
        """Every block that can be found holds what a forward over its text gives."""
        super().step()
        pool, size = self.engine.runner.kv_cache.cache.pool, self.manager.block_size
        blocks = list(self.manager.block_hash)
        if blocks:
            beginnings = [self.texts[self.manager.block_hash[block]][1] for block in blocks]
            right = [keys_and_values(self.model, *ids)[:, :, -size:] for ids in beginnings]
            assert_same(pool[:, :, blocks], torch.stack(right, dim=2))


class WatchedQueue(WatchedPrefixes):
    """Looks at who is let in, beside counts of its own: how often others were let in before."""

    def __init__(self, model: Any, **given: Any) -> None:
        super().__init__(model, **given)
        scheduler: Any = self.engine.scheduler
        self.waited: Counter[int] = Counter()
        self.let_in, scheduler.admit = scheduler.admit, self.watched_let_in

    def assert_policy(self, before: dict[int, bool], left: int, preempted: int) -> None:
        pass

    def preempting(self, sequence: Any) -> None:
        super().preempting(sequence)
        del self.waited[sequence.number]

    def watched_let_in(self) -> bool:
        scheduler: Any = self.engine.scheduler
        before, running = [*scheduler.waiting], [*scheduler.running]
        matched = [len(self.manager.match(s.text, s.salt)) for s in before]
        is_let_in = self.let_in()
        if is_let_in:
            waited = [self.waited[sequence.number] for sequence in before]
            chosen = before.pop(choose_next(matched, waited, scheduler.patience))
            running.append(chosen)
            self.waited.update(numbers_of(before))
            del self.waited[chosen.number]
            self.happened["out of turn"] += any(s.number < chosen.number for s in before)
        assert [*scheduler.waiting] == before
        assert scheduler.running == running
        assert all(scheduler.waited[s.number] == self.waited[s.number] for s in before)
        return is_let_in


def cached_prefixes(load: Load, **others: Any) -> Load:
    parts = Parts(block_manager=PrefixManager, **others)
    return replace(load, watch=WatchedQueue if others else WatchedPrefixes, parts=parts)


@pytest.mark.parametrize("kinds", [[None], KINDS], ids=["alone", "with-drafts"])
def test_any_load_gets_the_naive_tokens(kinds: list[Any]) -> None:
    def is_served(load: Load) -> dict[str, bool]:
        watched = serve_each(cached_prefixes(load))
        batches = watched.batches
        return {
            **{what: times > 0 for what, times in watched.happened.items()},
            "preempted": any(story.preempted for story in watched.stories.values()),
            "in chunks": any(c.wanted == 0 for batch in batches for c in batch),
        }

    hold_often(0.05, is_served, loads(st.sampled_from(kinds)))


@pytest.mark.parametrize("kinds", [[None], KINDS], ids=["alone", "with-drafts"])
def test_longest_match_goes_first(kinds: list[Any]) -> None:
    """Two run at a time, so that many wait while others are computed that begin like them."""

    def is_served(load: Load, patience: int) -> dict[str, bool]:
        load = replace(load, room=load.room | {"max_running": 2})
        scheduler: Any = partial(LongestMatch, patience=patience)
        watched = serve_each(cached_prefixes(load, scheduler=scheduler))
        scheduler = watched.engine.scheduler
        return {
            "out of turn": watched.happened["out of turn"] > 0,
            "preempted": scheduler.preemptions > 0,
        }

    hold_often(0.05, is_served, loads(st.sampled_from(kinds)), st.sampled_from([99, 2, 1, 0]))


# ------------------------------------------------------------------------------------------ counts


@pytest.mark.parametrize(("documents", "rate"), [(1, 0.78125), (8, 0.78125), (9, 0)])
def test_circle_larger_than_the_pool(documents: int, rate: float) -> None:
    """Documents of 16 blocks, six times around, where 8 have room."""
    manager = PrefixManager(128, 16)
    for document in 6 * list(range(documents)):
        compute(manager, list(range(1000 * document, 1000 * document + 256)))
    assert manager.hits / manager.queried == rate


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


def test_each_token_needs_a_block() -> None:
    with pytest.raises(ValueError, match="there are 1 blocks and 2 tokens"):
        RadixTree().insert([1, 2], [10])


def evicted_from(tree: RadixTree, needed: int, held: set[int]) -> list[int]:
    """What must go, by the texts of the paths; in this order."""
    left = {path: (node.stamp, node.blocks) for path, node in nodes_of(tree).items() if path}
    blocks_gone: list[int] = []
    while len(blocks_gone) < needed:
        leaves = [
            (stamp, path)
            for path, (stamp, blocks) in left.items()
            if not held & {*blocks} and not any(p != path and p[: len(path)] == path for p in left)
        ]
        if not leaves:
            break
        blocks_gone += left.pop(min(leaves)[1])[1]
    return blocks_gone


@pytest.mark.parametrize("lives", [200, pytest.param(3000, marks=pytest.mark.soak)])
def test_tree_finds_what_a_dict_finds(lives: int) -> None:
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


# ---------------------------------------------------------------------- which request is next


@pytest.mark.parametrize(
    ("matched", "waited", "patience", "chosen"),
    [
        ([0], [0], 0, 0),
        ([16, 64, 32], [2, 1, 0], 9, 1),
        ([16, 64, 64], [2, 1, 0], 9, 1),  # of equals the first
        ([0, 0, 0], [2, 1, 0], 9, 0),
        ([16, 64, 32], [9, 9, 0], 9, 1),  # 9 is not more than 9
        ([0, 64, 32], [10, 9, 0], 9, 0),
        ([0, 64, 32], [12, 11, 10], 9, 0),  # the longest wait, not the longest match
        ([0, 64, 32], [10, 12, 11], 9, 1),  # also where it was not the first to come
        ([0, 64, 32], [10, 12, 12], 9, 1),
        ([64, 0], [0, 1], 0, 1),
    ],
)
def test_choose_next(matched: list[int], waited: list[int], patience: int, chosen: int) -> None:
    given = list(matched), list(waited)
    assert choose_next(matched, waited, patience) == chosen
    assert given == (matched, waited)


@pytest.mark.parametrize(("matched", "waited"), [([], []), ([1], []), ([1, 2], [1])])
def test_choose_next_needs_a_request(matched: list[int], waited: list[int]) -> None:
    with pytest.raises(ValueError, match="must be a waiting request"):
        choose_next(matched, waited, 3)


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
def test_grouped_prompts_by_order(
    scheduler: Any, num_blocks: int, running: int, tokens: int
) -> None:
    """Four groups of 8, each with 64 tokens in common and 16 of one's own: 2,560. What comes out is
    the same in every order."""
    rng = random.Random(0)
    common = {group: rng.choices(range(64), k=64) for group in "ABCD"}
    order = "DDACCCADBBCBDDAABBDCCCACABBAADDB"
    texts = [common[group] + rng.choices(range(64), k=16) for group in order]
    watch = WatchedEngine if scheduler is Scheduler else WatchedQueue
    room: Any = {"num_blocks": num_blocks, "block_size": 16, "max_running": running}
    parts = Parts(block_manager=PrefixManager, scheduler=scheduler)
    watched = watch(model_of(CachedLMHead, SHOTS, 0), **room, token_budget=640, parts=parts)
    for text in texts:
        watched.submit(text, 1)
    watched.run()
    outputs = [story.ids for story in watched.stories.values()]
    assert outputs == [naive(SHOTS, 0, text, 1) for text in texts]
    assert sum(story.computed for story in watched.stories.values()) == tokens
    manager: Any = watched.engine.scheduler.manager
    assert (manager.queried, manager.queried - manager.hits) == (2560, tokens)
