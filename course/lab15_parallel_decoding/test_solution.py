"""The reference solution of lab 15: whatever is guessed, the output is the model's own.

Greedy text is that of the naive loop, for every proposer. Sampled text has the model's own
distribution, shown by enumeration.
"""

import gc
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import islice, pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from gpt import GPTConfig, load_tokenizer
from solutions import parallel_decoding as lab_15
from solutions.decoding import SamplingParams
from solutions.kv_cache import CachedLMHead, generate
from solutions.parallel.proposers import WEIGHTS, EarlyExit, Heads, HeadsTree, NgramTree
from solutions.parallel.trees import Call, Decoded, Tree, most_nodes, predicted_speed_up, price_of
from solutions.parallel_decoding import (
    Lookahead,
    ModelTree,
    NGramPool,
    accept_path,
    forward,
    generate_jacobi,
    generate_tree,
    head_labels,
    heads_loss,
    jacobi_step,
    new_tree_cache,
    sampling,
    tree_layout,
    verify_candidates,
)
from solutions.speculative import new_logits
from tests.common.engines import (
    CONFIGS,
    Work,
    assert_same,
    continuations,
    model_of,
    naive,
    naive_logits,
    shapes_of_forwards,
    works,
)

one_request = works(most=1)
widths_of_trees = st.lists(st.integers(1, 3), min_size=1, max_size=4)
few = st.integers(1, 4)


@st.composite
def parents_of(draw: st.DrawFn, most: int = 9) -> list[int]:
    """Draw a tree in any order in which parents come first."""
    count = draw(st.integers(1, most))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, count))]


def ancestors(parents: Sequence[int], node: int) -> list[int]:
    """Return the nodes from node 0 down to this one."""
    return [*ancestors(parents, parents[node]), node] if node > 0 else [0]


# ------------------------------------------------------------------------------------- Jacobi


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_a_guess_counts_up_to_the_first_miss(guess: list[int], data: st.DataObject) -> None:
    size = len(guess) + 1
    best = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    certain, later = jacobi_step(guess, best)
    assert certain[:-1] == guess[: len(certain) - 1]
    assert certain + later == best
    assert not later or guess[len(certain) - 1] != certain[-1]


@given(one_request, st.integers(1, 9))
def test_jacobi_gives_the_tokens_of_the_naive_loop(work: Work, window: int) -> None:
    made = generate_jacobi(work.model, work.prompts[0], work.limits[0], window, work.eos)
    assert made.ids == work.expected[0]
    assert_told(work, made)


# -------------------------------------------------------------------------------------- trees


@given(parents_of())
def test_a_node_sees_itself_and_its_ancestors(parents: list[int]) -> None:
    own, depths = tree_layout(parents)
    for node in range(len(parents)):
        assert own[node].nonzero().flatten().tolist() == ancestors(parents, node)
        assert depths[node] == len(ancestors(parents, node)) - 1


@pytest.mark.parametrize(
    "parents", [[], [0], [0, 0], [-1, -1], [-1, 1], [-1, 2, 1], [-1, 0, 2], [-1, -2]]
)
def test_a_parent_is_an_earlier_node(parents: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must be an earlier node|Node 0 is the root"):
        tree_layout(parents)


@given(parents_of(), st.data())
def test_the_accepted_path_is_what_greedy_decoding_would_say(
    parents: list[int], data: st.DataObject
) -> None:
    some = st.lists(st.integers(0, 2), min_size=len(parents), max_size=len(parents))
    tokens, best = data.draw(some), data.draw(some)
    path = accept_path(parents, tokens, best)
    assert path == ancestors(parents, path[-1])
    assert all(tokens[node] == best[parent] for parent, node in pairwise(path))
    assert (path[-1], best[path[-1]]) not in zip(parents, tokens, strict=True)


def test_a_shared_beginning_is_stored_once() -> None:
    tree = Tree(7)
    assert tree.add(0, [1, 2]) == [1, 2]
    assert tree.add(0, [1, 3, 1]) == [1, 3, 4]
    assert tree.add(3, [1]) == [4]
    assert (tree.tokens, tree.parents) == ([7, 1, 2, 3, 1], [-1, 0, 1, 1, 3])


@given(continuations(), parents_of(), st.randoms(use_true_random=False))
def test_one_forward_computes_every_branch_and_keep_leaves_one(
    drawn: Any, parents: list[int], rng: random.Random
) -> None:
    config, seed, prompt, _ = drawn
    own, depths = tree_layout(parents)
    prompt = prompt[: config.n_positions - int(depths.max()) - 1]
    if not prompt:
        return
    model, start = model_of(CachedLMHead, config, seed), len(prompt) - 1
    tokens = [prompt[-1], *(rng.randrange(config.vocab_size) for _ in parents[1:])]
    paths = [ancestors(parents, node) for node in range(len(parents))]
    texts = [prompt[:-1] + [tokens[node] for node in path] for path in paths]
    kv_cache = new_tree_cache(model, start + len(parents))
    if start:
        new_logits(model, prompt[:-1], kv_cache)
    logits = forward(model, kv_cache, tokens, start + depths, own)
    for text, row in zip(texts, logits, strict=True):
        assert_same(row, naive_logits(config, seed, [text])[0])

    path = rng.choice(paths)
    kv_cache.keep(start, path)
    assert kv_cache.length == start + len(path)
    longer = [*texts[path[-1]], rng.randrange(config.vocab_size)]
    if len(longer) <= config.n_positions and kv_cache.length < kv_cache.max_length:
        assert_same(new_logits(model, longer, kv_cache), naive_logits(config, seed, [longer]))


@pytest.mark.parametrize("path", [[], [0, 3], [-1], [1, 0], [0, 0]])
def test_only_nodes_of_the_cache_are_kept(path: list[int]) -> None:
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    kv_cache = new_tree_cache(model, 6)
    new_logits(model, [1, 2, 3, 4, 5], kv_cache)
    with pytest.raises(ValueError, match="ascending nodes from 0 to 2"):
        kv_cache.keep(2, path)
    assert kv_cache.length == 5


# ----------------------------------------------------------------------------------- the loop


class AnyTree:
    """Trees of the coming tokens and of wrong ones, EOS among them, in any shape."""

    nodes = 12

    def __init__(self, text: list[int], config: GPTConfig, eos: int | None, seed: int) -> None:
        self.text, self.vocab, self.rng = text, config.vocab_size, random.Random(seed)
        self.eos = 0 if eos is None else eos
        self.learned: list[tuple[int, list[int]]] = []  # how many tokens, and the path

    def propose(self, ids: Sequence[int], depth: int, kv_cache: Any) -> Tree:
        assert kv_cache.length == len(ids) - 1
        tree, depths = Tree(ids[-1]), [0]
        for _ in range(self.rng.randrange(self.nodes)):
            node = self.rng.randrange(len(depths))
            coming = self.text[len(ids) + depths[node] :][:1] or [0]
            token = self.rng.choice([*coming * 3, self.eos, self.rng.randrange(self.vocab)])
            if depths[node] < depth and tree.child(node, token) == len(depths):
                depths.append(depths[node] + 1)
        return tree

    def learn(self, best: list[int], path: list[int]) -> None:
        self.learned.append((len(best), path))


def heads_of(config: GPTConfig, seed: int) -> Heads:
    heads = Heads(config.n_embd, 4).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in heads.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator))
    return heads


@st.composite
def proposers(draw: st.DrawFn, work: Work) -> Any:
    config, end = work.config, work.config.n_positions
    another = model_of(CachedLMHead, config, work.seed + 1)
    text = naive(config, work.seed, work.prompts[0], work.limits[0])
    makers: list[Callable[[], Any]] = [
        lambda: AnyTree(text, config, work.eos, draw(st.integers(0, 99))),
        lambda: NgramTree(draw(few)),
        lambda: Lookahead(draw(few), draw(st.integers(2, 4)), draw(few)),
        lambda: ModelTree(another, end, draw(widths_of_trees)),
        lambda: ModelTree(work.model, end, draw(widths_of_trees)),
        lambda: EarlyExit(work.model, draw(st.integers(1, config.n_layer)), draw(few)),
        lambda: HeadsTree(work.model, heads_of(config, work.seed), draw(widths_of_trees)),
    ]
    return draw(st.sampled_from(makers))()


def assert_told(work: Work, made: Decoded) -> None:
    """Assert that the calls tell how the text grew, each by its path and the model's own token."""
    [prompt], [text] = work.prompts, work.expected
    at = len(prompt) + 1
    assert made.calls or len(text) <= at
    for call in made.calls:
        assert call.tree.tokens[0] == text[at - 1]
        accepted = [call.tree.tokens[node] for node in call.path[1:]]
        assert text[at : at + len(call.new)] == call.new
        assert accepted[: len(call.new)] == call.new[: len(accepted)]
        assert len(call.new) == len(call.path) or call.new[-1] == work.eos
        at += len(call.new)
    assert at >= len(text)


@given(one_request, st.data())
def test_any_tree_gives_the_tokens_of_the_naive_loop(work: Work, data: st.DataObject) -> None:
    [prompt], [limit] = work.prompts, work.limits
    proposer, before = data.draw(proposers(work)), list(prompt)
    with shapes_of_forwards(work.model) as shapes:
        made = generate_tree(work.model, proposer, prompt, limit, eos_token_id=work.eos)
    assert made.ids == work.expected[0]
    assert prompt == before
    assert_told(work, made)
    assert all(call.rows <= proposer.nodes for call in made.calls)
    if getattr(proposer, "model", None) is not work.model:
        rows = [len(prompt), *(call.rows for call in made.calls)][: len(shapes)]
        assert shapes == [(1, count) for count in rows]
    if isinstance(proposer, AnyTree):
        assert proposer.learned == [(call.rows, call.path) for call in made.calls]


@given(one_request, widths_of_trees)
def test_a_perfect_draft_wins_every_level_and_one_token(work: Work, widths: list[int]) -> None:
    proposer = ModelTree(work.model, work.config.n_positions, widths)
    request = work.model, proposer, work.prompts[0], work.limits[0]
    made = generate_tree(*request, eos_token_id=work.eos)
    assert len(made.calls) == math.ceil((max(work.new[0], 1) - 1) / (len(widths) + 1))


@pytest.mark.parametrize("widths", [(1, 1, 1, 1), (2, 3, 1)])
def test_a_draft_model_computes_a_level_per_forward(widths: Sequence[int]) -> None:
    config, prompt = CONFIGS[2], [3, 1, 4]
    model = model_of(CachedLMHead, config, 0)
    proposer = ModelTree(model, config.n_positions, widths)
    with shapes_of_forwards(model) as shapes:
        tree = proposer.propose(prompt, 9, new_tree_cache(model, 20))
    levels = [math.prod(widths[:depth]) for depth in range(len(widths))]
    assert shapes == [(1, 3), *((1, rows) for rows in levels[1:])]
    assert len(tree.tokens) == most_nodes(widths) == proposer.nodes
    assert proposer.kv_cache.length == len(prompt)


# ----------------------------------------------------------------------------------- lookahead


@given(st.lists(st.tuples(*[st.integers(0, 2)] * 3), max_size=20), st.integers(1, 4))
def test_a_pool_holds_the_newest_grams_of_each_token(
    grams: list[tuple[int, ...]], size: int
) -> None:
    pool = NGramPool(3, size)
    for gram in grams:
        pool.add(list(gram))
    newest = list(dict.fromkeys(reversed(grams)))
    for first in range(3):
        rests = [rest for start, *rest in newest if start == first]
        assert [list(rest) for rest in pool.candidates(first)] == rests[:size]


@given(continuations(), few, st.integers(2, 4))
def test_a_window_collects_what_the_model_says(drawn: Any, width: int, n: int) -> None:
    config, seed, prompt, _ = drawn

    class Watched(Lookahead):
        def propose(self, ids: Sequence[int], *others: Any) -> Tree:
            self.ids, self.tree = list(ids), super().propose(ids, *others)
            return self.tree

        def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
            columns = list(zip(self.grams, self.ends, strict=True))
            super().learn(best, path)
            for gram, end in columns:
                nodes = ancestors(self.tree.parents, end)
                guessed = [self.tree.tokens[node] for node in nodes]
                assert guessed[1 - n :] == gram
                logits = naive_logits(config, seed, [self.ids[:-1] + guessed])
                assert (*gram[1:], int(logits.argmax())) in self.pool.candidates(gram[0])

    model, proposer = model_of(CachedLMHead, config, seed), Watched(width, n, 99)
    generate_tree(model, proposer, prompt, config.n_positions)


# ------------------------------------------------------------------------------------ sampling
#
# Probabilities are multiples of 1/parts. Then all that a uniform is compared with is a multiple of
# 1/lcm(1 … parts), and the middles of pieces of this size stand for all uniforms.

VOCAB = 3


def distributions(parts: int) -> st.SearchStrategy[list[Fraction]]:
    tokens = st.lists(st.integers(0, VOCAB - 1), min_size=parts, max_size=parts)
    return tokens.map(lambda drawn: [Fraction(drawn.count(t), parts) for t in range(VOCAB)])


def middles(parts: int) -> list[float]:
    pieces = math.lcm(*range(1, parts + 1))
    return [(piece + 0.5) / pieces for piece in range(pieces)]


@given(distributions(3), st.permutations(range(VOCAB)), st.integers(0, VOCAB))
def test_the_next_token_has_the_targets_own_distribution(
    target: list[Fraction], order: list[int], k: int
) -> None:
    said: dict[int, Fraction] = defaultdict(Fraction)
    probs = torch.tensor([float(p) for p in target], dtype=torch.float64)
    for uniforms in product(middles(3), repeat=k + 1):
        place, token = verify_candidates(probs, order[:k], torch.tensor(uniforms))
        assert (order[place] == token) if place is not None else token not in order[:k]
        said[token] += Fraction(1, len(middles(3)) ** (k + 1))
    assert [said[token] for token in range(VOCAB)] == target


@given(st.lists(distributions(2), min_size=4, max_size=4))
def test_a_sampled_path_has_the_models_own_distribution(target: list[list[Fraction]]) -> None:
    """Two children and a grandchild: every text has the product of its tokens' probabilities."""
    tree, said = Tree(0), defaultdict[tuple[int, ...], Fraction](Fraction)
    tree.add(0, [2, 1])
    tree.add(0, [1])
    logits = torch.tensor([[*map(float, probs)] for probs in target], dtype=torch.float64).log()
    choose = sampling(SamplingParams(), torch.Generator())
    scripts = [*product(middles(2), repeat=6)]  # the longest path takes 3 + 2 + 1 uniforms
    for script in scripts:
        left = iter(script)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lab_15, "new_uniforms", lambda n, *_, left=left: scripted(left, n))
            path, token = choose(tree, logits)
        said[(*(tree.tokens[node] for node in path[1:]), token)] += Fraction(1, len(scripts))
    for text, share in said.items():
        nodes = [0]
        for token in text[:-1]:
            nodes.append(tree.children[nodes[-1], token])
        assert (nodes[-1], text[-1]) not in tree.children
        probs = [target[node][token] for node, token in zip(nodes, text, strict=True)]
        assert share == math.prod(probs)


def scripted(left: Iterator[float], count: int) -> Tensor:
    return torch.tensor([*islice(left, count)], dtype=torch.float64)


@given(one_request, st.data())
def test_the_likeliest_of_one_is_greedy(work: Work, data: st.DataObject) -> None:
    choose = sampling(SamplingParams(top_k=1), torch.Generator().manual_seed(0))
    request = work.model, data.draw(proposers(work)), work.prompts[0], work.limits[0]
    assert generate_tree(*request, choose, work.eos).ids == work.expected[0]


# --------------------------------------------------------------------------------------- heads


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 4))
def test_a_head_learns_the_models_own_token_further_ahead(batch: int, seq: int, heads: int) -> None:
    own = torch.randint(0, 50, (batch, seq))
    labels = head_labels(own, heads)
    assert labels.shape == (batch, seq, heads)
    for row, t, head in product(range(batch), range(seq), range(heads)):
        ahead = t + 1 + head
        assert labels[row, t, head] == (own[row, ahead] if ahead < seq else -100)


def test_only_heads_learn_and_new_ones_change_nothing() -> None:
    config = CONFIGS[1]
    model, heads = model_of(CachedLMHead, config, 0), Heads(config.n_embd, 2).double()
    hidden = torch.randn(5, config.n_embd, dtype=torch.float64)
    assert torch.equal(heads(hidden), torch.stack([hidden, hidden], dim=1))
    heads_loss(heads, model, torch.randint(0, config.vocab_size, (2, 9))).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in heads.parameters())
    assert all(weight.grad is None for weight in model.parameters())


def test_heads_are_loaded_and_let_go_of_the_model(tmp_path: Any) -> None:
    config = CONFIGS[0]
    model, heads = model_of(CachedLMHead, config, 0), heads_of(config, 1).float()
    save_file(heads.state_dict(), tmp_path / WEIGHTS)
    loaded, hidden = Heads.from_pretrained(tmp_path), torch.randn(3, config.n_embd)
    assert torch.equal(loaded(hidden), heads(hidden))
    proposer = HeadsTree(model, loaded, (2, 1))
    assert len(model.transformer._forward_hooks) == 1
    del proposer
    gc.collect()
    assert not model.transformer._forward_hooks


# --------------------------------------------------------------------- what it wins, what it costs


def test_fable_wins_tokens_with_its_heads_and_its_draft() -> None:
    target, draft = map(CachedLMHead.from_pretrained, ("fable", "fable-draft"))
    prompt = load_tokenizer("fable")("The king's youngest daughter went into the").input_ids
    expected = generate(target, torch.tensor([prompt]), 48)[0].tolist()
    heads = Heads.from_pretrained("fable-heads")
    least: dict[Any, float] = {
        HeadsTree(target, heads, (2, 1, 1)): 1.5,
        ModelTree(draft, len(prompt) + 48, (2, 1, 1)): 2,
    }
    for proposer, tokens in least.items():
        made = generate_tree(target, proposer, prompt, 48)
        assert made.ids == expected
        assert made.tokens_per_call > tokens


def test_a_price_decides_whether_calls_pay() -> None:
    tree = Tree(0)
    tree.add(0, [1, 2, 3])
    calls = [Call(tree, [0, 1], [1, 5]), Call(tree, [0], [4])]
    made = Decoded([], calls)
    assert (made.tokens_per_call, made.rows_per_call) == (1.5, 4)
    price = price_of({1: 2.0, 3: 3.0, 5: 4.0})
    assert [price(rows) for rows in (1, 2, 4, 9)] == [1, 1.25, 1.75, 2]
    assert predicted_speed_up(calls, price) == pytest.approx(1.5 / 1.75)
    assert predicted_speed_up(calls, price, proposing=0.25) == 0.75


MODEL, PENALTY = model_of(CachedLMHead, CONFIGS[0], 0), SamplingParams(repetition_penalty=1.2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: verify_candidates(torch.ones(3) / 3, [1, 1], torch.zeros(3)), "a token twice"),
        (lambda: sampling(PENALTY, torch.Generator()), "without a repetition penalty"),
        (lambda: Lookahead(0, 3, 5), "width of a window must be at least 1"),
        (lambda: Lookahead(3, 1, 5), "length of an n-gram must be at least 2"),
        (lambda: NGramPool(3, 0), "number of n-grams must be at least 1"),
        (lambda: generate_jacobi(MODEL, [1], 3, 0), "window must"),
        (lambda: ModelTree(MODEL, 9, (2, 0)), "at least one child"),
        (lambda: head_labels(torch.zeros(1, 3).long(), 0), "number of heads must be at least 1"),
        (lambda: HeadsTree(MODEL, Heads(16, 1), (1, 1)), "1 heads"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
