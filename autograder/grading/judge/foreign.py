"""Untrusted text (file names, student ids, error messages), made safe to show."""

import re
import unicodedata
from collections.abc import Sequence

# Control characters, invisible ones, direction marks, halves of surrogate pairs, unassigned ones,
# and line separators: they can hide what a name says, or reverse the text after it.
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# What makes a spreadsheet calculate a cell instead of showing it, wherever a cell may begin: some
# spreadsheets split at semicolons, some ignore quotes, and some treat a backslash as a quote.
FORMULA = re.compile(r"""((?:^|[,;])[\s"\\]*)(?=[-=+@＝＋－＠])""")


def shown(text: str, most: int = 120) -> str:
    """Make every character visible, and cut the middle out of a text longer than `most`."""
    seen = "".join(escaped(c) if unicodedata.category(c) in HIDDEN else c for c in text)
    if len(seen) <= most:
        return seen
    return f"{seen[: most * 2 // 3]}…{seen[-(most // 3) + 1 :]}"


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def listed(names: Sequence[str], most: int = 5) -> str:
    """List the first names, and say how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*(shown(name) for name in names[:most]), *more])


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def cell(text: str, most: int = 1000) -> str:
    """Make text safe for a cell of a CSV file, so that no spreadsheet reads it as a formula.

    The same holds for every part of it, whether the spreadsheet splits at `,` `;` or tab: an
    apostrophe is put before anything that would begin a formula. (A tab is shown escaped, so it
    splits nothing.)
    """
    return FORMULA.sub(r"\1'", shown(text, most))
