"""Text that strangers chose (file names, student ids, what an error said), made fit to be shown."""

import unicodedata

# Control characters, invisible ones and marks of direction, halves of pairs, unassigned ones, and
# line separators: they can hide what a name says, or turn round the text behind it.
HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
FORMULA = "=+-@＝＋－＠"  # what makes a spreadsheet calculate a cell instead of showing it


def shown(text: str, most: int = 120) -> str:
    """Text in which every character can be seen, cut in its middle to at most so many."""
    seen = "".join(escaped(c) if unicodedata.category(c) in HIDDEN else c for c in text)
    if len(seen) <= most:
        return seen
    return f"{seen[: most * 2 // 3]}…{seen[-(most // 3) + 1 :]}"


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def cell(text: str, most: int = 1000) -> str:
    """Text for a cell of a CSV file, which no spreadsheet takes for a formula."""
    seen = shown(text, most)
    return f"'{seen}" if seen.lstrip()[:1] in tuple(FORMULA) else seen
