"""Pictures for lab 17: where tokens go, what fewer experts lose, loads, capacity and hops.

Each function draws only its arguments, and returns a figure or a widget.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

import ipywidgets as widgets
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

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
    PINK,
    RANKS,
    RED,
    SKY,
    Look,
    Picture,
    bare,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    visible,
)

Choices = Int[Tensor, "tokens k"]
LONGEST = 9  # characters of a token that are shown


def short(word: str) -> str:
    """Return a token's text for a label: without the space before it, and cut."""
    return visible(word.strip(" ") or word)[:LONGEST]


def draw_lines(axes: Axes, lines: Mapping[str, Mapping[int, float]]) -> None:
    """Draw a line with markers for each name, through its points."""
    for (name, points), (color, dashes, marker) in zip(lines.items(), cycle(CURVES), strict=False):
        line = f"{marker}{dashes}"
        axes.plot(list(points), list(points.values()), line, color=color, ms=5, label=name)


# ----------------------------------------------------------------------------- where tokens go

FIRST, SECOND, LATER = "first choice", "second choice", "later choice"
CHOICES: dict[str, Look] = {
    FIRST: (BLUE, BLUE, ""),
    SECOND: (PALE_ORANGE, ORANGE, "//"),
    LATER: (PALE_GREEN, GREEN, ".."),
}
NOTHING: Look = ("white", PALE, "")


@shared_look
def show_routes(words: Sequence[str], chosen: Choices, experts: int) -> Picture:
    """Draw the choices of each token: a row for a token, a column for an expert.

    Below each expert is the number of its rows.
    """
    tokens, k = chosen.shape
    kinds = list(CHOICES)[:k]
    figure, (axes,) = new_figure(height=1.3 + 0.24 * tokens, width=5.2)
    for row, numbers in enumerate(chosen.tolist()):
        for column in range(experts):
            axes.add_patch(Rectangle((column - 0.46, row - 0.42), 0.92, 0.84, **fill(NOTHING)))
        for slot, expert in enumerate(numbers):
            look = fill(CHOICES[kinds[min(slot, len(kinds) - 1)]])
            axes.add_patch(Rectangle((expert - 0.46, row - 0.42), 0.92, 0.84, **look))
    name_rows(axes, [short(word) for word in words])
    counts = chosen.flatten().bincount(minlength=experts).tolist()
    rows = ["1 row" if count == 1 else f"{count} rows" for count in counts]
    axes.set_xticks(range(experts), [f"{i}\n{own}" for i, own in enumerate(rows)])
    axes.set(xlim=(-0.6, experts - 0.4), xlabel="expert")
    bare(axes)
    draw_legend(figure, {kind: CHOICES[kind] for kind in kinds})
    return figure


# ------------------------------------------------------------------- what fewer experts lose


@shared_look
def losses_by_experts(losses: Mapping[str, Mapping[int, float]]) -> Picture:
    """Draw the loss against the number of experts taken, with a line for each router.

    losses: in bits per byte, by the router's name and the number of experts.
    """
    figure, (axes,) = new_figure(height=3.0)
    draw_lines(axes, {name: dict(sorted(points.items())) for name, points in losses.items()})
    axes.axhline(0, color=GRAY, lw=1)
    axes.set(xlabel="experts that compute, of each layer", title="bits per byte lost")
    axes.set_xticks(sorted({k for points in losses.values() for k in points}))
    axes.grid(axis="y")
    legend_above(figure, ncols=len(losses))
    return figure


# ----------------------------------------------------------------------- what a batch touches


@shared_look
def experts_touched(
    measured: Mapping[int, float], at_random: Mapping[int, float], experts: int
) -> Picture:
    """Draw how many experts of a layer a decode step touches, against the size of the batch.

    at_random: what independent, even choices would touch.
    """
    figure, (axes,) = new_figure(height=3.0)
    draw_lines(axes, {"measured": measured, "independent, even choices": at_random})
    axes.axhline(experts, color=GRAY, lw=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(measured), [str(batch) for batch in measured])
    axes.minorticks_off()
    axes.set(xlabel="requests in the batch", ylim=(0, 1.08 * experts))
    axes.set_title(f"experts that a step reads, of the {experts} in a layer")
    axes.grid(axis="y")
    legend_above(figure)
    return figure


# ------------------------------------------------------------------------------------- loads

COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GRAY, INK)


@shared_look
def loads_in_training(history: Mapping[str, Float[Tensor, "steps experts"]]) -> Picture:
    """Draw each expert's share of the assignments over the steps, as bands, with a panel for each
    run. An even band is as high as all others."""
    figure, panels = new_figure(height=2.7, columns=len(history))
    for axes, (name, shares) in zip(panels, history.items(), strict=True):
        colors = [COLORS[i % len(COLORS)] for i in range(shares.shape[1])]
        bands = shares.T.tolist()
        axes.stackplot(range(len(shares)), bands, colors=colors, edgecolor="white", lw=0.4)
        axes.set(xlim=(0, len(shares) - 1), ylim=(0, 1), xlabel="step", title=name, yticks=[])
        axes.set_xticks([0, len(shares) // 2])
    panels[0].set_yticks([0, 0.5, 1], ["0", "50%", "100%"])
    return figure


KEPT, DROPPED, FREE = "kept", "dropped", "empty place"
PLACES: dict[str, Look] = {
    KEPT: (PALE_BLUE, BLUE, ""),
    DROPPED: ("white", RED, "xx"),
    FREE: ("white", PALE, "//"),
}
Kept = tuple[int, Bool[Tensor, "tokens k"]]  # a capacity, and which assignments it keeps


def explore_capacity(chosen: Choices, kept: Mapping[float, Kept], experts: int) -> widgets.VBox:
    """Show `capacity_at` with a slider over the capacity factors, and a sentence."""
    factors = {str(factor): factor for factor in kept}
    middle = list(factors)[len(factors) // 2]

    def picture(name: str) -> Picture:
        return capacity_at(chosen, kept, experts, factors[name])

    def sentence(name: str) -> str:
        return capacity_in_words(kept[factors[name]], experts)

    return explore(picture, choice("capacity factor", factors, start=middle), words=sentence)


@shared_look
def capacity_at(
    chosen: Choices, kept: Mapping[float, Kept], experts: int, factor: float
) -> Picture:
    """Draw the assignments that each expert keeps and drops at a capacity factor.

    kept: for each factor, the capacity and the assignments that are kept.
    """
    places, mask = kept[factor]
    figure, (axes,) = new_figure(height=3.0)
    counts = [chosen[which].bincount(minlength=experts).tolist() for which in (mask, ~mask)]
    for expert, (taken, dropped) in enumerate(zip(*counts, strict=True)):
        for kind, bottom, height in (
            (FREE, taken, max(0, places - taken)),
            (KEPT, 0, taken),
            (DROPPED, taken, dropped),
        ):
            if height:
                axes.bar(expert, height, 0.8, bottom, **fill(PLACES[kind]))
    axes.axhline(places, color=INK, lw=1.5)
    axes.set_xticks(range(experts), [str(expert) for expert in range(experts)])
    most = int(chosen.flatten().bincount().max())
    axes.set(xlabel="expert", ylim=(0, 1.08 * max([most, *(room for room, _ in kept.values())])))
    axes.set_title(f"assignments; the line is the capacity, {places:,}")
    axes.tick_params(axis="x", length=0)
    draw_legend(figure, PLACES)
    return figure


def capacity_in_words(kept: Kept, experts: int) -> str:
    places, mask = kept
    empty = 1 - int(mask.sum()) / max(1, experts * places)
    return (
        f"Each expert has {places:,} places. {1 - mask.float().mean():.0%} of the assignments are "
        f"dropped, and {empty:.0%} of the places stay empty."
    )


# -------------------------------------------------------------------------------------- hops


@shared_look
def show_hops(
    words: Sequence[str],
    routes: Int[Tensor, "tokens layers"],
    owners: Mapping[str, Int[Tensor, "layers experts"]],
) -> Picture:
    """Draw the rank of each token in each layer, with a panel for each placement.

    owners: the rank of each layer's experts, by the name of the placement.
    """
    ranks = 1 + max(int(owner.max()) for owner in owners.values())
    figure, panels = new_figure(height=1.2 + 0.24 * len(words), columns=len(owners))
    for axes, (name, owner) in zip(panels, owners.items(), strict=True):
        draw_ranks(axes, routes, owner)
        axes.set_title(name, fontsize=10)
    name_rows(panels[0], [short(word) for word in words])
    for axes in panels[1:]:
        axes.set(yticks=[], ylim=panels[0].get_ylim())
    draw_legend(figure, {f"rank {rank}": RANKS[rank] for rank in range(ranks)})
    return figure


def draw_ranks(
    axes: Axes, routes: Int[Tensor, "tokens layers"], owner: Int[Tensor, "layers experts"]
) -> None:
    """Draw a box for each token and layer, filled by rank, and a mark at each hop."""
    for row, experts in enumerate(routes.tolist()):
        ranks = [int(owner[layer, expert]) for layer, expert in enumerate(experts)]
        for layer, rank in enumerate(ranks):
            axes.add_patch(Rectangle((layer - 0.5, row - 0.4), 1, 0.8, **fill(RANKS[rank])))
        hops = [i + 0.5 for i in range(len(ranks) - 1) if ranks[i] != ranks[i + 1]]
        axes.plot(hops, [row] * len(hops), "|", color=INK, ms=11, mew=2)
    layers = routes.shape[1]
    axes.set(xlim=(-0.7, layers - 0.3), xlabel="layer")
    axes.set_xticks(range(0, layers, 1 + layers // 6))
    axes.tick_params(axis="x", labelcolor=MUTED)
    bare(axes)
