"""Drivers of lab 15: guesses, trees, a cache that keeps a path, sampling, the loop, a pool, labels.

In the loop the proposer gives prescribed trees, and keeping a path is lent, so that an error in one
part costs only one exercise.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.attempt.around import lending, notebook_of
from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import is_int, kind_or_none, plain
from autograder.attempt.records import Attempt, Seen, as_it_was, form_of, parts, things, tried
from autograder.attempt.tensors import copied, float_type, snapshot
from gpt import GPTConfig
from solutions.parallel.trees import Tree

Logits = Float[Tensor, "nodes vocab"]


def jacobi_step(attempt: Attempt, guess: list[int], best: list[int]) -> list[Seen]:
    rule = "jacobi_step returns two lists, the certain tokens and the next guess"
    found = parts(attempt(guess, best), rule, "The list of certain tokens", "The next guess")
    return [Seen(name, copied(part)) for name, part, _ in found]


# ------------------------------------------------------------------------------------------ trees


def tree_layout(attempt: Attempt, parents: list[int]) -> list[Seen]:
    rule = "tree_layout returns two tensors, the mask and the depths"
    own, depths = things(2, attempt(parents), rule)
    seen = [Seen("The mask", form_of(own))]
    if isinstance(own, Tensor) and own.ndim == 2:
        for node, row in enumerate(own):
            told = ", ".join(map(str, row.nonzero().flatten().tolist())) or "none"
            seen.append(Seen(f"Node {node}", f"sees these nodes: {told}"))
    form = Seen("What comes with the mask", form_of(depths))
    return [*seen, form, Seen("The tensor of depths", snapshot(depths))]


def accept_path(
    attempt: Attempt, parents: list[int], tokens: list[int], best: list[int]
) -> list[Seen]:
    """Siblings with the same token are equally right: in a path, each counts as the first one.

    Nodes that aren't a path, each below the one before, are shown as they are.
    """
    path, first = attempt(parents, tokens, best), list[int]()
    known: dict[tuple[int, int], int] = {}
    for node, parent in enumerate(parents):
        same = first[parent] if node else parent, tokens[node]
        first.append(known.setdefault(same, node))
    if isinstance(path, list):
        path = [plain(node) for node in path]
        known_nodes = all(type(node) is int and node in range(len(first)) for node in path)
        if known_nodes and [parents[node] for node in path[1:]] == path[:-1]:
            path = [first[node] for node in path]
    return [Seen("The path", path)]


# ------------------------------------------------------------------------------ keeping a path


@torch.no_grad()
def keep(
    attempt: type, config: dict[str, Any], max_length: int, rounds: list[dict[str, Any]]
) -> list[Seen]:
    """In each round a forward pass of some tokens, then calls of `keep`.

    own: the mask of these tokens among themselves, None if they are a text. As in the engine, a
    mask is taken away after its forward pass.
    """
    dtype, seen = float_type(rounds), list[Seen]()
    torch.set_default_dtype(dtype)  # for tensors that an attempt makes without a dtype
    cache = attempt(GPTConfig(**config), 1, max_length, dtype=dtype)
    for number, made in enumerate(rounds, 1):
        if made["own"] is not None:
            cache.own = made["own"]
        parts = (made[name] for name in ("queries", "keys", "values"))
        for layer, given in enumerate(zip(*parts, strict=True)):
            output = cache.attend(layer, *given)
            seen.append(Seen("The output", output, f"for layer {layer} in round {number}"))
        cache.own = None
        for start, path in made["keeps"]:
            before = cache.keys.clone(), cache.values.clone()
            _, went = tried(cache.keep, start, path)
            call, length = f"`keep({start}, {path})` in round {number}", cache.length
            seen += [Seen(call, went), Seen("`length`", length, f"after {call}")]
            if not is_int(length) or not 0 <= length <= max_length:
                return seen
            both = tuple(zip(before, (cache.keys, cache.values), strict=True))
            for place in range(int(length)):
                keys, values = (origin(was, now, place) for was, now in both)
                held = f"holds the keys of {keys}, the values of {values}"
                seen.append(Seen(f"Place {place}", held, f"after {call}"))
    return seen


def origin(before: Tensor, now: Tensor, place: int) -> str:
    """The place before that held, in every layer, what is in this place now."""
    same = (before == now[..., place : place + 1, :]).all(dim=-1).flatten(0, -2).all(dim=0)
    return next((f"place {was}" for was in same.nonzero().flatten().tolist()), "no single place")


# ------------------------------------------------------------------------- sampling from a tree


def verify_candidates(
    attempt: Attempt,
    target: Float[Tensor, " vocab"],
    candidates: list[int],
    uniforms: Float[Tensor, "draws k+1"],
) -> list[Seen]:
    """One draw is looked at itself; of many, how often each token comes."""
    rule = "verify_candidates returns two things, a place or None, and the next token"
    drawn = [things(2, attempt(target, candidates, row), rule) for row in uniforms]
    if len(drawn) == 1:
        ((place, token),) = drawn
        told = "is none" if place is None else f"is candidates[{words(place)}]"
        return [Seen("The accepted candidate", told), Seen("The next token", f"is {words(token)}")]
    counts = Counter(words(token) for _, token in drawn)
    return [
        Seen(f"Token {token}", f"comes {counts[str(token)]} of {len(drawn)} times")
        for token in range(len(target))
    ]


def words(value: Any) -> str:
    return str(int(value)) if is_int(value) else kind_or_none(value)


# ------------------------------------------------------------------------------------ the loop


class Prescribed:
    """A proposer that gives prescribed trees: for each call, the branches below node 0."""

    def __init__(self, trees: list[list[list[int]]]) -> None:
        self.trees, self.calls, self.seen = trees, 0, list[Seen]()
        self.nodes = 1 + max((sum(map(len, tree)) for tree in trees), default=0)

    def propose(self, ids: Sequence[int], depth: int, kv_cache: Any) -> Tree:
        branches = self.trees[self.calls] if self.calls < len(self.trees) else []
        self.calls += 1
        given = {"`ids`": list(ids), "`depth`": depth, "The length of the cache": kv_cache.length}
        self.note("propose", given)
        tree = Tree(ids[-1])
        for branch in branches:
            tree.add(0, branch[: max(depth, 0)])
        return tree

    def learn(self, best: Any, path: Any) -> None:
        self.note("learn", {"`best`": copied(best), "`path`": copied(path)})

    def note(self, method: str, given: dict[str, Any]) -> None:
        self.seen += [Seen(n, v, f"in call {self.calls} of `{method}`") for n, v in given.items()]


def chooser(proposer: Prescribed, rank: int) -> Callable[[Tree, Logits], tuple[list[int], int]]:
    """Return a `choose` that takes the token of a rank after each node; 0 is the likeliest."""

    def choose(tree: Tree, logits: Logits) -> tuple[list[int], int]:
        if proposer.calls:  # not in the prefill
            given = {"`tree.tokens`": list(tree.tokens), "The table of logits": snapshot(logits)}
            proposer.note("choose", given)
        ranked, path = logits.argsort(dim=-1, descending=True)[:, rank].tolist(), [0]
        while (child := tree.children.get((path[-1], ranked[path[-1]]))) is not None:
            path.append(child)
        return path, ranked[path[-1]]

    return choose


def generate_tree(
    attempt: Attempt,
    prompt: list[int],
    max_new_tokens: int,
    trees: list[list[list[int]]],
    model: Any,
    keeper: Any = None,
    **options: int | None,
) -> list[Seen]:
    """Run the loop. options: `rank` and `eos_token_id`; None is left out of the call.

    keeper: is lent to stand for `TreeCache.keep`; without it, the notebook's own is called.
    """
    proposer, own = Prescribed(trees), notebook_of(attempt).get("new_tree_cache")
    rank = options["rank"]
    choose = None if rank is None else sealed(chooser(proposer, rank))
    given = {"choose": choose, "eos_token_id": options["eos_token_id"]}
    given = {name: value for name, value in given.items() if value is not None}
    lent = {} if keeper is None or own is None else {"new_tree_cache": keeping(keeper, own)}
    with lending(attempt, lent):
        trees_of = handle(proposer, "nodes propose learn")
        found = attempt(model, trees_of, prompt, max_new_tokens, **given)
    return [*proposer.seen, *decoded(found)]


def keeping(keeper: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in for new_tree_cache: the lender works out what the cache holds after `keep`."""

    def new_tree_cache(model: Any, max_length: int) -> Any:
        cache = own(model, max_length)

        def keep(start: int, path: Sequence[int]) -> None:
            held = keeper.kept(cache.keys, cache.values, cache.length, start, list(path))
            cache.keys, cache.values, cache.length = held

        cache.keep = sealed(keep)
        return cache

    return sealed(new_tree_cache)


def decoded(found: Any) -> Iterator[Seen]:
    """The text and its calls. Nodes after an EOS may be part of a call's path or not, so `new`
    comes first, which says where the text ends."""
    ids, calls = getattr(found, "ids", None), getattr(found, "calls", None)
    if ids is None or not isinstance(calls, list):
        yield Seen("What it returned", found)
        return
    yield Seen("What it returned", "has `ids` and `calls`")
    yield Seen("`ids`", copied(ids), "of the result")
    for number, call in enumerate(calls, 1):
        path, new = copied(getattr(call, "path", None)), copied(getattr(call, "new", None))
        if isinstance(path, list) and isinstance(new, list):
            path = path[: len(new) + 1]
        tokens = getattr(getattr(call, "tree", None), "tokens", None)
        for name, value in {"`tree.tokens`": tokens, "`new`": new, "`path`": path}.items():
            yield Seen(name, value, f"of call {number}")
    yield Seen("The number of calls", len(calls))


# --------------------------------------------------------------------------- a pool, and labels


def add(attempt: type, n: int, size: int, grams: list[list[int]]) -> list[Seen]:
    """Each n-gram comes in a list of its own, which is emptied afterwards."""
    pool, seen, firsts = attempt(n, size), list[Seen](), sorted({gram[0] for gram in grams})
    for number, gram in enumerate(grams, 1):
        given, call = list(gram), f"`add({gram})` in step {number}"
        _, went = tried(pool.add, given)
        seen += [Seen(call, went), as_it_was("`gram`", given, gram, f"after {call}")]
        given.clear()
        for first in firsts:
            found = shown(pool.candidates(first))
            seen.append(Seen(f"`candidates({first})`", found, f"after {call}"))
    return seen


def shown(found: Any) -> str:
    """Candidates in words; a list of tokens is as good as a tuple."""
    if not isinstance(found, list):
        return f"is {words(found)}"
    return f"is {[plain(list(r) if isinstance(r, (list, tuple)) else r) for r in found]}"


def head_labels(attempt: Attempt, own: Int[Tensor, "batch seq"], heads: int) -> list[Seen]:
    found = attempt(own, heads)
    seen = [Seen("What it returned", form_of(found))]
    if isinstance(found, Tensor) and found.shape == (*own.shape, heads):
        for head, labels in enumerate(found.unbind(dim=-1)):
            seen.append(Seen(f"The tensor of labels of head {head}", labels.clone()))
    return seen
