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
    head_labels,
    jacobi_step,
    new_tree_cache,
    require_path,
    tree_layout,
    verify_candidates,
)
from solutions.speculative import new_logits, verify_greedy
from tests.common.attempts import right, wrong

# -------------------------------------------------------------------------------------- guesses


@right(jacobi_step)
def with_lab_6(guess, best):
    accepted, token = verify_greedy(best, guess)
    return [*guess[:accepted], token], best[accepted + 1 :]


@wrong(jacobi_step)
def identity_for_equality(guess, best):
    confirmed = 0
    while confirmed < len(guess) and guess[confirmed] is best[confirmed]:
        confirmed += 1
    return best[: confirmed + 1], best[confirmed + 1 :]


wrong(jacobi_step, "jacobi_step returns two lists, the certain tokens")(
    lambda *given: jacobi_step(*given)[0]
)


# ---------------------------------------------------------------------------------------- trees

wrong(tree_layout, "What comes with the mask is a tensor of floats")(
    lambda parents: (tree_layout(parents)[0], tree_layout(parents)[1].double())
)
wrong(accept_path, "The path should be a list, not a tuple.")(
    lambda *given: tuple(accept_path(*given))
)
wrong(accept_path)(lambda *given: accept_path(*given)[:3])


# ------------------------------------------------------------------------------ keeping a path


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


# ------------------------------------------------------------------------- sampling from a tree


@right(verify_candidates)
def with_what_is_left_as_a_number(target, candidates, uniforms):
    rest = 1.0
    for place, token in enumerate(candidates):
        if float(uniforms[place]) * rest < float(target[token]):
            return place, token
        rest -= float(target[token])
    left = target.clone()
    left[list(candidates)] = 0
    return None, int(draw(left[None], uniforms[-1:])[0])


@wrong(verify_candidates)
def by_one_draw(target, candidates, uniforms):
    """The distribution is right, but the uniforms have other meanings."""
    token = int(draw(target[None], uniforms[-1:]))
    return (candidates.index(token), token) if token in candidates else (None, token)


wrong(verify_candidates, "The next token is a Tensor; expected")(
    lambda *given: (verify_candidates(*given)[0], torch.tensor(verify_candidates(*given)[1]))
)


# ------------------------------------------------------------------------------------ the loop


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


wrong(generate_tree, "What it returned")(lambda *given, **named: generate_tree(*given, **named).ids)


# --------------------------------------------------------------------------- a pool, and labels


@wrong(NGramPool.add)
def with_the_callers_own_list(self, gram):
    """It stores a view, which is empty once the caller's list is."""
    known = [other for other in self.grams.get(gram[0], []) if list(other) != list(gram)[1:]]
    self.grams[gram[0]] = [gram, *known][: self.size]


@wrong(head_labels, "Head 0 learns the token that the LM head gives already")
def one_position_short(own, heads):
    padded = torch.nn.functional.pad(own, (0, heads), value=-100)
    return padded.unfold(1, heads, 1)[:, : own.shape[1]]
