"""The exercises of lab 15: guesses, trees, a kept path, sampling, the loop, a pool, labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, product, repeat
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.drivers import parallel_decoding as drivers
from autograder.judging.comparisons import compare_with_work
from autograder.judging.draws import (
    LAYERS,
    LOOP,
    draw,
    normal,
    prompt_list,
    prompt_where,
    small_model,
    until,
)
from autograder.judging.exercise import Case, Exercise, Lends, Service, case_of
from autograder.lending.cached import lend_cached_model
from autograder.lending.lent import Lent
from gpt import GPTLMHead
from solutions import parallel_decoding as reference
from solutions.kv_cache import CachedLMHead
from solutions.parallel.trees import Tree

Generator = torch.Generator
FULL, VOCAB = LOOP.n_positions, LOOP.vocab_size

# ----------------------------------------------------------------------------------------- Jacobi


def jacobi_cases(generator: Generator) -> list[Case]:
    as_case = case_of("guess", "best")

    def case(label: str, size: int, *wrong: int) -> Case:
        """A wrong guess is the model's token plus one; the others are the model's tokens."""
        best = torch.randperm(VOCAB, generator=generator)[: size + 1].tolist()
        guess = torch.tensor(best[:size], dtype=torch.int64).tolist()  # equal, not the same
        for place in wrong:
            guess[place] = (guess[place] + 1) % VOCAB
        return as_case(label, guess, best)

    return [
        case("no guess", 0),
        case("one guess, wrong", 1, 0),
        case("four guesses, all right", 4),
        case("four guesses, the second wrong", 4, 1),
        case("four guesses, two wrong", 4, 1, 3),
        case("four other guesses, two wrong", 4, 1, 3),
        case("seven guesses, two wrong", 7, draw(generator, 1, 4), 6),
        as_case("guesses that come one place early", [7, 4, 6], [3, 7, 4, 6]),
        as_case("the same token, and one miss", [6, 6, 6, 6], [6, 6, 2, 6, 6]),
        as_case("token 0", [0, 4, 0], [0, 4, 5, 0]),
        as_case("the guess is all that the model says, in another order", [4, 7], [7, 4, 2]),
    ]


# ------------------------------------------------------------------------------------------ trees


def random_parents(generator: Generator, size: int) -> list[int]:
    return [-1, *(draw(generator, 0, node - 1) for node in range(1, size))]


# By a label, the parents of some trees. Siblings, cousins and both usual orders are among them.
TREES = {
    "node 0 alone": [-1],
    "a chain": [-1, 0, 1, 2, 3],
    "a star": [-1, 0, 0, 0, 0],
    "level by level": [-1, 0, 0, 1, 1, 2, 2],
    "branch by branch": [-1, 0, 1, 1, 0, 4, 4],
    "a short branch before a long one": [-1, 0, 0, 2, 3, 3],
    "a long branch before a short one": [-1, 0, 1, 2, 1, 0],
    "branches in turn": [-1, 0, 0, 1, 2, 3, 4],
}


def layout_cases(generator: Generator) -> list[Case]:
    case = case_of("parents")
    return [
        *(case(label, list(parents)) for label, parents in TREES.items()),
        case("eight nodes in any order", random_parents(generator, 8)),
        case("eight other nodes in any order", random_parents(generator, 8)),
    ]


def path_cases(generator: Generator) -> list[Case]:
    as_case = case_of("parents", "tokens", "best")

    def case(label: str, tree: str, *path: int, traps: Mapping[int, int] | None = None) -> Case:
        """A tree whose model accepts these nodes below node 0; all tokens are different.

        traps: the model's token after the first node is the token of the second one.
        """
        parents, order = TREES[tree], torch.randperm(VOCAB, generator=generator)
        tokens, best = order[: len(parents)].tolist(), order[-len(parents) :].tolist()
        for node in path:
            best[parents[node]] = int(order[node])  # equal, not the same
        for node, other in (traps or {}).items():
            best[node] = tokens[other]
        return as_case(label, list(parents), tokens, best)

    level, branches = "level by level", "branch by branch"
    return [
        case("node 0 alone", "node 0 alone"),
        case("a chain, all accepted", "a chain", 1, 2, 3, 4),
        case("a chain, the second rejected, the third right", "a chain", 1, traps={2: 3}),
        case("a star, the last accepted", "a star", 4),
        case("a star, none accepted", "a star"),
        case("a tree, level by level", level, 2, 5),
        case("another tree, level by level", level, 1, 4),
        case("a tree, branch by branch", branches, 4, 6),
        case("the longest branch isn't right", "a long branch before a short one", 5),
        case("the right branch comes last", "a short branch before a long one", 2, 3, 5),
        case("branches in turn, the first one right", "branches in turn", 1, 3, 5),
        case("a match below a rejected node", level, 2, traps={1: 3}),
        case("a longer match below a rejected node", branches, 4, traps={1: 2}),
        case("a node that its own model's token repeats", level, 2, traps={1: 1, 3: 3, 6: 6}),
        case("a token of another level", level, traps={0: 4}),
        case("a cousin's token", level, 2, traps={2: 4}),
        as_case("token 0", [-1, 0, 0, 2], [5, 3, 0, 0], [0, 7, 0, 9]),
        as_case("two equal siblings", [-1, 0, 0], [5, 9, 9], [9, 3, 3]),
        as_case("two pairs of equal nodes", [-1, 0, 0, 1, 2], [5, 9, 9, 4, 4], [9, 4, 4, 6, 6]),
    ]


# ------------------------------------------------------------------------------ keeping a path


def keep_cases(generator: Generator) -> list[Case]:
    heads, layers = LAYERS.n_head, LAYERS.n_layer

    def tokens(count: int, own: Tensor | None, *keeps: tuple[int, list[int]]) -> dict[str, Any]:
        shape = layers, 1, heads, count, LAYERS.head_dim
        parts = {name: normal(generator, *shape) for name in ("queries", "keys", "values")}
        return {**parts, "own": own, "keeps": list(keeps)}

    def text(count: int) -> dict[str, Any]:
        return tokens(count, None)

    def tree(start: int, parents: Sequence[int], *paths: list[int]) -> dict[str, Any]:
        own, _ = reference.tree_layout(parents)
        return tokens(len(parents), own, *((start, path) for path in paths))

    def case(label: str, *rounds: dict[str, Any]) -> Case:
        about = {"config": asdict(LAYERS), "max_length": 20}
        return Case(label, {**about, "rounds": [*rounds, text(2)]})

    level, branches = TREES["level by level"], TREES["branch by branch"]
    star, line = TREES["a star"], TREES["a chain"]
    return [
        case("two nodes, both kept", text(2), tree(2, [-1, 0], [0, 1])),
        case("the last of a star", text(3), tree(3, star, [0, 4])),
        case("node 0 of seven", text(3), tree(3, level, [0])),
        case("a path with gaps", text(3), tree(3, level, [0, 2, 5])),
        case("a path whose end is the start of the others", text(2), tree(2, branches, [0, 1, 3])),
        case("a path that reads where it has written", text(2), tree(2, branches, [0, 4, 6])),
        case("a chain, all kept", text(4), tree(4, line, [0, 1, 2, 3, 4])),
        case("no text before the tree", tree(0, level, [0, 1, 4])),
        case("two rounds", text(2), tree(2, level, [0, 2, 5]), tree(5, branches, [0, 4, 5])),
        case("kept nodes that are no path", text(2), tree(2, level, [1, 3, 6])),
        case("a path that is no longer there", text(2), tree(2, star, [0, 2], [0, 1], [0, 3])),
        case("a node beyond the cache", text(2), tree(2, star, [0, 5], [0, 4])),
        case("nodes in descending order", text(2), tree(2, star, [0, 4, 1], [0, 4])),
        case("a node before the tree", text(2), tree(2, star, [-1, 0], [0, 2])),
    ]


# ------------------------------------------------------------------------- sampling from a tree


def candidates_cases(generator: Generator) -> list[Case]:
    as_case = case_of("target", "candidates", "uniforms")

    def case(label: str, k: int, accepted: int | None, vocab: int = 8) -> Case:
        """k random candidates, of which this one is accepted."""

        def drawn() -> tuple[Tensor, list[int], Tensor]:
            target = normal(generator, vocab).softmax(dim=-1)
            order = torch.randperm(vocab, generator=generator)
            return target, order[:k].tolist(), torch.rand(k + 1, generator=generator)

        made = until(lambda made: reference.verify_candidates(*made)[0] == accepted, drawn)
        return as_case(label, *made[:2], made[2].unsqueeze(0))

    def exact(label: str, weights: str, candidates: list[int], *uniforms: float) -> Case:
        return as_case(label, shares(weights), candidates, torch.tensor([uniforms]))

    def grid(label: str, weights: str, candidates: Sequence[int], points: int) -> Case:
        """All uniforms of a grid that no threshold splits, so each token comes exactly as often as
        the target says. candidates: places in `weights`, whose tokens are in a drawn order.
        """
        parts = shares(weights)
        order = torch.randperm(len(parts), generator=generator)
        target = torch.empty_like(parts).scatter_(0, order, parts)
        ticks = [(tick + 0.5) / points for tick in range(points)]
        uniforms = torch.tensor([*product(ticks, repeat=len(candidates) + 1)])
        return as_case(label, target, [int(order[place]) for place in candidates], uniforms)

    return [
        exact("no candidate", "2 1 1", [], 0.6),
        exact("one of three tokens, accepted", "2 1 1", [0], 0.3, 0.9),
        exact("one of three tokens, rejected", "2 1 1", [0], 0.7, 0.6),
        case("one candidate, rejected", 1, None),
        case("two candidates, the second accepted", 2, 1),
        case("two other candidates, the second accepted", 2, 1),
        case("four candidates, the last accepted", 4, 3),
        case("300 tokens, four candidates, all rejected", 4, None, VOCAB),
        exact("a uniform that equals a probability", "2 1 1 0", [0], 0.5, 0.25),
        exact("a uniform that equals what is left of it", "2 1 1 0", [0, 1], 0.75, 0.5, 0.25),
        exact("a candidate of probability 0, and a uniform of 0", "2 1 1 0", [3], 0.0, 0.0),
        exact("the target gives 1 to another token", "0 1 0", [0, 2], 0.0, 0.0, 0.5),
        exact("the candidates have all of it", "1 3 0", [0, 1], 0.5, 0.99, 0.5),
        grid("all uniforms of a grid, one candidate", "4 4 2 2", [0], 12),
        grid("all uniforms of a grid, two candidates", "4 2 1 1", [0, 1], 8),
        grid("a grid, the likelier candidate last", "2 1 1", [1, 0], 12),
        grid("a grid, one candidate has probability 0", "1 1 0 0", [2, 0], 4),
        grid("a grid, three candidates", "4 2 1 1", [0, 1, 2], 4),
    ]


def shares(weights: str) -> Float[Tensor, " vocab"]:
    parts = torch.tensor([*map(float, weights.split())], dtype=torch.float64)
    return parts / parts.sum()


# ------------------------------------------------------------------------------------ the loop


class Planned:
    """Makes trees with a planned fate, from what the model says next.

    plan: for each call its branches as words: r is the right token for its place, any other letter
    a wrong one. Branches with the same beginning share it. The last words are repeated.
    """

    nodes = 1 + FULL

    def __init__(self, generator: Generator, plan: Sequence[str], rank: int) -> None:
        self.generator, self.rank = generator, rank
        self.plan: Iterator[str] = chain(plan, repeat(plan[-1]))
        self.trees: list[list[list[int]]] = []

    def propose(self, ids: Sequence[int], depth: int, kv_cache: object) -> Tree:
        right = following(ids, depth, self.rank)
        order = torch.randperm(VOCAB, generator=self.generator).tolist()
        wrong = iter([token for token in order if token not in right])
        tokens, tree, branches = dict[str, int](), Tree(ids[-1]), list[list[int]]()
        for word in next(self.plan).split():
            starts = [word[: end + 1] for end in range(min(len(word), depth))]
            for place, start in enumerate(starts):
                if start not in tokens:
                    tokens[start] = right[place] if start[-1] == "r" else next(wrong)
            branches.append([tokens[start] for start in starts])
            tree.add(0, branches[-1])
        self.trees.append(branches)
        return tree

    def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
        """It learns nothing."""


def following(ids: Sequence[int], count: int, rank: int) -> list[int]:
    """The next tokens of a text, each the one of this rank; 0 is the likeliest."""
    text, model = list(ids), small_model(GPTLMHead)
    for _ in range(count):
        logits = model(torch.tensor([text]), torch.arange(len(text))[None])[0, -1]
        text.append(int(logits.argsort(descending=True)[rank]))
    return text[len(ids) :]


def generate_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        prompt: list[int] | int,
        new: int,
        *plan: str,
        rank: int | None = None,
        eos: int | None = None,
    ) -> Case:
        ids = prompt_list(generator, prompt) if isinstance(prompt, int) else prompt
        proposer = Planned(generator, plan, rank or 0)
        choose = drivers.chooser(drivers.Prescribed([]), proposer.rank)
        reference.generate_tree(small_model(CachedLMHead), proposer, ids, new, choose, eos)
        asked = {"prompt": ids, "max_new_tokens": new, "trees": proposer.trees}
        return Case(label, {**asked, "rank": rank, "eos_token_id": eos})

    def ends(label: str, place: int, *plan: str) -> Case:
        """EOS is the new token at this place, and at no earlier one."""

        def wanted(ids: list[int], new: list[int]) -> bool:
            return new[place] not in new[:place] and new[place] > 256  # `is` is no `==`

        ids, new = prompt_where(generator, 3, wanted)
        return case(f"EOS is {label}", ids, 9, *plan, eos=new[place])

    zero, _ = prompt_where(generator, 3, lambda _, new: 0 in new[1:4] and new[0] != 0)
    own, _ = prompt_where(generator, 3, lambda _, new: LOOP.eos_token_id in new[:4])
    inside, _ = prompt_where(generator, 4, lambda ids, new: ids[1] not in [ids[-1], *new])
    mixed = "wr rwr rrw", "r", "", "ww rr w", "w"
    return [
        case("one new token", 2, 1, "rr"),
        case("no guesses at all", 3, 4, ""),
        case("a chain of three, the second wrong", 3, 5, "rwr"),
        case("two branches, the second right", 2, 4, "ww rr"),
        case("two other branches, the second right", 2, 4, "ww rr"),
        case("level by level", 3, 6, "w r ww rw wr rr rrr"),
        case("many children, the last right", 2, 5, "w v u t r"),
        case("a right token below a wrong one", 2, 5, "wrr vrr"),
        case("several rounds", 2, 11, *mixed),
        case("the last call has room for one level", 2, 6, "rr rw", "rrr wr"),
        case("`choose` takes the likeliest", 2, 8, *mixed, rank=0),
        case("`choose` takes the second likeliest", 2, 8, *mixed, rank=1),
        ends("the token of the prefill", 0, "rr"),
        ends("the first of the accepted nodes", 1, "rrr"),
        ends("among the accepted nodes", 3, "ww rrrr"),
        ends("the model's own token", 4, "w rrr"),
        case("the EOS token's id is 0", zero, 9, "rrrr", eos=0),
        case("the prompt contains EOS", inside, 5, "rr", eos=inside[1]),
        case("the model's own EOS comes, but eos_token_id is None", own, 6, "rr"),
        case("the context is full before max_new_tokens", FULL - 6, 20, "rr w", "rrr"),
        case("one place is left in the context", FULL - 1, 5, "rr"),
    ]


class Keeper(Lent):
    """Works out what a cache holds after it has kept a path."""

    lends = Lends(call={"kept"})

    def kept(
        self, keys: Tensor, values: Tensor, length: int, start: int, path: list[int]
    ) -> tuple[Tensor, Tensor, int]:
        cache: Any = SimpleNamespace(keys=keys.clone(), values=values.clone(), length=length)
        reference.TreeCache.keep(cache, start, path)
        return cache.keys, cache.values, cache.length


def lend_model_and_keeper(data: Mapping[str, Any]) -> dict[str, Service]:
    return {**lend_cached_model(data), "keeper": Keeper()}


# --------------------------------------------------------------------------- a pool, and labels


def pool_cases(generator: Generator) -> list[Case]:
    def case(label: str, n: int, size: int, words: str) -> Case:
        """Each word is an n-gram; its digits stand for tokens that are drawn."""
        drawn = torch.randperm(VOCAB, generator=generator).tolist()
        tokens = [*sorted(drawn[:5]), *drawn[5:10]]
        grams = [[tokens[int(digit)] for digit in word] for word in words.split()]
        return Case(label, {"n": n, "size": size, "grams": grams})

    def exact(label: str, n: int, size: int, *grams: list[int]) -> Case:
        return Case(label, {"n": n, "size": size, "grams": list(grams)})

    return [
        case("one n-gram", 3, 4, "123"),
        case("two n-grams of one token", 3, 4, "123 145"),
        case("two other n-grams of one token", 3, 4, "123 145"),
        case("n-grams of five tokens", 5, 3, "12345 12346 52345"),
        case("the same n-gram twice", 3, 4, "123 123"),
        case("one that is known becomes the newest", 3, 4, "123 145 167 123"),
        case("more than there is room for", 3, 2, "123 145 167 189"),
        case("one that is known, in a full list", 3, 3, "123 145 167 145"),
        case("the oldest is renewed, then one more comes", 3, 2, "123 145 123 167"),
        case("room for one", 3, 1, "123 145 145 423 123"),
        case("the same rest after different tokens", 3, 2, "123 423 523 145"),
        exact("token 0", 3, 2, [0, 0, 0], [0, 1, 0], [0, 0, 0]),
        exact("too few tokens", 3, 2, [4, 5, 6], [4, 5], [4, 7, 8]),
    ]


def label_cases(generator: Generator) -> list[Case]:
    def case(label: str, batch: int, seq: int, heads: int) -> Case:
        own = torch.randint(VOCAB, (batch, seq), generator=generator)
        return Case(label, {"own": own, "heads": heads})

    def exact(label: str, own: list[list[int]], heads: int) -> Case:
        return Case(label, {"own": torch.tensor(own), "heads": heads})

    return [
        exact("one head, three tokens", [[7, 8, 9]], 1),
        case("three heads", 1, 6, 3),
        case("two texts, two heads", 2, 5, 2),
        case("two other texts, two heads", 2, 5, 2),
        case("as many texts as tokens and heads", 3, 3, 3),
        case("more heads than tokens", 2, 3, 5),
        exact("token 0", [[0, 0, 3, 0], [0, 1, 0, 0]], 2),
    ]


with_keeper = partial(
    Exercise,
    compare=compare_with_work,
    services=lend_model_and_keeper,
    in_bundle=lend_cached_model,
)

EXERCISES = (
    Exercise("parallel_decoding.jacobi_step", drivers.jacobi_step, jacobi_cases),
    Exercise("parallel_decoding.tree_layout", drivers.tree_layout, layout_cases),
    Exercise("parallel_decoding.accept_path", drivers.accept_path, path_cases),
    Exercise("parallel_decoding.TreeCache.keep", drivers.keep, keep_cases),
    Exercise("parallel_decoding.verify_candidates", drivers.verify_candidates, candidates_cases),
    with_keeper("parallel_decoding.generate_tree", drivers.generate_tree, generate_cases),
    Exercise("parallel_decoding.NGramPool.add", drivers.add, pool_cases),
    Exercise("parallel_decoding.head_labels", drivers.head_labels, label_cases),
)
