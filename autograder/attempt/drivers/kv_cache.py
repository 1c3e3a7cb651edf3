"""Drivers of lab 2.

A layer gets several prompts one after another, each in chunks. The first chunk is the prefill, and
no chunk is ever passed again, so only a cache can hold the earlier tokens. The layers inside the
judged one are replaced by simpler ones, so that an error in one layer costs only one exercise.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of_int, kind_or_none
from autograder.attempt.records import Attempt, Seen, one_by_one, one_call, tried
from autograder.attempt.tensors import float_type, place_of
from gpt import GPTConfig, GPTModel

Rows = Float[Tensor, "layers batch heads q_len head_dim"]
Config = dict[str, Any]  # the fields of a GPTConfig
Prompt = list[dict[str, Tensor]]  # its chunks: the arguments of a forward, without the cache


causal_mask = one_call(__name__, "causal_mask", "The mask", "query_positions key_positions")

# ------------------------------------------------------------------------ the threaded forwards


def threaded_attention(attempt: Attempt, config: Config, idx: int, **case: Any) -> list[Seen]:
    return through_chunks(attempt(GPTConfig(**config), idx), [], **case)


def threaded_block(attempt: Attempt, config: Config, idx: int, **case: Any) -> list[Seen]:
    block, calls = attempt(GPTConfig(**config), idx), list[int]()
    block.attn = stand_in(GPTConfig(**config), idx, calls)
    return through_chunks(block, calls, **case)


def threaded_model(attempt: Attempt, config: Config, **case: Any) -> list[Seen]:
    model, calls = attempt(GPTConfig(**config)), list[int]()
    model.h = stand_ins(GPTConfig(**config), calls)
    return through_chunks(model, calls, **case)


def threaded_lm_head(attempt: Attempt, config: Config, **case: Any) -> list[Seen]:
    head, calls = attempt(GPTConfig(**config)), list[int]()
    head.transformer = stand_in_model(GPTConfig(**config), calls)
    return through_chunks(head, calls, **case)


@torch.no_grad()
def through_chunks(
    layer: nn.Module,
    calls: list[int],
    weights: dict[str, Tensor],
    prompts: list[Prompt],
    in_turns: bool,
) -> list[Seen]:
    """One prompt after another, or a chunk of each in turn, as an engine may serve them.

    calls: the layer of each call of an inner layer, which adds it.
    The first call for the first prompt passes None as the cache; for the others it leaves it out.
    """
    dtype = float_type(weights)
    torch.set_default_dtype(dtype)  # for tensors that an attempt makes without a dtype
    layer.to(dtype).load_state_dict(weights)
    layer.eval()
    seen: list[Seen] = []
    handed: list[list[Any]] = [[None], *([] for _ in prompts[1:])]
    returned: list[tuple[Any, list[Seen]]] = []
    computed = [0] * len(prompts)
    for number, given in order_of(prompts, in_turns):
        start, end = computed[number], computed[number] + next(iter(given.values())).shape[1]
        where, computed[number] = f"{tokens(start, end - 1)} of prompt {number + 1}", end
        found = layer(*given.values(), *handed[number])
        two = isinstance(found, (tuple, list)) and len(found) == 2
        several = f"is {len(found)} things" if isinstance(found, (tuple, list)) else found
        told = "is two things, the output and the cache" if two else several
        seen.append(Seen("What `forward` returned", told, f"for {where}"))
        if not two:
            return seen
        output, kv_cache = found
        new_cache = cache_seen(kv_cache, f"returned for {where}")
        seen.append(new_cache[0])
        if len(new_cache) == 1:
            return seen  # no cache that the next chunk could get
        seen.append(Seen("The output", output, f"for {where}"))
        seen.append(Seen("The number of calls of the inner layers", len(calls), f"after {where}"))
        same = all(unchanged(was, cache_seen(now, was[0].where)) for now, was in returned)
        state = "is unchanged" if same else "has changed"
        seen.append(Seen("A cache from an earlier call,", state, f"after the call for {where},"))
        handed[number] = [kv_cache]
        returned.append((kv_cache, new_cache))
        seen += new_cache[1:]
    return seen


def order_of(prompts: list[Prompt], in_turns: bool) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """The chunks, each with the number of its prompt."""
    turns = [(turn, number) for number, prompt in enumerate(prompts) for turn in range(len(prompt))]
    for turn, number in sorted(turns) if in_turns else turns:
        yield number, prompts[number][turn]


def tokens(first: int, last: int) -> str:
    return f"token {first}" if first == last else f"tokens {first} to {last}"


def cache_seen(kv_cache: Any, where: str) -> list[Seen]:
    """The form of a cache (a pair, or a pair for every layer), and its tensors if it has one."""
    if is_pair(kv_cache) and kv_cache[0].shape != kv_cache[1].shape:
        shapes = " and its values ".join(str(list(part.shape)) for part in kv_cache)
        form, pairs = f"is a pair, but its keys are {shapes}", {}
    elif is_pair(kv_cache):
        form, pairs = "is a pair (keys, values)", {"": kv_cache}
    elif isinstance(kv_cache, (list, tuple)) and all(map(is_pair, kv_cache)):
        form = f"is a list of pairs (keys, values), {len(kv_cache)} long"
        pairs = {f" of layer {idx}": pair for idx, pair in enumerate(kv_cache)}
    else:
        form, pairs = f"is {kind_or_none(kv_cache)}", {}
    seen = [Seen("The cache", form, where)]
    for of, (keys, values) in pairs.items():
        seen += [Seen(f"`keys`{of}", keys.clone(), where)]
        seen += [Seen(f"`values`{of}", values.clone(), where)]
    return seen


def is_pair(found: Any) -> bool:
    pair = isinstance(found, (list, tuple)) and len(found) == 2
    return pair and all(isinstance(part, Tensor) for part in found)


def unchanged(before: list[Seen], after: list[Seen]) -> bool:
    """Whether a cache is unchanged. The first record is its form, in words."""
    return before[0] == after[0] and all(
        torch.equal(was.value, now.value) for was, now in zip(before[1:], after[1:], strict=True)
    )


def stand_in(config: GPTConfig, idx: int, calls: list[int]) -> nn.Module:
    """Replace an inner layer: a sum over all tokens so far, and a cache of the right form.

    Each layer sums something different, so using one layer instead of another shows.
    """

    def forward(
        hidden: Float[Tensor, "batch q_len n_embd"], kv_cache: tuple[Tensor, Tensor] | None = None
    ) -> Any:
        calls.append(idx)
        keys = hidden.unflatten(-1, (config.n_head, -1)).transpose(1, 2)
        pair = keys, torch.sin(keys + idx)
        if kv_cache is not None:
            pair = torch.cat([kv_cache[0], pair[0]], 2), torch.cat([kv_cache[1], pair[1]], 2)
        total = pair[1].cumsum(dim=2)[:, :, -hidden.shape[1] :]
        return total.transpose(1, 2).flatten(2), pair

    layer: Any = nn.Module()
    layer.idx, layer.attn = idx, SimpleNamespace(idx=idx)  # a block has it in its `attn`
    layer.forward = sealed(forward)
    return layer


def stand_ins(config: GPTConfig, calls: list[int]) -> nn.ModuleList:
    return nn.ModuleList(stand_in(config, idx, calls) for idx in range(config.n_layer))


def stand_in_model(config: GPTConfig, calls: list[int]) -> GPTModel:
    """Replace the model: every layer reads the embeddings, and the last one gives the output."""
    model: Any = GPTModel(config)
    model.h = stand_ins(config, calls)

    def forward(
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: list[Any] | None = None,
    ) -> Any:
        hidden = model.embed(inputs, position_ids)
        handed = [None] * len(model.h) if kv_cache is None else kv_cache
        found = [layer(hidden, pair) for layer, pair in zip(model.h, handed, strict=True)]
        return found[-1][0], [pair for _, pair in found]

    model.forward = sealed(forward)
    return model


# -------------------------------------------------------------------------------- the loop, bytes


def generate_threaded(attempt: Attempt, requests: list[dict[str, Any]], model: Any) -> list[Seen]:
    return one_by_one(attempt, requests, model, "for prompt")


def kv_bytes_per_token(attempt: Attempt, config: Config, bytes_per_number: list[int]) -> list[Seen]:
    number = attempt(GPTConfig(**config), *bytes_per_number)
    kind = Seen("What it returned", f"is {kind_of_int(number)}")
    return [Seen("The number of bytes", number), kind]


# -------------------------------------------------------------------------- the cache as an object


Ways = dict[str, Callable[..., object]]  # to prepare a cache


def by_hand(attempt: type, **case: Any) -> list[Seen]:
    """Fill the cache and roll it back by hand, so that it needs only the method that is judged."""

    def fill(cache: Any, keys: Tensor, values: Tensor) -> None:
        start, end = cache.length, cache.length + keys.shape[3]
        cache.keys[:, :, :, start:end], cache.values[:, :, :, start:end] = keys, values
        cache.length = end

    def roll_back(cache: Any, n: int) -> None:
        cache.length = n

    ways: Ways = {"fill": fill, "roll back": roll_back, "refused roll back": lambda cache, n: None}
    return through_steps(attempt, ways, **case)


def as_built(attempt: type, **case: Any) -> list[Seen]:
    """Fill the cache with its own `attend`, and roll it back with its own `truncate`."""

    def fill(cache: Any, keys: Tensor, values: Tensor) -> None:
        for layer, pair in enumerate(zip(keys, values, strict=True)):
            cache.attend(layer, pair[0], *pair)

    def roll_back(cache: Any, n: int) -> None:
        cache.truncate(n)

    def refused_roll_back(cache: Any, n: int) -> object:
        return tried(cache.truncate, n)

    ways: Ways = {"fill": fill, "roll back": roll_back, "refused roll back": refused_roll_back}
    return through_steps(attempt, ways, **case)


@torch.no_grad()
def through_steps(
    attempt: type,
    ways: Ways,
    config: Config,
    batch: int,
    max_length: int,
    steps: list[tuple[Any, ...]],
) -> list[Seen]:
    """Steps that are judged: ("forward", queries, keys, values of all layers), ("truncate", n).
    Steps that prepare them: ("reorder", rows), and those that have a way: ("fill", keys, values),
    ("roll back", n), ("refused roll back", n), with an n that is too large."""
    dtype = float_type(steps)
    torch.set_default_dtype(dtype)  # for tensors that an attempt makes without a dtype
    cache = attempt(GPTConfig(**config), batch, max_length, dtype=dtype)
    seen: list[Seen] = []
    for number, (what, *given) in enumerate(steps, 1):
        match what:
            case "forward":
                seen += forward(cache, number, *given)
            case "truncate":
                seen += truncate(cache, number, *given)
            case "reorder":
                cache.reorder(*given)
            case _:
                ways[what](cache, *given)
    return seen


def forward(cache: Any, number: int, queries: Rows, keys: Rows, values: Rows) -> Iterator[Seen]:
    memory, before = (cache.keys, cache.values), (cache.keys.clone(), cache.values.clone())
    for layer, given in enumerate(zip(queries, keys, values, strict=True)):
        output, how = tried(cache.attend, layer, *given)
        where = f"layer {layer} in step {number}"
        yield Seen("`attend`", how, f"for {where}")
        if how != "went through":  # that ends a forward
            both = zip(before, (cache.keys, cache.values), strict=True)
            written = any(not torch.equal(was, now) for was, now in both)
            state = "has changed" if written else "is unchanged"
            yield Seen("The memory", state, f"after `attend` for {where} was refused")
            break
        yield Seen("The output", output, f"for {where}")
        yield Seen("`length`", cache.length, f"after {where}")
    yield Seen("The memory", place_of(memory, cache), f"after step {number}")
    for name, held in (("`keys`", cache.keys), ("`values`", cache.values)):
        yield Seen(name, held[:, :, :, : cache.length].clone(), f"held after step {number}")


def truncate(cache: Any, number: int, n: int) -> Iterator[Seen]:
    memory, where = (cache.keys, cache.values), f"after step {number}"
    _, how = tried(cache.truncate, n)
    yield Seen(f"`truncate({n})`", how, f"in step {number}")
    yield Seen("`length`", cache.length, where)
    yield Seen("`max_length`", cache.max_length, where)
    yield Seen("The memory", place_of(memory, cache), where)
    for name, whole in (("keys", cache.keys), ("values", cache.values)):
        yield Seen(
            f"The memory for {name}, which `truncate` must not change,", whole.clone(), where
        )
