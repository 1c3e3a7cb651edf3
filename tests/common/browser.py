"""Start the workbook as `make lab` does, and drive it with Chromium.

Used by test_browser.py, and by docs/screenshots.py, which takes the pictures for the README.
"""

import json
import os
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

from tests.common.tools import find_browser

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120_000  # milliseconds; a machine under load is slow
LAUNCH = [
    "--no-sandbox",  # none is available as root in a container
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


@contextmanager
def serve(work: Path, home: Path) -> Iterator[str]:
    """Run JupyterLab in `work`, with its settings in `home`. Yield the server's address."""
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
        "MINE_FOLDER": home / "mine",  # where a check keeps code that has passed
    }
    environment = {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    command = "tests.common.start_lab", str(work)
    with served(home / "server.log", *command, cwd=ROOT, env=environment) as address:
        yield address


@contextmanager
def served(log: Path, *command: str, **place: Any) -> Iterator[str]:
    """Start a server without a browser or a token. Yield its address.

    command: the module to run and its arguments. log: a file for the server's output.
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
    """Yield a page in a fresh browser, with access to the clipboard."""
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
    """Click a dialog that covers the page until it is gone, as a user would.

    On a busy machine, JupyterLab asks whether to wait for a kernel that is not ready yet, and a
    dialog that is just appearing may miss the first click.
    """
    for _ in range(10):
        print(f"JupyterLab asks: {dialog.inner_text()}")
        dialog.locator(".jp-Dialog-button").last.click()
        with suppress(PlaywrightTimeout):
            dialog.wait_for(state="hidden", timeout=3_000)
            return


def open_notebook(page: Page, address: str, name: str) -> None:
    """Open a notebook of the work folder, and wait until its kernel is ready.

    Only the status bar shows this; the notebook's own indicator says idle earlier, too.
    """
    page.goto(f"{address}/lab/tree/{name}?reset")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for()
    page.get_by_text("(ipykernel) | Idle").wait_for()


def wait_until_idle(page: Page) -> None:
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()


def run_all(page: Page, awaited: Locator) -> None:
    """Run all cells, and wait until the awaited element is there.

    On a busy machine, a page that is still loading may lose the menu's request, and a kernel whose
    connection is not settled may lose all cells after the first. Then no cell is waiting to run,
    and the request is repeated, as a user would.
    """
    for _ in range(6):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        if appears_while_cells_run(page, awaited):
            return
        page.keyboard.press("Escape")  # a menu that stayed open would catch the next click
    raise RuntimeError("Run All Cells was tried six times, and the awaited element never appeared.")


def appears_while_cells_run(page: Page, awaited: Locator) -> bool:
    starred = page.locator(".jp-Notebook .jp-InputPrompt", has_text="[*]")
    dialogs = page.locator(".jp-Dialog")
    seconds_at_rest = 0
    while seconds_at_rest < 10:
        if awaited.count():
            return True
        if dialogs.count():  # the page's handler only acts before a click, and nothing clicks here
            accept(dialogs.last)
        page.wait_for_timeout(1000)
        seconds_at_rest = 0 if starred.count() else seconds_at_rest + 1
    return False


def cell(page: Page, index: int) -> Locator:
    return page.locator(".jp-Notebook .jp-Cell").nth(index)


def paste_over(page: Page, index: int, text: str) -> None:
    """Replace a cell's text as a user does: select all, and paste."""
    page.evaluate("text => navigator.clipboard.writeText(text)", text)
    cell(page, index).locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Control+V")
