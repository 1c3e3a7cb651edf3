"""The page in a real browser: it writes, stops, colors, shows the engine and says what is wrong."""

import json
import os
import re
import time

import pytest
from playwright.sync_api import expect

from solutions.server.here import serve_here
from tests.common.browser import LAUNCH, find_browser
from tests.common.clients import is_whole

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
TOKENS = "#texts .token"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    if find_browser() is None:
        reason = "no Chromium or Chrome on the path; install one to run the tests in a browser"
        if os.environ.get("CI"):
            pytest.fail(f"CI is set, and there is {reason}")
        pytest.skip(reason)
    with sync_playwright() as playwright:
        expect.set_options(timeout=30_000)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=LAUNCH)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Open a server's page in a fresh browser. In the end, nothing may be in its console, and
    every request must have been for the server."""
    contexts, said, asked = [], [], set()

    def open_page(server, width=1280, **given):
        context = browser.new_context(viewport={"width": width, "height": 900}, **given)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.partition(":")[0]))
        page.on("request", lambda request: asked.add(request.url))
        page.goto(server.url)
        page.locator("#engine").wait_for()
        page.origin = server.url
        return page

    open_page.said = said
    yield open_page
    origin = contexts[0].pages[0].origin
    for context in contexts:
        context.close()
    assert said == []
    assert {url for url in asked if "://" in url and not url.startswith(origin)} == set()
