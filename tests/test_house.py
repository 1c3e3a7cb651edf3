"""Every lab is complete, and imports run one way."""

import ast
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from autograder.text.imports import files_used, imports
from autograder.text.lesson import COURSE, lessons
from autograder.text.reference import ROOT, importing, module_files, parts_of
from docs.tables import EXAMPLE, FILES, TABLES, written
from start.drawing import TRACKS

LABS = list(lessons())
every_lab = pytest.mark.parametrize("lab", LABS)


# ------------------------------------------------------------------------------- complete labs


@pytest.mark.parametrize("file", FILES)
@every_lab
def test_a_lab_has_all_the_files_of_the_list(lab: str, file: str) -> None:
    own = parts_of(lab)[-1] if file.startswith("solutions/") else lab
    file = file.replace(EXAMPLE, lessons()[lab].name).replace(EXAMPLE[3:], own)
    assert (ROOT / file).exists()


@pytest.mark.parametrize("file", TABLES)
def test_a_table_of_the_texts_follows_from_the_labs(file: str) -> None:
    text, (_, made) = (ROOT / file).read_text(encoding="utf-8"), TABLES[file]
    assert written(file) == text, "Run make labs."
    assert made() in text


@every_lab
def test_a_lab_has_rows_on_the_table(lab: str) -> None:
    about = f"(lab {lessons()[lab].number})"
    rows = (lessons()[lab].room / "row.py").read_text(encoding="utf-8")
    assert about in rows, f"No row of the lab's row.py says {about}."


# ------------------------------------------------------------------------- imports run one way


@every_lab
def test_a_lab_needs_earlier_solutions_only(lab: str) -> None:
    later = LABS[LABS.index(lab) + 1 :]
    driver = f"import autograder.attempt.drivers.{lab}"
    assert files_used([*importing([lab]), driver]).isdisjoint(module_files(later))


def test_no_test_module_imports_another() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 20
    both = {(file.name, name) for file in files for name in imports(file)}
    assert {(f, name) for f, name in both if re.match(r"tests\.test_|test_", name)} == set()


# ------------------------------------------------------------------------------ what is public

ROOMS = "autograder", "course", "docs", "models", "solutions", "start", "timing"
FACES = {
    *("autograder.attempt", "autograder.judging", "timing.table"),
    *(f"autograder.grading.{room}" for room in ("collect", "judge", "give_back")),
    *("solutions.engine", "solutions.router", "solutions.server"),
}


@pytest.mark.parametrize("face", sorted(FACES))
def test_a_package_says_what_others_may_import(face: str) -> None:
    package, inside = import_module(face), ROOT / face.replace(".", "/")
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    others = [f for f in files if inside not in f.parents and not f.name.startswith("test_")]
    named = {name for file in others for name in imports(file) if name.startswith(f"{face}.")}
    used = {name.removeprefix(f"{face}.").split(".")[0] for name in named}
    assert package.__doc__
    assert used <= set(package.__all__), used - set(package.__all__)
    there = {n for n in package.__all__ if n in vars(package) or find_spec(f"{face}.{n}")}
    assert there == set(package.__all__)


# ------------------------------------------------------------------- what is said of a lab


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


# --------------------------------------------------------------------------- engines' own code

PINNED = re.compile(
    r"https://github\.com/"
    r"(vllm-project/vllm|sgl-project/sglang|ggml-org/llama\.cpp|mlc-ai/xgrammar)"
    r"/blob/([0-9a-f]{40})/\S+#L\d+"
)


def real_ones(lab: str) -> str:
    text = (lessons()[lab].room / "lesson.md").read_text(encoding="utf-8")
    box = r"### Read the real one\n(.*?)\n## \d+\. In your own words"
    return "".join(re.findall(box, text, re.DOTALL))


@pytest.mark.parametrize("lab", LABS)
def test_a_lesson_ends_with_code_of_engines_that_one_can_now_read(lab: str) -> None:
    """At a commit, so that the lines stay, and with a question."""
    links = re.findall(r"\]\((.*?)\)", real_ones(lab))
    assert len(links) >= 2
    assert [link for link in links if not PINNED.fullmatch(link)] == []
    assert "**Now you can answer:**" in real_ones(lab)


@every_lab
def test_the_answer_to_a_question_in_passing_is_folded_below_it(lab: str) -> None:
    text = (lessons()[lab].room / "lesson.md").read_text(encoding="utf-8")
    asked = r"\*\*(Say it back\.|Now you can answer:)\*\* (?:.+\n)+\n"
    folded = r"<details><summary>.+</summary>\n\n(?:.+\n)+\n</details>\n"
    assert len(re.findall(asked + folded, text)) == len(re.findall(asked, text))


# ------------------------------------------------------------------------------ American spelling

BRITISH = re.compile(
    r"\b\w*(?:neighbour|colour|behaviour|favour|honour|centre|grey|licence|labelled|modelling"
    r"|cancelled|travelled|(?:util|optim|quant|normal|token|recogn|organ|initial)is(?:e|ing|ation))"
    r"\w*",
    re.IGNORECASE,
)
PROSE = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *COURSE.glob("*/*.md")]


@pytest.mark.parametrize("file", PROSE, ids=lambda file: f"{file.parent.name}/{file.name}")
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
