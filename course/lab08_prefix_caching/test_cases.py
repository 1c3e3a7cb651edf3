"""Lab 8: two drivers agree, a broken tree is read, a queue tells policies apart."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autograder.attempt.drivers.prefix_caching import Beginnings, nodes_of, served, told_of
from autograder.exercises import exercises
from solutions.prefix_caching import PrefixManager, RadixTree, choose_next
from tests.common.trials import cases_of, seeds, trials


@seeds
def test_what_a_newcomer_finds_is_prescribed_as_a_right_match_finds_it(seed: int) -> None:
    """After the last step each request holds the same blocks, by hand and as built."""
    by_hand, as_built = trials(exercises()["prefix_caching.PrefixManager.admit"], seed)
    for one, other in zip(by_hand.expected, as_built.expected, strict=True):
        for what in ("`tables`", "`ref_counts`", "`free_blocks`", "`queried` and `hits`"):
            last = [[s.value for s in each.seen if s.what == what][-1] for each in (one, other)]
            assert last[0] == last[1]


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


POLICIES: dict[str, Callable[..., int]] = {
    "first come": lambda matched, waited, patience: 0,
    "with patience": choose_next,
    "the longest match": lambda matched, waited, patience: choose_next(matched, waited, 99),
}


@seeds
def test_a_queue_tells_the_policies_apart(seed: int) -> None:
    """One queue at least is served otherwise by each of them, and the longest match saves work."""
    cases = cases_of(exercises()["prefix_caching.choose_next"], seed)
    queues = [case.data["queue"] for case in cases if case.data["queue"]]
    computed: Counter[str] = Counter()
    orders = set()
    for name, policy in POLICIES.items():
        results = [served(policy, **queue) for queue in queues]
        computed[name] = sum(tokens.value for tokens, _, _ in results)
        orders.add(str([order.value for _, _, order in results]))
    assert computed["the longest match"] < computed["with patience"] < computed["first come"]
    assert len(orders) == 3


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
