"""Honest submissions that look odd. Each of them is right, and keeps all its points."""

import json
from functools import wraps

import nbformat

from autograder.text.lesson import lessons
from tests.hostile.notebooks import (
    LOOP,
    METRICS,
    Hostile,
    as_bytes,
    code_cells,
    edited,
    insert,
    put,
    released,
    solution_cell,
)

FAMILY = "honest"
MASK = "kv_cache.causal_mask"
BYTES = "kv_cache.kv_bytes_per_token"

# Right solutions as students write them, in the form of `put`: above it, in it, and below it.
STYLES = {
    METRICS: {
        "it prints to stderr": """
            import sys
            ---
            print("metrics!", file=sys.stderr)
            ...
            """,
        "it warns": """
            import warnings
            warnings.simplefilter("error")
            ---
            warnings.warn("slow", stacklevel=2) if len(token_times) < 0 else None
            ...
            """,
        "magics in the cell of a solution": """
            %matplotlib inline
            !pip list
            %config InlineBackend.dpi = 90
            ---
            ...
            ---
            %timeit metrics(0.0, [1.0])
            metrics?
            times = %time 1
            """,
        "it speaks to IPython": """
            from IPython import get_ipython
            from IPython.display import HTML, display
            get_ipython().run_line_magic("matplotlib", "inline")
            ---
            ...
            ---
            display(HTML("<b>done</b>"))
            """,
    },
    LOOP: {
        "it logs": """
            import logging

            logging.basicConfig(level=logging.DEBUG)
            ---
            logging.info("%s", input_ids)
            ...
            """,
        "a progress bar": """
            from tqdm import tqdm
            from tqdm.notebook import trange
            ---
            for _ in tqdm(range(max_new_tokens), leave=False):
                pass
            ...
            """,
    },
    MASK: {
        "slow but right": "sum(range(3_000_000))\n...",
        "the raise was left below the return": "...\nraise NotImplementedError('TODO')",
        "a plot and a widget beside a solution": """
            ---
            ...
            ---
            import matplotlib.pyplot as plt
            import seaborn as sns
            from ipywidgets import interact

            plt.imshow(causal_mask(torch.arange(4)[None], torch.arange(4)[None])[0, 0])
            plt.show()


            @interact(n=(1, 8))
            def draw(n=4):
                plt.imshow(causal_mask(torch.arange(n)[None], torch.arange(n)[None])[0, 0])
            """,
        "a dataclass of its own": """
            from dataclasses import dataclass, field


            @dataclass
            class Mask:
                queries: torch.Tensor
                keys: torch.Tensor
                heads: list = field(default_factory=lambda: [None])

                def visible(self):
                    return (self.keys[:, None, :] <= self.queries[:, :, None])[:, None]
            ---
            return Mask(query_positions, key_positions).visible()
            """,
        "another name for torch and all of numpy": """
            import torch as th
            import numpy as np
            from math import *
            ---
            queries, keys = query_positions.numpy(), key_positions.numpy()
            return th.from_numpy(np.less_equal(keys[:, None, :], queries[:, :, None]))[:, None]
            """,
    },
}


def honest(*exercises: str, lab: str = "kv_cache", lines: str = "..."):
    """An edit of a notebook in which these exercises are solved, and no others; else all of a lab.

    They must earn their points. lines: with which they are solved.
    """
    cards = {*lessons()[lab].cards}

    def decorate(edit, name: str = "") -> Hostile:
        @wraps(edit)
        def solving(notebook):
            for exercise in exercises or cards:
                put(notebook, exercise, lines)
            return edit(notebook)

        return edited(FAMILY, lab, "released", cards - {*(exercises or cards)})(solving, name)

    return decorate


# ------------------------------------------------------------------------------------ its cells


@honest(METRICS, lab="generate")
def magics_in_the_cell_of_the_imports(notebook):
    magics = "%load_ext autoreload", "%matplotlib inline", "!ls -la", "files = !ls", "?len", "len??"
    notebook.cells[2].source = "\n".join([*magics, notebook.cells[2].source])


@honest()
def cells_of_its_own_everywhere(notebook):
    for exercise in lessons()["kv_cache"].cards:
        insert(notebook, exercise, "a = 1\nprint(a / 0)")
        insert(notebook, exercise, "check = None\nmodel = tokenizer = 'lost'", before=False)


@honest(MASK)
def the_solution_in_a_cell_behind_the_todo(notebook):
    right, todo = solution_cell(notebook, MASK), solution_cell(released("kv_cache"), MASK)
    insert(notebook, MASK, right.source, before=False)
    right.source = todo.source


@honest(METRICS, lab="generate")
def a_split_that_jupyter_made_of_it(notebook):
    """Split Cell leaves nbgrader's metadata on both halves."""
    cell = solution_cell(notebook, METRICS)
    first, second = cell.source.split("\n\n\ndef metrics(")
    other = cell.copy()
    cell.source, other.source, other.id = first, f"def metrics({second}", "other-half"
    notebook.cells.insert(notebook.cells.index(cell) + 1, other)


@honest(MASK)
def the_check_was_copied_for_a_second_try(notebook):
    for before in (True, False):
        insert(notebook, MASK, 'check("kv_cache.causal_mask", causal_mask)', before)


@honest()
def annotations_from_the_future(notebook):
    for cell in code_cells(notebook):
        if "nbgrader" in cell.metadata:
            cell.source = f"from __future__ import annotations\n\n{cell.source}"


@honest()
def predictions_were_filled_in(notebook):
    for cell in code_cells(notebook):
        cell.source = cell.source.replace("_guess = None", "_guess = 42")


# ---------------------------------------------------------------------------------- the file itself


@honest(MASK, BYTES)
def it_was_run_in_another_order_by_another_kernel(notebook):
    notebook.metadata.kernelspec = {"name": "conda-env-llm-py", "display_name": "llm (conda)"}
    notebook.metadata.language_info = {"name": "python", "version": "3.9.1"}
    for number, cell in enumerate(code_cells(notebook)):
        cell.execution_count = 1000 - number
        data = {"text/plain": f"<{number}>", "image/png": "iVBORw0KGgo="}
        cell.outputs = [
            nbformat.v4.new_output("stream", name="stderr", text="a warning"),
            nbformat.v4.new_output("execute_result", data, execution_count=1000 - number),
        ]


@honest(MASK, BYTES)
def cells_without_ids_as_an_older_jupyter_saves_them(notebook):
    content = json.loads(as_bytes(notebook))
    content["nbformat_minor"] = 2
    for cell in content["cells"]:
        del cell["id"]
        cell["source"] = cell["source"].splitlines(keepends=True)
    return json.dumps(content).encode()


@honest(MASK, BYTES)
def the_state_of_widgets_and_of_other_editors(notebook):
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    notebook.metadata.colab = {"provenance": [], "toc_visible": True}
    for cell in notebook.cells:
        cell.metadata.update(collapsed=False, tags=["mine"], vscode={"languageId": "python"})


def as_it_is(notebook): ...


CORPUS = [
    *(found for found in list(vars().values()) if isinstance(found, Hostile)),
    *(
        honest(exercise, lab=exercise.split(".")[0], lines=lines)(as_it_is, name)
        for exercise, rows in STYLES.items()
        for name, lines in rows.items()
    ),
]
