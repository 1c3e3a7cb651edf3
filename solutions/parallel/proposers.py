"""Proposers that need no exercise: n-grams of the text, the model's first layers, trained heads.

Sources: Zhang et al., "Draft & verify", ACL 2024 (the model's own layers as a draft); Cai et al.,
"Medusa", ICML 2024 (heads).
"""

import weakref
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Self

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from gpt import SHIPPED, Linear, read_weights
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.parallel.trees import Tree, most_nodes, require_size
from solutions.speculative import first_layers, new_logits, ngram_draft


class NgramTree:
    """Lab 6's draft by n-grams: k tokens in a chain, which is a tree with one branch."""

    def __init__(self, k: int) -> None:
        require_size("number of drafts", k)
        self.k, self.nodes = k, k + 1

    def propose(self, ids: Sequence[int], depth: int, kv_cache: KVCache) -> Tree:
        tree, k = Tree(ids[-1]), min(self.k, depth)
        tree.add(0, ngram_draft(ids, k) if k else [])
        return tree

    def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
        """Do nothing: `propose` receives the whole text each time."""


class EarlyExit:
    """A chain of k drafts from the model's first layers, under its own final norm and LM head.

    The keys and values of these layers are the model's own, so it drafts in the model's cache,
    behind the text. The call over the tree writes the same places again, in all layers.
    """

    def __init__(self, target: CachedLMHead, n_layer: int, k: int) -> None:
        require_size("number of drafts", k)
        self.model, self.k, self.nodes = first_layers(target, n_layer), k, k + 1

    def propose(self, ids: Sequence[int], depth: int, kv_cache: KVCache) -> Tree:
        first, text = copy(kv_cache), list(ids)  # the same memory, with a length of its own
        layers = self.model.config.n_layer
        first.keys, first.values = kv_cache.keys[:layers], kv_cache.values[:layers]
        for _ in range(min(self.k, depth)):
            text.append(int(new_logits(self.model, text, first)[-1].argmax()))
        tree = Tree(ids[-1])
        tree.add(0, text[len(ids) :])
        return tree

    def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
        """Do nothing: `propose` receives the whole text each time."""


WEIGHTS = "heads.safetensors"


class Heads(nn.Module):
    """Medusa's heads: each turns the final hidden state into one for a token further ahead.

    For the hidden state of a position, the model's LM head gives the next token. For the output of
    head i, it gives the token 1 + i places after that. A new head changes nothing: silu(0) is 0.
    """

    def __init__(self, n_embd: int, heads: int) -> None:
        super().__init__()
        require_size("number of heads", heads)
        self.layers = nn.ModuleList(Linear(n_embd, n_embd) for _ in range(heads))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden: Float[Tensor, "*rows n_embd"]) -> Float[Tensor, "*rows heads n_embd"]:
        return torch.stack([hidden + F.silu(layer(hidden)) for layer in self.layers], dim=-2)

    @classmethod
    def from_pretrained(cls, name_or_folder: str | Path) -> Self:
        """Load trained heads in float32: shipped ones by their name, or those of a folder."""
        folder = SHIPPED / name_or_folder  # a folder's own path, if that is absolute
        weights = {name: weight.float() for name, weight in read_weights(folder / WEIGHTS).items()}
        heads = cls(len(weights["layers.0.bias"]), len(weights) // 2)
        heads.load_state_dict(weights)
        return heads.eval().requires_grad_(False)


class HeadsTree:
    """A tree from trained heads: below each node of level i, the likeliest tokens of head i.

    widths: how many tokens come below a node, level by level. A head doesn't know which token of
    the level above it is chosen, so all nodes of that level get the same children.
    """

    def __init__(self, target: CachedLMHead, heads: Heads, widths: Sequence[int]) -> None:
        if len(widths) > len(heads.layers):
            raise ValueError(
                f"There are {len(heads.layers)} heads, one for each level; {len(widths)} levels "
                "are too many. Leave the last ones out."
            )
        self.heads, self.widths, self.nodes = heads, widths, most_nodes(widths)
        self.lm_head = target.transformer.wte.weight
        self.hidden: list[Tensor] = []  # of the newest forward pass of the target
        self.last = -1  # its row that the text continues from; after the prefill, the last one
        hidden = self.hidden

        def note(model: nn.Module, given: object, output: Tensor) -> None:
            hidden[:] = [output[0]]

        hook = target.transformer.register_forward_hook(note)
        weakref.finalize(self, hook.remove)  # the target outlives this proposer

    def propose(self, ids: Sequence[int], depth: int, kv_cache: KVCache) -> Tree:
        logits = self.heads(self.hidden[0][self.last]) @ self.lm_head.T
        tree, level = Tree(ids[-1]), [0]
        for scores, width in zip(logits, self.widths[:depth], strict=False):
            likeliest = scores.topk(width).indices.tolist()
            level = [tree.child(node, token) for node in level for token in likeliest]
        return tree

    def learn(self, best: Sequence[int], path: Sequence[int]) -> None:
        self.last = path[-1]
