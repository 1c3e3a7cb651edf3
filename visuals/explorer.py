"""A picture with sliders: moving a slider redraws it."""

from collections.abc import Callable, Iterable

import ipywidgets as widgets

from visuals.style import Picture


def slider(name: str, last: int, start: int = 0, first: int = 0) -> widgets.IntSlider:
    """Return a slider over the integers from `first` to `last`; it takes effect when released."""
    return widgets.IntSlider(
        value=start, min=first, max=last, description=name, continuous_update=False
    )


def fine_slider(
    name: str, first: float, last: float, step: float, start: float
) -> widgets.FloatSlider:
    """Return a slider over the numbers from `first` to `last`, `step` apart."""
    return widgets.FloatSlider(
        value=start, min=first, max=last, step=step, description=name, continuous_update=False
    )


def choice(
    name: str, options: Iterable[int | str], start: int | str | None = None
) -> widgets.SelectionSlider:
    """Return a slider over the options. It starts at `start`, or at the first option.

    Its name may be long.
    """
    options = list(options)
    return widgets.SelectionSlider(
        options=options,
        value=options[0] if start is None else start,
        description=name,
        continuous_update=False,
        style={"description_width": "initial"},
    )


def explore(
    draw: Callable[..., Picture],
    *sliders: widgets.Widget,
    words: Callable[..., str] | None = None,
) -> widgets.VBox:
    """Show sliders, and below them the picture that `draw` returns for their values.

    `draw` gets the values in the order of the sliders. words: called with the same values; returns
    a sentence that is shown above the picture.
    """
    sentence, picture = widgets.HTML(), widgets.HTML()

    def redraw(_: object = None) -> None:
        values = [control.value for control in sliders]
        if words:
            sentence.value = words(*values)
        picture.value = draw(*values).html()

    for control in sliders:
        control.observe(redraw, names="value")
    redraw()
    return widgets.VBox([*sliders, *([sentence] if words else []), picture])
