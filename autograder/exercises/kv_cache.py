"""The exercises of lab 2: the threaded cache, layer by layer, then the cache as an object."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.compare import first, same_ids, same_number, same_tensor
from autograder.drivers import kv_cache as drivers
from autograder.exercise import Case, Exercise
from autograder.misconceptions import kv_cache as misconceptions
from autograder.services import CountedModel, random_model, random_weights
from gpt import GPTConfig
from solutions import kv_cache as reference

TOLERANCE = 1e-9  # everything is computed in float64; float32 on the way shows at 1e-7

# Heads, head_dim and layers differ from each other and from the batches, so that two dimensions
# which are taken for one another don't fit.
LAYERS = GPTConfig(vocab_size=11, n_positions=16, n_embd=8, n_layer=3, n_head=2)


def same_seen(got: Any, expected: Any) -> str | None:
    """The first thing that a driver saw otherwise than in the reference."""
    differences = (
        same_value(got["returned"].get(what), value, what)
        for what, value in expected["returned"].items()
    )
    return next((difference for difference in differences if difference is not None), None)


def same_value(got: Any, expected: Any, what: str) -> str | None:
    if isinstance(expected, Tensor):
        return same_tensor(got, expected, what, TOLERANCE)
    if isinstance(expected, str):
        return None if got == expected else f"{what} {got}; expected: {expected}."
    return same_number(got, expected, what)


def normal(generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def draw(generator: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def weights_of(part: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Random weights of one part of a model, by the names that they have within it."""
    weights = random_weights(LAYERS, seed=draw(generator, 0, 10**6))
    return {n.removeprefix(part): w for n, w in weights.items() if n.startswith(part)}


# ---------------------------------------------------------------------------------- causal_mask


def causal_mask_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, queries: list[list[int]], keys: list[list[int]]) -> Case:
        positions = {"query_positions": torch.tensor(queries), "key_positions": torch.tensor(keys)}
        return Case(label, positions)

    prefix, chunk = draw(generator, 3, 6), draw(generator, 2, 4)
    text = list(range(prefix + chunk))
    shuffled = torch.randperm(7, generator=generator).tolist()
    return [
        case("one token, which sees itself", [[0]], [[0]]),
        case("prefill: four tokens at once", [[0, 1, 2, 3]], [[0, 1, 2, 3]]),
        case("decode: one token behind a prefix", [[prefix]], [text[: prefix + 1]]),
        case("a chunk of several tokens behind a prefix", [text[prefix:]], [text]),
        case("decode, with keys beyond the query", [[2]], [[0, 1, 2, 3, 4]]),
        case("decode, two rows of different lengths", [[1], [4]], [[0, 1, 2, 3, 4]] * 2),
        case(
            "a chunk, three rows at different positions",
            [[3, 4], [1, 2], [5, 6]],
            [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2], [2, 3, 4, 5, 6]],
        ),
        case("keys in any order", [[5, 2, 3]], [shuffled]),
    ]


CAUSAL_MASK = Exercise(
    name="kv_cache.causal_mask",
    lab="kv_cache",
    title="Who may see whom",
    points=2,
    difficulty=2,
    minutes=10,
    place="The one rule that prefill, decode and every chunk in between obey, in every later lab.",
    hints=(
        (
            "A token at position 5 asks, a token at position 3 is asked. May it see it? And the "
            "one at 5, and at 6? Say the rule with the two positions only, without the words row "
            "and column."
        ),
        (
            "The rule is `key position <= query position`, for every query with every key. Give "
            "the two tensors a dimension of size 1 where the other one counts, and broadcasting "
            "makes all the pairs: queries along the rows, keys along the columns. The heads share "
            "the mask, so their dimension, the second, has size 1 too."
        ),
        (
            "    visible = key_positions[:, None, :] <= query_positions[...]   # q_len rows\n"
            "    return visible[:, None]                        # and a 1 for the heads"
        ),
    ),
    reference=reference.causal_mask,
    driver=drivers.causal_mask,
    cases=causal_mask_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.CAUSAL_MASK),
)


# ------------------------------------------------------------- ThreadedAttention, ThreadedBlock


def hidden_cases(part: str) -> Callable[[torch.Generator], list[Case]]:
    """Cases for one part of layer 1, which reads and returns hidden states."""

    def cases(generator: torch.Generator) -> list[Case]:
        weights = weights_of(part, generator)

        def case(label: str, *prompts: list[int], batch: int = 1) -> Case:
            # Small, so that no score is so high that a softmax over the others hides an error.
            chunks = [
                [0.5 * normal(generator, batch, n, LAYERS.n_embd) for n in sizes]
                for sizes in prompts
            ]
            data = {"config": asdict(LAYERS), "idx": 1, "weights": weights, "prompts": chunks}
            return Case(label, data)

        some = [draw(generator, 1, 5) for _ in range(4)]
        return [
            case("a prompt of one token", [1]),
            case("one token, then one more", [1, 1]),
            case("prefill: a prompt of four tokens", [4]),
            case("four tokens, then decode one at a time", [4, 1, 1, 1]),
            case("three tokens, then a chunk of three", [3, 3]),
            case("a batch of three prompts: two tokens, a chunk of five, one", [2, 5, 1], batch=3),
            case("two prompts of the same length, one after the other", [3, 1], [3, 1]),
            case("two prompts in several chunks", some, some[::-1], batch=2),
        ]

    return cases


ATTENTION = Exercise(
    name="kv_cache.ThreadedAttention.forward",
    lab="kv_cache",
    title="Attention that remembers",
    points=4,
    difficulty=3,
    minutes=20,
    place="The only layer in which tokens look at each other, and so the only one that needs the "
    "cache.",
    hints=(
        (
            "`hidden` holds the new tokens only. Which keys and values must their queries meet, "
            "where do those of the prefix come from, and what will the next step need from this "
            "one?"
        ),
        (
            "Concatenate the pair you were given with the new keys and values, along the tokens: "
            "they are dimension 2 of [batch, heads, length, head_dim]. With a prefix there are "
            "more keys than queries, so `is_causal=True` would lay its triangle in the wrong "
            "corner: build the mask with `causal_mask`. The keys stand at positions 0, 1, 2, ...; "
            "the queries are the last of them."
        ),
        (
            "    if kv_cache is not None:\n"
            "        keys = torch.cat([kv_cache[0], keys], dim=...)\n"
            "        values = ...\n"
            "    positions = torch.arange(keys.shape[2], device=hidden.device).unsqueeze(0)\n"
            "    mask = causal_mask(positions[:, ...], positions)    # the last q_len of them ask\n"
            "    attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)\n"
            "    return self.c_proj(self.merge_heads(attended)), (keys, values)"
        ),
    ),
    reference=reference.ThreadedAttention,
    driver=drivers.threaded_attention,
    cases=hidden_cases("transformer.h.1.attn."),
    compare=same_seen,
    misconceptions=tuple(misconceptions.ATTENTION),
)


def block_cases(generator: torch.Generator) -> list[Case]:
    """Without attention's weights: a stand-in takes its place."""

    def without_attention(case: Case) -> Case:
        weights = {n: w for n, w in case.data["weights"].items() if not n.startswith("attn.")}
        return Case(case.label, {**case.data, "weights": weights})

    return [without_attention(case) for case in hidden_cases("transformer.h.1.")(generator)]


BLOCK = Exercise(
    name="kv_cache.ThreadedBlock.forward",
    lab="kv_cache",
    title="A block that passes the cache through",
    points=1,
    difficulty=1,
    minutes=5,
    place="Between the model, which holds a cache for every layer, and attention, which uses it.",
    hints=(
        (
            "Read `GPTBlock.forward` in gpt.py. Which of its two lines touches other tokens? What "
            "else does that call now take, and what else does it give back?"
        ),
        (
            "Only attention needs the cache. It now returns two things: its output, which is added "
            "to `hidden` as before, and the longer cache, which you return beside the block's own "
            "output. The MLP looks at every token alone, so its line stays as it is."
        ),
        (
            "    attended, kv_cache = self.attn(self.ln_1(hidden), ...)\n"
            "    hidden = hidden + attended\n"
            "    return hidden + ..., kv_cache"
        ),
    ),
    reference=reference.ThreadedBlock,
    driver=drivers.threaded_block,
    cases=block_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.BLOCK),
)


# ---------------------------------------------------------------- ThreadedModel, ThreadedLMHead


def chunks_of_ids(
    generator: torch.Generator, sizes: list[int], batch: int = 1, offsets: tuple[int, ...] = (0,)
) -> list[tuple[Int[Tensor, "batch q_len"], Int[Tensor, "batch q_len"]]]:
    """One prompt in chunks: ids and positions. A row begins at its own offset."""
    ids = torch.randint(LAYERS.vocab_size, (batch, sum(sizes)), generator=generator)
    positions = torch.arange(sum(sizes)) + torch.tensor(offsets).unsqueeze(1)
    both = ids.split(sizes, dim=1), positions.expand_as(ids).split(sizes, dim=1)
    return list(zip(*both, strict=True))


def model_cases(generator: torch.Generator) -> list[Case]:
    every = weights_of("transformer.", generator)
    weights = {n: w for n, w in every.items() if not n.startswith("h.")}

    def case(
        label: str, *prompts: Any, n_layer: int = LAYERS.n_layer, start: tuple[None, ...] = (None,)
    ) -> Case:
        config = asdict(LAYERS) | {"n_layer": n_layer}
        data = {"config": config, "weights": weights, "prompts": prompts, "start": start}
        return Case(label, data)

    def prompt(*sizes: int, batch: int = 1, offsets: tuple[int, ...] = (0,)) -> Any:
        return chunks_of_ids(generator, list(sizes), batch, offsets)

    full = LAYERS.n_positions
    return [
        case("one layer, a prompt of one token", prompt(1), n_layer=1),
        case("one layer, two tokens, then one more", prompt(2, 1), n_layer=1),
        case("two layers, a prompt of three tokens", prompt(3), n_layer=2),
        case("three layers, three tokens, then one at a time", prompt(3, 1, 1)),
        case("a batch of two, four tokens, then a chunk of three", prompt(4, 3, batch=2)),
        case("rows that begin at different positions", prompt(2, 2, 1, batch=3, offsets=(0, 4, 1))),
        case("the last token that the context holds", prompt(full - 1, 1)),
        case("two prompts, one after the other", prompt(3, 1), prompt(3, 1)),
        case(
            "two prompts, one after the other, with kv_cache left out at the start of each",
            prompt(2, 2),
            prompt(2, 2),
            start=(),
        ),
    ]


MODEL = Exercise(
    name="kv_cache.ThreadedModel.forward",
    lab="kv_cache",
    title="One cache for every layer",
    points=3,
    difficulty=2,
    minutes=15,
    place="The loop over the layers: it deals out their caches and collects the longer ones.",
    hints=(
        (
            "Every block hands back a cache of its own. How many are there at the end, in which "
            "order, and which of them does layer i want next time? And what do the layers get at "
            "the start?"
        ),
        (
            "Begin with `[None] * len(self.h)` where there is no cache yet. Walk over blocks and "
            "caches together, and collect what every block returns in a new list; the list you "
            "were given belongs to whoever gave it. Embed with the `position_ids` you were handed: "
            "the new tokens don't stand at the beginning."
        ),
        (
            "    if kv_cache is None:\n"
            "        kv_cache = [None] * len(self.h)\n"
            "    new_cache = []\n"
            "    hidden = self.embed(inputs, position_ids)\n"
            "    for block, layer_cache in zip(self.h, kv_cache):\n"
            "        ...                            # two lines: call the block, keep its cache\n"
            "    return self.ln_f(hidden), new_cache"
        ),
    ),
    reference=reference.ThreadedModel,
    driver=drivers.threaded_model,
    cases=model_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.MODEL),
)


def lm_head_cases(generator: torch.Generator) -> list[Case]:
    weights = {"transformer.wte.weight": weights_of("transformer.wte.", generator)["weight"]}

    def case(label: str, *prompts: Any) -> Case:
        return Case(label, {"config": asdict(LAYERS), "weights": weights, "prompts": prompts})

    def prompt(*sizes: int, batch: int = 1, offsets: tuple[int, ...] = (0,)) -> Any:
        return chunks_of_ids(generator, list(sizes), batch, offsets)

    return [
        case("a prompt of one token", prompt(1)),
        case("a prompt of three tokens", prompt(3)),
        case("three tokens, then one at a time", prompt(3, 1, 1)),
        case("a batch of two, three tokens, then a chunk of two", prompt(3, 2, batch=2)),
        case("rows that begin at different positions", prompt(2, 1, batch=2, offsets=(0, 3))),
        case("two prompts, one after the other", prompt(2, 1), prompt(2, 1)),
    ]


LM_HEAD = Exercise(
    name="kv_cache.ThreadedLMHead.forward",
    lab="kv_cache",
    title="Logits, and the cache beside them",
    points=1,
    difficulty=1,
    minutes=5,
    place="The outside of the model: what the generation loop calls.",
    hints=(
        (
            "Read `GPTLMHead.forward` in gpt.py. What does the model under it now take and give "
            "back besides?"
        ),
        (
            "Hand `kv_cache` down as the third argument and take two things back. Score the hidden "
            "states against the token embeddings as before, for every new token, and return the "
            "new cache beside the logits."
        ),
        (
            "    hidden, kv_cache = self.transformer(inputs, position_ids, ...)\n"
            "    return hidden @ ..., kv_cache"
        ),
    ),
    reference=reference.ThreadedLMHead,
    driver=drivers.threaded_lm_head,
    cases=lm_head_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.LM_HEAD),
)


# ----------------------------------------------------------------------------- generate_threaded

LOOP = GPTConfig(vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=4)


@cache
def small_model() -> reference.ThreadedLMHead:
    return random_model(reference.ThreadedLMHead, LOOP, seed=1)


def counted_model(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": CountedModel(small_model())}


def generate_cases(generator: torch.Generator) -> list[Case]:
    def prompt(seq: int, batch: int = 1) -> Int[Tensor, "batch seq"]:
        return torch.randint(LOOP.vocab_size, (batch, seq), generator=generator)

    def new_ids(ids: Int[Tensor, "1 seq"]) -> list[int]:
        return reference.generate_threaded(small_model(), ids, 6)[0, ids.shape[1] :].tolist()

    def until(seq: int, wanted: Callable[[list[int], list[int]], bool]) -> Int[Tensor, "1 seq"]:
        """A prompt for which wanted(its ids, the six new ids) holds."""
        ids = prompt(seq)
        while not wanted(ids[0].tolist(), new_ids(ids)):
            ids = prompt(seq)
        return ids

    def case(label: str, *requests: tuple[Tensor, int, int | None]) -> Case:
        names = "input_ids", "max_new_tokens", "eos_token_id"
        return Case(label, {"requests": [dict(zip(names, r, strict=True)) for r in requests]})

    full = LOOP.n_positions
    varied = until(4, lambda ids, new: len({*ids, *new}) == 10)  # no id comes twice
    new = new_ids(varied)
    two = prompt(3, batch=2)
    while any(a == b for a, b in zip(new_ids(two[:1]), new_ids(two[1:]), strict=True)):
        two = prompt(3, batch=2)
    zero = until(3, lambda ids, new: 0 in new[1:4] and new[0] != 0)
    inside = until(4, lambda ids, new: ids[1] not in new)
    last = until(3, lambda ids, new: ids[-1] not in new[:2] and ids[-1] in new[2:5])
    return [
        case("a one-token prompt, one new token", (prompt(1), 1, None)),
        case("a one-token prompt, two new tokens", (prompt(1), 2, None)),
        case("six new tokens", (varied, 6, None)),
        case("no new token asked for", (prompt(3), 0, None)),
        case("the first new token is EOS", (varied, 6, new[0])),
        case("EOS comes after a few new tokens", (varied, 6, new[2])),
        case("the last new token asked for is EOS", (varied, 3, new[2])),
        case("the EOS token's id is 0", (zero, 6, 0)),
        case("the EOS token stands in the prompt", (inside, 4, int(inside[0, 1]))),
        case("the prompt ends with the EOS token", (last, 6, int(last[0, -1]))),
        case("a batch of two prompts", (two, 4, None)),
        case("the prompt leaves room for two tokens", (prompt(full - 2), 5, None)),
        case("the prompt fills the context", (prompt(full), 3, None)),
        case(
            "three prompts, one after the other",
            (prompt(4), 4, None),
            (prompt(4), 4, None),
            (prompt(2, batch=2), 3, None),
        ),
    ]


def compare_generate(got: Any, expected: Any) -> str | None:
    seen = got["returned"]
    ids = (same_ids(seen.get(what), value, what) for what, value in expected["returned"].items())
    return first(*ids, same_work(got["model"], expected["model"]))


def same_work(got: Mapping[str, int], expected: Mapping[str, int]) -> str | None:
    for what in ("tokens computed", "forward calls"):
        if got[what] != expected[what]:
            return (
                f"The tokens are right, but it took {got[what]} {what}; "
                f"with a cache it takes {expected[what]}."
            )
    return None


GENERATE = Exercise(
    name="kv_cache.generate_threaded",
    lab="kv_cache",
    title="Prefill once, then decode token by token",
    points=4,
    difficulty=3,
    minutes=20,
    place="Lab 1's loop, now with the cache: the two phases of every inference server.",
    hints=(
        (
            "At each step, how many of the ids has the model already seen? Those are in the cache. "
            "What is left to hand over, and at which positions does it stand?"
        ),
        (
            "In the first step everything is new, and the positions are 0, 1, 2, ...; in every "
            "later step only the newest token is, and its position is the number of tokens before "
            "it. Keep the cache that each call returns and hand it to the next. Begin every prompt "
            "with None. The exit conditions are those of lab 1, and n new tokens take n forward "
            "calls."
        ),
        (
            "    ids, kv_cache, computed = input_ids, None, 0\n"
            "    room = model.config.n_positions - ids.shape[1]\n"
            "    for _ in range(min(max_new_tokens, room)):\n"
            "        new_ids = ids[:, computed:]\n"
            "        position_ids = torch.arange(..., ids.shape[1], device=ids.device)\n"
            "        logits, kv_cache = model(new_ids, position_ids.expand_as(new_ids), kv_cache)\n"
            "        computed = ...\n"
            "        ...                      # as in lab 1: choose, append, stop at EOS\n"
            "    return ids"
        ),
    ),
    reference=reference.generate_threaded,
    driver=drivers.generate_threaded,
    cases=generate_cases,
    compare=compare_generate,
    misconceptions=tuple(misconceptions.GENERATE),
    services=counted_model,
)


# ---------------------------------------------------------------------------- kv_bytes_per_token


def kv_bytes_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_layer: int, n_embd: int, n_head: int, *bytes_per_number: int) -> Case:
        config = GPTConfig(n_layer=n_layer, n_embd=n_embd, n_head=n_head)
        return Case(label, {"config": asdict(config), "bytes_per_number": list(bytes_per_number)})

    n_layer, n_head = draw(generator, 2, 9), draw(generator, 2, 9)
    return [
        case("one layer, one head of two numbers, one byte each", 1, 2, 1, 1),
        case("one layer, two heads of two numbers, float32", 1, 4, 2),
        case("fable: 12 layers of 256, 8 heads, float32", 12, 256, 8),
        case("gpt2: 12 layers of 768, 12 heads, float32", 12, 768, 12),
        case("gpt2 with 2 bytes a number", 12, 768, 12, 2),
        case("a 13B OPT: 40 layers of 5,120, 40 heads, 2 bytes a number", 40, 5120, 40, 2),
        case(
            f"{n_layer} layers of {16 * n_head}, {n_head} heads, 1 byte a number",
            n_layer,
            16 * n_head,
            n_head,
            1,
        ),
    ]


BYTES = Exercise(
    name="kv_cache.kv_bytes_per_token",
    lab="kv_cache",
    title="What a token costs in memory",
    points=1,
    difficulty=1,
    minutes=5,
    place="How a server decides how many requests fit in its memory.",
    hints=(
        (
            "Look at the shape of one layer's keys, for one token. How many numbers is that, what "
            "else is kept with them, and in how many layers?"
        ),
        (
            "One token leaves, in every layer, one key and one value in each head. All heads "
            "together have `n_embd` numbers. Each number takes `bytes_per_number` bytes."
        ),
        "    return 2 * config.n_layer * ... * ...",
    ),
    reference=reference.kv_bytes_per_token,
    driver=drivers.kv_bytes_per_token,
    cases=kv_bytes_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.BYTES),
)


# ------------------------------------------------------------------------------- KVCache.attend


def attend_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_layer: int, batch: int, max_length: int, *steps: Any) -> Case:
        config = asdict(LAYERS) | {"n_layer": n_layer}
        shape = n_layer, batch, LAYERS.n_head
        drawn = [
            ("forward", *(normal(generator, *shape, step, LAYERS.head_dim) for _ in range(3)))
            if isinstance(step, int)
            else step
            for step in steps
        ]
        data = {"config": config, "batch": batch, "max_length": max_length, "steps": drawn}
        return Case(label, data)

    rows = torch.tensor([2, 0, 0])
    some = [draw(generator, 1, 4) for _ in range(4)]
    return [
        case("one layer, one token", 1, 1, 1, 1),
        case("one layer, a prompt of three tokens in memory for eight", 1, 1, 8, 3),
        case("two layers, a prompt of three tokens", 2, 1, 8, 3),
        case("two layers, three tokens, then one at a time", 2, 1, 8, 3, 1, 1),
        case("two layers, two tokens, then a chunk of three", 2, 1, 8, 2, 3),
        case("three layers, a batch of two, until the memory is full", 3, 2, 7, 2, 4, 1),
        case("one token more than fits", 2, 1, 4, 3, 1, 1),
        case("a chunk that doesn't fit, then one that does", 2, 2, 5, 3, 3, 2),
        case("five tokens, rolled back to two, then others", 2, 1, 8, 5, ("truncate", 2), 1, 2),
        case("three rows, reordered between two forwards", 2, 3, 8, 3, ("reorder", rows), 2),
        case("several chunks, three layers, a batch of three", 3, 3, 16, *some),
    ]


ATTEND = Exercise(
    name="kv_cache.KVCache.attend",
    lab="kv_cache",
    title="Store, then attend",
    points=4,
    difficulty=3,
    minutes=20,
    place="The seam of the whole engine: every later cache, padded, paged or shared, is another "
    "`attend` behind the same model.",
    hints=(
        (
            "The skeleton gives you `start` and `end`. Where do the new keys and values belong, "
            "which of them may the queries see afterwards, and when has the whole forward been "
            "served?"
        ),
        (
            "Write to `self.keys[layer]` and `self.values[layer]` from `start` to `end`, all rows "
            "and heads. Attend to what lies from 0 to `end`; beyond is memory without tokens. "
            "`self.mask(start, end)` is given: queries at start, ..., end - 1 and keys at 0, ..., "
            "end - 1. `length` must not move before the last layer has written, or the layers "
            "would write to different places."
        ),
        (
            "    self.keys[layer, :, :, start:end] = keys\n"
            "    ...                                     # the values likewise\n"
            "    if layer == ...:                        # the last one\n"
            "        self.length = end\n"
            "    return F.scaled_dot_product_attention(\n"
            "        queries,\n"
            "        self.keys[layer, :, :, :end],\n"
            "        ...,\n"
            "        attn_mask=self.mask(start, end),\n"
            "    )"
        ),
    ),
    reference=reference.KVCache,
    driver=drivers.attend,
    cases=attend_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.ATTEND),
)


# ----------------------------------------------------------------------------- KVCache.truncate


def truncate_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *steps: tuple[str, int], batch: int = 1, max_length: int = 8) -> Case:
        shape = LAYERS.n_layer, batch, LAYERS.n_head
        drawn = [
            (what, *(normal(generator, *shape, n, LAYERS.head_dim) for _ in range(2)))
            if what == "append"
            else (what, n)
            for what, n in steps
        ]
        data = {"batch": batch, "max_length": max_length, "steps": drawn}
        return Case(label, {"config": asdict(LAYERS), **data})

    held, kept = draw(generator, 6, 8), draw(generator, 2, 4)
    return [
        case("three tokens, the first two kept", ("append", 3), ("truncate", 2)),
        case("three tokens, all kept", ("append", 3), ("truncate", 3)),
        case("three tokens, none kept", ("append", 3), ("truncate", 0)),
        case("an empty cache, nothing to keep", ("truncate", 0)),
        case("four tokens of three", ("append", 3), ("truncate", 4)),
        case("more tokens than the memory has room for", ("append", 3), ("truncate", 9)),
        case("fewer tokens than none", ("append", 3), ("truncate", -1)),
        case(
            "five tokens, two kept, then three others, four kept",
            ("append", 5),
            ("truncate", 2),
            ("append", 3),
            ("truncate", 4),
        ),
        case(
            "a full memory, rolled back and filled again",
            ("append", 8),
            ("truncate", 3),
            ("append", 5),
            ("truncate", 1),
            ("append", 1),
        ),
        case(
            "a batch of three, asked twice for too many",
            ("append", held),
            ("truncate", kept),
            ("truncate", held),
            ("append", 1),
            ("truncate", kept + 2),
            ("truncate", kept + 1),
            batch=3,
            max_length=10,
        ),
    ]


TRUNCATE = Exercise(
    name="kv_cache.KVCache.truncate",
    lab="kv_cache",
    title="Roll back",
    points=2,
    difficulty=1,
    minutes=5,
    place="How speculation takes back the tokens that were guessed wrong.",
    hints=(
        "What tells the cache how much of its memory holds tokens? And which n make no sense?",
        (
            "Nothing needs to be erased: `attend` reads up to `length` only, and the next tokens "
            "are written over the old ones. But nobody can keep more tokens than there are, or "
            "fewer than none: refuse that with a ValueError that says so, and change nothing."
        ),
        "    if not 0 <= n <= ...:\n        raise ValueError(...)\n    self.length = ...",
    ),
    reference=reference.KVCache,
    driver=drivers.truncate,
    cases=truncate_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.TRUNCATE),
)


EXERCISES = (
    CAUSAL_MASK,
    ATTENTION,
    BLOCK,
    MODEL,
    LM_HEAD,
    GENERATE,
    BYTES,
    ATTEND,
    TRUNCATE,
)
