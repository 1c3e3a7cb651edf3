"""Lab 8's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

from functools import partial
from hashlib import blake2b, md5
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.drivers import prefix_caching as drivers
from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, judge
from autograder.reference import fresh_copy
from solutions.engine.managers import FreeBlocks
from solutions.paged_attention import OutOfBlocks
from solutions.prefix_caching import PrefixManager, block_hashes
from tests.common.attempts import attempt_at
from tests.common.trials import trials

EXERCISES = {e.name: e for e in exercises().values() if e.lab == "prefix_caching"}
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# ----------------------------------------------------------------------------- blocks by their hash

HASHES = "prefix_caching.block_hashes"
METHODS = "match", "take_block", "admit", "publish"
MATCH, TAKE, ADMIT, PUBLISH = (f"prefix_caching.PrefixManager.{method}" for method in METHODS)


@attempt_at(RIGHT, HASHES)
def hashes_by_a_running_one(token_ids, block_size, salt=b""):
    running, hashes = blake2b(salt, digest_size=16), []
    for place, token in enumerate(token_ids, 1):
        running.update(b"/%d" % token)
        if place % block_size == 0:
            hashes.append(running.hexdigest())
    return hashes


@attempt_at(RIGHT, HASHES)
def hashes_of_tuples(token_ids, block_size, salt=b""):
    before, hashes = hash(salt), ()
    for number in range(len(token_ids) // block_size):
        before = hash((before, tuple(token_ids[number * block_size :][:block_size])))
        hashes += (before,)
    return hashes


@attempt_at(RIGHT, HASHES)
def hashes_of_whole_texts(token_ids, block_size, salt=b""):
    ends = [end for end in range(1, len(token_ids) + 1) if end % block_size == 0]
    return [md5(repr((salt, list(token_ids[:end]))).encode()).digest() for end in ends]


@attempt_at(RIGHT, HASHES)
def hashes_that_are_the_texts(token_ids, block_size, salt=b""):
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [(salt, *token_ids[:end]) for end in ends]


@wrong_at(HASHES, None, "The list of hashes of text 1, numbered as new ones come, is a generator;")
def hashes_one_by_one(token_ids, block_size, salt=b""):
    yield from block_hashes(token_ids, block_size, salt)


@wrong_at(HASHES, None, "new ones come, is None; expected: it is [0]. Is a `return` missing?")
def hashes_for_nobody(token_ids, block_size, salt=b""):
    block_hashes(token_ids, block_size, salt)


@wrong_at(HASHES, None, "It raised TypeError: unhashable type: 'list'")
def hashes_that_are_lists(token_ids, block_size, salt=b""):
    return [list(key) for key in block_hashes(token_ids, block_size, salt)]


@wrong_at(HASHES, None, "The list of hashes of text 2, numbered as new ones come, is [0, 1]; expec")
def hashes_with_a_short_salt(token_ids, block_size, salt=b""):
    return block_hashes(token_ids, block_size, salt[:0])


@wrong_at(HASHES, None, "The result is right, but `texts[0][0]` is no longer what it was before")
def hashes_that_eat_the_text(token_ids, block_size, salt=b""):
    hashes = block_hashes(token_ids, block_size, salt)
    token_ids.clear()
    return hashes


texts = st.lists(
    st.tuples(st.lists(st.sampled_from([1, 2, 12, 258]), max_size=9), st.sampled_from(["", "a"])),
    max_size=6,
)


@given(texts, st.integers(1, 3))
def test_hashes_go_by_where_they_are_equal(texts: list[Any], block_size: int) -> None:
    """However they are made."""
    seen, again = (
        drivers.block_hashes(make, texts, block_size)
        for make in (block_hashes, hashes_that_are_the_texts)
    )
    assert seen == again


@attempt_at(RIGHT, MATCH, PrefixManager)
def match_while_it_is_known(self, token_ids, salt=b""):
    keys = block_hashes(token_ids[: max(0, len(token_ids) - 1)], self.block_size, salt)
    return tuple(self.cached[key] for key in takewhile(self.cached.__contains__, keys))


@attempt_at(RIGHT, MATCH, PrefixManager)
def match_the_longest_first(self, token_ids, salt=b""):
    keys = block_hashes(token_ids, self.block_size, salt)
    for length in range(max(0, len(token_ids) - 1) // self.block_size, 0, -1):
        if {*keys[:length]} <= self.cached.keys():
            return [self.cached[key] for key in keys[:length]]
    return []


@attempt_at(RIGHT, MATCH, PrefixManager)
def match_by_the_blocks_themselves(self, token_ids, salt=b""):
    found, keys = [], block_hashes(list(token_ids)[:-1], self.block_size, salt)
    while len(found) < len(keys):
        here = [block for block, key in self.block_hash.items() if key == keys[len(found)]]
        if not here:
            break
        found += here
    return found


@wrong_at(MATCH, PrefixManager, "in step 1 is None; expected: it is []. Is a `return` missing?")
def match_for_nobody(self, token_ids, salt=b""):
    PrefixManager.match(self, token_ids, salt)


@wrong_at(MATCH, PrefixManager, "in step 1 is a generator; expected: it is []")
def match_one_by_one(self, token_ids, salt=b""):
    yield from PrefixManager.match(self, token_ids, salt)


@wrong_at(
    MATCH, PrefixManager, "`cached`, with texts in the place of hashes, after step 1 has noth"
)
def match_and_forget(self, token_ids, salt=b""):
    found = PrefixManager.match(self, token_ids, salt)
    for block in found:
        del self.cached[self.block_hash.pop(block)]
    return found


@attempt_at(RIGHT, TAKE, PrefixManager)
def take_by_hand(self):
    if not self.free_blocks:
        raise OutOfBlocks("no block")
    block = next(iter(self.free_blocks))
    del self.free_blocks[block]
    self.ref_counts[block] = 1
    if (key := self.block_hash.pop(block, None)) is not None:
        self.cached.pop(key)
    return block


@attempt_at(RIGHT, TAKE, PrefixManager)
def take_and_make_the_books_anew(self):
    self.require_free(1)
    block, *others = self.free_blocks
    self.free_blocks = FreeBlocks(others)
    self.ref_counts = [count or int(b == block) for b, count in enumerate(self.ref_counts)]
    self.block_hash = {b: key for b, key in self.block_hash.items() if b != block}
    self.cached = {key: b for b, key in self.block_hash.items()}
    return block


@wrong_at(TAKE, PrefixManager, "It raised KeyError: 'dictionary is empty'")
def take_without_asking(self):
    block = self.free_blocks.popleft()
    self.ref_counts[block] = 1
    self.cached.pop(self.block_hash.pop(block, None), None)
    return block


@attempt_at(RIGHT, ADMIT, PrefixManager)
def admit_by_who_is_left(self, request, token_ids, num_drafts=0, salt=b""):
    known = self.without_drafts(token_ids, num_drafts)
    found = self.match(known, salt)
    others = [block for block in self.free_blocks if block not in found]
    needed = self.blocks_for(len(token_ids)) - len(found)
    if len(others) < needed:
        raise OutOfBlocks("too few")
    self.free_blocks = FreeBlocks(others)
    for block in found:
        self.ref_counts[block] += 1
    self.tables[request] = list(found)
    for _ in range(needed):
        self.tables[request].append(self.take_block())
    self.salts[request] = salt
    self.lengths[request] = len(token_ids)
    self.queried += len(known)
    self.hits += (computed := self.block_size * len(found))
    return computed


@attempt_at(RIGHT, ADMIT, PrefixManager)
def admit_by_lab_4(self, request, token_ids, num_drafts=0, salt=b""):
    found = self.match(self.without_drafts(token_ids, num_drafts), salt)
    computed = len(found) * self.block_size
    free = {block for block in found if block in self.free_blocks}
    self.require_free(len(free) + self.blocks_for(len(token_ids) - computed))
    for block in free:
        self.free_blocks.pop(block)
    for block in found:
        self.ref_counts[block] = self.ref_counts[block] + 1
    self.allocate(request, len(token_ids) - computed)
    self.tables[request][:0] = found
    self.lengths[request] += computed
    self.salts.update({request: salt})
    self.hits, self.queried = self.hits + computed, self.queried + len(token_ids)
    if num_drafts:
        self.queried -= num_drafts + 1
    return computed


@wrong_at(ADMIT, PrefixManager, "What `take_block` has handed out after step 1 is []; expected: it")
def admit_past_take_block(self, request, token_ids, num_drafts=0, salt=b""):
    """What the blocks held before is still known."""
    known = self.without_drafts(token_ids, num_drafts)
    found = self.match(known, salt)
    needed = self.blocks_for(len(token_ids)) - len(found)
    self.require_free(needed + sum(self.ref_counts[block] == 0 for block in found))
    for block in found:
        self.free_blocks.pop(block, None)
    table = found + [self.free_blocks.popleft() for _ in range(needed)]
    for block in table:
        self.ref_counts[block] += 1
    self.tables[request], self.lengths[request], self.salts[request] = table, len(token_ids), salt
    self.queried += len(known)
    self.hits += len(found) * self.block_size
    return len(found) * self.block_size


@wrong_at(ADMIT, PrefixManager, "in step 1 is None; expected: it is 0. Is a `return` missing?")
def admit_without_a_word(self, request, token_ids, num_drafts=0, salt=b""):
    PrefixManager.admit(self, request, token_ids, num_drafts, salt)


@wrong_at(ADMIT, PrefixManager, "It raised ValueError: too few")
def admit_refuses_in_its_own_words(self, request, token_ids, num_drafts=0, salt=b""):
    try:
        return PrefixManager.admit(self, request, token_ids, num_drafts, salt)
    except OutOfBlocks:
        raise ValueError("too few") from None


@wrong_at(ADMIT, PrefixManager, "`free_blocks` after step 1 is a list; expected: it is [")
def admit_and_leave_a_list(self, request, token_ids, num_drafts=0, salt=b""):
    computed = PrefixManager.admit(self, request, token_ids, num_drafts, salt)
    self.free_blocks = list(self.free_blocks)
    return computed


@attempt_at(RIGHT, PUBLISH, PrefixManager)
def publish_from_the_end(self, request, token_ids, computed):
    keys = self.hashes_of(request, list(token_ids)[:computed])
    for place in reversed(range(len(keys))):
        block = self.tables[request][place]
        if self.cached.setdefault(keys[place], block) == block:
            self.block_hash[block] = keys[place]


@attempt_at(RIGHT, PUBLISH, PrefixManager)
def publish_what_is_new(self, request, token_ids, computed):
    full = min(computed, len(token_ids)) // self.block_size
    keys = block_hashes(token_ids[: full * self.block_size], self.block_size, self.salts[request])
    new = [place for place, key in enumerate(keys) if key not in self.cached]
    self.cached |= {keys[place]: self.tables[request][place] for place in new}
    self.block_hash |= {self.tables[request][place]: keys[place] for place in new}
    return len(new)


@wrong_at(PUBLISH, PrefixManager, " has something else in block 0; expected: it has [")
def publish_in_another_order(self, request, token_ids, computed):
    PrefixManager.publish(self, request, list(token_ids)[:computed][::-1], computed)


@wrong_at(PUBLISH, PrefixManager, "`tables` after step 1 is {0: []}; expected: it is {0: [0]}.")
def publish_and_give_up_the_blocks(self, request, token_ids, computed):
    PrefixManager.publish(self, request, token_ids, computed)
    self.tables[request] = []


class WithTextsForHashes(PrefixManager):
    """Finds blocks by texts, in a book that its own four methods keep."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.block_with, self.texts = {}, [None] * num_blocks

    def match(self, token_ids, salt=b""):
        found, size = [], self.block_size
        while (len(found) + 1) * size < len(token_ids):
            text = salt, *token_ids[: (len(found) + 1) * size]
            if text not in self.block_with:
                break
            found.append(self.block_with[text])
        return found

    def take_block(self):
        self.require_free(1)
        block = self.free_blocks.popleft()
        self.ref_counts[block] = 1
        self.block_with.pop(self.texts[block], None)
        self.texts[block] = None
        return block

    def admit(self, request, token_ids, num_drafts=0, salt=b""):
        computed = super().admit(request, token_ids, num_drafts, salt)
        assert all(
            self.texts[block] for block in self.tables[request][: computed // self.block_size]
        )
        return computed

    def publish(self, request, token_ids, computed):
        size = self.block_size
        for place in range(min(computed, len(token_ids)) // size):
            block = self.tables[request][place]
            text = self.salts[request], *token_ids[: (place + 1) * size]
            if text not in self.block_with:
                self.block_with[text], self.texts[block] = block, text


RIGHT += [
    pytest.param(name, WithTextsForHashes, id=f"{name}-with_texts_for_hashes")
    for name in (MATCH, TAKE, ADMIT, PUBLISH)
]


@pytest.mark.parametrize("name", [MATCH, TAKE, ADMIT, PUBLISH])
def test_a_book_of_its_own_does_not_make_a_wrong_answer_right(name: str) -> None:
    class NeverForgets(WithTextsForHashes):
        def take_block(self) -> int:
            self.require_free(1)
            block = self.free_blocks.popleft()
            self.ref_counts[block] = 1
            return block

    assert judge(EXERCISES[name], NeverForgets).status == WRONG


# ------------------------------------------------------------------------------ what cases hold


def seen_of(exercise: str, what: str) -> list[str]:
    """What was seen of something in the reference, whatever the case."""
    (trial, *_) = trials(EXERCISES[exercise])
    return [
        str(seen.value)
        for outcome in trial.expected
        for seen in outcome.seen
        if seen.what.startswith(what)
    ]


def test_the_cases_reach_what_is_rare() -> None:
    assert {"is []", "is [0]", "is [0, 1]"} <= {*seen_of(MATCH, "`match(")}
    for exercise, call in ((TAKE, "`take_block("), (ADMIT, "`admit(")):
        assert "is refused with OutOfBlocks" in seen_of(exercise, call)
    assert any("[4, " in counts for counts in seen_of(ADMIT, "`ref_counts`"))
    assert any("with the salt a" in known for known in seen_of(PUBLISH, "`cached`"))


@pytest.mark.parametrize("seed", range(3))
def test_what_a_newcomer_finds_is_prescribed_as_a_right_match_finds_it(seed: int) -> None:
    """After the last step everybody holds the same blocks, by hand and as built."""
    by_hand, as_built = trials(EXERCISES[ADMIT], seed)
    for one, other in zip(by_hand.expected, as_built.expected, strict=True):
        for what in ("`tables`", "`ref_counts`", "`free_blocks`", "`queried` and `hits`"):
            last = [[s.value for s in each.seen if s.what == what][-1] for each in (one, other)]
            assert last[0] == last[1]


# ----------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name: str, attempt: Any) -> None:
    for seed in range(3):
        judgement = judge(EXERCISES[name], attempt, seed)
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.parametrize(("name", "attempt", "said"), WRONGS)
def test_a_wrong_answer_is_told_in_a_sentence(name: str, attempt: Any, said: str) -> None:
    judgement = judge(EXERCISES[name], attempt)
    assert judgement.status == WRONG
    assert said in judgement.message
    assert judge(EXERCISES[name], attempt, seed=1).status == WRONG


@pytest.mark.parametrize("name", EXERCISES)
def test_a_notebooks_own_classes_are_judged_like_the_references(name: str) -> None:
    notebook = fresh_copy("prefix_caching")
    assert notebook.PrefixManager is not PrefixManager
    attempt = getattr(notebook, EXERCISES[name].attempt_name)
    assert judge(EXERCISES[name], attempt).status == PASSED
