"""The start page: where to go on, the map of the course, and how far the learner has come."""

import html
import zlib
from collections.abc import Mapping
from pathlib import Path

from autograder.notebook.card import code_marked
from autograder.notebook.passed import Progress, progress_in
from autograder.text.lesson import Lesson, builds_on, lessons
from start.drawing import Map
from start.engine import your_engine
from start.going_on import advice, next_progress
from start.links import links
from start.paths import PATHS, CoursePath
from start.words import duration, numbers, title

FOLDER = Path(__file__).parent
PAGE, REPORT = "start.ipynb", "report.html"


class Page:
    """The page as it is now, for a notebook to show.

    folder: where start.ipynb and the labs are. path: of start.ipynb, as the server names it.
    """

    def __init__(self, folder: Path, path: str = PAGE) -> None:
        self.folder, self.path = folder, path

    def __repr__(self) -> str:
        return " ".join(advice(next_progress())).strip()

    def _repr_html_(self) -> str:
        progress, ways = next_progress(), links(self.folder)
        course = Map(progress.lesson if progress else None, ways).html()
        inner = "".join(
            [
                f"<style>{read('page.css')}</style>",
                where_to_go_on(progress, ways),
                section("The course", summary() + course),
                section("The labs", labs(ways)),
                section("Your engine", your_engine()),
                section("Paths", paths()),
                section("A report of your own", report(self.folder)),
            ]
        )
        script = f"<script>{read('page.js')}</script>"
        return (
            f'<div class="start-page" data-path="{html.escape(self.path)}" '
            f'data-state="{zlib.crc32(inner.encode())}">{inner}{script}</div>'
        )


def show_page() -> None:
    """Show the start page of the folder that the notebook is in."""
    from IPython.display import display  # the server needs none

    display(Page(Path.cwd()))


def read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>{content}</section>"


def where_to_go_on(progress: Progress | None, ways: Mapping[str, str]) -> str:
    text, sentence = (html.escape(words) for words in advice(progress))
    way = html.escape(ways[progress.lesson.lab]) if progress else ""
    button = f'<a class="go" href="{way}">{text}</a>' if progress else ""
    return f'<div class="next">{button}<span>{sentence}</span></div>'


def summary() -> str:
    progresses = [progress_in(lesson) for lesson in lessons().values()]
    exercises = sum(len(progress.states) for progress in progresses)
    passed = sum(len(progress.passed) for progress in progresses)
    earned, points = (sum(p.points[i] for p in progresses) for i in (0, 1))
    time = duration(sum(lesson.minutes for lesson in lessons().values()))
    return (
        f"<p>{len(progresses)} labs, {time} in all. You have passed {passed} of {exercises} "
        f"exercises, and have {earned} of {points} points.</p>"
    )


def labs(ways: Mapping[str, str]) -> str:
    heads = "lab", "what it wins", "time", "builds on", "passed", "points", "questions"
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rows = "".join(row_of(lesson, html.escape(ways[lab])) for lab, lesson in lessons().items())
    return f'<table class="labs"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def row_of(lesson: Lesson, way: str) -> str:
    progress = progress_in(lesson)
    earned, points = progress.points
    red = len(progress.red)
    bases = builds_on(lesson)
    cells = {
        "lab": f'<a href="{way}">{lesson.number} · {title(lesson)}</a>',
        "what it wins": f"<b>{html.escape(lesson.figure)}</b> {html.escape(lesson.wins)}",
        "time": duration(lesson.minutes),
        "builds on": lesson.when or numbers(bases) or "–",
        "passed": f"{len(progress.passed)} of {len(progress.states)}"
        + (f', <span class="red">{red} red again</span>' if red else ""),
        "points": f"{earned} of {points}",
        "questions": len(lesson.questions),
    }
    columns = "".join(f'<td data-head="{head}">{cell}</td>' for head, cell in cells.items())
    return f"<tr>{columns}</tr>"


def paths() -> str:
    return f'<div class="paths">{"".join(map(card_of, PATHS))}</div>'


def card_of(path: CoursePath) -> str:
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in path.contains)
    kind = "many" if len(path.sittings) > 5 else "few"
    return (
        f'<div><h3>{path.title}</h3><p>{code_marked(path.plan)}</p><ul class="{kind}">{lines}</ul>'
        f"<p>In all {duration(path.minutes)}. Left out: {html.escape(path.left_out)}.</p></div>"
    )


def report(folder: Path) -> str:
    newest = f' <a href="{REPORT}">Open your last report</a>.' if (folder / REPORT).exists() else ""
    return (
        "<p>One page to keep or to send: your engine next to the others on your machine, your "
        "pictures and your exercises. Run the cell below this page, or "
        f"<code>python -m timing.report</code> in a terminal.{newest}</p>"
    )
