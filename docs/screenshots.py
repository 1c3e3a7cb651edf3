"""Take the README's pictures of the real thing: `.venv/bin/python -m docs.screenshots`.

Opens the first lab in JupyterLab, pastes the solution in, runs it and takes docs/lab.png; then runs
timed_generate.py and takes docs/table.png of what it printed. Needs Chromium or Chrome, and a
machine that does nothing else meanwhile.
"""

import html
import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

import workbook
from solutions.generate import generate
from tests.browser import (
    browser_page,
    cell,
    open_notebook,
    paste_over,
    run_all,
    serve,
    wait_until_idle,
)

DOCS = Path(__file__).resolve().parent
LAB = "01_generate/generate.ipynb"


def take_lab(page: Page, address: str) -> None:
    notebook = json.loads((workbook.LABS / LAB).read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    todo = next(i for i, source in enumerate(sources) if "raise NotImplementedError" in source)
    open_notebook(page, address, LAB)
    solution = inspect.getsource(generate).splitlines()
    paste_over(page, todo, "\n".join(line for line in solution if "### " not in line))
    run_all(page, awaited=cell(page, todo + 1).get_by_text("passed").first)
    wait_until_idle(page)
    cell(page, todo).scroll_into_view_if_needed()
    page.screenshot(path=DOCS / "lab.png")


def take_table(page: Page) -> None:
    command = [sys.executable, "timed_generate.py"]
    done = subprocess.run(command, cwd=workbook.ROOT, stdout=subprocess.PIPE, text=True, check=True)
    tables = done.stdout.rstrip().rpartition("\n")[0]  # without the line of JSON that ends them
    style = "display: inline-block; padding: 1em"
    page.set_content(f"<pre style='{style}'>{html.escape(tables)}</pre>")
    page.locator("pre").screenshot(path=DOCS / "table.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, browser_page(1360, 1100, scale=1.5) as page:
        with serve(Path(folder) / "work", Path(folder)) as address:
            take_lab(page, address)
        take_table(page)


if __name__ == "__main__":
    main()
