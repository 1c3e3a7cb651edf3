"""The start page shows where to go on, the map, the learner's progress and engine."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from statistics import mode

import nbformat
import pytest

from autograder.notebook import passed
from autograder.notebook.passed import progress_in
from autograder.notebook.progress import status_of
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from start import drawing, page
from start.links import links
from start.words import numbers

LABS = ROOT / "labs"
ALL = [name for lesson in lessons().values() for name in lesson.cards]
GENERATE = list(lessons()["generate"].cards)


class Reader(HTMLParser):
    """Collects the text and the links; every element must be closed in its turn."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.words = [], [], []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        if tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_startendtag(self, tag, attributes):
        pass  # closed at once, as a circle is

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] not in ("style", "script"):
            self.words.append(data)


@pytest.fixture
def read(tmp_path):
    def read():
        reader = Reader()
        reader.feed(page.Page(tmp_path)._repr_html_())
        assert reader.open == []
        return re.sub(r"\s+", " ", " ".join(reader.words)), reader.links

    return read


def test_a_new_learner_is_told_to_begin(read):
    text, links = read()
    assert "Begin with lab 1: generate" in text
    assert "make timed ARGS=--mine" in text
    assert links[0] == "01_generate/generate.ipynb"


def test_a_learner_goes_on_at_the_first_exercise_that_is_left(read, pass_all):
    pass_all("kv_cache.causal_mask")
    text, links = read()
    assert "Go on in lab 2: kv cache Exercise 2 of 9: Attention with a KV cache" in text
    assert links[0] == "02_kv_cache/kv_cache.ipynb"  # this learner has no copy of the lab


def test_an_exercise_that_is_red_again_comes_first(read, pass_all):
    pass_all(*GENERATE)
    passed.red_file(GENERATE[0]).touch()
    text, _ = read()
    assert "Exercise 1 of 2, Greedy generation, passed, but its check has failed since." in text
    assert "1 red again" in text


def test_after_a_lab_comes_the_next_on_its_track(read, pass_all):
    pass_all(*GENERATE, *lessons()["speculative"].cards, *lessons()["prefix_caching"].cards)
    text, links = read()
    assert "All exercises of lab 8 have passed." in text
    assert links[0] == "09_disaggregation/disaggregation.ipynb"


def test_at_the_end_of_a_track_the_first_open_lab_is_next(read, pass_all):
    pass_all(*GENERATE, *lessons()["tokenizer"].cards)
    assert read()[1][0] == "02_kv_cache/kv_cache.ipynb"


def test_who_has_built_the_engine_may_talk_to_it(read, pass_all):
    assert "Talk to your engine" not in read()[0]
    pass_all(*lessons()["engine"].cards)
    assert "Talk to your engine. make chat ARGS=--mine in a terminal" in read()[0]


def test_a_learner_who_is_done_is_told_so(read, pass_all):
    pass_all(*ALL)
    text, _ = read()
    assert "Every exercise of every lab has passed." in text
    assert f"You have passed {len(ALL)} of {len(ALL)} exercises" in text
    assert "you are here" not in text


def test_the_page_and_status_have_the_same_numbers(read, pass_all):
    pass_all("kv_cache.causal_mask", "kv_cache.KVCache.attend")
    said = "".join(status_of(lessons()["kv_cache"]).sentences)
    found = re.search(r"(\d of \d) exercises passed \((\d+ of \d+) points\)", said)
    count, points = found.groups()
    assert re.search(rf"2 · kv cache .{{0,90}} {count} {points} 3 ", read()[0])


def test_every_link_leads_to_the_code_where_the_learner_stopped(pass_all):
    cells = {}
    for lesson in lessons().values():
        for cell in nbformat.read(LABS / lesson.notebook, as_version=4).cells:
            cells[f"{lesson.notebook}#cell-id={cell.id}"] = cell.source
    for done in range(1, max(len(lesson.cards) for lesson in lessons().values())):
        pass_all(*(name for lesson in lessons().values() for name in list(lesson.cards)[:done]))
        for lab, link in links(LABS).items():
            if left := progress_in(lessons()[lab]).left:
                assert f"def {left[0].exercise.split('.')[-1]}(" in cells[link]
            else:
                assert link == lessons()[lab].notebook


@pytest.mark.parametrize("text", ["", "[]", '{"cells": [{}]}', '{"cells": []}'])
def test_a_lab_that_can_not_be_read_is_linked_without_its_cell(tmp_path, pass_all, text):
    pass_all("generate.generate")
    path = lessons()["generate"].notebook
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text(text)
    assert links(tmp_path)["generate"] == path


def test_each_lab_is_once_on_each_map_and_once_in_the_table(read):
    _, links = read()
    for lesson in lessons().values():
        assert links.count(lesson.notebook) == 3 + (lesson.lab == "generate")


def test_both_maps_and_the_table_say_which_lab_needs_no_other(read):
    text, _ = read()
    assert text.count("at any time") == sum(bool(lab.when) for lab in lessons().values()) * 3 == 3


def heights():
    return [drawing.wide().height, drawing.narrow().height]


def test_the_map_grows_with_the_labs(monkeypatch):
    wide, narrow = heights()
    last = lessons()["serving"]
    longest = mode(lab.track for lab in lessons().values())
    more = {f"new_{n}": replace(last, name=f"{n}_new_{n}", track=longest) for n in range(14, 21)}
    monkeypatch.setattr(drawing, "lessons", lambda: {**lessons(), **more})
    assert heights() == [wide + 7 * drawing.ROW, narrow + 7 * drawing.ROW]


def test_numbers_of_labs_are_short():
    course = list(lessons().values())
    assert numbers(course) == f"1–{len(course)}"
    assert numbers([course[0], course[1], course[3], course[4], course[5]]) == "1, 2, 4–6"


def row(technique, speed, **other):
    kept = {"workload": "ragged", "processor": "<b>One</b>", "cores": 2, "device": "cpu"}
    kept |= {"model": "fable", "date": "2026-01-01T00:00:00", "technique": technique}
    return {**kept, "tok_per_s": float(speed), **other}


def test_the_own_engine_is_between_the_rows_of_its_machine_and_workload(read, mine_folder):
    mine_folder.mkdir()
    others = row("elsewhere", 9, processor="Two"), row("other", 8, workload="chat")
    rows = [row("naive", 38), *others, row("engine", 2551), row("mine", 1431)]
    (mine_folder / "timed.json").write_text(json.dumps(rows))
    text, _ = read()
    assert "naive 38 tok/s your engine 1,431 tok/s engine 2,551 tok/s" in text
    assert "elsewhere" not in text
    assert "other 8" not in text
    assert "ragged, <b>One</b>, fable" in text  # as text: the name of a processor is no HTML


@pytest.mark.parametrize("broken", ["", "[", "{}", "[1]", '[{"technique": "mine"}]'])
def test_a_broken_table_of_rows_is_no_obstacle(read, mine_folder, broken):
    mine_folder.mkdir()
    (mine_folder / "timed.json").write_text(broken)
    assert "make timed ARGS=--mine" in read()[0]


def test_the_last_report_is_linked_where_there_is_one(read, tmp_path):
    assert page.REPORT not in read()[1]
    (tmp_path / page.REPORT).touch()
    assert read()[1][-1] == page.REPORT


def test_the_page_asks_nothing_of_the_network(tmp_path):
    assert not re.search(r"https?:|src=|url\(|@import", page.Page(tmp_path)._repr_html_())


def test_the_page_is_made_without_torch(tmp_path):
    code = "import sys; from start import notebook, page; print('torch' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert made.stdout == "False\n"
