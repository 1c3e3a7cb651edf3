"""Lab 23, given: text to train adapters on, which is the shipped passages in another style.

A style is a rule, so anybody can see whether an adapter has learned it.
"""

import re
from collections.abc import Callable

from solutions.quality.bits_per_byte import HELD_OUT, texts_in

TRAINED_ON = 16  # of the 20 held-out passages; a style is measured on the others


def capitals(text: str) -> str:
    """Return the text in capital letters."""
    return text.upper()


def verse(text: str) -> str:
    """Return the text with each clause on a line of its own, as a ballad is printed."""
    clauses = re.split(r"(?<=[,;:.!?])['\")]*\s+", " ".join(text.split()))
    return "\n".join(clause[:1].upper() + clause[1:] for clause in clauses)


STYLES: dict[str, Callable[[str], str]] = {"capitals": capitals, "verse": verse}


def passages_in(style: str) -> tuple[list[str], list[str]]:
    """Return the passages to train on, and those to measure with, in a style."""
    styled = [STYLES[style](text) for text in texts_in(HELD_OUT)]
    return styled[:TRAINED_ON], styled[TRAINED_ON:]
