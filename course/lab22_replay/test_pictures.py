"""The pictures of lab 22 show their arguments: these tests read the drawn data back."""

import pytest

import visuals.replay as lab
from course.lab22_replay import samples
from solutions.replay import rows_computed
from tests.common.pictures import boxes, names, texts, told


@pytest.mark.parametrize(
    ("takes", "ends"),  # µs of an operation; the end and the waiting, one by one and as a graph
    [(2.0, [(62, 33), (29, 0)]), (5.0, [(65, 0), (65, 0)]), (20.0, [(245, 0), (245, 0)])],
)
def test_a_gpu_waits_for_launches_that_take_longer_than_operations(takes, ends):
    panels = lab.launches(12, 5.0, takes).axes
    assert [tuple(told(axes)) for axes in panels] == ends
    for axes, count in zip(panels, (12, 1), strict=True):
        drawn = boxes(axes, lab.WORK)
        launched = [(start, end) for kind, start, end, *_ in drawn if kind == lab.LAUNCHES]
        assert launched == [(5.0 * i, 5.0 * i + 5) for i in range(count)]
        computed = [(start, end) for kind, start, end, *_ in drawn if kind == lab.COMPUTES]
        assert len(computed) == 12
        for (_, before), (start, end) in zip([(0, 0), *computed], computed, strict=False):
            assert start >= before
            assert end - start == pytest.approx(takes)


def test_pads_fill_a_batch_up_to_its_graph():
    (axes,) = lab.show_ladder(samples.BATCHES, samples.SIZES).axes
    drawn = {}
    for kind, left, right, low, high in boxes(axes, lab.ROWS):
        drawn.setdefault(round((left + right) / 2), {})[kind] = low, high
    for step, rows in enumerate(samples.BATCHES, start=1):
        size = rows_computed([rows], samples.SIZES)
        expected = {lab.ALONE if rows > 8 else lab.REAL: (0, rows)}
        assert drawn[step] == expected | ({lab.PADS: (rows, size)} if size > rows else {})
    real, computed = sum(samples.BATCHES), rows_computed(samples.BATCHES, samples.SIZES)
    assert told(axes) == [real, computed - real, round(computed / real, 2)]


def test_a_block_has_the_look_of_its_row_and_pads_have_the_scratch_block():
    above, below = lab.show_pool(*samples.POOL).axes
    looks = {"row 0": lab.RANKS[0], "row 1": lab.RANKS[1], **lab.BLOCKS}
    pool = {round((left + right) / 2): kind for kind, left, right, *_ in boxes(above, looks)}
    has = {4: "row 0", 0: "row 0", 2: "row 1", 7: lab.SCRATCH}
    assert pool == dict.fromkeys(range(8), lab.FREE) | has
    static = {
        (round((left + right) / 2), round((low + high) / 2)): kind
        for kind, left, right, low, high in boxes(below, looks)
    }
    assert [static[0, row] for row in range(4)] == ["row 0", "row 1", lab.SCRATCH, lab.SCRATCH]
    assert [static[1, row] for row in range(4)] == ["row 0", lab.FREE, lab.SCRATCH, lab.SCRATCH]
    assert names(below.yaxis) == ["row 0", "row 1", "pad 2", "pad 3"]
    assert texts(below) == [str(int(block)) for block in samples.TABLES.flatten()]
    assert told(above) == [8, 3]
    assert told(below) == [2, 4]
