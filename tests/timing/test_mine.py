"""The row `mine`: the newest technique that a learner has written a part of."""

import inspect
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import timed_generate
from solutions import kv_cache as lab2
from tests.common.timed import CPU, SAME_WORK
from timing import techniques
from timing.table import Bench, Own
from timing.table.workloads import LENGTHS

pytestmark = pytest.mark.usefixtures("quick")


def keep(folder: Path, exercise: str, thing: Callable):
    lab, name = exercise.split(".", 1)
    (folder / lab).mkdir(parents=True, exist_ok=True)
    (folder / lab / f"{name}.py").write_text(inspect.getsource(inspect.unwrap(thing)))


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    return tmp_path / "mine"


def test_mine_is_what_the_checks_kept(table, kept):
    for exercise in ("kv_cache.KVCache.attend", "kv_cache.KVCache.truncate"):
        keep(kept, exercise, lab2.KVCache)
    printed, result = table("--tokens", "3", "--techniques", "naive", "--mine")
    assert [row["technique"] for row in result["rows"]] == ["naive", "mine"]
    assert "your KVCache (lab 2)" in printed


def test_with_nothing_solved_a_sentence_says_so_and_no_row_is_added(table, kept, tiny, capsys):
    printed, result = table("--tokens", "3", "--techniques", "naive", "--mine")
    assert [row["technique"] for row in result["rows"]] == ["naive"]
    assert printed.startswith("No exercise of yours has passed its check yet")
    assert "mine(" not in printed
    timed_generate.main(["--model", str(tiny), "--race", "--tokens", "2"])
    raced = capsys.readouterr().out
    assert raced.startswith("No exercise of yours has passed its check yet")
    assert raced.count("tok/s") == 2


def like(own: Own) -> str:
    """Return the row that does the same."""
    rows = techniques.TECHNIQUES.items()
    [name] = [name for name, row in rows if own.prepare in row.values()]
    return name


OWN, TECHNIQUES = techniques.OWN, techniques.TECHNIQUES
CASES = [(own, kind) for own in OWN for kind in own.kinds if kind in TECHNIQUES[like(own)]]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("own", "kind"), CASES, ids=[f"{own.lab}-{own.parts[0]}-{kind}" for own, kind in CASES]
)
def test_mine_is_the_newest_with_a_part_of_the_learners(
    table, written, tiny, own, kind, monkeypatch
):
    """Each part is enough, beside those of all techniques before it."""
    monkeypatch.setattr("course.lab21_one_kernel.row.find_spec", find_spec)
    older = OWN[: OWN.index(own)]
    for part in own.parts:
        yours: dict[str, list[str]] = {}
        for lab, path in [*((one.lab, one.parts[0]) for one in older), (own.lab, part)]:
            yours.setdefault(lab, []).append(path.partition(".")[0])
        row = techniques.mine_rows(written(yours))[kind](Bench(tiny, CPU))
        assert row.about.endswith(own.about)
    printed, result = table(
        "--workloads", kind, "--tokens", "5", "--techniques", like(own), "--mine"
    )
    assert own.about in printed
    *theirs, mine = result["rows"]
    assert mine["technique"] == "mine"
    for row in theirs:
        assert {key: mine[key] for key in SAME_WORK} == {key: row[key] for key in SAME_WORK}
    assert result["losses"].get("mine") == result["losses"].get(like(own))


@pytest.mark.parametrize(("kinds", "until"), techniques.UNTIL.items())
def test_until_then_it_is_the_reference_s(table, written, kinds, until):
    """Also if an older technique is written that doesn't serve this workload."""
    written({"generate": ["generate"]} if LENGTHS not in kinds else {})
    prefix, row, about = until
    for kind in kinds:
        args = "--workloads", kind, "--tokens", "5", "--techniques", row, "--mine"
        printed, result = table(*args)
        assert f"{prefix}the reference's {about}" in printed
        theirs, mine = result["rows"]
        assert {key: mine[key] for key in SAME_WORK} == {key: theirs[key] for key in SAME_WORK}
