"""Show what a learner changed: two versions of a function, compared statement by statement."""

import ast
import difflib
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from visuals.style import on_paper


@dataclass(frozen=True)
class Difference:
    """The statements of the new version, each with a mark: " " kept, "+" added, "~" changed.

    Statements that were removed follow, marked "-".
    """

    lines: tuple[tuple[str, str], ...]

    def summary(self) -> str:
        counts = Counter(mark for mark, _ in self.lines)
        removed = f", {counts['-']} removed" if counts["-"] else ""
        return f"{counts['+']} lines added, {counts['~']} changed{removed}"

    def __str__(self) -> str:
        return "\n".join(f"{mark} {code}".rstrip() for mark, code in self.lines)

    def _repr_html_(self) -> str:
        colors = {"+": "#CDEBD9", "~": "#FFF0CC", "-": "#FADBD8"}
        rows = "".join(
            f'<span style="background:{colors.get(mark, "none")}">{mark} {escape(code)}</span>\n'
            for mark, code in self.lines
        )
        style = (
            "font-family:monospace;line-height:1.5;white-space:pre;overflow-x:auto;color:inherit"
        )
        return on_paper(f'<pre style="{style}">{rows}</pre><p>{self.summary()} (+ and ~)</p>')


def difference(pairs: Sequence[tuple[Callable[..., object], Callable[..., object]]]) -> Difference:
    """Compare the second function of each pair with the first, statement by statement.

    Comments, docstrings, type annotations and line breaks don't count. If n statements in a row are
    replaced by m, min(n, m) count as changed and the rest as added or removed.
    """
    lines: list[tuple[str, str]] = []
    for before, after in pairs:
        old, new = statements(before), statements(after)
        if lines:
            lines.append((" ", ""))
        lines.append((" ", after.__qualname__))
        matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
        for kind, i, i_end, j, j_end in matcher.get_opcodes():
            if kind == "equal":
                lines += [(" ", line) for line in new[j:j_end]]
            else:
                lines += marked(old[i:i_end], new[j:j_end])
    return Difference(tuple(lines))


def marked(old: list[str], new: list[str]) -> list[tuple[str, str]]:
    """Mark the new lines: each old line has changed into the most similar new one, in order."""
    if len(old) > len(new):
        return [("~", line) for line in new] + [("-", line) for line in old[len(new) :]]
    marks = ["+"] * len(new)
    start = 0
    for place, line in enumerate(old):
        last = len(new) - (len(old) - place - 1)  # leave a new line for each later old one
        alike = [difflib.SequenceMatcher(None, line, other).ratio() for other in new[start:last]]
        start += alike.index(max(alike)) + 1
        marks[start - 1] = "~"
    return list(zip(marks, new, strict=True))


def statements(function: Callable[..., object]) -> list[str]:
    """Return a function's statements, one per line, without comments, docstring and annotations."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree).splitlines()
