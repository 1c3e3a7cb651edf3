"""The arguments of the pictures."""

import numpy as np

from tests.samples import of
from timing.operations import KERNEL
from visuals import one_kernel as visuals

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
EVENTS = [  # 100 to 110, 114 to 120 and 124 to 125 µs
    ("aten::addmm", 101.0, 108.0),
    ("aten::linear", 100.0, 110.0),
    ("aten::t", 100.0, 101.0),
    (FLASH, 114.0, 120.0),
    ("aten::empty", 120.0, 120.0),
    ("aten::add_", 124.0, 125.0),
]
STEP = [
    event
    for start in range(0, 4900, 14)
    for event in (("aten::linear", start, start + 12), ("aten::mm", start + 2.5, start + 11.0))
]
TAKEN = [(0, 16, 0), (16, 32, 1), (32, 64, 1), (80, 96, 0)]
SHARES = [(128 * share, 128 * share + 128, share % 3) for share in range(8)]
FIXED, SHARED = [[2.0, 2.0], [1.0, 1.0]], [[1.0] * 4, [0.5] * 4]
HEADS = [[0.02, 0.01], [0.03, 0.03]], [[0.01] * 3, [0.0075] * 8]
X = np.linspace(-3, 3, 601)
EXACT = np.exp(X)
BITS = {1: [True], 2: [False, True], 4: [True, False, False, True]}

EXAMPLES = (
    of(visuals.show_strip, EVENTS, 5.0),
    of(visuals.show_strip, STEP, 1950.0),
    of(visuals.show_strip, [(KERNEL, 0.0, 1500.0)], 1950.0),
    of(visuals.show_rows, TAKEN),
    of(visuals.show_rows, SHARES),
    of(visuals.show_rows, [(0, 3, 0)]),
    of(visuals.show_rows, [(4 * share, 4 * share + 4, share % 2) for share in range(100)]),
    of(visuals.show_threads, FIXED, SHARED),
    of(visuals.show_threads, *HEADS),
    of(visuals.threads, FIXED, SHARED, 0.5, 5.0),
    of(visuals.threads, *HEADS, 0.0, 0.0),
    of(visuals.show_exponential, X, EXACT.astype(np.float32), EXACT),
    of(visuals.show_exponential, X * 29, np.exp(X * 29) * (1 + 3e-7 * np.sin(X)), np.exp(X * 29)),
    of(visuals.show_bits, BITS),
    of(visuals.show_bits, {size: [True] * size for size in (1, 2, 3, 4, 8, 12, 16, 32, 64, 128)}),
)
