"""What a check shows: a small card, HTML in a notebook and plain text in a terminal."""

import html
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from autograder.exercise import NOT_ATTEMPTED, PASSED, WRONG

# Middle tones that stand out on white and on black; everything else keeps the theme's own colours.
COLOURS = {PASSED: "#2e9e5b", NOT_ATTEMPTED: "#c98a1b", WRONG: "#d2504b"}
CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0"
TABLE = "margin:4px 0;color:inherit;font:inherit"
MOST_NUMBERS = 24  # of a tensor, before the rest is left out
MOST_ITEMS = 8  # of a list or a dict


@dataclass(frozen=True, repr=False)
class Card:
    """A headline with its status, paragraphs (`code` between backticks), and labelled values."""

    name: str
    status: str
    paragraphs: Sequence[str]
    rows: Sequence[tuple[str, str]] = ()

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        rows = [f"  {label + ':':{width + 1}} {value}" for label, value in self.rows]
        paragraphs = [f"  {paragraph}" for paragraph in self.paragraphs]
        return "\n".join([f"{self.name}: {self.status}", *paragraphs, *rows])

    def _repr_html_(self) -> str:
        colour = COLOURS[self.status]
        paragraphs = "".join(f"<div>{code_marked(p)}</div>" for p in self.paragraphs)
        rows = "".join(
            f'<tr style="background:none"><td style="{CELL};opacity:.7">{html.escape(label)}</td>'
            f'<td style="{CELL}"><code>{html.escape(value)}</code></td></tr>'
            for label, value in self.rows
        )
        return (
            f'<div style="border-left:4px solid {colour};padding:2px 12px;margin:4px 0">'
            f"<div><b>{html.escape(self.name)}</b>: "
            f'<b style="color:{colour}">{self.status}</b></div>{paragraphs}'
            + (f'<table style="{TABLE}">{rows}</table>' if rows else "")
            + "</div>"
        )


def code_marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def in_ipython() -> bool:
    """Whether IPython is running; without importing it where it isn't."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


def show(thing: Any) -> None:
    """Display in a notebook, print in a terminal."""
    if in_ipython():
        from IPython.display import display

        display(thing)
    else:
        print(thing)


# ------------------------------------------------------------------------ values, in one line


def brief(value: Any, most_numbers: int = MOST_NUMBERS, most_items: int = MOST_ITEMS) -> str:
    """A value in one line: a tensor with its shape, a list or dict by its first items."""

    def inner(item: Any) -> str:
        return brief(item, most_numbers, most_items)

    if isinstance(value, Tensor):
        return f"{list(value.shape)} {numbers(value, most_numbers)}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        items = [f"{key} = {inner(item)}" for key, item in value.items()]
        return ", ".join(shortened(items, most_items))
    if isinstance(value, (list, tuple)) and len(value) == 1 and isinstance(value[0], dict):
        return inner(value[0])
    if isinstance(value, (list, tuple)):
        return "[" + "; ".join(shortened([inner(item) for item in value], most_items)) + "]"
    return str(value)


def numbers(tensor: Tensor, most: int) -> str:
    if tensor.numel() <= most:
        return nested(tensor.tolist())
    flat = ", ".join(nested(x) for x in tensor.flatten()[: most // 2].tolist())
    return f"[{flat}, … {tensor.numel()} numbers]"


def nested(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(nested(item) for item in value) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def shortened(items: list[str], most: int) -> list[str]:
    left_out = len(items) - most
    return items if left_out <= 0 else [*items[:most], f"… {left_out} more"]


def whole(value: Any) -> str:
    return brief(value, sys.maxsize, sys.maxsize)


def narrowed(got: Any, expected: Any) -> tuple[Any, Any]:
    """The innermost two parts that look different, so that a card shows no more than it must."""
    if isinstance(got, dict) and isinstance(expected, dict) and got.keys() == expected.keys():
        pairs = [(got[key], expected[key]) for key in expected]
    elif isinstance(got, list) and isinstance(expected, list) and len(got) == len(expected):
        pairs = list(zip(got, expected, strict=True))
    else:
        return got, expected
    for mine, theirs in pairs:
        if whole(mine) != whole(theirs):
            return narrowed(mine, theirs)
    return got, expected
