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
        if len(kv_cache) < 3:
            hidden = hidden + kv_cache
        first = hidden + 1
        print(first, kv_cache)


class Shorter:
    def forward(self, hidden):
        print(hidden + 1)


def test_difference_shows_the_statements_of_the_new_code_with_their_marks():
    found = difference([(Before.forward, new.forward) for new in (Longer, Same, Shorter)])
    assert str(found).splitlines() == [
        "  Longer.forward",
        "~ def forward(self, hidden, kv_cache=None):",
        "+     if len(kv_cache) < 3:",
        "+         hidden = hidden + kv_cache",
        "      first = hidden + 1",
        "~     print(first, kv_cache)",
        "",
        "  Same.forward",
        "  def forward(self, hidden):",
        "      first = hidden + 1",
        "      print(first)",
        "",
        "  Shorter.forward",
        "  def forward(self, hidden):",
        "~     print(hidden + 1)",
        "-     print(first)",
    ]
    html = found._repr_html_()
    assert "2 lines added, 3 changed, 1 removed" in html
    assert "len(kv_cache) &lt; 3" in html
