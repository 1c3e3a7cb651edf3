"""The pictures that a notebook's cells have shown, as data URIs, which a page can't run."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

MOST = 2  # of one notebook
LIMIT = 8_000_000  # bytes of all of them on a page
PNG = b"\x89PNG\r\n\x1a\n"
SHOWN = re.compile(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)"')  # by visuals/style.py


@dataclass(frozen=True)
class Picture:
    """section: the last heading above it. words: what it shows."""

    lab: str
    section: str
    uri: str
    words: str


def pictures_in(notebook: Path) -> list[Picture]:
    """Return the last picture of each of the last sections that have one.

    There are none where the notebook is missing or isn't one.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        found = last_pictures(cells)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return [Picture(notebook.stem, section, *both) for section, both in found.items()][-MOST:]


def last_pictures(cells: Iterable[Any]) -> dict[str, tuple[str, str]]:
    """Return the last picture of each section and its words, by the section's heading."""
    section, found = "", {}
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for heading in re.findall(r"^#+ (.+)", "".join(cell["source"]), re.MULTILINE):
                section = heading.replace("`", "")
        for output in cell.get("outputs", []):
            if both := picture_in(output.get("data", {})):
                found[section] = both
    return found


def picture_in(data: dict[str, Any]) -> tuple[str, str] | None:
    """Return the picture of an output and its words, None if it has none.

    Raises ValueError if it is broken.
    """
    html, png, svg = (
        "".join(data.get(kind, "")) for kind in ("text/html", "image/png", "image/svg+xml")
    )
    words = "A picture from my notebook"
    if shown := SHOWN.search(html):
        words, png = unescape(shown[1]), shown[2]
    if (image := base64.b64decode(png)).startswith(PNG):
        return f"data:image/png;base64,{base64.b64encode(image).decode()}", words
    if "<svg" in svg:
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}", words
    return None


def fitting(pictures: Sequence[Picture]) -> list[Picture]:
    """Leave out the largest pictures if all together exceed the limit."""
    fit, total = [], 0
    for picture in sorted(pictures, key=lambda picture: len(picture.uri)):
        total += len(picture.uri)
        fit += [picture] if total <= LIMIT else []
    return [picture for picture in pictures if picture in fit]
