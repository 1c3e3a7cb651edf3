"""The rebuilt notebook: the release's cells, the student's code, and nothing else of theirs."""

import json
import random
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbgrader.nbgraderformat import MetadataValidator

from autograder.course.lesson import lessons
from autograder.grading.rebuild import MOST_CELLS, MOST_TEXT, Rebuilt, check_id, rebuild
from autograder.grading.release import release_of
from autograder.grading.submission import Submission
from tests.common.handed_in import (
    code,
    is_answer,
    is_check,
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


def after(found: Rebuilt, id: str) -> Any:
    cells = found.notebook.cells
    return cells[[cell.id for cell in cells].index(id) + 1]


def index(cells: list[dict[str, Any]], id: str) -> int:
    return [cell.get("id") for cell in cells].index(id)


def before(found: Rebuilt, exercise: str) -> str:
    """All code that runs before the check of an exercise."""
    return "\n".join(found.cells_before(exercise))


def without_labels(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**cell, "id": f"x{n}", "metadata": {}} for n, cell in enumerate(cells)]


# --------------------------------------------------------------------------- the plain cases


@pytest.mark.parametrize("lab", LABS)
def test_an_untouched_lab_is_the_release_itself(lab):
    found = rebuilt(released(lab), lab)
    assert nbformat.writes(found.notebook) == nbformat.writes(release_of(lab))
    assert found.remarks == ()
    assert not any(found.attempted(exercise) for exercise in lessons()[lab].cards)


@pytest.mark.parametrize("lab", LABS)
def test_a_solved_lab_keeps_what_was_written(lab):
    cells = solved(lab)
    found = rebuilt(cells, lab)
    assert [cell.source for cell in found.notebook.cells] == [cell["source"] for cell in cells]
    assert found.remarks == ()
    assert all(found.attempted(exercise) for exercise in lessons()[lab].cards)


def test_before_a_check_stands_all_code_before_it_and_none_behind():
    cells = solved(LAB)
    found = rebuilt(cells)
    here = index(cells, check_id(MASK))
    assert found.cells_before(MASK) == [
        cell["source"] for cell in cells[:here] if cell["cell_type"] == "code"
    ]


def test_there_is_no_code_before_an_unknown_check():
    with pytest.raises(ValueError, match="check-kv_cache-nothing"):
        rebuilt(solved(LAB)).cells_before("kv_cache.nothing")


@pytest.mark.parametrize("id", ["kv_cache-causal_mask", "memory_or_compute"])
def test_white_space_at_line_ends_is_no_work(id):
    cells = released(LAB)
    cell = cells[index(cells, id)]
    original = cell["source"]
    cell["source"] = original.replace("\n", "  \n") + "\n\n"
    found = rebuilt(cells)
    assert at(found, id).source == original
    assert not found.attempted(MASK)


def test_only_the_exercise_that_was_worked_on_is_attempted():
    cells = released(LAB)
    cells[index(cells, "kv_cache-causal_mask")]["source"] += "\n# hm"
    found = rebuilt(cells)
    assert [e for e in lessons()[LAB].cards if found.attempted(e)] == [MASK]


def test_a_definition_in_a_cell_of_ones_own_is_an_attempt():
    cells = released(LAB)
    own = index(cells, check_id(MASK))
    cells.insert(own, code("causal_mask = lambda q, k: 7"))
    found = rebuilt(cells)
    assert found.attempted(MASK)
    assert found.cells_before(MASK)[-1] == "causal_mask = lambda q, k: 7"


def test_a_definition_behind_the_check_is_none():
    cells = released(LAB)
    cells.insert(index(cells, check_id(MASK)) + 1, code("causal_mask = lambda q, k: 7"))
    assert not rebuilt(cells).attempted(MASK)


# ------------------------------------------------------------------------ honest oddities


@pytest.mark.parametrize("second", ["both labelled", "second unlabelled"])
def test_a_solution_split_in_two_is_one_solution(second):
    cells = released(LAB)
    n = index(cells, "kv_cache-causal_mask")
    first, rest = "MORE = 1", cells[n]["source"].replace("# TODO", "# done")
    fields = {"metadata": cells[n]["metadata"]} if second == "both labelled" else {}
    cells[n : n + 1] = [{**cells[n], "source": first}, code(rest, id="new", **fields)]
    found = rebuilt(cells)
    assert found.cells_before(MASK)[-2:] == [first, rest]
    assert at(found, "kv_cache-causal_mask").source.replace(
        "\n\n", "\n"
    ) == f"{first}\n{rest}".replace("\n\n", "\n")
    assert found.attempted(MASK)


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


def test_deleted_cells_come_back():
    cells = [cell for cell in solved(LAB) if is_solution(cell)]
    found = rebuilt(cells)
    assert "# end kv_cache-KVCache-attend" in before(found, ATTEND)
    assert len(found.notebook.cells) == len(release_of(LAB).cells)


def test_a_deleted_solution_is_none():
    cells = [cell for cell in solved(LAB) if cell["id"] != "kv_cache-causal_mask"]
    found = rebuilt(cells)
    assert not found.attempted(MASK)
    assert "NotImplementedError" in found.cells_before(MASK)[-1]


def test_an_emptied_solution_is_none():
    cells = solved(LAB)
    cells[index(cells, "kv_cache-causal_mask")]["source"] = " \n"
    assert not rebuilt(cells).attempted(MASK)


def test_a_changed_check_does_not_count_but_is_kept():
    cells = solved(LAB)
    cells[index(cells, check_id(MASK))]["source"] = "print('passed')"
    found = rebuilt(cells)
    assert after(found, check_id(MASK)).source == "print('passed')"
    assert "print('passed')" not in before(found, MASK)


def test_a_changed_given_cell_follows_the_released_one():
    cells = solved(LAB)
    given_cell = cells[1]
    original, given_cell["source"] = given_cell["source"], "import torch as t"
    found = rebuilt(cells)
    assert found.cells_before(MASK)[:2] == [original, "import torch as t"]


def test_cells_of_ones_own_stay_where_they_stand():
    cells = solved(LAB)
    n = index(cells, check_id(MASK))
    cells.insert(n, code("%time 1 + 1", id="own", outputs=["junk"]))
    cells.insert(n + 2, prose("A note"))
    cells.insert(0, code("first = 1"))
    found = rebuilt(cells)
    assert found.cells_before(MASK)[0] == "first = 1"
    assert found.cells_before(MASK)[-1] == "%time 1 + 1"
    assert after(found, check_id(MASK)).source == "A note"


def test_empty_cells_are_left_out():
    found = rebuilt([cell for own in solved(LAB) for cell in (own, code("  \n"), prose(""))])
    assert len(found.notebook.cells) == len(release_of(LAB).cells)


def test_a_solution_that_became_prose_is_code_again():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    cells[n] = prose(cells[n]["source"], id=cells[n]["id"], metadata=cells[n]["metadata"])
    assert "# end kv_cache-causal_mask" in rebuilt(cells).cells_before(MASK)[-1]


def test_an_answer_that_became_code_is_prose_again():
    cells = solved(LAB)
    n = index(cells, "memory_or_compute")
    cells[n] = code("Both.", id=cells[n]["id"], metadata=cells[n]["metadata"])
    assert at(rebuilt(cells), "memory_or_compute").source == "Both."


@pytest.mark.parametrize("lab", LABS)
def test_a_notebook_that_lost_its_labels_is_put_together_again(lab):
    cells = solved(lab)
    found = rebuilt(without_labels(cells), lab)
    assert [cell.source for cell in found.notebook.cells] == [cell["source"] for cell in cells]
    assert found.remarks == ()


def test_scratch_behind_the_check_does_not_spoil_what_was_checked():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    scratch = {**cells[n], "id": "copy", "source": "def causal_mask(): broken"}
    cells.insert(n + 4, scratch)
    found = rebuilt(cells)
    assert found.cells_before(MASK)[-1] == cells[n]["source"]
    assert scratch["source"] in before(found, ATTEND)


def test_a_second_attempt_with_its_own_check_counts():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    better = {**cells[n], "id": "copy", "source": "def causal_mask(): better"}
    cells[n + 2 : n + 2] = [better, {**cells[n + 1], "id": "copy of the check"}]
    assert rebuilt(cells).cells_before(MASK)[-1] == better["source"]


def test_a_released_copy_beside_the_solution_is_no_part_of_it():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    cells.insert(n + 1, released(LAB)[n])
    assert rebuilt(cells).cells_before(MASK)[-1] == cells[n]["source"]


def test_a_copy_of_a_solution_is_there_once():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    cells.insert(n + 1, {**cells[n], "id": "copy"})
    assert rebuilt(cells).cells_before(MASK)[-2:] != [cells[n]["source"]] * 2


def test_scratch_in_a_cell_of_ones_own_is_no_solution():
    cells = released(LAB)
    own = code("def causal_mask(): scratch")
    cells.insert(index(cells, check_id(MASK)) + 1, own)
    found = rebuilt(cells)
    assert not found.attempted(MASK)
    assert after(found, check_id(MASK)).source == own["source"]


# ------------------------------------------------------------------------- answers in prose


def test_the_pieces_of_an_answer_are_joined():
    cells = solved(LAB)
    n = index(cells, "memory_or_compute")
    cells.insert(n + 1, {**cells[n], "id": "more", "source": "And more."})
    expected = "My answer to memory_or_compute.\n\nAnd more."
    assert at(rebuilt(cells), "memory_or_compute").source == expected


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


def test_an_answer_keeps_its_pictures():
    picture = {"a.png": {"image/png": "iVBORw0KGgo="}}
    cells = solved(LAB)
    cells[index(cells, "memory_or_compute")]["attachments"] = picture
    assert at(rebuilt(cells), "memory_or_compute").attachments == picture


def test_pictures_beyond_measure_are_left_out():
    pictures = {f"{n}.png": {"image/png": "A" * 3_000_000} for n in range(5)}
    cells = solved(LAB)
    cells[index(cells, "memory_or_compute")]["attachments"] = pictures
    kept = at(rebuilt(cells), "memory_or_compute").attachments
    assert list(kept) == ["0.png", "1.png"]


# ---------------------------------------------------------------------------------- remarks


def remarks_of(content: bytes | None, problem: str | None = None, lab: str = LAB) -> str:
    found = rebuild(Submission("ada", lab, content, problem), release_of(lab))
    require_sound(found, lab)
    assert not any(found.attempted(exercise) for exercise in lessons()[lab].cards)
    return " ".join(found.remarks)


def test_what_could_not_be_read_is_told():
    assert remarks_of(None, "It is a link.") == "It is a link."
    assert remarks_of(b"no notebook").startswith("The file is no notebook that can be read")


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
    assert found.remarks == (
        "Its cells hold more than 1 MB of text. What goes beyond that was left out.",
    )
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
    changes = [as_it_is, as_it_is, relabelled, split]
    return [piece for cell in cells for piece in draw.choice(changes)(cell, lab, draw)]


def as_it_is(cell: dict[str, Any], lab: str, draw: random.Random) -> list[dict[str, Any]]:
    return [cell]


def relabelled(cell: dict[str, Any], lab: str, draw: random.Random) -> list[dict[str, Any]]:
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
def test_code_comes_before_its_check_whatever_happened_to_the_cells(lab, draw):
    found = rebuilt(jumbled(lab, draw), lab)
    for exercise in lessons()[lab].cards:
        assert found.attempted(exercise)
        solution = [cell for cell in found.code if cell.solution and cell in found.before(exercise)]
        id = solution[-1].grade_id
        text = before(found, exercise)
        assert -1 < text.rfind(f"# begin {id}\n") < text.rfind(f"# end {id}")


@given(st.sampled_from(LABS), st.randoms(use_true_random=False))
def test_nothing_that_was_written_is_lost(lab, draw):
    cells = jumbled(lab, draw)
    found = rebuilt(cells, lab)
    kept = "\n".join(cell.source for cell in found.notebook.cells)
    for cell in cells:
        assert cell["source"].strip() in kept


@given(st.sampled_from(LABS), st.randoms(use_true_random=False))
def test_nothing_that_a_notebook_says_of_itself_counts(lab, draw):
    found = rebuilt(jumbled(lab, draw), lab)
    assert "junk" not in json.dumps([cell.metadata for cell in found.notebook.cells])
    points = [label(cell)["points"] for cell in found.notebook.cells if label(cell).get("grade")]
    assert points == [label(cell)["points"] for cell in released(lab) if label(cell).get("grade")]


@given(st.sampled_from(LABS), st.randoms(use_true_random=False))
def test_the_same_submission_gives_the_same_notebook(lab, draw):
    cells = jumbled(lab, draw)
    first, second = rebuilt(cells, lab), rebuilt(cells, lab)
    assert nbformat.writes(first.notebook) == nbformat.writes(second.notebook)
    assert first.code == second.code


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
    written = nbformat.writes(release_of(LAB))
    rebuilt(solved(LAB))
    assert nbformat.writes(release_of(LAB)) == written


def test_swapped_labels_move_no_code():
    cells = solved(LAB)
    a, b = index(cells, "kv_cache-causal_mask"), index(cells, "kv_cache-KVCache-attend")
    for key in ("id", "metadata"):
        cells[a][key], cells[b][key] = cells[b][key], cells[a][key]
    found = rebuilt(cells)
    assert "# end kv_cache-causal_mask" in found.cells_before(MASK)[-1]
    assert "# end kv_cache-KVCache-attend" in found.cells_before(ATTEND)[-1]


def test_solutions_labelled_as_checks_are_solutions():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    cells[n]["id"], cells[n]["metadata"] = cells[n + 1]["id"], cells[n + 1]["metadata"]
    assert "# end kv_cache-causal_mask" in rebuilt(cells).cells_before(MASK)[-1]


def test_a_given_cell_labelled_as_a_solution_is_no_part_of_it():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    cells[1] = {**cells[1], "id": "copy", "metadata": cells[n]["metadata"]}
    assert at(rebuilt(cells), "kv_cache-causal_mask").source == cells[n]["source"]


def test_another_cell_labelled_as_a_solution_does_not_displace_it():
    cells = solved(LAB)
    n = index(cells, "kv_cache-causal_mask")
    solution = cells.pop(n)
    cells.insert(n, {**solution, "id": "copy", "source": "own = 1"})
    cells.insert(n + 2, solution)
    assert rebuilt(cells).cells_before(MASK)[-2:] == ["own = 1", solution["source"]]


def test_helpers_know_the_cells_of_a_lab():
    cells = released(LAB)
    assert sum(map(is_solution, cells)) == 8
    assert sum(map(is_check, cells)) == len(lessons()[LAB].cards) == 9
    assert sum(map(is_answer, cells)) == len(lessons()[LAB].questions) == 3
