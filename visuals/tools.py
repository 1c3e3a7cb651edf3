"""Pictures for lab 24: a mark being found, a stream of deltas, cached blocks, a conversation.

Each function draws its arguments, and returns a figure or HTML.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol

from IPython.display import HTML
from matplotlib.patches import Rectangle

from visuals.style import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PALE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    RED,
    Look,
    Picture,
    bare,
    draw_legend,
    ending,
    fill,
    new_figure,
    on_paper,
    shared_look,
    visible,
    write,
)

MONO: dict[str, Any] = {"family": "monospace", "fontsize": 8}

# ------------------------------------------------------------------------- free text, then a call


class Automaton(Protocol):
    """Its states are numbered from 0, the start. edges: by state, the byte and the state after."""

    @property
    def edges(self) -> Sequence[Mapping[int, int]]: ...


@shared_look
def show_walk(automaton: Automaton, trigger: str, text: str) -> Picture:
    """Draw how much of the trigger a text ends with after each letter, up to the door of a call.

    automaton: its states below the trigger's length are free text. The walk ends with a cross at a
    letter without an edge.
    """
    size, states = len(trigger), [0]
    for letter in text:
        if ord(letter) not in automaton.edges[states[-1]]:
            break
        states.append(automaton.edges[states[-1]][ord(letter)])
    heights = [min(state, size) for state in states]
    figure, (axes,) = new_figure(height=1.4 + 0.2 * size)
    axes.axhspan(size - 0.5, size + 0.5, lw=0, **fill((PALE_GREEN, GREEN, "")))
    axes.plot(heights, color=BLUE, lw=1.5, marker="o", ms=5)
    if len(heights) <= len(text):
        axes.plot(len(heights), heights[-1], "X", color=RED, ms=8)
    names = ["nothing", *(visible(trigger[:n]) for n in range(1, size)), "in a call"]
    axes.set_yticks(range(size + 1), names, **MONO)
    axes.set_xticks(range(1, len(text) + 1), [visible(letter) for letter in text], **MONO)
    axes.set(xlim=(-0.5, len(text) + 0.5), ylim=(-0.6, size + 0.6))
    axes.set(title="the text ends with …", xlabel="letter read")
    axes.grid(axis="y")
    bare(axes)
    return figure


# ------------------------------------------------------------------------------ a stream of deltas

Part = tuple[str, str]  # a stretch of an answer, and its kind

KINDS: dict[str, Look] = {
    "content": (PALE_BLUE, BLUE, ""),
    "name": (PALE_GREEN, GREEN, "xxxx"),
    "arguments": (PALE_ORANGE, ORANGE, "////"),
    "mark, never sent": (PALE, "#B8BDC4", "..."),
    "held back": ("white", RED, ""),
}
MARK, HELD = [*KINDS][-2:]


@shared_look
def show_stream(parts: Sequence[Part], pushed: Sequence[tuple[str, int]]) -> Picture:
    """Draw an answer letter by letter after each piece: what is sent by then and what is held back.

    parts: the answer's stretches, each "content", "name", "arguments" or "mark". pushed: each
    piece, and how many letters were held back after it. A letter is written in the row of its
    piece.
    """
    kinds = [MARK if kind == "mark" else kind for text, kind in parts for _ in text]
    figure, (axes,) = new_figure(height=0.9 + 0.24 * len(pushed))
    end = 0
    for row, (piece, held) in enumerate(pushed):
        for place, letter in enumerate(piece, end):
            write(axes, place + 0.5, row + 0.5, visible(letter), **{**MONO, "fontsize": 7})
        end += len(piece)
        shown = end - held
        for first, last, kind in [*runs(kinds[:shown]), (shown, end, HELD)]:
            if first < last:
                box = Rectangle(
                    (first, row + 0.06), last - first, 0.88, lw=0.6, **fill(KINDS[kind])
                )
                axes.add_patch(box)
    axes.set(xlim=(0, len(kinds)), ylim=(len(pushed), 0), xticks=[], xlabel="the answer's letters")
    axes.set_yticks([])
    axes.set_title("a row for each piece", fontsize=10)
    bare(axes)
    draw_legend(figure, KINDS)
    return figure


def runs(kinds: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return (first, behind the last, kind) of each stretch of equal kinds."""
    borders = [n for n in range(len(kinds) + 1) if n in (0, len(kinds)) or kinds[n] != kinds[n - 1]]
    return [(a, b, kinds[a]) for a, b in itertools.pairwise(borders)]


# ------------------------------------------------------------------------------------ cached blocks

LOOKS = {
    "found": f"background:{PALE}; border:1px solid {GRAY}; color:{MUTED}",
    "computed": f"background:{PALE_ORANGE}; border:2px solid {ORANGE}; color:{INK}",
}


def show_blocks(prompts: Mapping[str, tuple[Sequence[str], int]]) -> HTML:
    """Show the blocks of prompts, and which of them were found in the cache.

    prompts: by title, the text of each block, and how many of the first were found.
    """
    html = "".join(block_html(name, name) for name in LOOKS)
    for title, (texts, found) in prompts.items():
        kinds = ["found"] * found + ["computed"] * (len(texts) - found)
        html += (
            f'<div style="margin-top:0.5em"><b>{escape(title)}</b>: {found} of {len(texts)} blocks '
            f"found</div><div>{''.join(map(block_html, texts, kinds))}</div>"
        )
    return HTML(on_paper(html, "line-height:1.7"))


def block_html(text: str, kind: str) -> str:
    look = f"font-family:monospace; font-size:85%; padding:0 3px; margin:1px; {LOOKS[kind]}"
    shown = escape(visible(text))
    return f'<span style="display:inline-block; {look}" title="{kind}">{shown}</span>'


# --------------------------------------------------------------------------------- a conversation

LONGEST = 76  # letters over an arrow


@shared_look
def show_conversation(messages: Sequence[Mapping[str, Any]]) -> Picture:
    """Draw the messages of a conversation from top to bottom, as arrows between loop and model.

    messages: as OpenAI's API has them. An answer has an arrow for its text and one for each call.
    An error that is fed back is dashed.
    """
    arrows = [arrow for message in messages for arrow in arrows_of(message)]
    figure, (axes,) = new_figure(height=0.9 + 0.4 * len(arrows))
    for row, (start, text, color, dashes) in enumerate(arrows):
        look = {"arrowstyle": "-|>", "color": color, "lw": 2, "ls": dashes}
        axes.annotate("", (1 - start, row), (start, row), arrowprops=look)
        write(axes, 0.5, row - 0.32, ending(text, LONGEST), **MONO)
    axes.vlines([0, 1], -0.8, len(arrows) - 0.5, color=GRAY, lw=1)
    axes.set_xticks([0, 1], ["loop", "model"])
    axes.xaxis.tick_top()
    axes.set(xlim=(-0.05, 1.05), ylim=(len(arrows) - 0.5, -0.8), yticks=[])
    asked = sum(message["role"] == "assistant" for message in messages)
    axes.set_title(f"the model was asked {asked} time{'s' * (asked != 1)}")
    bare(axes)
    return figure


Arrow = tuple[int, str, str, str]  # from the loop (0) or the model (1), text, color, dashes


def arrows_of(message: Mapping[str, Any]) -> list[Arrow]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        failed = "error" in json.loads(content)
        return [(0, content, RED if failed else GREEN, "--" if failed else "-")]
    if message["role"] != "assistant":
        return [(0, f"{message['role']}: {content}", GRAY, "-")]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    said = [(1, content, BLUE, "-")] if content else []
    return said + [(1, f"{one['name']} {one['arguments']}", ORANGE, "-") for one in calls]
