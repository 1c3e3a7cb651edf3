"""What the pictures of each lab are handed in tests: small objects, easily checked by hand."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import torch

from solutions.decoding import Candidate
from solutions.flash_attention import flash_attention, online_steps
from solutions.kernels.slow_memory import Memory
from solutions.memory import MemoryUse
from solutions.prefix_caching import Node
from solutions.speculative import Round
from visuals.engine import Snapshot, Trace


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


VOCABULARY = ["the", " king", " and", " queen", "\n", "$x$", " <b>fox</b>", "&"]


def decode(ids: list[int]) -> str:
    return "".join(VOCABULARY[token_id] for token_id in ids)


def word(token_id: int) -> str:
    return VOCABULARY[token_id]


# ---------------------------------------------------------------------------------- 2: the cache

QUERIES, KEYS, VALUES = ONE_HEAD = randn(3, 5, 4)
MASKS = {
    "prefill": torch.ones(1, 1, 5, 5).tril().bool(),
    "chunk": torch.ones(1, 1, 2, 5).tril(3).bool(),
}


def growing(*lengths: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The caches of 2 layers with 2 heads of 64 numbers after some steps, 2 KB a token."""
    return [[(torch.zeros(1, 2, n, 64), torch.zeros(1, 2, n, 64))] * 2 for n in lengths]


def preallocated(filled: int, length: int) -> SimpleNamespace:
    """A cache of 2 layers with room for 8 tokens, 1 KB each."""
    keys = torch.zeros(2, 1, 1, 8, 64)
    keys[..., :filled, :] = 1
    return SimpleNamespace(keys=keys, values=keys.clone(), length=length, max_length=8)


# ------------------------------------------------------------------------------------ 3: batches

PADDED = torch.tensor([[0, 1, 2], [0, 0, 3]])
IS_TOKEN = torch.tensor([[True, True, True], [False, False, True]])
POSITIONS = torch.tensor([[0, 1, 2], [0, 0, 0]])

# Four slots; S1 has 4 steps, S2 8, S3 3, S4 5; then S5 to S7 fill in.
STATIC = [
    *[[0, 1, 2, 3]] * 3,
    [0, 1, None, 3],
    [None, 1, None, 3],
    *[[None, 1, None, None]] * 3,
]
CONTINUOUS = [*[[0, 1, 2, 3]] * 3, [0, 1, 4, 3], [5, 1, 4, 3], *[[5, 1, 4, 6]] * 3]
SLOTS = SimpleNamespace(lengths=torch.tensor([7, 0, 5]), max_length=12)
STEP_SECONDS = {1: 0.004, 2: 0.005, 16: 0.010}

# ------------------------------------------------------------------------------------- 4: blocks


USES = {
    "longest": MemoryUse(0.2, 0.3, 0.4, 0.1, running=7),
    "paged": MemoryUse(0.97, 0.01, 0, 0.02, running=30.42),
}


def block_manager() -> SimpleNamespace:
    """Request 5 was forked into request 6, which has copied the last block; a pool of 4, of 2."""
    tables, lengths = {5: [3, 1], 6: [3, 0]}, {5: 3, 6: 4}
    counts = {"ref_counts": [1, 1, 0, 2], "free_blocks": deque([2])}
    return SimpleNamespace(num_blocks=4, block_size=2, tables=tables, lengths=lengths, **counts)


BLOCK_WORDS = {5: ["an", "old", "king"], 6: ["an", "old", "queen", "\n", "not yet"]}
HELD = [{0: 1, 1: 2}, {0: 2, 1: 2}, {0: 2}, {1: 3, 2: 1}, {2: 1}]

# ----------------------------------------------------------------------------------- 5: decoding

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0])


def probs_with(*, temperature: float, top_k: int | None, top_p: float, min_p: float) -> Any:
    """In place of a sampler: each setting leaves its trace in the result."""
    probs = (LOGITS / max(temperature, 0.01)).softmax(dim=0)
    least = probs.sort(descending=True).values[min(top_k or 4, 4) - 1]
    kept = torch.where((probs >= least) & (probs >= min_p * probs.max()), probs, 0)
    kept = torch.where(probs >= min(1 - top_p, probs.max().item()), kept, 0)
    return kept / kept.sum()


END = 0


BEAM_STEPS = [
    [Candidate(*one) for one in step]
    for step in (
        [(-1, 0, 6), (-1.25, 0, 5), (-3, 0, END), (-4, 0, 7)],  # END is too late to end a text
        [(-1.5, 1, 7), (-2, 0, END), (-2.5, 0, 5), (-3.5, 1, 3)],
        [(-1.75, 0, END), (-3.25, 1, 5), (-4.5, 0, 3), (-5, 1, END)],
    )
]


def search(steps: list[list[Candidate]], *best: int, width: int = 2, prompt: int = 1) -> Any:
    """A beam search. best: its best text, which has ended if END is its last token."""
    text, other = SimpleNamespace(ids=[*best]), SimpleNamespace(ids=[4, 6, 5])
    finished = [text] if best[-1] == END else []
    names = {"width": width, "prompt_length": prompt, "eos_token_id": END}
    return SimpleNamespace(
        beams=[other] if finished else [text], finished=finished, trace=steps, **names
    )


SEARCH = search(BEAM_STEPS, 4, 5, 7, END)


# -------------------------------------------------------------------------------- 6: speculative


ALL_ACCEPTED = Round([1, 2], 2, [1, 2, 3])
CORRECTION = Round([1, 2, 4], 1, [1, 3])
NO_DRAFT = Round([], 0, [5])
CUT = Round([1, END, 2, 4], 3, [1, END])


def expected_tokens(acceptance: float, k: int) -> float:
    """In place of a learner's function."""
    return 1 + acceptance * k


# ------------------------------------------------------------------------------------- 7: engine

# Request 0 decodes and drafts; 1 has a prompt in two chunks, is preempted and computed again; 2
# waits, comes in, and has once no tokens.
TRACE = [
    [(0, 2, True), (1, 6, False)],
    [(0, 1, True), (1, 3, True)],
    [(0, 5, True)],
    [(0, 1, True), (2, 3, True)],
    [(1, 4, False)],
    [(1, 6, True), (2, 1, True)],
]
SNAPSHOTS = [
    Snapshot((2,), {0: 1, 1: 3}),
    Snapshot((2,), {0: 1, 1: 3}),
    Snapshot((1, 2), {0: 2}),
    Snapshot((1,), {2: 1}),
    Snapshot((), {1: 3, 2: 1}),
    Snapshot((), {1: 3}),
]
RUNS = {
    8: SimpleNamespace(trace=TRACE, snapshots=SNAPSHOTS),
    64: SimpleNamespace(trace=TRACE[:2], snapshots=SNAPSHOTS[:2]),
}

# ---------------------------------------------------------------------------- 8: prefix caching

# The first computes all of its first prompt; the other finds what both begin with.
CHATS = [[(10, 0, 4), (18, 14, 4)], [(10, 8, 4), (18, 12, 6), (30, 24, 2)]]
MOMENTS = [(3, 0, 0), (5, 2, 0), (4, 4, 2), (6, 1, 3)]


def knowing_manager() -> SimpleNamespace:
    return SimpleNamespace(
        tables={3: [0, 2], 5: [2, 1]}, free_blocks=deque([4, 3]), block_hash={2: b"x", 3: b"y"}
    )


def tree() -> Node:
    """Of one text: the, a fox, and."""
    return Node(children={0: Node([0, 6, 2], stamp=1)}, stamp=1)


def split(root: Node) -> None:
    """After: the, a fox, a queen, a new line."""
    old = root.children[0]
    below = {2: old, 3: Node([3, 4], stamp=2)}
    root.children[0] = Node([0, 6], children=below, stamp=2)
    old.ids, root.stamp = [2], 2


def split_tree() -> Node:
    root = tree()
    split(root)
    return root


CIRCLE = {10: 0.8, 6: 0.0, 9: 0.7, 8: 0.0}  # documents asked for in a circle
RATES = {"oldest first": CIRCLE, "newest first": {6: 0.5, 8: 0.6, 10: 0.8}}

# ------------------------------------------------------------------------- 9: chunks, two sides

# Requests 0 and 1 decode; the newcomer, 2, has a prompt of 12 tokens.
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

# ------------------------------------------------------------------------------ 10: quantization

FORMATS = {"halves": [n / 2 for n in range(-4, 5)], "quarters": [n / 4 for n in range(-8, 9)]}
INT3 = torch.tensor([[-3, 0, 0], [1, 0, 3]], dtype=torch.int8)
UINT2 = torch.tensor([0, 1, 2, 3, 3], dtype=torch.uint8)
WEIGHT = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 0.5, 2.0], [0.0, 6.0, -1.0], [0.1, 0.2, -5.0]])
CLIPPED = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 8.0])
SCALES = torch.tensor([0.5, 1.0, 2.0, 4.0])
ERRORS = {
    "rounding": torch.tensor([1.0, 2.0, 4.0, 8.0]),
    "clipping": torch.tensor([90.0, 6.0, 1.0, 0.0]),
}
CHOSEN = {"min-max": 4.0, "99 %": 1.0, "least squared error": 2.0}
ACTIVATIONS = torch.tensor([[1.0, -40.0, 2.0, 0.5], [-2.0, 10.0, 1.0, 0.25]])
ROWS = torch.tensor([[0.5, -1.0], [0.1, 0.05], [2.0, 0.0], [1.0, -4.0]])
SMOOTHED = ACTIVATIONS, ACTIVATIONS / 2, ROWS, ROWS * 2
POINTS = {
    "int8": (8.06, -0.0003, 0.0001),
    "int4": (4.06, 0.006, 0.0015),
    "GPTQ, 3 bits": (3.06, 0.019, 0.003),
    "int3": (3.06, 0.06, 0.005),
    "int2": (2.06, 1.4, 0.05),
    "float32": (32, 0, 0),
}
NORMAL = randn(64, 6, seed=1)


def to_steps(weight: torch.Tensor, bits: int, grain: str) -> torch.Tensor:
    """Rounds to multiples of a step that tells bits and grains apart."""
    step = {"tensor": 1.0, "channel": 0.5, "group": 0.25}[grain] / 2**bits * 4
    return (weight / step).round() * step


# ------------------------------------------------------------------------- 11: a smaller KV cache

WINDOW = [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
HEAVY = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4]]
MASS = torch.tensor([[0.001, 0.02], [0.0, 0.004], [0.5, 0.0001]])
EVEN = 1 / 768
CONTROLS = {
    "the first 4": (0.265, 0.012),
    "tokens 200 to 203": (0.383, 0.015),
    "none": (-0.01, 0.1),
}
CHANNELS = torch.tensor([[1.0, -3.0, 0.0, 2.0], [1.5, -4.0, 0.5, 2.5], [0.5, -2.0, -1.0, 6.0]])
BYTES = {
    "float32": {"keys and values": 24_576},
    "KIVI": {"codes": 1_536, "scales and zeros": 768.0, "recent tokens": 768},
    "groups of 1": {"codes": 6_144, "scales and zeros": 24_576},
}
PREEMPTED = {"recompute": (5_321, 0), "swap": (3_010, 45_678_912)}

# --------------------------------------------------------------------------- 12: flash attention

TILED, NAIVE, FAST_NUMBERS = {16: 2_000, 64: 500}, 5_000, {16: 30, 64: 1_200}
SCORES = torch.tensor([1.0, -2.0, 0.0, 3.0, 2.0, -1.0, 0.5])


def states_of(scores: torch.Tensor, block: int) -> list[tuple[Any, ...]]:
    return [tuple(state) for state in online_steps(scores, block)]


STATES = states_of(SCORES, 3)  # tiles of 3, 3 and 1; peaks 1, 3, 3


def loads_of(q_len: int, k_len: int, block_q: int, block_k: int) -> list[Any]:
    """What flash attention loads, and in which order."""
    memory = Memory(torch.randn(q_len, 2), torch.randn(k_len, 2), torch.randn(k_len, 2))
    flash_attention(memory, q_len, k_len, 2, block_q, block_k)
    return memory.trace


LENGTH_TIMES = {
    "naive": {128: 1.0, 512: 8.0, 2048: 100.0},
    "tiles": {2048: 30.0, 128: 3.0, 512: 7.0},
    "kernel": {128: 0.5, 512: 2.0, 2048: 9.0},
    "slow": {128: 2.0, 512: 7.5, 2048: 101.0},
}
PARTS = [(0, 6, 1.0), (6, 12, 3.0), (12, 16, -torch.inf)]
