"""The start page in JupyterLab, in a real browser."""

import pytest
from playwright.sync_api import expect

from tests.common.browser import SETTINGS, browser_page, serve


@pytest.mark.needs("chromium")
@pytest.mark.slow
def test_a_link_opens_a_lab_and_coming_back_shows_what_has_passed(tmp_path, pass_all, monkeypatch):
    monkeypatch.delitem(SETTINGS, "@jupyterlab/notebook-extension/tracker")  # as a learner has it
    pass_all("generate.generate")
    with serve(tmp_path / "work", tmp_path) as address, browser_page() as page:
        page.goto(f"{address}/lab/tree/start.ipynb?reset")
        start = page.locator(".start-page")
        on_map = start.locator("svg.wide a", has_text="generate")
        expect(on_map).to_contain_text("1 of 2 passed")
        start.get_by_role("link", name="Go on in lab 1: generate").click()
        expect(page.get_by_text("def metrics(")).to_be_in_viewport()
        pass_all("generate.metrics")
        page.get_by_role("tab", name="start.ipynb").click()
        expect(on_map).to_contain_text("all 2 passed ✓")
        start.get_by_role("link", name="Go on with lab 2: kv cache").click()  # put in by the script
        expect(page.get_by_role("heading", name="Lab 2: the KV cache")).to_be_visible()
        assert len(page.context.pages) == 1
