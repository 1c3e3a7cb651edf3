"""Right solutions in a style other than that of `solutions`: style.py of each lab.

Such a file looks like a module of `solutions`: a student's lines are between BEGIN and END
SOLUTION, in a function or method of the same name. Everything else in it is a helper. The file is
never imported, so it uses the notebook's names without importing them.
"""

from functools import cache
from typing import Any

from nbformat import NotebookNode

from autograder.text.lesson import lessons
from autograder.text.reference import Module, lab_module, read_module
from tests.common.trials import cell
from tests.hostile.notebooks import insert, released, write


@cache
def style(lab: str) -> Module:
    return read_module(lessons()[lab].room / "style.py")


def helpers(lab: str) -> str:
    """Return the helpers, which a student would write in a cell above the first TODO."""
    module = style(lab)
    spans = [module.objects[path.split(".")[0]] for path in module.stretches]
    lines = enumerate(module.lines)
    return "\n".join(line for i, line in lines if not any(i in span for span in spans))


def in_another_style(lab: str) -> NotebookNode:
    """Return the released notebook with the other style's lines in every TODO."""
    notebook, exercises = released(lab), list(lessons()[lab].cards)
    for exercise in exercises:
        path = exercise.split(".", 1)[1]
        write(notebook, exercise, "\n".join(style(lab).stretch(path)))
    return insert(notebook, exercises[0], helpers(lab))


def names_in_another_style(lab: str) -> dict[str, Any]:
    """Run such a notebook's definitions in this process. Return its names."""
    module, own = lab_module(lab), style(lab)
    lines = list(module.lines)
    for path, span in sorted(module.stretches.items(), key=lambda item: -item[1].start):
        lines[span.start : span.stop] = own.stretch(path)
    return cell("\n".join([*lines, helpers(lab)]))
