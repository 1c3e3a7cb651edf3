"""The exercises of lab 22: replay, sizes and pads, graphs over blocks, guards, spans."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import replay as drivers
from autograder.judging.draws import draw, normal
from autograder.judging.exercise import Case, Exercise, case_of

# ------------------------------------------------------------------------- recorded and replayed

Program = list[tuple[str, list[int], list[int]]]


def replay_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, program: Program, out: int, rounds: int = 2, n: int = 3) -> Case:
        arrays = 1 + max(max(inputs + results) for _, inputs, results in program)
        memory = normal(generator, arrays, n)
        news = [normal(generator, n) for _ in range(rounds)]
        return Case(label, {"memory": memory, "program": program, "out": out, "rounds": news})

    chain: Program = [("twice", [0], [1]), ("twice", [1], [2]), ("add", [2, 0], [3])]
    pair: Program = [("both", [0, 1], [2, 3]), ("add", [2, 3], [4])]
    return [
        case("one operation", [("twice", [0], [1])], 1, rounds=1, n=2),
        case("one operation, replayed three times", [("twice", [0], [1])], 1, rounds=3, n=2),
        case("an operation on the result of another", chain[:2], 2),
        case("three operations, the first result is needed again", chain, 3),
        case("an operation with two results", pair, 4),
        case("only the second result is needed", [*pair[:1], ("twice", [3], [4])], 4),
        case("an operation in place", [("twice", [0], [1]), ("in place", [1, 0], [])], 1),
        case("an operation in place on other memory", [("in place", [2, 0], []), *chain[:1]], 1),
        case("what is returned isn't the last result", [*chain[:1], ("add", [1, 0], [2])], 1),
        case("memory that is written twice", [*chain[:1], ("add", [1, 0], [1])], 1, rounds=3),
        case("the input is written", [*chain[:1], ("add", [0, 1], [0])], 0, rounds=3),
        case("all kinds", [*pair, ("in place", [4, 1], []), ("twice", [4], [5])], 5, n=4),
        case("all kinds, other numbers", [*pair, ("in place", [4, 1], []), ("twice", [4], [5])], 5,
             n=4),
    ]  # fmt: skip


# ------------------------------------------------------------------------- graphs of some sizes


def ladder_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("most")
    some = 8 * draw(generator, 4, 9)
    return [
        *(case(f"up to {n}", n) for n in (1, 2, 3, 4, 5, 8, 9, 12, 16, 28, 64)),
        case("up to a multiple of 8", some),
        case("up to another number", some + draw(generator, 1, 8)),
    ]


def batch_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("batches", "sizes")
    some = [draw(generator, 1, 33) for _ in range(12)]
    return [
        case("one batch that fits", [4], [1, 2, 4]),
        case("one batch with a pad", [3], [1, 2, 4]),
        case("one size only", [3, 1, 5], [8]),
        case("no batch", [], [1, 2]),
        case("texts end in turn", [8, 8, 7, 6, 5, 4, 3, 2, 1], [1, 2, 4, 8]),
        case("batches of 1 to 4", [1, 2, 3, 4], [1, 2, 4, 8]),
        case("batches that come again", [2, 2, 2, 4], [1, 2, 4, 8]),
        case("sizes that don't double", [1, 2, 3, 4, 5, 6, 7], [1, 3, 7]),
        case("a batch above all sizes", [5, 9, 2], [1, 2, 4]),
        case("all are above", [9, 12], [4, 8]),
        case("at the ends of a long ladder", [8, 9, 16, 17, 24], [1, 2, 4, 8, 16, 24]),
        case("some load", some, [1, 2, 4, 8, 16, 24, 32]),
        case("the same with two sizes", some, [8, 32]),
    ]


def text(ids: Sequence[int], *blocks: int, start: int = 0) -> dict[str, Any]:
    return {"ids": list(ids), "blocks": list(blocks), "start": start}


def run_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, sizes: list[int], *texts: dict[str, Any], blocks: int = 6, scratch: int = 5,
        block_size: int = 4,
    ) -> Case:  # fmt: skip
        made = {"texts": list(texts), "blocks": blocks, "block_size": block_size}
        return Case(label, {**made, "sizes": sizes, "scratch": scratch})

    def ids(count: int) -> list[int]:
        return torch.randint(1, 9000, (count,), generator=generator).tolist()

    in_turn = text(ids(7), 0, 3), text(ids(2), 1), text(ids(1), 2)
    # A request ends in the last row, which becomes a pad. Then another one gets its block.
    going_on = text(ids(9), 1, 3, 2), text(ids(3), 0), text(ids(7), 6, 7)
    handed_on = *going_on, text(ids(2), 4), text(ids(4), 4, start=3)
    two_pads = text(ids(2), 0), text(ids(2), 1), text(ids(2), 2), text(ids(4), 2, start=2)
    second_block = text(ids(6), 0, 1), text(ids(6), 2, 3), text(ids(4), 3, start=6)
    return [
        case("one token", [1], text(ids(1), 0)),
        case("one text", [1], text(ids(3), 2)),
        case("one text of two blocks", [1], text(ids(6), 2, 0)),
        case("one text, a pad", [2], text(ids(3), 1)),
        case("two texts", [1, 2], text(ids(3), 0), text(ids(3), 1)),
        case("three texts end in turn", [1, 2, 4], *in_turn),
        case("the same, other ids", [1, 2, 4], text(ids(7), 0, 3), text(ids(2), 1),
             text(ids(1), 2)),
        case("three texts, one size", [4], *in_turn),
        case("the first ends first", [1, 2, 4], text(ids(1), 1), text(ids(3), 0),
             text(ids(7), 3, 2)),
        case("blocks of one, the scratch block is the first", [1, 3], text(ids(3), 2, 1, 4),
             text(ids(2), 3, 5), blocks=6, block_size=1, scratch=0),
        case("a block is handed on", [1, 2, 4], *handed_on, blocks=8),
        case("a block is handed on, one size", [8], *handed_on, blocks=8),
        case("two pads, a block is handed on", [4], *two_pads),
        case("a second block is handed on", [2], *second_block),
        case("the scratch block is among the others", [4], text(ids(6), 0, 3),
             text(ids(2), 1, start=1), text(ids(5), 1, 4, start=4), scratch=2),
        case("too many rows at first", [1, 2], *in_turn),
        case("too many rows later", [1, 2], text(ids(5), 0, 1), text(ids(2), 3),
             text(ids(3), 2, start=1)),
        case("sizes in another order", [4, 1, 2], *in_turn),
    ]  # fmt: skip


# ---------------------------------------------------------------------------- code under guards


def guard_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, calls: str, limit: int | None = 8) -> Case:
        """calls: "a5 b3", kind and number."""
        made = [(call[0], int(call[1:])) for call in calls.split()]
        return Case(label, {"calls": made, "limit": limit})

    n = draw(generator, 5, 9)
    many = " ".join(f"a{number}" for number in range(20, 8, -1))
    return [
        case("one call", "a5"),
        case("the same arguments again", "a5 a5"),
        case("a guard that doesn't hold", "a5 b5"),
        case("another guard that doesn't hold", "a5 a3"),
        case("back to the first code", f"a{n} b{n} a{n} b{n + 1} a{n + 2}"),
        case("two codes for the same arguments", f"a{n} a3 a{n} a4 a{n + 1}"),
        case("a limit of 1", "a5 b5 a6 b6 a5", 1),
        case("a limit of 2", "a5 b5 c5 a7 c5 b9", 2),
        case("a limit of 3", f"a{n} b2 c3 d4 c5 a{n} d9 b2", 3),
        case("a limit of 0", "a5 a5", 0),
        case("the limit that is usual", many, None),
    ]


# ------------------------------------------------------------------------ the same bits in a split


def span_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, length: int, span: int, *orders: list[int], heads: int = 2) -> Case:
        def drawn(*shape: int) -> Tensor:
            return normal(generator, heads, *shape)

        data = {"query": 3 * drawn(4), "keys": drawn(length, 4), "values": drawn(length, 4)}
        return Case(label, {**data, "span": span, "orders": list(orders) or [[]]})

    def shuffled(count: int) -> list[int]:
        return torch.randperm(count, generator=generator).tolist()

    back = list(range(12, -1, -1))
    return [
        case("one span", 4, 4),
        case("two spans", 8, 4),
        case("two spans, the second one ends first", 8, 4, [], back),
        case("a short last span", 9, 4),
        case("one key", 1, 4, heads=1),
        case("fewer keys than a span", 3, 8),
        case("spans of one", 5, 1, [], back),
        case("six spans in several orders", 23, 4, [], back, shuffled(6), shuffled(6)),
        case("six spans, other numbers", 23, 4, [], back, shuffled(6), shuffled(6)),
        case("eleven spans in several orders", 33, 3, [], back, shuffled(11), shuffled(11)),
        case("many keys", 40 + draw(generator, 1, 7), 7, [], shuffled(6), heads=3),
    ]


EXERCISES = (
    Exercise("replay.Graph.replay", drivers.replay, replay_cases),
    Exercise("replay.ladder", drivers.ladder, ladder_cases),
    Exercise("replay.rows_computed", drivers.rows_computed, batch_cases),
    Exercise("replay.Graphs.run", drivers.run, run_cases),
    Exercise("replay.Guarded.run", drivers.guarded, guard_cases),
    Exercise("replay.in_spans", drivers.in_spans, span_cases, whole=("keys", "values")),
)
