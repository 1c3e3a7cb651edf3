"""Pictures for lab 8: what chats find in the cache, the pool, the radix tree, hit rates.

Each function draws its arguments, and returns a figure or HTML.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle, pairwise
from typing import Protocol

import ipywidgets as widgets
from IPython.display import HTML

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    CURVES,
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
    Picture,
    draw_bars,
    draw_legend,
    fill,
    legend_above,
    new_figure,
    on_paper,
    shared_look,
    visible,
)

# ------------------------------------------------------------------------------ chats by turns

Turn = tuple[int, int, int]  # tokens of the prompt, how many of them were found, of the answer

# Face, edge and hatching: readable without color.
STRETCHES = {
    "found in the cache": (PALE_GREEN, GREEN, "..."),
    "prompt, computed": (PALE_ORANGE, ORANGE, "/////"),
    "answer": (PALE_BLUE, BLUE, ""),
}


@shared_look
def chat_turns(chats: Sequence[Sequence[Turn]]) -> Picture:
    """Draw what each turn of each chat found in the cache, and what it had to compute.

    chats: the turns of each chat; for a turn, the tokens of its prompt, how many of them were
        found, and the tokens of its answer. A turn is a row; the first turn of a chat is on top.
    """
    rows = [turn for chat in chats for turn in chat]
    gaps = 0.6 * len(chats)  # empty rows between the chats
    figure, (axes,) = new_figure(height=1.4 + 0.12 * (len(rows) + gaps))
    top, middles = 0.0, []
    for chat in chats:
        middles.append(top + (len(chat) - 1) / 2)
        for row, (prompt, found, answer) in enumerate(chat):
            start = 0
            sizes = found, prompt - found, answer
            for size, look in zip(sizes, STRETCHES.values(), strict=True):
                if size:  # an empty one would still have an edge
                    axes.barh(top + row, size, left=start, height=0.86, lw=0.6, **fill(look))
                start += size
        top += len(chat) + 0.6
    prompts, found = sum(turn[0] for turn in rows), sum(turn[1] for turn in rows)
    share = f", {found / prompts:.0%}" if prompts else ""
    axes.set_title(f"found: {found:,} of {prompts:,} prompt tokens{share}")
    axes.set_yticks(middles, [f"chat {number}" for number in range(len(chats))])
    axes.set(xlabel="tokens; a row is a turn", ylim=(max(top - 1, 0) + 0.1, -0.6), xlim=(0, None))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    draw_legend(figure, STRETCHES)
    return figure


# ------------------------------------------------------------------------- the pool, block by block


class Manager(Protocol):
    """A block manager that knows the contents of its blocks."""

    tables: Mapping[int, Sequence[int]]
    free_blocks: Iterable[int]
    block_hash: Mapping[int, bytes]


@dataclass(frozen=True)
class Block:
    """A block at one moment. holders: its requests, in the order in which they came. place: its
    place in the queue of free blocks, counted from 1; None while it is held."""

    holders: tuple[int, ...]
    is_known: bool
    place: int | None


def keep_pool(manager: Manager) -> list[Block]:
    """Keep all blocks as they are now, to show them after they have changed."""
    places = {block: place for place, block in enumerate(manager.free_blocks, start=1)}
    held = {block for table in manager.tables.values() for block in table}
    return [
        Block(
            tuple(request for request, table in manager.tables.items() if block in table),
            block in manager.block_hash,
            places.get(block),
        )
        for block in sorted(held | places.keys())
    ]


def show_pool(moments: Mapping[str, Sequence[Block]]) -> HTML:
    """Show a table: moments from top to bottom, blocks from left to right.

    moments: the results of `keep_pool`, each under the name of its moment.
    """
    count = max((len(blocks) for blocks in moments.values()), default=0)
    head = "".join(f"<th>{number}</th>" for number in range(count))
    rows = "".join(
        f'<tr><td style="text-align:left">{escape(title)}</td>{"".join(map(cell, blocks))}</tr>'
        for title, blocks in moments.items()
    )
    table = (
        f'<table style="border-collapse:separate; border-spacing:3px; color:{INK}"><tr>'
        f'<th style="text-align:left">block</th>{head}</tr>{rows}</table>'
    )
    return HTML(on_paper(table, "overflow-x:auto"))


def cell(block: Block) -> str:
    known = "known" if block.is_known else "&nbsp;"
    if block.holders:
        name, first = "held", f"held by {', '.join(map(str, block.holders))}"
    else:
        name = "free, but known" if block.is_known else "free and empty"
        first = f"free, no. {block.place}"
    face, edge, _ = STATES[name]
    return (
        f'<td style="background:{face}; border:2px solid {edge}; border-radius:3px; '
        f'text-align:center; padding:2px 6px">{first}<br><small>{known}</small></td>'
    )


# --------------------------------------------------------------------------- the pool over time

Moment = tuple[int, int, int]  # blocks held, free but known, evicted since the moment before

STATES = {
    "held": (PALE_BLUE, BLUE, ""),
    "free, but known": (PALE_GREEN, GREEN, "..."),
    "free and empty": ("white", GRAY, ""),
}


@shared_look
def pool_strip(moments: Sequence[Moment], num_blocks: int) -> Picture:
    """Draw the pool after each step: held blocks, free blocks that are known, and empty ones.

    moments: for each step, the number of blocks held, the number free but known, and how many known
        ones were evicted in it; such a step has a tick above. num_blocks: in the whole pool.
    """
    if not moments:
        raise ValueError("There are no steps to show: give one moment for each.")
    figure, (axes,) = new_figure(height=2.9)
    borders = [0.5 + step for step in range(len(moments) + 1)]
    below = [0] * len(moments)
    held, known = ([moment[kind] for moment in moments] for kind in (0, 1))
    empty = [num_blocks - one - other for one, other in zip(held, known, strict=True)]
    for heights, look in zip((held, known, empty), STATES.values(), strict=True):
        tops = [start + height for start, height in zip(below, heights, strict=True)]
        axes.stairs(tops, borders, baseline=below, fill=True, lw=0.3, **fill(look))
        below = tops
    axes.axhline(num_blocks, color=INK, lw=1)
    steps = [step for step, moment in enumerate(moments, start=1) if moment[2]]
    axes.plot(steps, [1.06 * num_blocks] * len(steps), "|", color=RED, ms=9, mew=1.3)
    total = sum(moment[2] for moment in moments)
    ticks = f"; ticks above: {total:,} evicted" if total else ""
    axes.set_title(f"blocks, of {num_blocks:,}{ticks}")
    axes.locator_params(axis="x", integer=True)
    axes.set_yticks([0, num_blocks // 2, num_blocks])
    axes.set(xlim=(0.5, borders[-1]), ylim=(0, 1.12 * num_blocks), xlabel="step")
    draw_legend(figure, STATES)
    return figure


def explore_pools(pools: Mapping[int, Sequence[Moment]], words: Mapping[int, str]) -> widgets.VBox:
    """Show `pool_strip` with a slider over pools of several sizes, and a sentence for each."""
    return explore(
        lambda size: pool_strip(pools[size], size),
        choice("blocks", pools),
        words=lambda size: words[size],
    )


# ------------------------------------------------------------------------------- the radix tree


class Node(Protocol):
    """A node of a radix tree: the tokens on its edge, its children, the last walk through it."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def children(self) -> Mapping[int, "Node"]: ...
    @property
    def stamp(self) -> int: ...


@dataclass(frozen=True)
class Kept:
    """A node as it was at one moment, with everything below it."""

    ids: tuple[int, ...]
    children: Mapping[int, "Kept"]
    stamp: int


def keep(node: Node) -> Kept:
    """Keep the tree as it is now, to show it after it has changed."""
    children = {token: keep(child) for token, child in node.children.items()}
    return Kept(tuple(node.ids), children, node.stamp)


Words = Callable[[list[int]], str]


def show_trees(trees: Mapping[str, Kept], words: Words) -> HTML:
    """Show moments of a radix tree next to each other; new edges of each moment are marked.

    An edge has a line with its text, its number of tokens and its stamp. trees: the results of
    `keep`, each under its title. words: returns the text of some ids.
    """
    known = [edges(tree) for tree in trees.values()]
    before = [*known[:1], *known]  # the first has no moment before it
    shown = "".join(
        f'<div style="flex:1 1 18em; min-width:0"><b>{escape(title)}</b>'
        f"{node_html(tree, words, old, ())}</div>"
        for (title, tree), old in zip(trees.items(), before, strict=False)
    )
    return HTML(on_paper(shown, "display:flex; flex-wrap:wrap; gap:1em 2em"))


Edge = tuple[tuple[int, ...], tuple[int, ...]]  # the tokens before it, its own


def edges(node: Kept, path: tuple[int, ...] = ()) -> set[Edge]:
    """Collect all edges of a tree. Two with equal tokens differ by the tokens before them."""
    below = (edges(child, path + node.ids) for child in node.children.values())
    return {(path, node.ids)}.union(*below)


LONGEST = 60  # letters of an edge
EDGE = "padding:0 4px; border-radius:3px; overflow-wrap:anywhere; font-family:monospace"
OLD_EDGE = f"{EDGE}; background:{PALE_BLUE}"
NEW_EDGE = f"{EDGE}; background:{PALE_ORANGE}; border:2px solid {ORANGE}; font-weight:bold"


def node_html(node: Kept, words: Words, known: set[Edge], path: tuple[int, ...]) -> str:
    """Write a node and, further in, everything below it."""
    new = (path, node.ids) not in known
    text = escape(shortened(visible(words(list(node.ids)))))
    look = NEW_EDGE if new else OLD_EDGE
    edge = f'<span style="{look}">{text}</span>' if node.ids else "root"
    facts = ["<b>new</b>"] if new else []
    facts += [f"{len(node.ids)} token{'s' * (len(node.ids) > 1)}"] if node.ids else []
    facts.append(f"stamp {node.stamp}")
    whole = (f'<span style="white-space:nowrap">{fact}</span>' for fact in facts)
    below = "".join(
        node_html(child, words, known, path + node.ids) for child in node.children.values()
    )
    return (
        f'<div style="margin-top:0.35em; line-height:1.4">'
        f'{edge} <small style="color:{MUTED}">{", ".join(whole)}</small>'
        f'<div style="margin-left:0.5em; padding-left:0.9em; border-left:2px solid {GRAY}">{below}'
        "</div></div>"
    )


def shortened(text: str) -> str:
    """Keep both ends of a long text, because the end of an edge matters in a tree."""
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}"


# ------------------------------------------------------------------- hit rate against pool size


@shared_look
def hit_rate_curves(
    rates: Mapping[str, Mapping[int, float]], working_set: int | None = None
) -> Picture:
    """Draw the hit rate against the size of the pool, a line for each order of eviction.

    rates: by the name of the order and the number of blocks; the first is LRU (the least recently
        used block goes first), whose cliff is marked if it has one. working_set: the number of
        blocks that all texts together fill.
    """
    figure, (axes,) = new_figure(height=3.4)
    for (name, curve), (color, dashes, marker) in zip(rates.items(), cycle(CURVES), strict=False):
        sizes = sorted(curve)
        found = [curve[size] for size in sizes]
        axes.plot(sizes, found, dashes, color=color, lw=2, marker=marker, label=name)
    first = next(iter(rates.values()), {})
    fallen = cliff(first)
    if fallen:
        label = f"cliff of LRU: {first[fallen[1]]:.2f} to {first[fallen[0]]:.2f}"
        axes.axvspan(*fallen, label=label, lw=0, zorder=0, **fill((PALE, GRAY, "//")))
    if working_set is not None:
        label = f"working set: {working_set:,} blocks"
        axes.axvline(working_set, color=INK, ls=(0, (1, 2)), lw=1.5, label=label)
    axes.set(xlabel="blocks in the pool", ylim=(-0.02, 1.02), title="hit rate")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.grid(axis="y")
    legend_above(figure, *axes.get_legend_handles_labels(), handlelength=3)
    return figure


def cliff(curve: Mapping[int, float]) -> tuple[int, int] | None:
    """Find two neighboring pool sizes between which more than half of the best rate is lost."""
    steps = list(pairwise(sorted(curve)))
    steepest = max(steps, key=lambda step: curve[step[1]] - curve[step[0]], default=None)
    if steepest is None:
        return None
    small, large = steepest
    return steepest if curve[large] - curve[small] > max(curve.values()) / 2 else None


# ------------------------------------------------------------------------------- how fine a grain


@shared_look
def grain(computed: Mapping[int, int], tree: int) -> Picture:
    """Draw the prompt tokens computed against block size: only full blocks are found.

    computed: by block size. tree: the tokens computed with a radix tree, which finds every token;
        drawn as a line.
    """
    figure, (axes,) = new_figure(height=3.0)
    draw_bars(axes, dict(sorted(computed.items())), "{:,}".format, (PALE_BLUE, BLUE, ""))
    line = axes.axhline(tree, color=ORANGE, ls="--", lw=2, label=f"radix tree: {tree:,}")
    axes.set(xlabel="block size", ylim=(0, 1.12 * max([*computed.values(), tree, 1])))
    axes.set_title("prompt tokens computed")
    legend_above(figure, handles=[line])
    return figure
