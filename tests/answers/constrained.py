"""Answers to lab 14's exercises: choices, masks, derivatives, an index, loops, jumps, regions."""

from functools import cache

import torch
import torch.nn.functional as F

from solutions.constrained import (
    allowed_choices,
    classify,
    constrain,
    derivative,
    forced,
    generate_constrained,
    hold_back,
    likeliest,
    token_index,
)
from solutions.grammars.regex import (
    EMPTY,
    NOTHING,
    AnyOf,
    Either,
    Star,
    Then,
    either,
    nullable,
    star,
    then,
)
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


@right(constrain)
def by_adding_logarithms(logits, allowed):
    if not allowed.any(dim=1).all():
        raise ValueError("A row allows nothing.")
    padded = F.pad(allowed, (0, logits.shape[1] - allowed.shape[1]))
    return logits + padded.to(logits.dtype).log()


@wrong(constrain, "A large negative number is used instead of -inf.")
def nearly_never(logits, allowed):
    return constrain(logits, allowed).clamp(min=-1e9)


@wrong(constrain, "`logits` is changed in place")
def in_place(logits, allowed):
    logits.copy_(constrain(logits, allowed))
    return logits


@wrong(constrain, "A mask whose last row allows no token went through; expected: it was refused")
def without_a_refusal(logits, allowed):
    padded = F.pad(allowed, (0, logits.shape[1] - allowed.shape[1]))
    return logits.masked_fill(~padded, -torch.inf)


# ------------------------------------------------------------------------------------ derivatives


@right(derivative)
def remembered(regex, byte):
    """A cache that lives as long as one call."""

    @cache
    def of(part):
        if isinstance(part, Then):
            rest = of(part.second) if nullable(part.first) else NOTHING
            return either(then(of(part.first), part.second), rest)
        if isinstance(part, Either):
            return either(*map(of, part.options))
        if isinstance(part, Star):
            return then(of(part.body), star(part.body))
        return EMPTY if isinstance(part, AnyOf) and byte in part.allowed else NOTHING

    return of(regex)


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


@wrong(derivative, "The number of different expressions grows without end")
def nested_to_the_left(regex, byte):
    """Equal texts, of which each looks different."""
    match regex:
        case Star(body):
            return Then(Then(derivative(body, byte), EMPTY), regex)
        case Then(first, second):
            inside = Then(nested_to_the_left(first, byte), second)
            rest = nested_to_the_left(second, byte) if nullable(first) else NOTHING
            return Either(frozenset([inside, rest]))
    return derivative(regex, byte)


@wrong(derivative, "With the pattern", "doesn't fit; expected: it fits.")
def of_characters(regex, byte):
    return derivative(regex, byte) if byte < 128 else NOTHING


# ------------------------------------------------------------------------- from bytes to tokens


@right(token_index)
def all_states_at_once(automaton, vocabulary):
    index = tuple({} for _ in automaton.edges)
    for token, text in enumerate(vocabulary):
        places = dict(enumerate(range(len(automaton.edges)))) if text else {}
        for byte in text:
            edges = {start: automaton.edges[place] for start, place in places.items()}
            places = {start: out[byte] for start, out in edges.items() if byte in out}
        for start, place in places.items():
            index[start][token] = place
    return list(index)


@wrong(token_index, "Each item of the index is a dict; item 0 is a list.")
def as_pairs(automaton, vocabulary):
    return [list(ends.items()) for ends in token_index(automaton, vocabulary)]


@wrong(token_index, "`vocabulary` is changed; expected: it is as it was.")
def without_empty_tokens(automaton, vocabulary):
    index = token_index(automaton, vocabulary)
    vocabulary[:] = [text for text in vocabulary if text]
    return index


# ---------------------------------------------------------------------- generating under a mask


@right(generate_constrained)
def states_from_the_texts(rows, automaton, index, max_new_tokens, eos, choose=likeliest):
    """Reads each text anew in every step, and always calls `become`."""
    texts, running = [[] for _ in rows.logits], list(range(len(rows.logits)))
    for step in range(max_new_tokens):
        mask = torch.full(rows.logits.shape, False)
        for row, number in enumerate(running):
            state = 0
            for token in texts[number]:
                state = index[state][token]
            mask[row, [*index[state], *[eos] * (state in automaton.accepting)]] = True
        for number, token in zip(
            running, choose(constrain(rows.logits, mask), running), strict=True
        ):
            texts[number].append(int(token))
        places = [place for place, number in enumerate(running) if texts[number][-1] != eos]
        running = [running[place] for place in places]
        if not running:
            break
        if step < max_new_tokens - 1:
            rows.become(places)
            rows.append([texts[number][-1] for number in running])
    return texts


@wrong(generate_constrained, "It raised KeyError", "EOS is looked up in the index")
def with_eos_in_the_automaton(rows, automaton, index, max_new_tokens, eos, choose=likeliest):
    states = [0] * len(rows.logits)

    def moving(logits, numbers):
        tokens = choose(logits, numbers)
        for number, token in zip(numbers, tokens, strict=True):
            states[number] = index[states[number]][token]
        return tokens

    return generate_constrained(rows, automaton, index, max_new_tokens, eos, moving)


@wrong(generate_constrained, "What it returned is a tensor of shape", "; expected: it is a list of")
def as_a_tensor(*given):
    texts = generate_constrained(*given)
    longest = max(map(len, texts))
    return torch.tensor([text + [0] * (longest - len(text)) for text in texts])


# ------------------------------------------------------------------------------ jumping forward


@right(forced)
def recursively(automaton, state, seen=frozenset()):
    ways = list(automaton.edges[state].items())
    if len(ways) != 1 or state in automaton.accepting or state in seen:
        return b"", state
    text, end = recursively(automaton, ways[0][1], seen | {state})
    return bytes([ways[0][0]]) + text, end


@wrong(forced, "forced returns bytes and a state; this is None. Is a `return` missing?")
def without_a_result(automaton, state):
    forced(automaton, state)


@right(hold_back)
def with_find(tokens, vocabulary, allowed):
    whole = b"".join(vocabulary[token] for token in tokens)
    before, places = b"", []
    for token in tokens:
        rest = whole[len(before) :]
        places.append(
            any(
                vocabulary[t].find(rest) == 0 != len(vocabulary[t]) - len(rest)
                for t in allowed(before)
            )
        )
        before += vocabulary[token]
    return tokens[: places.index(True)] if True in places else tokens


@wrong(hold_back, "`allowed` takes bytes, not a list.")
def asks_with_tokens(tokens, vocabulary, allowed):
    return [token for token in tokens if token not in allowed(tokens)]


# -------------------------------------------------------------------------- a stack of brackets


@right(classify)
def by_the_place_where_it_stops(region, state, vocabulary):
    fates = [set(), set(), set()]
    for token, text in enumerate(vocabulary):
        places = [state]
        for byte in text:
            places += [region.edges[places[-1]][byte]] if byte in region.edges[places[-1]] else [-1]
            if places[-1] < 0:
                break
        stays, leaves = places[-1] >= 0, bool(region.accepting.intersection(places))
        fates[1 if not text else 0 if stays else 2 if leaves else 1].add(token)
    return tuple(fates)


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
