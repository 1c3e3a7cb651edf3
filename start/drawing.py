"""Lay out the map of the course: tracks are lines, and labs are stations on them.

There are two drawings, for a wide page and for a narrow one; the page's style shows one of them.
map.html draws what is laid out here.
Lengths are in the units of the drawing, which are pixels where it isn't scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autograder.text.lesson import Lesson, lessons

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
    labs: dict[str, list[Lesson]] = {}
    for lesson in lessons().values():
        labs.setdefault(lesson.track, []).append(lesson)
    return labs


@dataclass(frozen=True)
class Track:
    """place: of its title. side: of the labels, below or to the right of their stations."""

    name: str
    place: Point
    stations: list[tuple[Lesson, Point]]
    side: str = "right"

    @property
    def minutes(self) -> int:
        return sum(lesson.minutes for lesson, _ in self.stations)


@dataclass(frozen=True)
class Drawing:
    """lines: SVG paths, each after the name of its track. legend: left, top, width, height."""

    kind: str
    width: float
    height: float
    lines: list[tuple[str, str]]
    tracks: list[Track]
    legend: tuple[float, float, float, float]


def wide() -> Drawing:
    """The core is a row, and its line goes on to the other tracks, which are columns.

    The explanation is below the shortest of them.
    """
    (core, row), *others = tracks().items()
    columns = max(len(row), len(others))
    right, bus = LEFT + columns * COLUMN - BRANCH, TOP + 128
    lefts = [LEFT + COLUMN * i for i in range(columns - len(others), columns)]
    places: list[Point] = [(LEFT + COLUMN * i, TOP) for i in range(len(row))]
    ends = [(right, TOP), (right, bus), (lefts[0] + BRANCH, bus)]
    lines = [(core, line([places[0], *ends]))]
    stations = list(zip(row, places, strict=True))
    drawn = [Track(core, (LEFT - RADIUS, TOP - TITLE + 8), stations, "below")]
    for (track, labs), x in zip(others, lefts, strict=True):
        places = column(x, bus + 36 + TITLE, labs)
        lines.append((track, line([(x + BRANCH, bus), (x, bus), places[-1]])))
        drawn.append(in_column(track, labs, places))
    bottoms = [bus + TITLE + ROW * len(labs) + 16 for _, labs in others]
    top, x = min(zip(bottoms, lefts, strict=True))
    height = max(*bottoms, top + LEGEND)
    return Drawing("wide", right + 10, height, lines, drawn, (x, top, COLUMN - 40, height - top))


def narrow() -> Drawing:
    """All tracks are columns, one below the other, and the core's line leads along them."""
    (core, first), *others = tracks().items()
    lines: list[tuple[str, str]] = []
    drawn, y = [in_column(core, first, column(LEFT, TOP, first))], TOP + ROW * len(first)
    for track, labs in others:
        places = column(LEFT + BRANCH, y + BRANCH + TITLE, labs)
        lines.insert(0, (core, line([(LEFT, TOP), (LEFT, y), (LEFT + BRANCH / 2, y)])))
        branch = [(LEFT + BRANCH / 2, y), (LEFT + BRANCH, y), places[-1]]
        lines.append((track, line(branch)))
        drawn.append(in_column(track, labs, places))
        y += BRANCH + TITLE + ROW * len(labs)
    return Drawing("narrow", 330, y + 70, lines, drawn, (LEFT, y - 20, 300, 90))


def column(x: float, top: float, labs: Sequence[Lesson]) -> list[Point]:
    return [(x, top + ROW * i) for i in range(len(labs))]


def in_column(track: str, labs: Sequence[Lesson], places: Sequence[Point]) -> Track:
    x, y = places[0]
    return Track(track, (x + RADIUS + 8, y - TITLE + 12), list(zip(labs, places, strict=True)))


def line(points: Sequence[Point]) -> str:
    """Return the path of a line with round corners."""
    path = "M{},{}".format(*points[0])
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        path += "L{},{} Q{},{} {},{}".format(*near(corner, before), *corner, *near(corner, after))
    return path + "L{},{}".format(*points[-1])


def near(corner: Point, other: Point) -> Point:
    """Return the point on the way from a corner to another point where the round part ends."""
    (x, y), (to_x, to_y) = corner, other
    length = max(abs(to_x - x), abs(to_y - y))
    part = min(CORNER, length) / length
    return x + (to_x - x) * part, y + (to_y - y) * part
