"""Text that strangers chose (file names, student ids, what an error said), made fit to be shown."""

import re
import unicodedata
from collections.abc import Sequence

# Control characters, invisible ones and marks of direction, halves of pairs, unassigned ones, and
# line separators: they can hide what a name says, or turn round the text behind it.
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# What makes a spreadsheet calculate a cell instead of showing it, wherever a cell may begin: some
# split at semicolons, some take no notice of quotes, and some take a backslash for one.
FORMULA = re.compile(r"""((?:^|[,;])[\s"\\]*)(?=[-=+@＝＋－＠])""")


def shown(text: str, most: int = 120) -> str:
    """Text in which every character can be seen, cut in its middle to at most so many."""
    seen = "".join(escaped(c) if unicodedata.category(c) in HIDDEN else c for c in text)
    if len(seen) <= most:
        return seen
    return f"{seen[: most * 2 // 3]}…{seen[-(most // 3) + 1 :]}"


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*(shown(name) for name in names[:most]), *more])


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def cell(text: str, most: int = 1000) -> str:
    """Text for a cell of a CSV file, which no spreadsheet takes for a formula.

    Nor any part of it, at whichever of `,` `;` and tab the spreadsheet splits: an apostrophe stands
    before what would begin a formula there. (A tab is shown as such, and splits nothing.)
    """
    return FORMULA.sub(r"\1'", shown(text, most))
