"""Every lab is complete, imports run one way, and the promised minutes are right."""

import ast
import re
from itertools import chain
from pathlib import Path

import jupytext
import pytest

from autograder.judging.catalogue import CATALOGUES
from autograder.text.imports import files_used, imports
from autograder.text.lesson import LESSONS, lessons
from autograder.text.reference import ROOT, SOLUTIONS, importing, parts_of
from start.drawing import TRACKS

LABS = list(lessons())
every_lab = pytest.mark.parametrize("lab", LABS)


def section(title: str) -> str:
    """Return the text below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


# ------------------------------------------------------------------------------- complete labs

SCHEDULING = [  # the files of the lab that CONTRIBUTING.md uses as its example
    file
    for row in re.findall(r"^\| (`.+?) \|", section("The files of a lab"), re.MULTILINE)
    for file in re.findall(r"`(.+?)`", row)
]
TOGETHER = {f"tests/solutions/test_{lab}.py" for lab in ("generate", "kv_cache")}


@pytest.mark.parametrize("file", SCHEDULING)
@every_lab
def test_a_lab_has_all_the_files_of_the_list(lab: str, file: str) -> None:
    own = parts_of(lab)[-1] if file.startswith("solutions/") else lab
    file = file.replace("09_scheduling", lessons()[lab].name).replace("scheduling", own)
    assert (ROOT / ("tests/solutions/test_solutions.py" if file in TOGETHER else file)).exists()


@every_lab
def test_a_lab_has_rows_on_the_table(lab: str) -> None:
    about = f"(lab {LABS.index(lab) + 1})"
    rows = (ROOT / "timing" / "rows" / f"{lab}.py").read_text(encoding="utf-8")
    assert about in rows, f"No row of timing/rows/{lab}.py says {about}."


# ------------------------------------------------------------------------- imports run one way


@every_lab
def test_a_lab_needs_earlier_solutions_only(lab: str) -> None:
    later = LABS[LABS.index(lab) + 1 :]
    answers = {SOLUTIONS / f"{part}.py" for part in chain(*map(parts_of, later))}
    driver = f"import autograder.attempt.drivers.{lab}"
    assert files_used([*importing([lab]), driver]).isdisjoint(answers)


def test_no_test_module_imports_another() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 20
    both = {(file.name, name) for file in files for name in imports(file)}
    assert {(f, name) for f, name in both if re.match(r"tests\.test_|test_", name)} == set()


# ------------------------------------------------------------------------------ right minutes

WORDS_A_MINUTE, MINUTES_A_CELL, MINUTES_A_QUESTION = 120, 0.5, 5


@every_lab
def test_the_promised_minutes_are_those_that_it_takes(lab: str) -> None:
    needed = minutes_needed(lab)
    quarters = 15 * round(needed / 15)
    assert lessons()[lab].minutes == quarters, needed
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    line = rf"^\| \[{LABS.index(lab) + 1} · {lab}\].*\| (?:(\d+) h)? ?(\d+)? (?:min )?\|$"
    assert in_minutes(re.search(line, readme, re.MULTILINE)) == quarters, needed


def minutes_needed(lab: str) -> float:
    """Add up the cards' minutes and the time for reading the prose, cells and questions.

    Hints and model answers don't count.
    """
    lesson = lessons()[lab]
    cells = jupytext.read(LESSONS / f"{lesson.name}.md").cells
    prose = [
        cell.source
        for cell in cells
        if cell.cell_type == "markdown" and not {"exercise", "answer"} & set(cell.metadata)
    ]
    return (
        sum(card.minutes for card in lesson.cards.values())
        + len(" ".join(prose).split()) / WORDS_A_MINUTE
        + MINUTES_A_CELL * sum(cell.cell_type == "code" for cell in cells)
        + MINUTES_A_QUESTION * len(lesson.questions)
    )


def in_minutes(found: re.Match | None) -> int | None:
    return 60 * int(found[1] or 0) + int(found[2] or 0) if found else None


# ------------------------------------------------------------------- what a lab's head promises


@every_lab
def test_what_a_lab_wins_was_measured(lab: str) -> None:
    """Its numbers are in docs/results.md; its figure, if it is a ratio, is that of the two."""
    lesson = lessons()[lab]
    assert lesson.track in TRACKS
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    numbers = re.findall(r"\b\d[\d,.]*\d\b", lesson.wins)
    assert all(re.search(rf"(?<![\d,.]){re.escape(n)}(?![\d,]|\.\d)", results) for n in numbers)
    if lesson.figure.endswith("×"):
        one, other = sorted(float(number.replace(",", "")) for number in numbers[:2])
        assert float(lesson.figure[:-1]) == float(f"{other / one:.2g}")


# ------------------------------------------------------------------------------ American spelling

BRITISH = re.compile(
    r"\b\w*(?:neighbour|colour|behaviour|favour|honour|centre|grey|licence|labelled|modelling"
    r"|cancelled|travelled|(?:util|optim|quant|normal|token|recogn|organ|initial)is(?:e|ing|ation))"
    r"\w*",
    re.IGNORECASE,
)
PROSE = [*(ROOT / "docs").glob("*.md"), *LESSONS.glob("*.md"), *CATALOGUES.glob("*.md")]


@pytest.mark.parametrize("file", [ROOT / "README.md", *PROSE], ids=lambda file: file.name)
def test_prose_is_spelled_as_in_america(file: Path) -> None:
    names = r"```.*?```|`[^`]*`|^    .*?$|<!--.*?-->|^## \w+\.\S+$"  # of code
    text = re.sub(names, "", file.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert BRITISH.findall(text) == []


# --------------------------------------------------------------------------------------- its logs


def test_progress_bars_are_for_terminals() -> None:
    """In a log, a bar is one long line of all its states."""
    bars = {
        f"{path}:{node.lineno}": {word.arg: ast.unparse(word.value) for word in node.keywords}
        for folder in (".", "autograder", "docs", "models", "solutions", "start", "timing")
        for path in (ROOT / folder).glob("*.py" if folder == "." else "**/*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("tqdm", "trange")
    }
    assert len(bars) > 10
    assert [place for place, words in bars.items() if words.get("disable") != "None"] == []
