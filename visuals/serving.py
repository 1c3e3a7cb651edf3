"""Pictures for lab 13: requests over time, the knee, the TTFT's tail, routing, bytes on the wire.

Each draws records, numbers and bytes of the learner's own service.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, cycle, pairwise
from typing import Any, Protocol

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

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
    PALE_PINK,
    RED,
    RING,
    Look,
    Mark,
    Picture,
    bare,
    draw_legend,
    fill,
    legend_above,
    new_figure,
    shared_look,
    write,
)

# ------------------------------------------------------------------------------ requests as bars


class Request(Protocol):
    """What became of a request. Times in seconds of one clock, None if it never got so far.

    due: when it should have been sent. started: when its prefill began. first, last: when these
    tokens of its answer came. ended: when it was whole, refused, aborted or failed, which is its
    outcome. tokens: how many came; read only if there is an SLO.
    """

    due: float
    started: float | None
    first: float | None
    last: float | None
    ended: float | None
    outcome: str | None
    tokens: int


class Objective(Protocol):
    """The most seconds for the TTFT and for the TPOT of a request."""

    @property
    def ttft(self) -> float: ...
    @property
    def tpot(self) -> float: ...


PHASES: dict[str, Look] = {
    "queued": ("white", GRAY, ""),
    "prefill": (PALE_ORANGE, ORANGE, "//////"),
    "decode": (PALE_BLUE, BLUE, ""),
}
WHOLE = "whole"
ENDS: dict[str, Mark] = {  # how a request ends that isn't whole
    "refused": {"marker": "D", "color": INK, "mfc": "white", "ls": ""},
    "aborted": {"marker": "<", "color": INK, "ls": ""},
    "failed": {"marker": "X", "color": RED, "ls": ""},
}
LATE: Mark = {"color": RED, "lw": 2, "solid_capstyle": "butt"}
MET: Mark = {"marker": "o", "color": GREEN, "ls": ""}
MISSED: Mark = {"marker": "x", "color": RED, "mew": 1.3, "ls": ""}


@shared_look
def bars(requests: Sequence[Request], slo: Objective | None = None) -> Picture:
    """Draw each request as a bar over time: queued, prefill, decode, and how it ended if not whole.

    slo: a line covers the seconds by which a first or a last token was too late for it, and a mark
        on the right says whether the request met it. Raises ValueError if there are no requests, or
        one has another outcome.
    """
    require_outcomes(requests)
    rows = len(requests)
    height = min(0.3 * rows, 3)  # inches: with its slider, it fits a window
    size = min(7, max(4, 50 * height / rows))  # of a mark, in points
    zero = min(request.due for request in requests)
    figure, (axes,) = new_figure(height=1.3 + height)
    for row, request in enumerate(requests):
        draw_request(axes, row, request, zero, size)
    if slo:
        draw_verdicts(axes, requests, slo, zero, 0.8 * size)
    axes.set(xlabel="seconds after the first due time", ylabel="request", xlim=(0, None))
    axes.set(ylim=(rows - 0.4, -0.6), title=summary(requests, slo))
    axes.set_yticks(range(0, rows, next(n for n in (1, 2, 5, 10, 50, rows) if rows / n <= 16)))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    explain(figure, {request.outcome for request in requests}, slo)
    return figure


def require_outcomes(requests: Sequence[Request]) -> None:
    if not requests:
        raise ValueError("There are no requests to show.")
    for number, request in enumerate(requests):
        if request.outcome not in (WHOLE, *ENDS):
            known = ", ".join([WHOLE, *ENDS])
            raise ValueError(f"The outcome of request {number} is {request.outcome}, not {known}.")


def end_of(request: Request) -> float:
    """Return when a request left: with its last token if it is whole."""
    end = request.last if request.outcome == WHOLE else request.ended
    return request.due if end is None else end


def phases_of(request: Request) -> Iterator[tuple[str, float, float]]:
    """Yield (phase, start, end) of each phase that a request went through."""
    starts = zip(PHASES, (request.due, request.started, request.first), strict=True)
    reached = [(phase, start) for phase, start in starts if start is not None]
    for (phase, start), (_, end) in pairwise([*reached, ("", end_of(request))]):
        if end > start:  # an empty one would still have an edge
            yield phase, start, end


def draw_request(axes: Axes, row: int, request: Request, zero: float, size: float) -> None:
    for phase, start, end in phases_of(request):
        axes.barh(row, end - start, 0.76, start - zero, lw=0.5, **fill(PHASES[phase]))
    if request.outcome in ENDS:
        look: Mark = {"ms": size, "zorder": 4, "clip_on": False} | ENDS[request.outcome]
        axes.plot(end_of(request) - zero, row, **look)


def deadlines(request: Request, slo: Objective) -> Iterator[tuple[float, float]]:
    """Yield (deadline, moment) of the first token, and of the last one if it has a TPOT."""
    first, last = request.first, request.last
    yield request.due + slo.ttft, end_of(request) if first is None else first
    if first is not None and last is not None and request.tokens > 1:
        yield first + slo.tpot * (request.tokens - 1), last


def meets(request: Request, slo: Objective) -> bool:
    """Return whether a request is whole and neither its TTFT nor its TPOT exceeds the SLO."""
    first, last, tokens = request.first, request.last, request.tokens
    if request.outcome != WHOLE or first is None or last is None:
        return False
    is_fast = tokens < 2 or (last - first) / (tokens - 1) <= slo.tpot
    return first - request.due <= slo.ttft and is_fast


def draw_verdicts(
    axes: Axes, requests: Sequence[Request], slo: Objective, zero: float, size: float
) -> None:
    """Draw a line over what was too late, and a mark for each request in two columns behind."""
    for row, request in enumerate(requests):
        for deadline, moment in deadlines(request, slo):
            if moment > deadline:
                axes.plot([deadline - zero, moment - zero], [row, row], **LATE)
    place: Mark = {"transform": axes.get_yaxis_transform(), "clip_on": False, "ms": size}
    for mark, is_met, x in ((MET, True, 1.02), (MISSED, False, 1.045)):
        rows = [row for row, request in enumerate(requests) if meets(request, slo) == is_met]
        if rows:  # a line without points would take room at the corner
            axes.plot([x] * len(rows), rows, **mark, **place)


def summary(requests: Sequence[Request], slo: Objective | None) -> str:
    if slo is None:
        whole = sum(request.outcome == WHOLE for request in requests)
        return f"{whole:,} of {len(requests):,} requests got their whole answer"
    met = sum(meets(request, slo) for request in requests)
    limits = f"TTFT {1000 * slo.ttft:,.4g} ms, TPOT {1000 * slo.tpot:,.4g} ms"
    return f"{met:,} of {len(requests):,} requests met the SLO: {limits}"


def explain(figure: Picture, outcomes: set[str | None], slo: Objective | None) -> None:
    """Write a legend: the phases, the ends that occur, and the marks of an SLO."""
    marks = {name: mark for name, mark in ENDS.items() if name in outcomes}
    if slo:
        marks |= {"too late": LATE, "met the SLO": MET, "missed it": MISSED}
    handles: list[Any] = [Patch(label=name, **fill(look)) for name, look in PHASES.items()]
    handles += [Line2D([], [], label=name, **mark) for name, mark in marks.items()]
    ncols = len(handles) if len(handles) <= 6 else 5
    legend_above(figure, handles=handles, ncols=ncols, columnspacing=1.3, handlelength=1.6)


# ---------------------------------------------------------------------------------- over the rate

RATES = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40)  # requests per second
DRAWN = 4  # seconds of arrivals: of a longer run at a low rate, all bars would be specks


def explore_rate(
    run: Callable[[int], Sequence[Request]],
    slo: Objective | None = None,
    rates: Sequence[int] = RATES,
) -> widgets.VBox:
    """Show `bars` with a slider over the arrival rate, and the numbers of the run in a sentence.

    The bars are those of the first seconds, and the numbers those of the whole run. run: serves
    requests that arrive at a rate, and returns their records; called once for a rate. slo: with it,
    the sentence has the goodput, too.
    """
    run = cache(run)
    return explore(
        lambda rate: bars(first_of(run(rate)), slo),
        choice("requests per second", rates),
        words=lambda rate: f"{in_words(run(rate), slo)} Below: the first {DRAWN} seconds.",
    )


def first_of(requests: Sequence[Request]) -> Sequence[Request]:
    """Return the requests of the first seconds."""
    require_outcomes(requests)
    zero = min(request.due for request in requests)
    return [request for request in requests if request.due < zero + DRAWN]


def in_words(requests: Sequence[Request], slo: Objective | None = None) -> str:
    """Return throughput, goodput and percentiles of a run, which lasts until the last one ends."""
    require_outcomes(requests)
    seconds = max(map(end_of, requests)) - min(request.due for request in requests)
    whole = sum(request.outcome == WHOLE for request in requests)
    words = f"Throughput: {per_second(whole, seconds)}. "
    if slo:
        words += f"Goodput: {per_second(sum(meets(one, slo) for one in requests), seconds)}. "
    ttfts = [one.first - one.due for one in requests if one.first is not None]
    return f"{words}TTFT: {percentiles_of(ttfts)}." if ttfts else words


def per_second(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f} requests per second" if seconds else "too short to tell"


LOST: Look = "white", ORANGE, "////"


@shared_look
def knee(rates: Sequence[float], throughput: Sequence[float], goodput: Sequence[float]) -> Picture:
    """Draw throughput and goodput over the arrival rate, all in requests per second.

    Between them are the requests that were answered but missed the SLO. A ring marks the highest
    goodput. Raises ValueError unless each rate has one of both.
    """
    if not len(rates) == len(throughput) == len(goodput) > 0:
        raise ValueError(
            "Each rate needs one throughput and one goodput, but there are "
            f"{len(rates)} rates, {len(throughput)} throughputs and {len(goodput)} goodputs."
        )
    points = sorted(zip(rates, throughput, goodput, strict=True))
    at, served, good = zip(*points, strict=True)
    end = 1.05 * at[-1]
    figure, (axes,) = new_figure(height=3.8)
    axes.plot([0, end], [0, end], ":", color=GRAY, lw=2, label="all that arrive")
    for name, numbers, look in (("throughput", served, CURVES[1]), ("goodput", good, CURVES[0])):
        color, dashes, marker = look
        axes.plot(at, numbers, dashes, color=color, lw=2, marker=marker, label=name)
    axes.fill_between(at, good, served, lw=0, label="missed the SLO", zorder=0, **fill(LOST))
    best = good.index(max(good))
    axes.plot(at[best], good[best], **RING)
    axes.set_title(f"most goodput (ring): {good[best]:,.3g} at a rate of {at[best]:,.3g}")
    axes.set(xlabel="requests that arrive per second", ylabel="requests per second")
    axes.set(xlim=(0, end), ylim=(0, 1.05 * max([end, *served, *good])))
    axes.grid(axis="y")
    legend_above(figure, ncols=4, handlelength=3)
    return figure


# ----------------------------------------------------------------------------- the TTFT's tail

PERCENTILES = {50: "o", 95: "s", 99: "^"}  # with their markers


@shared_look
def ttft_curves(ttfts: Mapping[str, Sequence[float]]) -> Picture:
    """Draw the share of requests that have their first token by then, a line for each label.

    ttfts: seconds, by label. The percentiles are nearest ranks, so each is the TTFT of a request.
    Raises ValueError for a label without numbers.
    """
    for label, seconds in ttfts.items():
        if not len(seconds) or None in seconds:
            raise ValueError(f"{label!r} needs the TTFT of one request or more, without None.")
    figure, (axes,) = new_figure(height=3.4 + 0.2 * len(ttfts))
    for (label, seconds), (color, dashes, _) in zip(ttfts.items(), cycle(CURVES), strict=False):
        ms = [1000 * one for one in seconds]
        axes.ecdf(ms, ls=dashes, color=color, lw=2, label=f"{label}: {percentiles_of(seconds)}")
        for p, marker in PERCENTILES.items():
            axes.plot(nearest_rank(ms, p), p / 100, marker, color=color, mec="white", ms=8)
    names, _ = axes.get_legend_handles_labels()
    legend_above(figure, handles=names, ncols=1, handlelength=4)
    marks: Mark = {"color": INK, "ls": "", "ms": 7}
    handles = [Line2D([], [], marker=m, label=f"p{p}", **marks) for p, m in PERCENTILES.items()]
    axes.legend(handles=handles, loc="lower right")
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlim=(0, None), ylim=(0, 1.04), yticks=[0, 0.25, 0.5, 0.75, 1])
    axes.set(xlabel="ms after the due time", title="requests that have their first token")
    axes.grid()
    return figure


def nearest_rank(values: Sequence[float], p: int) -> float:
    """Return the smallest value that p % of the values don't exceed."""
    return float(np.percentile(values, p, method="inverted_cdf"))


def percentiles_of(seconds: Sequence[float]) -> str:
    numbers = (f"p{p} {1000 * nearest_rank(seconds, p):,.0f}" for p in PERCENTILES)
    return f"{', '.join(numbers)} ms"


# ------------------------------------------------------------------------------------- routing

Counts = Sequence[Sequence[int]]  # requests, by replica and chat

SHADES = LinearSegmentedColormap.from_list("shades", ["#D5E8F5", BLUE]).with_extremes(under="white")
LOAD: Look = PALE_ORANGE, ORANGE, ""
MOST_NUMBERED = 36  # chats; the cells of more have no room for a number


@shared_look
def routing(counts: Mapping[str, Counts], hits: Mapping[str, float]) -> Picture:
    """Draw which replica served the requests of each chat, a panel for each router.

    counts: by router, the number of requests, by replica and chat. hits: by router, the share of
        prompt tokens that were found in the cache. Bars on the right: the requests of each replica.
    Raises ValueError unless both have the same routers.
    """
    if counts.keys() != hits.keys() or not counts:
        raise ValueError(
            f"Both need the same routers, at least one: counts has {', '.join(counts) or 'none'}, "
            f"hits has {', '.join(hits) or 'none'}."
        )
    totals = {name: [sum(row) for row in rows] for name, rows in counts.items()}
    most = max(1, *(number for rows in counts.values() for row in rows for number in row))
    heaviest = max(1, *(load for loads in totals.values() for load in loads))
    height = 0.7 + sum(0.35 + 0.22 * len(loads) for loads in totals.values())
    figure, panels = new_figure(height, columns=2, rows=len(counts))
    grid: Any = panels[0].get_gridspec()
    grid.set_width_ratios([4, 1])
    for name, cells, loads in zip(counts, panels[::2], panels[1::2], strict=True):
        draw_cells(cells, counts[name], most)
        draw_loads(loads, totals[name], heaviest)
        cells.set_title(name)
        cells.set_title(f"{hits[name]:.0%} of prompt tokens cached", loc="right", fontsize=9)
    panels[-2].set_xlabel("chat")
    panels[-1].set_xlabel("requests")
    draw_legend(figure, {"no request": ("white", PALE, ""), f"{most:,} requests": (BLUE, BLUE, "")})
    return figure


def draw_cells(axes: Axes, counts: Counts, most: int) -> None:
    """Draw a cell for each replica and chat, in a stronger color for more requests."""
    replicas, chats = len(counts), len(counts[0])
    look: dict[str, Any] = {"cmap": SHADES, "vmin": 0.5, "vmax": most, "edgecolors": PALE}
    axes.pcolormesh(np.array(counts), lw=1, **look)
    for replica, row in enumerate(counts):
        for chat, number in enumerate(row):
            if number and chats <= MOST_NUMBERED:
                color = "white" if number > 0.6 * most else INK
                write(axes, chat + 0.5, replica + 0.5, f"{number}", fontsize=7, color=color)
    some = range(0, chats, -(-chats // 20))  # there is room for 20 names
    axes.set_xticks([chat + 0.5 for chat in some], [str(chat) for chat in some], fontsize=8)
    axes.set_yticks([n + 0.5 for n in range(replicas)], [f"replica {n}" for n in range(replicas)])
    axes.set(xlim=(0, chats), ylim=(replicas, 0))
    bare(axes)


def draw_loads(axes: Axes, loads: Sequence[int], heaviest: int) -> None:
    """Draw a bar for the requests of each replica, and above how uneven they are."""
    drawn = axes.barh([n + 0.5 for n in range(len(loads))], loads, 0.7, **fill(LOAD))
    axes.bar_label(drawn, [f"{load:,}" for load in loads], padding=3, fontsize=9)
    uneven = max(loads) * len(loads) / max(1, sum(loads))
    axes.set_title(f"max {uneven:.2f}× mean", fontsize=9)
    axes.set(xlim=(0, 1.5 * heaviest), ylim=(len(loads), 0), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


# -------------------------------------------------------------------------- bytes on the wire

Chunk = tuple[float, bytes]  # when they came from the socket, in seconds, and the bytes

PIECE = re.compile(rb"[^\n]*\n(?:\r?\n)*|[^\n]+$")  # a line, with the empty lines after it
STATUS, HEADER, EVENT = "status line", "header", "event"
KINDS = (  # how a line of the body begins, what it is, and its background; the first that fits
    (rb"data: \[DONE\]", "end", PALE_ORANGE),
    (rb'data: .*"usage":\{', "usage", PALE_GREEN),
    (rb'data: \{"error"', "error", PALE_PINK),
    (rb"data: ", EVENT, PALE_BLUE),
    (rb"", "body", PALE_BLUE),
)
CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]+\r\n")  # with transfer-encoding: chunked


@dataclass(frozen=True)
class Part:
    """A line of the stream. read: the number of the read that it came with, and ms: when."""

    read: int
    ms: float
    text: bytes
    breaks: bytes
    name: str
    color: str


@shared_look
def on_the_wire(chunks: Sequence[Chunk]) -> Picture:
    """Draw the bytes of one streamed answer, with the times when they came, and what each part is.

    chunks: what each read from the socket returned, from the HTTP head on; a line separates them.
        The events after the first lose their middle, and a long answer the events in its middle.
        Line breaks are written in gray, as \\r and \\n. Raises ValueError if the bytes don't begin
        with an HTTP head.
    """
    parts = shortened(parts_of(chunks))
    events = [part for part in parts if part.name == EVENT]
    texts = [lines_of(part, part not in events[1:]) for part in parts]
    tops = list(accumulate(map(len, texts), initial=0))
    figure, (axes,) = new_figure(height=0.5 + LINE * tops[-1])
    read = None
    for part, lines, top in zip(parts, texts, tops, strict=False):
        draw_part(axes, part, lines, top)
        if part.read != read:
            axes.hlines(top, 0, 1, color=GRAY, lw=0.8)
            axes.text(TIME, top + 0.5, f"{part.ms:,.1f}", ha="right", va="center", fontsize=8)
        read = part.read
    axes.set(xlim=(0, 1), ylim=(tops[-1], 0))
    axes.set_axis_off()
    size = sum(len(data) for _, data in chunks)
    axes.set_title(f"{size:,} bytes, and the milliseconds at which they came")
    return figure


def parts_of(chunks: Sequence[Chunk]) -> list[Part]:
    """Split a stream into its lines."""
    stream = b"".join(data for _, data in chunks)
    if not stream.startswith(b"HTTP/"):
        raise ValueError(f"The bytes begin with {stream[:20]!r}, not with an HTTP head.")
    starts = list(accumulate((len(data) for _, data in chunks[:-1]), initial=0))
    parts: list[Part] = []
    for match in PIECE.finditer(stream):
        read = bisect_right(starts, match.start()) - 1
        text = match.group().rstrip(b"\r\n")
        kind = kind_of(match.group(), parts[-1] if parts else None)
        ms = 1000 * (chunks[read][0] - chunks[0][0])
        parts.append(Part(read, ms, text, match.group()[len(text) :], *kind))
    return parts


def kind_of(line: bytes, before: Part | None) -> tuple[str, str]:
    """Return what a line is, and its background. before: the line before it."""
    if before is None:
        return STATUS, PALE
    if before.name in (STATUS, HEADER) and before.breaks == b"\r\n":
        return HEADER, PALE
    if CHUNK_SIZE.match(line):
        return f"= {int(line.split()[0], 16):,} bytes", "white"
    name, color = next((name, color) for begins, name, color in KINDS if re.match(begins, line))
    is_whole = name != EVENT or b"\n\n" in line or b"\r\n\r\n" in line
    return name if is_whole else "unfinished", color


FIRST, LAST = 4, 7  # lines of the body that are drawn of a long answer


def shortened(parts: list[Part]) -> list[Part]:
    """Leave out the lines in the middle of a long answer, and say how many events they have."""
    begin = FIRST + sum(part.name in (STATUS, HEADER) for part in parts)
    hidden = parts[begin:-LAST]
    if len(hidden) < 2:
        return parts
    events = sum(part.name == EVENT for part in hidden)
    text = f"{events:,} more events".encode()
    return [*parts[:begin], replace(hidden[0], text=text, breaks=b"", name=""), *parts[-LAST:]]


WIDTH, KEPT = 76, 7  # characters in a drawn line; those before the middle that is left out
MOST_LINES = 5  # of a part that is drawn in full
LINE = 0.165  # inches
TIME, LEFT, RIGHT = 0.07, 0.08, 0.88  # of the width: times end, bytes begin, bytes end
FONT = "DejaVu Sans Mono"


def lines_of(part: Part, is_full: bool) -> list[str]:
    """Return the lines in which a part is drawn: one, unless it is drawn in full."""
    signs = shown(part.text)
    width = WIDTH - 2 * len(part.breaks) - 1
    if is_full and 0 < len(signs) <= MOST_LINES * width:
        return [signs[start : start + width] for start in range(0, len(signs), width)]
    return [signs if len(signs) <= width else f"{signs[:KEPT]}…{signs[KEPT + 1 - width :]}"]


def shown(text: bytes) -> str:
    """Decode bytes, with escapes for those that are no text, and for signs that the font lacks."""
    glyphs = get_font(findfont(FONT)).get_charmap()
    signs = text.decode(errors="backslashreplace")
    return "".join(
        sign if sign.isprintable() and ord(sign) in glyphs else ascii(sign)[1:-1] for sign in signs
    )


def draw_part(axes: Axes, part: Part, lines: Sequence[str], top: float) -> None:
    """Draw a line of the stream on its background, its line breaks behind it, and what it is."""
    look: dict[str, Any] = {"va": "center", "fontsize": 7, "family": FONT}
    if not part.name:  # no bytes of the stream
        write(axes, (LEFT + RIGHT) / 2, top + 0.5, f"… {lines[0]} …", fontsize=8, color=MUTED)
        return
    box = Rectangle((LEFT, top), RIGHT - LEFT, len(lines), fc=part.color, ec="white", lw=0.8)
    axes.add_patch(box)
    for row, line in enumerate(lines, start=int(top)):
        text = axes.text(LEFT + 0.006, row + 0.5, line, **look)
    place: dict[str, Any] = {"xycoords": text, "textcoords": "offset points", "color": MUTED}
    axes.annotate(ascii(part.breaks)[2:-1], (1, 0.5), (2, 0), **place, **look)
    axes.text(RIGHT + 0.01, top + 0.5, part.name, va="center", fontsize=8)
