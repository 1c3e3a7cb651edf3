"""Answers to lab 15's exercises: guesses, trees, paths, sampling, the loop, a pool, labels."""

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
wrong(jacobi_step, "should be a list, not a tuple")(
    lambda guess, best: tuple(map(tuple, jacobi_step(guess, best)))
)
wrong(jacobi_step, "Is a `return` missing?")(lambda guess, best: None)


# ---------------------------------------------------------------------------------------- trees


@right(tree_layout)
def by_powers(parents):
    """Steps to parents, until there is no further one."""
    step = torch.zeros(len(parents), len(parents))
    for node, parent in enumerate(parents):
        if node:
            step[node, parent] = 1
    seen = torch.linalg.inv(torch.eye(len(parents)) - step).round()
    return seen > 0, seen.sum(dim=1).long() - 1


wrong(tree_layout, "What comes with the mask is a tensor of floats")(
    lambda parents: (tree_layout(parents)[0], tree_layout(parents)[1].double())
)
wrong(tree_layout, "tree_layout returns two tensors")(lambda parents: tree_layout(parents)[0])


@right(accept_path)
def the_last_of_equal_siblings(parents, tokens, best):
    node, path = 0, [0]
    while True:
        right_ones = [
            child
            for child, parent in enumerate(parents)
            if parent == node and tokens[child] == best[node]
        ]
        if not right_ones:
            return path
        node = right_ones[-1]
        path.append(node)


@wrong(accept_path, "Take `yield` out of it")
def one_after_another(parents, tokens, best):
    yield from accept_path(parents, tokens, best)


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


@right(TreeCache.keep)
def with_new_memory(self, start, path):
    require_path(path, self.length - start)
    places = list(range(self.max_length))
    places[start : start + len(path)] = [start + node for node in path]
    self.reorder(torch.tensor([0]))
    self.keys, self.values = self.keys[..., places, :], self.values[..., places, :]
    self.length = start + len(path)


@wrong(TreeCache.keep, "was refused with a ValueError")
def without_the_given_check(self, start, path):
    rows, end = [start + node for node in path], start + len(path)
    self.keys[..., start:end, :] = self.keys[..., rows, :]
    self.values[..., start:end, :] = self.values[..., rows, :]
    self.length = end


@wrong(TreeCache.keep)
def with_a_mask_left_behind(self, start, path):
    TreeCache.keep(self, start, path)
    self.own = torch.zeros(2, 2, dtype=torch.bool)


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
def with_draws_of_its_own(target, candidates, uniforms):
    token = int(torch.multinomial(target, 1))
    return (candidates.index(token), token) if token in candidates else (None, token)


@wrong(verify_candidates)
def by_one_draw(target, candidates, uniforms):
    """The distribution is right, but the uniforms have other meanings."""
    token = int(draw(target[None], uniforms[-1:]))
    return (candidates.index(token), token) if token in candidates else (None, token)


wrong(verify_candidates, "The next token is a Tensor; expected")(
    lambda *given: (verify_candidates(*given)[0], torch.tensor(verify_candidates(*given)[1]))
)
wrong(verify_candidates, "Is a `return` missing?")(lambda *given: None)


# ------------------------------------------------------------------------------------ the loop


class NoGuess:
    nodes = 1

    def propose(self, ids, depth, kv_cache):
        return Tree(ids[-1])

    def learn(self, best, path):
        pass


@wrong(generate_tree, "`ids` in call 1 of `propose` is missing")
def plain_decode_told_as_calls(target, proposer, *given, **named):
    return generate_tree(target, NoGuess(), *given, **named)


@wrong(generate_tree, "forward calls")
def each_branch_in_a_forward_of_its_own(target, *given, **named):
    found = generate_tree(target, *given, **named)
    for call in found.calls:
        for _ in call.tree.tokens[1:]:
            new_logits(target, found.ids[:1], new_tree_cache(target, 1))
    return found


@wrong(generate_tree, "Does the loop end?")
def without_an_end(target, proposer, prompt, *given, **named):
    kv_cache = new_tree_cache(target, len(prompt))
    while True:
        new_logits(target, prompt, kv_cache)
        kv_cache.truncate(0)


wrong(generate_tree, "What it returned")(lambda *given, **named: generate_tree(*given, **named).ids)


# --------------------------------------------------------------------------- a pool, and labels


@right(NGramPool.add)
def with_a_dict_as_an_order(self, gram):
    if len(gram) != self.n:
        raise ValueError("This is no n-gram of the pool.")
    rest = tuple(gram[1:])
    newest_first = dict.fromkeys([rest, *self.grams.get(gram[0], ())])
    self.grams[gram[0]] = list(newest_first)[: self.size]


@wrong(NGramPool.add)
def with_the_callers_own_list(self, gram):
    """It stores a view, which is empty once the caller's list is."""
    known = [other for other in self.grams.get(gram[0], []) if list(other) != list(gram)[1:]]
    self.grams[gram[0]] = [gram, *known][: self.size]


@wrong(NGramPool.add)
def by_its_digits(self, gram):
    known = {"".join(map(str, rest)): rest for rest in self.grams.get(gram[0], [])}
    known.pop("".join(map(str, gram[1:])), None)
    self.grams[gram[0]] = [tuple(gram[1:]), *known.values()][: self.size]


@right(head_labels)
def one_by_one(own, heads):
    batch, seq = own.shape
    labels = torch.full((batch, seq, heads), -100)
    for text in range(batch):
        for place in range(seq):
            for head in range(min(heads, seq - place - 1)):
                labels[text, place, head] = own[text, place + 1 + head]
    return labels


@wrong(head_labels, "Head 0 learns the token that the LM head gives already")
def one_position_short(own, heads):
    padded = torch.nn.functional.pad(own, (0, heads), value=-100)
    return padded.unfold(1, heads, 1)[:, : own.shape[1]]


wrong(head_labels, "of shape [1, 3]")(lambda own, heads: head_labels(own, heads)[..., 0])
