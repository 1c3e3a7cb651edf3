"""The workbook in a real browser: starts it as `make lab` does, and drives Chromium.

Used by test_browser.py, and by docs/screenshots.py, which takes the pictures of the README.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120_000  # milliseconds; a machine under load takes its time
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
LAUNCH = [
    "--no-sandbox",  # in a container, as root, there is none to be had
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},  # every cell in the page
}


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


@contextmanager
def serve(work: Path, home: Path) -> Iterator[str]:
    """JupyterLab over `work`, its own settings kept in `home`; yields the server's address."""
    for name, values in SETTINGS.items():
        path = home / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    folders = {
        "JUPYTER_CONFIG_DIR": home / "config",
        "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": home / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
        "IPYTHONDIR": home / "ipython",
        "MINE_FOLDER": home / "mine",  # what a check keeps of passed code
    }
    environment = {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    command = "tests.common.start_lab", str(work)
    with served(home / "server.log", *command, cwd=ROOT, env=environment) as address:
        yield address


@contextmanager
def served(log: Path, *command: str, **place: Any) -> Iterator[str]:
    """The address of a server that a module starts, without a browser or a token.

    command: the module and its arguments. log: what the server says goes there.
    """
    address = f"http://127.0.0.1:{free_port()}"
    options = ["--no-browser", f"--port={address.rpartition(':')[2]}", "--ServerApp.port_retries=0"]
    options += ["--IdentityProvider.token="]
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *command, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            **place,
        )
        try:
            wait_until_served(f"{address}/api", server, log)
            yield address
        finally:
            server.terminate()
            server.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_served(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(600):
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


@contextmanager
def browser_page(width: int = 1400, height: int = 1000, scale: float = 1) -> Iterator[Page]:
    """A page of a fresh browser that may use its clipboard."""
    with sync_playwright() as playwright:
        expect.set_options(timeout=TIMEOUT)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=LAUNCH)
        context = browser.new_context(
            viewport={"width": width, "height": height},
            device_scale_factor=scale,
            permissions=["clipboard-read", "clipboard-write"],
        )
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.add_locator_handler(page.locator(".jp-Dialog").last, accept, no_wait_after=True)
        yield page
        browser.close()


def accept(dialog: Locator) -> None:
    """Answer a dialog that covers the page, until it is gone, as a person would.

    On a busy machine JupyterLab asks to wait for a kernel that is not ready yet, and a dialog that
    is just appearing may not hear the first click.
    """
    for _ in range(10):
        print(f"JupyterLab asks: {dialog.inner_text()}")
        dialog.locator(".jp-Dialog-button").last.click()
        with suppress(PlaywrightTimeout):
            dialog.wait_for(state="hidden", timeout=3_000)
            return


def open_notebook(page: Page, address: str, name: str) -> None:
    """Open a notebook of the work folder, and wait until its kernel is there.

    The status bar tells so; before, the notebook's own sign says idle, too.
    """
    page.goto(f"{address}/lab/tree/{name}?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.get_by_text("(ipykernel) | Idle").wait_for()


def wait_until_idle(page: Page) -> None:
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()


def run_all(page: Page, awaited: Locator) -> None:
    """Run every cell, until what is awaited is there.

    On a busy machine the menu of a page that is still loading may lose the request, and a kernel
    whose connection is not settled the cells behind the first. Then no cell is waiting for its
    turn, and the request is made again, as a person would.
    """
    for _ in range(6):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        if appears_while_cells_run(page, awaited):
            return
        page.keyboard.press("Escape")  # a menu that stayed open would catch the next click
    raise RuntimeError("Run All Cells did not bring what is awaited, six times.")


def appears_while_cells_run(page: Page, awaited: Locator) -> bool:
    starred = page.locator(".jp-Notebook .jp-InputPrompt", has_text="[*]")
    dialogs = page.locator(".jp-Dialog")
    seconds_at_rest = 0
    while seconds_at_rest < 10:
        if awaited.count():
            return True
        if dialogs.count():  # a page answers it by itself only before a click, and here is none
            accept(dialogs.last)
        page.wait_for_timeout(1000)
        seconds_at_rest = 0 if starred.count() else seconds_at_rest + 1
    return False


def cell(page: Page, index: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(index)


def paste_over(page: Page, index: int, text: str) -> None:
    """Replace what stands in a cell, as a person does: select all of it, and paste."""
    page.evaluate("text => navigator.clipboard.writeText(text)", text)
    cell(page, index).locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Control+V")
