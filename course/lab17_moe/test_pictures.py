"""The pictures of lab 17 show what they are handed: these tests read the drawn data back."""

import pytest

import visuals.moe as lab
from course.lab17_moe import samples as samples
from tests.common.pictures import boxes, curves, legend_of, names, numbers_in, title_of


def test_each_choice_is_in_the_row_of_its_token_and_the_column_of_its_expert():
    figure = lab.show_routes(samples.WORDS, samples.CHOSEN, 4)
    (axes,) = figure.axes
    looks = {**lab.CHOICES, "none": lab.NOTHING}
    drawn = {
        (round((bottom + top) / 2), round((left + right) / 2), kind)
        for kind, left, right, bottom, top in boxes(axes, looks)
        if kind != "none"
    }
    assert drawn == {
        (token, expert, kind)
        for token, experts in enumerate(samples.CHOSEN.tolist())
        for expert, kind in zip(experts, (lab.FIRST, lab.SECOND), strict=True)
    }
    assert names(axes.yaxis) == ["the", "$x$", "↵"]
    assert [numbers_in(name) for name in names(axes.xaxis)] == [[0, 3], [1, 1], [2, 2], [3, 0]]
    assert legend_of(figure) == [lab.FIRST, lab.SECOND]


@pytest.mark.parametrize(("word", "label"), [(" king", "king"), ("\n", "↵"), (" ", "␣")])
def test_a_token_has_a_label_without_the_space_before_it(word, label):
    assert lab.short(word) == label


def test_losses_have_a_line_for_each_router_in_order():
    figure = lab.losses_by_experts(samples.LOSSES)
    (axes,) = figure.axes
    fitted, random, _ = curves(axes)
    assert list(fitted.items()) == [(2, 0.3), (3, 0.1), (4, 0.05)]
    assert random == {4: 0.6}
    assert legend_of(figure) == list(samples.LOSSES)


def test_the_touched_experts_are_compared_with_even_choices_and_with_all():
    (axes,) = lab.experts_touched(samples.MEASURED, samples.AT_RANDOM, 8).axes
    measured, at_random, all_of_them = curves(axes)
    assert (measured, at_random) == (samples.MEASURED, samples.AT_RANDOM)
    assert set(all_of_them.values()) == {8}
    assert numbers_in(title_of(axes)) == [8]


def test_the_loads_of_a_run_are_bands_on_top_of_each_other():
    figure = lab.loads_in_training(samples.HISTORY)
    assert [title_of(axes) for axes in figure.axes] == list(samples.HISTORY)
    first, second = figure.axes[0].collections
    tops = [dict(map(tuple, band.get_paths()[0].vertices.tolist())) for band in (first, second)]
    assert max(second.get_paths()[0].vertices[:, 1]) == pytest.approx(1)
    assert tops[0].keys() == {0, 1, 2}


@pytest.mark.parametrize(
    ("factor", "kept", "dropped", "free"),
    [(0.5, [1, 1, 1, 0], [2, 0, 1, 0], [0, 0, 0, 1]), (2.0, [3, 1, 2, 0], [0] * 4, [0, 2, 1, 3])],
)
def test_each_expert_shows_what_it_keeps_drops_and_leaves_empty(factor, kept, dropped, free):
    figure = lab.capacity_at(samples.CHOSEN, samples.KEPT, 4, factor)
    (axes,) = figure.axes
    drawn = {kind: [0] * 4 for kind in lab.PLACES}
    for kind, left, right, bottom, top in boxes(axes, lab.PLACES):
        drawn[kind][round((left + right) / 2)] = round(top - bottom)
    assert drawn == {lab.KEPT: kept, lab.DROPPED: dropped, lab.FREE: free}
    places = samples.KEPT[factor][0]
    assert numbers_in(title_of(axes)) == [places]
    assert {y for line in curves(axes) for y in line.values()} == {places}
    # the places, the dropped ones of 6 assignments, the empty ones of 4 * places
    shares = round(100 * sum(dropped) / 6), round(100 * sum(free) / (4 * places))
    assert numbers_in(lab.capacity_in_words(samples.KEPT[factor], 4)) == [places, *shares]


def test_each_token_has_its_rank_in_each_layer_and_a_mark_at_each_hop():
    figure = lab.show_hops(samples.WORDS, samples.ROUTES, samples.OWNERS)
    looks = {str(rank): look for rank, look in enumerate(lab.RANKS)}
    in_order, mixed = figure.axes
    ranks = [int(kind) for kind, *_ in boxes(in_order, looks)]
    assert ranks == [0, 0, 1, 1, 0, 1, 0, 0, 0]
    assert [list(line) for line in curves(in_order)] == [[1.5], [0.5, 1.5], []]
    assert [int(kind) for kind, *_ in boxes(mixed, looks)] == [0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert [list(line) for line in curves(mixed)] == [[], [1.5], []]
    assert legend_of(figure) == ["rank 0", "rank 1"]
