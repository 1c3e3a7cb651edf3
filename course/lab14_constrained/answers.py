"""Answers to lab 14's exercises: choices, masks, derivatives, an index, loops, jumps, regions."""

import torch

from solutions.constrained import (
    allowed_choices,
    classify,
    constrain,
    derivative,
    forced,
    generate_constrained,
    hold_back,
    token_index,
)
from solutions.grammars.regex import EMPTY, NOTHING, Star, Then
from tests.common.attempts import right, wrong

# ------------------------------------------------------------------------- choices, and the mask


@right(allowed_choices)
def place_by_place(choices, generated, eos):
    left = [[*choice, eos] for choice in choices]
    for token in generated:
        left = [rest[1:] for rest in left if rest[0] == token and token != eos]
    return frozenset(rest[0] for rest in left)


@wrong(allowed_choices, "The set is a list; expected: it has token")
def in_a_list(choices, generated, eos):
    return sorted(allowed_choices(choices, generated, eos))


@wrong(constrain, "A large negative number is used instead of -inf.")
def nearly_never(logits, allowed):
    return constrain(logits, allowed).clamp(min=-1e9)


# ------------------------------------------------------------------------------------ derivatives


@right(derivative)
def with_some_parts_unsimplified(regex, byte):
    """The star's derivative, which stays bounded anyway."""
    match regex:
        case Star(body) if (left := with_some_parts_unsimplified(body, byte)) != NOTHING:
            return Then(left, regex)
    return derivative(regex, byte)


@wrong(derivative, "for an Empty it is None. Is a `return` missing?")
def without_the_empty_text(regex, byte):
    return None if regex == EMPTY else derivative(regex, byte)


@wrong(derivative, "With the pattern", "doesn't fit; expected: it fits.")
def of_characters(regex, byte):
    return derivative(regex, byte) if byte < 128 else NOTHING


# ------------------------------------------------------------------------- from bytes to tokens


@wrong(token_index, "Each item of the index is a dict; item 0 is a list.")
def as_pairs(automaton, vocabulary):
    return [list(ends.items()) for ends in token_index(automaton, vocabulary)]


@wrong(token_index, "`vocabulary` is changed; expected: it is as it was.")
def without_empty_tokens(automaton, vocabulary):
    index = token_index(automaton, vocabulary)
    vocabulary[:] = [text for text in vocabulary if text]
    return index


# ---------------------------------------------------------------------- generating under a mask


@wrong(generate_constrained, "What it returned is a tensor of shape", "; expected: it is a list of")
def as_a_tensor(*given):
    texts = generate_constrained(*given)
    longest = max(map(len, texts))
    return torch.tensor([text + [0] * (longest - len(text)) for text in texts])


# ------------------------------------------------------------------------------ jumping forward


@wrong(forced, "forced returns bytes and a state; this is None. Is a `return` missing?")
def without_a_result(automaton, state):
    forced(automaton, state)


@wrong(hold_back, "`allowed` takes bytes, not a list.")
def asks_with_tokens(tokens, vocabulary, allowed):
    return [token for token in tokens if token not in allowed(tokens)]


# -------------------------------------------------------------------------- a stack of brackets


@wrong(classify, "classify returns three sets; this is 2 things.")
def without_the_rejected(region, state, vocabulary):
    accepted, _, uncertain = classify(region, state, vocabulary)
    return accepted, uncertain


@wrong(classify, "is accepted and uncertain; expected: it is uncertain.")
def uncertain_in_two_sets(region, state, vocabulary):
    accepted, rejected, uncertain = classify(region, state, vocabulary)
    return accepted | uncertain, rejected, uncertain


EQUIVALENT = {
    "constrained.generate_constrained": {
        "len(going) < len(tokens) -> len(going) <= len(tokens)": "all rows become themselves",
    },
}
