"""Take the README's pictures of the real thing: `.venv/bin/python -m docs.screenshots`.

Draws docs/timeline.png and docs/blocks.png of the reference's objects, as labs 3 and 4 do of the
learner's. Opens the first lab in JupyterLab, pastes the solution in, runs it and takes
docs/lab.png; then runs timed_generate.py and takes docs/table.png of what it printed. Needs
Chromium or Chrome, and a machine that does nothing else meanwhile.
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
from solutions.batching import generate_continuous, generate_static
from solutions.generate import generate
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager
from tests.common.browser import (
    browser_page,
    cell,
    open_notebook,
    paste_over,
    run_all,
    serve,
    wait_until_idle,
)
from visuals.batching import timelines
from visuals.paged_attention import show_blocks

DOCS = Path(__file__).resolve().parent
LAB = "01_generate/generate.ipynb"


def draw_timeline() -> None:
    """Seven requests in four slots; their words make no difference to it."""
    model = CachedLMHead.from_pretrained("fable")
    requests = [[0]] * 7, [4, 8, 3, 5, 5, 4, 3]
    static = generate_static(model, *requests, slots=4)
    continuous = generate_continuous(model, *requests, slots=4)
    traces = {"static": static.trace, "continuous": continuous.trace}
    timelines(traces).savefig(DOCS / "timeline.png", dpi=150)


def draw_blocks() -> None:
    """Two requests in a pool whose blocks have been used before, so that they lie about in it."""
    texts = [
        "Alan Turing is a computer scientist and mathematician renowned",
        "Artificial intelligence is the future of technology",
    ]
    words = {request: text.split() for request, text in enumerate(texts)}
    manager = BlockManager(num_blocks=8, block_size=4)
    for earlier in range(8):
        manager.allocate(earlier, num_tokens=4)
    for earlier in (7, 4, 1, 6, 0, 3, 5, 2):
        manager.free(earlier)
    for request, text in words.items():
        manager.allocate(request, num_tokens=len(text))
    show_blocks(manager, words, "two requests").savefig(DOCS / "blocks.png", dpi=150)


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
    draw_timeline()
    draw_blocks()
    with tempfile.TemporaryDirectory() as folder, browser_page(1360, 1100, scale=1.5) as page:
        with serve(Path(folder) / "work", Path(folder)) as address:
            take_lab(page, address)
        take_table(page)


if __name__ == "__main__":
    main()
