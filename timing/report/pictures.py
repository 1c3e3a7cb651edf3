"""The pictures that a notebook's cells have shown, as data URIs, which a page can't run."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 2  # of one notebook
LIMIT = 8_000_000  # bytes of all of them on a page
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """section: the last heading above it."""

    lab: str
    section: str
    uri: str


def pictures_in(notebook: Path) -> list[Picture]:
    """Return the last picture of each of the last sections that have one.

    There are none where the notebook is missing or isn't one.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        uris = last_uris(cells)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return [Picture(notebook.stem, *both) for both in uris.items()][-MOST:]


def last_uris(cells: Iterable[Any]) -> dict[str, str]:
    """Return the last picture of each section, by its heading."""
    section, found = "", {}
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for heading in re.findall(r"^#+ (.+)", "".join(cell["source"]), re.MULTILINE):
                section = heading.replace("`", "")
        for output in cell.get("outputs", []):
            if uri := uri_of(output.get("data", {})):
                found[section] = uri
    return found


def uri_of(data: dict[str, Any]) -> str | None:
    """Return the picture of an output, None if it has none. Raises ValueError if it is broken."""
    png, svg = ("".join(data.get(f"image/{kind}", "")) for kind in ("png", "svg+xml"))
    if (image := base64.b64decode(png)).startswith(PNG):
        return f"data:image/png;base64,{base64.b64encode(image).decode()}"
    if "<svg" in svg:
        return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    return None


def fitting(pictures: Sequence[Picture]) -> list[Picture]:
    """Leave out the largest pictures if all together exceed the limit."""
    fit, total = [], 0
    for picture in sorted(pictures, key=lambda picture: len(picture.uri)):
        total += len(picture.uri)
        fit += [picture] if total <= LIMIT else []
    return [picture for picture in pictures if picture in fit]
