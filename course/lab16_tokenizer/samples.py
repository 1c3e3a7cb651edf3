"""What the pictures are handed."""

from tests.samples import of
from visuals import tokenizer as visuals

RANKS = {(b"a", b"b"): 0, (b"ab", b"c"): 1, (b"$", b"x"): 1_234}
ROUNDS = [
    [b"$", b"x", b"a", b"b", b"c", b"a", b"b"],
    [b"$", b"x", b"ab", b"c", b"ab"],
    [b"$", b"x", b"abc", b"ab"],
    [b"$x", b"abc", b"ab"],
]
BYTES_PER_TOKEN = {0: 1.0, 10: 1.5, 100: 2.5}


def cut(merges: int) -> list[bytes]:
    """In place of a learner's tokenizer."""
    return {0: [b"$", b"\n", b" ", b"\xc3"] * 20, 10: [b" to", b"ken"] * 9}.get(merges, [b" $x$"])


COSTS = {"large": {256: 8.0, 512: 4.0, 4096: 2.0}, "small": {256: 2.0, 512: 1.0, 4096: 1.5}}

# "“<é": the first character is three tokens, the last one is cut off
STREAM = (
    [b"\xe2", b"\x80", b"\x9c<", b"\xc3"],
    ["", "", "“<", ""],
    [b"\xe2", b"\xe2\x80", b"", b"\xc3"],
)

EXAMPLES = (
    of(visuals.merge_rounds, ROUNDS, RANKS),
    of(visuals.explore_merges, BYTES_PER_TOKEN, cut),
    of(visuals.merges_at, BYTES_PER_TOKEN, cut, 0),
    of(visuals.vocabulary_costs, COSTS),
    of(visuals.show_stream, *STREAM),
)
