"""Pictures for lab 9: a long prompt among decodes, the mask of its chunks, gaps, lanes, bytes sent.

A trace is an engine's record: for every step, (request, tokens computed, whether a token was
sampled) of every request that it served. The traces in a picture are of the same traffic under
several policies: they begin at the same moment, and a request has the same number in all of them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon, Rectangle

from visuals.engine import Trace
from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PALE_PINK,
    PINK,
    RED,
    Mark,
    Picture,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
)

# ------------------------------------------------------------------------------- read from a trace

DECODES, NEWCOMER, OTHERS = "decodes", "the new request's prompt", "other prompts"

# Face, edge and hatching: readable without color.
KINDS = {
    DECODES: (PALE_BLUE, BLUE, ""),
    NEWCOMER: (PALE_ORANGE, ORANGE, "/////"),
    OTHERS: (PALE_PINK, PINK, "...."),
}


def served(trace: Trace, newcomer: int) -> Iterator[tuple[int, int, int, str]]:
    """Yield (step, request, tokens, kind) for everything computed. After its first token, a request
    decodes."""
    begun: set[int] = set()
    for step, line in enumerate(trace):
        for request, tokens, sampled in line:
            prompt = NEWCOMER if request == newcomer else OTHERS
            yield step, request, tokens, DECODES if request in begun else prompt
            if sampled:
                begun.add(request)


def shares(trace: Trace, newcomer: int) -> list[Counter[str]]:
    """Count the tokens of each step by their kind."""
    steps: list[Counter[str]] = [Counter() for _ in trace]
    for step, _, tokens, kind in served(trace, newcomer):
        steps[step][kind] += tokens
    return steps


def totals(trace: Trace) -> list[int]:
    """Count the tokens of each step."""
    return [sum(tokens for _, tokens, _ in line) for line in trace]


def requests_of(trace: Trace) -> list[int]:
    return sorted({request for line in trace for request, _, _ in line})


def gains(trace: Trace, request: int) -> list[int]:
    """Find the steps in which a request gains a token, counted from 0."""
    return [n for n, line in enumerate(trace) if any(r == request and s for r, _, s in line)]


def stalls(trace: Trace) -> list[int]:
    """Find the steps in which a request gains no token, between two of its tokens."""
    spans = [span for request in requests_of(trace) for span in pairwise(gains(trace, request))]
    return sorted({step for before, after in spans for step in range(before + 1, after)})


# ------------------------------------------------------------------------ what every step computes

FIRST: Mark = {"marker": "v", "color": INK, "ms": 6, "ls": ""}
DECODED: Mark = {"marker": "o", "color": BLUE, "ms": 3, "ls": ""}
STALLED: Mark = {"marker": "x", "color": RED, "ms": 7, "mew": 2, "ls": ""}
STEP_MARKS = {
    "new request's first token": FIRST,
    "step with decodes": DECODED,
    "a request stalls": STALLED,
}


@shared_look
def steps_of(traces: Mapping[str, Trace], newcomer: int) -> Picture:
    """Draw the tokens of every step, a panel for each policy: decodes below, prompts on top.

    Next to a long prompt, decodes are hardly visible. So a dot below a step says that it has some,
    and a cross says that a request stalls: it has gained a token before, will gain another, and
    gains none in this step. A triangle is above the step of the new request's first token.
    """
    figure, panels = new_figure(height=0.8 + 1.2 * len(traces), rows=len(traces))
    for axes, (name, trace) in zip(panels, traces.items(), strict=True):
        draw_steps(axes, name, trace, newcomer, list(traces.values()))
    explain(figure, STEP_MARKS)
    share_labels(panels, "step")
    return figure


def explain(figure: Picture, marks: Mapping[str, Mapping[str, Any]]) -> None:
    """Write a legend above a figure: the kinds, and these marks."""
    kinds = [Patch(label=name, **fill(look)) for name, look in KINDS.items()]
    lines = [Line2D([], [], label=name, **mark) for name, mark in marks.items()]
    legend_above(figure, handles=[*kinds, *lines], ncols=3)


def share_labels(panels: Sequence[Axes], name: str) -> None:
    """Label the common scale of panels below one another at the last one."""
    for axes in panels[:-1]:
        axes.tick_params(labelbottom=False)
    panels[-1].set_xlabel(name)


def draw_steps(axes: Axes, name: str, trace: Trace, newcomer: int, shown: Sequence[Trace]) -> None:
    """Draw the steps of a trace as columns, on a scale with room for all traces shown."""
    steps = shares(trace, newcomer)
    draw_columns(axes, steps)
    columns = max([1, *map(len, shown)])
    tallest = max([1, *(tokens for one in shown for tokens in totals(one))])
    first = gains(trace, newcomer)[:1]
    decoding = [n for n, tokens in enumerate(steps) if tokens[DECODES]]
    axes.plot([n + 1 for n in first], [steps[n].total() + 0.12 * tallest for n in first], **FIRST)
    for which, mark in ((decoding, DECODED), (stalls(trace), STALLED)):
        axes.plot([n + 1 for n in which], [-0.14 * tallest] * len(which), **mark)
    largest = max((steps[n].total() for n in decoding), default=0)
    write_title(
        axes,
        name,
        f"largest step with a decode: {largest:,}" if largest else "no decodes",
        f"first token in step {first[0] + 1:,}" if first else "no first token",
    )
    axes.axhline(0, color=GRAY, lw=0.8)
    axes.set(xlim=(0.4, columns + 0.6), ylim=(-0.26 * tallest, 1.24 * tallest), ylabel="tokens")
    axes.spines["bottom"].set_visible(False)
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y")


def draw_columns(axes: Axes, steps: Sequence[Counter[str]]) -> None:
    """Draw a column for each step, the kinds on top of one another."""
    tops = [0] * len(steps)
    for kind, look in KINDS.items():
        for step, tokens in enumerate(steps):
            if tokens[kind]:  # an empty one would still have an edge
                axes.bar(step + 1, tokens[kind], 0.9, tops[step], lw=0.6, **fill(look))
            tops[step] += tokens[kind]


def write_title(axes: Axes, name: str, *facts: str) -> None:
    """Write the name of a policy on the left, and its results on the right."""
    axes.set_title(name)
    axes.set_title(" · ".join(facts), loc="right", fontsize=9)


# ---------------------------------------------------------------------------- work instead of time

GAINED: Mark = {"marker": "|", "color": INK, "ms": 9, "mew": 1, "ls": ""}
LONGEST: Mark = {"marker": "D", "color": RED, "ms": 4, "lw": 2}
GAP_MARKS = {"gains a token": GAINED, "longest gap": LONGEST}


@shared_look
def gaps_of(traces: Mapping[str, Trace], newcomer: int) -> Picture:
    """Draw the tokens of every step with work as the clock: a step is as wide as its tokens.

    In a policy's panel each request has a row, filled for the steps that compute some of it, with a
    tick for each token that it gains. A line spans the longest gap between two ticks of a row.
    """
    rows = [len(requests_of(trace)) for trace in traces.values()]
    figure, panels = new_figure(height=0.9 + sum(0.5 + 0.2 * n for n in rows), rows=len(traces))
    for axes, (name, trace) in zip(panels, traces.items(), strict=True):
        draw_gaps(axes, name, trace, newcomer, list(traces.values()))
    explain(figure, GAP_MARKS)
    share_labels(panels, "tokens computed by then")
    return figure


def draw_gaps(axes: Axes, name: str, trace: Trace, newcomer: int, shown: Sequence[Trace]) -> None:
    """Draw the requests of a trace as rows, on a scale with room for all traces shown."""
    ends = [0, *accumulate(totals(trace))]  # the work done before each step, and after the last
    requests = requests_of(trace)
    for step, request, _, kind in served(trace, newcomer):
        corner = ends[step], requests.index(request) + 0.14
        width = ends[step + 1] - ends[step]
        axes.add_patch(Rectangle(corner, width, 0.72, lw=0.4, **fill(KINDS[kind])))
    gained = {request: [ends[n + 1] for n in gains(trace, request)] for request in requests}
    for row, ticks in enumerate(gained.values()):
        axes.plot(ticks, [row + 0.5] * len(ticks), **GAINED)
    gaps = [(row, *gap) for row, ticks in enumerate(gained.values()) for gap in pairwise(ticks)]
    longest = max(gaps, key=lambda gap: gap[2] - gap[1], default=None)
    if longest:
        row, before, after = longest
        axes.plot([before, after], [row + 0.5] * 2, **LONGEST)
    first = gained.get(newcomer, [])[:1]
    write_title(
        axes,
        name,
        f"longest gap: {after - before:,}" if longest else "no gap",
        f"first token at {first[0]:,}" if first else "no first token",
    )
    names = [f"new request, {one}" if one == newcomer else f"request {one}" for one in requests]
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    width = max([1, *(sum(totals(one)) for one in shown)])
    axes.set(xlim=(0, 1.01 * width), ylim=(max(len(names), 1), 0))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def explore_budget(
    traces: Mapping[int, Trace], newcomer: int, words: Mapping[int, str]
) -> widgets.VBox:
    """Show a trace by its steps and by its work, with a slider over token budgets.

    traces: by token budget; all share their scales. words: a sentence for each.
    """
    shown = list(traces.values())

    def draw(budget: int) -> Picture:
        return steps_and_gaps(traces[budget], newcomer, shown)

    return explore(draw, choice("token budget", traces), words=lambda budget: words[budget])


@shared_look
def steps_and_gaps(trace: Trace, newcomer: int, shown: Sequence[Trace]) -> Picture:
    """Draw one trace by its steps and by its work, on scales with room for all traces shown."""
    figure, (steps, gaps) = new_figure(height=4.6, rows=2)
    draw_steps(steps, "by steps", trace, newcomer, shown)
    draw_gaps(gaps, "by work", trace, newcomer, shown)
    steps.set_xlabel("step")
    gaps.set_xlabel("tokens computed by then")
    explain(figure, STEP_MARKS | GAP_MARKS)
    return figure


# ------------------------------------------------------------------------- the mask of the chunks

CACHED = PALE_GREEN, GREEN, "..."
OWN = (PALE_ORANGE, ORANGE, "/////"), (PALE_BLUE, BLUE, "\\\\\\\\\\")  # of one chunk, of the next
MOST_CHUNKS = 8  # that are named


@shared_look
def chunk_mask(prompt: int, chunk: int) -> Picture:
    """Draw the causal mask of a prompt that is computed in chunks: the keys that each query sees.

    A chunk's queries see all keys before the chunk, which are in the cache by then, and its own
    keys up to their position. Raises ValueError if the prompt or a chunk would have no tokens.
    """
    if prompt < 1 or chunk < 1:
        raise ValueError(f"A prompt and a chunk have one token or more, not {prompt} and {chunk}.")
    figure, (axes,) = new_figure(height=4.4)
    borders = [*range(0, prompt, chunk), prompt]
    for (start, end), look in zip(pairwise(borders), cycle(OWN), strict=False):
        if start:  # the first chunk finds nothing in the cache
            axes.add_patch(Rectangle((0, start), start, end - start, lw=0.8, **fill(CACHED)))
        axes.add_patch(Polygon(staircase(start, end), lw=0.8, **fill(look)))
    every = -(-(len(borders) - 1) // MOST_CHUNKS)
    for number, (start, end) in list(enumerate(pairwise(borders), start=1))[::every]:
        text = f"chunk {number}: {start:,} cached + {end - start:,} own"
        axes.text(1.04 * prompt, (start + end) / 2, text, va="center", fontsize=9)
    axes.set_xticks(borders[:-1:every])
    axes.set_yticks(borders[:-1:every])
    axes.set(xlim=(0, prompt), ylim=(prompt, 0), aspect="equal", anchor="W")
    title = f"{prompt:,} tokens in chunks of {chunk:,}; forward passes: {len(borders) - 1:,}"
    axes.set(xlabel="key", ylabel="query", title=title)
    handles: list[Any] = [Patch(**fill(CACHED)), tuple(Patch(**fill(look)) for look in OWN)]
    names = ["key from the cache", "key of the chunk itself"]
    legend_above(figure, handles, names, handler_map={tuple: HandlerTuple(ndivide=None)})
    return figure


def staircase(start: int, end: int) -> list[tuple[int, int]]:
    """The corners around the own keys that the queries from `start` to `end` see."""
    steps = [(key + 1, query) for key in range(start, end) for query in (key, key + 1)]
    return [(start, start), *steps, (start, end)]


# ------------------------------------------------------------------------ the times of one request


@shared_look
def token_dots(times: Mapping[str, Sequence[float]]) -> Picture:
    """Draw when the tokens of one request came, a line of dots for each policy, with the longest
    gap below it.

    times: by policy, in seconds of any clock. Each line begins with the request's first token.
    """
    figure, (axes,) = new_figure(height=1.0 + 0.5 * len(times))
    for row, seconds in enumerate(times.values()):
        dots = [1000 * (moment - seconds[0]) for moment in seconds]
        axes.plot(dots, [row] * len(dots), "o", color=BLUE, ms=4, mec="white", mew=0.5)
        longest = max(pairwise(dots), key=lambda gap: gap[1] - gap[0], default=None)
        if longest:
            axes.plot(longest, [row + 0.3] * 2, **LONGEST)
        text = f"{longest[1] - longest[0]:,.0f} ms" if longest else "no gap"
        axes.text(1.02, row, text, transform=axes.get_yaxis_transform(), va="center")
    name_rows(axes, times)
    axes.set_xlabel("ms since its first token")
    axes.set_title("tokens of one request, with the longest gap below them")
    axes.grid(axis="x")
    return figure


# ------------------------------------------------------------------------- two sides, and the link

WORK = {
    "prefill": (PALE_ORANGE, ORANGE, "/////"),
    "send": (PALE_GREEN, GREEN, "xxxxx"),
    "decode": (PALE_BLUE, BLUE, ""),
    "wait": ("white", GRAY, "...."),
}


@shared_look
def lanes(events: Mapping[str, Sequence[tuple[str, float, float]]]) -> Picture:
    """Draw what each side does over time, and what is sent between them: a lane for each.

    events: by lane; each has its kind, which is one of WORK, its start and its duration in seconds
        of any clock. The first event of all is drawn at 0.
    """
    zero = min((start for lane in events.values() for _, start, _ in lane), default=0)
    figure, (axes,) = new_figure(height=1.25 + 0.45 * len(events))
    for row, lane in enumerate(events.values()):
        for kind, start, duration in lane:
            left, width = 1000 * (start - zero), 1000 * duration
            axes.barh(row, width, 0.7, left, lw=0.6, **fill(WORK[kind]))
    name_rows(axes, events)
    axes.set(xlabel="ms", title="what each lane does, and when")
    draw_legend(figure, WORK)
    return figure


@shared_look
def wire_bytes(points: Mapping[int, int], per_token: int) -> Picture:
    """Draw the bytes sent against the length of the prompt, with a line for keys and values alone.

    points: the bytes, by the number of tokens in the prompt. per_token: the bytes of one token's
        keys and values, the slope of the line.
    """
    figure, (axes,) = new_figure(height=3.0)
    end = max([1, *points])
    line = [0, end * per_token / 1024]
    axes.plot([0, end], line, "--", color=ORANGE, lw=2, label=f"{per_token:,} bytes a token")
    sent = [size / 1024 for size in points.values()]
    axes.plot(list(points), sent, "o", color=BLUE, ms=7, label="sent")
    axes.set(xlim=(0, 1.05 * end), xlabel="tokens in the prompt", title="KB sent")
    axes.set_ylim(0, 1.1 * max([*line, *sent]))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(axis="y")
    axes.legend(loc="upper left")
    return figure
