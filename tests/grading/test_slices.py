"""What of a notebook is run for an exercise: what its name needs, and nothing else."""

from typing import Any

import pytest

from autograder.attempt.notebook import NotDefined, run_for

RETURNS_1 = "def f():\n    return 1"


def names_of(*cells: str, wanted: str = "f") -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    run_for(wanted, list(cells), names)
    return names


def value_of(*cells: str) -> Any:
    """What the `f` of a notebook returns."""
    return names_of(*cells)["f"]()


def said_of(*cells: str) -> str:
    with pytest.raises(NotDefined) as raised:
        names_of(*cells)
    return str(raised.value)


# ------------------------------------------------------------------------------- what is taken

TAKEN = {
    "a helper in an earlier cell": ["def g():\n    return 1", "def f():\n    return g()"],
    "a helper in a later cell": ["def f():\n    return g()", "def g():\n    return 1"],
    "a helper of a helper": [
        "def g():\n    return h()\n\ndef f():\n    return g()",
        "h = lambda: ONE\nONE = 1",
    ],
    "a constant": ["ONE = 1\ndef f():\n    return ONE"],
    "a constant with a type": ["ONE: int = 1\ndef f():\n    return ONE"],
    "constants beside each other": ["A = 2; B = 1\ndef f(): return A - B"],
    "what is unpacked": ["a, (b, *c) = 3, (2, 1)\ndef f():\n    return c[0]"],
    "what grows": ["n = 0", "n += 1", "def f():\n    return n"],
    "what is put into a table": ["T = {}", "T['one'] = 1", "def f():\n    return T['one']"],
    "a default": ["ONE = 1\ndef f(n=ONE):\n    return n"],
    "an import": ["import math", "def f():\n    return math.floor(1.5)"],
    "an import under another name": ["import os.path as p", "def f():\n    return len(p.sep)"],
    "a module of a package": ["import os.path", "def f():\n    return len(os.path.sep)"],
    "a star import": ["from math import *", "def f():\n    return floor(1.5)"],
    "an import that may fail": [
        "try:\n    import no_such_thing as np\nexcept ImportError:\n    np = None",
        "def f():\n    return 1 if np is None else 0",
    ],
    "an if": ["if True:\n    ONE = 1\nelse:\n    ONE = 2", "def f():\n    return ONE"],
    "a loop": ["for n in (3, 2, 1):\n    pass", "def f():\n    return n"],
    "a with": [
        "from contextlib import suppress\nwith suppress(ValueError):\n    n = 1",
        "def f():\n    return n",
    ],
    "a match": ["match [2, 1]:\n    case [_, n]:\n        pass", "def f():\n    return n"],
    "a decorator of its own": [
        "from functools import wraps",
        "def other(g):\n    @wraps(g)\n    def made():\n        return g() - 1\n    return made",
        "@other\ndef f():\n    return 2",
    ],
    "a class that it uses": [
        "ONE = 1",
        "class A:\n    one = ONE\n    def value(self):\n        return self.one",
        "def f():\n    return A().value()",
    ],
    "a lambda": ["f = lambda: 1"],
    "a global by mistake": ["n = 1", "def f():\n    total = n\n    return total"],
    "a global that it changes": ["n = 0", "def f():\n    global n\n    n += 1\n    return n"],
    "what is only there by exec": ["exec('def f(): return 1')"],
    "what is only there by globals()": ["globals()['f'] = lambda: 1"],
    "lines that end in another way": ["ONE = 1\r\n\r\ndef f():\r\n    return ONE\r\n"],
    "the last definition": ["def f():\n    return 2", "def f():\n    return 3", RETURNS_1],
    "the last value": ["ONE = 2\ndef f():\n    return ONE", "ONE = 1"],
    "a name inside, not the one outside": [
        "n = 0 / 0",
        "def f():\n    n = 1\n    return [n for n in [n]][0]",
    ],
    "what was there before a crash": [RETURNS_1, "TWO = 0 / 0\ndef f():\n    return TWO"],
    "a line separator in a comment": ["# one\u2028two\nONE = 1\ndef f():\n    return ONE"],
    "a form feed between functions": ["ONE = 1\n\x0c\n\x0c\ndef f():\n    return ONE"],
    "a form feed above the function": [
        "\x0cdef g():\n    return 1\n\x0c\ndef f():\n    return g()"
    ],
    "annotations from the future": [
        "from __future__ import annotations",
        "class A:\n    def me(self) -> A:\n        return self",
        "def f():\n    return len([A().me()])",
    ],
    "a list that is appended to": ["ALL = []\nALL.append(1)", "def f():\n    return len(ALL)"],
    "a dict that is updated": ["ALL = {}\nALL.update(n=1)", "def f():\n    return ALL.get('n')"],
    "a walrus in a comprehension": ["n = 0\nm = [n := n + 1 for _ in '1']\ndef f(): return n"],
    "the rest of a sequence": [
        "match [2, 1]:\n    case [_, *rest]:\n        pass",
        "def f():\n    return len(rest)",
    ],
    "the rest of a mapping": [
        "match {'a': 2, 'b': 1}:\n    case {'a': 2, **rest}:\n        pass",
        "def f():\n    return len(rest)",
    ],
    "a cell that is indented": ["    n = 1\n    def f():\n        return n"],
    "a cell with prompts": [">>> def f():\n...     return 1"],
    "an await beside it": [f"import asyncio\nawait asyncio.sleep(0)\n{RETURNS_1}"],
}

# Nothing of these is needed; the last ones are no Python.
OTHERS = (
    *("n = 0 / 0", "assert f() == 2", "f().nothing", "raise SystemExit", "import no_such_module"),
    *("while True: pass", "class B:\n    n = 0 / 0", "B = type(0 / 0)\nC = B()"),
    "print(f(), undefined)",
)
NO_PYTHON = "def g(:", "return 1", "x = '\0'", "# \ud800", "(" * 500, "for"
BESIDE = "%matplotlib inline", "!ls -la", "files = !ls", "len?", "?len", "%timeit f()", "%%time"
OTHER_LANGUAGES = "%%bash", "%%writefile f.py", "%%html", "%%timeit"
LOOKS_LIKE_A_MAGIC = (
    '"""Why?\n    %% of it?\n    !x\n    """',
    "n = 7 \\\n      % 3  # really?",
    "n = (1\n    != 2)",
    'n = f"{len=!r}"',
)
ALSO_TAKEN = [
    *([f"{other}\n\n{RETURNS_1}"] for other in OTHERS),
    *([f"{RETURNS_1}\n\n{other}"] for other in OTHERS),
    *([other, RETURNS_1] for other in (*OTHERS, *NO_PYTHON)),
    *([RETURNS_1, other] for other in OTHERS),
    *([f"{magic}\n{RETURNS_1}"] for magic in BESIDE),
    *([RETURNS_1, f"{magic}\ndef f():\n    return 2"] for magic in OTHER_LANGUAGES),
    *([f"def f():\n    {line}\n    return 1"] for line in LOOKS_LIKE_A_MAGIC),
]


@pytest.mark.parametrize(
    "cells", [*TAKEN.values(), *ALSO_TAKEN], ids=[*TAKEN, *map(ascii, ALSO_TAKEN)]
)
def test_what_it_needs_is_taken_and_nothing_else_costs_anything(cells: list[str]) -> None:
    assert value_of(*cells) == 1


@pytest.mark.parametrize(
    "later",
    [
        "A.f = f",
        "setattr(A, 'f', f)",
        "A.f = A.g = f",
        "class A(A):\n    def f(self):\n        return f(self)",
        "for name in 'fg':\n    setattr(A, name, f)",
    ],
)
def test_a_method_may_be_attached_later(later: str) -> None:
    names = names_of("class A:\n    pass", "def f(self):\n    return 1", later, wanted="A")
    assert names["A"]().f() == 1


def test_nothing_else_is_run() -> None:
    assert "g" not in names_of("def g():\n    return 2\nn = 1", RETURNS_1)


# ------------------------------------------------------------------------------- an error in it


def test_an_error_ends_its_cell_and_no_other() -> None:
    crashing = "ONE = 1\nTWO = 0 / 0\nTHREE = 3"
    get = "def f():\n    return [n for n in ('ONE', 'TWO', 'THREE') if n in globals()]"
    assert value_of(crashing, f"{get}\n    return ONE, TWO, THREE") == ["ONE"]


@pytest.mark.parametrize("error", ["import sys\nONE = sys.exit(3)", "ONE = exit()", "ONE = [][1]"])
def test_whatever_is_raised_ends_only_its_cell(error: str) -> None:
    with pytest.raises(NameError):
        value_of(error, "def f():\n    return ONE")


# ------------------------------------------------------------------------------------- magics


@pytest.mark.parametrize("magic", ["%%time", "%%capture output", "\n%%prun -s cumulative"])
def test_a_magic_for_a_whole_cell_leaves_its_lines_where_they_are(magic: str) -> None:
    names = names_of(f"{magic}\n{RETURNS_1}")
    assert names["f"].__code__.co_firstlineno == magic.count("\n") + 2


# ---------------------------------------------------------------------------------- what is told


NONE = "The notebook defines no `f`."
OWN = "The cell that defines `f` did not run"
ABOVE = "`f` is not defined: a cell above did not run"
SAID = [
    ([], NONE),
    (["", "# def f", "n = 1"], NONE),
    ([RETURNS_1, "del f"], NONE),
    (["n = 1", "def f(:"], f"{OWN} (SyntaxError: invalid syntax (<cell 2>, line 1))."),
    (["ONE = 0 / 0\ndef f(): return ONE"], f"{OWN} (ZeroDivisionError: division by zero)."),
    ([f"@nothing\n{RETURNS_1}"], f"{OWN} (NameError: name 'nothing' is not defined)."),
    (["g = (:", "n = 1"], f"{ABOVE} (SyntaxError: invalid syntax (<cell 1>, line 1))."),
]


@pytest.mark.parametrize(("cells", "said"), SAID, ids=str)
def test_where_it_is_not_defined_the_error_that_may_be_the_reason_is_told(cells, said) -> None:
    assert said_of(*cells) == said


def test_no_more_than_a_few_lines_are_told() -> None:
    assert len(said_of("f = int('x' * 10_000)")) < 400


def test_what_a_call_does_behind_a_names_back_is_not_followed() -> None:
    with pytest.raises(NameError):
        value_of("def begin():\n    global n\n    n = 1\n\nbegin()", "def f():\n    return n")
    add = "ALL = []\n\ndef add(g):\n    ALL.append(g)\n    return g"
    assert value_of(add, "@add\ndef g(): pass", "def f():\n    return len(ALL)") == 0
