"""The start page: where to go on, the map of the course, and how far the learner has come."""

from pathlib import Path
from zlib import crc32

from autograder.notebook.passed import progress_in
from autograder.text.lesson import builds_on, lessons
from autograder.text.templates import render
from start import drawing
from start.engine import comparisons
from start.going_on import advice, next_progress
from start.links import links
from start.paths import PATHS
from start.words import duration, numbers, time_of, title

TEMPLATE = Path(__file__).with_name("page.html")
PAGE, REPORT = "start.ipynb", "report.html"
CALLED = (builds_on, crc32, duration, numbers, progress_in, time_of, title)  # by the template


class Page:
    """The page as it is now, for a notebook to show.

    folder: where start.ipynb and the labs are. path: of start.ipynb, as the server names it.
    """

    def __init__(self, folder: Path, path: str = PAGE) -> None:
        self.folder, self.path = folder, path

    def __repr__(self) -> str:
        return " ".join(advice(next_progress())).strip()

    def _repr_html_(self) -> str:
        progress = next_progress()
        return render(
            TEMPLATE,
            path=self.path,
            advice=advice(progress),
            here=progress.lesson if progress else None,
            links=links(self.folder),
            progresses=[progress_in(lesson) for lesson in lessons().values()],
            drawings=[drawing.wide(), drawing.narrow()],
            comparisons=comparisons(),
            paths=PATHS,
            report=REPORT if (self.folder / REPORT).exists() else "",
            layout=drawing,
            **{function.__name__: function for function in CALLED},
        )


def show_page() -> None:
    """Show the start page of the folder that the notebook is in."""
    from IPython.display import display  # the server needs none

    display(Page(Path.cwd()))
