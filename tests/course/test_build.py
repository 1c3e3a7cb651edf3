"""The lesson build: what it makes of a lesson, what it refuses, and the gates on the real labs."""

import builtins
import filecmp
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from symtable import SymbolTable, symtable

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator

from autograder.build import build, main, read_modules, stretches
from autograder.exercises import exercises
from autograder.judging.exercise import Exercise
from autograder.text.lesson import lessons
from autograder.text.reference import SOLUTIONS, AuthorError
from tests.common.course import built_course
from tests.common.telling import bare_lines, telling_lines

ROOT = Path(__file__).resolve().parents[2]
NAMES = [lesson.name for lesson in lessons().values()]


def test_there_are_lessons_to_look_at():
    assert NAMES[:2] == ["01_generate", "02_kv_cache"]


def lab_path(name: str, course: Path = ROOT) -> Path:
    return course / "labs" / name / f"{name[3:]}.ipynb"


def source_path(name: str, course: Path) -> Path:
    return course / "autograder" / "source" / name / f"{name[3:]}.ipynb"


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def is_check(cell) -> bool:
    return cell.id.startswith("check-")


# -------------------------------------------------------------------------- gates on the real labs


@pytest.fixture(scope="module")
def rebuilt() -> Path:
    return built_course()


@pytest.mark.parametrize("name", NAMES)
def test_building_again_gives_the_labs_as_they_stand(name, rebuilt):
    assert lab_path(name).read_bytes() == lab_path(name, rebuilt).read_bytes(), (
        f"{lab_path(name)} is not what the lessons say. Edit lessons only, then run make labs."
    )


def test_labs_hold_no_notebook_without_a_lesson():
    assert [path.parent.name for path in sorted(ROOT.glob("labs/*/*.ipynb"))] == NAMES


@pytest.mark.soak  # that labs/ is built again, above, shows it of what is released
def test_another_process_builds_the_same_bytes(rebuilt, tmp_path):
    code = (
        "from pathlib import Path; from autograder.build import build, exercises; "
        f"build(Path({str(ROOT)!r}), Path({str(tmp_path)!r}), exercises())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    files = [path.relative_to(rebuilt).as_posix() for path in rebuilt.rglob("*.ipynb")]
    assert len(files) == 2 * len(NAMES)
    assert filecmp.cmpfiles(rebuilt, tmp_path, files, shallow=False)[0] == files


def test_every_solution_has_an_exercise_and_every_exercise_a_check_cell(rebuilt):
    checked = [
        cell.source.split('"')[1]
        for name in NAMES
        for cell in read(lab_path(name, rebuilt)).cells
        if is_check(cell)
    ]
    assert checked
    written = [
        name for name in stretches(read_modules(SOLUTIONS)) if name.split(".")[0] in lessons()
    ]
    assert sorted(checked) == sorted(written) == sorted(exercises())


def code_lines(path: Path) -> set[str]:
    return {line for cell in read(path).cells for line in bare_lines(cell.source)}


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_a_solution_stands_in_the_lab(name, rebuilt):
    lines = telling_lines(name[3:])
    assert len(lines) >= 5
    assert code_lines(source_path(name, rebuilt)).issuperset(lines)
    assert code_lines(lab_path(name)).isdisjoint(lines)


@pytest.mark.parametrize("name", NAMES)
def test_no_model_answer_stands_in_the_lab(name, rebuilt):
    solved, released = read(source_path(name, rebuilt)), read(lab_path(name))
    answers = [
        (cell.source, lab_cell.source)
        for cell, lab_cell in zip(solved.cells, released.cells, strict=True)
        if cell.cell_type == "markdown" and "nbgrader" in cell.metadata
    ]
    assert answers
    for model_answer, stub in answers:
        assert stub == "YOUR ANSWER HERE"
        assert model_answer != stub


@pytest.mark.parametrize("name", NAMES)
def test_a_lab_is_a_clean_notebook_that_nbgrader_takes(name):
    lab = read(lab_path(name))
    nbformat.validate(lab)
    MetadataValidator().validate_nb(lab)
    assert lab.metadata.kernelspec == {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    code = [cell for cell in lab.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert not any(cell.get("attachments") for cell in lab.cells)


# ---------------------------------------------------------------------- the build on a small course

MODULE = '''"""A module."""

from functools import cache

LIMIT = 3


@cache
def double(number: int) -> int:
    """Twice the number."""
    ### BEGIN SOLUTION
    doubled = number + number
    return doubled
    ### END SOLUTION


# What stands between objects belongs to neither.


class Box:
    def put(self, thing: int) -> None:
        self.last = thing
        ### BEGIN SOLUTION
        self.things = [thing]
        ### END SOLUTION

    def take(self) -> int:
        ### BEGIN SOLUTION
        return self.things.pop()
        ### END SOLUTION


def given() -> int:
    return LIMIT
'''


def card(name: str, points: int) -> str:
    return f"""<!-- #region exercise="{name}" title="Title of {name}" points={points} difficulty=2 minutes=10 -->
Under the bed.

**Hint 1.** Think.

**Hint 2.** Look.

**Hint 3.**

```python
____
```
<!-- #endregion -->"""  # noqa: E501


LESSON = f"""# Toys

```python
from functools import cache
```

{card("toys.double", 3)}

```python from="toys.LIMIT toys.double"
```

Between, there are about {{lines}} lines to write.

{card("toys.Box.put", 1)}

{card("toys.Box.take", 2)}

```python from="toys.Box" tags=["wide"]
```

```python from="toys.given"
```

<!-- #region answer="why" points=2 -->
Because of the model answer.
<!-- #endregion -->
"""


ANSWER = LESSON[LESSON.index("<!-- #region answer") :]


def exercise(name: str) -> Exercise:
    return Exercise(name, driver=lambda attempt: [], cases=lambda generator: [])


class Course:
    """A repository in a temporary folder, with one lesson about one module."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = {
            name: exercise(name) for name in ("toys.double", "toys.Box.put", "toys.Box.take")
        }
        self.module = root / "solutions" / "toys.py"
        self.lesson = root / "course" / "lab01_toys" / "lesson.md"
        self.lab = lab_path("01_toys", root)
        self.source = source_path("01_toys", root)
        self.lesson.parent.mkdir(parents=True)
        self.module.parent.mkdir()
        self.lesson.write_text(LESSON)
        self.module.write_text(MODULE)
        (root / "gpt.py").write_text("class GPTAttention:\n    pass\n")

    def build(self) -> list[Path]:
        return build(self.root, self.root, self.registry)

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Course:
    course = Course(tmp_path_factory.mktemp("toys"))
    assert course.build() == [course.source, course.lab]
    return course


@pytest.fixture
def course(tmp_path, built) -> Course:
    course = Course(tmp_path)
    (tmp_path / "autograder").mkdir()  # an empty gradebook takes seconds to make
    shutil.copy(built.root / "autograder" / "gradebook.db", tmp_path / "autograder")
    return course


def test_where_nbgrader_could_make_no_gradebook_it_says_so_at_once(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match=r"can't be started: .*alembic.* Activate the course's"):
        main()


def test_a_quoted_object_comes_whole_from_its_module(built):
    cells = {cell.id: cell.source for cell in read(built.source).cells}
    constant, function = cells["toys-double"].split("\n\n\n")
    assert constant == "LIMIT = 3"
    assert function.startswith("@cache\ndef double")
    assert function.endswith("    ### END SOLUTION")
    assert "def given() -> int:\n    return LIMIT" in cells.values()


def test_the_student_gets_a_todo_in_place_of_the_solution(built):
    (cell,) = [cell for cell in read(built.lab).cells if cell.id == "toys-double"]
    assert cell.source.endswith(
        '    """Twice the number."""\n'
        "    # TODO: write this part\n"
        '    raise NotImplementedError("This TODO is not written yet.")'
    )


def test_every_exercise_has_a_card_before_it_and_a_locked_check_after_it(built):
    cells = read(built.lab).cells
    assert "about 2 lines" in next(cell.source for cell in cells if "toys.double" in cell.source)
    assert "Think." not in str(cells)  # it is a hint
    place = [cell.id for cell in cells].index("toys-Box-put")
    put_card, take_card, _, put, take = cells[place - 2 : place + 3]
    for text in ("Title of toys.Box.take", "2 of 5", "10 min", "1 line", "Under the bed."):
        assert text in take_card.source
    assert 'hint("toys.Box.put")' in put_card.source
    assert cells[place].metadata.tags == ["wide"]
    assert put.source == 'check("toys.Box.put", Box)'
    assert take.source == 'check("toys.Box.take", Box)'
    assert [cell.metadata.nbgrader.points for cell in (put, take)] == [1, 2]
    assert all(cell.metadata.nbgrader.locked and not cell.metadata.editable for cell in (put, take))


def test_the_lines_of_a_lab_are_added_up_to_the_nearest_five(built):
    said = [cell.source for cell in read(built.lab).cells if cell.source.startswith("Between")]
    assert said == ["Between, there are about 5 lines to write."]


def test_an_answer_is_graded_by_hand(built):
    solved, released = (
        next(cell for cell in read(path).cells if cell.id == "why")
        for path in (built.source, built.lab)
    )
    assert solved.source == "Because of the model answer."
    assert released.source == "YOUR ANSWER HERE"
    settings = released.metadata.nbgrader
    assert (settings.grade, settings.solution, settings.locked) == (True, True, False)
    assert settings.points == 2


def test_an_edit_elsewhere_leaves_the_ids_of_other_cells(course):
    course.build()
    before = [cell.id for cell in read(course.lab).cells]
    course.edit(course.lesson, "to write.\n", "to write.\n\n```python\nx = 1\n```\n")
    course.build()
    after = [cell.id for cell in read(course.lab).cells]
    assert len(after) == len(before) + 1
    assert [id for id in after if id in before] == before


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("toys.given", "toys.g", r"lab01_toys/lesson\.md, cell \d+: toys\.py defines no 'g'"),
        ("toys.given", "toys.givn", r"defines no 'givn'.*mean given\?"),
        ("toys.given", "toys.Box.put", r"defines no 'Box\.put'.*mean Box\?"),
        ("toys.given", "toy.given", r"no module 'toy'.*quote from gpt, toys"),
        ("toys.given", "", r"no module ''"),
        ("toys.given", "toys", r"toys\.py defines no ''"),
        ('"toys.given"\n', '"toys.given"\nx = 1\n', r"cell with from= .* must be empty"),
        ("toys.given", "toys.Box", r"toys-Box-put occurs twice"),
        (
            'from="toys.Box"',
            'from="gpt.GPTAttention"',
            r"exercise toys\.Box\.put is in 0 lessons",
        ),
        ("from functools import cache", "### BEGIN SOLUTION", r"cell 2 contains a solution"),
        (" points=2 -->\nBec", " -->\nBec", r"lesson\.md: a region that begins with answer has"),
        (card("toys.Box.put", 1), "", r"toys\.Box\.put has no card before it"),
        ('exercise="toys.Box.put', 'exercise="toys.Box.pot', r"card of toys\.Box\.pot, but no"),
        (
            card("toys.Box.put", 1),
            card("toys.double", 1),
            r"card of toys\.double occurs twice",
        ),
        ("**Hint 2.** Look.", "", r"the card of toys\.double needs .*Hint 3"),
        ("difficulty=2", "difficulty=7", r"difficulty of toys\.double must be 1 to 5"),
        (" minutes=10", "", r"a region that begins with exercise has .*minutes=…"),
        ('"why"', '"why not?"', r"answer='why not\?' must be lower-case words"),
        ('answer="why"', 'form="why"', r"'form' has no meaning on a markdown cell.*answer"),
        ("Between, there", ANSWER, r"why occurs twice"),
    ],
)
def test_a_wrong_lesson_is_refused_with_a_sentence(course, old, new, sentence):
    course.edit(course.lesson, old, new)
    with pytest.raises(AuthorError, match=sentence):
        course.build()
    assert not course.lab.exists()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "doubled\n    ### END SOLUTION\n",
            "doubled\n",
            r"line 22: .* before this one has no ### END",
        ),
        (
            "pop()\n        ### END SOLUTION\n",
            "pop()\n",
            r"the solution in line 28 has no ### END",
        ),
        ("### BEGIN SOLUTION\n        return", "return", r"line 29: .* has no ### BEGIN"),
        ("LIMIT = 3", "### BEGIN SOLUTION\n### END SOLUTION", r"line 5: .* is not in a function"),
        ("def take", "def pick", r"a solution in toys\.Box\.pick, but there is no such exercise"),
    ],
)
def test_a_wrong_module_is_refused_with_a_sentence(course, old, new, sentence):
    course.edit(course.module, old, new)
    with pytest.raises(AuthorError, match=sentence):
        course.build()


def an_exercise_more(course):
    course.registry["toys.more"] = exercise("toys.more")


def the_same_exercise_again(course):
    again = f'{card("toys.double", 3)}\n\n```python from="toys.double"\n```\n'
    other = course.root / "course" / "lab02_again" / "lesson.md"
    other.parent.mkdir()
    other.write_text(again)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (an_exercise_more, r'toys\.more is in 0 lessons .*from="toys\.more"'),
        (the_same_exercise_again, r"toys\.double is in 2 lessons"),
        (
            lambda course: course.lesson.parent.rename(course.root / "course" / "toys"),
            r"toys: name a lab's folder like lab02_kv_cache\.",
        ),
        (lambda course: course.lesson.unlink(), "There are no lessons in"),
    ],
)
def test_a_course_that_does_not_fit_together_is_refused(course, spoil, sentence):
    spoil(course)
    with pytest.raises(AuthorError, match=sentence):
        course.build()


def test_what_the_build_did_not_write_is_refused_and_kept(course):
    course.lab.parent.mkdir(parents=True)
    course.lab.write_text("my own work")
    with pytest.raises(AuthorError, match=r"labs/01_toys/toys\.ipynb was changed by hand, or"):
        course.build()
    assert course.lab.read_text() == "my own work"
    assert not course.source.exists()


def test_what_was_edited_after_the_build_is_refused_and_kept(course):
    course.build()
    course.edit(course.lab, "# TODO: write this part", "return 2 * number")
    edited = course.lab.read_text()
    with pytest.raises(AuthorError, match="was changed by hand"):
        course.build()
    assert course.lab.read_text() == edited


def test_what_was_only_run_is_replaced(course):
    course.build()
    released = course.lab.read_bytes()
    course.edit(course.lab, '"execution_count": null', '"execution_count": 7')
    course.build()
    assert course.lab.read_bytes() == released


def test_other_files_stay_and_labs_without_a_lesson_go(course):
    course.build()
    notes = course.lab.parent / "notes.txt"
    notes.write_text("mine")
    course.lesson.parent.rename(course.root / "course" / "lab03_toys")
    course.build()
    assert not course.lab.exists()
    assert notes.read_text() == "mine"
    assert lab_path("03_toys", course.root).exists()


def test_an_edited_lab_without_a_lesson_stays(course):
    course.build()
    course.edit(course.lab, "# Toys", "# My toys")
    course.lesson.parent.rename(course.root / "course" / "lab03_toys")
    course.build()
    assert course.lab.exists()


# ------------------------------------------------------------------------- a cell is run again


def tables(table: SymbolTable) -> Iterator[SymbolTable]:
    yield table
    for inner in table.get_children():
        yield from tables(inner)


def names_of(cell: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell binds, imports aside, and those that it needs from elsewhere."""
    top = symtable(cell, "cell", "exec")
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}
    outside = [symbol for symbol in top.get_symbols() if symbol.is_referenced()]
    outside += [s for table in tables(top) for s in table.get_symbols() if s.is_global()]
    return bound, {symbol.get_name() for symbol in outside} - bound


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_can_be_run_again(name: str) -> None:
    """A name that another cell reads is bound in one cell, or an earlier one would spoil it."""
    cells = [names_of(c.source) for c in read(lab_path(name)).cells if c.cell_type == "code"]
    for one in set[str]().union(*(bound for bound, _ in cells)):
        _, *again = [number for number, (bound, _) in enumerate(cells) if one in bound]
        readers = [number for number, (_, needed) in enumerate(cells) if one in needed]
        assert not again or max(readers, default=0) <= again[0], one


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_finds_the_names_that_it_reads(name: str) -> None:
    known = {*dir(builtins), "__name__"}
    for cell in read(lab_path(name)).cells:
        if cell.cell_type == "code":
            symbols = symtable(cell.source, "cell", "exec").get_symbols()
            own = {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
            needed = {symbol.get_name() for symbol in symbols if symbol.is_referenced()}
            assert needed <= known | own, cell.source
            known |= own
