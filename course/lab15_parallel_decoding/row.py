"""Lab 15: trees of guesses from a draft model, from trained heads, and from the model itself."""

from collections.abc import Callable, Sequence
from typing import Any

from course.lab06_speculative.row import draft_for
from solutions.parallel.proposers import Heads, HeadsTree
from solutions.parallel.trees import Decoded
from solutions.speculative import Round
from timing.table import Absent, Bench, Ids, Own, Prepared, Rounds, Rows, kv_bytes
from timing.table.workloads import LENGTHS

TREE, MEDUSA = (2, 1, 1, 1), (2, 1, 1)  # children below each node, level by level
LOOKAHEAD = 5, 3, 5  # width of the window, length of an n-gram, n-grams of a token
WINDOW = 4  # of Jacobi decoding

NewProposer = Callable[[Sequence[Any], int], Any]  # from the models and the length of the text


def rounds_of(prompt: Ids, decoded: Decoded) -> list[Round]:
    """Return a round for each forward pass. The first one is the prefill, which drafts nothing."""
    first = Round([], 0, [decoded.ids[len(prompt)]])
    later = [Round(c.tree.tokens[1:], len(c.path) - 1, c.new) for c in decoded.calls]
    return [first, *later]


def by_trees(bench: Bench, about: str, models: list[Any], new_proposer: NewProposer) -> Rounds:
    lab = bench.lab("parallel_decoding")

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *_: Any) -> list[Round]:
        proposer = new_proposer(models, len(prompt) + limit)
        return rounds_of(prompt, lab.generate_tree(models[0], proposer, prompt, limit))

    return Rounds(f"{about} (lab 15)", models, generate, kv_bytes.of_object)


def tree(bench: Bench) -> Rounds:
    lab, model = bench.lab("parallel_decoding"), bench.quick()
    draft, name = draft_for(bench, model)
    about = f"trees of drafts from {name}, {TREE} below a node, one forward pass each"
    return by_trees(
        bench, about, [model, draft], lambda models, end: lab.ModelTree(models[1], end, TREE)
    )


def medusa(bench: Bench) -> Prepared:
    folder, model = bench.folder.with_name(f"{bench.folder.name}-heads"), bench.quick()
    if not folder.is_dir():
        return Absent(f"it needs trained heads, and {bench.folder.name} has none: see models/.")
    heads = Heads.from_pretrained(folder).to(bench.device)
    about = f"trees from trained heads, {MEDUSA} below a node, one forward pass each"
    return by_trees(bench, about, [model], lambda models, _: HeadsTree(models[0], heads, MEDUSA))


def lookahead(bench: Bench) -> Rounds:
    lab = bench.lab("parallel_decoding")
    about = "lookahead decoding, window {}, n-grams of {}, up to {} verified".format(*LOOKAHEAD)
    return by_trees(bench, about, [bench.quick()], lambda *_: lab.Lookahead(*LOOKAHEAD))


def jacobi(bench: Bench) -> Rounds:
    lab = bench.lab("parallel_decoding")

    def generate(models: Sequence[Any], prompt: Ids, limit: int, *_: Any) -> list[Round]:
        return rounds_of(prompt, lab.generate_jacobi(models[0], prompt, limit, WINDOW))

    about = f"Jacobi decoding: the model corrects its own guess of {WINDOW} tokens (lab 15)"
    return Rounds(about, [bench.quick()], generate, kv_bytes.of_object)


ROWS: Rows = {
    "tree": {LENGTHS: tree},
    "medusa": {LENGTHS: medusa},
    "lookahead": {LENGTHS: lookahead},
    "jacobi": {LENGTHS: jacobi},
}
PARTS = "generate_tree", "tree_layout", "accept_path", "TreeCache.keep"
OWN = [Own("your parallel decoding (lab 15)", "parallel_decoding", PARTS, [LENGTHS], tree)]
