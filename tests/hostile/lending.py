"""Submissions that have what they are lent work for them without end, or take the grader's memory.

What is lent runs in the grader: a size that is handed over may be small, and what comes of it huge.
"""

from functools import partial

from tests.hostile.notebooks import attempt

FAMILY = "lending"
TOO_LARGE = "far more than what the case has"
overworks = partial(attempt, FAMILY)
slots = partial(overworks, exercise="batching.ContinuousBatcher.step")
swaps = partial(overworks, exercise="kv_reduction.HostPool.swap_out")
packs = partial(overworks, exercise="disaggregation.pack_kv")
finds = partial(overworks, exercise="prefix_caching.PrefixManager.match")
samples = partial(overworks, exercise="decoding.sample")
tiles = partial(overworks, exercise="flash_attention.flash_attention")

FROM_THE_HARNESS = """
import sys
frame = sys._getframe()
while "functions" not in frame.f_locals:
    frame = frame.f_back
functions = frame.f_locals["functions"]
"""

CORPUS = [
    slots(
        "positions of forty thousand tokens in eight thousand slots",
        body="self.kv_cache.select([0] * 8000, 40_000)",
        says=TOO_LARGE,
    ),
    slots(
        "positions for as long as it lasts",
        body="while True:\n    self.kv_cache.select([0] * 400, 16)",
    ),
    slots(
        "slots that are counted in bits", body="self.kv_cache.select([0], 1 << 900)", says=TOO_LARGE
    ),
    swaps(
        "three hundred million tokens, as a float",
        body=f"{FROM_THE_HARNESS}functions['pack_kv'](cache.pool, [0], 0, 3e8)",
        says=TOO_LARGE,
    ),
    packs(
        "a table of eight thousand blocks of a hundred thousand tokens",
        body="slot_mapping(torch.full((1, 8000), 99_999), torch.zeros(1, 1).long(), 99_999)",
        says=TOO_LARGE,
    ),
    packs(
        "slots of four thousand requests and all their positions",
        body="slot_mapping(torch.zeros(4000, 1).long(), torch.zeros(1, 4000).long(), 16)",
    ),
    finds(
        "the hashes of a text that is as long as may be",
        body="while True:\n    block_hashes(list(range(800)), 1)",
    ),
    samples(
        "four thousand keys of one hash",
        body="next_token_probs({n * (2**61 - 1): 0 for n in range(4000)}, [], params)",
        says="a key is",
    ),
    samples(
        "four thousand keys of one hash, in tuples",
        body="next_token_probs({(n, n): 0 for n in range(4000)}, [], params)",
        says="a key is",
    ),
    samples(
        "a result of sixty-four megabytes in every case",
        body="return [torch.zeros(2_000_000, dtype=torch.float64)] * 4",
    ),
    samples(
        "probabilities for as long as it lasts",
        body="""
        while True:
            next_token_probs(torch.zeros(8000, dtype=torch.float64), [], params)
        """,
    ),
    tiles(
        "slow memory that is given more and more names",
        body="""
        tile = memory.load("queries", 0, 1)
        for number in range(10**6):
            memory.store(f"left {number}", 0, tile)
        """,
        says="It was stopped after",
    ),
]
