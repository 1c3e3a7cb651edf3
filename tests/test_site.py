"""The site: what its pages show, that they hold no solution, and that they work without a network.

One whole site is built from lab 1's executed notebook; the other labs have no outputs there.
"""

import re
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import expect

from autograder.executed import QUICK, kept
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, AuthorError
from docs.site import __main__ as command
from docs.site import notebooks
from docs.site.animation import described, draw, lives, runs
from docs.site.built import build, leaked
from docs.site.grafted import CODE, STATE, VIEW, grafted
from docs.site.leaks import leaks
from docs.site.links import rewritten
from docs.site.pages import write_pages
from tests.common.browser import browser_page

FIRST = "01_generate/generate.html"
SECRET = "keys = torch.cat([kv_cache[0], keys], dim=2)"  # a line of lab 2's solution

# ------------------------------------------------------------------------- outputs in the labs


def stream(text):
    return new_output("stream", text=text)


def notebook(*cells):
    return new_notebook(cells=[new_code_cell(s, id=id, outputs=o) for id, s, o in cells])


def shown(outputs, widgets=None):
    """Return what the released cell shows if the solved one has these outputs."""
    solved = notebook(("a", "return 1", outputs))
    solved.metadata.widgets = {STATE: {"state": widgets or {}}}
    (cell,) = grafted(notebook(("a", "raise NotImplementedError", [])), solved).cells
    assert cell.source == "raise NotImplementedError"
    return cell.outputs


def test_a_lab_shows_the_outputs_of_the_solved_notebook_below_its_own_code():
    assert shown([stream("passed")]) == [stream("passed")]


def test_an_output_with_a_line_of_a_solution_is_left_out():
    for output in (stream(f"x\n  {SECRET}"), new_output("display_data", {"text/html": SECRET})):
        (note,) = shown([output])
        assert CODE in note.data["text/html"]


def test_labs_of_another_build_than_the_lessons_are_refused():
    with pytest.raises(AuthorError, match="make labs"):
        grafted(notebook(("a", "", [])), notebook(("b", "", [])))


def view(widgets):
    return shown([new_output("display_data", {VIEW: {"model_id": "box"}})], widgets)


def box(*children):
    names = [f"IPY_MODEL_{number}" for number in range(len(children))]
    inside = {str(number): child for number, child in enumerate(children)}
    return inside | {"box": {"model_name": "VBoxModel", "state": {"children": names}}}


def widget(kind, **state):
    return {"model_name": f"{kind}Model", "state": state}


def test_a_slider_and_its_picture_stand_still():
    slider = widget("IntSlider", description="row", min=0, max=8, value=3)
    choice = widget("SelectionSlider", description="size", _options_labels=["4", "16"], index=1)
    picture = widget("HTML", value='<img alt="three bars" src="data:image/png;base64,cG5n">')
    one, other, still, note = view(box(slider, choice, picture))
    assert 'min="0" max="8" value="3"' in one.data["text/html"]
    assert other.data["text/html"].endswith(" 16</label>")
    assert still.data["text/html"] == picture["state"]["value"]
    assert "you can move this" in note.data["text/html"]


def test_a_progress_bar_leaves_nothing():
    assert view(box(widget("HTML", value="100%"), widget("FloatProgress", value=1))) == []


def test_an_unknown_widget_is_refused_by_name():
    with pytest.raises(AuthorError, match="kind ColorPickerModel"):
        view(box(widget("ColorPicker")))


# ------------------------------------------------------------------------- running the notebooks


def test_a_cell_that_fails_is_named_and_costs_only_its_own_outputs(tmp_path, monkeypatch, capsys):
    def run_alone(lesson):
        if lesson.lab == "batching":
            error = CellExecutionError("", "ValueError", "no such slot")
            error.add_note("Code cell 3, which begins 'x = 1':")
            raise error
        return lesson.lab

    shown = {}
    monkeypatch.setattr(sys, "argv", ["docs.site"])
    monkeypatch.setattr(notebooks, "kept", lambda lesson, _: lesson.number == 1)
    monkeypatch.setattr(notebooks, "run_alone", run_alone)
    monkeypatch.setattr(command, "build", lambda folder, solved, _: shown.update(solved))
    monkeypatch.setattr(command, "replace", lambda *_: None)
    monkeypatch.setattr(command, "SITE", tmp_path)
    assert command.main() == 1
    assert {*shown} == {lesson.name for lesson in lessons().values()} - {"03_batching"}
    printed = capsys.readouterr()
    failed = r"03_batching, 0 s, failed. Code cell 3, which .*:\n +ValueError: no such slot"
    assert re.search(failed, printed.out)
    count = len(lessons())
    begun = re.findall(rf"^(\d+) of {count}", printed.out, re.MULTILINE)
    assert begun == [str(n) for n in range(2, count + 1)]
    assert re.findall(r"Kept.*: (.*)\.", printed.out) == ["01_generate"]
    assert "03_batching" in printed.err


# --------------------------------------------------------------------- leaks, links, the picture


def test_a_line_of_a_solution_is_found_in_any_form():
    colored = "".join(f"<span>{part}</span> " for part in re.split(r"(\W)", SECRET))
    assert leaks(f"<p>\n{colored}</p>") == [SECRET]
    assert leaks('if "a"<b: x\n' + SECRET.replace(" ", "  ")) == [SECRET]
    assert leaks((ROOT / "gpt.py").read_text()) == []


def test_a_site_with_a_solution_is_found_out(tmp_path):
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "planted.js").write_text(SECRET)
    (tmp_path / "index.html").write_text("<p>A page</p>")
    assert leaked(tmp_path) == [f"pages/planted.js: {SECRET}"]


@pytest.mark.parametrize(
    ("link", "new", "published"),
    [
        ("[a](results.md#x)", "[a](results.md#x)", None),
        ("[a](../README.md#the-labs)", "[a](../index.md#the-labs)", None),
        ("[`gpt`](../gpt.py)", "[`gpt`](../gpt.md)", None),
        ("[a](https://b.c)", "[a](https://b.c)", None),
        ("[a](#here)", "[a](#here)", None),
        ("[a](../solutions/x.py)", "a", "[a](https://h/blob/main/solutions/x.py)"),
        ("[a][b]\n\n[b]: ../x.py\n", "a\n\n", "[a][b]\n\n[b]: https://h/blob/main/x.py\n"),
        ("```\nf[a](b)\n```", "```\nf[a](b)\n```", None),
    ],
)
def test_links_lead_to_the_site_or_to_the_repository(link, new, published):
    site = {"docs/results.md", "index.md", "gpt.md"}
    assert rewritten(link, "docs/a.md", site, "") == new
    assert rewritten(link, "docs/a.md", site, "https://h") == (published or new)


def test_the_picture_shows_every_step_of_the_run():
    trace = [[0, 1], [0, 2], [None, 2]]
    assert lives(trace) == {0: (0, 0, 1), 1: (1, 0, 0), 2: (1, 1, 2)}
    assert "C in slot 2, steps 2 to 3" in described(trace)
    assert draw(trace).count('class="served') == 5
    continuous, static = runs()
    assert len(continuous) < len(static)


def test_the_solutions_are_there_only_if_asked_for(tmp_path):
    write_pages(tmp_path / "students", {})
    write_pages(tmp_path / "instructors", {}, with_solutions=True)
    name, warning = "solutions/engine/engine.md", "holds the reference solutions"
    assert not (tmp_path / "students" / name).exists()
    assert "automodule:: solutions.engine" in (tmp_path / "instructors" / name).read_text()
    assert warning not in (tmp_path / "students" / "index.md").read_text("utf-8")
    assert warning in (tmp_path / "instructors" / "index.md").read_text("utf-8")


# ------------------------------------------------------------------------------- the whole site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    lesson = lessons()["generate"]
    solved = kept(lesson, QUICK) or notebooks.run_alone(lesson, QUICK)
    return build(tmp_path_factory.mktemp("site"), {lesson.name: solved})


def pages_of(site: Path) -> dict[Path, str]:
    """Return the text of every page; the theme keeps templates with the same ending."""
    pages = [page for page in site.rglob("*.html") if "_static" not in page.parts]
    return {page: page.read_text(encoding="utf-8") for page in pages}


@pytest.mark.needs("sphinx")
@pytest.mark.slow
def test_every_link_leads_somewhere(site):
    pages, broken = pages_of(site.resolve()), []
    assert len(pages) > len(lessons())
    for page, text in pages.items():
        for found in set(re.findall(r'\s(?:href|src)="([^"]*)"', text)):
            link = urlsplit(unescape(found))
            if link.scheme:
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            there = pages.get(target, "")
            lost = there and link.fragment and f'id="{link.fragment}"' not in there
            if lost or not target.exists():
                broken.append((page.name, found))
    assert broken == []


@pytest.fixture(scope="module")
def page(site):
    """A page in a browser, with the site's files and nothing else to fetch."""
    with browser_page() as page:
        fetched, page.site = [], site
        page.on("request", lambda request: fetched.append(request.url))
        yield page
        assert [url for url in fetched if not url.startswith((site.as_uri(), "data:"))] == []


def go(page, path):
    page.goto(f"{page.site.as_uri()}/{path}")


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_no_page_is_wider_than_a_phone(page):
    page.set_viewport_size({"width": 420, "height": 900})
    for path in pages_of(page.site):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, path


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_code_of_100_columns_fits_a_laptop(page):
    page.set_viewport_size({"width": 1345, "height": 900})  # 1360 without the scroll bar
    codes = 0
    for path in (*(page.site / "labs").rglob("*.html"), page.site / "gpt.html"):
        page.goto(path.as_uri())
        for text, needed, room in page.locator("article .highlight pre").evaluate_all(
            "all => all.map(one => [one.textContent, one.scrollWidth, one.clientWidth])"
        ):
            codes += 1
            assert needed <= room or max(map(len, text.splitlines())) > 100, (path, text)
    assert codes > 100


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
def test_code_is_copied_by_a_button_and_outputs_have_none(page):
    go(page, f"labs/{FIRST}")
    code = page.locator(".cell_input", has_text="def generate(").first
    code.hover()
    code.get_by_role("button", name="Copy").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == code.locator("pre").inner_text().strip()
    assert page.locator(".cell_output pre").count()
    assert not page.locator(".cell_output .copybtn").count()


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
def test_a_lab_leads_to_its_exercises_and_to_its_notebook(page):
    page.set_viewport_size({"width": 1360, "height": 900})
    go(page, f"labs/{FIRST}")
    contents = page.locator(".bd-sidebar-secondary")
    expect(contents.get_by_text("Exercise: Greedy generation")).to_be_visible()
    link = page.get_by_role("link", name="notebook alone")
    downloaded = (page.site / "labs" / FIRST).with_name(link.get_attribute("href"))
    assert downloaded.read_bytes() == (ROOT / "labs" / lessons()["generate"].notebook).read_bytes()


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
@pytest.mark.parametrize("path", ["index.html", f"labs/{FIRST}", "docs/survey.html", "gpt.html"])
def test_a_page_of_each_kind_is_dark_or_light_as_the_system_is(page, path):
    page.emulate_media(color_scheme="dark")
    go(page, path)
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        bright = sum(map(int, re.findall(r"\d+", ground)[:3])) > 384
        assert bright == (scheme == "light")
        for picture in page.locator("article img.visual").all():
            inverted = picture.evaluate("one => getComputedStyle(one).filter.includes('invert')")
            assert inverted == (scheme == "dark")


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
def test_search_finds_words_in_a_lab(page):
    go(page, "search.html?q=block+table")
    expect(page.locator("#search-results a", has_text="paged attention").first).to_be_visible()


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
def test_the_run_on_the_front_page_moves_and_can_be_paused(page):
    page.emulate_media(reduced_motion="no-preference")
    go(page, "index.html")
    run = page.locator(".run")
    moving = "run => run.getAnimations({ subtree: true }).map(one => one.playState)"
    assert set(run.evaluate(moving)) == {"running"}
    page.get_by_label("pause").check()
    assert set(run.evaluate(moving)) == {"paused"}
    page.emulate_media(reduced_motion="reduce")
    assert run.evaluate(moving) == []
    assert run.locator(".served").last.evaluate("one => getComputedStyle(one).opacity") == "1"


@pytest.mark.needs("sphinx", "chromium")
@pytest.mark.slow
def test_the_survey_is_sorted_by_a_column_and_filtered_by_answers_and_marks(page):
    go(page, "docs/survey.html")
    choices, scheduling = page.locator("article table").nth(0), page.locator("article table").nth(1)
    names = scheduling.locator("tbody tr:visible td:first-child")
    scheduling.get_by_role("button").first.click()
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), key=str.casefold)
    scheduling.get_by_role("button").first.click()
    assert names.all_inner_texts() == sorted(names.all_inner_texts(), key=str.casefold)[::-1]

    def ask(name):
        return page.get_by_role("combobox", name=name, exact=True)

    ask("How many users?").select_option("many")
    ask("On which hardware?").select_option("none of your own")
    assert choices.locator("tbody tr:visible").count() == 1

    ask("Engines with").select_option("lookahead decoding")
    assert "llama.cpp" in names.all_inner_texts()
    assert "SGLang" not in names.all_inner_texts()
    ask("Engine").select_option("this course")
    assert names.all_inner_texts() == ["this course"]
