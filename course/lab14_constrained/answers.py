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
from tests.common.attempts import right, wrong, wrong_result

wrong_result(allowed_choices, sorted, "The set is a list; expected: it has token")
wrong_result(
    constrain,
    lambda logits: logits.clamp(min=-1e9),
    "A large negative number is used instead of -inf.",
)
wrong_result(
    token_index,
    lambda index: [list(ends.items()) for ends in index],
    "Each item of the index is a dict; item 0 is a list.",
)
wrong_result(
    generate_constrained,
    lambda texts: torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True),
    "What it returned is a tensor of shape",
    "; expected: it is a list of",
)
wrong_result(
    forced,
    lambda _: None,
    "forced returns bytes and a state; this is None. Is a `return` missing?",
)
wrong_result(
    classify, lambda sets: (sets[0], sets[2]), "classify returns three sets; this is 2 things."
)
wrong_result(
    classify,
    lambda sets: (sets[0] | sets[2], *sets[1:]),
    "is accepted and uncertain; expected: it is uncertain.",
)


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


# ------------------------------------------------------------------------------ jumping forward


@wrong(hold_back, "`allowed` takes bytes, not a list.")
def asks_with_tokens(tokens, vocabulary, allowed):
    return [token for token in tokens if token not in allowed(tokens)]


EQUIVALENT = {
    "constrained.generate_constrained": {
        "len(going) < len(tokens) -> len(going) <= len(tokens)": "all rows become themselves",
    },
}
