"""Lab 14: constrained decoding. Every text that a model writes belongs to a given language.

A grammar says which texts are allowed: one of six answers, a date, a JSON object. Before each draw,
the tokens that lead out of the language get the logit -inf. Which tokens these are depends only on
the state of an automaton, so it is computed once per state, over the whole vocabulary. Where only
one continuation is left, no forward pass is needed. JSON of any depth takes a stack as well.

Sources: Willard and Louf, "Efficient guided generation for large language models", 2023 (the index
over the vocabulary); Brzozowski, "Derivatives of regular expressions", JACM 1964; Yin et al., "Fast
JSON decoding for local LLMs with compressed finite state machine", LMSYS 2024 (jumping forward);
Dong et al., "XGrammar: flexible and efficient structured generation engine for large language
models", 2024 (tokens that depend on the stack); Park et al., "Grammar-aligned decoding", NeurIPS
2024 (what a mask does to the distribution).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from solutions.batching import PaddedCache, pad_left, padded_position_ids, require_requests
from solutions.decoding import NEVER, Rows, end_of
from solutions.grammars.json_schema import REGIONS
from solutions.grammars.regex import (
    EMPTY,
    NOTHING,
    AnyOf,
    Either,
    Regex,
    Star,
    Then,
    byte_classes,
    either,
    nullable,
    then,
)
from solutions.kv_cache import CachedLMHead
from solutions.speculative import new_cache, new_logits

# ------------------------------------------------------------------------- choices, and the mask


def allowed_choices(
    choices: Sequence[Sequence[int]], generated: Sequence[int], eos: int
) -> set[int]:
    """Return the tokens that may come next, if the whole text must be one of the choices.

    choices: token ids of each. generated: the new tokens so far. After a complete choice, EOS may
    come. The set is empty if `generated` begins no choice. Nothing is changed.
    """
    ### BEGIN SOLUTION
    length = len(generated)
    going = [choice for choice in choices if list(choice[:length]) == list(generated)]
    return {choice[length] if len(choice) > length else eos for choice in going}
    ### END SOLUTION


def constrain(
    logits: Float[Tensor, "batch vocab"], allowed: Bool[Tensor, "batch n"]
) -> Float[Tensor, "batch vocab"]:
    """Return the logits with -inf for each token that isn't allowed; the others stay as they are.

    A model's vocabulary may be padded: its last columns, from n on, belong to no token and are
    never allowed. Raises ValueError for a row that allows nothing. `logits` stays unchanged.
    """
    if not allowed.any(dim=-1).all():
        row = int((~allowed.any(dim=-1)).nonzero()[0, 0])
        raise ValueError(
            f"Row {row} allows no token. Either its text has left the language, or no token of "
            "this vocabulary continues it."
        )
    ### BEGIN SOLUTION
    constrained = torch.full_like(logits, NEVER)
    n = allowed.shape[1]
    constrained[:, :n] = logits[:, :n].masked_fill(~allowed, NEVER)
    return constrained
    ### END SOLUTION


# ------------------------------------------------------------------- from a pattern to an automaton


def derivative(regex: Regex, byte: int) -> Regex:
    """Return the expression for what may follow `byte` in the texts that begin with it.

    Its kinds are EMPTY, AnyOf(allowed), Then(first, second), Either(options) and Star(body). Build
    the result with `then` and `either`, which simplify; NOTHING if no text begins with the byte.
    Source: Brzozowski, 1964.
    """
    ### BEGIN SOLUTION
    match regex:
        case AnyOf(allowed):
            return EMPTY if byte in allowed else NOTHING
        case Then(first, second):
            inside = then(derivative(first, byte), second)
            return either(inside, derivative(second, byte)) if nullable(first) else inside
        case Either(options):
            return either(*(derivative(option, byte) for option in options))
        case Star(body):
            return then(derivative(body, byte), regex)
    return NOTHING  # no byte follows in the empty text
    ### END SOLUTION


MOST_STATES = 2000
TOO_LARGE = (
    f"The automaton has more than {MOST_STATES:,} states, or is nested too deeply. Bound the "
    "repetitions more tightly; or, if `derivative` is yours: does it build with `then` and "
    "`either`, so that equal expressions become one state?"
)


@dataclass(frozen=True)
class Automaton:
    """A machine that reads a text byte by byte and knows whether it may still be in the language.

    edges: for each state, the byte and the state after it. The start is state 0. A byte without an
    edge leaves the language. accepting: the states in which the text may end. From every state of
    `automaton_of`, an accepting state can be reached.
    """

    edges: list[dict[int, int]]
    accepting: frozenset[int]


def automaton_of(regex: Regex, derivative: Callable[[Regex, int], Regex] = derivative) -> Automaton:
    """Return the automaton of an expression. Its states are the expression and its derivatives.

    Raises ValueError if there are more than MOST_STATES, or if the language has no text.
    """
    numbers = {regex: 0}
    found, edges = [regex], list[dict[int, int]]()
    classes = byte_classes(regex)  # one byte of a class stands for all of them
    for current in found:  # which grows meanwhile
        edges.append({})
        for members in classes:
            try:
                after = derivative(current, members[0])
            except RecursionError as error:
                raise ValueError(TOO_LARGE) from error
            if after == NOTHING:
                continue
            if after not in numbers:
                numbers[after] = len(found)
                found.append(after)
            edges[-1] |= dict.fromkeys(members, numbers[after])
        if len(found) > MOST_STATES:
            raise ValueError(TOO_LARGE)
    return trimmed(edges, {state for state, regex in enumerate(found) if nullable(regex)})


def trimmed(edges: list[dict[int, int]], accepting: set[int]) -> Automaton:
    """Leave out the states from which no accepting state can be reached."""
    before: list[set[int]] = [set() for _ in edges]
    for state, out in enumerate(edges):
        for end in out.values():
            before[end].add(state)
    alive, todo = set(accepting), list(accepting)
    while todo:
        new = before[todo.pop()] - alive
        alive |= new
        todo += new
    if 0 not in alive:
        raise ValueError("No text at all fits the pattern.")
    numbers = {state: number for number, state in enumerate(sorted(alive))}
    kept = [
        {byte: numbers[end] for byte, end in edges[state].items() if end in alive}
        for state in numbers
    ]
    return Automaton(kept, frozenset(numbers[state] for state in accepting))


# ------------------------------------------------------------------------- from bytes to tokens


def vocabulary_bytes(tokenizer: Any) -> list[bytes]:
    """Return the bytes of every token. Special tokens have none: no text contains them.

    GPT-2's tokenizer writes each byte as one printable character, such as Ġ for a space; lab 16
    builds this table. Raises ValueError for another kind of tokenizer.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + place): byte for place, byte in enumerate(others)}
    special = set(tokenizer.all_special_ids)
    tokens = range(len(tokenizer))
    names = ["" if token in special else tokenizer.convert_ids_to_tokens(token) for token in tokens]
    if not all(set(name) <= byte_of.keys() for name in names):
        raise ValueError("The tokens aren't written in bytes, as GPT-2's are: take its tokenizer.")
    return [bytes(byte_of[character] for character in name) for name in names]


def token_index(automaton: Automaton, vocabulary: Sequence[bytes]) -> list[dict[int, int]]:
    """Return for each state: every token that may come next, and the state after all its bytes.

    A token may cross several edges, and it may end in the middle of a word or of a character. A
    token without bytes never comes. EOS isn't in the index, because it isn't text.
    """
    ### BEGIN SOLUTION
    index = []
    for start in range(len(automaton.edges)):
        ends = {}
        for token, text in enumerate(vocabulary):
            state = start
            for byte in text:
                if byte not in automaton.edges[state]:
                    break
                state = automaton.edges[state][byte]
            else:  # all its bytes have an edge
                if text:
                    ends[token] = state
        index.append(ends)
    return index
    ### END SOLUTION


# ---------------------------------------------------------------------- generating under a mask


class PaddedRows:
    """Prompts of different lengths, each a row of a batch, with lab 3's padding.

    The rows have the same interface as lab 5's: `logits`, `become` and `append`.
    """

    logits: Float[Tensor, "rows vocab"]

    def __init__(
        self, model: CachedLMHead, prompts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> None:
        require_requests(model.config, prompts, [max_new_tokens] * len(prompts), slots=1)
        if max(map(len, prompts)) + max_new_tokens > model.config.n_positions:
            raise ValueError(
                f"A prompt and {max_new_tokens} new tokens don't fit the context of "
                f"{model.config.n_positions} tokens. Shorten the prompt or generate fewer."
            )
        weight = model.transformer.wte.weight
        input_ids, attention_mask = (padded.to(weight.device) for padded in pad_left(prompts))
        columns = input_ids.shape[1] + max_new_tokens
        self.model = model
        self.kv_cache = PaddedCache(
            model.config, attention_mask, columns, weight.device, weight.dtype
        )
        self.position_ids = padded_position_ids(attention_mask)
        self.forward(input_ids)

    def become(self, parents: Sequence[int]) -> None:
        rows = torch.tensor(parents, dtype=torch.long, device=self.position_ids.device)
        self.logits = self.logits[rows]
        self.kv_cache.reorder(rows)
        self.kv_cache.attention_mask = self.kv_cache.attention_mask[rows]
        self.position_ids = self.position_ids[rows]

    def append(self, tokens: Sequence[int]) -> None:
        self.position_ids = self.position_ids[:, -1:] + 1
        self.forward(torch.tensor(tokens, device=self.position_ids.device)[:, None])

    @torch.no_grad()
    def forward(self, input_ids: Int[Tensor, "rows q_len"]) -> None:
        self.logits = self.model(input_ids, self.position_ids, self.kv_cache)[:, -1]


Choose = Callable[[Float[Tensor, "rows vocab"], Sequence[int]], Sequence[int]]


def likeliest(logits: Float[Tensor, "rows vocab"], numbers: Sequence[int]) -> list[int]:
    return logits.argmax(dim=-1).tolist()


def generate_constrained(
    rows: Rows,
    automaton: Automaton,
    index: Sequence[dict[int, int]],
    max_new_tokens: int,
    eos: int,
    choose: Choose = likeliest,
) -> list[list[int]]:
    """Continue every row with a text of the automaton's language; return each row's new tokens.

    rows: the prompts, already computed; `rows.logits` are for each row's first new token. index:
    `token_index` of the automaton. Every row has its own state, 0 at the start. In each step call
    `choose(logits, numbers)` once, with the constrained logits of the rows that still run and their
    numbers, counted from 0 at the start; it returns a token for each. EOS may come in accepting
    states only. It ends its row, which keeps it and leaves the batch (`rows.become`); nothing else
    ends a row before `max_new_tokens`. Call `rows.append` once per step, and not after the last
    one.
    """
    ### BEGIN SOLUTION
    texts = [list[int]() for _ in rows.logits]
    numbers, states = list(range(len(texts))), [0] * len(texts)
    for left in reversed(range(max_new_tokens)):
        allowed = torch.zeros_like(rows.logits, dtype=torch.bool)
        for row, state in enumerate(states):
            allowed[row, list(index[state])] = True
            allowed[row, eos] = state in automaton.accepting
        tokens = choose(constrain(rows.logits, allowed), numbers)
        for number, token in zip(numbers, tokens, strict=True):
            texts[number].append(token)
        going = [row for row, token in enumerate(tokens) if token != eos]
        if not going or not left:
            break
        states = [index[states[row]][tokens[row]] for row in going]
        numbers = [numbers[row] for row in going]
        if len(going) < len(tokens):  # become copies the cache
            rows.become(going)
        rows.append([tokens[row] for row in going])
    return texts
    ### END SOLUTION


# -------------------------------------------------------------------------- guides for an engine


class Guide(Protocol):
    """A language, as an engine sees it: one object for many requests, each with its own state."""

    def start(self) -> Any:
        """Return the state of a request without new tokens."""

    def allowed(self, state: Any, /) -> Bool[Tensor, " vocab"]:
        """Return which tokens may come next; EOS, if the text may end here."""

    def advance(self, state: Any, token: int, /) -> Any:
        """Return the state after one of the allowed tokens."""


def mask_of(tokens: Collection[int], size: int) -> Bool[Tensor, " vocab"]:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(tokens)] = True
    return mask


class IndexGuide:
    """A regular language. Every mask is computed at the beginning; equal masks are one tensor."""

    def __init__(self, automaton: Automaton, vocabulary: Sequence[bytes], eos: int) -> None:
        self.automaton, self.vocabulary, self.eos = automaton, vocabulary, eos
        self.index = token_index(automaton, vocabulary)
        kept: dict[frozenset[int], Bool[Tensor, " vocab"]] = {}
        self.masks = []
        for state, ends in enumerate(self.index):
            tokens = frozenset(ends) | ({eos} if state in automaton.accepting else set())
            if tokens not in kept:
                kept[tokens] = mask_of(tokens, len(vocabulary))
            self.masks.append(kept[tokens])

    def start(self) -> int:
        return 0

    def allowed(self, state: int) -> Bool[Tensor, " vocab"]:
        return self.masks[state]

    def advance(self, state: int, token: int) -> int:
        return state if token == self.eos else self.index[state][token]


class Constraint:
    """One request's guide and state. An engine calls `constrain`, draws, and calls `advance`."""

    def __init__(self, guide: Guide) -> None:
        self.guide, self.state = guide, guide.start()

    def constrain(
        self, logits: Float[Tensor, "drafts+1 vocab"], drafts: Sequence[int] = ()
    ) -> Float[Tensor, "drafts+1 vocab"]:
        """Constrain the logits after the text and after each draft; the state stays the same.

        A draft that isn't allowed is rejected, whatever the logits after it are.
        """
        state, masks = self.state, [self.guide.allowed(self.state)]
        for draft in drafts:
            if not masks[-1][draft : draft + 1].any():  # forbidden, or in the padding
                break
            state = self.guide.advance(state, draft)
            masks.append(self.guide.allowed(state))
        masks += [masks[-1]] * (len(logits) - len(masks))
        return constrain(logits, torch.stack(masks).to(logits.device))

    def advance(self, token: int) -> None:
        self.state = self.guide.advance(self.state, token)


# ------------------------------------------------------------------------------ jumping forward


def forced(automaton: Automaton, state: int) -> tuple[bytes, int]:
    """Return the bytes that must come next, and the state after them.

    A byte must come if it has the only edge of a state that isn't accepting: in an accepting state
    the text may also end. Don't go on from a state twice, so that a loop ends.
    """
    ### BEGIN SOLUTION
    text, seen = b"", set[int]()
    while len(automaton.edges[state]) == 1 and state not in automaton.accepting | seen:
        seen.add(state)
        [(byte, state)] = automaton.edges[state].items()
        text += bytes([byte])
    return text, state
    ### END SOLUTION


def hold_back(
    tokens: Sequence[int],
    vocabulary: Sequence[bytes],
    allowed: Callable[[bytes], Collection[int]],
) -> list[int]:
    """Return the first of these tokens, up to a place where a longer token could come instead.

    tokens: a forced text as tokens; other text comes after it. allowed: the tokens that may come
    after the given bytes of that text. At any place, if an allowed token covers all the rest of the
    text and goes beyond its end, the model must choose there: drop the rest.
    """
    ### BEGIN SOLUTION
    texts = [vocabulary[token] for token in tokens]
    for kept in range(len(tokens)):
        rest = b"".join(texts[kept:])
        coming = [vocabulary[token] for token in allowed(b"".join(texts[:kept]))]
        if any(text.startswith(rest) and len(text) > len(rest) for text in coming):
            return list(tokens[:kept])
    return list(tokens)
    ### END SOLUTION


def jump(guide: IndexGuide, state: int, encode: Callable[[str], Sequence[int]]) -> list[int]:
    """Return the tokens that must come next and need no forward pass, often none.

    They are the forced text as the tokenizer writes it, not the model. encode: the tokenizer's,
    from a text to token ids.
    """

    def allowed(before: bytes) -> Collection[int]:
        place = state
        for byte in before:
            place = guide.automaton.edges[place][byte]
        return guide.index[place]

    text, _ = forced(guide.automaton, state)
    try:
        return hold_back(encode(text.decode()), guide.vocabulary, allowed) if text else []
    except UnicodeDecodeError:  # it begins or ends within a character
        return []


@torch.no_grad()
def generate_jumping(
    model: CachedLMHead,
    prompt: Sequence[int],
    guide: IndexGuide,
    jumps: Sequence[Sequence[int]],
    max_new_tokens: int,
    choose: Choose = likeliest,
) -> list[list[int]]:
    """Do what `generate_constrained` does for one prompt, with fewer forward passes.

    Return the new tokens of each pass: the chosen token and the forced ones after it. jumps: the
    result of `jump` for each state. The text may differ from that of `generate_constrained`, which
    lets the model write the same bytes as other tokens.
    """
    ids, rounds = list(prompt), list[list[int]]()
    end = end_of(model.config, prompt, max_new_tokens)
    kv_cache, state = new_cache(model, end), guide.start()
    while len(ids) < end and rounds[-1:] != [[guide.eos]]:
        logits = new_logits(model, ids, kv_cache)[-1:]
        allowed = guide.allowed(state)[None].to(logits.device)
        [token] = choose(constrain(logits, allowed), [0])
        tokens = [token, *jumps[guide.advance(state, token)]][: end - len(ids)]
        for token in tokens:
            state = guide.advance(state, token)
        ids += tokens
        rounds.append(tokens)
    return rounds


# -------------------------------------------------------------------------- a stack of brackets


def classify(
    region: Automaton, state: int, vocabulary: Sequence[bytes]
) -> tuple[set[int], set[int], set[int]]:
    """Divide the tokens by what a region knows about them: accepted, rejected, and uncertain.

    A region is the part of a grammar that one automaton describes. It may be left in its accepting
    states, and what is read then depends on a stack. From `state`, a token is accepted if all its
    bytes stay in the region. Else it is uncertain if the region may be left before one of them, the
    first included. All others are rejected, and so are tokens without bytes. Source: Dong et al.,
    2024, section 3.1.
    """
    ### BEGIN SOLUTION
    accepted, rejected, uncertain = set[int](), set[int](), set[int]()
    for token, text in enumerate(vocabulary):
        place, may_leave, fate = state, False, accepted if text else rejected
        for byte in text:
            may_leave = may_leave or place in region.accepting
            if byte not in region.edges[place]:
                fate = uncertain if may_leave else rejected
                break
            place = region.edges[place][byte]
        fate.add(token)
    return accepted, rejected, uncertain
    ### END SOLUTION


class Place(NamedTuple):
    """Where a text of JSON is: its open brackets, a region of REGIONS, and a state of that."""

    stack: str
    region: str
    state: int


class NestedGuide:
    """JSON of any depth. Regions read the bytes, and a stack keeps the brackets that are open.

    Tokens that a region accepts or rejects are found once for each of its states. Only the
    uncertain ones are read again, on the stack of the request.
    """

    def __init__(self, vocabulary: Sequence[bytes], eos: int) -> None:
        self.vocabulary, self.eos = vocabulary, eos
        self.regions = {name: automaton_of(regex) for name, regex in REGIONS.items()}
        self.kept: dict[tuple[str, int], tuple[set[int], set[int], set[int]]] = {}

    def start(self) -> Place:
        return Place("", "", 0)

    def allowed(self, place: Place) -> Bool[Tensor, " vocab"]:
        key = place.region, place.state
        if key not in self.kept:
            self.kept[key] = classify(self.regions[place.region], place.state, self.vocabulary)
        accepted, _, uncertain = self.kept[key]
        passing = {token for token in uncertain if self.after(place, self.vocabulary[token])}
        may_end = not place.stack and place.state in self.regions[place.region].accepting
        return mask_of(
            accepted | passing | ({self.eos} if may_end else set()), len(self.vocabulary)
        )

    def advance(self, place: Place, token: int) -> Place:
        after = self.after(place, self.vocabulary[token])
        assert after is not None, "the token was allowed"
        return after

    def after(self, place: Place | None, read: bytes) -> Place | None:
        """Return the place after reading these bytes; None if they aren't JSON."""
        for byte in read:
            place = self.step(place, byte) if place else None
        return place

    def step(self, place: Place, byte: int) -> Place | None:
        stack, name, state = place
        region = self.regions[name]
        if byte in region.edges[state]:
            state = region.edges[state][byte]
            if state not in region.accepting or byte not in b"[{]}":
                return Place(stack, name, state)
            if byte in b"[{":
                return Place(stack + chr(byte), chr(byte), 0)
            return Place(stack[:-1], stack[:-1][-1:] + ",", 0)
        if state not in region.accepting or name == ",":
            return None
        return self.step(Place(stack, stack[-1:] + ",", 0), byte)  # a scalar ended before this byte
