"""The exercises of lab 12: traffic, the running softmax, tiles, parts, blocks, and gradients."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import flash_attention as drivers
from autograder.judging.comparisons import compare_with_traffic
from autograder.judging.draws import draw, normal
from autograder.judging.exercise import Case, Exercise
from autograder.lending.slow_memory import lend_memory
from solutions import flash_attention as reference

HIDDEN = -math.inf
Two = tuple[int, int]

# ------------------------------------------------------------------------------------------ counts


def traffic_terms(
    q_len: int, k_len: int, block_q: int, block_k: int, head_dim: int
) -> dict[str, dict[str, float]]:
    """Of which terms the two counts are the sums."""
    queries, keys, scores = q_len * head_dim, k_len * head_dim, q_len * k_len
    naive = {"queries": queries, "keys": keys, "values": keys, "output": queries}
    steps = "scores written", "scores read", "weights written", "weights read"
    seen = [
        max(min(start + block_q, q_len) + k_len - q_len, 0) for start in range(0, q_len, block_q)
    ]
    loaded = sum(min(-(-keys // block_k) * block_k, k_len) for keys in seen) * head_dim
    own = {"queries": queries, "keys": loaded, "values": loaded, "output": queries}
    return {
        "The count of the naive way": {**naive, **dict.fromkeys(steps, scores)},
        "The count of the tiles": {**own, "one more number per query": q_len},
    }


def traffic_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, q_len: int, k_len: int, block_q: int, block_k: int, head_dim: int = 5
    ) -> Case:
        sizes = {"q_len": q_len, "k_len": k_len, "block_q": block_q, "block_k": block_k}
        return Case(
            label, {**sizes, "head_dim": head_dim}, traffic_terms(**sizes, head_dim=head_dim)
        )

    q_len = draw(generator, 5, 40)
    drawn = q_len, q_len + draw(generator, 1, 40), draw(generator, 2, 9), draw(generator, 2, 9)
    return [
        case("one query and one key, tiles of one", 1, 1, 1, 1),
        case("three tokens, tiles of one", 3, 3, 1, 1),
        case("one tile of each", 4, 4, 4, 4),
        case("two tiles of each", 8, 8, 4, 4),
        case("one token less than two tiles", 7, 7, 4, 4),
        case("one token more than two tiles", 9, 9, 4, 4),
        case("tiles larger than the text", 5, 5, 16, 16),
        case("more queries in a tile than keys", 12, 12, 6, 2),
        case("more keys in a tile than queries", 12, 12, 2, 6),
        case("one query after nine tokens", 1, 10, 4, 4),
        case("three queries after ten tokens", 3, 13, 4, 4),
        case("two tiles of queries after five tokens", 6, 11, 4, 3),
        case("more queries than keys", 7, 4, 2, 2),
        case("many more queries than keys", 12, 3, 2, 2),
        case("more queries than keys, tiles of one", 5, 3, 1, 1),
        case("1,024 tokens in tiles of 128, head_dim 32", 1024, 1024, 128, 128, head_dim=32),
        case("other lengths and tiles", *drawn, head_dim=draw(generator, 1, 64)),
    ]


# ------------------------------------------------------------------------------ the running softmax


def absorb_cases(generator: torch.Generator) -> list[Case]:
    head_dim = 3

    def tile(*scores: Tensor) -> tuple[Tensor, Tensor]:
        """The scores in one tile, with values for the keys."""
        joined = torch.cat(scores, dim=-1)
        lead = joined.shape[:-2]
        return joined, normal(generator, *lead, joined.shape[-1], head_dim)

    def case(label: str, *tiles: tuple[Tensor, Tensor], seen: bool = False) -> Case:
        rows = tiles[0][0].shape[:-1]
        nothing = torch.full(rows, HIDDEN).double(), torch.zeros(rows).double()
        something = normal(generator, *rows), 1 + normal(generator, *rows).abs()
        state = [*(something if seen else nothing), torch.zeros(*rows, head_dim).double()]
        if seen:
            state[2] = normal(generator, *rows, head_dim)
        return Case(label, {"state": state, "tiles": list(tiles)})

    def some(*shape: int, at: float = 0.0, size: float = 1.0) -> Tensor:
        return at + size * normal(generator, *shape)

    def hidden(*shape: int) -> Tensor:
        return torch.full(shape, HIDDEN).double()

    def causal(tokens: int, before: int) -> Tensor:
        """Scores of the last `tokens` of a text, each of which sees those up to its own."""
        scores = some(tokens, before + tokens)
        later = torch.ones(scores.shape, dtype=torch.bool).triu(before + 1)
        return scores.masked_fill(later, HIDDEN)

    ones = torch.ones(2, 2).double()
    many = [tile(some(2, draw(generator, 1, 4), size=3.0)) for _ in range(6)]
    return [
        case("one query, one key", tile(some(1, 1))),
        case("one query, three keys", tile(some(1, 3))),
        case("two queries, three keys", tile(some(2, 3))),
        case("a tile after others, with higher scores", tile(some(2, 3, at=4.0)), seen=True),
        case("a tile after others, with lower scores", tile(some(2, 3, at=-4.0)), seen=True),
        case("two tiles, the second one higher", tile(some(2, 3)), tile(some(2, 3, at=5.0))),
        case("two tiles, the second one lower", tile(some(2, 3)), tile(some(2, 3, at=-5.0))),
        case("tiles of one key", *[tile(some(2, 1)) for _ in range(4)]),
        case("one query rises, one falls", *[tile(some(2, 2, size=6.0)) for _ in range(3)]),
        case("the same score twice", tile(ones[:, :1]), tile(ones)),
        case("some keys are masked", tile(some(2, 2), hidden(2, 1), some(2, 1))),
        case("causal tiles", *[tile(scores) for scores in causal(4, 2).split(2, dim=-1)]),
        case("the first tile is masked", tile(hidden(2, 3)), tile(some(2, 3))),
        case("the last tile is masked", tile(some(2, 3)), tile(hidden(2, 3))),
        case("a masked tile after others", tile(hidden(2, 3)), seen=True),
        case("all keys are masked", tile(hidden(2, 3)), tile(hidden(2, 2))),
        case(
            "one query sees the keys, and one sees none",
            tile(torch.cat([some(1, 3), hidden(1, 3)])),
        ),
        case("scores around 2,000", tile(some(2, 3, at=2000.0)), tile(some(2, 3, at=2001.0))),
        case("scores around -2,000", tile(some(2, 3, at=-2e3)), tile(some(2, 3, at=-2e3))),
        case("scores around -20,000, and a masked key", tile(some(2, 3, at=-2e4), hidden(2, 1))),
        case("from 2,000 down to -2,000", tile(some(2, 2, at=2e3)), tile(some(2, 2, at=-2e3))),
        case("three heads", tile(some(3, 2, 4)), tile(some(3, 2, 4, at=2.0))),
        case("two texts of three heads", tile(some(2, 3, 2, 4)), tile(some(2, 3, 2, 1))),
        case("six tiles of different sizes", *many),
    ]


# ------------------------------------------------------------------------------------- tile by tile


def flash_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, lengths: Two, blocks: Two = (4, 4), **given: Any) -> Case:
        usual = {"head_dim": 5, "heads": [], "size": 1.0} | given
        sizes = dict(zip(("q_len", "k_len", "block_q", "block_k"), lengths + blocks, strict=True))
        return Case(label, {**sizes, **usual, "seed": draw(generator, 0, 10**6)})

    number = partial(draw, generator)
    q_len = number(5, 14)
    drawn = q_len, q_len + number(1, 14)
    return [
        case("one query, one key", (1, 1)),
        case("one tile of each", (4, 4)),
        case("one token less than a tile", (3, 3)),
        case("one token more than a tile", (5, 5)),
        case("two tiles of each", (8, 8)),
        case("one token more than two tiles", (9, 9)),
        case("tiles of one token", (5, 5), (1, 1)),
        case("tiles larger than the text", (5, 5), (16, 16)),
        case("more queries in a tile than keys", (11, 11), (6, 2)),
        case("more keys in a tile than queries", (11, 11), (2, 6)),
        case("one query after eight tokens", (1, 9)),
        case("three queries after seven tokens", (3, 10)),
        case("two tiles of queries after five tokens", (6, 11), (4, 3)),
        case("more queries than keys", (7, 4), (3, 2)),
        case("a tile of queries that see nothing", (9, 3), (3, 2)),
        case("a tile of queries of which some see nothing", (7, 4), (4, 2)),
        case("scores in the thousands", (9, 9), size=2000.0),
        case("three heads", (6, 9), heads=[3]),
        case("two texts of three heads", (5, 5), (2, 2), heads=[2, 3]),
        case("eight queries after a long text", (8, 96), head_dim=4),
        case("other lengths and tiles", drawn, (number(2, 5), number(2, 5)), head_dim=8),
        case("many tiles of queries, four keys", (24, 4), (1, 1), head_dim=4),
    ]


# --------------------------------------------------------------------------------------- in parts


def merge_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, parts: int, rows: Any = (4,), at: Any = 0.0, empty: tuple[Two, ...] = ()
    ) -> Case:
        """empty: (part, row) of queries that saw nothing; their output there is arbitrary."""
        lses = at + 2 * normal(generator, parts, *rows)
        outputs = normal(generator, parts, *rows, 3)
        for place in empty:
            lses[place], outputs[place] = HIDDEN, 1e3 * outputs[place]
        return Case(label, {"outputs": outputs, "lses": lses})

    apart = torch.tensor([2000.0, -2000.0]).double()
    everywhere = tuple((part, row) for part in range(2) for row in range(4))
    return [
        case("one part, one query", 1, (1,)),
        case("two parts, one query", 2, (1,)),
        case("two parts, four queries", 2),
        case("three parts, two queries", 3, (2,)),
        case("four parts, four queries", 4),
        case("five heads of three queries, two parts", 2, (5, 3)),
        case("two texts, three heads, four queries, five parts", 5, (2, 3, 4)),
        case("only the dimension of parts", 3, ()),
        case("a part saw nothing", 3, empty=((1, 0), (1, 1), (1, 2), (1, 3))),
        case("one query saw nothing in the first part", 2, empty=((0, 2),)),
        case("one query saw nothing in any part", 2, empty=((0, 1), (1, 1))),
        case("no query saw anything", 2, empty=everywhere),
        case("lses around 2,000", 3, at=2000.0),
        case("lses around -2,000", 3, at=-2000.0),
        case("lses around -2,000, and a part saw nothing", 2, at=-2e3, empty=((0, 0),)),
        case("one query's lses around 2,000, the other's around -2,000", 2, (2,), at=apart),
    ]


def split_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, length: int, parts: int, heads: int = 2, size: float = 1.0) -> Case:
        query = size * normal(generator, heads, 5)
        both = (normal(generator, heads, length, 5) for _ in range(2))
        names = ("query", "keys", "values")
        return Case(label, {**dict(zip(names, (query, *both), strict=True)), "parts": parts})

    return [
        case("one key, one worker", 1, 1),
        case("three keys, one worker", 3, 1),
        case("four keys, two workers", 4, 2),
        case("five keys, two workers", 5, 2),
        case("three keys, three workers", 3, 3),
        case("seven keys, three workers", 7, 3),
        case("two keys, four workers", 2, 4),
        case("one key, three workers", 1, 3),
        case("64 keys, twelve workers", 64, 12),
        case("five heads, ten keys, four workers", 10, 4, heads=5),
        case("scores in the thousands", 9, 4, size=1500.0),
        case("another number of keys", draw(generator, 11, 30), draw(generator, 3, 8)),
    ]


# ----------------------------------------------------------------------------------- block by block


def paged_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        length: int,
        block_size: int,
        heads: int = 2,
        more: int = 0,
        size: float = 1.0,
        unwritten: bool = False,
    ) -> Case:
        """more: how many blocks the table has beyond the length, for drafts. unwritten: whether all
        slots without a token of the request hold infinity, with which 0 makes NaN."""
        needed = -(-length // block_size) + more
        order = torch.randperm(needed + 2, generator=generator).tolist()
        table = order[:needed]
        pool = normal(generator, 2, needed + 2, heads, block_size, 5)
        if unwritten:
            for block in range(needed + 2):
                start = table.index(block) * block_size if block in table else length
                pool[:, block, :, max(length - start, 0) :] = math.inf
        query = size * normal(generator, heads, 5)
        return Case(label, {"query": query, "pool": pool, "block_table": table, "length": length})

    def consecutive(case: Case) -> Case:
        table = range(1, len(case.data["block_table"]) + 1)
        return Case(case.label, {**case.data, "block_table": list(table)})

    return [
        case("one token, blocks of one", 1, 1),
        case("one token, blocks of four", 1, 4),
        case("three tokens of one block", 3, 4),
        case("a full block", 4, 4),
        case("one token more than a block", 5, 4),
        case("two full blocks", 8, 4),
        consecutive(case("consecutive blocks", 11, 4)),
        case("three blocks, the last one partly filled", 10, 4, heads=3),
        case("six blocks of one token", 6, 1),
        case("a block that is not needed yet", 7, 4, more=1),
        case("two blocks that are not needed yet, the others full", 8, 4, more=2),
        case("infinity in all slots of other requests", 10, 4, more=1, unwritten=True),
        case("scores in the thousands", 9, 4, size=1500.0),
        case("one head, twelve blocks of eight", 95, 8, heads=1),
        case("another length", draw(generator, 13, 30), draw(generator, 2, 5), heads=3),
    ]


# ------------------------------------------------------------------------------------ the gradients


def backward_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        lengths: tuple[int, int],
        block_k: int,
        heads: tuple[int, ...] = (),
        level: float = 0.0,
        head_dim: int = 5,
    ) -> Case:
        """level: added to all keys. It moves all scores of a query by the same amount."""
        q_len, k_len = lengths
        queries = normal(generator, *heads, q_len, head_dim)
        keys = level + normal(generator, *heads, k_len, head_dim)
        values = normal(generator, *heads, k_len, head_dim)
        later = torch.ones(lengths, dtype=torch.bool).triu(k_len - q_len + 1)
        scores = (queries @ keys.mT / head_dim**0.5).masked_fill(later, HIDDEN)
        saved = {
            "output": scores.softmax(dim=-1).nan_to_num(0) @ values,
            "lse": scores.logsumexp(dim=-1),
            "grad_output": normal(generator, *heads, q_len, head_dim),
        }
        inputs = {"queries": queries, "keys": keys, "values": values}
        return Case(label, {**inputs, **saved, "block_k": block_k})

    q_len = draw(generator, 3, 9)
    return [
        case("one query, two keys", (1, 2), 2),
        case("one query, three keys", (1, 3), 4),
        case("three tokens in one tile", (3, 3), 4),
        case("four tokens in two tiles", (4, 4), 2),
        case("five tokens in tiles of two", (5, 5), 2),
        case("tiles of one key", (4, 4), 1),
        case("three queries after five tokens", (3, 8), 4),
        case("more queries than keys", (5, 3), 2),
        case("as many queries as a head has numbers", (5, 5), 5),
        case("three heads", (4, 6), 4, heads=(3,)),
        case("two texts of three heads", (3, 3), 2, heads=(2, 3)),
        case("scores in the hundreds", (6, 6), 3, level=200.0),
        case("scores in the thousands", (5, 9), 4, level=2000.0),
        case("another length", (q_len, q_len + draw(generator, 1, 6)), 3, head_dim=8),
    ]


# ---------------------------------------------------------------------------------------- any mask


def kinds_cases(generator: torch.Generator) -> list[Case]:
    def case(mask: str, *sizes: int) -> Case:
        names = ("q_len", "k_len", "block_q", "block_k")
        label = (
            f"{mask}, {sizes[0]} queries and {sizes[1]} keys in tiles of {sizes[2]} and {sizes[3]}"
        )
        return Case(label, {"mask": mask, **dict(zip(names, sizes, strict=True))})

    number = partial(draw, generator)
    drawn = (number(9, 20), number(9, 20), number(2, 5), number(2, 5))
    return [
        case("all", 4, 4, 4, 4),
        case("causal", 4, 4, 2, 2),
        case("causal", 8, 8, 4, 4),
        *(case(mask, 15, 15, 5, 5) for mask in drivers.MASKS),
        *(case(mask, 9, 16, 3, 4) for mask in drivers.MASKS),
        case("after 7 tokens", 5, 12, 4, 3),
        case("all", 7, 10, 4, 4),
        case("causal", 7, 7, 1, 4),
        case("causal", 5, 5, 16, 16),
        case("window of 3", *drawn),
    ]


def flex_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, mask: str, lengths: Two, blocks: Two = (4, 4), **given: Any) -> Case:
        usual = {"head_dim": 5, "heads": [], "size": 1.0, "scores": "plain"} | given
        sizes = dict(zip(("q_len", "k_len", "block_q", "block_k"), lengths + blocks, strict=True))
        kinds = reference.tile_kinds(drivers.MASKS[mask], **sizes)
        seed = draw(generator, 0, 10**6)
        return Case(label, {**sizes, **usual, "seed": seed, "kinds": kinds, "mask": mask})

    number = partial(draw, generator)
    drawn = (number(9, 16), number(9, 16)), (number(2, 5), number(2, 5))
    return [
        case("one query, one key", "all", (1, 1)),
        case("causal, one tile", "causal", (4, 4)),
        case("causal, four tiles", "causal", (8, 8)),
        *(case(f"{mask}, tiles of 5", mask, (15, 15), (5, 5)) for mask in drivers.MASKS),
        case("a chunk after 7 tokens", "after 7 tokens", (5, 12), (3, 4)),
        case("a row of empty tiles", "earlier", (5, 5), (1, 4)),
        case("a distance", "causal", (9, 9), scores="distance"),
        case("a soft cap", "window of 3", (9, 9), scores="soft cap"),
        case("a soft cap, texts", "texts of 4", (10, 10), (3, 3), scores="soft cap"),
        case("a distance, three heads", "prefix of 2", (6, 9), heads=[3], scores="distance"),
        case("scores in the thousands", "earlier", (9, 9), size=2000.0),
        case("a soft cap, scores around -20,000", "causal", (6, 6), size=9000.0),
        case("other lengths and tiles", "window of 3", *drawn, scores="distance"),
    ]


def document_cases(generator: torch.Generator) -> list[Case]:
    lengths = [draw(generator, 1, 6) for _ in range(4)]
    return [
        Case(f"{mask}, texts of {', '.join(map(str, own))} tokens", {"lengths": own, "mask": mask})
        for own in ([3], [2, 2], [3, 5, 1, 7], [4, 4, 4], lengths)
        for mask in ("causal", "window of 3", "prefix of 2", "all")
    ]


def alibi_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *shape: int) -> Case:
        return Case(label, {"scores": normal(generator, *shape)})

    return [
        case("one head", 1, 2, 3),
        case("two heads", 2, 3, 3),
        case("two heads, other scores", 2, 3, 3),
        case("three heads", 3, 2, 4),
        case("four heads, three texts", 3, 4, 2, 6),
        case("eight heads", 1, 8, 4, 4),
    ]


with_memory = partial(Exercise, compare=compare_with_traffic, services=lend_memory)

EXERCISES = (
    Exercise("flash_attention.count_traffic", drivers.count_traffic, traffic_cases),
    Exercise("flash_attention.absorb", drivers.absorb, absorb_cases, whole=("state", "tiles")),
    with_memory("flash_attention.flash_attention", drivers.flash_attention, flash_cases),
    Exercise("flash_attention.merge", drivers.merge, merge_cases, whole=("lses", "outputs")),
    Exercise("flash_attention.split_decode", drivers.split_decode, split_cases),
    Exercise("flash_attention.paged_decode", drivers.paged_decode, paged_cases, whole=("pool",)),
    Exercise("flash_attention.backward_tile", drivers.backward_tile, backward_cases),
    Exercise("flash_attention.tile_kinds", drivers.tile_kinds, kinds_cases),
    with_memory("flash_attention.flex_attention", drivers.flex_attention, flex_cases),
    Exercise("flash_attention.in_documents", drivers.in_documents, document_cases),
    Exercise("flash_attention.alibi", drivers.alibi, alibi_cases, whole=("scores",)),
)
