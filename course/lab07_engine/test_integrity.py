"""The books of a pool: each contradiction is found, and told in a sentence."""

import re

import pytest

from solutions.engine.integrity import BrokenPool, check_integrity
from solutions.prefix_caching import PrefixManager


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("m.tables[1].append(6)", "Block 6 is none of the pool's 6 blocks."),
        ("m.ref_counts.pop()", "The pool has 6 blocks and 5 ref counts."),
        ("m.tables[1].pop()", "Block 2 has the ref count 1, and is in 0 tables."),
        ("m.free_blocks.remove(5)", "Block 5 has the ref count 0, and is free 0 times."),
        ("m.free_blocks.append(0)", "Block 0 has the ref count 2, and is free 1 times."),
        (
            "m.free_blocks = [3, 4, 5, 5]",
            "Block 5 has the ref count 0, and is free 2 times.",
        ),
        ("del m.lengths[1]", "Requests [0, 1] have tables, and [0] have lengths."),
        ("m.lengths[1] = 5", "Request 1 has 5 tokens, and the blocks [0, 2]."),
        (
            "m.tables[1], m.ref_counts[:3] = [0, 0], [3, 1, 0]; m.free_blocks.append(2)",
            "Request 1 has a block twice: [0, 0].",
        ),
        ("m.cached.clear()", "`cached` isn't `block_hash` the other way round."),
    ],
)
def test_a_contradiction_is_told(mistake: str, sentence: str) -> None:
    manager = PrefixManager(6, 2)
    manager.admit(0, [1, 2, 3])
    manager.publish(0, [1, 2, 3], 3)
    manager.admit(1, [1, 2, 4])  # shares the first block
    check_integrity(manager)
    exec(mistake, {"m": manager})
    with pytest.raises(BrokenPool, match=f"^{re.escape(sentence)}$"):
        check_integrity(manager)
