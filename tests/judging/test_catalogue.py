"""The catalogue of misconceptions: what its format means, and what it refuses."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.judging.catalogue import catalogue, edited, misconceptions, parsed, require_current
from autograder.text import lesson
from autograder.text.reference import AuthorError, Module, read_module

MODULE = '''"""A module."""


def double(
    a: int,
    b: int = 2,
) -> int:
    """Twice the number."""
    ### BEGIN SOLUTION
    a = 0
    for _ in b:
        a += 1
        print(a)
    print(a)
    return a
    ### END SOLUTION


class Box:
    full = False

    def put(self, thing: int) -> None:
        ### BEGIN SOLUTION
        self.things = [thing]
        ### END SOLUTION

    def is_full(self) -> bool:
        return self.full
'''


@pytest.fixture
def module(tmp_path: Path) -> Module:
    path = tmp_path / "toys.py"
    path.write_text(MODULE)
    return read_module(path)


# What becomes of the stretch of `double`, its lines divided by |.
EDITS = {
    "one line": ("-a = 0\n+a = 1", "a = 1|for _ in b:|    a += 1|    print(a)|print(a)|return a"),
    "a line goes": ("-a += 1", "a = 0|for _ in b:|    print(a)|print(a)|return a"),
    "a line comes": (
        " return a\n+b()",
        "a = 0|for _ in b:|    a += 1|    print(a)|print(a)|return a|b()",
    ),
    "context tells two equal lines apart": (
        " a += 1\n-print(a)",
        "a = 0|for _ in b:|    a += 1|print(a)|return a",
    ),
    "several places": (
        "-a = 0\n+a = 1\n@@\n-return a\n+return -a",
        "a = 1|for _ in b:|    a += 1|    print(a)|print(a)|return -a",
    ),
    "a line moves out of the block": (
        "-    print(a)\n-print(a)\n+print(-a)",
        "a = 0|for _ in b:|    a += 1|print(-a)|return a",
    ),
    "the whole stretch": ("if b:\n    return b\nreturn 0", "if b:|    return b|return 0"),
    "the whole stretch in a line": ("`return b`", "return b"),
    "part of a line": (
        "`+= 1` → `+= 2`",
        "a = 0|for _ in b:|    a += 2|    print(a)|print(a)|return a",
    ),
    "parts of several lines": (
        "`a += 1` → `a += f(b, c)`, `return a` → `return -a`",
        "a = 0|for _ in b:|    a += f(b, c)|    print(a)|print(a)|return -a",
    ),
    "what is left out": ("no `a += `", "a = 0|for _ in b:|    1|    print(a)|print(a)|return a"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_changes_what_it_names_whatever_its_margin(name: str, module: Module) -> None:
    form, expected = EDITS[name]
    lines = edited(module, "double", [form], "here").split("\n")
    body = [line.removeprefix("    ") for line in lines[5:] if "###" not in line]
    assert lines[:5] == MODULE.split("\n")[3:8]
    assert "|".join(body) == expected


def test_the_signature_is_part_of_the_function(module: Module) -> None:
    assert "    b: int = 3,\n" in edited(module, "double", ["-b: int = 2,\n+b: int = 3,"], "")


def test_of_a_class_only_the_method_changes(module: Module) -> None:
    source = edited(
        module, "Box.put", ["-self.things = [thing]\n+self.things.append(thing)"], "here"
    )
    assert source.startswith("class Box:\n    full = False\n")
    assert "        self.things.append(thing)\n" in source
    assert source.endswith("        return self.full")


@pytest.mark.parametrize(
    ("form", "times"),
    [
        ("-print(a)", 2),  # ambiguous
        ("-a = 5\n+a = 1", 0),  # stale
        (" a = 0\n-return a", 0),  # these two don't stand together
        ("-        a = 0\n-    for _ in b:", 0),  # indented otherwise
        ("+print(a)", 0),  # nowhere
        ("-return self.full", 0),  # somewhere else
        ("`print(a)` → `print(b)`", 2),
        ("`a = 0` → `a = 1`, `a = 5` → `a = 6`", 0),
        ("no `a = 5`", 0),
    ],
)
def test_lines_that_do_not_stand_there_once_are_refused(form, times, module):
    with pytest.raises(AuthorError, match=rf"^toys\.md, x: this code occurs {times} times"):
        edited(module, "double", [form], "toys.md, x")


# ----------------------------------------------------------------------------------- the Markdown

ENTRY = """
### a_name
One sentence,
in two lines.
- `a = 0` → `a = 1` or `a = 2`
  or `a = 3`
- no `b`,
  `c` → `d`
- `return 1` or `return 2`

    -a = 0
    +a = 1
    @@
     return a
    +print()

    if b:
        return 1
"""


def test_an_entry_is_a_name_a_sentence_and_its_forms() -> None:
    (entry,) = parsed(f"# Toys\n\nProse.\n\n## toys.double\n{ENTRY}", "toys.md")["toys.double"]
    assert (entry.exercise, entry.name) == ("toys.double", "a_name")
    assert entry.sentence == "One sentence, in two lines."
    assert entry.forms == (
        *("`a = 0` → `a = 1`", "`a = 0` → `a = 2`", "`a = 0` → `a = 3`"),
        *("no `b`, `c` → `d`", "`return 1`", "`return 2`"),
        *("-a = 0\n+a = 1\n@@\n return a\n+print()", "if b:\n    return 1"),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ENTRY.replace("One sentence,\nin two lines.\n", ""), "a_name needs a sentence, and below"),
        ("\n### a_name\nA sentence alone.\n", "a_name needs a sentence, and below"),
        ("\n### a_name\nA sentence.\n-\n    a = 1\n", "a_name needs a sentence, and below"),
        (ENTRY + ENTRY, "a title occurs twice in or at toys.double"),
        (f"{ENTRY}\n## toys.double\n{ENTRY}", "a title occurs twice in or at toys.double"),
    ],
)
def test_an_incomplete_catalogue_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(AuthorError, match=rf"toys\.md: {sentence}"):
        parsed(f"## toys.double\n{text}", "toys.md")


# ------------------------------------------------------------------------------- against the labs


def test_the_catalogue_fits_the_reference_as_it_stands() -> None:
    require_current()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in place of the course's catalogues."""
    monkeypatch.setattr(lesson, "COURSE", tmp_path)
    (tmp_path / "lab01_generate").mkdir()
    catalogue.cache_clear()
    yield tmp_path / "lab01_generate" / "wrong.md"
    catalogue.cache_clear()


@pytest.mark.parametrize(
    ("exercise", "edit", "sentence"),
    [
        ("metrics", "-n = 12", r"generate/wrong\.md: generate\.metrics, slip: this code occurs 0 "),
        ("metrics", "-n = len(token_times)\n    +n = (", r"generate\.metrics, slip: .* no Python"),
        ("metric", "-n = 12", r"lab01_generate/wrong\.md: there is no exercise generate\.metric "),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_by_name(shelf, exercise, edit, sentence):
    text = f"## generate.{exercise}\n\n### slip\n\nA slip.\n\n    {edit}\n"
    shelf.write_text(text)
    with pytest.raises(AuthorError, match=sentence):
        require_current()


def test_every_judgement_gets_wrong_solutions_of_its_own(shelf: Path) -> None:
    """A mutable default of an earlier judgement must not survive into the next."""
    shelf.write_text("""## generate.metrics

### remembers

It remembers.

    -def metrics(start: float, token_times: Sequence[float]) -> Metrics:
    +def metrics(start, token_times, seen=[]):
    @@
    -n = len(token_times)
    +seen.append(token_times)
    +return len(seen)
""")
    (entry,) = misconceptions("generate.metrics")
    for _ in range(2):
        (wrong,) = entry.attempts()
        assert [wrong(0.0, [1.0]), wrong(0.0, [1.0])] == [1, 2]
    assert misconceptions("generate.generate") == ()
    assert misconceptions("kv_cache.causal_mask") == ()
