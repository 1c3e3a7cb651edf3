"""The front page: what the course is, continuous batching as it moves, two commands, all labs."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from markupsafe import Markup

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from autograder.text.templates import render
from docs.site.animation import draw, runs
from start.words import duration, title

PAGE = Path(__file__).with_name("front.jinja")


def front_page(menu: Mapping[str, Iterable[str]], with_solutions: bool) -> str:
    """Return the front page in Markdown, with links as from the repository's README.

    menu: the site's pages by the title of their group, as paths of their files.
    """
    # Markdown that goes through as it is.
    readme = Markup((ROOT / "README.md").read_text(encoding="utf-8"))
    continuous, static = runs()
    return render(
        PAGE,
        title=readme.partition("\n")[0].removeprefix("# "),
        about=readme.split("\n\n")[1],
        with_solutions=with_solutions,
        picture=draw(continuous),
        continuous=len(continuous),
        static=len(static),
        commands=readme.split("## Two commands\n")[1].split("\n## ")[0].strip(),
        lessons=lessons().values(),
        name=title,
        duration=duration,
        chart=re.findall(r'alt="(Tokens[^"]*)"', readme)[0],
        menu=menu,
    )
