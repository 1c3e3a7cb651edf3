"""A bundle: what is in it, what must not be, and that its checks need neither reference nor course.

The lab of each bundle is done in a process that finds the bundle and nothing else of the course.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient

import workbook
from autograder.build import read_modules, solve
from autograder.exercises import exercises
from autograder.grading import bundle
from autograder.grading.bundle import FOLDER, files_of, in_bundle, release, zipped
from autograder.grading.refused import Refused
from autograder.judging.judge import judge
from autograder.judging.recorded import frames
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, SOLUTIONS, lab_module, parts_of
from tests.common.files import tree
from tests.common.mutants import attempt_of, mutants
from tests.common.telling import bare_lines, telling_lines
from tests.common.trials import EXERCISES, LABS, is_rejected, skeleton

LEARNER = ROOT / "tests" / "common" / "learner.py"
ALONE = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
# All bundles are made alike.
every_lab = pytest.mark.parametrize(
    "lab",
    [
        LABS[0],
        *(pytest.param(lab, marks=[pytest.mark.slow, pytest.mark.in_turn(24)]) for lab in LABS[1:]),
    ],
)


@cache
def made(lab: str) -> bytes:
    return zipped(files_of(lessons()[lab]))


def unpacked(lab: str, into: Path) -> Path:
    zipfile.ZipFile(io.BytesIO(made(lab))).extractall(into)
    return into / FOLDER


def contents(lab: str) -> dict[str, bytes]:
    archive = zipfile.ZipFile(io.BytesIO(made(lab)))
    return {name.removeprefix(f"{FOLDER}/"): archive.read(name) for name in archive.namelist()}


def from_lab(lab: str) -> list[str]:
    """A lab and those behind it."""
    return LABS[LABS.index(lab) :]


# ------------------------------------------------------------------------------- what is in it


@every_lab
def test_it_holds_the_lab_and_all_that_opens_it_and_nothing_that_answers_it(lab: str) -> None:
    found, own, later = contents(lab), from_lab(lab), from_lab(lab)[1:]
    notebook = f"labs/{lessons()[lab].notebook}"
    assert found[notebook] == (ROOT / notebook).read_bytes()
    assert found.keys() >= {
        *("gpt.py", "workbook.py", "Makefile", "pyproject.toml", "constraints.txt", "LICENSE"),
        *("environment.yml", "models/fable/model.safetensors", "autograder/check.py"),
        *("models/text/held_out.txt", "models/text/calibration.txt"),
        *(f"solutions/{f}.py" for earlier in LABS[: LABS.index(lab)] for f in parts_of(earlier)),
    }
    readme = found["README.md"].decode()
    assert f"work/{lessons()[lab].notebook}" in readme
    assert "{" not in readme
    rooms = [f"course/lab{lessons()[other].name}" for other in own]
    answers = {f"{room}/{file}" for room in rooms for file in ("cases.py", "wrong.md")}
    answers |= {f"solutions/{file}.py" for other in later for file in parts_of(other)}
    assert found.keys() & answers == set()
    outside_models = [name for name in found if not name.startswith("models/")]  # tokenizer.json
    assert [name for name in outside_models for other in later if other in Path(name).name] == []
    assert [name for name in found if re.search("grading|test|secret", name)] == []


def test_coding_assistants_are_asked_to_teach(tmp_path: Path) -> None:
    """In the bundle's root and in work/, by the same page."""
    page = (workbook.LABS / "AGENTS.md").read_bytes()
    workbook.copy_labs(unpacked(LABS[0], tmp_path) / "labs", tmp_path / "work")
    assert (tmp_path / FOLDER / "AGENTS.md").read_bytes() == page
    assert (tmp_path / "work" / "AGENTS.md").read_bytes() == page
    text = page.decode()
    assert "Never write a solution" in text
    assert "hint(" in text
    assert text.count("\n") <= 40


@every_lab
def test_no_line_of_a_solution_or_a_model_answer_stands_in_it(lab: str) -> None:
    """Besides those that hints give away."""
    later = from_lab(lab)
    cards = [card for other in later for card in lessons()[other].cards.values()]
    hints = {line for card in cards for hint in card.hints for line in bare_lines(hint)}
    telling = {line for other in later for line in telling_lines(other)} - hints
    lessons_read = [(lesson.room / "lesson.md").read_text("utf-8") for lesson in lessons().values()]
    answers = [line for lesson in lessons_read for line in model_answers(lesson)]
    assert min(len(telling), len(answers)) > 10
    for name, text in texts_of(lab):
        assert telling.isdisjoint(bare_lines(text)), name
        assert [answer for answer in answers if answer in text] == [], name


@every_lab
def test_what_is_recorded_quotes_no_line_of_a_solution(lab: str, tmp_path: Path) -> None:
    """Besides the sentences for those who go wrong."""
    path = tmp_path / "frames"
    path.write_bytes(contents(lab)[f"autograder/records/{lab}.frames"])
    found = list(frames(path))
    assert [record["name"] for record in found] == [e.name for e in EXERCISES if e.lab == lab]
    text = path.read_bytes().decode("latin-1")
    for sentence in {sentence for record in found for _, sentence, _ in record["wrong"]}:
        assert json.dumps(sentence) in text
        text = text.replace(json.dumps(sentence), "")
    assert [line for line in telling_lines(lab) if json.dumps(line)[1:-1] in text] == []


def texts_of(lab: str) -> Iterator[tuple[str, str]]:
    """What can be read in a bundle; of the notebook its cells."""
    for name, content in contents(lab).items():
        if name.endswith(".ipynb"):
            cells = json.loads(content)["cells"]
            yield name, "\n".join("".join(cell["source"]) for cell in cells)
        elif not name.endswith((".safetensors", ".gguf", ".frames")):
            yield name, content.decode()


def model_answers(lesson: str) -> Iterator[str]:
    for part in lesson.split('<!-- #region answer="')[1:]:
        text = part.split("-->", 1)[1].split("<!-- #endregion -->")[0]
        yield from (line.strip() for line in text.splitlines() if len(line) > 40)


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize(
    "lab", [LABS[0], *(pytest.param(lab, marks=pytest.mark.soak) for lab in LABS[1:])]
)
def test_another_process_makes_the_same_bytes(lab: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "lab.zip"
    command = [sys.executable, "-m", "autograder", "release", lab, "--out", str(path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(f"{path}, ")
    assert path.read_bytes() == made(lab)


def test_it_replaces_no_file_and_a_lab_that_is_not_built_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "mine.zip"
    path.write_bytes(b"mine")
    with pytest.raises(Refused, match="already exists"):
        release(lessons()["generate"], path)
    monkeypatch.setattr(bundle, "LABS", tmp_path)
    with pytest.raises(Refused, match="make labs"):
        release(lessons()["generate"], tmp_path / "lab.zip")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"mine", [path])


# ------------------------------------------------------------------------------ at a learner's


def environment(folder: Path) -> dict[str, str]:
    """One in which Python finds a bundle, and not the course that is installed here."""
    alone = folder.parent / "alone"
    alone.mkdir(exist_ok=True)
    (alone / "sitecustomize.py").write_text(ALONE)
    own = {name: value for name, value in os.environ.items() if "NBGRADER" not in name}
    own.pop("MINE_FOLDER", None)
    return {**own, "PYTHONPATH": os.pathsep.join(map(str, (alone, folder)))}


def learned(lab: str, folder: Path, **wishes: Any) -> dict[str, Any]:
    """What a learner is told, in the folder in which the notebook lies."""
    path = folder.parent / "wishes.json"
    solved = "\n".join(lab_module(lab).lines)
    path.write_text(json.dumps({"lab": lab, "blank": skeleton(lab), "solved": solved, **wishes}))
    where = folder / "work" / lessons()[lab].name
    where.mkdir(parents=True)
    ran = subprocess.run(
        [sys.executable, "-P", str(LEARNER), str(path)],
        cwd=where,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    elsewhere = {Path(file) for file in told["files"]} - {Path("None")}
    elsewhere -= {file for file in elsewhere if file.is_relative_to(sys.prefix)}
    assert [file for file in elsewhere if file.is_relative_to(ROOT)] == [LEARNER]
    return told


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a learner unpacks one lab after the other."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
@every_lab
def test_its_checks_judge_without_the_reference(lab: str, every: int, home: Path) -> None:
    """Every third misconception, and all of them in `make soak`."""
    work = home / FOLDER / "work"
    before = tree(work)
    folder = unpacked(lab, home)
    assert tree(work) == before  # it goes over the last lab, and over nothing of the learner's
    done = {path.name for path in work.glob(".mine/*")} - {lab}
    own, lesson = [e for e in EXERCISES if e.lab == lab], lessons()[lab]
    tried = [(e.name, m) for e in own for m in e.misconceptions[::every]]
    wrong = [(name, m.name, source) for name, m in tried for source in m.sources()]
    alone = {exercise.name: skeleton(lab, keep=exercise.path) for exercise in own}
    shutil.rmtree(work / lesson.name, ignore_errors=True)
    shutil.rmtree(work / ".mine" / lab, ignore_errors=True)
    told = learned(lab, folder, wrong=wrong, alone=alone)
    assert not told["reference"]
    assert told["exercises"] == [e.name for e in EXERCISES if e.lab not in from_lab(lab)[1:]]
    assert {status for status, _ in told["blank"].values()} == {"not attempted"}
    assert {name: status for name, (status, _) in told["solved"].items()} == {
        exercise.name: "passed" for exercise in own
    }
    assert [each for each in told["wrong"] if each[2] != "wrong"] == []
    named = [misconception == found for _, misconception, _, found in told["wrong"]]
    assert sum(named) > 0.95 * len(named)
    for name, (status, message) in told["alone"].items():
        needed = "It uses other exercises of yours that have not passed yet: `"
        assert status == "passed" or message.startswith(needed), name
    assert lesson.cards[own[0].name].hints[2] in told["hint"]
    names = objects_of(lab)
    assert told["mine at first"] == f'mine("{lab}"): yours: nothing yet; open: {names}.\n'
    assert told["mine"] == f'mine("{lab}"): yours: {names}; open: nothing.\n'
    assert f", {lab}\nopen       {next(iter(lesson.cards))}" in told["status at first"]
    assert f"0 of {len(own)} exercises passed" in told["status at first"]
    assert f"All {len(own)} exercises of this lab passed." in told["status"]
    for other, said in told["earlier"].items():
        cards = lessons()[other].cards
        assert f"{other} {len(cards) * (other in done)} of {len(cards)}" in told["status"]
        names = objects_of(other)
        is_done = f"yours: {names}; from the reference: nothing."
        reference = f"yours: nothing yet; from the reference: {names}."
        assert said == f'mine("{other}"): {is_done if other in done else reference}\n'


def objects_of(lab: str) -> str:
    return ", ".join(dict.fromkeys(e.attempt_name for e in EXERCISES if e.lab == lab))


@pytest.mark.slow
@pytest.mark.in_turn(4)
def test_a_solved_notebook_runs_in_it_top_to_bottom(tmp_path: Path) -> None:
    folder = unpacked("tokenizer", tmp_path)  # the lab that takes the least time
    where = folder / "work" / "16_tokenizer"
    where.mkdir(parents=True)
    lesson = lessons()["tokenizer"].room / "lesson.md"
    notebook = solve(lesson, read_modules(SOLUTIONS), exercises())
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(where)}})
    client.execute(env=environment(folder))
    kept = sorted(path.name for path in (folder / "work" / ".mine" / "tokenizer").iterdir())
    assert len(kept) == len(lessons()["tokenizer"].cards)


# ---------------------------------------------------------------- what stands for the reference

STOOD_IN = [exercise for exercise in EXERCISES if exercise.in_bundle]


def test_five_exercises_ask_for_something_of_their_own_lab() -> None:
    assert [exercise.name for exercise in STOOD_IN] == [
        *("kv_cache.generate_threaded", "batching.ContinuousBatcher.step"),
        *("paged_attention.PagedBatcher.make_room", "disaggregation.adopt"),
        "parallel_decoding.generate_tree",
    ]


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("exercise", STOOD_IN, ids=lambda e: e.name)
def test_what_is_stood_in_for_sees_what_the_reference_sees(exercise, monkeypatch):
    monkeypatch.setattr("autograder.judging.judge.SECONDS", 5.0)
    standing_in = in_bundle(exercise)
    assert judge(standing_in, exercise.reference).status == "passed"
    tried = 0
    for mutant in mutants(exercise):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attempt = attempt_of(exercise, mutant)
            found = is_rejected(standing_in, attempt), is_rejected(exercise, attempt)
        assert found[0] == found[1], mutant.change
        tried += 1
    assert tried >= 7
