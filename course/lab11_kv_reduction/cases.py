"""The exercises of lab 11: bytes, grouped heads, a window, heavy rows, codes, and swapping."""

from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import kv_reduction as drivers
from autograder.judging.draws import draw, normal, steps_in
from autograder.judging.exercise import Case, Exercise
from course.lab09_disaggregation.cases import HEAD_DIM, HEADS, LAYERS, a_pool

# ----------------------------------------------------------------------------------------- bytes

FABLE = {"vocab_size": 4096, "n_embd": 256, "n_layer": 12, "n_head": 8}
GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12}


def bytes_terms(
    config: dict[str, int], kv_heads: int, bits: int = 32, group: int | None = None
) -> dict[str, float]:
    """Of which terms the bytes are the sum: half of the numbers are keys."""
    keys = config["n_layer"] * kv_heads * (config["n_embd"] // config["n_head"])
    floats = {"keys": keys * bits / 8, "values": keys * bits / 8}
    return (
        floats
        if group is None
        else {**floats, "scales": 4 * keys / group, "zeros": 4 * keys / group}
    )


def bytes_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, config: dict[str, int], kv_heads: int, **kind: int) -> Case:
        terms = {"The number of bytes": bytes_terms(config, kv_heads, **kind)}
        return Case(label, {"config": config, "kv_heads": kv_heads, "kind": kind}, terms)

    heads, group = 2 * draw(generator, 2, 5), 8 * draw(generator, 2, 4)
    some = {"n_embd": heads * 24, "n_layer": draw(generator, 3, 9), "n_head": heads}
    three = {"n_embd": 3, "n_layer": 1, "n_head": 1}
    return [
        case("one layer, one KV head", {"n_embd": 8, "n_layer": 1, "n_head": 1}, 1),
        case("two layers, two KV heads", {"n_embd": 8, "n_layer": 2, "n_head": 2}, 2),
        case("fable, unchanged", FABLE, 8),
        case("fable with 2 KV heads", FABLE, 2),
        case("fable in 16 bits", FABLE, 8, bits=16),
        case("fable in 8 bits, groups of 32", FABLE, 8, bits=8, group=32),
        case("fable in 2 bits, groups of 32", FABLE, 8, bits=2, group=32),
        case("fable in 3 bits", FABLE, 8, bits=3),
        case("fable with 4 KV heads in 3 bits, groups of 64", FABLE, 4, bits=3, group=64),
        case("GPT-2 with one KV head in 4 bits, groups of 64", GPT2, 1, bits=4, group=64),
        case("another model in 4 bits", some, heads // 2, bits=4, group=group),
        case("keys and values of three numbers in 3 bits", three, 1, bits=3),
        case("six numbers in groups of four", three, 1, bits=8, group=4),
    ]


# ----------------------------------------------------------------------------------- fewer heads


def attention_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *sizes: int, batch: int = 1, mask: Any = None, level: float = 0.0) -> Case:
        """level: added to all keys. It moves all scores of a query by the same amount."""
        heads, kv_heads, q_len, k_len = sizes
        keys, values = (normal(generator, batch, kv_heads, k_len, HEAD_DIM) for _ in range(2))
        queries = normal(generator, batch, heads, q_len, HEAD_DIM)
        given = {"queries": queries, "keys": level + keys, "values": values, "mask": mask}
        return Case(label, given)

    def causal(q_len: int, k_len: int) -> Tensor:
        return (torch.arange(k_len) <= torch.arange(k_len - q_len, k_len)[:, None])[None, None]

    some = torch.rand(3, 1, 4, 7, generator=generator) < 0.5
    some[..., 2] = True  # every query sees at least one key
    return [
        case("one head, one token", 1, 1, 1, 1),
        case("2 query heads, 2 KV heads", 2, 2, 1, 3),
        case("2 query heads, 1 KV head", 2, 1, 1, 3),
        case("4 query heads, 2 KV heads", 4, 2, 1, 3),
        case("6 query heads, 2 KV heads", 6, 2, 1, 4),
        case("6 query heads, 3 KV heads", 6, 3, 1, 4),
        case("6 query heads, 3 KV heads, a causal prefill", 6, 3, 4, 4, mask=causal(4, 4)),
        case("4 query heads, 1 KV head, a chunk after a prefix", 4, 1, 3, 5, mask=causal(3, 5)),
        case("3 query heads, 3 KV heads, a causal prefill", 3, 3, 4, 4, mask=causal(4, 4)),
        case("two texts, no mask", 6, 2, 3, 4, batch=2),
        case("three texts, each with its own mask", 8, 2, 4, 7, batch=3, mask=some),
        case("two texts, one mask for both", 6, 2, 3, 5, batch=2, mask=causal(3, 5)),
        case("scores in the thousands", 4, 2, 3, 5, mask=causal(3, 5), level=2000.0),
    ]


def pool_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_head: int, kv_heads: int, head_dim: int = 3) -> Case:
        n_embd = n_head * head_dim
        weight, bias = normal(generator, n_embd, 3 * n_embd), normal(generator, 3 * n_embd)
        heads = {"n_head": n_head, "kv_heads": kv_heads}
        return Case(label, {"weight": weight, "bias": bias, **heads})

    return [
        case("1 head", 1, 1),
        case("2 heads, both kept", 2, 2),
        case("2 heads become 1", 2, 1),
        case("4 heads become 2", 4, 2),
        case("4 heads become 1", 4, 1),
        case("6 heads become 2", 6, 2),
        case("6 heads become 3", 6, 3),
        case("4 heads of one number each become 2", 4, 2, head_dim=1),
        case("8 heads become 2", 8, 2, head_dim=5),
    ]


# --------------------------------------------------------------------------------------- a window


def mask_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, queries: list[Any], keys: list[Any], window: int, sinks: int = 0) -> Case:
        both = {"query_positions": torch.tensor(queries), "key_positions": torch.tensor(keys)}
        return Case(label, {**both, "window": window, "sinks": sinks})

    def upto(end: int) -> list[int]:
        return list(range(end))

    start, window = draw(generator, 3, 6), draw(generator, 2, 4)
    order = torch.randperm(9, generator=generator).tolist()
    return [
        case("one token", [[0]], [[0]], 1),
        case("a window of one", [upto(3)], [upto(3)], 1),
        case("a window of two", [upto(4)], [upto(4)], 2),
        case("a window as long as the text", [upto(3)], [upto(3)], 3),
        case("one query at the end", [[5]], [upto(6)], 2),
        case("one sink", [upto(5)], [upto(5)], 2, 1),
        case("two sinks, a query at 4", [[4]], [upto(5)], 2, 2),
        case("more sinks than tokens", [upto(3)], [upto(3)], 1, 5),
        case("a chunk after a prefix", [[3, 4, 5]], [upto(6)], 3, 1),
        case("keys after the last query", [[2]], [upto(5)], 2),
        case("a cache without tokens 2 to 6", [[9, 10]], [[0, 1, 7, 8, 9, 10]], 3, 2),
        case("a cache without token 0, the sink", [[9]], [[1, 6, 8, 9]], 3, 1),
        case("two texts at different positions", [[2, 3], [6, 7]], [upto(8), upto(8)], 3, 1),
        case("keys in any order", [[4, 7], [8, 5]], [order, order[::-1]], window, 2),
        case(
            "a chunk of several tokens", [upto(9)[start:]], [upto(9)], window, draw(generator, 1, 2)
        ),
    ]


def cache_cases(generator: torch.Generator) -> list[Case]:
    def forward(q_len: int, batch: int, heads: int) -> tuple[Any, ...]:
        keys, values = (normal(generator, LAYERS, batch, HEADS, q_len, HEAD_DIM) for _ in range(2))
        return "forward", normal(generator, LAYERS, batch, heads, q_len, HEAD_DIM), keys, values

    def case(
        label: str, window: int, sinks: int, *steps: Any, batch: int = 1, heads: int = HEADS
    ) -> Case:
        """steps: a number stands for a forward pass of so many tokens."""
        made = [forward(s, batch, heads) if isinstance(s, int) else s for s in steps]
        return Case(label, {"n_layer": LAYERS, "window": window, "sinks": sinks, "steps": made})

    def truncate(n: int) -> tuple[str, int]:
        return "truncate", n

    w = draw(generator, 3, 4)
    some = [draw(generator, 1, 5) for _ in range(4)]
    return [
        case("one token", 2, 0, 1),
        case("three tokens one by one in a window of four", 4, 0, 1, 1, 1),
        case("a prefill within the window", 4, 0, 3),
        case("a prefill as long as the window", 3, 0, 3, 1, 1),
        case("tokens one by one, beyond the window", 2, 0, 1, 1, 1, 1, 1),
        case("a prefill longer than the window", 3, 0, 7),
        case("a prefill longer than the window, then tokens", 3, 0, 7, 1, 1),
        case("a window of one", 1, 0, 3, 1, 2, 1),
        case("one sink, tokens one by one", 2, 1, 1, 1, 1, 1, 1, 1),
        case("two sinks, a long prefill, then tokens", 3, 2, 9, 1, 1, 1),
        case("a prefill shorter than the sinks", 2, 3, 2, 1, 1, 1, 1, 1),
        case("chunks after the window has slid", 3, 1, 6, 3, 4, 1),
        case("chunks as long as the window", w, 1, w, w, w, 1),
        case(
            "a prefill one token shorter than the window, two texts", w, 1, w - 1, 1, 1, 1, batch=2
        ),
        case(
            "a prefill one token longer than the window, two texts", w, 2, w + 1, 1, 1, w, batch=2
        ),
        case("a prefill three times the window", w, 1, 3 * w + 2, 1, 1, 2),
        case("4 query heads, 2 KV heads, two texts", 3, 1, 5, 1, 1, 2, batch=2, heads=4),
        case("truncated before the window slides", 5, 1, 4, truncate(2), 1, 1, 3, 1),
        case("truncated to a token whose rows are gone", 3, 1, 7, truncate(5), 1),
        case("truncated to the sinks", 3, 2, 8, truncate(2), 1, 4, 1),
        case("truncated to 0, then another text", 3, 1, 6, truncate(0), 4, 1, 1),
        case("two texts reordered", 3, 1, 5, ("reorder", torch.tensor([1, 0])), 1, 2, batch=2),
        case("chunks of several lengths", w, 2, *some, 1, 1, 1, batch=2),
    ]


# ------------------------------------------------------------------------------------ heavy rows


def heavy_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, heads: int, k_len: int, budget: int, recent: int) -> Case:
        """Distinct masses, in another order for each head."""
        orders = [torch.randperm(k_len, generator=generator) for _ in range(heads)]
        mass = torch.stack(orders).double() + 0.5 * torch.rand(heads, 1, generator=generator)
        return Case(label, {"mass": mass, "budget": budget, "recent": recent})

    def given(label: str, mass: list[list[float]], budget: int, recent: int) -> Case:
        rows = torch.tensor(mass, dtype=torch.float64)
        return Case(label, {"mass": rows, "budget": budget, "recent": recent})

    k_len = draw(generator, 9, 12)
    return [
        given("one row", [[1.0]], 1, 0),
        given("keep the heavier of two", [[0.3, 0.7]], 1, 0),
        given("keep the recent one of two", [[0.7, 0.3]], 1, 1),
        given("one heavy and one recent row", [[0.2, 0.9, 0.1, 0.3]], 2, 1),
        given("recent rows that are heavy, too", [[0.5, 0.1, 0.8, 0.9]], 3, 2),
        given("heavy rows in the middle", [[0.1, 2.0, 0.3, 1.5, 0.2]], 3, 1),
        given(
            "two heads with different heavy rows",
            [[3.0, 1.0, 2.0, 0.5], [1.0, 3.0, 2.5, 0.5]],
            2,
            1,
        ),
        given(
            "two heads, one with much larger masses",
            [[9.0, 8.0, 1.0, 0.1], [0.1, 0.2, 0.4, 0.05]],
            2,
            1,
        ),
        given("a recent row of mass 0", [[0.9, 0.2, 0.0]], 1, 1),
        given("light recent rows in a long text", [[9e4, 0.3, 8e4, 0.2, 0.1]], 3, 2),
        given("rows without any mass", [[0.0, 0.0, 0.0, 5.0]], 3, 1),
        given(
            "masses that hardly differ",
            [[0.5003, 0.5002, 0.5001, 0.5, 0.1], [0.5, 0.5001, 0.5002, 0.5003, 0.1]],
            3,
            1,
        ),
        given("equal masses, one of which is kept", [[0.4, 0.7, 0.4, 0.4, 0.1]], 3, 1),
        given("equal masses, all kept", [[0.4, 0.1, 0.4, 0.1]], 3, 1),
        given("equal masses in two heads", [[0.5] * 5, [0.2, 0.5, 0.5, 0.5, 0.1]], 3, 1),
        case("no recent rows", 3, 7, 3, 0),
        case("only recent rows", 3, 7, 3, 3),
        case("keep all rows", 2, 6, 6, 2),
        case("keep all rows but one", 2, 6, 5, 2),
        case("half of the budget recent", 4, 10, 6, 3),
        case("many rows", 3, k_len, draw(generator, 4, 6), draw(generator, 1, 3)),
    ]


# ------------------------------------------------------------------------------------------ codes


def codes_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        bits: int,
        group: int,
        *sizes: int,
        recent: int = 0,
        batch: int = 1,
        channels: int = 3,
    ) -> Case:
        """Channels with very different ranges, as in the keys of real models."""
        keys = normal(generator, batch, HEADS, sum(sizes), channels)
        keys = keys * torch.tensor([1.0, 8.0, 0.1, 3.0])[:channels] + 0.5
        given = {"bits": bits, "group": group, "recent": recent}
        return Case(label, {**given, "keys": keys, "sizes": list(sizes)})

    def constant(label: str, *sizes: int) -> Case:
        made = case(label, 8, 4, *sizes)
        made.data["keys"][:, 0, :, 1] = 0.75
        made.data["keys"][:, 1, :, 0] = 0.0
        return made

    some = [draw(generator, 1, 6) for _ in range(4)]
    return [
        case("one token", 8, 4, 1),
        case("fewer tokens than a group", 8, 4, 3),
        case("a full group in one call", 8, 4, 4),
        case("a full group token by token", 8, 4, 1, 1, 1, 1),
        case("a group and one token more", 8, 4, 5),
        case("two groups in one call", 8, 4, 8),
        case("two groups and a half in one call", 8, 4, 10),
        case("four tokens, two of them recent", 8, 4, 4, recent=2),
        case("a group and two recent tokens in one call", 8, 4, 6, recent=2),
        case("a group and two recent tokens, one by one", 8, 4, 4, 1, 1, 1, recent=2),
        case("two groups and three recent tokens", 4, 4, 11, 1, recent=3),
        case("more recent tokens than a group holds", 4, 2, 6, 1, 1, 1, 1, recent=5),
        case("a prompt, then tokens", 8, 4, 6, 1, 1, 1),
        case("a prompt of two full groups, then tokens", 4, 4, 8, 1, 1, 1, 1),
        case("chunks shorter than a group", 4, 4, 3, 3, 3, 3),
        case("a chunk that completes two groups", 8, 4, 3, 6, 1),
        case("groups of one token", 8, 1, 3, 1, recent=1),
        case("two bits", 2, 4, 9, 1, 1, 1),
        case("two texts", 4, 2, 5, 1, 2, batch=2, recent=2),
        case("two texts in two bits, four channels", 2, 8, 17, 3, 5, batch=2, channels=4),
        constant("channels with a single value", 5, 3, 1),
        case("chunks of several lengths", 4, 4, *some, batch=2, recent=draw(generator, 1, 5)),
        case("a first call with fewer tokens than are recent", 4, 2, 3, 1, 1, 1, 1, recent=5),
    ]


# --------------------------------------------------------------------------------------- swapping

SMALL = {"vocab_size": 11, "n_positions": 16, "n_embd": 10, "n_layer": 3, "n_head": 2}


Requests = dict[int, Any]  # the number of tokens of each; a text names the one it is forked from
NONE: dict[int, int] = {}


def out_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, requests: Requests, *out: int, older: dict[int, int] = NONE
    ) -> Case:
        """older: the number of tokens of each copy that is in the store already."""
        order = torch.randperm(8, generator=generator).tolist()
        pool = {"pool": a_pool(generator, 8, block_size), "order": order}
        shape = 2, LAYERS, HEADS, HEAD_DIM
        store = {r: normal(generator, *shape[:2], n, *shape[2:]) for r, n in older.items()}
        about = {"config": SMALL, **pool, "requests": requests, "older": store}
        return Case(label, {**about, "out": list(out)})

    number, length = draw(generator, 3, 9), draw(generator, 5, 9)
    return [
        case("one token, blocks of one", 1, {0: 1}, 0),
        case("one token, blocks of four", 4, {0: 1}, 0),
        case("a full block", 4, {0: 4}, 0),
        case("two blocks, the last one partly filled", 4, {0: 7}, 0),
        case("two blocks, both full", 4, {0: 8}, 0),
        case("blocks of one token", 1, {3: 4}, 3),
        case("one of two requests", 4, {0: 6, 1: 5}, 1),
        case("two requests, 0 and then 1", 4, {0: 6, 1: 5}, 0, 1),
        case("two requests, 2 and then 4", 2, {4: 5, 2: 3}, 2, 4),
        case("blocks shared with another request", 2, {0: 5, 1: "0"}, 0),
        case("two requests that share their blocks", 2, {0: 5, 1: "0"}, 0, 1),
        case("the whole pool", 2, {0: 16}, 0),
        case("one of three requests", 3, {0: 4, number: length, 1: 3}, number),
        case("an older copy of the request is in the store", 2, {0: 3}, 0, older={0: 2}),
    ]


def in_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, requests: Requests, swapped: dict[int, int], steps: str
    ) -> Case:
        order = torch.randperm(8, generator=generator).tolist()
        shape = 2, LAYERS, HEADS, HEAD_DIM
        store = {r: normal(generator, *shape[:2], n, *shape[2:]) for r, n in swapped.items()}
        pool = {"pool": a_pool(generator, 8, block_size), "order": order, "store": store}
        return Case(
            label, {"config": SMALL, **pool, "requests": requests, "steps": steps_in(steps)}
        )

    number, length = draw(generator, 3, 9), draw(generator, 5, 9)
    return [
        case("one token, blocks of one", 1, {}, {0: 1}, "swap_in 0"),
        case("one token, blocks of four", 4, {}, {0: 1}, "swap_in 0"),
        case("a full block", 4, {}, {0: 4}, "swap_in 0"),
        case("two blocks, the last one partly filled", 4, {}, {0: 7}, "swap_in 0"),
        case("two blocks, both full", 4, {}, {0: 8}, "swap_in 0"),
        case("blocks of one token", 1, {}, {3: 4}, "swap_in 3"),
        case("with another request in the pool", 4, {1: 6}, {0: 5}, "swap_in 0"),
        case("one of two that are swapped out", 2, {1: 3}, {0: 5, 4: 4}, "swap_in 4"),
        case(
            "two that are swapped out, one after the other", 2, {1: 3}, {0: 5, 4: 4}, "swap_in 4|0"
        ),
        case("into blocks that another request had", 2, {1: 7, 2: 3}, {0: 5}, "free 1, swap_in 0"),
        case("the whole pool", 2, {}, {0: 16}, "swap_in 0"),
        case("no room", 2, {1: 13}, {0: 5}, "swap_in 0"),
        case("one block too few", 2, {1: 11}, {0: 5}, "swap_in 0"),
        case("no room at first", 2, {1: 13, 2: 2}, {0: 5}, "swap_in 0, free 1, swap_in 0"),
        case("room for one of two", 2, {1: 9}, {0: 7, 6: 4}, "swap_in 0|6"),
        case("a request of another length", 3, {0: 4, 1: 3}, {number: length}, f"swap_in {number}"),
    ]


EXERCISES = (
    Exercise("kv_reduction.kv_bytes_per_token", drivers.kv_bytes_per_token, bytes_cases),
    Exercise("kv_reduction.grouped_attention", drivers.grouped_attention, attention_cases),
    Exercise("kv_reduction.pool_heads", drivers.pool_heads, pool_cases),
    Exercise("kv_reduction.window_mask", drivers.window_mask, mask_cases),
    Exercise("kv_reduction.WindowCache.attend", drivers.window_cache, cache_cases),
    Exercise("kv_reduction.keep_heavy", drivers.keep_heavy, heavy_cases),
    Exercise("kv_reduction.ChannelKeys.append", drivers.channel_keys, codes_cases),
    Exercise("kv_reduction.HostPool.swap_out", drivers.swap_out, out_cases, whole=("pool",)),
    Exercise("kv_reduction.HostPool.swap_in", drivers.swap_in, in_cases, whole=("pool", "store")),
)
