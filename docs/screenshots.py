"""Make the README's pictures: `.venv/bin/python -m docs.screenshots`.

Draws docs/timeline.png from the reference's objects, as lab 3 does from the learner's. Opens the
first lab in JupyterLab, pastes the solution in, runs it and takes docs/lab.png. Opens the server's
page in the middle of a burst of requests and takes docs/server.png. Then runs timed_generate.py
with other engines, which draws docs/chart.png and docs/chart-dark.png. Needs Chromium or Chrome,
the engines of `make timed ARGS=--peers`, and a machine that is otherwise idle.
"""

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
from solutions.server.here import serve_here
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


def take_server() -> None:
    """Two finished texts, and a burst at the moment when the pool is fullest."""
    with serve_here(technique="prefix") as server, browser_page(1280, 800, scale=1.5) as page:
        page.goto(server.url)
        for name, value in {"n": 2, "max_tokens": 80, "seed": 7}.items():
            page.locator(f"#{name}").fill(str(value))
        page.get_by_role("button", name="Write").click()
        page.get_by_label("probability").check()
        page.get_by_role("button", name="Remove").nth(1).wait_for()
        page.get_by_role("button", name="Send 40 texts").click()
        page.locator("#waiting .waits", has_text="preempted").first.wait_for()
        page.screenshot(path=DOCS / "server.png", full_page=True)


def draw_chart() -> None:
    command = [sys.executable, "timed_generate.py", "--peers", "--plot", str(DOCS / "chart.png")]
    subprocess.run(command, cwd=workbook.ROOT, check=True)


def main() -> None:
    draw_timeline()
    with (
        tempfile.TemporaryDirectory() as folder,
        browser_page(1360, 1100, scale=1.5) as page,
        serve(Path(folder) / "work", Path(folder)) as address,
    ):
        take_lab(page, address)
    take_server()
    draw_chart()


if __name__ == "__main__":
    main()
