"""Write the pages that Sphinx makes the site of, as Markdown and notebooks."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, SOLUTIONS
from docs.site.conf import REPOSITORY
from docs.site.front import front_page
from docs.site.grafted import grafted
from docs.site.links import rewritten

GPT = """# gpt.py

The model, without a cache: the file to read first. Every lab builds on it.

```python
{}
```
"""
ABOUT = """

```{{note}}
This is the lab as you get it, with your parts as TODOs. The pictures and outputs are those of a run
with the reference solution. [Set up the course](../../index.md#two-commands) to work on it: the
<a href="{}" download>notebook alone</a> needs the other files of the project.
```
"""
API = """# {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
   :undoc-members:
   :show-inheritance:
```
"""
SCRIPTS = """
<script src="../_static/filters.js"></script>
<script src="../_static/sortable.js"></script>
"""
TEACHING = ["docs/workshops.md", "autograder/README.md", "docs/security.md", "docs/cluster.md"]


def write_pages(
    folder: Path, solved: Mapping[str, NotebookNode], with_solutions: bool = False
) -> None:
    """Write all pages into an empty folder.

    solved: the executed notebooks by the name of their lesson. Other lessons have no outputs.
    """
    labs = {f"labs/{lesson.notebook}": lesson for lesson in lessons().values()}
    texts = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "autograder" / "README.md"]
    pages = {"gpt.md": GPT.format((ROOT / "gpt.py").read_text(encoding="utf-8"))}
    pages |= {inside(path): path.read_text(encoding="utf-8") for path in texts}
    api = solution_pages() if with_solutions else {}
    menu = {
        "The labs": list(labs),
        "To read": [page for page in pages if page not in TEACHING],
        "For instructors": [*TEACHING, *api],
    }
    pages["docs/survey.md"] += SCRIPTS
    pages |= {"index.md": front_page(menu, with_solutions), **api}
    pictures = [inside(path) for path in (ROOT / "docs").glob("*.png")]
    site = {*labs, *pages, *pictures}
    for path, text in pages.items():
        text = rewritten(text, path, site, REPOSITORY)
        with_folder(folder / path).write_text(text, encoding="utf-8")
    for path in pictures:
        shutil.copyfile(ROOT / path, with_folder(folder / path))
    for path, lesson in labs.items():
        lab = nbformat.read(ROOT / path, as_version=4)
        lab.cells[0].source += ABOUT.format(Path(lesson.notebook).name)
        for cell in lab.cells:
            if cell.cell_type == "markdown":
                cell.source = rewritten(cell.source, path, site, REPOSITORY)
            elif cell.metadata.get("jupyter", {}).get("source_hidden"):
                cell.metadata.tags = ["hide-input"]
        if lesson.name in solved:
            lab = grafted(lab, solved[lesson.name])
        nbformat.write(lab, with_folder(folder / path))


def solution_pages() -> dict[str, str]:
    """Return a page for every module of the reference, by its path."""
    modules = [path for path in SOLUTIONS.rglob("*.py") if path.stem != "__init__"]
    names = [inside(path).removesuffix(".py") for path in sorted(modules)]
    return {f"{name}.md": API.format(name=name.replace("/", ".")) for name in names}


def inside(path: Path) -> str:
    """Return a file's path in the project."""
    return path.relative_to(ROOT).as_posix()


def with_folder(path: Path) -> Path:
    """Return the path of a file to write, whose folder then exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
