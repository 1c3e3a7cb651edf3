"""What the pictures are handed."""

from collections import deque
from types import SimpleNamespace

from solutions.prefix_caching import Node
from tests.samples import decode, of
from visuals import prefix_caching as visuals

# The first computes all of its first prompt; the other finds what both begin with.
CHATS = [[(10, 0, 4), (18, 14, 4)], [(10, 8, 4), (18, 12, 6), (30, 24, 2)]]
MOMENTS = [(3, 0, 0), (5, 2, 0), (4, 4, 2), (6, 1, 3)]


def knowing_manager() -> SimpleNamespace:
    return SimpleNamespace(
        tables={3: [0, 2], 5: [2, 1]}, free_blocks=deque([4, 3]), block_hash={2: b"x", 3: b"y"}
    )


def tree() -> Node:
    """Of one text: the, a fox, and."""
    return Node(children={0: Node([0, 6, 2], stamp=1)}, stamp=1)


def split(root: Node) -> None:
    """After: the, a fox, a queen, a new line."""
    old = root.children[0]
    below = {2: old, 3: Node([3, 4], stamp=2)}
    root.children[0] = Node([0, 6], children=below, stamp=2)
    old.ids, root.stamp = [2], 2


def split_tree() -> Node:
    root = tree()
    split(root)
    return root


CIRCLE = {10: 0.8, 6: 0.0, 9: 0.7, 8: 0.0}  # documents asked for in a circle
RATES = {"oldest first": CIRCLE, "newest first": {6: 0.5, 8: 0.6, 10: 0.8}}

EXAMPLES = (
    of(visuals.chat_turns, CHATS),
    of(visuals.show_pool, {"<now>": visuals.keep_pool(knowing_manager())}),
    of(visuals.pool_strip, MOMENTS, 8),
    of(visuals.explore_pools, dict.fromkeys((8, 9), MOMENTS), {8: "few", 9: "more"}),
    of(visuals.show_trees, {"<i>": visuals.keep(tree())}, decode),
    of(visuals.hit_rate_curves, RATES, 9),
    of(visuals.hit_rate_curves, {}),
    of(visuals.grain, {16: 2368, 1: 1960}, 1960),
)
