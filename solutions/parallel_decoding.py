"""Lab 15: parallel decoding. Several tokens from one forward pass, without a chain of drafts.

A forward pass over a few rows takes little longer than one over a single row. Lab 6 fills the rows
with the drafts of a second model, one after another. Here they are filled in other ways: the
model's own guesses (Jacobi, lookahead), trained heads on its hidden state (Medusa), its first
layers (early exit). A tree of guesses instead of a chain holds several answers to one question. A
mask lets one forward pass compute all its branches, and the output stays the same.

Sources: Santilli et al., "Accelerating transformer inference for translation via parallel
decoding", ACL 2023 (Jacobi); Fu et al., "Break the sequential dependency of LLM inference using
lookahead decoding", ICML 2024; Miao et al., "SpecInfer", ASPLOS 2024 (token trees); Cai et al.,
"Medusa", ICML 2024; Zhang et al., "Draft & verify", ACL 2024 (the model's own layers as a draft).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from solutions.decoding import SamplingParams, draw, end_of, next_token_probs
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.parallel.proposers import Heads
from solutions.parallel.trees import Call, Decoded, Tree, most_nodes, require_size, up_to_eos
from solutions.speculative import new_cache, new_logits, new_uniforms

# --------------------------------------------------------------------- Jacobi: guess, then correct


def jacobi_step(guess: Sequence[int], best: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the tokens that are certain now, and the next guess.

    best: the model's likeliest token after the text, after the text and one guess, and so on; one
    more than the guesses. A guess is confirmed if it equals the model's token for its place and all
    guesses before it are confirmed. Certain are the confirmed guesses and the model's token after
    them. The rest of `best` is the next guess. `guess` may be empty. Nothing is changed. Source:
    Santilli et al., parallel Jacobi decoding.
    """
    ### BEGIN SOLUTION
    confirmed = 0
    while confirmed < len(guess) and guess[confirmed] == best[confirmed]:
        confirmed += 1
    return list(best[: confirmed + 1]), list(best[confirmed + 1 :])
    ### END SOLUTION


@torch.no_grad()
def generate_jacobi(
    target: CachedLMHead,
    prompt: Sequence[int],
    max_new_tokens: int,
    window: int,
    eos_token_id: int | None = None,
) -> Decoded:
    """Continue a prompt greedily. In each call, the model corrects its own guess of some tokens.

    window: how many it guesses. A chain needs no tree mask: lab 2's causal mask is right for it.
    """
    require_size("window", window)
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)
    kv_cache, guess, calls = new_cache(target, end), list[int](), list[Call]()
    if len(ids) == end:
        return Decoded(ids, calls)
    ids.append(int(new_logits(target, ids, kv_cache)[-1].argmax()))
    while not (len(ids) == end or ids[-1] == eos_token_id):
        guess += [ids[-1]] * (window - len(guess))  # any tokens do where nothing is known
        guess = guess[: end - len(ids) - 1]  # the last token of a call is the model's own
        best = new_logits(target, ids + guess, kv_cache).argmax(dim=-1).tolist()
        tree = Tree(ids[-1])
        nodes = tree.add(0, guess)
        new, guess = jacobi_step(guess, best)
        calls.append(Call(tree, [0, *nodes[: len(new) - 1]], up_to_eos(new, eos_token_id)))
        ids += calls[-1].new
        kv_cache.truncate(len(ids) - 1)
    return Decoded(ids, calls)


# ------------------------------------------------------------------- a tree in one forward pass


def tree_layout(
    parents: Sequence[int],
) -> tuple[Bool[Tensor, "nodes nodes"], Int[Tensor, " nodes"]]:
    """Return which nodes each node sees, and how deep it is.

    A node sees itself and its ancestors: row i of the mask is True for them. Its depth is the
    number of its ancestors, so node 0 has depth 0. A parent comes before its children. Raises
    ValueError if that isn't so, or if node 0 has a parent. Source: Miao et al., section 4.2.
    """
    require_tree(parents)
    ### BEGIN SOLUTION
    own = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if node > 0:
            own[node] |= own[parent]
    return own, own.sum(dim=1) - 1
    ### END SOLUTION


def accept_path(parents: Sequence[int], tokens: Sequence[int], best: Sequence[int]) -> list[int]:
    """Return the nodes that a greedy model accepts, from node 0 down.

    best: the model's likeliest token after each node. A node is accepted if its parent is, and if
    its token is the model's after the parent. Among children with the same token, take any one.
    The token after the last accepted node is then `best` of this node.
    """
    ### BEGIN SOLUTION
    path = [0]
    for node, parent in enumerate(parents):
        if parent == path[-1] and tokens[node] == best[parent]:
            path.append(node)
    return path
    ### END SOLUTION


class TreeCache(KVCache):
    """Lab 2's cache, for a text whose newest tokens are a tree.

    own: which of the newest tokens each token of a forward pass sees; all of them see all tokens
    before these. None: a token sees itself and all tokens before it, as in lab 2.
    """

    own: Bool[Tensor, "rows newest"] | None = None

    def mask(self, start: int, end: int) -> Tensor | None:
        if self.own is None:
            return super().mask(start, end)
        return F.pad(self.own, (end - self.own.shape[1], 0), value=True)

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, right behind them, the nodes of a path.

        Node i of the tree is in place `start` + i. Move the keys and values of the path's nodes, in
        their order, to the places from `start` on; then these and the tokens before them are the
        whole text. Raises ValueError, and changes nothing, if a node isn't in the cache, or if the
        nodes aren't in ascending order.
        """
        require_path(path, self.length - start)
        ### BEGIN SOLUTION
        rows, end = [start + node for node in path], start + len(path)
        self.keys[..., start:end, :] = self.keys[..., rows, :]  # a list of rows makes a copy
        self.values[..., start:end, :] = self.values[..., rows, :]
        self.length = end
        ### END SOLUTION


def new_tree_cache(model: CachedLMHead, max_length: int) -> TreeCache:
    weight = model.transformer.wte.weight
    return TreeCache(model.config, 1, max_length, weight.device, weight.dtype)


def forward(
    model: CachedLMHead,
    kv_cache: TreeCache,
    tokens: Sequence[int],
    position_ids: Int[Tensor, " rows"],
    own: Bool[Tensor, "rows newest"],
) -> Float[Tensor, "rows vocab"]:
    """Run the model on some tokens, at these positions and with this mask; return their logits."""
    device = kv_cache.keys.device
    inputs, kv_cache.own = torch.tensor([tokens], device=device), own.to(device)
    logits = model(inputs, position_ids.to(device).unsqueeze(0), kv_cache)
    kv_cache.own = None  # what comes later is a text again
    return logits[0]


# ------------------------------------------------------------------------- sampling from a tree


def verify_candidates(
    target: Float[Tensor, " vocab"], candidates: Sequence[int], uniforms: Float[Tensor, " k+1"]
) -> tuple[int | None, int]:
    """Return which of the k candidates is accepted, None if none is, and the next token.

    The next token has exactly the distribution `target`, whatever the candidates. Take them one
    after another. Accept one if its uniform is below its probability, and return its place and its
    token. If it is rejected, its probability becomes 0, and the others are scaled to sum to 1. If
    all are rejected, draw the token from what is left, with the last uniform. Candidates are
    different tokens. The arguments aren't changed. Source: Miao et al., section 4.3, for candidates
    that aren't drawn at random.
    """
    require_distinct(candidates)
    ### BEGIN SOLUTION
    left = target.clone()
    for place, token in enumerate(candidates):
        if uniforms[place] * left.sum() < left[token]:
            return place, token
        left[token] = 0
    return None, int(draw(left[None], uniforms[-1:]))
    ### END SOLUTION


# How a loop goes down a tree: from the tree and the logits after each node to the accepted path and
# the token that follows it.
Choose = Callable[[Tree, Float[Tensor, "nodes vocab"]], tuple[list[int], int]]


def greedy(tree: Tree, logits: Float[Tensor, "nodes vocab"]) -> tuple[list[int], int]:
    best = logits.argmax(dim=-1).tolist()
    path = accept_path(tree.parents, tree.tokens, best)
    return path, best[path[-1]]


def sampling(params: SamplingParams, generator: torch.Generator) -> Choose:
    """Return a `choose` that draws each token from the model's own distribution.

    Raises ValueError for a repetition penalty: it depends on each node's text.
    """
    if params.repetition_penalty != 1:
        raise ValueError("A tree is sampled without a repetition penalty: set it to 1.")

    def choose(tree: Tree, logits: Float[Tensor, "nodes vocab"]) -> tuple[list[int], int]:
        path = [0]
        while True:
            children = [node for node, parent in enumerate(tree.parents) if parent == path[-1]]
            [probs] = next_token_probs(logits[path[-1]][None], torch.empty(1, 0).long(), params)
            uniforms = new_uniforms(len(children) + 1, generator, logits.device)
            tokens = [tree.tokens[node] for node in children]
            place, token = verify_candidates(probs, tokens, uniforms)
            if place is None:
                return path, token
            path.append(children[place])

    return choose


# ------------------------------------------------------------------------------------ the loop


class Proposer(Protocol):
    """Something cheap that guesses the next tokens of one text, as a tree.

    nodes: the most nodes that its trees have, node 0 included.
    """

    nodes: int

    def propose(self, ids: Sequence[int], depth: int, kv_cache: TreeCache, /) -> Tree:
        """Return a tree below the last of `ids`, at most `depth` levels deep.

        kv_cache: the model's; it holds all of `ids` but the last.
        """

    def learn(self, best: Sequence[int], path: Sequence[int], /) -> None:
        """Learn from the call that computed this tree: the model's likeliest token after each node,
        and the accepted nodes."""


@torch.no_grad()
def generate_tree(
    target: CachedLMHead,
    proposer: Proposer,
    prompt: Sequence[int],
    max_new_tokens: int,
    choose: Choose = greedy,
    eos_token_id: int | None = None,
) -> Decoded:
    """Continue a prompt as the model alone would, with a tree of guesses in each call.

    The prefill gives the first token. Then, until the text has ended: the proposer gives a tree,
    with fewer levels than the text has room for, because the last token of a call is the model's
    own. One `forward` computes the nodes, whose positions follow from their depths. `choose` takes
    the tree and the logits; it returns the accepted path and the next token. The cache keeps the
    path. The proposer learns the likeliest token after each node and the path. The text gains the
    path's tokens without node 0, which it has already, and the next token, up to the first EOS.
    """
    ids, end = list(prompt), end_of(target.config, prompt, max_new_tokens)  # end: a length
    kv_cache, calls = new_tree_cache(target, end + proposer.nodes), list[Call]()
    if len(ids) == end:
        return Decoded(ids, calls)
    ids.append(choose(Tree(ids[-1]), new_logits(target, ids, kv_cache)[-1:])[1])
    ### BEGIN SOLUTION
    while len(ids) < end and ids[-1] != eos_token_id:
        tree = proposer.propose(ids, end - len(ids) - 1, kv_cache)
        own, depths = tree_layout(tree.parents)
        start = kv_cache.length
        logits = forward(target, kv_cache, tree.tokens, start + depths, own)
        path, token = choose(tree, logits)
        kv_cache.keep(start, path)
        proposer.learn(logits.argmax(dim=-1).tolist(), path)
        new = up_to_eos([*(tree.tokens[node] for node in path[1:]), token], eos_token_id)
        ids += new
        calls.append(Call(tree, path, new))
    ### END SOLUTION
    return Decoded(ids, calls)


# --------------------------------------------------------------------------- guesses from text


class NGramPool:
    """N-grams that the model has made, found by their first token.

    grams: for each first token, the other n - 1 tokens of its n-grams, the newest first.
    """

    def __init__(self, n: int, size: int) -> None:
        require_size("length of an n-gram", n, least=2)
        require_size("number of n-grams", size)
        self.n, self.size = n, size
        self.grams: dict[int, list[tuple[int, ...]]] = {}

    def add(self, gram: Sequence[int]) -> None:
        """Add an n-gram as the newest of its first token.

        It is stored once: if it is known, it only becomes the newest. A first token has at most
        `size` n-grams; the oldest one is dropped. `gram` is not changed.
        """
        require_gram(gram, self.n)
        ### BEGIN SOLUTION
        first, rest = gram[0], tuple(gram[1:])
        known = [other for other in self.grams.get(first, []) if other != rest]
        self.grams[first] = [rest, *known][: self.size]
        ### END SOLUTION

    def candidates(self, first: int) -> list[tuple[int, ...]]:
        """Return what followed a token, the newest first."""
        return list(self.grams.get(first, []))


class Lookahead:
    """Lookahead decoding: a window of guesses makes n-grams, and those that fit are verified.

    The window has n - 1 levels of `width` columns. Level 0 is a chain of guesses below node 0; in
    each column, the model's tokens from earlier calls follow below it. A call gives each column one
    more token, which makes it an n-gram for the pool; then level 0 is dropped. The pool's n-grams
    that begin with node 0's token are further branches of the same tree. Source: Fu et al.
    """

    def __init__(self, width: int, n: int, size: int) -> None:
        require_size("width of a window", width)
        self.width, self.pool = width, NGramPool(n, size)
        self.nodes = 1 + (width + size) * (n - 1)
        self.levels: list[list[int]] = []
        self.grams: list[list[int]] = []  # the columns, as tokens and as nodes of the tree
        self.ends: list[int] = []

    def propose(self, ids: Sequence[int], depth: int, kv_cache: TreeCache) -> Tree:
        tree, steps = Tree(ids[-1]), self.pool.n - 1
        self.levels = self.levels or [[ids[-1]] * self.width] * steps  # any tokens do at first
        columns = max(0, depth - steps + 1)  # that fit, at the end of the text
        self.grams = [list(gram) for gram in zip(*self.levels, strict=True)][:columns]
        chain = tree.add(0, self.levels[0][:columns])
        both = zip(chain, self.grams, strict=True)
        self.ends = [[node, *tree.add(node, gram[1:])][-1] for node, gram in both]
        for rest in self.pool.candidates(ids[-1]):
            tree.add(0, rest[:depth])
        return tree

    def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
        newest = [best[node] for node in self.ends]
        for gram, token in zip(self.grams, newest, strict=True):
            self.pool.add([*gram, token])
        width = len(newest)
        self.levels = [*(level[:width] for level in self.levels[1:]), newest]


# ------------------------------------------------------------------------- guesses from models


class ModelTree:
    """A tree from a draft model: below each node of a level, its likeliest next tokens.

    widths: how many tokens come below a node, level by level; (1, 1, 1, 1) is a chain of four.
    """

    def __init__(self, model: CachedLMHead, max_length: int, widths: Sequence[int]) -> None:
        self.model, self.widths, self.nodes = model, widths, most_nodes(widths)
        self.kv_cache = new_tree_cache(model, max_length + self.nodes)

    def propose(self, ids: Sequence[int], depth: int, kv_cache: TreeCache) -> Tree:
        """Compute one level in each forward pass. The draft model needs the same mask."""
        tree, level = Tree(ids[-1]), [0]
        for number, width in enumerate(self.widths[:depth]):
            if number == 0:
                logits = new_logits(self.model, ids, self.kv_cache)[-1:]
            else:
                mask, depths = tree_layout(tree.parents)
                tokens = [tree.tokens[node] for node in level]
                positions = len(ids) - 1 + depths[level]
                logits = forward(self.model, self.kv_cache, tokens, positions, mask[level])
            likeliest = zip(level, logits.topk(width).indices.tolist(), strict=True)
            level = [tree.child(node, token) for node, tokens in likeliest for token in tokens]
        self.kv_cache.truncate(min(len(ids), self.kv_cache.length))  # the nodes were guesses
        return tree

    def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
        """Do nothing: accepted nodes are computed again, as part of the text."""


# ------------------------------------------------------------------------------ training heads


def head_labels(own: Int[Tensor, "batch seq"], heads: int) -> Int[Tensor, "batch seq heads"]:
    """Return what each head learns at each position: the model's own token further ahead.

    own: the model's likeliest token after each position, for the place after it. The label of head
    i at position t is the model's own token at position t + 1 + i, because the one at t is what the
    LM head gives already. Where there is none, the label is -100, which `F.cross_entropy` leaves
    out. `own` isn't changed. Source: Cai et al., section 2.3.2 (self-distillation).
    """
    require_size("number of heads", heads)
    ### BEGIN SOLUTION
    labels = own.new_full((*own.shape, heads), -100)
    for head in range(heads):
        labels[:, : -1 - head, head] = own[:, 1 + head :]
    return labels
    ### END SOLUTION


def final_hidden(
    model: CachedLMHead, ids: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq n_embd"]:
    """Return the final hidden state of every token of some texts."""
    weight, (batch, seq) = model.transformer.wte.weight, ids.shape
    kv_cache = KVCache(model.config, batch, seq, weight.device, weight.dtype)
    return model.transformer(ids, torch.arange(seq, device=ids.device).expand_as(ids), kv_cache)


def heads_loss(
    heads: Heads, model: CachedLMHead, ids: Int[Tensor, "batch seq"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy of the heads on some texts; only the heads get gradients."""
    weight = model.transformer.wte.weight
    with torch.no_grad():
        hidden = final_hidden(model, ids)
        labels = head_labels((hidden @ weight.T).argmax(dim=-1), len(heads.layers))
    return F.cross_entropy((heads(hidden) @ weight.T).flatten(0, 2), labels.flatten())


# -------------------------------------------------------------------------------- input checks


def require_tree(parents: Sequence[int]) -> None:
    if list(parents[:1]) != [-1]:
        raise ValueError(f"Node 0 is the root, and its parent is -1; parents is {list(parents)}.")
    for child, parent in enumerate(parents):
        if child > 0 and not 0 <= parent < child:
            raise ValueError(
                f"The parent of node {child} is {parent}. It must be an earlier node, 0 to "
                f"{child - 1}: add a node after its parent."
            )


def require_path(path: Sequence[int], nodes: int) -> None:
    ascending = sorted(set(path)) == list(path)
    if not (ascending and path and path[0] >= 0 and path[-1] < nodes):
        raise ValueError(
            f"A path has ascending nodes from 0 to {nodes - 1}, those in the cache; not {path}."
        )


def require_gram(gram: Sequence[int], n: int) -> None:
    if len(gram) != n:
        raise ValueError(f"The pool holds n-grams of {n} tokens, not of {len(gram)}.")


def require_distinct(candidates: Sequence[int]) -> None:
    if len(set(candidates)) < len(candidates):
        raise ValueError(
            f"The candidates {list(candidates)} hold a token twice. A rejected token can't be "
            "accepted later: leave the second one out."
        )
