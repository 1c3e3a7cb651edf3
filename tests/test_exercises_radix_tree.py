"""Lab 8's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder import judge as judge_module
from autograder.drivers.prefix_caching import Beginnings, nodes_of, served, told_of
from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, judge
from solutions.prefix_caching import Node, PrefixManager, RadixTree, choose_next, shared_length
from tests.common.attempts import attempt_at, with_method
from tests.common.trials import trials

EXERCISES = {e.name: e for e in exercises().values() if e.lab == "prefix_caching"}
WALK, EVICT = "prefix_caching.RadixTree.walk", "prefix_caching.RadixTree.evict"
CHOOSE_NEXT = "prefix_caching.choose_next"
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# ------------------------------------------------------------------------------------ a radix tree


@attempt_at(RIGHT, WALK, RadixTree)
def walk_recursively(self, token_ids):
    self.walks += 1
    self.root.stamp = self.walks

    def walk_from(node, rest):
        child = node.children.get(rest[0]) if rest else None
        if child is None:
            return node
        shared = shared_length(child.ids, rest)
        if shared != len(child.ids):
            child = split(child, shared)
        child.stamp = self.walks
        return walk_from(child, rest[shared:])

    def split(child, at):
        upper = Node(ids=child.ids[:at], blocks=child.blocks[:at], parent=child.parent)
        upper.children = {child.ids[at]: child}
        child.parent.children[child.ids[0]] = upper
        child.parent = upper
        del child.ids[:at], child.blocks[:at]
        return upper

    node, length = walk_from(self.root, list(token_ids)), 0
    above = node
    while above.parent is not None:
        length += len(above.ids)
        above = above.parent
    return node, length


@attempt_at(RIGHT, WALK, RadixTree)
def walk_with_a_new_lower_node(self, token_ids):
    """The old node keeps its place and becomes the upper part."""
    self.walks += 1
    node, at = self.root, 0
    node.stamp = self.walks
    while at < len(token_ids):
        if token_ids[at] not in node.children:
            return node, at
        node, start = node.children[token_ids[at]], at
        before, node.stamp = node.stamp, self.walks
        pairs = zip(node.ids, token_ids[start:], strict=False)
        at += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if (cut := at - start) < len(node.ids):
            lower = Node(node.ids[cut:], node.blocks[cut:], node, node.children, before)
            for child in lower.children.values():
                child.parent = lower
            node.ids, node.blocks = node.ids[:cut], node.blocks[:cut]
            node.children = {lower.ids[0]: lower}
            return node, at
    return node, at


@attempt_at(RIGHT, WALK, RadixTree)
def walk_token_by_token(self, token_ids):
    self.walks += 1
    way, place, length = [self.root], 0, 0
    for token in token_ids:
        node = way[-1]
        if place == len(node.ids):
            if token not in node.children:
                break
            way.append(node.children[token])
            place = 0
        elif node.ids[place] != token:
            break
        place, length = place + 1, length + 1
    last = way[-1]
    if place < len(last.ids):
        above = way[-2]
        upper = Node(last.ids[:place], last.blocks[:place], above, {last.ids[place]: last})
        above.children.update({last.ids[0]: upper})
        last.ids, last.blocks, last.parent = last.ids[place:], last.blocks[place:], upper
        way[-1] = upper
    for node in way:
        node.stamp = self.walks
    return [way[-1], length]


@wrong_at(WALK, RadixTree, "walk returns two things, a node and a length; this is a Node.")
def walk_returns_the_node(self, token_ids):
    return RadixTree.walk(self, token_ids)[0]


@wrong_at(WALK, RadixTree, "walk returns two things, a node and a length; this is None. Is a `ret")
def walk_returns_nothing(self, token_ids):
    RadixTree.walk(self, token_ids)


@wrong_at(WALK, RadixTree, "The node that `walk([])` returned is a list; expected: it is at [].")
def walk_returns_ids(self, token_ids):
    node, length = RadixTree.walk(self, token_ids)
    return node.ids, length


@wrong_at(WALK, RadixTree, "The node that `walk([])` returned is not in the tree; expected: it is ")
def walk_returns_a_copy(self, token_ids):
    node, length = RadixTree.walk(self, token_ids)
    return Node(node.ids, node.blocks, node.parent, node.children, node.stamp), length


@wrong_at(WALK, RadixTree, " has children under [], and another parent; expected: it has children ")
def walk_forgets_all_parents(self, token_ids):
    node, length = RadixTree.walk(self, token_ids)
    if node is not self.root:
        node.parent = None
    return node, length


@wrong_at(WALK, RadixTree, "; expected: it has children under []")
def walk_into_a_circle(self, token_ids):
    """Its own text stands behind every node, for ever."""
    node, length = RadixTree.walk(self, token_ids)
    if node.ids:
        node.children[node.ids[0]] = node
    return node, length


@wrong_at(WALK, RadixTree, ", once more, after `walk([")
def walk_through_an_empty_edge(self, token_ids):
    """There is a node more between an upper part and its lower one."""
    node, length = RadixTree.walk(self, token_ids)
    for first, child in node.children.items() if node.parent else ():
        child.parent = node.children[first] = Node([], [], node, {first: child}, node.stamp)
    return node, length


@wrong_at(WALK, RadixTree, "The node at [] after `walk([])` has children under [7]; expected: it ")
def walk_among_what_is_no_node(self, token_ids):
    node, length = RadixTree.walk(self, token_ids)
    self.root.children[7] = ("no", "node")
    return node, length


@wrong_at(WALK, RadixTree, "The result is right, but `steps[1][1]` is no longer what it was")
def walk_that_eats_its_text(self, token_ids):
    node, length = RadixTree.walk(self, token_ids)
    del token_ids[:length]
    return node, length


@attempt_at(RIGHT, EVICT, RadixTree)
def evict_from_a_heap(self, needed, unused):
    heap, free = [], []

    def consider(node):
        if node is not self.root and not node.children and all(unused(b) for b in node.blocks):
            heapq.heappush(heap, (node.stamp, id(node), node))

    for leaf in list(self.leaves()):
        consider(leaf)
    while heap and len(free) < needed:
        _, _, leaf = heapq.heappop(heap)
        free.extend(leaf.blocks)
        leaf.parent.children.pop(leaf.ids[0])
        consider(leaf.parent)
    return free


@attempt_at(RIGHT, EVICT, RadixTree)
def evict_from_a_sorted_list(self, needed, unused):
    """What it returns begins with what went last; nobody has promised an order."""
    found = []
    due = sorted(self.leaves(), key=lambda leaf: leaf.stamp)
    while due and needed > len(found):
        leaf = due.pop(0)
        if [block for block in leaf.blocks if not unused(block)]:
            continue
        found = leaf.blocks + found
        leaf.parent.children = {f: c for f, c in leaf.parent.children.items() if c is not leaf}
        if leaf.parent is not self.root and not leaf.parent.children:
            insort(due, leaf.parent, key=lambda leaf: leaf.stamp)
    return found


@attempt_at(RIGHT, EVICT, RadixTree)
def evict_recursively(self, needed, unused):
    def leaves_below(node):
        for child in node.children.values():
            yield from leaves_below(child) if child.children else [child]

    if needed <= 0:
        return []
    may_go = [
        leaf for leaf in leaves_below(self.root) if not any(not unused(b) for b in leaf.blocks)
    ]
    if not may_go:
        return []
    first, *_ = sorted(may_go, key=lambda leaf: leaf.stamp)
    del first.parent.children[first.ids[0]]
    return first.blocks + self.evict(needed - len(first.blocks), unused)


@wrong_at(
    EVICT, RadixTree, "The list of blocks that `evict(1, …)` returned is None; expected: it is"
)
def evict_returns_nothing(self, needed, unused):
    RadixTree.evict(self, needed, unused)


@wrong_at(EVICT, RadixTree, "returned is a set; expected: it is [].")
def evict_as_a_set(self, needed, unused):
    return set(RadixTree.evict(self, needed, unused))


@wrong_at(EVICT, RadixTree, "Take `yield` out of it")
def evict_one_by_one(self, needed, unused):
    yield from RadixTree.evict(self, needed, unused)


@wrong_at(EVICT, RadixTree, "The list of blocks that `evict(1, …)` returned is [[")
def evict_in_lists(self, needed, unused):
    return [[block] for block in RadixTree.evict(self, needed, unused)]


@wrong_at(EVICT, RadixTree, "`evict(1, …)` returned is [")
def evict_no_more_than_needed(self, needed, unused):
    return RadixTree.evict(self, needed, unused)[:needed]


@wrong_at(EVICT, RadixTree, "The stamp at [] after `evict(1, …)` is 1; expected 0.")
def evict_and_stamp(self, needed, unused):
    evicted = RadixTree.evict(self, needed, unused)
    self.walk([])
    return evicted


@wrong_at(EVICT, RadixTree, " has children under []; expected: it has children under [")
def evict_all_at_once(self, needed, unused):
    evicted = RadixTree.evict(self, needed, unused)
    if not evicted:
        self.root.children.clear()
    return evicted


# ------------------------------------------------------------------------------- who is served next


@attempt_at(RIGHT, CHOOSE_NEXT)
def choose_by_index(matched, waited, patience):
    if not matched or len(matched) != len(waited):
        raise ValueError("nobody to choose")
    longest = max(waited)
    return waited.index(longest) if longest > patience else matched.index(max(matched))


@attempt_at(RIGHT, CHOOSE_NEXT)
def choose_in_one_loop(matched, waited, patience):
    if len(matched) != len(waited) or len(matched) == 0:
        raise ValueError("nobody to choose")
    best, found, longest = 0, -1, patience
    for place, (length, times) in enumerate(zip(matched, waited, strict=True)):
        if times > longest:
            best, longest = place, times
        elif longest == patience and length > found:
            best, found = place, length
    return best


@attempt_at(RIGHT, CHOOSE_NEXT)
def choose_by_numpy(matched, waited, patience):
    if not len(matched) == len(waited) > 0:
        raise ValueError("nobody to choose")
    late = np.where(np.array(waited) > patience, waited, -1)
    return np.argmax(late) if late.max() >= 0 else np.argmax(matched)


@attempt_at(RIGHT, CHOOSE_NEXT)
def choose_a_tensor(matched, waited, patience):
    return torch.tensor(choose_next(matched, waited, patience))


@wrong_at(CHOOSE_NEXT, None, "is None; expected: it is 0. Is a `return` missing?")
def choose_nobody(matched, waited, patience):
    choose_next(matched, waited, patience)


@wrong_at(CHOOSE_NEXT, None, "expected: it is 0.")
def choose_a_length(matched, waited, patience):
    return matched[choose_next(matched, waited, patience)]


@wrong_at(CHOOSE_NEXT, None, "is 0.0; expected: it is 0.")
def choose_a_float(matched, waited, patience):
    return float(choose_next(matched, waited, patience))


@wrong_at(CHOOSE_NEXT, None, "The place from `choose_next([")
def choose_from_the_end(matched, waited, patience):
    return choose_next(matched, waited, patience) - len(matched)


@wrong_at(CHOOSE_NEXT, None, "The result is right, but `choices[0][1][0]` is no longer what it was")
def choose_and_count(matched, waited, patience):
    place = choose_next(matched, waited, patience)
    for other in range(len(waited)):
        waited[other] += other != place
    return place


@wrong_at(CHOOSE_NEXT, None, "went through; expected: it was refused with a ValueError.")
def choose_whatever_comes(matched, waited, patience):
    pairs = list(zip(matched, waited, strict=False))
    return choose_next(*map(list, zip(*pairs, strict=True)), patience) if pairs else 0


# -------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(exercise: str, attempt: Any) -> None:
    for seed in range(3):
        judgement = judge(EXERCISES[exercise], attempt, seed)
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.parametrize(("exercise", "attempt", "said"), WRONGS)
def test_what_is_said_of_a_wrong_one(exercise: str, attempt: Any, said: str) -> None:
    judgement = judge(EXERCISES[exercise], attempt)
    assert judgement.status == WRONG
    assert said in judgement.message


def test_a_walk_without_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a circle, whose one node is its own child."""

    def walk_in_a_circle(self, token_ids):
        node, length = RadixTree.walk(self, token_ids)
        while node.children and length:
            node = next(iter(node.children.values()))
            node.children = {0: node}
        return node, length

    monkeypatch.setattr(judge_module, "SECONDS", 1.0)
    judgement = judge(EXERCISES[WALK], with_method(RadixTree, WALK, walk_in_a_circle))
    assert judgement.status == WRONG
    assert judgement.stopped


# ------------------------------------------------------------------------------ what cases hold


def records(exercise: str, what: str) -> list[Any]:
    """All that was seen of something in the reference, whatever the case."""
    (trial,) = trials(EXERCISES[exercise])
    seen = [record for outcome in trial.expected for record in outcome.seen]
    return [record.value for record in seen if record.what.startswith(what)]


def test_the_cases_reach_what_is_rare() -> None:
    assert {0, 1, 2} < {*records(WALK, "The length")}
    assert {0, 1, 2} < {*records(WALK, "The number of known tokens")}
    evicted = [
        value.count(",") + 1 for value in records(EVICT, "The list of blocks") if value != "is []"
    ]
    assert {1, 2, 3} < {*evicted}
    assert "is []" in records(EVICT, "The list of blocks")
    assert "was refused with a ValueError" in records(CHOOSE_NEXT, "`choose_next(")


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_tells_the_policies_apart(seed: int) -> None:
    """One queue at least is served otherwise by each of them, and the longest match saves work."""
    queues = [case.data["queue"] for case in trials(EXERCISES[CHOOSE_NEXT], seed)[0].cases]
    computed: Counter[str] = Counter()
    orders: dict[str, list[Any]] = {}
    for name, policy in POLICIES.items():
        for queue in filter(None, queues):
            tokens, _, order = served(policy, **queue)
            computed[name] += tokens.value
            orders.setdefault(name, []).append(order.value)
    assert computed["the longest match"] < computed["with patience"] < computed["first come"]
    assert len({str(order) for order in orders.values()}) == 3


POLICIES: dict[str, Callable[..., int]] = {
    "first come": lambda matched, waited, patience: 0,
    "with patience": choose_next,
    "the longest match": lambda matched, waited, patience: choose_next(matched, waited, 99),
}


# ------------------------------------------------------------------------------------ the drivers


@given(st.lists(st.integers(0, 2), max_size=9), st.integers(3, 9))
def test_a_queue_finds_what_a_manager_would(groups: list[int], num_blocks: int) -> None:
    """Texts of three blocks, two of which their group has in common."""
    cache, manager = Beginnings(num_blocks, 4), PrefixManager(num_blocks, 4)
    for number, group in enumerate(groups):
        text = [*range(100 * group, 100 * group + 8), *range(1000 + 4 * number, 1004 + 4 * number)]
        assert cache.match(text) == 4 * len(manager.match(text))
        assert cache.match(text[:8]) == 4 * len(manager.match(text[:8]))
        cache.serve(text)
        assert manager.admit(0, text) % 4 == 0
        manager.publish(0, text, len(text))
        manager.free(0)


def test_a_tree_is_looked_at_though_it_is_none() -> None:
    """Circles come to an end, and what is no node is named."""
    tree: Any = RadixTree()
    tree.insert([1, 2, 3], [10, 20, 30])
    node, _ = tree.walk([1])
    node.children[1] = node
    node.children[9] = "text"
    told = [(what, value) for what, value, _ in told_of(nodes_of(tree), "")]
    assert ("The node at [1]", "has children under [1, 2, 9]") in told
    assert ("The node at [1], once more,", "is a str") in told
    assert ("The node at [1, 1]", "has children under [1, 2, 9], and another parent") in told
    assert len(nodes_of(tree)) == 5
