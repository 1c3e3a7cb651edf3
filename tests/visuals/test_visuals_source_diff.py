"""The difference between two versions of a function is that of their statements."""

from visuals.source_diff import difference


class Before:
    def forward(self, hidden: int) -> None:
        """A docstring that doesn't count."""
        first = hidden + 1
        print(first)


class Same:
    def forward(
        self,
        hidden,
    ):
        first = hidden + 1  # neither comments nor line breaks count
        print(first)


class Longer:
    def forward(self, hidden, kv_cache=None):
        """Another docstring."""
        if kv_cache is not None:
            hidden = hidden + kv_cache
        first = hidden + 1
        print(first, kv_cache)


class Shorter:
    def forward(self, hidden):
        print(hidden + 1)


def counts(after) -> tuple[int, int, int]:
    found = difference([(Before.forward, after.forward)])
    return found.added, found.changed, found.removed


def test_difference_counts_statements_not_layout():
    assert counts(Same) == (0, 0, 0)
    assert counts(Longer) == (2, 2, 0)
    assert counts(Shorter) == (0, 1, 1)


def test_difference_shows_the_new_code_with_its_marks():
    found = difference([(Before.forward, Longer.forward), (Before.forward, Same.forward)])
    assert str(found).splitlines() == [
        "  Longer.forward",
        "~ def forward(self, hidden, kv_cache=None):",
        "+     if kv_cache is not None:",
        "+         hidden = hidden + kv_cache",
        "      first = hidden + 1",
        "~     print(first, kv_cache)",
        "",
        "  Same.forward",
        "  def forward(self, hidden):",
        "      first = hidden + 1",
        "      print(first)",
    ]
    html = found._repr_html_()
    assert "2 lines added, 2 changed" in html
    assert "<pre" in html


def test_difference_escapes_code_for_html():
    def small(x):
        return x

    def compared(x):
        return x < 3

    assert "x &lt; 3" in difference([(small, compared)])._repr_html_()
