"""From executed notebooks to the finished site, which holds no line of a solution."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from nbformat import NotebookNode

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, AuthorError
from docs.site.leaks import leaks
from docs.site.pages import write_pages

# Kinds of files that are searched for solutions; the others are pictures and fonts.
TEXTS = {".css", ".html", ".ipynb", ".js", ".json", ".md", ".svg", ".txt"}
STRICT = ["-n", "-W", "--keep-going"]  # a link that leads nowhere is an error
SETTINGS = ROOT / "docs" / "site"


def build(folder: Path, solved: Mapping[str, NotebookNode], with_solutions: bool = False) -> Path:
    """Build the site anew in `folder`; return the folder of its pages. Raises AuthorError."""
    pages, doctrees, html = (folder / name for name in ("pages", "doctrees", "html"))
    for old in (pages, doctrees, html):
        shutil.rmtree(old, ignore_errors=True)
    write_pages(pages, solved, with_solutions)
    strict = [] if with_solutions else STRICT
    command = [sys.executable, "-m", "sphinx", "-q", *strict, "-c", SETTINGS, "-d", doctrees]
    if subprocess.run([*map(str, command), pages, html], cwd=ROOT).returncode:
        raise AuthorError("Sphinx found mistakes in the pages: see above.")
    for lesson in lessons().values():  # to download, without the outputs of its page
        shutil.copyfile(ROOT / "labs" / lesson.notebook, html / "labs" / lesson.notebook)
    if not with_solutions and (found := leaked(html)):
        raise AuthorError("The site would show solutions:\n" + "\n".join(found))
    return html


def leaked(html: Path) -> list[str]:
    """Return each line of a solution in any text of a site, after the file that holds it."""
    texts = [path for path in sorted(html.rglob("*")) if path.suffix in TEXTS]
    return [
        f"{path.relative_to(html)}: {line}"
        for path in texts
        for line in leaks(path.read_text(encoding="utf-8"))
    ]
