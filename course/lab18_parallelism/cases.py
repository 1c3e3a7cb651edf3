"""The exercises of lab 18: a ring, parts of a model, a cut vocabulary, positions, stages, a batch.

A case has what each rank is given, in the order of the arguments: "ranks" is a list of dicts.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import parallelism as drivers
from autograder.judging.draws import draw, normal
from autograder.judging.exercise import Case, Exercise, case_of
from autograder.judging.random_models import random_weights
from gpt import GPTConfig
from solutions import parallelism as reference

Generator = torch.Generator

# For 1, 2, 3 and 6 ranks. Of the heads, head_dim, n_embd and the vocabulary, no two are equal.
SIX = GPTConfig(vocab_size=18, n_positions=5, n_embd=24, n_layer=2, n_head=6)
FOUR = replace(SIX, vocab_size=16, n_embd=20, n_head=4)  # and for 4


def of_ranks(label: str, **given: Sequence[Any]) -> Case:
    """What each rank is given, by argument: a list with one value for each rank."""
    ranks = [dict(zip(given, own, strict=True)) for own in zip(*given.values(), strict=True)]
    return Case(label, {"ranks": ranks})


def weights_of(generator: Generator, config: GPTConfig) -> dict[str, Tensor]:
    weights, prefix = random_weights(config, draw(generator, 0, 10**6)), "transformer."
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


# ------------------------------------------------------------------------------------- the ring


def ring_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, n: int) -> Case:
        return of_ranks(label, x=[normal(generator, n) for _ in range(size)])

    return [
        case("one rank", 1, 3),
        case("two ranks, four numbers", 2, 4),
        case("two other ranks, four numbers", 2, 4),
        case("two ranks, five numbers", 2, 5),
        case("three ranks, nine numbers", 3, 9),
        case("four ranks, eight numbers", 4, 8),
        case("four ranks, nine numbers", 4, 9),
        case("five ranks, 13 numbers", 5, 13),
        case("four ranks, two numbers", 4, 2),
        case("three ranks, no numbers", 3, 0),
    ]


# ------------------------------------------------------------------------- a rank's part of GPT-2


def shard_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, config: GPTConfig) -> Case:
        state = weights_of(generator, config)
        return Case(label, {"state": state, "size": size, "config": asdict(config)})

    return [
        case("one rank", 1, SIX),
        case("two ranks, six heads", 2, SIX),
        case("two ranks, six other heads", 2, SIX),
        case("three ranks, six heads", 3, SIX),
        case("four ranks, four heads", 4, FOUR),
        case("six ranks, six heads", 6, SIX),
    ]


def block_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        size: int,
        shape: tuple[int, int],
        layer: int = 0,
        window: int | None = None,
        config: GPTConfig = SIX,
    ) -> Case:
        weights, hidden = weights_of(generator, config), normal(generator, *shape, config.n_embd)
        parts = [reference.shard(weights, rank, size, config) for rank in range(size)]
        ranks = of_ranks(label, hidden=[hidden] * size, part=parts).data
        return Case(label, {**ranks, "layer": layer, "config": asdict(config), "window": window})

    return [
        case("one rank", 1, (1, 3)),
        case("two ranks, one position", 2, (1, 1)),
        case("two ranks, two texts", 2, (2, 5)),
        case("two ranks, two other texts", 2, (2, 5)),
        case("three ranks, layer 1", 3, (2, 4), layer=1),
        case("six ranks with one head each", 6, (1, 4)),
        case("two ranks, with an `attend` that sees two positions", 2, (2, 4), window=2),
        case("four ranks, layer 1, with an `attend`", 4, (1, 5), 1, 3, FOUR),
    ]


# ----------------------------------------------------------------------------- a cut vocabulary


def embedding_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, rows: int, ids: list[list[int]] | tuple[int, int]) -> Case:
        """ids: themselves, or their shape."""
        if isinstance(ids, tuple):
            given = torch.randint(size * rows, ids, generator=generator)
        else:
            given = torch.tensor(ids)
        parts = [normal(generator, rows, 4) for _ in range(size)]
        return of_ranks(label, ids=[given] * size, part=parts)

    return [
        case("one rank", 1, 6, (1, 3)),
        case("two ranks, ids of both", 2, 3, [[1, 4, 2]]),
        case("two ranks, two texts", 2, 7, (2, 5)),
        case("two ranks, two other texts", 2, 7, (2, 5)),
        case("the first and the last id of each rank", 3, 3, [[0, 2, 3, 5, 6, 8]]),
        case("the last rank has all ids", 3, 5, [[10, 14], [12, 10]]),
        case("the first rank has all ids", 3, 5, [[0, 4, 1]]),
        case("four ranks with one row each", 4, 1, [[3, 0, 2, 1]]),
        case("four ranks, three texts", 4, 5, (3, 6)),
    ]


def logprob_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        size: int,
        width: int,
        targets: list[int] | int,
        near: float = 0.0,
        times: float = 1.0,
    ) -> Case:
        """targets: themselves, or how many. near: around this number the logits are."""
        if isinstance(targets, int):
            given = torch.randint(size * width, (targets,), generator=generator)
        else:
            given = torch.tensor(targets)
        logits = near + times * normal(generator, len(given), size * width)
        return of_ranks(label, local=logits.chunk(size, dim=1), targets=[given] * size)

    def apart() -> Case:
        """The largest logits of the ranks lie far from each other."""
        logits = normal(generator, 3, 8) + torch.tensor([0.0] * 4 + [2_000.0] * 4)
        given = torch.tensor([5, 7, 4])
        return of_ranks(
            "one rank's logits are 2,000 larger",
            local=logits.chunk(2, dim=1),
            targets=[given] * 2,
        )

    return [
        case("one rank", 1, 5, [3]),
        case("two ranks, one row each", 2, 4, [2, 5]),
        case("two ranks, five rows", 2, 6, 5),
        case("two ranks, five other rows", 2, 6, 5),
        case("three ranks, four rows", 3, 4, 4),
        case("the first and the last id of each rank", 3, 3, [0, 2, 3, 5, 6, 8]),
        case("the last rank has all targets", 4, 3, [9, 11, 10]),
        case("four ranks with one id each", 4, 1, [3, 0, 2, 1]),
        case("logits near 10,000", 2, 5, 4, near=10_000),
        case("logits near -10,000", 2, 5, 4, near=-10_000),
        apart(),
        case("logits between -30,000 and 30,000", 3, 5, 6, times=10_000),
    ]


# ------------------------------------------------------------------ positions, stages, and a batch


def sequence_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, batch: int, own: int, width: int = 6) -> Case:
        hidden = normal(generator, batch, size * own, width).chunk(size, dim=1)
        layer = {
            "columns": [normal(generator, width, 3) for _ in range(size)],
            "rows": [normal(generator, 3, width) for _ in range(size)],
            "scale": 1 + normal(generator, width).abs(),
        }
        return Case(label, {**of_ranks(label, hidden=hidden).data, **layer})

    return [
        case("one rank", 1, 1, 3),
        case("two ranks with one position each", 2, 1, 1),
        case("two ranks, two texts", 2, 2, 3),
        case("two ranks, two other texts", 2, 2, 3),
        case("three ranks, two texts", 3, 2, 2),
        case("four ranks, three texts", 4, 3, 2, width=5),
    ]


def pipeline_cases(generator: Generator) -> list[Case]:
    def case(kind: str, stages: int, microbatches: int) -> Case:
        label = f"{kind}, stages: {stages}, microbatches: {microbatches}"
        return Case(label, {"stages": stages, "microbatches": microbatches, "kind": kind})

    return [
        case("gpipe", 1, 1),
        case("1f1b", 1, 3),
        case("gpipe", 2, 2),
        case("1f1b", 2, 3),
        case("gpipe", 3, 5),
        case("1f1b", 3, 5),
        case("1f1b", 4, 4),
        case("1f1b", 4, 2),  # fewer microbatches than stages
        case("gpipe", 4, 2),
        case("1f1b", 3, 1),
        case("1f1b", 4, draw(generator, 7, 12)),
        case("gpipe", 5, draw(generator, 6, 9)),
    ]


def gradient_cases(generator: Generator) -> list[Case]:
    def case(label: str, *tokens: int, shape: tuple[int, ...] = (2, 5)) -> Case:
        sums = [normal(generator, count, *shape).sum(dim=0) for count in tokens]
        return of_ranks(label, local_sum=sums, tokens=tokens)

    return [
        case("one rank, four tokens", 4),
        case("two ranks with four tokens each", 4, 4),
        case("two ranks with three and five tokens", 3, 5),
        case("two other ranks with three and five tokens", 3, 5),
        case("a rank has no token", 2, 0, 7),
        case("the first rank has no token", 0, 3),
        case("one rank has all tokens", 0, 0, 6, 0),
        case("no rank has a token", 0, 0),
        case("three ranks, a gradient of one dimension", 1, 9, 4, shape=(7,)),
        case("four ranks, a gradient of three dimensions", 5, 2, 8, 1, shape=(2, 3, 4)),
    ]


# ------------------------------------------------------------------ fully sharded data parallelism

UNITS = {  # shapes of the weights of a unit, by what is odd about it
    "two weights": [[3, 2], [2]],
    "two other weights": [[3, 2], [2]],
    "three weights": [[5], [1, 4], [2, 3]],
    "one number": [[1]],
    "eleven numbers": [[2, 2, 2], [3]],
}


def of_units(case: Callable[[str, int, list[list[int]]], Case]) -> list[Case]:
    """A case for each unit on several ranks."""
    return [
        case(f"{what}, on {size} rank{'s' * (size > 1)}", size, shapes)
        for size in (1, 2, 3)
        for what, shapes in UNITS.items()
    ]


def flat_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, shapes: list[list[int]]) -> Case:
        return Case(label, {"weights": [normal(generator, *one) for one in shapes], "size": size})

    return of_units(case)


def parts_of(generator: Generator, size: int, shapes: list[list[int]]) -> list[Tensor]:
    weights = [normal(generator, *shape) for shape in shapes]
    return [reference.flat_shard(weights, size, rank) for rank in range(size)]


def gather_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, shapes: list[list[int]]) -> Case:
        ranks = of_ranks(label, part=parts_of(generator, size, shapes)).data
        return Case(label, {**ranks, "shapes": shapes})

    return of_units(case)


def backward_cases(generator: Generator) -> list[Case]:
    def case(label: str, size: int, shapes: list[list[int]]) -> Case:
        inputs = [4, 4, 0][:size]  # a third rank has no texts
        both = [[normal(generator, count) for count in inputs] for _ in ("x", "grad_output")]
        parts = parts_of(generator, size, shapes)
        ranks = of_ranks(label, part=parts, x=both[0], grad_output=both[1]).data
        return Case(label, {**ranks, "shapes": shapes})

    return of_units(case)


# ---------------------------------------------------------------------------------- nano-batches


def timeline_cases(generator: Generator) -> list[Case]:
    def case(label: str, *batches: list[tuple[str, int]]) -> Case:
        return Case(label, {"batches": list(batches)})

    def drawn(label: str, count: int) -> Case:
        resources = ("compute", "memory", "network")
        return case(
            label,
            *(
                [
                    (resources[draw(generator, 0, 2)], draw(generator, 1, 5))
                    for _ in range(draw(generator, 3, 6))
                ]
                for _ in range(count)
            ),
        )

    half = [("compute", 2), ("memory", 2), ("network", 2)]
    return [
        case("one nano-batch", [("compute", 4), ("memory", 4), ("network", 4)]),
        case("two equal halves", half, half),
        case("two other halves", *2 * [[("compute", 3), ("memory", 1), ("network", 2)]]),
        case("both need one resource", [("compute", 3), ("compute", 1)], [("compute", 2)]),
        case(
            "the one that has been ready longer",
            [("memory", 4), ("compute", 2), ("compute", 1)],
            [("network", 3), ("compute", 5)],
            [("compute", 6)],
        ),
        case("one nano-batch is empty", half, [], [("network", 1), *half]),
        case("none at all"),
        *(drawn(f"{count} nano-batches, draw {i}", count) for count in (2, 3, 4) for i in (1, 2)),
    ]


def split_cases(generator: Generator) -> list[Case]:
    case = case_of("tokens", "ways")

    def drawn(requests: int, ways: int) -> Case:
        few = [(1, 1, 1, 2, 5, 64)[draw(generator, 0, 5)] for _ in range(requests)]
        return case(f"{requests} requests, {ways} ways, drawn", few, ways)

    return [
        case("one way", [1, 5, 2], 1),
        case("two ways, four decodes", [1, 1, 1, 1], 2),
        case("two ways, four requests", [2, 1, 3, 5], 2),
        case("a prompt and five decodes", [1, 1, 64, 1, 1, 1], 2),
        case("two prompts that come last", [1, 1, 1, 48, 64], 2),
        case("the same sum so far", [3, 2, 1, 4, 2], 3),
        case("more ways than requests", [7, 7], 4),
        case("no request", [], 2),
        *(drawn(requests, ways) for requests, ways in ((6, 2), (8, 3), (9, 4))),
    ]


EXERCISES = (
    Exercise("parallelism.ring_all_reduce", drivers.ring_all_reduce, ring_cases),
    Exercise("parallelism.shard", drivers.shard, shard_cases, whole=("state",)),
    Exercise("parallelism.tensor_parallel_block", drivers.tensor_parallel_block, block_cases),
    Exercise(
        "parallelism.vocab_parallel_embedding", drivers.vocab_parallel_embedding, embedding_cases
    ),
    Exercise("parallelism.vocab_parallel_logprob", drivers.vocab_parallel_logprob, logprob_cases),
    Exercise("parallelism.sequence_parallel", drivers.sequence_parallel, sequence_cases),
    Exercise("parallelism.pipeline", drivers.pipeline, pipeline_cases),
    Exercise("parallelism.data_parallel_gradient", drivers.data_parallel_gradient, gradient_cases),
    Exercise("parallelism.flat_shard", drivers.flat_shard, flat_cases, whole=("weights",)),
    Exercise("parallelism.gather_unit", drivers.gather_unit, gather_cases),
    Exercise("parallelism.unit_backward", drivers.unit_backward, backward_cases),
    Exercise("parallelism.timeline", drivers.timeline, timeline_cases),
    Exercise("parallelism.split_plan", drivers.split_plan, split_cases),
)
