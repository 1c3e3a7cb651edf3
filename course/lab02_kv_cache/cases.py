"""The exercises of lab 2: the threaded cache, layer by layer, then the cache as an object."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import kv_cache as drivers
from autograder.judging.comparisons import compare_ids_from_a_cache
from autograder.judging.draws import LAYERS, LOOP, draw, normal, prompt_ids, steps_in, weights_of
from autograder.judging.exercise import Case, Exercise, Service, case_of
from autograder.lending.naive import lend_model
from autograder.lending.recomputing import lend_recomputing_model
from course.lab01_generate.cases import generate_cases
from gpt import GPTConfig
from solutions.kv_cache import ThreadedLMHead

FULL = LAYERS.n_positions

# ---------------------------------------------------------------------------------- causal_mask


def causal_mask_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *positions: list[list[int]]) -> Case:
        return case_of("query_positions", "key_positions")(label, *map(torch.tensor, positions))

    prefix, chunk = draw(generator, 3, 6), draw(generator, 2, 4)
    text = list(range(prefix + chunk))
    three, first = [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [2, 3, 4, 5, 6]], [0, 0, 1]
    shuffled = torch.randperm(7, generator=generator).tolist()
    return [
        case("one token, which sees itself", [[0]], [[0]]),
        case("prefill: four tokens at once", [[0, 1, 2, 3]], [[0, 1, 2, 3]]),
        case("decode: one token after a prefix", [[prefix]], [text[: prefix + 1]]),
        case("a chunk of several tokens after a prefix", [text[prefix:]], [text]),
        case("decode, with keys after the query", [[2]], [[0, 1, 2, 3, 4]]),
        case("decode, with as many keys, none of them after the query", [[4]], [[0, 1, 2, 3, 4]]),
        case("decode, two rows of different lengths", [[1], [4]], [[0, 1, 2, 3, 4]] * 2),
        case("a chunk, three rows at different positions", [[3, 4], [1, 2], [5, 6]], three),
        case("keys in any order", [[5, 2, 3]], [shuffled]),
        case("as many keys as queries, in any order", [[5, 2, 3], first], [[2, 5, 3], first]),
        case("a chunk after a long prefix", [[38, 39]], [list(range(40))]),
    ]


# ------------------------------------------------------------------------- the threaded forwards


def hidden_cases(
    part: str, without: tuple[str, ...] = ()
) -> Callable[[torch.Generator], list[Case]]:
    """Cases for a part of layer 1. Stand-ins replace the parts that it is `without`."""

    def cases(generator: torch.Generator) -> list[Case]:
        weights = weights_without(without, part, generator)

        def case(
            label: str,
            *prompts: list[int],
            batch: int = 1,
            in_turns: bool = False,
            scale: float = 0.5,  # small, so that no high score hides an error in the others
        ) -> Case:
            chunks = [
                [{"hidden": scale * normal(generator, batch, n, LAYERS.n_embd)} for n in sizes]
                for sizes in prompts
            ]
            data = {"config": asdict(LAYERS), "idx": 1, "weights": weights, "prompts": chunks}
            return Case(label, {**data, "in_turns": in_turns})

        some = [draw(generator, 1, 4) for _ in range(3)]
        return [
            case("a prompt of one token", [1]),
            case("one token, then one more", [1, 1]),
            case("prefill: a prompt of four tokens", [4]),
            case("four tokens, then decode one at a time", [4, 1, 1, 1]),
            case("three tokens, then a chunk of three", [3, 3]),
            case("three tokens, then a chunk of two", [3, 2]),
            case(
                "a batch of three: two tokens, then a chunk of five, then one", [2, 5, 1], batch=3
            ),
            case("three prompts of equal length, one after another", [3, 1], [3, 1], [3, 1]),
            case("two prompts of equal length, in turns", [2, 1, 2], [2, 1, 2], in_turns=True),
            case("two long prompts in chunks", [*some, FULL - sum(some)], [12, 1, 3], batch=2),
            case("a batch of eight, with scores far below zero", [3, 2], batch=8, scale=3.0),
        ]

    return cases


def id_cases(part: str, without: str) -> Callable[[torch.Generator], list[Case]]:
    """Cases for the model or the LM head, which take token ids, `without` its own layers."""

    def cases(generator: torch.Generator) -> list[Case]:
        weights = weights_without((without,), part, generator)

        def prompt(*sizes: int, batch: int = 1, offsets: tuple[int, ...] = (0,)) -> Any:
            """A prompt in chunks of these sizes. Each row begins at its own offset."""
            ids = torch.randint(LAYERS.vocab_size, (batch, sum(sizes)), generator=generator)
            positions = torch.arange(sum(sizes)) + torch.tensor(offsets).unsqueeze(1)
            both = ids.split(sizes, dim=1), positions.expand_as(ids).clone().split(sizes, dim=1)
            return [{"inputs": i, "position_ids": p} for i, p in zip(*both, strict=True)]

        def case(
            label: str, *prompts: Any, n_layer: int = LAYERS.n_layer, in_turns: bool = False
        ) -> Case:
            config = asdict(LAYERS) | {"n_layer": n_layer}
            data = {"config": config, "weights": weights, "prompts": list(prompts)}
            return Case(label, {**data, "in_turns": in_turns})

        one_by_one = "three prompts of equal length, one after another"
        return [
            case("one layer, a prompt of one token", prompt(1), n_layer=1),
            case("one layer, two tokens, then one more", prompt(2, 1), n_layer=1),
            case("two layers, a prompt of three tokens", prompt(3), n_layer=2),
            case("three layers, three tokens, then one at a time", prompt(3, 1, 1)),
            case("a batch of two, four tokens, then a chunk of three", prompt(4, 3, batch=2)),
            case("rows at different positions", prompt(2, 2, 1, batch=3, offsets=(0, 4, 1))),
            case("up to the last token that fits in the context", prompt(FULL - 1, 1)),
            case(one_by_one, prompt(3, 1), prompt(3, 1), prompt(3, 1, offsets=(5,))),
            case("two prompts in turns", prompt(2, 1, 2), prompt(2, 1, 2), in_turns=True),
        ]

    return cases


def weights_without(inner: tuple[str, ...], part: str, generator: Any) -> dict[str, Tensor]:
    return {n: w for n, w in weights_of(part, generator).items() if not n.startswith(inner)}


attention_cases = hidden_cases("transformer.h.1.attn.")
block_cases = hidden_cases("transformer.h.1.", without=("attn.",))
model_cases = id_cases("transformer.", without="h.")
lm_head_cases = id_cases("", without="transformer.h.")

# ----------------------------------------------------------------------------- generate_threaded


def generate_threaded_cases(generator: torch.Generator) -> list[Case]:
    """Lab 1's cases, and texts long enough to show that a cache forgets the oldest tokens."""
    request = {"input_ids": prompt_ids(generator, 4, batch=8), "max_new_tokens": LOOP.n_positions}
    long = Case("a batch of eight, until the context is full", {"requests": [request]})
    return [*generate_cases(generator), long]


def lend_threaded_model(data: Mapping[str, Any]) -> dict[str, Service]:
    return lend_model(ThreadedLMHead)


# ---------------------------------------------------------------------------- kv_bytes_per_token


def kv_bytes_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_layer: int, n_embd: int, n_head: int, *bytes_per_number: int) -> Case:
        config = GPTConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head)
        return Case(label, {"config": asdict(config), "bytes_per_number": list(bytes_per_number)})

    n_layer, n_head = draw(generator, 2, 9), draw(generator, 2, 9)
    some = f"{n_layer} layers of {16 * n_head}, {n_head} heads, 1 byte a number"
    return [
        case("one layer, one head of two numbers, one byte each", 1, 2, 1, 1),
        case("one layer, two heads of two numbers, float32", 1, 4, 2),
        case("fable: 12 layers of 256, 8 heads, float32", 12, 256, 8),
        case("gpt2: 12 layers of 768, 12 heads, float32", 12, 768, 12),
        case("gpt2 with 2 bytes a number", 12, 768, 12, 2),
        case("a 13B OPT: 40 layers of 5,120, 40 heads, 2 bytes a number", 40, 5120, 40, 2),
        case(some, n_layer, 16 * n_head, n_head, 1),
    ]


# -------------------------------------------------------------------------- the cache as an object


TENSORS = {"forward": 3, "fill": 2}  # how many such a step takes: (queries,) keys and values


def cache_case(
    generator: torch.Generator,
    label: str,
    steps: str,
    n_layer: int = LAYERS.n_layer,
    batch: int = 1,
    max_length: int = 8,
    aligned: float | None = None,
) -> Case:
    """A KVCache and the steps it goes through. The tensors of a step's new tokens are drawn.

    aligned: queries are this many times the keys, so that a token's score with itself is known.
    """

    def drawn(what: str, given: Any) -> tuple[Any, ...]:
        if what not in TENSORS:
            rows = str(given).split("+")  # "reorder 2+0+0"
            return what.replace("_", " "), torch.tensor([*map(int, rows)]) if rows[1:] else given
        shape = n_layer, batch, LAYERS.n_head, given, LAYERS.head_dim
        tensors = [normal(generator, *shape) for _ in range(TENSORS[what])]
        if aligned is not None:
            tensors[0] = aligned * tensors[1]
        return what, *tensors

    made = [drawn(*step) for step in steps_in(steps)]
    data = {"batch": batch, "max_length": max_length, "steps": made}
    return Case(label, {"config": asdict(LAYERS) | {"n_layer": n_layer}, **data})


def attend_cases(generator: torch.Generator) -> list[Case]:
    case = partial(cache_case, generator)
    some = [draw(generator, 1, 4) for _ in range(3)]
    rolled = "forward 2|3, roll_back 2, forward 3, roll_back 3, forward 2|1"
    refused = "forward 2|3, refused_roll_back 9, roll_back 2, forward 1|2"
    reordered = "forward 3, reorder 2+0+0, forward 2"
    chunks = f"forward {some[0]}|{some[1]}|{some[2]}|{16 - sum(some)}"
    return [
        case("one layer, one token", "forward 1", n_layer=1, max_length=1),
        case("one layer, a prompt of three tokens in memory for eight", "forward 3", n_layer=1),
        case("two layers, a prompt of three tokens", "forward 3", n_layer=2),
        case("two layers, three tokens, then one at a time", "forward 3|1|1", n_layer=2),
        case("two layers, two tokens, then a chunk of three", "forward 2|3", n_layer=2),
        case("a batch of two, until the memory is full", "forward 2|4|1", batch=2, max_length=7),
        case("one token more than fits", "forward 3|1|1", n_layer=2, max_length=4),
        case(
            "a chunk that doesn't fit, then one that does", "forward 3|3|2", batch=2, max_length=5
        ),
        case("truncated twice, and filled again with other tokens", rolled),
        case("truncated to two tokens, after nine of five were refused", refused),
        case("three rows, reordered between two forwards", reordered, batch=3),
        case("a long text in chunks", chunks, batch=3, max_length=16),
        case("scores far below zero", "forward 3|2", aligned=-30.0),
    ]


def truncate_cases(generator: torch.Generator) -> list[Case]:
    case = partial(cache_case, generator)
    held, kept = draw(generator, 6, 8), draw(generator, 2, 4)
    twice = f"fill {held}, truncate {kept}|{held}, fill 1, truncate {kept + 2}|{kept + 1}"
    refilled = "fill 8, truncate 8|0, fill 8, truncate 1, fill 1"
    return [
        case("three tokens, the first two kept", "fill 3, truncate 2"),
        case("three tokens, all kept", "fill 3, truncate 3"),
        case("three tokens, none kept", "fill 3, truncate 0"),
        case("an empty cache, nothing to keep", "truncate 0"),
        case("four tokens kept of three", "fill 3, truncate 4"),
        case("more tokens than the memory has room for", "fill 3, truncate 9"),
        case("a negative number of tokens", "fill 3, truncate -1|-3"),
        case("two tokens of five, then four of five", "fill 5, truncate 2, fill 3, truncate 4"),
        case("a full memory, kept whole, then emptied and filled again", refilled),
        case(
            "a batch of three, with two values of n that are too large",
            twice,
            batch=3,
            max_length=10,
        ),
    ]


EXERCISES = (
    Exercise("kv_cache.causal_mask", drivers.causal_mask, causal_mask_cases),
    Exercise(
        "kv_cache.ThreadedAttention.forward",
        drivers.threaded_attention,
        attention_cases,
        whole=("weights",),
    ),
    Exercise(
        "kv_cache.ThreadedBlock.forward", drivers.threaded_block, block_cases, whole=("weights",)
    ),
    Exercise(
        "kv_cache.ThreadedModel.forward", drivers.threaded_model, model_cases, whole=("weights",)
    ),
    Exercise(
        "kv_cache.ThreadedLMHead.forward",
        drivers.threaded_lm_head,
        lm_head_cases,
        whole=("weights",),
    ),
    Exercise(
        "kv_cache.generate_threaded",
        drivers.generate_threaded,
        generate_threaded_cases,
        compare_ids_from_a_cache,
        lend_threaded_model,
        in_bundle=lend_recomputing_model,
    ),
    Exercise("kv_cache.kv_bytes_per_token", drivers.kv_bytes_per_token, kv_bytes_cases),
    Exercise("kv_cache.KVCache.attend", drivers.by_hand, attend_cases, as_built=drivers.as_built),
    Exercise(
        "kv_cache.KVCache.truncate", drivers.by_hand, truncate_cases, as_built=drivers.as_built
    ),
)
