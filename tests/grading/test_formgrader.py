"""nbgrader's formgrader in a real browser, as an instructor goes through it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from autograder.course.reference import ROOT
from tests.common.browser import browser_page, find_browser, free_port, wait_until_served
from tests.common.course import Course

LAB = "01_generate"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_browser() is None and "CI" not in os.environ, reason="there is no Chromium or Chrome"
    ),
]


@pytest.fixture
def course(tmp_path: Path) -> Course:
    course = Course(tmp_path)
    course.submit("ada", LAB, course.solved(LAB).read_bytes())
    return course


@pytest.fixture
def formgrader(course: Course, tmp_path: Path) -> Iterator[str]:
    """The address of formgrader, started as autograder/README.md says, without JupyterLab."""
    address, log = f"http://127.0.0.1:{free_port()}", tmp_path / "server.log"
    options = ["--ServerApp.root_dir=..", "--no-browser", "--allow-root", "--ip=127.0.0.1"]
    options += [f"--port={address.rpartition(':')[2]}", "--IdentityProvider.token="]
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyter", "server", *options],
            cwd=course.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": os.defpath},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_served(f"{address}/api", server, log)
            yield f"{address}/formgrader"
        finally:
            server.terminate()
            server.wait(30)


def test_a_submission_is_graded_by_its_button_and_its_prose_by_hand(
    formgrader: str, course: Course
) -> None:
    with browser_page() as page:
        press_autograde(page, formgrader)
        expect(row(page)).to_contain_text("needs manual grading")
        expect(row(page)).to_contain_text("8 / 12")

        page.goto(f"{formgrader}/gradebook/{LAB}/generate")
        page.locator("td.name a").first.click()
        card = page.locator(".output_html", has_text="generate.metrics: passed, 3 of 3 points")
        expect(card.first).to_be_visible()
        for answer, points in {"last_row": "2", "two_complaints": "1.5"}.items():
            score = page.locator(f"input.score#{answer}")
            expect(score).to_contain_class("needs_manual_grade")  # from now on it is listened to
            score.fill(points)
            with page.expect_response(lambda found: "/api/grade/" in found.url):
                score.press("Tab")

        page.goto(f"{formgrader}/manage_submissions/{LAB}")
        expect(row(page)).to_contain_text("graded")
        expect(row(page)).to_contain_text("11.5 / 12")
    assert course.scores("ada", LAB)["two_complaints"] == 1.5


def press_autograde(page: Page, formgrader: str) -> None:
    page.goto(f"{formgrader}/manage_submissions/{LAB}")
    row(page).locator("td.autograde a").click()
    expect(page.locator(".modal.in, .modal.show").first).to_contain_text("Successfully autograded")
    page.get_by_role("button", name="OK").click()


def row(page: Page):
    return page.locator("tbody tr", has_text="ada").first
