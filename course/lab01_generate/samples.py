"""What the pictures are handed."""

from tests.samples import decode, of, randn
from visuals import generate as visuals

EXAMPLES = (
    of(visuals.show_tokens, ["Once", " upon", "<b>"], [7, 42, 3]),
    of(visuals.next_token_bars, randn(8), decode, "the king", 3, 5),
    of(visuals.next_token_bars, randn(16), str, "x" * 90 + "\nend"),
    of(visuals.explore_next_token, randn(3, 8), [0, 1, 5], decode),
    of(visuals.request_timeline, 10.0, [10.5, 10.6, 10.9]),
    of(visuals.tokens_computed, [2, 3, 4]),
    of(visuals.cost_of_generating, [2, 3, 4], [0.1, 0.2, 0.3]),
)
