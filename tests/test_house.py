"""The house: every lab is complete, imports run one way, and the promised minutes are true."""

import re
import shutil
from itertools import chain
from pathlib import Path

import pytest

from autograder.course.lesson import LESSONS, lessons
from autograder.course.reference import GIVEN, ROOT, import_name, parts_of
from autograder.exercises import exercises
from tests.common.house import (
    imports,
    lacking,
    minutes_needed,
    promised_in_lesson,
    promised_in_readme,
    readme_line,
)

LABS = list(lessons())


# ------------------------------------------------------------------------------- complete labs


def test_no_lab_lacks_anything() -> None:
    assert list(lacking(ROOT, exercises())) == []


CARD = """<!-- #region exercise="sampling.top_p" title="Nucleus" points=2 difficulty=2 minutes=9 -->
Behind the logits.

**Hint 1.** A question.

**Hint 2.** An answer.

**Hint 3.** The code.

```python
____
```
<!-- #endregion -->
"""
REGISTERED = {"sampling.top_p"}
SOLUTION = "def top_p():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n"
COMPLETE = {
    "solutions/lessons/05_sampling.md": f"# Lab 5\n\n{CARD}",
    "solutions/sampling.py": SOLUTION,
    "visuals/sampling.py": "",
    "autograder/drivers/sampling.py": "",
    "autograder/exercises/sampling.py": "",
    "autograder/misconceptions/sampling.md": (
        "## sampling.top_p\n\n### none\n\nNone.\n\n    -return 1\n    +return 0\n"
    ),
    "labs/05_sampling/sampling.ipynb": "{}",
    "tests/solutions/test_sampling.py": "",
    "tests/visuals/test_visuals_sampling.py": "",
    "tests/answers/sampling.py": "",
    "timing/rows/sampling.py": 'about = "draws of its own (lab 5)"',
    "timing/table/techniques.py": "from timing.rows import hf, sampling",
    "README.md": "| lab | you build | time |\n| [5 · sampling](labs/05) | a draw | 1 h |\n",
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("house")
    for name, content in COMPLETE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    return root


def test_a_lab_with_all_its_files_lacks_nothing(complete: Path) -> None:
    assert list(lacking(complete, REGISTERED)) == []


@pytest.mark.parametrize("name", [name for name in COMPLETE if "lessons" not in name])
def test_a_missing_file_or_line_is_named(name: str, complete: Path, tmp_path: Path) -> None:
    house = shutil.copytree(complete, tmp_path / "house")
    (house / name).unlink()
    (sentence,) = lacking(house, REGISTERED)
    assert name in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("name", "old", "sentence"),
    [
        ("solutions/lessons/05_sampling.md", CARD, "05_sampling.md has no card with hints for"),
        (
            "solutions/lessons/05_sampling.md",
            "**Hint 2.** An answer.",
            "the card of sampling.top_p",
        ),
        ("autograder/misconceptions/sampling.md", ".top_p", "has nothing for sampling.top_p."),
        ("timing/rows/sampling.py", "(lab 5)", "has no row that ends with (lab 5)."),
        ("timing/table/techniques.py", ", sampling", "leaves the rows of sampling out."),
        ("README.md", "sampling", "has no line | [5 · sampling] in its table of labs."),
    ],
)
def test_a_gap_in_a_file_is_named(
    name: str, old: str, sentence: str, complete: Path, tmp_path: Path
) -> None:
    house = shutil.copytree(complete, tmp_path / "house")
    text = (house / name).read_text(encoding="utf-8")
    assert old in text
    (house / name).write_text(text.replace(old, ""), encoding="utf-8")
    (found,) = lacking(house, REGISTERED)
    assert sentence in found


def test_a_solution_that_is_no_exercise_is_named(complete: Path) -> None:
    (found,) = lacking(complete, registered=())
    assert found == "autograder/exercises/sampling.py has no exercise sampling.top_p."


# ------------------------------------------------------------------------- imports run one way


def ours(path: Path) -> set[str]:
    return {name for name in imports(path) if (ROOT / name.split(".")[0]).is_dir()}


SEEN = "autograder.drivers.seen"
# What the drivers of several labs share, by lab; each of them must be able to import it.
SHARED = dict.fromkeys(("engine", "disaggregation"), ("autograder.drivers.queues",))


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_needs_earlier_solutions_only(lab: str) -> None:
    given, own = GIVEN.get(lab, ()), parts_of(lab)
    before = [(*GIVEN.get(other, ()), *parts_of(other)) for other in LABS[: LABS.index(lab)]]
    earlier = [import_name(part) for part in (*chain(*before), *given)]
    files = {f"solutions/{name}.py": earlier for name in given}
    files |= {
        f"solutions/{name}.py": [*earlier, *(import_name(other) for other in own[:number])]
        for number, name in enumerate(own)
    }
    files |= {f"autograder/drivers/{lab}.py": [*earlier, *SHARED.get(lab, ()), SEEN]}
    files |= {f"{name.replace('.', '/')}.py": [*earlier, SEEN] for name in SHARED.get(lab, ())}
    for file, allowed in files.items():
        doors = tuple(f"{name}." for name in allowed)
        assert {name for name in ours(ROOT / file) if not f"{name}.".startswith(doors)} == set()


def test_the_records_of_drivers_need_nothing_of_the_course() -> None:
    assert ours(ROOT / "autograder" / "drivers" / "seen.py") == set()


def test_no_test_module_imports_another() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 20
    both = {(file.name, name) for file in files for name in imports(file)}
    assert {(f, name) for f, name in both if re.match(r"tests\.test_|test_", name)} == set()


# ------------------------------------------------------------------------------- true minutes


@pytest.mark.parametrize("lab", LABS)
def test_the_promised_minutes_are_those_that_it_takes(lab: str) -> None:
    lesson = lessons()[lab]
    needed = minutes_needed(LESSONS / f"{lesson.name}.md")
    quarters = 15 * round(needed / 15)
    assert promised_in_lesson(LESSONS / f"{lesson.name}.md") == quarters, needed
    assert promised_in_readme(readme_line(ROOT, lesson) or "") == quarters, needed


@pytest.mark.parametrize(
    ("promise", "minutes"),
    [("75 minutes", 75), ("2 hours 45 minutes", 165), ("1 hour", 60), ("two hours", None)],
)
def test_a_promise_is_read_from_the_lesson(promise: str, minutes: int, tmp_path: Path) -> None:
    path = tmp_path / "01_one.md"
    path.write_text(f"# One\n\nTen lines, and about {promise} in all.\n")
    assert promised_in_lesson(path) == minutes


@pytest.mark.parametrize(("cell", "minutes"), [("1 h 15", 75), ("2 h", 120), ("45 min", 45)])
def test_a_promise_is_read_from_the_readme(cell: str, minutes: int) -> None:
    assert promised_in_readme(f"| [5 · sampling](labs) | a draw | {cell} |") == minutes


def test_hints_and_model_answers_take_no_time(tmp_path: Path) -> None:
    path = tmp_path / "05_sampling.md"
    question = '<!-- #region answer="why" points=2 -->\nBecause it is so.\n<!-- #endregion -->\n'
    path.write_text(f"{'word ' * 240}\n\n```python\n1\n```\n\n{CARD}\n{question}")
    assert minutes_needed(path) == 9 + 2 + 0.5 + 5
