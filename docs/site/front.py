"""The front page: what the course is, continuous batching as it moves, two commands, all labs."""

import re
from collections.abc import Iterable, Mapping
from html import escape

from autograder.text.lesson import Lesson, lessons
from autograder.text.reference import ROOT
from docs.site.animation import draw, runs
from start.words import duration, title

PAGE = """# {title}

{about}

{instructors}

<figure class="site-run">
<label><input type="checkbox"> pause</label>
{picture}
<figcaption>Continuous batching, which you build in lab 3: seven requests share four slots, and a
slot takes the next request in the step after its last one has ended. This run needs {continuous}
steps. Static batches, which wait for their longest request, need {static}.</figcaption>
</figure>

## Two commands

{commands}

## The labs

Every lab is here as you will get it: your parts are TODOs. The pictures and outputs are those of a
run with the reference solution.

<div class="site-cards">
{cards}
</div>

## What it wins

{chart}

One run on two cores of an AMD EPYC; [all results](docs/results.md), with the commands that measure
them.

{menu}
"""

FOR_INSTRUCTORS = """```{warning}
This site holds the reference solutions, at the end of the menu. It is for instructors.
```"""


def front_page(menu: Mapping[str, Iterable[str]], with_solutions: bool) -> str:
    """Return the front page in Markdown, with links as from the repository's README.

    menu: the site's pages by the title of their group, as paths of their files.
    """
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = readme.split("## Two commands\n")[1].split("\n## ")[0].strip()
    continuous, static = runs()
    return PAGE.format(
        title=readme.partition("\n")[0].removeprefix("# "),
        about=readme.split("\n\n")[1],
        picture=draw(continuous),
        continuous=len(continuous),
        static=len(static),
        commands=commands,
        instructors=FOR_INSTRUCTORS if with_solutions else "",
        cards="\n".join(map(card, lessons().values())),
        chart=chart(*re.findall(r'alt="(Tokens[^"]*)"', readme)),
        menu="\n\n".join(toctree(title, pages) for title, pages in menu.items()),
    )


def card(lesson: Lesson) -> str:
    return (
        f'<a class="site-card track-{lesson.track}" '
        f'href="labs/{lesson.notebook.removesuffix(".ipynb")}.html">'
        f"<span>{lesson.number} · {title(lesson)}</span><small>{duration(lesson.minutes)}</small>"
        f"<strong>{escape(lesson.figure)}</strong><em>{escape(lesson.wins)}</em></a>"
    )


def chart(words: str) -> str:
    """Return the chart, in the theme's light and dark version."""
    looks = {"docs/chart.png": "only-light", "docs/chart-dark.png": "only-dark"}
    return "\n\n".join(
        f"```{{image}} {file}\n:class: {look}\n:alt: {words}\n```" for file, look in looks.items()
    )


def toctree(title: str, pages: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"])
