"""The notebook that a student gets, with the outputs of the solved one and nothing else of it.

Sliders become a still picture: where they are at first, and what the notebook shows then. An output
that would print lines of a solution is left out.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output

from autograder.text.reference import AuthorError
from docs.site.leaks import leaks

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
CODE = "The notebook prints code here. The site leaves it out, because it holds solutions."
STILL = "In the notebook, you can move this, and the picture follows."


def grafted(released: NotebookNode, solved: NotebookNode) -> NotebookNode:
    """Put the outputs of the solved notebook into the released one, cell by cell; return it.

    Raises AuthorError if the two aren't of one build.
    """
    if [cell.id for cell in released.cells] != [cell.id for cell in solved.cells]:
        raise AuthorError("The labs aren't built from the lessons as they are now. Run: make labs")
    models = solved.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    outputs = {cell.id: cell.outputs for cell in solved.cells if cell.cell_type == "code"}
    for cell in released.cells:
        if cell.cell_type == "code":
            stills = [still for output in outputs[cell.id] for still in still_of(output, models)]
            cell.outputs = [note(CODE) if leaks(text_of(one)) else one for one in stills]
    return released


def text_of(output: NotebookNode) -> str:
    """Return all text that an output may show, pictures left out."""
    data = output.get("data", {})
    texts = [data[kind] for kind in data if not kind.startswith("image/")]
    return "\n".join(["".join(output.get("text", "")), *map(str, texts)])


def note(sentence: str) -> NotebookNode:
    return html_output(f'<p class="site-note">{sentence}</p>')


def html_output(html: str) -> NotebookNode:
    return new_output("display_data", data={"text/html": html})


# ---------------------------------------------------------------------------- widgets become still


def still_of(output: NotebookNode, models: Mapping[str, Any]) -> Iterator[NotebookNode]:
    """Yield the output, or what to show of its widgets; nothing for a progress bar."""
    view = output.get("data", {}).get(VIEW)
    if view is None:
        yield output
        return
    parts = list(widgets(view["model_id"], models))
    if not any(part["model_name"] == "FloatProgressModel" for part in parts):
        yield from map(drawn, parts)
        yield note(STILL)


def widgets(name: str, models: Mapping[str, Any]) -> Iterator[Any]:
    """Yield a widget that shows something, or those inside a box, in their order."""
    children = models[name]["state"].get("children")
    if children is None:
        yield models[name]
    for child in children or ():
        yield from widgets(child.removeprefix("IPY_MODEL_"), models)


def drawn(widget: Any) -> NotebookNode:
    """Return the output that looks like a widget. Raises AuthorError for another kind."""
    kind, state = widget["model_name"], widget["state"]
    if kind == "HTMLModel":
        return html_output(state["value"])
    if kind in ("IntSliderModel", "FloatSliderModel"):
        first, last, value = state["min"], state["max"], state["value"]
        return slider(state["description"], first, last, value, value)
    if kind in ("SelectionSliderModel", "DropdownModel"):
        labels, index = state["_options_labels"], state["index"]
        return slider(state["description"], 0, len(labels) - 1, index, labels[index])
    raise AuthorError(f"docs/site/grafted.py can't draw a widget of the kind {kind} yet: add it.")


def slider(name: str, first: float, last: float, value: float, shown: object) -> NotebookNode:
    return html_output(
        f'<label class="site-slider">{escape(name)} <input type="range" disabled step="any" '
        f'min="{first}" max="{last}" value="{value}"> {escape(str(shown))}</label>'
    )
