"""Answers to lab 15's exercises: guesses, trees, paths, sampling, the loop, a pool, labels."""

from types import SimpleNamespace

import torch

from solutions.decoding import draw
from solutions.parallel.trees import Tree
from solutions.parallel_decoding import (
    NGramPool,
    TreeCache,
    accept_path,
    generate_tree,
    jacobi_step,
    new_tree_cache,
    require_path,
    tree_layout,
    verify_candidates,
)
from solutions.speculative import new_logits
from tests.common.attempts import right, wrong, wrong_result


@wrong(jacobi_step)
def identity_for_equality(guess, best):
    confirmed = 0
    while confirmed < len(guess) and guess[confirmed] is best[confirmed]:
        confirmed += 1
    return best[: confirmed + 1], best[confirmed + 1 :]


wrong_result(jacobi_step, lambda both: both[0], "jacobi_step returns two lists, the certain tokens")


wrong_result(
    tree_layout,
    lambda both: (both[0], both[1].double()),
    "What comes with the mask is a tensor of floats",
)
wrong_result(accept_path, tuple, "The path should be a list, not a tuple.")


@right(TreeCache.keep)
def with_rejected_rows_erased(self, start, path):
    require_path(path, self.length - start)
    rows = torch.tensor([start + node for node in path])
    end = start + len(path)
    for memory in (self.keys, self.values):
        memory[:, :, :, start:end] = memory.index_select(3, rows)
        memory[:, :, :, end:] = 0
    self.length = end


@wrong(TreeCache.keep, "was refused with a ValueError")
def without_the_given_check(self, start, path):
    rows, end = [start + node for node in path], start + len(path)
    self.keys[..., start:end, :] = self.keys[..., rows, :]
    self.values[..., start:end, :] = self.values[..., rows, :]
    self.length = end


@wrong(verify_candidates)
def by_one_draw(target, candidates, uniforms):
    """The distribution is right, but the uniforms have other meanings."""
    token = int(draw(target[None], uniforms[-1:]))
    return (candidates.index(token), token) if token in candidates else (None, token)


wrong_result(
    verify_candidates,
    lambda both: (both[0], torch.tensor(both[1])),
    "The next token is a Tensor; expected",
)


@wrong(generate_tree, "`ids` in call 1 of `propose` is missing")
def plain_decode_told_as_calls(target, proposer, *given, **named):
    no_guess = SimpleNamespace(
        nodes=1, propose=lambda ids, *_: Tree(ids[-1]), learn=lambda *_: None
    )
    return generate_tree(target, no_guess, *given, **named)


@wrong(generate_tree, "forward calls")
def each_branch_in_a_forward_of_its_own(target, *given, **named):
    found = generate_tree(target, *given, **named)
    for call in found.calls:
        for _ in call.tree.tokens[1:]:
            new_logits(target, found.ids[:1], new_tree_cache(target, 1))
    return found


wrong_result(generate_tree, lambda decoded: decoded.ids, "What it returned")


@wrong(NGramPool.add)
def with_the_callers_own_list(self, gram):
    """It stores a view, which is empty once the caller's list is."""
    known = [other for other in self.grams.get(gram[0], []) if list(other) != list(gram)[1:]]
    self.grams[gram[0]] = [gram, *known][: self.size]
