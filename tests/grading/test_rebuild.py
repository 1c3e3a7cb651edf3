"""The rebuilt notebook: the release's cells, the student's code, and nothing else of theirs."""

import json
import random
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbgrader.nbgraderformat import MetadataValidator

from autograder.grading.judge.rebuild import MOST_CELLS, MOST_TEXT, Rebuilt, check_id, rebuild
from autograder.grading.judge.submission import Submission
from autograder.text.lesson import lessons
from autograder.text.release import release_of
from tests.common.handed_in import (
    code,
    is_solution,
    label,
    notebook,
    prose,
    released,
    solved,
    submission,
)

LAB = "kv_cache"
LABS = list(lessons())
MASK, ATTEND = "kv_cache.causal_mask", "kv_cache.KVCache.attend"
CELL, ANSWER = (
    "kv_cache-causal_mask",
    "memory_or_compute",
)  # of the exercise MASK, and of a question


def rebuilt(cells: list[dict[str, Any]], lab: str = LAB) -> Rebuilt:
    """After what must hold for every submission."""
    found = rebuild(submission(lab, cells), release_of(lab))
    require_sound(found, lab)
    return found


def require_sound(found: Rebuilt, lab: str) -> None:
    """All cells of the release are there in order, with its metadata; other cells have none."""
    release = release_of(lab)
    nbformat.validate(found.notebook)
    MetadataValidator().validate_nb(found.notebook)
    nbformat.writes(found.notebook).encode()
    assert found.notebook.metadata == release.metadata
    ids = [cell.id for cell in release.cells]
    assert [cell.id for cell in found.notebook.cells if cell.id in ids] == ids
    by_id = {cell.id: cell for cell in release.cells}
    for cell in found.notebook.cells:
        original = by_id.get(cell.id)
        if original is None:
            assert cell.metadata == {}
        else:
            assert (cell.metadata, cell.cell_type) == (original.metadata, original.cell_type)
            if not label(cell).get("solution"):
                assert cell.source == original.source
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def at(found: Rebuilt, id: str) -> Any:
    """The cell of the rebuilt notebook with this id."""
    (cell,) = [cell for cell in found.notebook.cells if cell.id == id]
    return cell


def index(cells: list[dict[str, Any]], id: str) -> int:
    return [cell.get("id") for cell in cells].index(id)


def before(found: Rebuilt, exercise: str) -> str:
    """All code that runs before the check of an exercise."""
    return "\n".join(found.cells_before(exercise))


def written(found: Rebuilt) -> str:
    return "\n".join(cell.source for cell in found.notebook.cells)


def without_labels(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**cell, "id": f"x{n}", "metadata": {}} for n, cell in enumerate(cells)]


# --------------------------------------------------------------------------- the plain cases


@pytest.mark.parametrize("lab", LABS)
def test_an_untouched_lab_is_the_release_itself(lab):
    found = rebuilt(released(lab), lab)
    assert nbformat.writes(found.notebook) == nbformat.writes(release_of(lab))
    assert found.remarks == ()
    assert not any(found.attempted(exercise) for exercise in lessons()[lab].cards)


@pytest.mark.parametrize("lose", [list, without_labels], ids=["labeled", "without labels"])
@pytest.mark.parametrize("lab", LABS)
def test_a_solved_lab_keeps_what_was_written(lab, lose):
    cells = solved(lab)
    found = rebuilt(lose(cells), lab)
    assert [cell.source for cell in found.notebook.cells] == [cell["source"] for cell in cells]
    assert found.remarks == ()
    assert all(found.attempted(exercise) for exercise in lessons()[lab].cards)


def test_before_a_check_stands_all_code_before_it_and_none_behind():
    cells = solved(LAB)
    here = index(cells, check_id(MASK))
    assert rebuilt(cells).cells_before(MASK) == [
        cell["source"] for cell in cells[:here] if cell["cell_type"] == "code"
    ]


def test_there_is_no_code_before_an_unknown_check():
    with pytest.raises(ValueError, match="check-kv_cache-nothing"):
        rebuilt(solved(LAB)).cells_before("kv_cache.nothing")


def test_only_the_exercise_that_was_worked_on_is_attempted():
    cells = released(LAB)
    cells[index(cells, CELL)]["source"] += "\n# hm"
    found = rebuilt(cells)
    assert [e for e in lessons()[LAB].cards if found.attempted(e)] == [MASK]


@pytest.mark.parametrize("source", ["causal_mask = lambda q, k: 7", "def causal_mask(): scratch"])
def test_a_definition_in_a_cell_of_ones_own_is_an_attempt_before_the_check_alone(source):
    for behind, attempted in ((0, True), (1, False)):
        cells, own = released(LAB), code(source)
        cells.insert(index(cells, check_id(MASK)) + behind, own)
        found = rebuilt(cells)
        assert found.attempted(MASK) == attempted
        assert (found.cells_before(MASK)[-1] == own["source"]) == attempted
        assert own["source"] in before(found, ATTEND)


@pytest.mark.parametrize("id", [CELL, ANSWER])
def test_white_space_at_line_ends_is_no_work(id):
    cells = released(LAB)
    cell = cells[index(cells, id)]
    original = cell["source"]
    cell["source"] = original.replace("\n", "  \n") + "\n\n"
    found = rebuilt(cells)
    assert at(found, id).source == original
    assert not found.attempted(MASK)


@pytest.mark.parametrize("left", [[], [code(" \n", id=CELL)]], ids=["deleted", "emptied"])
def test_a_solution_that_is_gone_is_none(left):
    cells = solved(LAB)
    n = index(cells, CELL)
    cells[n : n + 1] = left
    found = rebuilt(cells)
    assert not found.attempted(MASK)
    assert "NotImplementedError" in found.cells_before(MASK)[-1]


# ------------------------------------------------------------------------ honest oddities


def test_two_solutions_joined_into_one_cell_are_both_there():
    cells = solved(LAB)
    a, b = (index(cells, f"kv_cache-Threaded{name}-forward") for name in ("Block", "Model"))
    for kept, gone in ((a, b), (b, a)):
        joined = solved(LAB)
        joined[kept]["source"] = f"{cells[a]['source']}\n\n{cells[b]['source']}"
        del joined[gone]
        found = rebuilt(joined)
        for exercise in ("kv_cache.ThreadedBlock.forward", "kv_cache.ThreadedModel.forward"):
            assert found.attempted(exercise)
            assert "NotImplementedError" not in found.cells_before(exercise)[-1]


def test_what_is_not_the_students_to_write_comes_back_and_their_own_stays_behind_it():
    cells = solved(LAB)
    imports = next(cell for cell in cells if cell["cell_type"] == "code")
    original, imports["source"] = imports["source"], "import torch as t"
    n = index(cells, check_id(MASK))
    cells[n]["source"] = "print('passed')"
    cells.insert(n + 1, prose("A note"))
    cells.insert(n, code("%time 1 + 1", id="own", outputs=["junk"]))
    cells.insert(0, code("first = 1"))
    found = rebuilt([cell for own in cells for cell in (own, code("  \n"), prose(""))])
    assert found.cells_before(MASK)[:3] == ["first = 1", original, "import torch as t"]
    assert found.cells_before(MASK)[-1] == "%time 1 + 1"
    sources = [cell.source for cell in found.notebook.cells]
    behind = sources.index(at(found, check_id(MASK)).source) + 1
    assert sources[behind : behind + 2] == ["print('passed')", "A note"]
    assert len(sources) == len(release_of(LAB).cells) + 5  # and none that is empty


def became_prose(cells, n):
    cells[n] = prose(cells[n]["source"], id=CELL, metadata=cells[n]["metadata"])


def released_copy_beside_it(cells, n):
    cells.insert(n + 1, released(LAB)[n])


def copied(cells, n):
    cells.insert(n + 1, {**cells[n], "id": "copy"})


def scratch_behind_its_check(cells, n):
    cells.insert(n + 4, {**cells[n], "id": "copy", "source": "def causal_mask(): broken"})


def given_cell_with_its_label(cells, n):
    cells[2] = {**cells[2], "id": "copy", "metadata": cells[n]["metadata"]}


@pytest.mark.parametrize(
    "edit",
    [
        *(became_prose, released_copy_beside_it, copied),
        *(scratch_behind_its_check, given_cell_with_its_label),
    ],
)
def test_a_solution_is_found_and_runs_once(edit):
    cells = solved(LAB)
    n = index(cells, CELL)
    source = cells[n]["source"]
    edit(cells, n)
    found = rebuilt(cells)
    assert found.cells_before(MASK)[-1] == at(found, CELL).source == source
    assert found.cells_before(MASK).count(source) == 1
    own = [cell["source"] for cell in cells if cell not in released(LAB)]
    assert all(text in written(found) for text in own)


def test_a_second_attempt_with_its_own_check_counts():
    cells = solved(LAB)
    n = index(cells, CELL)
    better = {**cells[n], "id": "copy", "source": "def causal_mask(): better"}
    cells[n + 2 : n + 2] = [better, {**cells[n + 1], "id": "copy of the check"}]
    assert rebuilt(cells).cells_before(MASK)[-1] == better["source"]


def test_another_cell_labeled_as_a_solution_does_not_displace_it():
    cells = solved(LAB)
    n = index(cells, CELL)
    solution = cells.pop(n)
    cells.insert(n, {**solution, "id": "copy", "source": "own = 1"})
    cells.insert(n + 2, solution)
    assert rebuilt(cells).cells_before(MASK)[-2:] == ["own = 1", solution["source"]]


# ------------------------------------------------------------------------- answers in prose


def test_the_pieces_of_an_answer_are_joined_whatever_kind_of_cell_they_are():
    cells = solved(LAB)
    n = index(cells, ANSWER)
    more = code("And more.", id="more", metadata=cells[n]["metadata"])
    cells.insert(n + 1, more)
    expected = f"My answer to {ANSWER}.\n\nAnd more."
    assert at(rebuilt(cells), ANSWER).source == expected


@pytest.mark.parametrize("where", [0, 1])
def test_an_answer_in_a_cell_of_ones_own_is_found(where):
    cells = released(LAB)
    cells.insert(index(cells, "prefill_and_decode") + where, prose("In my own cell."))
    found = rebuilt(cells)
    assert at(found, "prefill_and_decode").source == "In my own cell."
    assert at(found, "memory_or_compute").source == "YOUR ANSWER HERE"


def test_an_answer_written_below_its_question_is_found():
    cells = released(LAB)
    cells[index(cells, "out_of_memory") - 1]["source"] += "\n\nSixty-four."
    assert "Sixty-four." in at(rebuilt(cells), "out_of_memory").source


def test_an_answer_keeps_its_pictures_unless_they_are_beyond_measure():
    pictures = {f"{n}.png": {"image/png": "A" * 3_000_000} for n in range(5)}
    cells = solved(LAB)
    cells[index(cells, ANSWER)]["attachments"] = pictures
    kept = at(rebuilt(cells), ANSWER).attachments
    assert kept == {name: pictures[name] for name in ("0.png", "1.png")}


# ---------------------------------------------------------------------------------- remarks


def remarks_of(content: bytes | None, problem: str | None = None, lab: str = LAB) -> str:
    found = rebuild(Submission("ada", lab, content, problem), release_of(lab))
    require_sound(found, lab)
    assert not any(found.attempted(exercise) for exercise in lessons()[lab].cards)
    return " ".join(found.remarks)


def test_what_could_not_be_read_is_told():
    assert remarks_of(None, "It is a link.") == "It is a link."
    assert remarks_of(b"no notebook").startswith("The file can't be read as a notebook")


def test_a_notebook_without_anything_of_the_lab_is_told():
    expected = "It has no exercise of this lab. Hand in kv_cache.ipynb, with your solutions in it."
    gone = code("1", metadata={"nbgrader": {"grade_id": "kv_cache-of_an_older_version"}})
    for cells in ([], [code("1 + 1"), prose("Hello")], [gone]):
        assert remarks_of(notebook(cells).encode()) == expected


@pytest.mark.parametrize("lab", LABS[1:])
def test_the_notebook_of_another_lab_is_told(lab):
    first = LABS[0]
    assert remarks_of(notebook(solved(first)).encode(), lab=lab) == (
        f"This is the notebook of lab {first}. Hand in {lab}.ipynb, with your solutions in it."
    )


def test_too_many_cells_are_told_and_left_out():
    found = rebuilt([*solved(LAB), *[code(f"x = {n}") for n in range(MOST_CELLS)]])
    assert "Those after the first 2,000 were left out." in found.remarks[0]
    assert len(found.notebook.cells) == MOST_CELLS


def test_too_much_text_is_told_and_left_out():
    huge = code("#" * (MOST_TEXT + 1))
    found = rebuilt([huge, *solved(LAB)])
    assert found.remarks == ("Its cells contain more than 1 MB of text. The rest was left out.",)
    assert found.attempted(MASK)
    assert huge["source"] not in [cell.source for cell in found.notebook.cells]


# --------------------------------------------------------------------- hostile submissions


JUNK = [
    {"grade": True, "points": 1e9, "grade_id": "mine", "schema_version": 99, "solution": False},
    {"grade_id": {"a": 1}, "schema_version": "three"},
    {"schema_version": 0},
    ["not", "a", "dict"],
    "text",
]


def jumbled(lab: str, draw: random.Random) -> list[dict[str, Any]]:
    """A solved lab after everything that may happen to it, its solutions still in it."""
    cells = solved(lab)
    cells += [code(f"own_{n} = {n}", id=f"own{n}") for n in range(3)]
    cells += draw.choices(cells, k=10)
    cells = [cell for cell in cells if is_solution(cell) or draw.random() < 0.8]
    draw.shuffle(cells)
    changes = [as_it_is, as_it_is, relabeled, split]
    return [piece for cell in cells for piece in draw.choice(changes)(cell, lab, draw)]


def as_it_is(cell: dict[str, Any], lab: str, draw: random.Random) -> list[dict[str, Any]]:
    return [cell]


def relabeled(cell: dict[str, Any], lab: str, draw: random.Random) -> list[dict[str, Any]]:
    """With somebody else's labels, no labels, or labels that are none."""
    other = draw.choice(release_of(lab).cells)
    labels = [label(cell), label(other), {**label(cell), "points": 1000, "grade": True}]
    metadata = {"nbgrader": draw.choice([*labels, *JUNK]), "junk": "junk"}
    id = draw.choice([cell.get("id"), other["id"], "", "no id at all", 3])
    return [{**cell, "id": id, "metadata": metadata}]


def split(cell: dict[str, Any], lab: str, draw: random.Random) -> list[dict[str, Any]]:
    """Cut in two, as JupyterLab does it or as others do."""
    lines = cell["source"].split("\n")
    if not is_solution(cell) or len(lines) < 2:
        return [cell]
    cut = draw.randrange(1, len(lines))
    first = {**cell, "source": "\n".join(lines[:cut])}
    rest = {**cell, "id": "rest", "source": "\n".join(lines[cut:])}
    return [first, draw.choice([rest, {**rest, "metadata": {}}])]


@given(st.sampled_from(LABS), st.randoms(use_true_random=False))
def test_whatever_happened_to_the_cells_their_code_comes_before_its_check(lab, draw):
    """And nothing that was written is lost, and nothing that a notebook says of itself counts."""
    cells = jumbled(lab, draw)
    found, again = rebuilt(cells, lab), rebuild(submission(lab, cells), release_of(lab))
    for exercise in lessons()[lab].cards:
        assert found.attempted(exercise)
        solution = [cell for cell in found.code if cell.solution and cell in found.before(exercise)]
        id = solution[-1].grade_id
        text = before(found, exercise)
        assert -1 < text.rfind(f"# begin {id}\n") < text.rfind(f"# end {id}")
    assert all(cell["source"].strip() in written(found) for cell in cells)
    assert "junk" not in json.dumps([cell.metadata for cell in found.notebook.cells])
    points = [label(cell)["points"] for cell in found.notebook.cells if label(cell).get("grade")]
    assert points == [label(cell)["points"] for cell in released(lab) if label(cell).get("grade")]
    assert nbformat.writes(found.notebook) == nbformat.writes(again.notebook)
    assert found.code == again.code


KEYS = ["cell_type", "source", "id", "metadata", "nbgrader", "grade_id", "attachments", "a.png"]
TEXTS = ["code", "markdown", "kv_cache-causal_mask", "class KVCache:\n  pass", "YOUR ANSWER HERE"]
VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(TEXTS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=6))
def test_no_cells_at_all_stop_the_rebuilding(cells):
    rebuilt(cells)


def test_the_release_is_never_changed():
    release = nbformat.writes(release_of(LAB))
    rebuilt(solved(LAB))
    assert nbformat.writes(release_of(LAB)) == release
