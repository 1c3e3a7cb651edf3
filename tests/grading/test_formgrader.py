"""nbgrader's formgrader in a real browser, as an instructor goes through it."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.common.browser import browser_page
from tests.common.course import Course

LAB = "01_generate"


@pytest.mark.needs("chromium")
@pytest.mark.slow
def test_a_submission_is_graded_by_its_button_and_its_prose_by_hand(tmp_path: Path) -> None:
    course = Course(tmp_path)
    course.submit("ada", LAB, course.solved(LAB).read_bytes())
    with course.formgrader() as formgrader, browser_page() as page:
        row = page.locator("tbody tr", has_text="ada").first
        page.goto(f"{formgrader}/manage_submissions/{LAB}")
        row.locator("td.autograde a").click()
        done = page.locator(".modal.in, .modal.show").first
        expect(done).to_contain_text("Successfully autograded")
        page.get_by_role("button", name="OK").click()
        expect(row).to_contain_text("needs manual grading")
        expect(row).to_contain_text("8 / 12")

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
        expect(row).to_contain_text("graded")
        expect(row).to_contain_text("11.5 / 12")
    assert course.scores("ada", LAB)["two_complaints"] == 1.5
