"""What the pictures are handed."""

from collections import deque

from tests.samples import of
from visuals import disaggregation as visuals
from visuals.engine import Trace

# Requests 0 and 1 decode; the new request, 2, has a prompt of 12 tokens.
WHOLE = [
    [(0, 3, True), (1, 2, True)],
    [(0, 1, True), (1, 1, True)],
    [(2, 12, True)],
    [(0, 1, True), (1, 1, True), (2, 1, True)],
    [(0, 1, True), (2, 1, True)],
]
CHUNKS = [
    [(0, 3, True), (1, 2, True)],
    [(0, 1, True), (1, 1, True)],
    [(0, 1, True), (1, 1, True), (2, 6, False)],
    [(0, 1, True), (2, 6, True)],
    [(2, 1, True)],
]
POLICIES = {"whole prompts": WHOLE, "chunks": CHUNKS}
BUDGETS = {12: WHOLE, 8: CHUNKS}
LITTLE: list[Trace] = [
    [],
    [[]],
    [[(2, 5, False)]],
    [[(2, 5, True)]],
    [[(0, 5, True)], [(0, 1, True)]],
]
TOKEN_TIMES = {
    "whole": [50.0, 50.1, 50.5, 50.6],
    "chunks": [7.0, 7.2, 7.3],
    "one": [3.0],
    "none": [],
}
EVENTS = {
    "P": [("prefill", 5.0, 0.2), ("wait", 5.2, 0.1)],
    "wire": [("send", 5.2, 0.05)],
    "D": [("wait", 5.05, 0.2), ("decode", 5.25, 0.01), ("decode", 5.26, 0.01)],
}

EXAMPLES = (
    of(visuals.steps_of, POLICIES | {"an engine's own": deque(CHUNKS)}, 2),
    of(visuals.gaps_of, POLICIES | {"an engine's own": deque(CHUNKS)}, 2),
    of(visuals.steps_and_gaps, CHUNKS, 2, [CHUNKS, WHOLE]),
    of(visuals.explore_budget, BUDGETS, 2, {12: "whole", 8: "small"}),
    of(visuals.chunk_mask, 20, 8),
    of(visuals.chunk_mask, 640, 16),
    of(visuals.token_dots, TOKEN_TIMES),
    of(visuals.token_dots, {}),
    of(visuals.lanes, EVENTS),
    of(visuals.lanes, {}),
    of(visuals.wire_bytes, {640: 2_000_000, 64: 131_072}, 2048),
    of(visuals.wire_bytes, {}, 2048),
)
