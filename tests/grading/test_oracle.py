"""The oracle, the whole way through the sandbox: what is right earns all, what is wrong loses."""

import ast
import gc
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
import pytest
from nbformat import NotebookNode

from autograder.attempt.source import definitions, first_line
from autograder.grading.judge.jail import Jail, JailError, Sandbox
from autograder.grading.judge.oracle import Trying, grade_one, models_of
from autograder.grading.judge.rebuild import rebuild
from autograder.grading.judge.results import Result
from autograder.grading.judge.secret import key_of
from autograder.grading.judge.submission import Submission
from autograder.judging import judge as judge_module
from autograder.judging.catalogue import Misconception
from autograder.judging.exercise import Case, Exercise
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG, judge
from autograder.text.reference import ROOT
from autograder.text.release import release_of
from tests.common.graded import SOON, lost, untimed
from tests.common.styles import in_another_style, names_in_another_style
from tests.common.trials import (
    EXERCISES,
    LABS,
    cases_of,
    every_exercise,
    every_exercise_in_time,
    every_seed,
    frozen,
    trials_on,
)
from tests.hostile.notebooks import (
    append,
    as_bytes,
    insert,
    prepend,
    released,
    rewrite,
    solution_cell,
    solved,
)

SECRETS = [bytes([number]) * 32 for number in range(20)]
MASK, BYTES = "kv_cache.causal_mask", "kv_cache.kv_bytes_per_token"
LOOP, METRICS = "generate.generate", "generate.metrics"

every_lab = pytest.mark.parametrize("lab", LABS)


def handed_in(notebook: NotebookNode, lab: str, student: str = "ada") -> Submission:
    return Submission(student, lab, as_bytes(notebook))


def grade(
    notebook: NotebookNode, lab: str, jail: Jail, secret: bytes = SECRETS[0], student: str = "ada"
) -> Result:
    submission = handed_in(notebook, lab, student)
    return grade_one(submission, key_of(secret, submission), jail)


def exercises_of(lab: str) -> list[Exercise]:
    return [exercise for exercise in EXERCISES if exercise.lab == lab]


# ------------------------------------------------------------------------------- what is right


def require_all_points(
    notebook: NotebookNode, lab: str, jail: Jail, secret: bytes = SECRETS[0], student: str = "ada"
) -> None:
    result = grade(notebook, lab, jail, secret, student)
    assert lost(result) == {}
    assert [mark.exercise for mark in result.marks] == [e.name for e in exercises_of(lab)]
    assert result.points == sum(e.card.points for e in exercises_of(lab))
    assert (result.sandboxed, result.remarks) == (True, ())


def require_lab_1_right(jail: Jail, student: str = "ada") -> None:
    require_all_points(solved("generate"), "generate", jail, student=student)


@pytest.mark.needs("bwrap")
@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_lab
@pytest.mark.parametrize(
    ("make", "secrets"),
    [
        *((make, SECRETS[:1]) for make in (solved, in_another_style)),
        pytest.param(solved, SECRETS[1:], marks=pytest.mark.soak),
        pytest.param(in_another_style, SECRETS[1:3], marks=pytest.mark.soak),
    ],
    ids=["solved", "another style", "solved, more secrets", "another style, more secrets"],
)
def test_what_is_right_earns_all_points(make, secrets, lab, jail):
    for secret in secrets:
        require_all_points(make(lab), lab, jail, secret)


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_seed
@every_exercise
def test_another_style_is_right_in_this_process_too(exercise: Exercise, seed: int) -> None:
    attempt = names_in_another_style(exercise.lab)[exercise.attempt_name]
    assert judge(exercise, attempt, cases_of(exercise, seed)).status == PASSED


@pytest.mark.needs("bwrap")
@every_lab
def test_the_released_notebook_earns_nothing_and_is_not_attempted(lab: str, jail: Jail) -> None:
    result = grade(released(lab), lab, jail)
    assert result.points == 0
    assert {mark.status for mark in result.marks} == {NOT_ATTEMPTED}


# ------------------------------------------------------------------------------- what is wrong


def put_wrong(notebook: NotebookNode, misconception: Misconception) -> None:
    """Write a misconception in the place of a right function or method."""
    cell, path = solution_cell(notebook, misconception.exercise), misconception.path
    wrong = function_in(misconception.sources()[0], path)
    cell.source = cell.source.replace(function_in(cell.source, path), wrong)


def function_in(source: str, path: str) -> str:
    """The lines of a function or method, without the markers of a solution."""
    node = dict(definitions(ast.parse(source)))[path]
    lines = source.splitlines()[first_line(node) - 1 : node.end_lineno]
    return "\n".join(line for line in lines if not line.strip().startswith("###"))


def partly_wrong(lab: str, half: int, number: int = 0) -> NotebookNode:
    """The solved notebook with a misconception, the first one if not told, of every second
    exercise."""
    notebook = solved(lab)
    for wrong in wrongs_of(lab, half, number).values():
        put_wrong(notebook, wrong)
    return notebook


def wrongs_of(lab: str, half: int, number: int) -> dict[str, Misconception]:
    """By exercise; those that have fewer begin again."""
    return {
        exercise.name: exercise.misconceptions[number % len(exercise.misconceptions)]
        for exercise in exercises_of(lab)[half::2]
    }


LESS_SURE = {
    "prefilled_here",  # by the notebook's own SlotCache, which is another wrong one here
    "prompts_grow",  # where one list is handed over twice, they are two over there
}


def require_told(result: Result, known: dict[str, Misconception]) -> None:
    """Each of these costs its exercise, no other loses anything, and the cause is named."""
    told = {name: paragraphs[0] for name, paragraphs in lost(result).items()}
    assert told.keys() == known.keys()
    for name, wrong in known.items():
        mark = result.mark(name)
        assert (mark.points, mark.status) == (0, WRONG)
        if wrong.name not in LESS_SURE:
            assert told[name] == f"Likely cause: {wrong.sentence}"
            assert mark.misconception == wrong.name


@pytest.fixture(scope="module")
def half_wrong(jail: Jail) -> Callable[[str, int], Result]:
    """Grades a notebook that is partly wrong once, whichever test asks first."""
    return cache(lambda lab, half: grade(partly_wrong(lab, half), lab, jail))


@pytest.mark.needs("bwrap")
@pytest.mark.in_turn(24)
@every_lab
@pytest.mark.parametrize("half", [0, 1])
def test_a_misconception_costs_its_exercise_alone_and_is_told(lab, half, half_wrong):
    require_told(half_wrong(lab, half), wrongs_of(lab, half, 0))


@pytest.mark.slow
@pytest.mark.in_turn(24)
@pytest.mark.parametrize(
    ("secrets", "every"),
    [(SECRETS[:1], 3), pytest.param(SECRETS[:4], 1, marks=pytest.mark.soak)],
    ids=["every third one", "all"],
)
@every_exercise
def test_no_misconception_passes_under_any_secret(exercise, secrets, every, monkeypatch):
    monkeypatch.setattr(judge_module, "SECONDS", SOON)
    wrongs = [
        (misconception.name, attempt)
        for misconception in exercise.misconceptions[::every]
        for attempt in misconception.attempts()
    ]
    for secret in secrets:
        with models_of(key_of(secret, hers(exercise))):
            trials = trials_on(exercise, drawn(exercise, secret))
            passed = [n for n, wrong in wrongs if not all(t.rejects(wrong) for t in trials)]
        assert passed == []


# ------------------------------------------------------------------------------- its cases


def hers(exercise: Exercise, student: str = "ada", content: bytes = b"her notebook") -> Submission:
    return Submission(student, exercise.lab, content)


def drawn(exercise: Exercise, secret: bytes = SECRETS[0], **of: Any) -> list[Case]:
    """What a submission is tried on."""
    submission = hers(exercise, **of)
    rebuilt, key = rebuild(submission, release_of(exercise.lab)), key_of(secret, submission)
    with models_of(key):
        return Trying(submission, rebuilt, key, Jail()).cases(exercise)


@every_exercise_in_time
def test_a_submission_is_tried_on_cases_of_its_own(exercise: Exercise) -> None:
    def values(**of: Any) -> list[object]:
        return [(case.label, frozen(dict(case.data))) for case in drawn(exercise, **of)]

    own = values()
    assert own == values()
    # Three of each, since where little is drawn two may be alike.
    assert any(values(secret=secret) != own for secret in SECRETS[1:4])
    assert any(values(student=name) != own for name in ("bob", "cat", "dan"))
    assert any(values(content=content) != own for content in (b"his", b"another", b"a third"))


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    "lab",
    [lab if lab == "decoding" else pytest.param(lab, marks=pytest.mark.soak) for lab in LABS],
)
def test_the_same_submission_comes_to_the_same_result(lab, jail, half_wrong):
    again = grade(partly_wrong(lab, 0), lab, jail)
    assert untimed(again) == untimed(half_wrong(lab, 0))


# ------------------------------------------------------------------------- a student's statements


@pytest.mark.needs("bwrap")
def test_a_statement_costs_what_needs_it(jail: Jail) -> None:
    notebook = solved("kv_cache")
    prepend(notebook, MASK, "raise SystemExit('nobody needs me')")
    append(notebook, MASK, "causal_mask = lambda *positions: None")
    insert(notebook, BYTES, "kinds = 2 / 0")
    rewrite(notebook, BYTES, "return kinds * config.n_layer * config.n_embd * bytes_per_number")
    told = lost(grade(notebook, "kv_cache", jail))
    assert {*told} == {MASK, BYTES}
    assert "kinds" in told[BYTES][0]


# -------------------------------------------------------------------------- one sandbox for several


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_a_clean_sandbox_serves_the_next_submission_and_no_other_does(monkeypatch):
    started = count_starts(monkeypatch)
    with Jail() as jail:
        before = len(started)
        for student in ("ada", "bob"):
            require_lab_1_right(jail, student)
        assert len(started) == before + 1
        started[-1].process.kill()
        started[-1].process.wait()
        require_lab_1_right(jail)
        assert len(started) == before + 2
        monkeypatch.setattr(Sandbox, "end", lambda sandbox: (0.0, False))
        require_lab_1_right(jail)
        others = len(exercises_of("generate")) - 1  # the sandbox of the first was there already
        assert len(started) == before + 2 + others
    assert all(not sandbox.runs() for sandbox in started)


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_without_the_filter_of_system_calls_nobody_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started = count_starts(monkeypatch)
    with Jail() as jail:
        jail.__dict__["filter"] = b""
        for number in (1, 2):
            before = len(started)
            require_lab_1_right(jail)
            assert (len(started), jail.idle) == (before + 1, {}), number


def breaks(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The next wires to sandboxes lead to nobody."""
    begin, left = Sandbox.begin, iter(range(times))

    def broken(sandbox: Sandbox) -> socket.socket:
        connection = begin(sandbox)
        if next(left, None) is not None:
            connection.shutdown(socket.SHUT_RDWR)
        return connection

    monkeypatch.setattr(Sandbox, "begin", broken)


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_what_ends_before_the_attempt_has_begun_is_tried_once_more(jail, monkeypatch):
    """And where no attempt comes to begin there is no zero."""
    breaks(monkeypatch, times=1)
    require_lab_1_right(jail)
    breaks(monkeypatch, times=2)
    with pytest.raises(JailError, match="before the attempt in them had begun"):
        grade(solved("generate"), "generate", jail)
    require_lab_1_right(jail)


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_where_the_sandbox_dies_under_an_attempt_it_is_tried_once_more(jail, monkeypatch):
    """The kernel may have taken it, for memory that others use."""
    end, left = Sandbox.end, iter([1])

    def dies(sandbox: Sandbox) -> tuple[float, bool]:
        if next(left, None):
            sandbox.process.kill()
            sandbox.process.wait()
        return end(sandbox)

    monkeypatch.setattr(Sandbox, "end", dies)
    require_lab_1_right(jail)


def count_starts(monkeypatch: pytest.MonkeyPatch) -> list[Sandbox]:
    started = []
    start = Jail.start

    def counted(jail: Jail, lab: str) -> Sandbox:
        started.append(start(jail, lab))
        return started[-1]

    monkeypatch.setattr(Jail, "start", counted)
    return started


# ------------------------------------------------------------------------------- without a sandbox


def refused(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("shutil.which", lambda name: None, r"apt install bubblewrap\).*--unsandboxed"),
        ("subprocess.Popen", refused, "No process could be started.*not permitted"),
        ("ROOT", Path("/usr/lib/course"), "The course is in /usr/lib/course.*Move the course"),
    ],
    ids=["no bubblewrap", "no processes", "a course that the sandbox would show"],
)
def test_where_no_sandbox_can_be_had_it_says_why(name, value, told, monkeypatch):
    monkeypatch.setattr(
        "autograder.grading.judge.jail.shutil.which", lambda name: f"/usr/bin/{name}"
    )
    monkeypatch.setattr(f"autograder.grading.judge.jail.{name}", value)
    with pytest.raises(JailError, match=told):
        Jail().__enter__()


def test_where_packages_hold_the_answers_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    for packages in ("site-packages", "lib/python3.11/site-packages"):
        (tmp_path / packages / "solutions").mkdir(parents=True)
    told = f"answers is in {tmp_path}/.*site-packages/solutions.*pip uninstall.*with -e"
    for name, value in (("path", [f"{tmp_path}/site-packages"]), ("base_prefix", str(tmp_path))):
        with monkeypatch.context() as patch:
            patch.setattr(sys, name, value)
            with pytest.raises(JailError, match=told):
                Jail().__enter__()


@pytest.mark.needs("bwrap")
@pytest.mark.slow
def test_a_python_behind_links_runs_in_the_sandbox(tmp_path: Path) -> None:
    """Its environment's folder is a link, and its program a link to a link in another folder."""
    venv, links = tmp_path / "real", tmp_path / "links"
    packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for folder in (venv / "bin", packages.parent, links):
        folder.mkdir(parents=True)
    packages.symlink_to(next(path for path in sys.path if path.endswith("site-packages")))
    (links / "python").symlink_to(Path(sys.executable).resolve())
    (venv / "bin" / "python").symlink_to(links / "python")
    (venv / "pyvenv.cfg").write_text(f"home = {links}\n")
    (tmp_path / "venv").symlink_to(venv)
    script = "from autograder.grading.judge.jail import Jail\nwith Jail(): print('made')"
    command = [str(tmp_path / "venv" / "bin" / "python"), "-c", script]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("made\n", "")


@pytest.mark.slow
def test_unsandboxed_it_grades_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with Jail(sandboxed=False) as jail:
        result = grade(solved("generate"), "generate", jail)
    assert lost(result) == {}
    assert not result.sandboxed
    assert result.limits[0].startswith("no sandbox")


# ------------------------------------------------------------------------------- for a whole class


@pytest.mark.needs("bwrap")
@pytest.mark.soak
@every_lab
def test_every_misconception_is_told_after_the_whole_way(lab: str, jail: Jail) -> None:
    most = max(len(exercise.misconceptions) for exercise in exercises_of(lab))
    for number in range(1, most):
        for half in (0, 1):
            result = grade(partly_wrong(lab, half, number), lab, jail)
            require_told(result, wrongs_of(lab, half, number))


MEGABYTE = 1 << 20


@pytest.mark.needs("bwrap")
@pytest.mark.soak
def test_the_grader_does_not_grow_with_the_class(jail: Jail) -> None:
    memory = []
    for number, notebook in enumerate(islice(cycle(lab_1_in_all_states()), 500)):
        grade(notebook, "generate", jail, student=f"student{number}")
        gc.collect()
        memory.append(psutil.Process().memory_info().rss)
    assert memory[-1] - memory[49] <= 20 * MEGABYTE


@cache
def lab_1_in_all_states() -> list[NotebookNode]:
    notebooks = [solved("generate"), released("generate"), in_another_style("generate")]
    for exercise in exercises_of("generate"):
        for misconception in exercise.misconceptions:
            notebook = solved("generate")
            put_wrong(notebook, misconception)
            notebooks.append(notebook)
    return notebooks
