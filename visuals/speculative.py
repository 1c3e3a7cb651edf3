"""Pictures for lab 6: accepted and rejected drafts, the residual, the cost of verifying.

Each function draws only its arguments, and returns HTML, a figure or a widget.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import cycle
from typing import Any, Protocol

import ipywidgets as widgets
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from visuals.explorer import explore, fine_slider, slider
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
    RING,
    Picture,
    fill,
    legend_above,
    new_figure,
    on_paper,
    shared_look,
    visible,
)

Words = Callable[[int], str]

# -------------------------------------------------------------------------------- the rounds

ACCEPTED, CORRECTED, BONUS, UNDRAFTED = "accepted", "correction", "bonus", "no draft"
REJECTED, UNJUDGED, BEYOND = "rejected", "not judged", "after the end"

# How a token of each kind looks; the kinds differ in more than color.
LOOKS = {
    ACCEPTED: f"background:{PALE_BLUE}; border-bottom:2px solid {BLUE}",
    REJECTED: f"color:{RED}; font-size:85%; text-decoration:line-through",
    UNJUDGED: f"color:{MUTED}; font-size:85%; font-style:italic; text-decoration:line-through",
    CORRECTED: f"background:{PALE_ORANGE}; border:2px solid {ORANGE}; font-weight:bold",
    BONUS: f"background:{PALE_GREEN}; border-bottom:5px double {GREEN}; font-weight:bold",
    UNDRAFTED: f"border-bottom:2px dotted {GRAY}",
    BEYOND: f"color:{MUTED}; font-size:85%; text-decoration:line-through dotted",
}
EXPLAINED = {
    ACCEPTED: "a draft that the target accepted",
    REJECTED: "a draft that the target rejected",
    UNJUDGED: "a draft after the rejected one",
    CORRECTED: "the target's own token, instead of the rejected draft",
    BONUS: "the target's own token, after the last draft",
    UNDRAFTED: "the target's own token, in a round without drafts",
    BEYOND: "accepted, but cut off because the text has ended",
}
TOKEN = "border-radius:3px; padding:0 2px; margin-right:1px"
MOST_ROWS = 20  # further passes are only counted


class Round(Protocol):
    """One pass of the target: its drafts, how many were accepted, and the text's new tokens."""

    @property
    def drafts(self) -> Sequence[int]: ...
    @property
    def accepted(self) -> int: ...
    @property
    def new(self) -> Sequence[int]: ...


def kinds(one: Round) -> Iterator[tuple[int, str]]:
    """Yield the tokens of a round in reading order, each with its kind.

    If the text ended at an accepted EOS, the round has no token of the target's own.
    """
    kept = min(one.accepted, len(one.new))
    for token in one.new[:kept]:
        yield token, ACCEPTED
    for token in one.drafts[kept : one.accepted]:
        yield token, BEYOND
    for place, token in enumerate(one.drafts[one.accepted :]):
        yield token, UNJUDGED if place else REJECTED
    for token in one.new[kept:]:
        yield token, own_kind(one)


def own_kind(one: Round) -> str:
    """Return the kind of the target's own token."""
    if not one.drafts:
        return UNDRAFTED
    return CORRECTED if one.accepted < len(one.drafts) else BONUS


def show_rounds(prompt: str, rounds: Sequence[Round], words: Words) -> HTML:
    """Show a text with its drafts, each token marked by its kind, and below it the target's passes.

    words: returns the text of a token id.
    """
    marked = [list(kinds(one)) for one in rounds]
    present = {kind for tokens in marked for _, kind in tokens}
    text = "".join(token_html(words(token), kind) for tokens in marked for token, kind in tokens)
    rows = [row_html(n, one, words) for n, one in enumerate(rounds[:MOST_ROWS], start=1)]
    if len(rounds) > MOST_ROWS:
        rows.append(f"<div>… and {len(rounds) - MOST_ROWS} more</div>")
    html = (
        f"{legend([kind for kind in LOOKS if kind in present])}"
        f'<div style="white-space:pre-wrap; max-width:60em">{escape(prompt)}{text}</div>'
        f'<div style="margin-top:0.8em">{summary(rounds)}</div>{"".join(rows)}'
    )
    return HTML(on_paper(html, "line-height:1.9"))


def token_html(text: str, kind: str) -> str:
    """Return a token with its mark; the space before a word stays outside the mark."""
    word = text.lstrip(" ")
    space = text[: len(text) - len(word)] if word else ""
    breaks = "\n" * text.count("\n") if kind not in (REJECTED, UNJUDGED, BEYOND) else ""
    shown = escape(word.replace("\n", "↵") or visible(text))
    return f'{space}<span style="{TOKEN}; {LOOKS[kind]}" title="{kind}">{shown}</span>{breaks}'


def legend(shown: Sequence[str]) -> str:
    items = (
        f'<span style="display:inline-block; margin-right:1.2em">{token_html(kind, kind)} '
        f"<small>{EXPLAINED[kind]}</small></span>"
        for kind in shown
    )
    return f'<div style="margin-bottom:0.5em">{"".join(items)}</div>'


def summary(rounds: Sequence[Round]) -> str:
    new, calls = sum(len(one.new) for one in rounds), len(rounds)
    drafted, accepted = sum(len(one.drafts) for one in rounds), sum(one.accepted for one in rounds)
    sentence = f"<b>{new} tokens from {calls} passes of the target</b>"
    if calls:
        sentence += f", {new / calls:.1f} per pass"
    if drafted:
        sentence += f"; {accepted} of {drafted} drafts accepted, {accepted / drafted:.0%}"
    return f"{sentence}. <small>Pass by pass, with the number of tokens gained:</small>"


def row_html(number: int, one: Round, words: Words) -> str:
    """Return one pass: its number, how many tokens the text gained, and its tokens."""
    tokens = "".join(token_html(words(token), kind) for token, kind in kinds(one))
    return (
        f'<div style="display:flex; gap:0.8em; border-top:1px solid {PALE}">'
        f'<span style="flex:none; width:1.6em; text-align:right; color:{MUTED}">{number}</span>'
        f'<span style="flex:none; width:1.8em"><b>+{len(one.new)}</b></span>'
        f'<span style="flex:1">{tokens}</span></div>'
    )


# ------------------------------------------------------------------------- accept and residual


@shared_look
def show_acceptance(
    words: Sequence[str],
    target_probs: Sequence[float] | Tensor,
    draft_probs: Sequence[float] | Tensor,
) -> Picture:
    """Draw the target's distribution p and the drafter's, q, for one place.

    Each word's probability has up to two parts: min(p, q), which is accepted, and either q − p,
    which is rejected, or p − q, the residual. Summed over all words, the last two are equal.
    """
    pairs = [(float(p), float(q)) for p, q in zip(target_probs, draft_probs, strict=True)]
    places = range(len(pairs))
    both = [min(pair) for pair in pairs]
    residual = [max(p - q, 0) for p, q in pairs]
    rejected = [max(q - p, 0) for p, q in pairs]
    figure, (axes,) = new_figure(height=3.4)
    for shares, start, name, look in (
        (both, [0.0] * len(pairs), "accepted, min(p, q)", (PALE_BLUE, BLUE, "")),
        (rejected, both, "rejected, q − p", ("white", RED, "xx")),
        (residual, both, "residual, p − q", (PALE_GREEN, GREEN, "..")),
    ):
        label = f"{name}: {sum(shares):.2f} in total"
        axes.bar(places, shares, 0.7, start, label=label, **fill(look))
    draw_levels(axes, [p for p, _ in pairs], "p, target", INK, "-")
    draw_levels(axes, [q for _, q in pairs], "q, drafter", ORANGE, ":")
    axes.set_xticks(places, [visible(word) for word in words])
    axes.set(ylabel="probability", ylim=(0, 1.1 * max(map(max, pairs))))
    axes.tick_params(axis="x", length=0)
    legend_above(figure)
    return figure


def draw_levels(axes: Axes, levels: Sequence[float], name: str, color: str, dashes: str) -> None:
    """Draw a line across each bar, a little wider than the bar."""
    lefts, rights = ([place + side for place in range(len(levels))] for side in (-0.43, 0.43))
    axes.hlines(levels, lefts, rights, color=color, linestyle=dashes, lw=2.5, label=name)


MOST_DRAFTS = 12


def explore_acceptance(expected_tokens: Callable[[float, int], float]) -> widgets.VBox:
    """Show `tokens_a_round` with sliders for the acceptance rate and k, and a sentence."""
    return explore(
        partial(tokens_a_round, expected_tokens),
        fine_slider("acceptance", 0, 1, 0.05, start=0.55),
        slider("k", MOST_DRAFTS, start=4),
        words=partial(round_in_words, expected_tokens),
    )


@shared_look
def tokens_a_round(
    expected_tokens: Callable[[float, int], float], acceptance: float, k: int
) -> Picture:
    """Draw the expected tokens of a round against k, and k + 1, which is all drafts accepted."""
    drafts = range(MOST_DRAFTS + 1)
    expected = [expected_tokens(acceptance, count) for count in drafts]
    figure, (axes,) = new_figure(height=2.8)
    axes.plot(drafts, [count + 1 for count in drafts], "--", color=GRAY, label="all accepted")
    label = f"acceptance rate {acceptance:.2f}"
    axes.plot(drafts, expected, "o-", color=BLUE, ms=4, label=label)
    axes.plot(k, expected[k], **RING)
    axes.set(xlabel="k, drafts per round", ylim=(0, MOST_DRAFTS + 1.5), title="tokens per round")
    axes.legend(loc="upper left")
    axes.grid(axis="y")
    return figure


def round_in_words(
    expected_tokens: Callable[[float, int], float], acceptance: float, k: int
) -> str:
    here = expected_tokens(acceptance, k)
    one_more = expected_tokens(acceptance, k + 1) - here
    return (
        f"With {k} drafts, each accepted with probability {acceptance:.2f}, a round gives "
        f"{here:.2f} tokens on average. One more draft would add {one_more:.2f}."
    )


# ------------------------------------------------------------------------------ does it pay?


@shared_look
def verify_costs(seconds: Mapping[int, float]) -> Picture:
    """Draw the time of one forward pass over T tokens, in decode steps, and of T decode steps.

    seconds: the time of a forward pass by T, with T = 1 among them.
    """
    tokens = sorted(seconds)
    costs = [seconds[count] / seconds[1] for count in tokens]
    figure, (axes,) = new_figure(height=3.0)
    axes.plot(tokens, tokens, "--", color=GRAY, label="T separate decode steps")
    axes.plot(tokens, costs, "o-", color=BLUE, label="one forward pass over T tokens")
    below: dict[str, Any] = {"xytext": (0, -14), "textcoords": "offset points"}
    for count, cost in zip(tokens[1:], costs[1:], strict=True):
        axes.annotate(f"{cost:.1f}", (count, cost), ha="center", fontsize=9, **below)
    axes.set_xticks(tokens)
    # the dashed line may leave the picture: only the distance below it matters
    axes.set(xlabel="T, tokens in the forward pass", ylim=(0, 1.8 * max(costs)))
    axes.set_title("time, in decode steps")
    axes.legend(loc="lower right")
    axes.grid(axis="y")
    return figure


@shared_look
def speed_up_curves(
    curves: Mapping[str, Sequence[float]],
    measured: Mapping[str, Mapping[int, float]] | None = None,
) -> Picture:
    """Draw the predicted speed-up against k, a line for each drafter, and measurements as points.

    curves: item k of each is the speed-up with k drafts. measured: speed-ups by name and k.
    """
    figure, (axes,) = new_figure(height=3.4)
    axes.axhline(1, color=INK, lw=1)
    axes.text(1.01, 1, "no gain", transform=axes.get_yaxis_transform(), va="center", fontsize=9)
    handles = []
    for (name, gains), (color, dashes, marker) in zip(curves.items(), cycle(CURVES), strict=False):
        axes.plot(range(len(gains)), gains, dashes, color=color, lw=2)
        points = (measured or {}).get(name, {})
        axes.plot(list(points), list(points.values()), marker, color=color, mec="white", ms=9)
        shown = marker if points else ""
        handles.append(Line2D([], [], color=color, ls=dashes, lw=2, marker=shown, label=name))
    axes.set_xticks(range(max(map(len, curves.values()))))
    axes.set(xlabel="k, drafts per round", ylim=(0, None))
    points_too = "; points: measured" if measured else ""
    axes.set_title(f"times as fast as plain decode, predicted{points_too}")
    axes.grid(axis="y")
    legend_above(figure, handles=handles)
    return figure
