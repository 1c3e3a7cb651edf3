"""Questions whose answer takes one step per digit: what the model `sums` was trained on.

A question is a row of digits. Begin with 0, and for each digit d replace the value v by 3v + d, of
which the last two digits are kept. The answer is the last value, and thoughts are all values, two
digits each. So a question of n digits needs 2n tokens of thoughts:

    2718=<think>02134028</think>28

Each step is easy, but a forward pass has few layers. An answer at once would need all of the steps
in one pass. Source: Feng et al., "Towards revealing the mystery behind chain of thought: a
theoretical perspective", NeurIPS 2023.
"""

import random
from collections.abc import Sequence

OPENED, CLOSED = "<think>", "</think>"  # the marks of thoughts
LENGTHS = range(2, 9)  # digits of a question


def values(digits: Sequence[int]) -> list[int]:
    """Return the value after each digit."""
    found = [0]
    for digit in digits:
        found.append((3 * found[-1] + digit) % 100)
    return found[1:]


def draw(rng: random.Random, lengths: Sequence[int] = LENGTHS) -> list[int]:
    """Draw the digits of a question, each length as often as the others."""
    return [rng.randrange(10) for _ in range(rng.choice(lengths))]


def prompt_of(digits: Sequence[int]) -> str:
    """Return a question as a prompt, which opens the thoughts."""
    return "".join(map(str, digits)) + "=" + OPENED


def thoughts_of(digits: Sequence[int]) -> str:
    return "".join(f"{value:02}" for value in values(digits))


def answer_of(digits: Sequence[int]) -> str:
    return f"{values(digits)[-1]:02}"
