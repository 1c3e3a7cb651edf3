"""What holds of every picture and every explorer of every lab, over a table of all of them.

Whether a picture shows the right numbers is tested beside the others of its lab.
"""

import pickle
import pkgutil
import re
from base64 import b64decode
from collections.abc import Iterator
from importlib import import_module
from inspect import isfunction
from io import BytesIO
from itertools import combinations
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch
from IPython.display import HTML
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch
from matplotlib.text import Text

import course
import visuals
from tests.samples import Example
from visuals.style import Picture

pytestmark = pytest.mark.filterwarnings("error")  # a sign that the font lacks, no room for a layout


ROOFLINE = "tests.samples.roofline"
ROOMS = [f"course.{one.name}.samples" for one in pkgutil.iter_modules(course.__path__) if one.ispkg]
EXAMPLES = [
    example for samples in (*ROOMS, ROOFLINE) for example in import_module(samples).EXAMPLES
]


def draws(example: Example) -> Any:
    """What kind of thing it gives: a figure, HTML or an explorer."""
    return example.draw.__annotations__["return"]


def all_that_draw(kind: type) -> list[Any]:
    found = [example for example in EXAMPLES if draws(example) is kind]
    return [pytest.param(example, id=example.name) for example in found]


@pytest.fixture(scope="module", params=all_that_draw(Picture))
def shown(request):
    """The name of a picture, and the figure, drawn once for all tests."""
    figure = request.param.draw(*request.param.handed)
    figure.draw_without_rendering()
    return request.param.name, figure


def test_every_public_picture_is_in_the_table():
    modules = [
        import_module(f"visuals.{one.name}") for one in pkgutil.iter_modules(visuals.__path__)
    ]
    public = {
        Example(thing, ()).name
        for module in modules
        for thing in vars(module).values()
        if isfunction(thing) and thing.__module__ == module.__name__
        if thing.__annotations__.get("return") in (Picture, HTML, widgets.VBox)
    }
    with_all = {"explorer.explore"}  # what all explorers are made with
    assert public - with_all == {example.name for example in EXAMPLES}


# ------------------------------------------------------------------------------------ every one


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("example", [pytest.param(one, id=one.name) for one in EXAMPLES])
def test_a_picture_leaves_what_it_is_handed_and_is_not_kept_open(example):
    before, open_figures = pickle.dumps(example.handed), plt.get_fignums()
    picture = example.draw(*example.handed)
    assert isinstance(picture, draws(example))
    assert pickle.dumps(example.handed) == before
    assert plt.get_fignums() == open_figures
    assert draws(example) is not Picture or picture.png().startswith(b"\x89PNG")


@pytest.mark.parametrize("example", all_that_draw(HTML))
def test_html_closes_what_it_opens(example):
    html = example.draw(*example.handed).data
    for tag in set(re.findall(r"<(\w+)", html)) - {"br"}:
        assert len(re.findall(f"<{tag}\\b", html)) == html.count(f"</{tag}>")


# -------------------------------------------------------------------------------------- figures

SHORTEST = 60  # characters of an alternative text
TALLEST = 600  # pixels of an explorer, as many as JupyterLab leaves of a window of 720
SMALLEST = 7  # pixels of a letter's height where a figure is as wide as a narrow window: 480


@pytest.mark.in_turn(3)
@pytest.mark.slow
def test_text_is_legible_in_a_narrow_window(shown):
    _, figure = shown
    pixels = figure.dpi / 72 * 480 / figure.bbox.width  # of a point
    for text in figure.findobj(Text):
        assert pixels * text.get_fontsize() >= SMALLEST or not text.get_text()


@pytest.mark.in_turn(3)
def test_nothing_leaves_the_figure_and_no_text_lies_on_another(shown):
    _, figure = shown
    drawn = figure.get_tightbbox()
    assert min(drawn.p0) >= 0
    assert all(drawn.p1 <= figure.bbox_inches.p1)
    written = [
        text
        for axes in figure.axes
        for text in (*axes.texts, axes._left_title, axes._right_title)
        if axes.get_visible() and text.get_text()
    ]
    boxes = [Text.get_window_extent(text) for text in written]  # without an annotation's arrow
    assert all(not one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.in_turn(3)
def test_its_words_hold_what_is_written_around_it(shown):
    _, figure = shown
    words, titles = figure.words(), [axes.get_title("left") for axes in figure.axes]
    for title in (*titles, *(axes.get_xlabel() for axes in figure.axes)):
        assert " ".join(title.split()) in words
    assert len(words) >= SHORTEST
    assert figure.about in words
    # In a dark theme, none of these would be true.
    assert not re.search(r"\b(black|white|(dark|light|pal)e?(er)?)\b", words)


# What looks alike in black and white, and what tells it apart in the picture.
TOLD_OTHERWISE = {
    "adapters.show_slots": "the number of users in each cell, which is 0",
    "engine.timeline": "marks, which its legend has too",
    "decoding.show_tree": "END in the box of a text that has ended",
}


def without_color(sign: Any) -> tuple[Any, ...]:
    """What is left of a sign in black and white: hatching, dashes, marker, filling."""
    if isinstance(sign, Patch):
        return sign.get_hatch() or "", is_hollow(sign.get_facecolor())
    dashes = sign.get_linestyle(), str(sign._dash_pattern)  # drawn by plot, and by hlines
    if sign.get_marker() in ("", "None"):
        return dashes
    return *dashes, sign.get_marker(), is_hollow(sign.get_markerfacecolor())


def is_hollow(face: Any) -> bool:
    *color, alpha = to_rgba(face)
    return color == [1, 1, 1] or not alpha


@pytest.mark.in_turn(3)
def test_what_a_legend_names_differs_in_more_than_color(shown):
    name, figure = shown
    for legend in filter(None, [*figure.legends, *(axes.get_legend() for axes in figure.axes)]):
        signs = [without_color(sign) for sign in legend.legend_handles]
        assert len(set(signs)) == len(signs) or name in TOLD_OTHERWISE


# ------------------------------------------------------------------------------------- explorers


def turned(control: Any) -> Iterator[None]:
    """Set a slider or a choice to its ends and to places between them; then as it was."""
    if isinstance(control, widgets.IntSlider | widgets.FloatSlider):
        name, stops = "value", torch.linspace(control.min, control.max, 5).tolist()
        stops = [type(control.value)(stop) for stop in stops]
    else:
        last = len(control.options) - 1
        name, stops = "index", sorted({0, last // 4, last // 2, last})
    before = getattr(control, name)
    for stop in stops:
        setattr(control, name, stop)
        yield
    setattr(control, name, before)


@pytest.mark.slow
@pytest.mark.in_turn(6)
@pytest.mark.parametrize("example", all_that_draw(widgets.VBox))
def test_an_explorer_redraws_over_the_whole_range_of_its_sliders(example):
    *controls, picture = example.draw(*example.handed).children
    sentence = controls.pop() if isinstance(controls[-1], widgets.HTML) else None
    for control in controls:
        seen = set()
        for _ in turned(control):
            assert '<img alt="' in picture.value
            seen.add((picture.value, sentence and sentence.value))
        assert len({image for image, _ in seen}) > 1
        assert not sentence or len({words for _, words in seen}) > 1


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("example", all_that_draw(widgets.VBox))
def test_the_sliders_and_the_picture_of_an_explorer_fit_a_window(example):
    *controls, picture = example.draw(*example.handed).children
    png = b64decode(re.search(r"base64,([^\"]*)", picture.value)[1])
    rows, _, _ = plt.imread(BytesIO(png)).shape
    assert rows + 36 * len(controls) <= TALLEST
