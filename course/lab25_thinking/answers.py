"""Answers to lab 25's exercises: budgets, deltas, votes, shared prompts, history."""

import copy
from collections import Counter

from solutions.thinking import (
    Budget,
    ThoughtStream,
    agreed,
    best_of,
    closing,
    forked,
    majority,
    without_thoughts,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(closing, lambda both: both.edges, "What it returned is a list; expected")
wrong_result(forked, lambda numbers: numbers[0], "What it returned is an int; expected")
wrong_result(agreed, int, "What it returned is an int; expected")


@right(closing)
def by_hand(whole, end):
    result = copy.deepcopy(whole)
    for state in range(len(end)):
        for byte in set(result.edges[state]) - {end[state]}:
            del result.edges[state][byte]
    return result


@right(Budget.allowed)
def either_one(self, state, /):
    inner, spent = state
    guide = self.free
    if inner in range(self.thinking) and not spent < self.most:
        guide = self.closing
    return guide.allowed(inner)


@wrong(Budget.advance, "advance returns an inner state and how many tokens are spent")
def only_the_inner_state(self, state, token, /):
    return self.free.advance(state[0], token)


@right(ThoughtStream.push)
def letter_by_letter(self, piece):
    return [delta for letter in piece for delta in ThoughtStream.push(self, letter)]


@right(majority)
def with_sorting(answers, logprobs, weighted=False):
    known = sorted({answer for answer in answers if answer is not None})
    if not known:
        return None
    pairs = list(zip(answers, logprobs, strict=True))

    def weight(answer):
        its = [logprob for other, logprob in pairs if other == answer]
        return max(its) + math_log_sum([one - max(its) for one in its])

    votes = Counter(answers)
    return sorted(known, key=lambda a: (0 if weighted else votes[a], weight(a)))[-1]


def math_log_sum(logs):
    import math

    return math.log(sum(map(math.exp, logs)))


@right(best_of)
def with_a_list(texts, logprobs, by):
    sizes = {
        "sum": [1] * len(texts),
        "mean": list(map(len, logprobs)),
        "bytes": [len(text.encode()) for text in texts],
    }
    scores = [sum(its) / size for its, size in zip(logprobs, sizes[by], strict=True)]
    return scores.index(max(scores))


@wrong(best_of, "The number of the text is ")
def of_the_longest(texts, logprobs, by):
    return max(range(len(texts)), key=lambda number: len(texts[number]))


@right(forked)
def with_next(engine, submit, n):
    first = submit(0)
    engine.step()
    while not {number: up for number, _, up in engine.trace[-1]}.get(first):
        engine.step()
    return [first] + [submit(seed) for seed in range(n)[1:]]


@wrong(forked, "The list of what the engine was asked")
def a_fixed_number_of_steps(engine, submit, n):
    first = submit(0)
    for _ in range(2):
        engine.step()
    return [first, *map(submit, range(1, n))]


@right(agreed)
def by_counting(votes, left):
    ranks = [count for _, count in Counter(votes).most_common(2)]
    return sum(ranks[:1]) > sum(ranks[1:]) + left


@right(without_thoughts)
def with_a_loop(messages):
    old = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [
        {key: value for key, value in message.items() if key != "reasoning_content" or n > old}
        for n, message in enumerate(messages)
    ]


@wrong(without_thoughts, "is the given one")
def the_same_dictionaries(messages):
    changed = without_thoughts(messages)
    return [
        given if given == message else message
        for given, message in zip(messages, changed, strict=True)
    ]


SIZES = "'mean': len(logprobs[number]), 'bytes': len(texts[number].encode())}"

EQUIVALENT = {
    "thinking.Budget.advance": {
        "inner < self.thinking -> inner <= self.thinking": "no text is ever in that state",
    },
    "thinking.majority": {
        "votes[answer] += 1 -> votes[answer] += 2": "all votes count twice",
    },
    "thinking.best_of": {
        f"sizes = {{'sum': 1, {SIZES} -> sizes = {{'sum': 2, {SIZES}": "all sums are halved",
    },
}
