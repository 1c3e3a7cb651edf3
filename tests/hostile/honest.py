"""Honest submissions that look odd. Each of them is right, and keeps all its points."""

import json
from collections.abc import Callable

import nbformat

from autograder.course.lesson import lessons
from tests.hostile.notebooks import (
    LOOP,
    METRICS,
    Edit,
    Hostile,
    append,
    as_bytes,
    edited,
    insert,
    prepend,
    released,
    replace,
    rewrite,
    right_lines,
    solution_cell,
    write,
)

FAMILY = "honest"
MASK = "kv_cache.causal_mask"
ATTENTION = "kv_cache.ThreadedAttention.forward"
GENERATE = "kv_cache.generate_threaded"
BYTES = "kv_cache.kv_bytes_per_token"
CACHE, TRUNCATE = "kv_cache.KVCache.attend", "kv_cache.KVCache.truncate"

RETURN_MASK = "return visible[:, None]"


def honest(*exercises: str, lab: str = "") -> Callable[[Edit], Hostile]:
    """An edit of a notebook in which these exercises are solved, and no others; else all of a lab.

    They must earn their points.
    """
    lab = lab or exercises[0].split(".")[0]
    others = frozenset(lessons()[lab].cards) - {*(exercises or lessons()[lab].cards)}

    def decorate(edit: Edit) -> Hostile:
        def solving(notebook):
            for exercise in set(lessons()[lab].cards) - others:
                write(notebook, exercise, right_lines(exercise))
            return edit(notebook)

        solving.__name__ = edit.__name__
        return edited(FAMILY, lab, "released", others)(solving)

    return decorate


@honest(lab="kv_cache")
def the_reference(notebook): ...


@honest(lab="batching")
def the_reference_of_lab_3(notebook): ...


@honest(lab="paged_attention")
def the_reference_of_lab_4(notebook): ...


# ------------------------------------------------------------------------------- what it says


@honest(METRICS)
def it_prints_to_stderr(notebook):
    first = "import sys\n    print('metrics!', file=sys.stderr)\n    n = len(token_times)"
    replace(notebook, METRICS, "n = len(token_times)", first)


@honest(METRICS)
def it_warns(notebook):
    prepend(notebook, METRICS, "import warnings\nwarnings.simplefilter('error')")
    first = "warnings.warn('slow', stacklevel=2) if n < 0 else None\n    first, last"
    replace(notebook, METRICS, "first, last", first)


@honest(LOOP)
def it_logs_every_token(notebook):
    prepend(notebook, LOOP, "import logging\n\nlogging.basicConfig(level=logging.DEBUG)")
    replace(notebook, LOOP, "ids = input_ids\n", "ids = input_ids\n    logging.info('%s', ids)\n")


@honest(LOOP)
def a_progress_bar_around_the_loop(notebook):
    prepend(notebook, LOOP, "from tqdm.notebook import trange\nfrom tqdm import tqdm")
    loop = "in range(min(max_new_tokens, room))"
    replace(notebook, LOOP, loop, "in tqdm(range(min(max_new_tokens, room)), leave=False)")


# -------------------------------------------------------------------------------------- magics


@honest(METRICS)
def magics_in_the_cell_of_the_imports(notebook):
    magics = "%load_ext autoreload", "%matplotlib inline", "!ls -la", "files = !ls", "?len", "len??"
    notebook.cells[2].source = "\n".join([*magics, notebook.cells[2].source])


@honest(METRICS)
def magics_in_the_cell_of_a_solution(notebook):
    prepend(notebook, METRICS, "%matplotlib inline\n!pip list\n%config InlineBackend.dpi = 90")
    append(notebook, METRICS, "%timeit metrics(0.0, [1.0])\nmetrics?\ntimes = %time 1")


@honest(METRICS)
def a_cell_magic_on_a_solution(notebook):
    cell = solution_cell(notebook, METRICS)
    cell.source = f"%%time\n{cell.source}"


@honest(METRICS)
def a_cell_in_another_language(notebook):
    insert(notebook, METRICS, "%%bash\nfor i in 1 2; do echo $i; done")
    insert(notebook, METRICS, "%%writefile notes.txt\nTTFT: prefill, and then some")


@honest(METRICS)
def the_notebook_speaks_to_IPython(notebook):
    source = "from IPython import get_ipython\nfrom IPython.display import HTML, display"
    prepend(notebook, METRICS, f"{source}\nget_ipython().run_line_magic('matplotlib', 'inline')")
    append(notebook, METRICS, "display(HTML('<b>done</b>'))")


# ---------------------------------------------------------------------------------- its own cells


@honest(lab="kv_cache")
def cells_of_its_own_everywhere(notebook):
    for exercise in (MASK, ATTENTION, GENERATE, BYTES, CACHE):
        insert(notebook, exercise, "a = 1\nprint(a / 0)")
        insert(notebook, exercise, "check = None\nmodel = tokenizer = 'lost'", before=False)


@honest(MASK)
def a_helper_in_a_cell_of_its_own(notebook):
    helper = """
    def at_most(keys, queries):
        return keys[:, None, :] <= queries[:, :, None]
    """
    insert(notebook, MASK, helper)
    line = "key_positions[:, None, :] <= query_positions[:, :, None]"
    replace(notebook, MASK, line, "at_most(key_positions, query_positions)")


@honest(MASK)
def the_solution_in_a_cell_behind_the_todo(notebook):
    right, todo = solution_cell(notebook, MASK), solution_cell(released("kv_cache"), MASK)
    insert(notebook, MASK, right.source, before=False)
    right.source = todo.source


@honest(METRICS)
def a_cell_that_was_split_in_two(notebook):
    cell = solution_cell(notebook, METRICS)
    first, second = cell.source.split("\n\n\ndef metrics(")
    second = f"def metrics({second}"
    cell.source = first
    insert(notebook, METRICS, second, before=False)


@honest(METRICS)
def a_split_that_jupyter_made_of_it(notebook):
    """Split Cell leaves nbgrader's metadata on both halves."""
    cell = solution_cell(notebook, METRICS)
    first, second = cell.source.split("\n\n\ndef metrics(")
    other = cell.copy()
    cell.source, other.source, other.id = first, f"def metrics({second}", "other-half"
    notebook.cells.insert(notebook.cells.index(cell) + 1, other)


@honest(CACHE, TRUNCATE)
def a_method_that_is_attached_later(notebook):
    cell = solution_cell(notebook, CACHE)
    begin, end = cell.source.index("    def attend("), cell.source.index("    def mask(")
    method = cell.source[begin:end]
    cell.source = cell.source[:begin] + cell.source[end:]
    lines = "\n".join(line[4:] for line in method.splitlines())
    append(notebook, CACHE, f"{lines}\n\n\nKVCache.attend = attend")


@honest(CACHE, TRUNCATE)
def a_class_that_grows_by_inheritance(notebook):
    append(notebook, CACHE, "class KVCache(KVCache):\n    pass")


@honest(MASK)
def the_check_was_copied_for_a_second_try(notebook):
    insert(notebook, MASK, 'check("kv_cache.causal_mask", causal_mask)', before=False)
    insert(notebook, MASK, 'check("kv_cache.causal_mask", causal_mask)')


# -------------------------------------------------------------------------------------- its style


@honest(MASK)
def a_plot_and_a_widget_beside_a_solution(notebook):
    source = """
    import matplotlib.pyplot as plt
    import seaborn as sns
    from ipywidgets import interact

    plt.imshow(causal_mask(torch.arange(4)[None], torch.arange(4)[None])[0, 0])
    plt.show()


    @interact(n=(1, 8))
    def draw(n=4):
        plt.imshow(causal_mask(torch.arange(n)[None], torch.arange(n)[None])[0, 0])
    """
    append(notebook, MASK, source)


@honest(lab="kv_cache")
def annotations_from_the_future(notebook):
    for cell in notebook.cells:
        if "nbgrader" in cell.metadata and cell.cell_type == "code":
            cell.source = f"from __future__ import annotations\n\n{cell.source}"


@honest(MASK)
def slow_but_right(notebook):
    replace(notebook, MASK, RETURN_MASK, f"sum(range(3_000_000))\n    {RETURN_MASK}")


@honest(MASK)
def a_dataclass_of_its_own(notebook):
    source = """
    from dataclasses import dataclass, field


    @dataclass
    class Mask:
        queries: torch.Tensor
        keys: torch.Tensor
        heads: list = field(default_factory=lambda: [None])

        def visible(self):
            return (self.keys[:, None, :] <= self.queries[:, :, None])[:, None]
    """
    prepend(notebook, MASK, source)
    replace(notebook, MASK, RETURN_MASK, "return Mask(query_positions, key_positions).visible()")


@honest(MASK)
def a_decorator_of_its_own(notebook):
    source = """
    from functools import wraps

    calls = {"number": 0}


    def counted(function):
        @wraps(function)
        def call(*args, **kwargs):
            calls["number"] += 1
            return function(*args, **kwargs)
        return call
    """
    prepend(notebook, MASK, source)
    replace(notebook, MASK, "def causal_mask(", "@counted\ndef causal_mask(")


@honest(BYTES)
def a_cached_helper(notebook):
    source = "import functools\n\n\n@functools.cache\ndef factor(kinds):\n    return kinds"
    prepend(notebook, BYTES, source)
    replace(notebook, BYTES, "keys_and_values = 2", "keys_and_values = factor(2)")


@honest(BYTES)
def a_walrus_and_a_match(notebook):
    body = """
    match config.n_layer:
        case int(layers) if (width := config.n_embd) > 0:
            return 2 * layers * width * bytes_per_number
    """
    rewrite(notebook, BYTES, body)


@honest(BYTES)
def a_helper_from_a_lambda_and_a_constant(notebook):
    source = "KINDS = len(('keys', 'values'))\ntimes = lambda *n: __import__('math').prod(n)"
    prepend(notebook, BYTES, source)
    body = "return times(KINDS, config.n_layer, config.n_embd, bytes_per_number)"
    rewrite(notebook, BYTES, body)


@honest(BYTES)
def a_name_that_an_if_defines(notebook):
    source = """
    try:
        from einops import rearrange
    except ImportError:
        rearrange = None

    if rearrange is None or True:
        KINDS = 2
    else:
        KINDS = 3
    for KINDS in (KINDS,):
        pass
    """
    prepend(notebook, BYTES, source)
    replace(notebook, BYTES, "keys_and_values = 2", "keys_and_values = KINDS")


@honest(MASK)
def another_name_for_torch_and_all_of_numpy(notebook):
    prepend(notebook, MASK, "import torch as th\nimport numpy as np\nfrom math import *")
    body = """
    queries, keys = query_positions.numpy(), key_positions.numpy()
    return th.from_numpy(np.less_equal(keys[:, None, :], queries[:, :, None]))[:, None]
    """
    rewrite(notebook, MASK, body)


@honest(ATTENTION)
def einsum_in_the_place_of_attention(notebook):
    call = "F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)"
    own = (
        "torch.einsum('bhqk,bhkd->bhqd', (torch.einsum('bhqd,bhkd->bhqk', queries, keys)"
        " / queries.shape[-1] ** 0.5).masked_fill(~mask, float('-inf')).softmax(-1), values)"
    )
    replace(notebook, ATTENTION, call, own)


@honest(MASK, BYTES)
def code_below_the_solution_that_crashes(notebook):
    append(notebook, MASK, "assert False, 'my own test'\nraise SystemExit")
    append(notebook, BYTES, "kv_bytes_per_token(None)\nexit()")


@honest(MASK)
def the_raise_was_left_below_the_return(notebook):
    replace(notebook, MASK, RETURN_MASK, f"{RETURN_MASK}\n    raise NotImplementedError('TODO')")


@honest(MASK)
def what_was_tried_before_stands_above(notebook):
    source = """
    def causal_mask(query_positions, key_positions):
        return torch.tril(torch.ones(query_positions.shape[1], key_positions.shape[1]))
    """
    prepend(notebook, MASK, source)


# ---------------------------------------------------------------------------------- the file itself


@honest(MASK, BYTES)
def it_was_run_in_another_order_by_another_kernel(notebook):
    notebook.metadata.kernelspec = {"name": "conda-env-llm-py", "display_name": "llm (conda)"}
    notebook.metadata.language_info = {"name": "python", "version": "3.9.1"}
    for number, cell in enumerate(c for c in notebook.cells if c.cell_type == "code"):
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


@honest(MASK, BYTES)
def predictions_were_filled_in(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code" and "_guess = None" in cell.source:
            cell.source = cell.source.replace("_guess = None", "_guess = 42")


CORPUS = [found for found in list(vars().values()) if isinstance(found, Hostile)]
