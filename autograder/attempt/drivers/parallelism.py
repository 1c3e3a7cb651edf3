"""Drivers of lab 18: each runs an attempt as several ranks, in one thread, and looks at each rank.

What a rank is given is its own copy, so no rank sees what another one has changed.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import in_numbers, kind_of
from autograder.attempt.records import Attempt, Seen, things, tried
from autograder.attempt.tensors import bytes_of, snapshot
from gpt import GPTConfig
from solutions.ranks.group import SHOWN, Group, in_turns

Own = Mapping[str, Any]  # what one rank is given, in the order of the arguments
Results = list[tuple[Any, Group]]  # what each rank returned, and its group with the counts


def on_each_rank(
    attempt: Attempt, ranks: list[Own], watch: Callable[[Group], None] = lambda group: None
) -> Results:
    def work(group: Group) -> tuple[Any, Group]:
        watch(group)
        return snapshot(attempt(*ranks[group.rank].values(), handle(group, SHOWN))), group

    return in_turns(len(ranks), work)


def place(group: Group) -> str:
    return f"on rank {group.rank} of {group.size}"


def returned(results: Results) -> list[Seen]:
    return [Seen("What it returned", result, place(group)) for result, group in results]


def calls(results: Results) -> list[Seen]:
    """The calls of each rank and their bytes, where there is another rank to exchange with."""
    seen = []
    for _, group in results if len(results) > 1 else []:
        counts = [f"{count} of `{kind}`" for kind, count in sorted(group.calls.items())]
        told = f"are {', '.join(counts) or 'none'}, {sum(group.sent.values()):,} bytes in all"
        seen.append(Seen("The calls", told, place(group)))
    return seen


# ------------------------------------------------------------------------------------- the ring


def ring_all_reduce(attempt: Attempt, ranks: list[Own]) -> list[Seen]:
    """The ranks that each one sends to and hears from, and how much. Parts may go in any order."""
    made = defaultdict[int, list[tuple[str, int | None, int]]](list)  # kind, other rank, numbers

    def watch(group: Group) -> None:
        own = group.make

        def make(kind: str, given: Any, other: int | None = None, op: str = "") -> list[Tensor]:
            made[group.rank].append((kind, other, sum(part.numel() for part in given)))
            return own(kind, given, other, op)

        vars(group)["make"] = make

    results = on_each_rank(attempt, ranks, watch)
    seen, most = returned(results), -(-len(ranks[0]["x"]) // len(ranks))
    for _, group in results:
        notes = made[group.rank]
        for kind, way in (("send", "goes to"), ("recv", "comes from")):
            others = sorted({str(other) for name, other, _ in notes if name == kind})
            told = f"{way} rank {' and '.join(others)}" if others else "isn't called"
            seen.append(Seen(f"`{kind}`", told, place(group)))
        largest = max([0, *(count for *_, count in notes)])
        told = f"has {largest if largest > most else f'at most {most}'} numbers"
        seen.append(Seen("The largest part that goes around", told, place(group)))
    total = sum(group.sent["send"] for _, group in results)
    return [*seen, Seen("The ring", f"sends {total:,} bytes in all")]


# ---------------------------------------------------------------------------- a model's weights


def shard(
    attempt: Attempt, state: dict[str, Tensor], size: int, config: dict[str, Any]
) -> list[Seen]:
    """The part of each rank, then what must be refused. state: the weights of a model."""
    seen, known = list[Seen](), GPTConfig(**config)
    for rank in range(size):
        given, where = dict(state), f"on rank {rank} of {size}"
        part = attempt(given, rank, size, known)
        same = [*map(id, given.values())] == [*map(id, state.values())]
        told = "is as it was" if same else "has been changed"
        seen.append(Seen("The dict `weights`", told, where))
        if not isinstance(part, Mapping):
            raise TypeError(f"shard returns a dict of weights by name; this is {kind_of(part)}.")
        for name, whole in state.items():
            own = part.get(name)
            seen.append(Seen(f"`{name}`", snapshot(own), where))
            if isinstance(own, Tensor) and own.shape != whole.shape:
                told = "its own numbers only" if bytes_of([own]) == own.nbytes else "other numbers"
                seen.append(Seen(f"The memory of `{name}`", f"holds {told}", where))
        others = [name for name in part if name not in state]
        seen.append(Seen("The list of other names", others, where))
    for rank, name in ((size, "n_head"), (0, "n_head"), (0, "vocab_size")) if size > 1 else ():
        more = known if rank else replace(known, **{name: getattr(known, name) + 1})
        told = f"A call for rank {rank} of {size} with {more.n_head} heads and {more.vocab_size}"
        _, went = tried(attempt, state, rank, size, more)
        seen.append(Seen(f"{told} tokens in the vocabulary", went))
    return seen


def tensor_parallel_block(
    attempt: Attempt, ranks: list[Own], layer: int, config: dict[str, Any], window: int | None
) -> list[Seen]:
    """window: how many positions a query sees, by an `attend` that is noted; None leaves it out."""
    queries = defaultdict[int, list[str]](list)

    def block(hidden: Tensor, part: Mapping[str, Tensor], group: Group) -> Any:
        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            queries[group.rank].append(f"{[*q.shape]}")
            near = torch.ones(q.shape[2], q.shape[2]).tril().triu(1 - (window or 0))
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=near.bool())

        more = [] if window is None else [sealed(attend)]
        return attempt(hidden, part, layer, GPTConfig(**config), group, *more)

    results, seen = on_each_rank(block, ranks), list[Seen]()
    for _, group in results if window else []:
        shapes = " and ".join(queries[group.rank])
        told = f"gets queries of shape {shapes}" if shapes else "isn't called"
        seen.append(Seen("`attend`", told, place(group)))
    return [*seen, *returned(results), *calls(results)]


# ----------------------------------------------------------------------------- a cut vocabulary


def vocab_parallel_embedding(attempt: Attempt, ranks: list[Own]) -> list[Seen]:
    results = on_each_rank(attempt, ranks)
    return [*returned(results), *calls(results), refused(attempt, ranks, "ids", "part", 0)]


def vocab_parallel_logprob(attempt: Attempt, ranks: list[Own]) -> list[Seen]:
    """Few numbers may go out, in any number of calls."""
    results, seen = on_each_rank(attempt, ranks), list[Seen]()
    rows, itemsize = len(ranks[0]["targets"]), ranks[0]["local"].element_size()
    for _, group in results if len(ranks) > 1 else []:
        kinds = " and ".join(f"`{kind}`" for kind in sorted(group.calls)) or "nothing"
        numbers = sum(group.sent.values()) // itemsize
        told = f"{numbers} numbers for {rows} rows" if numbers > 3 * rows else "at most 3 a row"
        seen.append(Seen("What goes out", f"is {told}, by {kinds}", place(group)))
    return [*returned(results), *seen, refused(attempt, ranks, "targets", "local", 1)]


def refused(attempt: Attempt, ranks: list[Own], name: str, cut: str, dim: int) -> Seen:
    """Whether ids outside the vocabulary are refused. cut: what has this rank's part of it."""
    ids, limit = ranks[0][name].clone(), len(ranks) * ranks[0][cut].shape[dim]
    ids[..., 0] = limit
    _, went = tried(on_each_rank, attempt, [{**own, name: ids} for own in ranks])
    return Seen(f"A call with {limit} in `{name}`, one too large,", went)


# ------------------------------------------------------------------ positions, stages, and a batch


def sequence_parallel(
    attempt: Attempt,
    ranks: list[Own],
    columns: list[Tensor],
    rows: list[Tensor],
    scale: Float[Tensor, " n_embd"],
) -> list[Seen]:
    """`norm` and `layer` note what they get. columns, rows: of the layer on each rank."""
    normed, layered = defaultdict[int, int](int), defaultdict[int, list[Tensor]](list)
    batch, own_seq, width = ranks[0]["hidden"].shape
    whole = [batch, len(ranks) * own_seq, width]

    def work(hidden: Tensor, group: Group) -> Any:
        def norm(given: Tensor) -> Tensor:
            normed[group.rank] += given.numel() // width
            return F.layer_norm(given, (width,), scale)

        def layer(given: Tensor) -> Tensor:
            if (got := [*given.shape]) != whole:
                raise ValueError(f"`layer` takes all positions, {whole}; it was given {got}.")
            layered[group.rank].append(given.clone())
            return F.gelu(given @ columns[group.rank]) @ rows[group.rank]

        return attempt(hidden, sealed(norm), sealed(layer), group)

    results, seen = on_each_rank(work, ranks), list[Seen]()
    for _, group in results:
        given = layered[group.rank]
        seen += [Seen("The tensor that `layer` gets", one, place(group)) for one in given[:1]]
        seen += [Seen("The number of calls of `layer`", len(given), place(group))]
        told = f"is computed at {normed[group.rank]} of {batch * whole[1]} positions"
        seen += [Seen("`norm`", told, place(group))]
    return [*seen, *returned(results), *calls(results)]


def pipeline(attempt: Attempt, stages: int, microbatches: int, kind: str) -> list[Seen]:
    """The order of each stage, then three calls that must be refused."""
    found = in_numbers(attempt(stages, microbatches, kind))
    if type(found) not in (list, tuple):
        return [Seen("The schedule", found)]
    seen = [Seen("The schedule", f"is for {len(found)} stages")]
    seen += [Seen(f"Stage {stage}", told_order(order)) for stage, order in enumerate(found)]
    for wrong in ((0, microbatches, kind), (stages, 0, kind), (stages, microbatches, "zero")):
        seen.append(Seen(f"`pipeline{wrong}`", tried(attempt, *wrong)[1]))
    return seen


def told_order(order: Any) -> str:
    """A stage's order in words: "does F0 F1 B0 B1"."""
    if type(order) not in (list, tuple):
        return f"is {order!r}"
    for step in order:
        if type(step) is not tuple or len(step) != 2:
            raise TypeError(f'Each step of a stage is a tuple like ("F", 0); this is {step!r}.')
    return f"does {' '.join(f'{kind}{i}' for kind, i in order) or 'nothing'}"


def data_parallel_gradient(attempt: Attempt, ranks: list[Own]) -> list[Seen]:
    if not any(own["tokens"] for own in ranks):
        return [Seen("A call without a token on any rank", tried(on_each_rank, attempt, ranks)[1])]
    return returned(on_each_rank(attempt, ranks))


# ----------------------------------------------------------------- fully sharded data parallelism


def flat_shard(attempt: Attempt, weights: list[Tensor], size: int) -> list[Seen]:
    """The part of each rank, and what memory it keeps."""
    seen = list[Seen]()
    for rank in range(size):
        own, where = attempt(weights, size, rank), f"on rank {rank} of {size}"
        seen.append(Seen("What it returned", snapshot(own), where))
        if isinstance(own, Tensor):
            told = "its own numbers only" if bytes_of([own]) == own.nbytes else "other numbers"
            seen.append(Seen("The memory of the part", f"holds {told}", where))
    return seen


def gather_unit(attempt: Attempt, ranks: list[Own], shapes: list[list[int]]) -> list[Seen]:
    def work(part: Tensor, group: Group) -> Any:
        return attempt(part, [torch.Size(shape) for shape in shapes], group)

    results = on_each_rank(work, ranks)
    return [*returned(results), *calls(results)]


def unit_backward(attempt: Attempt, ranks: list[Own], shapes: list[list[int]]) -> list[Seen]:
    """A unit whose weights all count: the sum of tanh(weight sums times x), one by one."""

    def apply(weights: list[Tensor], x: Tensor) -> Tensor:
        if (got := [list(weight.shape) for weight in weights]) != shapes:
            raise ValueError(f"`apply` takes weights of the shapes {shapes}; these are {got}.")
        for weight in weights:
            x = torch.tanh(x * weight.sum() + (weight * weight.cos()).mean())
        return x

    def work(part: Tensor, x: Tensor, grad_output: Tensor, group: Group) -> Any:
        sizes = [torch.Size(shape) for shape in shapes]
        with torch.no_grad():
            return attempt(part, sizes, sealed(apply), x, grad_output, group)

    seen, results = list[Seen](), on_each_rank(work, ranks)
    for found, group in results:
        rule = "unit_backward returns the gradient of `x` and of the part"
        names = ("The gradient of `x`", "The gradient of the part")
        both = zip(names, things(2, found, rule), strict=True)
        seen += [Seen(name, value, place(group)) for name, value in both]
    return [*seen, *calls(results)]


# --------------------------------------------------------------------------------- nano-batches


def timeline(attempt: Attempt, batches: list[list[tuple[str, int]]]) -> list[Seen]:
    """When each operation runs. What starts at the same time may be listed in any order."""
    found = attempt(batches)
    if not isinstance(found, list) or any(
        not isinstance(run, tuple) or len(run) != 5 for run in found
    ):
        raise TypeError("timeline returns a list of `Run(batch, step, resource, start, end)`.")
    runs = in_numbers([tuple(run) for run in found])
    seen = [Seen("The number of operations that run", len(runs))]
    starts = [start for _, _, _, start, _ in runs]
    order = "ascends" if starts == sorted(starts) else "does not ascend"
    seen += [Seen("The list of starts", order)]
    for batch, step, resource, start, end in sorted(runs, key=lambda run: (run[3], *run[:2])):
        told = f"runs on {resource} from {start:g} to {end:g}"
        seen.append(Seen(f"Operation {step} of nano-batch {batch}", told))
    return seen


def split_plan(attempt: Attempt, tokens: list[int], ways: int) -> list[Seen]:
    seen = [Seen("The list of requests of each nano-batch", in_numbers(attempt(tokens, ways)))]
    return [*seen, Seen("A call with 0 `ways`", tried(attempt, tokens, 0)[1])]
