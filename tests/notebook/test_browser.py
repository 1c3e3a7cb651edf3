"""A lab in a real browser, as a learner meets it."""

import inspect
import io
import json
import shutil

import matplotlib.pyplot as plt
import pytest
from playwright.sync_api import expect

import workbook
from autograder.notebook.progress import status_of
from autograder.text.lesson import lessons
from solutions.generate import generate
from tests.common.browser import (
    browser_page,
    cell,
    open_notebook,
    paste_over,
    run_all,
    serve,
    wait_until_idle,
)

LAB = "01_generate/generate.ipynb"
NARROW = 364  # pixels of an output in a window of 480

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("jupyter") / "work"


@pytest.fixture(scope="module")
def address(work):
    with serve(work, work.parent) as address:
        yield address


@pytest.fixture
def page(address, work, request):
    """The first lab as `make lab` copied it, just opened, none of its cells run."""
    own_copy = f"01_generate/{request.node.name}.ipynb"
    shutil.copy(work / LAB, work / own_copy)
    with browser_page() as page:
        open_notebook(page, address, own_copy)
        yield page


@pytest.fixture(scope="module")
def cells():
    cells = json.loads((workbook.LABS / LAB).read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def first(cells, text):
    """The index of the first code cell that holds `text`."""
    return next(
        i for i, cell in enumerate(cells) if cell["cell_type"] == "code" and text in cell["source"]
    )


def outputs(page, index):
    return cell(page, index).locator(".jp-OutputArea-output")


def has_run(page, index):
    return "[ ]" not in cell(page, index).locator(".jp-InputPrompt").inner_text()


@pytest.mark.slow
def test_run_all_stops_at_the_first_check(page, cells):
    check = first(cells, 'check("')
    run_all(page, awaited=outputs(page, check))
    expect(outputs(page, check).first).to_contain_text("not attempted")
    wait_until_idle(page)
    code = [i for i, found in enumerate(cells) if found["cell_type"] == "code"]
    assert [i for i in code if has_run(page, i)] == [i for i in code if i <= check]
    assert "Traceback" not in "".join(outputs(page, check).all_inner_texts())


DIALOGS = """
<button onclick="this.textContent = 'clicked'">below</button>
<style>.jp-Dialog { position: fixed; inset: 0; background: white }</style>
<script>
for (const deaf of [0, 2]) {
  const dialog = document.createElement("div");
  let heard = 0;
  dialog.className = "jp-Dialog";
  dialog.innerHTML = '<button class="jp-Dialog-button">Wait</button>';
  dialog.firstChild.onclick = () => { if (heard++ >= deaf) dialog.remove(); };
  document.body.append(dialog);
}
</script>
"""


@pytest.mark.slow
def test_dialogs_over_the_page_are_answered_until_they_are_gone():
    with browser_page() as page:
        page.set_content(DIALOGS)
        below = page.get_by_role("button", name="below")
        below.click()
        expect(page.get_by_text("clicked")).to_be_visible()


def test_with_the_solution_pasted_in_the_check_passes(page, cells):
    todo, check = first(cells, "raise NotImplementedError"), first(cells, 'check("')
    paste_over(page, todo, inspect.getsource(generate))
    run_all(page, awaited=outputs(page, check))
    expect(outputs(page, check).first).to_contain_text("passed")


def ground(picture):
    """The color of a picture's corner as it is shown, dark (0) to light (1)."""
    return plt.imread(io.BytesIO(picture.screenshot()))[2, 2, :3].mean()


@pytest.mark.slow
def test_status_fits_a_narrow_window():
    with browser_page(width=NARROW) as page:
        for lesson in lessons().values():
            page.set_content(
                f"<body style='font: 14px sans-serif'>{status_of(lesson)._repr_html_()}"
            )
            assert page.evaluate("document.documentElement.scrollWidth") <= NARROW, lesson.lab


@pytest.mark.slow
def test_a_slider_moves_its_picture_which_is_dark_or_light_as_the_system_is(page, cells):
    slider = first(cells, "explore_next_token(")
    handle = cell(page, slider).locator(".noUi-handle")
    picture = cell(page, slider).locator(".jp-OutputArea-output img").first
    run_all(page, awaited=picture)
    wait_until_idle(page)
    before = picture.get_attribute("src")
    at_its_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    handle.press("ArrowLeft" if at_its_end else "ArrowRight")
    expect(picture).not_to_have_attribute("src", before)
    for scheme, is_light in (("dark", "false"), ("light", "true")):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("body")).to_have_attribute("data-jp-theme-light", is_light)
        assert (ground(picture) > 0.5) == (scheme == "light")
