"""Pictures for lab 25: tokens against right answers, texts with their thoughts, a vote.

Each function draws its arguments, and returns a figure.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator

from visuals.style import (
    BLUE,
    CURVES,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    Look,
    Picture,
    bare,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    write,
)


class Point(NamedTuple):
    """What questions cost and how many were right. tokens: the mean of a question."""

    tokens: float
    right: int
    asked: int

    @property
    def share(self) -> float:
        return self.right / self.asked

    @property
    def error(self) -> float:
        """The standard error of the share."""
        return math.sqrt(self.share * (1 - self.share) / self.asked)


@shared_look
def show_spending(curves: Mapping[str, Sequence[Point]]) -> Picture:
    """Draw the share of right answers by the tokens spent, a curve for each way to spend them.

    curves: by name, the points in the order of their tokens. Bars are standard errors.
    """
    figure, (axes,) = new_figure(height=3.4)
    for (name, points), (color, dashes, marker) in zip(curves.items(), CURVES, strict=False):
        across, up = [point.tokens for point in points], [point.share for point in points]
        axes.plot(across, up, dashes, color=color, marker=marker, lw=1.8, ms=5, label=name)
        for point in points:  # a bar each, or the picture's words would have its caps as lines
            bar = point.tokens, point.share, point.error
            axes.errorbar(*bar, fmt="none", ecolor=color, elinewidth=1.8, capsize=3)
    axes.set(xlabel="new tokens for a question, on average", ylim=(-0.04, 1.06))
    axes.set_title("right answers, with standard errors")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, subs=(1, 1.5)))  # 4, 6, 8, 12, 16
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.grid(axis="y")
    legend_above(figure, handlelength=3)
    return figure


THOUGHT: Look = PALE_BLUE, BLUE, ""
RIGHT: Look = PALE_GREEN, GREEN, "...."
WRONG: Look = PALE_ORANGE, ORANGE, "////"


@shared_look
def show_thoughts(texts: Mapping[str, tuple[str, str]], right: str) -> Picture:
    """Draw texts letter by letter: the thoughts, then the answer, right or wrong.

    texts: for the name of each row, its thoughts and its answer. right: the right answer.
    """
    figure, (axes,) = new_figure(height=0.9 + 0.34 * len(texts))
    for row, (thoughts, answer) in enumerate(texts.values()):
        cells = [(letter, THOUGHT) for letter in thoughts]
        cells += [(letter, RIGHT if answer == right else WRONG) for letter in answer]
        for place, (letter, look) in enumerate(cells):
            place += place >= len(thoughts)  # where the mark is
            axes.add_patch(Rectangle((place - 0.45, row - 0.4), 0.9, 0.8, lw=1, **fill(look)))
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            write(axes, place, row, letter, fontsize=9, bbox=paper)
    longest = max(len(thoughts) + len(answer) for thoughts, answer in texts.values())
    bare(axes)
    name_rows(axes, texts)
    axes.set(xlim=(-0.6, longest + 0.6), xticks=[])
    axes.set_title(f"the right answer is {right}; the gap is the mark")
    draw_legend(figure, {"thoughts": THOUGHT, "a right answer": RIGHT, "a wrong one": WRONG})
    return figure


@shared_look
def show_votes(votes: Sequence[Mapping[str, int]], n: int) -> Picture:
    """Draw a vote: the lead of the answer in front, and how many samples are left.

    votes: after each sample, how many samples have each answer. n: how many samples there may be.
    """
    figure, (axes,) = new_figure(height=2.8)
    counts = range(1, len(votes) + 1)
    ranks = [sorted([0, 0, *those.values()])[-2:] for those in votes]
    lead, left = [first - second for second, first in ranks], [n - count for count in counts]
    both = {"lead of the answer in front": lead, "samples left": left}
    for (name, curve), (color, dashes, marker) in zip(both.items(), CURVES, strict=False):
        axes.plot(counts, curve, dashes, color=color, lw=2, marker=marker, label=name)
    over = [count for count, ahead, rest in zip(counts, lead, left, strict=True) if ahead > rest]
    if over:
        axes.axvline(over[0], color=GRAY, ls=":")
        axes.annotate(f"decided after {over[0]}", (over[0], n), (4, -4),
                      textcoords="offset points", color=INK, fontsize=9)  # fmt: skip
    axes.set(xlabel="samples", title="votes", ylim=(-0.5, n + 0.5))
    axes.locator_params(axis="x", integer=True)
    legend_above(figure, *axes.get_legend_handles_labels(), handlelength=3)
    return figure
