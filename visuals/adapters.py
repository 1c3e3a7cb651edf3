"""Pictures for lab 23: losses, the rows of a step, slots over time.

Each function draws its arguments, and returns a figure.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from visuals.style import (
    BLUE,
    CURVES,
    GRAY,
    GREEN,
    ORANGE,
    PALE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PALE_PINK,
    PINK,
    Look,
    Picture,
    bare,
    draw_legend,
    fill,
    legend_above,
    new_figure,
    shared_look,
    write,
)

BASE: Look = "white", GRAY, ""
LOOKS: list[Look] = [
    (PALE_GREEN, GREEN, "...."),
    (PALE_ORANGE, ORANGE, "////"),
    (PALE_BLUE, BLUE, ""),
    (PALE_PINK, PINK, "xxxx"),
]


def look_of(number: int) -> Look:
    """Return the look of an adapter by its number; four take turns, and 0 is the base."""
    return LOOKS[(number - 1) % len(LOOKS)] if number else BASE


# ----------------------------------------------------------------------------------- two losses


@shared_look
def show_losses(measured: Mapping[int, Sequence[float]]) -> Picture:
    """Draw the bits per byte by training step, on the adapter's own kind of text and on others.

    measured: by step, the two losses. Dotted lines are the losses before the first step.
    """
    figure, (axes,) = new_figure(height=2.8)
    for (name, place), (color, dashes, marker) in zip(
        (("its own kind of text, unseen", 0), ("everybody's text", 1)), CURVES, strict=False
    ):
        curve = [both[place] for both in measured.values()]
        axes.plot(list(measured), curve, dashes, color=color, lw=2, marker=marker, label=name)
        axes.axhline(curve[0], color=color, ls=":", lw=1)
    axes.set(xlabel="training step", title="bits per byte")
    axes.locator_params(axis="x", integer=True)
    legend_above(figure, *axes.get_legend_handles_labels(), handlelength=3)
    return figure


# --------------------------------------------------------------------------------- rows of a step


@shared_look
def show_step(numbers: Sequence[int], names: Sequence[str]) -> Picture:
    """Draw the rows of a step by adapter, then each with its own copy, then as segments.

    numbers: the adapter of each row, 0 for the base. names: of the base and the adapters.
    """
    figure, (axes,) = new_figure(height=2.5)
    rows = list(enumerate(numbers))
    draw_cells(axes, 2, rows)
    for place, number in rows:
        if number:
            draw_cell(axes, 1, place, number, f"{place}", width=0.7)
    segments = sorted((number, place) for place, number in rows if number)
    draw_cells(axes, 0, [(place, number) for number, place in segments], 0.95)
    bare(axes)
    axes.set_xticks([])
    axes.set_yticks([2, 1, 0], ["the step", "gathered", "in segments"])
    axes.set(xlim=(-0.6, len(numbers) - 0.4), ylim=(-0.5, 2.5))
    copies, present = len(segments), len({number for number, _ in segments})
    axes.set_title(f"A and B: {copies} copies if gathered, {present} read as segments")
    draw_legend(figure, {name: look_of(number) for number, name in enumerate(names)})
    return figure


def draw_cells(axes: Axes, y: float, cells: Sequence[tuple[int, int]], width: float = 0.95) -> None:
    """Draw cells next to each other, each with the place of its row in the step."""
    for x, (place, number) in enumerate(cells):
        draw_cell(axes, y, x, number, f"{place}", width)


def draw_cell(axes: Axes, y: float, x: float, number: int, text: str, width: float) -> None:
    box = Rectangle((x - width / 2, y - 0.32), width, 0.64, lw=1, **fill(look_of(number)))
    axes.add_patch(box)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    write(axes, x, y, text, fontsize=9, bbox=paper)


# ------------------------------------------------------------------------------ slots over time

Moment = tuple[Mapping[int, tuple[str, int]], Sequence[str]]


@shared_look
def show_slots(moments: Sequence[Moment]) -> Picture:
    """Draw which adapter each slot holds after each step, its users, and the waiting requests.

    moments: for each step, by slot the adapter and its number of users, and the adapters of the
        waiting requests, the first one first. A pale cell has no users, so its adapter may go.
    """
    if not moments:
        raise ValueError("There are no steps to show: give one moment for each.")
    figure, (axes,) = new_figure(height=3.2)
    names = sorted(
        {name for slots, waiting in moments for name in [*waiting, *(n for n, _ in slots.values())]}
    )
    slots = sorted({slot for held, _ in moments for slot in held})
    for step, (held, waiting) in enumerate(moments):
        for slot, (name, users) in held.items():
            look = look_of(1 + names.index(name)) if users else (PALE, GRAY, "")
            box = Rectangle((step - 0.47, -slots.index(slot) - 0.4), 0.94, 0.8, lw=1, **fill(look))
            axes.add_patch(box)
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            write(axes, step, -slots.index(slot), f"{users}", fontsize=8, bbox=paper)
        for place, name in enumerate(waiting):
            look = look_of(1 + names.index(name))
            height = 0.34
            corner = step - 0.3, -len(slots) - height * place - 0.2
            axes.add_patch(Rectangle(corner, 0.6, 0.28, lw=1, **fill(look)))
    longest = max(len(waiting) for _, waiting in moments)
    bare(axes)
    places = [-slots.index(slot) for slot in slots]
    axes.set_yticks([*places, -len(slots)], [*(f"slot {slot}" for slot in slots), "waiting"])
    axes.set(xlim=(-0.6, len(moments) - 0.4), ylim=(-len(slots) - 0.34 * longest, 0.5))
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="step", title="number in a cell: requests that use the adapter")
    looks = {f"adapter {name}": look_of(1 + number) for number, name in enumerate(names)}
    draw_legend(figure, {**looks, "no users": (PALE, GRAY, "")})
    return figure
