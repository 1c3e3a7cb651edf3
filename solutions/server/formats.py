"""Answers in a given form: `response_format` of a request, as masks on the engine's logits.

Nothing is computed before a text needs it. A schema becomes an expression of lab 14, whose size is
that of the schema. The state of a text is what remains of the expression, and the mask of a state
is computed when a text first comes to it: of a schema's states, an answer visits few.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from tokenizers import Tokenizer
from torch import Tensor

from solutions.grammars.json_schema import pattern_of
from solutions.grammars.regex import (
    EMPTY,
    NOTHING,
    AnyOf,
    Counted,
    Either,
    Regex,
    Star,
    Then,
    at_most,
    byte_classes,
    repeat,
    star,
    then,
)
from solutions.server.settings import reference
from solutions.server.tokens import TokenBytes

MOST_MASKS, MOST_STATES = 2000, 50_000  # kept from one request to the next
MANY = 16  # ways to read a text so far
MOST_FOR_A_SCHEMA = 300_000  # steps, each a few microseconds
MOST_FOR_A_BYTE = 1000
MOST_FOR_A_MASK = 20_000
Derivative = Callable[[Regex, int], Regex]


def derivative_of(lab: Any) -> Derivative:
    """Return lab 14's function. Notebooks of earlier releases don't hand theirs over."""
    return getattr(lab, "derivative", None) or reference("constrained").derivative


@functools.lru_cache(256)
def read_format(derivative: Derivative, schema: str) -> Regex | str:
    """Return the expression of a schema; for one that isn't supported, a sentence that says why."""
    try:
        with at_most(MOST_FOR_A_SCHEMA, "The schema"):
            return pattern_of(json.loads(schema), functools.partial(require_quick, derivative))
    except ValueError as error:
        return str(error)


def require_quick(derivative: Derivative, regex: Regex) -> None:
    """Raise ValueError if reading a byte takes long in a text that is ambiguous on purpose."""
    some_bytes, read = [members[-1] for members in byte_classes(regex)][:8], set[Regex]()
    for _ in range(20):
        read.add(regex)
        with at_most(MOST_FOR_A_BYTE, "Reading a character of the pattern"):
            after = {derivative(regex, byte) for byte in some_bytes} - read
        regex = max(after, key=options_of, default=NOTHING)


def options_of(regex: Regex) -> int:
    while isinstance(regex, Then):
        regex = regex.first
    return len(regex.options) if isinstance(regex, Either) else 0


@dataclass(eq=False)
class Node:
    """Where some bytes lead in a trie. tokens: those that have exactly these bytes."""

    tokens: list[int] = field(default_factory=list)
    children: dict[int, Node] = field(default_factory=dict)


class Vocabulary:
    """The texts of all tokens, and a tree in which those with a common beginning share its nodes.

    ends: tokens that end a text. For 50,000 tokens the tree takes a second.
    """

    def __init__(self, tokenizer: Tokenizer, ends: Collection[int] = ()) -> None:
        self.bytes_of, self.ends = TokenBytes(tokenizer, ends), list(ends)
        self.texts = [self.bytes_of(token) for token in range(tokenizer.get_vocab_size())]
        self.root = Node()
        for token, text in enumerate(self.texts):
            node = self.root
            for byte in text:
                if byte not in node.children:
                    node.children[byte] = Node()
                node = node.children[byte]
            if text:
                node.tokens.append(token)


class Region(NamedTuple):
    """What an expression allows, whatever comes after it.

    mask: the tokens that begin its texts. exits: the nodes at which one of its texts has ended
    within a token, by the byte that comes next in the token.
    """

    mask: Bool[Tensor, " vocab"]
    exits: dict[int, list[Node]]


class Masks:
    """The masks of expressions, for one vocabulary. derivative: lab 14's, perhaps a learner's.

    Most of an answer is strings, and their inside is the same expression everywhere. So the mask of
    `Then(first, second)` is put together: from the region of `first`, computed once for all
    schemas, and from the tokens that go on into `second`.
    """

    def __init__(self, vocabulary: Vocabulary, derivative: Derivative) -> None:
        self.vocabulary, self.derivative = vocabulary, derivative
        self.root, self.longest = vocabulary.root, vocabulary.bytes_of.longest
        self.forget()

    def forget(self) -> None:
        self.edges: dict[Regex, dict[int, Regex]] = defaultdict(dict)
        self.firsts: dict[Regex, frozenset[int]] = {}
        self.regions: dict[Regex, Region] = {}
        self.kept: dict[Any, Bool[Tensor, " vocab"]] = {}  # by expression, or another guide's state

    def after(self, regex: Regex, byte: int) -> Regex:
        """Return what remains of an expression after a byte."""
        edges = self.edges[regex]
        if byte not in edges:
            edges[byte] = self.derivative(regex, byte)
        return edges[byte]

    def first_bytes(self, regex: Regex) -> frozenset[int]:
        """Return the bytes that its texts begin with."""
        if regex not in self.firsts:
            match regex:
                case AnyOf(allowed):
                    begins = allowed
                case Then(first, second):
                    begins = self.first_bytes(first)
                    begins |= self.first_bytes(second) if first.has_empty else frozenset()
                case Either(options):
                    begins = frozenset().union(*map(self.first_bytes, options))
                case Star(body):
                    begins = self.first_bytes(body)
                case _:
                    begins = frozenset()
            self.firsts[regex] = begins
        return self.firsts[regex]

    def allowed(self, regex: Regex) -> Bool[Tensor, " vocab"]:
        """Return the tokens that may come next, those that end a text if it may end here."""
        with at_most(MOST_FOR_A_MASK, "A mask of the format"):
            return self.mask(regex)

    def mask(self, regex: Regex) -> Bool[Tensor, " vocab"]:
        if regex not in self.kept:
            self.kept[regex] = self.computed(regex)
        return self.kept[regex]

    def computed(self, regex: Regex) -> Bool[Tensor, " vocab"]:
        first, rest = (regex.first, regex.second) if isinstance(regex, Then) else (regex, EMPTY)
        if isinstance(first, Either) and not isinstance(first.given, Counted):
            options = {then(option, rest) for option in first.options}
            if len(options) > MANY:
                options = set(map(self.near, options))
            return torch.stack(list(map(self.mask, options))).any(dim=0)
        if (shorter := self.counted_no_further(first)) is not first:
            return self.mask(then(shorter, rest))
        region = self.region(first)
        mask, tokens = region.mask.clone(), list[int]()
        for byte in self.first_bytes(rest) & region.exits.keys():
            remains = self.after(rest, byte)
            for node in region.exits[byte]:
                tokens += node.tokens
                tokens += self.read(remains, node)[0] if node.children else []
        mask[tokens] = True
        if first.has_empty and rest is not EMPTY:
            mask |= self.mask(rest)
        mask[self.vocabulary.ends] = regex.has_empty
        return mask

    def read(self, regex: Regex, node: Node) -> tuple[list[int], list[Node]]:
        """Read an expression on from a node: return the tokens, and where a text has ended."""
        tokens, exits = list[int](), [node] if regex.has_empty else []
        todo = [(regex, node)]
        for remains, place in todo:  # which grows meanwhile
            for byte in self.first_bytes(remains) & place.children.keys():
                child, after = place.children[byte], self.after(remains, byte)
                tokens += child.tokens
                if child.children:
                    todo.append((after, child))
                    exits += [child] if after.has_empty else []
        return tokens, exits

    def region(self, regex: Regex) -> Region:
        if regex not in self.regions:
            tokens, exits = self.read(regex, self.root)
            mask = torch.zeros(len(self.vocabulary.texts), dtype=torch.bool)
            by_byte = defaultdict[int, list[Node]](list)
            mask[tokens] = True
            for exit_ in exits:
                for byte, child in exit_.children.items() if exit_ is not self.root else ():
                    by_byte[byte].append(child)
            self.regions[regex] = Region(mask, by_byte)
        return self.regions[regex]

    def near(self, regex: Regex) -> Regex:
        """Return an expression with the same mask, without what no token is long enough for.

        Of many ways to read a text, most differ only there.
        """
        parts, least = list[Regex](), 0
        while least <= self.longest and regex is not EMPTY:
            first, regex = (
                (regex.first, regex.second) if isinstance(regex, Then) else (regex, EMPTY)
            )
            parts.append(self.counted_no_further(first))
            least += not first.has_empty
        return then(*parts)

    def counted_no_further(self, regex: Regex) -> Regex:
        if not isinstance(regex, Either) or not isinstance(regex.given, Counted):
            return regex
        body, least, most = regex.given
        if not least and most > self.longest:
            return star(body)
        return repeat(body, min(least, self.longest + 1), min(most, self.longest + 1))


class ByteGuide(ABC):
    """Lab 14's guide, of which is known what follows after a byte.

    key: what the masks of its states depend on, besides the state.
    """

    key: Any

    def __init__(self, masks: Masks) -> None:
        self.masks = masks

    @abstractmethod
    def start(self) -> Any: ...

    @abstractmethod
    def allowed(self, state: Any) -> Bool[Tensor, " vocab"]: ...

    @abstractmethod
    def after(self, state: Any, byte: int) -> Any: ...

    def remains(self, state: Any) -> Any:
        """Return what remains to be written: EMPTY if nothing may follow, NOTHING if no text has
        begun like that.
        """
        return state

    def advance(self, state: Any, token: int) -> Any:
        for byte in self.masks.vocabulary.texts[token]:
            state = self.after(state, byte)
        return state

    def free(
        self, state: Any, usual: bool, may_end: bool, is_doubtful: Callable[[bytes], bool]
    ) -> Bool[Tensor, " vocab"]:
        """Return the mask of a state of free text, computed once. Doubtful tokens are read through;
        the others are allowed as usual.
        """
        kept, vocabulary = self.masks.kept, self.masks.vocabulary
        if (self.key, state) not in kept:
            mask = torch.tensor([usual and bool(text) for text in vocabulary.texts])
            mask[vocabulary.ends] = may_end
            with at_most(MOST_FOR_A_MASK, "A mask of free text"):
                for token, text in enumerate(vocabulary.texts):
                    if is_doubtful(text):
                        mask[token] = self.remains(self.advance(state, token)) is not NOTHING
            kept[self.key, state] = mask
        return kept[self.key, state]


class FormatGuide(ByteGuide):
    """Keeps to a schema. A state is an expression: what remains to be written."""

    def __init__(self, regex: Regex, masks: Masks) -> None:
        super().__init__(masks)
        self.key = self.regex = regex

    def start(self) -> Regex:
        return self.regex

    def allowed(self, state: Regex) -> Bool[Tensor, " vocab"]:
        return self.masks.allowed(state)

    def after(self, state: Regex, byte: int) -> Regex:
        return self.masks.after(state, byte)


class AnyGuide(ByteGuide):
    """Lets a text be any text, with an end anywhere. So no byte changes the state."""

    key = "any"

    def start(self) -> str:
        return self.key

    def allowed(self, state: str) -> Bool[Tensor, " vocab"]:
        return self.free(state, True, True, lambda text: False)

    def after(self, state: str, byte: int) -> str:
        return state


class Guides:
    """The guides of an engine. lab: lab 14's names."""

    def __init__(self, lab: Any, vocabulary: Vocabulary) -> None:
        self.masks = Masks(vocabulary, derivative_of(lab))

    def bounded(self) -> Masks:
        """Return the masks, without those of earlier requests if they have become many."""
        if len(self.masks.kept) > MOST_MASKS or len(self.masks.edges) > MOST_STATES:
            self.masks.forget()
        return self.masks

    def guide(self, schema: str | None) -> ByteGuide:
        """Return the guide of a schema as text, or of any text."""
        masks = self.bounded()
        if schema is None:
            return AnyGuide(masks)
        regex = read_format(masks.derivative, schema)
        assert isinstance(regex, Regex), "others are refused before they are sent"
        return FormatGuide(regex, masks)
