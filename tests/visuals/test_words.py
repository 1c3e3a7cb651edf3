"""The alternative text of a picture: what a reader hears who doesn't see it."""

from visuals.style import new_figure, shared_look
from visuals.words import in_words


def in_words_of(draw, columns=1):
    figure, axes = new_figure(columns=columns)
    draw(*axes)
    figure.draw_without_rendering()
    return in_words(figure)


def test_titles_axes_and_legend():
    def draw(left, right):
        left.set(title="losses\nof both", xlabel="step", ylabel="bits")
        left.plot([1, 2, 4], [3, 2, 1250.4], label="mine")
        left.plot([0, 4], [0, 0])  # a guide
        left.legend()
        right.invert_yaxis()
        right.set(ylabel="row")

    assert in_words_of(draw, 2) == (
        "losses of both. Across: step. Up: bits. mine: 3 at 1, 1,250 at 4. Down: row. Legend: mine."
    )


def test_cells_are_read_row_by_row_with_the_names_on_the_axis():
    def draw(axes):
        axes.set(xlim=(0, 3), ylim=(2, 0))
        for x, y, text in ((2, 0.5, "b"), (1, 1.5, "c"), (1, 0.5, "a")):
            axes.text(x, y, text)
        axes.set_yticks([0.5, 1.5], ["slot 0", "slot 1"], va="bottom")

    assert in_words_of(draw) == "Written: slot 0, a, b; slot 1, c."


def test_bars_are_numbers_where_no_text_has_them():
    def draw(axes):
        axes.bar([0, 1], [2, 3000], label="kept")

    assert in_words_of(draw) == "Bars: kept 2, 3,000."


def test_the_docstring_of_what_draws_comes_first():
    @shared_look
    def draw():
        """Draw a bar for each part,
        and its bytes. More of it.
        """
        figure, (axes,) = new_figure()
        axes.set_title("4 bytes & more")
        return figure

    html = draw().html()
    assert 'alt="A bar for each part, and its bytes. 4 bytes &amp; more." src="data:image/' in html
