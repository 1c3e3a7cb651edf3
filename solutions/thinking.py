"""Lab 25: thinking. A model spends tokens to be right, and an engine keeps the account.

A model that thinks writes free text first, and its answer after a mark. More thoughts may make the
answer right; so may more answers, of which the best is taken. Both cost tokens, and both stop
paying somewhere. What an engine needs for it: a budget that holds to the token, deltas in which
thoughts and answer are apart, samples that share a prompt, and a history without old thoughts.

Sources: Wei et al., "Chain-of-thought prompting elicits reasoning in large language models",
NeurIPS 2022; Wang et al., "Self-consistency improves chain of thought reasoning in language
models", ICLR 2023 (votes); Muennighoff et al., "s1: simple test-time scaling", 2025 (budgets);
Aggarwal et al., "Let's sample step by step", EMNLP 2023 (when to stop sampling); DeepSeek,
"Reasoning model", API documentation (`reasoning_content`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from solutions.constrained import Automaton, Guide, automaton_of
from solutions.grammars.regex import Regex, literal, then
from solutions.tools import Delta, Message, triggered, up_to

# ------------------------------------------------------------------------------------- a budget


def thoughtful(answer: Regex, end: bytes) -> Automaton:
    """Return the automaton of thoughts, which are any text, then `end`, then an answer.

    It is lab 24's `triggered`: states 0 to len(end) - 1 are thoughts, and say how many bytes of
    `end` the text ends with. Unlike there, a text can't end in the thoughts.
    """
    whole = triggered(automaton_of(then(literal(end.decode()), answer)), end)
    return Automaton(whole.edges, whole.accepting - set(range(len(end))))


def closing(whole: Automaton, end: bytes) -> Automaton:
    """Return the automaton `whole` of `thoughtful`, but with thoughts that can only be closed.

    The states are the same. In those of the thoughts, the only byte that may come is the next one
    of `end`, after those of its bytes that the text ends with. `whole` stays unchanged.
    """
    ### BEGIN SOLUTION
    kept = [{byte: whole.edges[state][byte]} for state, byte in enumerate(end)]
    return Automaton(kept + whole.edges[len(end) :], whole.accepting)
    ### END SOLUTION


class Budget:
    """A guide around two guides: thoughts of at most `most` tokens, then the mark and the answer.

    free, closing: guides of `thoughtful` and of its `closing`; they have the same states. thinking:
    how many of these are thoughts, namely those below. Tokens that only write the mark after the
    budget is spent come on top of `most`. A state has two parts: that of the inner guides, and how
    many tokens were written in the thoughts.
    """

    def __init__(self, free: Guide, closing: Guide, thinking: int, most: int) -> None:
        if most < 0:
            raise ValueError(f"A budget is a number of tokens, 0 or more, not {most}.")
        self.free, self.closing, self.thinking, self.most = free, closing, thinking, most

    def start(self) -> tuple[Any, int]:
        return self.free.start(), 0

    def allowed(self, state: tuple[Any, int], /) -> Bool[Tensor, " vocab"]:
        """Return which tokens may come next. Once `most` are spent, thoughts can only be closed.

        In the answer, both guides allow the same.
        """
        ### BEGIN SOLUTION
        inner, spent = state
        return (self.free if spent < self.most else self.closing).allowed(inner)
        ### END SOLUTION

    def advance(self, state: tuple[Any, int], token: int, /) -> tuple[Any, int]:
        """Return the state after a token. One that is written in the thoughts is spent."""
        ### BEGIN SOLUTION
        inner, spent = state
        return self.free.advance(inner, token), spent + (inner < self.thinking)
        ### END SOLUTION


# ------------------------------------------------------------------------- thoughts and the answer


class ThoughtStream:
    """Turns the pieces of a text into deltas in which thoughts and answer are apart.

    end: the mark between them. held: text that isn't sent yet. is_thinking: whether the mark is
    still to come.
    """

    def __init__(self, end: str) -> None:
        self.end, self.held, self.is_thinking = end, "", True

    def push(self, piece: str) -> list[Delta]:
        """Add a piece of the text, and return the deltas that can be sent now.

        {"reasoning_content": text} before the mark, {"content": text} after it. The first mark
        isn't sent, nor the beginning of one, as long as it may be that; nor are empty texts. After
        the mark nothing is held back. `up_to` of lab 24 divides a text at a mark.
        """
        self.held += piece
        deltas: list[Delta] = []
        ### BEGIN SOLUTION
        if self.is_thinking:
            text, found, self.held = up_to(self.held, self.end)
            if text:
                deltas.append({"reasoning_content": text})
            self.is_thinking = not found
        if self.held and not self.is_thinking:
            deltas.append({"content": self.held})
            self.held = ""
        return deltas
        ### END SOLUTION

    def finish(self) -> list[Delta]:
        """Return the deltas of what was held back, when no more text comes."""
        text, self.held = self.held, ""
        return [{"reasoning_content": text}] if text else []


# ------------------------------------------------------------------------------ one of many answers


def majority(
    answers: Sequence[str | None], logprobs: Sequence[float], weighted: bool = False
) -> str | None:
    """Return the answer that most samples have; among equals, the one with the larger weight.

    An answer's weight is the sum of its samples' probabilities, whose logarithms are `logprobs`;
    they may be as low as -10,000. weighted: the weight alone decides. A sample without an answer,
    None, has no vote. Returns None if no sample has an answer. Source: Wang et al., section 2.
    """
    ### BEGIN SOLUTION
    voters = [(a, logprob) for a, logprob in zip(answers, logprobs, strict=True) if a is not None]
    highest = max((logprob for _, logprob in voters), default=0.0)
    votes, weights = Counter[str](), defaultdict[str, float](float)
    for answer, logprob in voters:
        votes[answer] += 1
        weights[answer] += math.exp(logprob - highest)  # the largest is 1, so none is lost
    return max(votes, key=lambda a: (votes[a] * (not weighted), weights[a]), default=None)
    ### END SOLUTION


def best_of(texts: Sequence[str], logprobs: Sequence[Sequence[float]], by: str) -> int:
    """Return the number of the text with the highest log-probability; among equals, the first.

    logprobs: of each token of each text. by: "sum" of a text's tokens; "mean", their sum for each
    token; "bytes", their sum for each byte of the text in UTF-8. No text is empty.
    """

    ### BEGIN SOLUTION
    def score(number: int) -> float:
        sizes = {"sum": 1, "mean": len(logprobs[number]), "bytes": len(texts[number].encode())}
        return sum(logprobs[number]) / sizes[by]

    return max(range(len(texts)), key=score)
    ### END SOLUTION


def forked(engine: Any, submit: Callable[[int], int], n: int) -> list[int]:
    """Submit a request `n` times, so that its prompt is computed once; return the numbers.

    submit(seed) submits the request with a seed, and returns its number. The seeds are 0 to n - 1.
    The engine's cache finds blocks that other requests have computed (lab 8). So submit the first
    one alone; call `engine.step()` until the last list of `engine.trace` has it as caught up, in
    (request, tokens, whether it has caught up); then submit the others, without a further step. The
    trace is a deque that begins empty.
    """
    ### BEGIN SOLUTION
    first, has_caught_up = submit(0), False
    while not has_caught_up:
        engine.step()
        has_caught_up = any(number == first and up for number, _, up in engine.trace[-1])
    return [first, *(submit(seed) for seed in range(1, n))]
    ### END SOLUTION


def agreed(votes: Mapping[str, int], left: int) -> bool:
    """Return whether the answer in front wins the vote, whatever the `left` samples will say.

    votes: how many samples have each answer so far. A tie isn't a win: the weights would decide.
    """
    ### BEGIN SOLUTION
    second, first = sorted([0, 0, *votes.values()])[-2:]
    return first - second > left
    ### END SOLUTION


# ---------------------------------------------------------------------------------- the next turn


def without_thoughts(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the thoughts of earlier turns, in new dictionaries.

    Thoughts are a message's "reasoning_content". A turn begins with a message of the role "user".
    After the last of these, thoughts stay: a model that calls tools goes on thinking in its turn.
    Without a message of that role, all stay. `messages` stays unchanged.
    """
    ### BEGIN SOLUTION
    turns = [place for place, message in enumerate(messages) if message["role"] == "user"]
    old = turns[-1] if turns else 0
    kept = [dict(message) for message in messages]
    for message in kept[:old]:
        message.pop("reasoning_content", None)
    return kept
    ### END SOLUTION
