"""Links to where a learner stopped in each lab."""

import json
from pathlib import Path

from autograder.notebook.passed import Progress, progress_in
from autograder.text.lesson import Card, lessons


def links(folder: Path) -> dict[str, str]:
    """Return the link of each lab, by its name. folder: where the learner's labs are."""
    return {lab: link(progress_in(lesson), folder) for lab, lesson in lessons().items()}


def link(progress: Progress, folder: Path) -> str:
    path = progress.lesson.notebook
    if progress.is_begun and progress.left:
        return path + fragment(progress.left[0], folder / path)
    return path


def fragment(card: Card, notebook: Path) -> str:
    """Return what leads JupyterLab to an exercise's code; "" if the learner's copy has none.

    Not to the card above the code: JupyterLab would open it for editing.
    """
    try:
        cells = iter(json.loads(notebook.read_text(encoding="utf-8"))["cells"])
        next(c for c in cells if "".join(c["source"]).startswith(f"### Exercise: {card.title}"))
        code = next(c for c in cells if c["cell_type"] == "code")
        return f"#cell-id={code['id']}"
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return ""
