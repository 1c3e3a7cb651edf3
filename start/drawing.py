"""Draw the map of the course: tracks are lines, and labs are stations on them.

There are two drawings, for a wide page and for a narrow one; the page's style shows one of them.
Lengths are in the units of the drawing, which are pixels where it isn't scaled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from autograder.notebook.passed import Progress, progress_in
from autograder.text.lesson import Lesson, builds_on, lessons
from start.words import duration, numbers, title

TRACKS = {
    "core": "The core",
    "text": "Text",
    "serving": "Serving",
    "bytes": "Fewer bytes",
    "scale": "Larger models",
}
RADIUS = 14  # of a station
COLUMN, ROW = 224, 92  # from one station to the next
LEFT, TOP = 20, 62  # of the first station
TITLE = 44  # from a track's title down to its first station
BRANCH = 30  # how far a branch runs along the line that it leaves
CORNER = 18
LEGEND = 168  # the height of the explanation, in a column

Point = tuple[float, float]


def tracks() -> dict[str, list[Lesson]]:
    found: dict[str, list[Lesson]] = {}
    for lesson in lessons().values():
        found.setdefault(lesson.track, []).append(lesson)
    return found


@dataclass(frozen=True)
class Map:
    """here: the lab to go on with. links: of each lab, by its name."""

    here: Lesson | None
    links: Mapping[str, str]

    def html(self) -> str:
        return self.wide() + self.narrow()

    def wide(self) -> str:
        """The core is a row, and its line goes on to the other tracks, which are columns.

        The explanation is below the shortest of them.
        """
        (core, row), *others = tracks().items()
        columns = max(len(row), len(others))
        right, bus = LEFT + columns * COLUMN - BRANCH, TOP + 128
        lefts = [LEFT + COLUMN * i for i in range(columns - len(others), columns)]
        places = [(LEFT + COLUMN * i, TOP) for i in range(len(row))]
        ends = [(right, TOP), (right, bus), (lefts[0] + BRANCH, bus)]
        lines = [line([places[0], *ends], core)]
        stops = [track_name(core, row, (LEFT - RADIUS, TOP - TITLE + 8))]
        stops += [self.station(*both, "below") for both in zip(row, places, strict=True)]
        for (track, labs), x in zip(others, lefts, strict=True):
            places = [(x, bus + 36 + TITLE + ROW * i) for i in range(len(labs))]
            lines.append(line([(x + BRANCH, bus), (x, bus), places[-1]], track))
            stops += self.column(track, labs, places)
        bottoms = [bus + TITLE + ROW * len(labs) + 16 for _, labs in others]
        top, x = min(zip(bottoms, lefts, strict=True))
        height = max(*bottoms, top + LEGEND)
        parts = [*lines, *stops, legend((x, top), COLUMN - 40, height - top)]
        return drawing("wide", right + 10, height, parts)

    def narrow(self) -> str:
        """All tracks are columns, one below the other, and the core's line leads along them."""
        (core, first), *others = tracks().items()
        places = [(LEFT, TOP + ROW * i) for i in range(len(first))]
        lines: list[str] = []
        stops, y = self.column(core, first, places), TOP + ROW * len(first)
        for track, labs in others:
            places = [(LEFT + BRANCH, y + BRANCH + TITLE + ROW * i) for i in range(len(labs))]
            lines.insert(0, line([(LEFT, TOP), (LEFT, y), (LEFT + BRANCH / 2, y)], core))
            lines.append(line([(LEFT + BRANCH / 2, y), (LEFT + BRANCH, y), places[-1]], track))
            stops += self.column(track, labs, places)
            y += BRANCH + TITLE + ROW * len(labs)
        return drawing("narrow", 330, y + 70, [*lines, *stops, legend((LEFT, y - 20), 300, 90)])

    def column(self, track: str, labs: list[Lesson], places: Sequence[Point]) -> list[str]:
        (x, y), *_ = places
        stations = [self.station(*both, "right") for both in zip(labs, places, strict=True)]
        return [track_name(track, labs, (x + RADIUS + 8, y - TITLE + 12)), *stations]

    def station(self, lesson: Lesson, place: Point, side: str) -> str:
        """Draw a lab: a ring that fills as exercises pass, with its number, and a label.

        side: of the label, below or to the right of the ring.
        """
        progress, (x, y) = progress_in(lesson), place
        passed = len(progress.passed) / len(lesson.cards)
        state = "finished" if passed == 1 else ""
        halo = f'<circle class="halo" cx="{x}" cy="{y}" r="{RADIUS + 6}"/>' * (lesson == self.here)
        alarm = f'<text class="alarm" x="{x + 9}" y="{y - 8}">!</text>' if progress.red else ""
        return (
            f'<g class="{state}" {color(lesson.track)} aria-hidden="true">{halo}'
            f'<circle class="ring" cx="{x}" cy="{y}" r="{RADIUS}"/>'
            f'<circle class="passed" cx="{x}" cy="{y}" r="{RADIUS}" pathLength="100" '
            f'stroke-dasharray="{100 * passed:.0f} 100" transform="rotate(-90 {x} {y})"/>'
            f'<text class="number" x="{x}" y="{y + 4.5}">{lesson.number}</text>{alarm}</g>'
            f'<foreignObject x="{x - RADIUS}" y="{y - RADIUS}" width="{COLUMN - 8}" '
            f'height="{ROW + 12}">'
            f"{self.label(progress, side)}</foreignObject>"
        )

    def label(self, progress: Progress, side: str) -> str:
        lesson, red = progress.lesson, len(progress.red)
        bases = builds_on(lesson)
        count, of = len(progress.passed), len(lesson.cards)
        state = f"all {of} passed ✓" if count == of else f"{count} of {of} passed"
        lines = [f"{duration(lesson.minutes)} · {state}"]
        lines += [f'<span class="red">{red} red again</span>'] if red else []
        lines += [lesson.when or f"builds on {numbers(bases)}"] if bases else []
        here = '<span class="here">you are here</span>' if lesson == self.here else ""
        name = f'<span class="hidden">Lab {lesson.number}: </span>{escape(title(lesson))}'
        small = "".join(f"<small>{text}</small>" for text in lines)
        link = escape(self.links[lesson.lab])
        return f'<a class="{side}" href="{link}"><b>{name}</b> {here}{small}</a>'


def drawing(kind: str, width: float, height: float, parts: list[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" style="max-width:{width}px" '
        f'role="group" aria-label="Map of the course">{"".join(parts)}</svg>'
    )


def legend(place: Point, width: float, height: float) -> str:
    x, y = place
    return (
        f'<foreignObject x="{x - RADIUS}" y="{y}" width="{width}" height="{height}">'
        '<div class="legend">A ring fills as the exercises of a lab pass, and is a disk when all '
        'have. <b class="red">!</b> marks a check that passed and has failed since. You can begin '
        "with any lab: it brings along the code that it builds on.</div></foreignObject>"
    )


def line(points: Sequence[Point], track: str) -> str:
    """Draw a line with round corners."""
    path = "M{},{}".format(*points[0])
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += "L{},{} Q{},{} {},{}".format(*near(corner, before), *corner, *near(corner, after))
    path += "L{},{}".format(*points[-1])
    return f'<path class="line" {color(track)} d="{path}"/>'


def near(corner: Point, other: Point) -> Point:
    """Return the point on the way from a corner to another point where the round part ends."""
    (x, y), (to_x, to_y) = corner, other
    length = max(abs(to_x - x), abs(to_y - y))
    part = min(CORNER, length) / length
    return x + (to_x - x) * part, y + (to_y - y) * part


def color(track: str) -> str:
    return f'style="--track:var(--start-{track},currentColor)"'


def track_name(track: str, labs: list[Lesson], place: Point) -> str:
    time = duration(sum(lesson.minutes for lesson in labs))
    x, y = place
    return f'<text class="track" {color(track)} x="{x}" y="{y}">{TRACKS[track]} · {time}</text>'
