"""Answers in a given form: `response_format` of a request, as masks on the engine's logits.

A JSON schema becomes an automaton before its request is admitted. Masks are computed in the engine,
each when a request first comes to its state: of a schema's states, an answer visits few.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool
from tokenizers import Tokenizer
from torch import Tensor

from solutions.grammars.json_schema import pattern_of

if TYPE_CHECKING:  # what a server runs of lab 14 is handed in: it may be a learner's
    from solutions.constrained import Automaton


@dataclass(frozen=True)
class SentAutomaton:
    """An automaton on its way to the engine. schema: its source, by which the engine knows it."""

    schema: str
    automaton: Automaton = field(repr=False)


@functools.lru_cache(64)
def compiled(automaton_of: Callable[[Any], Automaton], schema: str) -> SentAutomaton:
    """Return the automaton of a schema. Raises ValueError for one that isn't supported."""
    try:
        return SentAutomaton(schema, automaton_of(pattern_of(json.loads(schema))))
    except RecursionError:
        raise ValueError("The schema is nested too deeply. Use fewer levels.") from None


class Names:
    """A tokenizer's tokens by the names that lab 14 asks for, those of transformers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.all_special_ids = [token for token, one in added.items() if one.special]
        self.convert_ids_to_tokens, self.size = tokenizer.id_to_token, tokenizer.get_vocab_size()

    def __len__(self) -> int:
        return self.size


@dataclass
class Node:
    """Where some bytes lead in a trie. tokens: those that have exactly these bytes."""

    tokens: list[int] = field(default_factory=list)
    children: dict[int, Node] = field(default_factory=dict)


def trie_of(vocabulary: Sequence[bytes]) -> Node:
    """Return all tokens as a tree. Tokens with a common beginning share the nodes for it."""
    root = Node()
    for token, text in enumerate(vocabulary):
        node = root
        for byte in text:
            node = node.children.setdefault(byte, Node())
        if text:
            node.tokens.append(token)
    return root


class TrieGuide:
    """Lab 14's guide for a regular language, without an index.

    A state's mask is computed when it is first asked for, from the tokens whose paths in the trie
    are paths in the automaton too. trie: of the vocabulary.
    """

    def __init__(
        self, automaton: Automaton, vocabulary: Sequence[bytes], trie: Node, eos: int
    ) -> None:
        self.automaton, self.vocabulary, self.trie, self.eos = automaton, vocabulary, trie, eos
        self.masks: dict[int, Bool[Tensor, " vocab"]] = {}

    def start(self) -> int:
        return 0

    def allowed(self, state: int) -> Bool[Tensor, " vocab"]:
        if state not in self.masks:
            tokens = [self.eos] if state in self.automaton.accepting else []
            todo = [(self.trie, state)]
            for node, place in todo:  # which grows meanwhile
                tokens += node.tokens
                edges = self.automaton.edges[place]
                children = node.children.items()
                todo += [(child, edges[byte]) for byte, child in children if byte in edges]
            self.masks[state] = torch.zeros(len(self.vocabulary), dtype=torch.bool)
            self.masks[state][tokens] = True
        return self.masks[state]

    def advance(self, state: int, token: int) -> int:
        for byte in self.vocabulary[token]:
            state = self.automaton.edges[state][byte]
        return state


class Guides:
    """The guides of an engine's latest schemas. lab: lab 14's names. eos: ends a text."""

    def __init__(self, lab: Any, tokenizer: Tokenizer, eos: int) -> None:
        self.vocabulary, self.eos = lab.vocabulary_bytes(Names(tokenizer)), eos
        self.trie = trie_of(self.vocabulary)
        self.kept: dict[str, TrieGuide] = {}

    def guide(self, sent: SentAutomaton, most: int = 16) -> TrieGuide:
        if sent.schema not in self.kept:
            for oldest in list(self.kept)[: len(self.kept) + 1 - most]:
                del self.kept[oldest]
            new = TrieGuide(sent.automaton, self.vocabulary, self.trie, self.eos)
            self.kept[sent.schema] = new
        return self.kept[sent.schema]
