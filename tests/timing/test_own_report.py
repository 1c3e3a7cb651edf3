"""The learner's report: what it compares and admits, and that nothing in it runs or leaks."""

import base64
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autograder.notebook.passed import kept_file, red_file
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from tests.common.browser import browser_page
from timing import report
from timing.kept_rows import keep
from timing.report import __main__ as command
from timing.report import pictures, write_report
from visuals.style import new_figure

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch) -> Path:
    """A learner's folder, in which nothing has been done."""
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "work" / ".mine"))
    monkeypatch.setattr(report, "WORK", tmp_path / "work")
    return tmp_path / "work"


def page(name: str | None = None) -> str:
    return write_report(name=name).read_text(encoding="utf-8")


def finished(labs: int) -> str:
    return f"<dt>labs finished</dt><dd>{labs} of {len(lessons())}</dd>"


def time_rows(*rows: tuple[str, float], processor: str = "A chip", **more: Any) -> None:
    """Keep rows of 64 requests, each a technique with its tokens per second."""
    same = {"workload": "ragged", "requests": 64, "threads": 2, **more}
    made = [{**same, "technique": name, "tok_per_s": speed, "about": name} for name, speed in rows]
    for row in made:
        if row["technique"] == "mine":
            row["about"] = "many requests: your engine (lab 7)"
    run = {"processor": processor, "cores": 2, "device": "cpu", "torch": "2.9"}
    keep({"rows": made, "environment": {**run, "model": f"{ROOT}/models/fable"}})


def let_pass(*exercises: str) -> None:
    for exercise in exercises:
        kept_file(exercise).parent.mkdir(parents=True, exist_ok=True)
        kept_file(exercise).write_text("")


def begin(work: Path, lab: str, *outputs: Any, heading: str = "## 1. A heading") -> Path:
    """Let the first exercise of a lab pass. Return its notebook: a heading, and these outputs."""
    let_pass(next(iter(lessons()[lab].cards)))
    cells: list[Any] = [{"cell_type": "markdown", "source": heading}]
    cells += [{"cell_type": "code", "outputs": [{"data": data}]} for data in outputs]
    notebook = work / lessons()[lab].notebook
    notebook.parent.mkdir(parents=True)
    notebook.write_text(json.dumps({"cells": cells}))
    return notebook


def png(size: int = 8) -> str:
    return base64.b64encode(pictures.PNG + bytes(size)).decode()


class Elements(HTMLParser):
    """The tags of a page, and the addresses in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "data")]


# ------------------------------------------------------------------------------------ what it says


def test_a_learner_who_begins_is_told_what_to_do():
    assert 'make timed ARGS="--mine --peers"' in page()
    assert "make lab" in page()
    assert finished(0) in page()
    assert not {"table", "img"} & Elements(page()).tags


def test_exercises_that_fail_again_do_not_count():
    first, second = lessons()["generate"].cards
    let_pass(first, second)
    assert finished(1) in page()
    assert "40 tok/s, the naive loop" in page()
    red_file(second).touch()
    assert f"failed since: {second.partition('.')[2]}" in page()
    assert "<td>1 of 2</td>" in page()
    assert finished(0) in page()
    assert "40 tok/s, the naive loop" not in page()


def test_the_rows_of_the_learners_last_machine_are_compared_the_fastest_first():
    time_rows(("mine", 100.0), ("hf", 50.0), processor="Another <chip>")
    time_rows(("mine", 2400.0), ("cached", 300.0), ("ct2", 3000.0))
    time_rows(("naive", 1.0), processor="A third chip")
    text = page()
    cells = "ct2", "3,000", "0.8 ×", "my engine (lab 7)", "2,400", "cached", "300", "8.0 ×"
    places = [text.index(f">{cell}<") for cell in cells]
    assert places == sorted(places)
    assert ">hf<" not in text
    assert "elsewhere: Another &lt;chip&gt;, cores: 2, device: cpu; A third chip, cores" in text


def test_workloads_that_the_learners_code_has_not_served_are_left_out():
    time_rows(("mine", 100.0), ("cached", 50.0))
    time_rows(("naive", 40.0), workload="256 new tokens", requests=1)
    assert "64 unequal requests (fable)" in page()
    assert "256 new tokens" not in page()
    time_rows(("mine", 400.0), workload="256 new tokens", requests=1)
    assert "One request, 256 new tokens (fable)" in page()
    assert "<dt>the naive loop's speed</dt><dd>10.0 ×</dd>" in page()


def test_rounded_and_disturbed_rows_are_marked():
    time_rows(("mine", 100.0), differs=False, disturbed=False)
    assert not any(why in page() for why in report.MARKS.values())
    time_rows(("ct2-int8", 200.0), differs=True, disturbed=True)
    assert ">ct2-int8 # !<" in page()
    assert all(why in page() for why in report.MARKS.values())


# ----------------------------------------------------------------------------------- the pictures


def test_the_last_picture_of_a_section_is_shown(work):
    begin(work, "engine", {"image/png": png(1)}, {"text/plain": ""}, {"image/png": [png(2), "\n"]})
    assert Elements(page()).addresses == [f"data:image/png;base64,{png(2)}"]
    assert "engine · 1. A heading" in page()


def test_a_picture_of_the_course_keeps_its_words(work):
    figure, (axes,) = new_figure()
    axes.set_title('tokens a second, "mine" & others')
    begin(work, "engine", {"text/html": figure.html()})
    assert 'alt="tokens a second, &#34;mine&#34; &amp; others."' in page()
    assert len(Elements(page()).addresses) == 1


def test_nothing_of_a_notebook_runs_or_loads_and_no_folder_is_named(work):
    html = {"text/html": "<script src=http://x.y>", "application/javascript": "alert(1)"}
    heading = '## "><script src=http://x.y>'
    begin(work, "engine", html, {"image/svg+xml": SVG}, heading=heading)
    time_rows(("mine", 100.0))
    text = page("<b>Ada</b>")
    [address] = Elements(text).addresses
    assert address.startswith("data:image/svg+xml;base64,")
    assert not {"script", "svg", "b"} & Elements(text).tags
    assert "default-src 'none'" in text
    assert "&lt;b&gt;Ada&lt;/b&gt; · " in text
    assert not [folder for folder in (ROOT, work, Path.home()) if str(folder) in text]


IMAGE = '{"cells": [{"cell_type": "code", "outputs": [{"data": {"image/png": %s}}]}]}'


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"cells": [1]}', IMAGE % 1, IMAGE % '"abc"', IMAGE % r'"\" onerror=\"a()"'],
)
def test_a_broken_notebook_has_no_pictures(work, content):
    begin(work, "engine").write_text(content)
    assert "img" not in Elements(page()).tags


def test_the_largest_pictures_are_left_out_of_a_page_that_grows_too_large(work, monkeypatch):
    for lab, size in (("generate", 100), ("paged_attention", 2000), ("engine", 100)):
        begin(work, lab, {"image/png": png(size)})
    monkeypatch.setattr(pictures, "LIMIT", 1000)
    assert len(Elements(page()).addresses) == 2
    assert "paged_attention · " not in page()
    assert "left out, to keep the page small: 1." in page()


# ---------------------------------------------------------------------------------------- the file


def test_only_an_older_report_is_overwritten(work):
    path = write_report()
    assert path == work / "report.html"
    assert "Ada · " in write_report(path, "Ada").read_text()
    path.write_text("my own page")
    for taken in (path, work):
        with pytest.raises(ValueError, match="isn't a report"):
            write_report(taken)
    assert path.read_text() == "my own page"


def test_the_command_times_only_if_asked_to(work, monkeypatch, capsys):
    ran: list[list[str]] = []
    codes = iter([0, 1])
    monkeypatch.setattr(
        command.subprocess,
        "run",
        lambda it, cwd: ran.append(it) or SimpleNamespace(returncode=next(codes)),
    )
    monkeypatch.setattr(command, "missing", lambda device: [("ct2", "not installed")])
    command.main([])
    assert "work/report.html" in capsys.readouterr().out
    assert ran == []
    command.main(["--time", "--out", str(work / "other.html")])
    peers = "--peers=ct2-int8,llama.cpp,llama.cpp-q8,hf-continuous,vllm"
    assert ran == [[sys.executable, "timed_generate.py", "--mine", peers]]
    with pytest.raises(SystemExit):
        command.main(["--time", "--out", str(work / "a third.html")])
    assert "timing has failed" in capsys.readouterr().err
    assert {path.name for path in work.glob("*.html")} == {"report.html", "other.html"}


def test_a_notebook_can_write_it_without_waiting_for_torch():
    code = "import sys, timing.report; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.needs("chromium")
def test_a_phone_shows_it_without_a_request_or_an_error(work):
    begin(work, "engine", {"image/svg+xml": SVG})
    time_rows(("mine", 2400.0), ("cached", 300.0), ("a technique with a long name", 3000.0))
    address = write_report().as_uri()
    problems: list[str] = []
    asked: list[str] = []
    with browser_page(width=360) as browser:
        browser.on("console", lambda message: problems.append(message.text))
        browser.on("pageerror", lambda error: problems.append(str(error)))
        browser.on("request", lambda request: asked.append(request.url))
        browser.goto(address)
        assert browser.get_by_role("heading", level=1).inner_text() == report.TITLE
        assert browser.locator(".mine .bar").bounding_box()["width"] > 50
        assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert problems == []
    assert [url for url in asked if not url.startswith("data:")] == [address]
