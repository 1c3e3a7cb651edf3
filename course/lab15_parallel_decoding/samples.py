"""What the pictures are handed."""

import torch

from solutions.parallel.trees import Call, Tree
from tests.samples import END, of, word
from visuals import parallel_decoding as visuals


def tree_of(parents: list[int], tokens: list[int]) -> Tree:
    tree = Tree(tokens[0])
    for parent, token in zip(parents[1:], tokens[1:], strict=True):
        tree.child(parent, token)
    return tree


def layout(parents: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Return a mask, instead of a learner's function; each node sees itself and its parent."""
    own = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents[1:], start=1):
        own[node, parent] = True
    return own, []


PARENTS = [-1, 0, 0, 1, 1, 2]
TREE = tree_of(PARENTS, [1, 2, 3, 4, 5, 6])
SECOND_BRANCH = Call(TREE, [0, 2, 5], [3, 6, 7])
PARTS = {"window": [1, 3], "columns": [4], "candidates": [2, 5]}
CHAIN = Call(tree_of([-1, 0, 1, 2], [7, 1, 2, 3]), [0, 1], [1, 5])
ALONE = Call(tree_of([-1], [5]), [0], [4])
ENDED = Call(tree_of([-1, 0, 1], [4, 1, END]), [0, 1, 2], [1, END])
CALLS = [SECOND_BRANCH, ENDED]
METHODS = {"chain": (5.0, 2.5), "tree": (22.0, 3.5)}


def price(rows: int) -> float:
    return 1 + rows / 20


EXAMPLES = (
    of(visuals.show_guesses, [CHAIN, ALONE, ENDED], word),
    of(visuals.show_tree, TREE, word, layout(PARENTS)[0], [0, 2, 5]),
    of(visuals.show_tree, TREE, word, layout(PARENTS)[0], [0, 2, 5], PARTS),
    of(visuals.explore_calls, [SECOND_BRANCH, CHAIN, ALONE, ENDED], word, layout),
    of(visuals.show_branches, "so", CALLS, word),
    of(visuals.rows_and_tokens, price, METHODS),
    of(visuals.predicted_and_measured, {"chain": 1.8, "tree": 0.9}, {"chain": 1.6}),
)
