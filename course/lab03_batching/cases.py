"""The exercises of lab 3: static batching with left padding, then slots that are never idle."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from autograder.attempt.drivers import batching as drivers
from autograder.judging.comparisons import compare_with_work
from autograder.judging.draws import (
    LAYERS,
    LOOP,
    draw,
    normal,
    prompt_list,
    prompt_where,
    small_model,
    steps_in,
)
from autograder.judging.exercise import Case, Exercise, Service, case_of
from autograder.lending.cached import lend_cached_model
from autograder.lending.caches import CachePerSlot, lend_model_and_caches
from autograder.lending.lent import Lent
from gpt import GPTConfig
from solutions import batching as reference
from solutions.kv_cache import CachedLMHead

FULL = LOOP.n_positions

# ------------------------------------------------------------------------------- static batching


def pad_left_cases(generator: torch.Generator) -> list[Case]:
    given = case_of("prompts")

    def case(label: str, lengths: list[int], **pad_id: int) -> Case:
        return given(label, [prompt_list(generator, n) for n in lengths], **pad_id)

    return [
        case("one prompt of one token", [1]),
        case("one prompt of three tokens", [3]),
        case("two prompts of one length", [2, 2]),
        case("two prompts, the second one shorter", [3, 1]),
        case("two others of the same lengths", [3, 1]),
        case("two prompts, the first one shorter", [2, 3], pad_id=7),
        case("four prompts of very different lengths", [2, 9, 1, 5], pad_id=1),
        given("a pad id that is also a token of the prompts", [[5, 8, 5], [5], [8, 5]], pad_id=5),
        given("prompts that hold token 0", [[0, 3, 0], [4, 0]]),
        given("the same prompt twice", [[4, 7], [9], [4, 7]]),
    ]


def left_padded(*lengths: int, columns: int) -> Bool[Tensor, "batch seq"]:
    """The attention mask of rows with this many tokens each."""
    return torch.arange(columns) >= columns - torch.tensor(lengths).unsqueeze(1)


def position_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *lengths: int, columns: int | None = None) -> Case:
        mask = left_padded(*lengths, columns=columns or max(lengths))
        return Case(label, {"attention_mask": mask})

    some = [draw(generator, 1, 9) for _ in range(4)]
    return [
        case("one prompt of one token", 1),
        case("one prompt of four tokens, no pad", 4),
        case("two prompts, the second one shorter", 4, 2),
        case("two prompts, the first one a single token", 1, 4),
        case("every row has pads", 2, 3, columns=5),
        case("four prompts of very different lengths", *some, columns=10),
        case("a long prompt and a short one", 300, 3),
        case("one prompt with pads before it", 2, columns=4),
    ]


def padded_mask_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *lengths: int, columns: int, q_len: int) -> Case:
        mask = left_padded(*lengths, columns=columns)
        return Case(label, {"attention_mask": mask, "q_len": q_len})

    some = [draw(generator, 2, 8) for _ in range(3)]
    return [
        case("one prompt of one token", 1, columns=1, q_len=1),
        case("prefill of one prompt, no pad", 3, columns=3, q_len=3),
        case("prefill of two prompts, the second one shorter", 4, 2, columns=4, q_len=4),
        case("prefill of two prompts, the first one a single token", 1, 4, columns=4, q_len=4),
        case("decode: one column after two prompts", 4, 2, columns=4, q_len=1),
        case("a chunk of the last two columns", 5, 2, columns=5, q_len=2),
        case("a chunk of four columns, some of them pads", 6, 3, columns=6, q_len=4),
        case("every row has pads", 2, 3, columns=5, q_len=5),
        case("one prompt with pads before it", 2, columns=4, q_len=4),
        case("three prompts of different lengths", *some, columns=9, q_len=9),
        case("decode after a long prompt and a short one", 20, 3, columns=20, q_len=1),
    ]


def generate_cases(generator: torch.Generator) -> list[Case]:
    def prompts(*lengths: int) -> list[list[int]]:
        return [prompt_list(generator, n) for n in lengths]

    def batch(prompts: list[list[int]], limits: list[int], *eos: int) -> dict[str, Any]:
        """eos_token_id is left out where there is none."""
        eos_token_id = {"eos_token_id": eos[0]} if eos else {}
        return {"prompts": prompts, "max_new_tokens": limits, **eos_token_id}

    def case(label: str, *batches: dict[str, Any]) -> Case:
        return Case(label, {"batches": list(batches)})

    ends, new, goes_on = one_ends(generator)
    sooner = ends + new[:2]  # goes on as the same text
    zero, _ = prompt_where(generator, 3, lambda _, new: 0 in new[1:3] and new[0] != 0)
    no_zero, _ = prompt_where(generator, 2, lambda _, new: 0 not in new)
    own, _ = prompt_where(generator, 3, lambda _, new: LOOP.eos_token_id in new[:4])
    inside = eos_inside(generator)
    last, _ = prompt_where(
        generator, 3, lambda ids, new: ids[-1] not in new[:2] and ids[-1] in new[2:5]
    )
    return [
        case("one prompt, one new token", batch(prompts(1), [1])),
        case("one prompt, three new tokens", batch(prompts(4), [3])),
        case("two prompts of one length", batch(prompts(3, 3), [3, 3])),
        case("two prompts of different lengths", batch(prompts(4, 1), [4, 4])),
        case("three prompts, the last one the longest", batch(prompts(1, 2, 6), [3, 3, 3])),
        case("token 0 in the prompts", batch([[0, *prompts(2)[0]], [5, 0, 0, 7, 0]], [3, 3])),
        case("different limits", batch(prompts(2, 3, 2), [3, 1, 5])),
        case("EOS ends the first row early", batch([ends, goes_on], [6, 6], new[1])),
        case("EOS ends the second row early", batch([goes_on, ends], [6, 6], new[2])),
        case("the first new token of a row is EOS", batch([ends, goes_on], [4, 4], new[0])),
        case("the last token that a row may have is EOS", batch([ends, goes_on], [3, 5], new[2])),
        case("EOS ends both rows early", batch([sooner, ends], [8, 8], new[3])),
        case("the EOS token's id is 0", batch([zero, no_zero], [6, 5], 0)),
        case("the EOS token is in a prompt", batch([inside, *prompts(2)], [5, 1], inside[1])),
        case("a prompt ends with the EOS token", batch([*prompts(2), last], [1, 6], last[-1])),
        case("one row fills the context, one goes on", batch(prompts(FULL - 2, 3), [5, 7])),
        case("one of the prompts fills the context", batch(prompts(FULL, 2), [3, 4])),
        case("the only prompt fills the context", batch(prompts(FULL), [3])),
        case("token 0 is generated, and no EOS is set", batch([zero, no_zero], [6, 5])),
        case("the model's own EOS is generated, and none is set", batch([own, no_zero], [6, 2])),
        case("the same prompt twice", batch([ends, goes_on, ends], [2, 3, 5])),
        case(
            "three batches, one after the other",
            batch(prompts(4, 2), [2, 4]),
            batch(prompts(4, 2), [2, 4]),
            batch(prompts(3, 3, 1), [4, 2, 3]),
        ),
    ]


def one_ends(generator: torch.Generator) -> tuple[list[int], list[int], list[int]]:
    """A prompt, its six new ids, all different; and another that makes none of the first three.

    The second new id is large, so that `is` is no `==`.
    """
    ends, new = prompt_where(generator, 4, lambda _, new: len({*new}) == 6 and new[1] > 256)
    goes_on, _ = prompt_where(generator, 2, lambda _, other: not {*new[:3]} & {*other})
    return ends, new, goes_on


def eos_inside(generator: torch.Generator) -> list[int]:
    """A prompt whose second token comes neither at its end nor after it."""
    return prompt_where(generator, 4, lambda ids, new: ids[1] not in [ids[-1], *new])[0]


def utilisation_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *trace: list[int | None]) -> Case:
        return Case(label, {"trace": list(trace)})

    busy = (torch.rand(5, 4, generator=generator) < 0.6).tolist()
    some = [[slot if is_busy else None for slot, is_busy in enumerate(row)] for row in busy]
    some[0][:3] = [0, 1, None]
    return [
        case("one slot, one step, busy", [1]),
        case("one step, two slots, one of them idle", [1, None]),
        case("two slots, busy in every step", [1, 2], [1, 2], [3, 2]),
        case("request 0", [0, None], [0, 1], [None, 1]),
        case("one slot, idle for a step", [0], [None], [1]),
        case("static batching of two: one ends early", [0, 1], [0, None], [0, None]),
        case("a step in which no request is served", [None, 2, 3], [None, None, None]),
        case("no request is served at all", [None, None], [None, None]),
        case("four slots, five steps", *some),
    ]


def dynamic_cases(generator: torch.Generator) -> list[Case]:
    given = case_of("arrivals", "limit", "delay", "fixed", "each")

    def some(label: str, limit: int, delay: int, apart: int) -> Case:
        """Twelve requests, up to `apart` after one another; some come together."""
        gaps = [draw(generator, 0, apart) for _ in range(12)]
        fixed, each = draw(generator, 2, 6), draw(generator, 1, 2)
        return given(label, list(accumulate(gaps)), limit, delay, fixed, each)

    return [
        given("one request, with a delay", [3], 4, 5, 2, 1),
        given("no requests", [], 4, 5, 2, 1),
        given("two requests at once, which fill a batch", [1, 1], 2, 5, 2, 1),
        given("a request fills the batch before the delay is over", [0, 2], 2, 5, 2, 1),
        given("a request arrives as the delay ends", [0, 5], 3, 5, 2, 1),
        given("a request arrives just after the delay", [0, 6], 3, 5, 2, 1),
        given("batches of one", [0, 0, 1], 1, 5, 4, 1),
        given("more requests wait than a batch may hold", [0, 1, 2, 3, 4, 5], 2, 0, 9, 1),
        given("the server is free late, and takes all that wait", [0, 1, 2, 3], 3, 1, 9, 1),
        some("twelve requests, close together", 3, 4, 2),
        some("twelve others, close together", 3, 4, 2),
        some("twelve requests without a delay", 4, 0, 4),
        some("twelve requests, far apart", 3, 6, 9),
    ]


# ------------------------------------------------------------------------------------- SlotCache


def select_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *steps: tuple[list[int], list[int], int], max_length: int = 12) -> Case:
        """Steps: the length of every slot, the slots selected, and q_len."""
        sizes = {"slots": len(steps[0][0]), "max_length": max_length}
        drawn = [(torch.tensor(lengths), slots, q_len) for lengths, slots, q_len in steps]
        return Case(label, {"config": asdict(LAYERS), **sizes, "steps": drawn})

    some = [draw(generator, 1, 9) for _ in range(4)]
    again = [([first, second], [0, 1], 1) for first, second in ((3, 5), (4, 6), (7, 6), (2, 6))]
    return [
        case("one empty slot, one token", ([0], [0], 1)),
        case("one empty slot, a prompt of three tokens", ([0], [0], 3)),
        case("decode: one slot that holds four tokens", ([4], [0], 1)),
        case("the second of two empty slots, a prompt of two", ([0, 0], [1], 2)),
        case("two slots of equal length", ([3, 3], [0, 1], 1)),
        case("two slots, the first one longer", ([5, 2], [0, 1], 1)),
        case("two slots, the second one longer", ([1, 4], [0, 1], 1)),
        case("a new request, and slots that hold more", ([6, 0, 3], [1], 2)),
        case("slots 2 and 0 of three, in this order", ([1, 7, 4], [2, 0], 1)),
        case("a chunk of three tokens for each of two slots", ([5, 0, 2], [0, 2], 3)),
        case("the last place of a slot", ([3, 5], [0, 1], 1), max_length=6),
        case("a long text and a short one", ([20, 3], [0, 1], 1), max_length=32),
        case("several forwards", (some, [3, 1], 2), (some, [0, 1, 2, 3], 1), (some, [2], 3)),
        case("the same slots again and again, with other lengths", *again),
        case("a long slot, then a short one", ([8, 2], [0], 1), ([8, 2], [1], 1)),
    ]


def attend_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_layer: int, slots: int, steps: str, opposed: bool = False) -> Case:
        """Steps: "0+2 3" is three tokens for each of the slots 0 and 2, with what a right `select`
        keeps for it; "free 0". opposed: every token's own score is far below 0."""
        config = asdict(LAYERS) | {"n_layer": n_layer}
        cache = reference.SlotCache(GPTConfig(**config), slots, LAYERS.n_positions)
        drawn: list[Any] = []
        for what, number in steps_in(steps):
            if what == "free":
                cache.free(number)
                drawn.append((what, number))
                continue
            served = [int(slot) for slot in str(what).split("+")]
            positions = cache.select(served, number)
            cache.lengths[cache.slots] += number
            shape = n_layer, len(served), LAYERS.n_head, number, LAYERS.head_dim
            queries, keys, values = (normal(generator, *shape) for _ in range(3))
            projected = queries, -30 * queries if opposed else keys, values
            drawn.append(("forward", served, positions, cache.mask, *projected))
        sizes = {"slots": slots, "max_length": LAYERS.n_positions}
        return Case(label, {"config": config, **sizes, "steps": drawn})

    some = [draw(generator, 1, 4) for _ in range(3)]
    chunks = "1 3, 0 1, 0+1 2, 1+2 2"
    four = f"3 {some[0]}, 1 {some[1]}, 1+3 {some[2]}, 0+2 2, 0+1+2+3 1"
    return [
        case("one layer, one slot, one token", 1, 1, "0 1"),
        case("one layer, one slot, a prompt of three tokens", 1, 1, "0 3"),
        case("one layer, the second of two slots, a prompt of three tokens", 1, 2, "1 3"),
        case("scores far below 0", 1, 2, "1 3, 0 2, 0+1 1", opposed=True),
        case("two layers, a prompt, then one token at a time", 2, 1, "0 3|1|1"),
        case("one layer, a long prompt, then one token", 1, 1, "0 13|1"),
        case("a slot is filled to its last place", 2, 1, "0 15|1"),
        case("two slots, prompts, then both", 2, 2, "0 2, 1 4, 0+1 1"),
        case("three slots, one of them idle", 2, 3, "0 3, 1 2, 2 1, 0+2 1, 0+1+2 1"),
        case("three slots, 2 before 0", 1, 3, "0 2, 2 4, 2+0 1|1, 0 1"),
        case("a slot freed, and given to a shorter prompt", 2, 2, "0 5, 1 2, free 0, 0 2, 0+1 1"),
        case("a slot freed while the others go on", 3, 3, "0+1+2 4, free 1, 0+2 1, 1 1, 2+0+1 1"),
        case("three layers, chunks of two for slots of different lengths", 3, 3, chunks),
        case("four slots, three layers", 3, 4, four),
    ]


# ----------------------------------------------------------------------------- ContinuousBatcher

# Of requests in the order of their coming: neither the shortest nor the smallest comes first.
PROMPT_LENGTHS, LIMITS = (6, 4, 2, 3, 7, 5, 8), (2, 5, 1, 6, 3, 7, 4)


def admit_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, slots: int, *steps: Any) -> Case:
        """A number is so many requests that come."""
        sizes = zip(PROMPT_LENGTHS, LIMITS, strict=True)
        coming = (("submit", prompt_list(generator, length), limit) for length, limit in sizes)
        drawn = [
            step
            for what in steps
            for step in ([next(coming) for _ in range(what)] if isinstance(what, int) else [what])
        ]
        return Case(label, {"slots": slots, "steps": drawn})

    def end(*numbers: int) -> Any:
        return "end", *numbers

    admit, full = ("admit",), ("submit", prompt_list(generator, 3), FULL)
    ending = draw(generator, 0, 2)
    return [
        case("one free slot, one request waiting", 1, 1, admit),
        case("one free slot, no request waiting", 1, admit),
        case("one free slot, a request that may fill it", 1, full, admit),
        case("two free slots, one request waiting", 2, 1, admit),
        case("two free slots, three requests waiting", 2, 3, admit),
        case("one slot, and it is busy", 1, 2, admit, admit),
        case("three slots, the first one busy", 3, 1, admit, 3, admit),
        case("three slots, the last one busy", 3, 3, admit, end(0, 1), 2, admit),
        case("three slots, the one in the middle busy", 3, 3, admit, end(0, 2), 3, admit),
        case("requests end one after the other", 3, 6, admit, end(1), admit, end(0, 3), admit),
        case("slots have been free for a while", 2, admit, 1, admit, 2, admit, end(0), admit),
        case("requests come and end", 4, 3, admit, end(ending), 4, admit, end(3, 4), admit),
    ]


def step_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, slots: int, *arriving: str, eos: int | None = None) -> Case:
        """As many steps as it takes until no request is left, and where a right `admit` puts each.

        "3+2 ends+6" come with a step: three tokens, and two new ones; the prompt `ends`, and six.
        """
        coming = [[request(*word.split("+")) for word in words.split()] for words in arriving]
        sizes = slots, max(min(len(p) + n, FULL) for step in coming for p, n in step)
        batcher = reference.ContinuousBatcher(small_model(CachedLMHead), *sizes, eos)
        for requests in coming:
            for prompt, limit in requests:
                batcher.submit(prompt, limit)
            batcher.step()
        batcher.run()
        coming += [[]] * (len(batcher.trace) - len(coming))
        served = [pair for row in batcher.trace for pair in enumerate(row) if pair[1] is not None]
        own = {"slots": slots, "max_length": sizes[1], "eos_token_id": eos, "arrivals": coming}
        return Case(label, {**own, "admissions": list(dict.fromkeys(served))})

    def request(prompt: str, limit: str) -> tuple[list[int], int]:
        return known.get(prompt) or prompt_list(generator, int(prompt)), int(limit)

    ends, new, goes_on = one_ends(generator)
    zero, _ = prompt_where(generator, 3, lambda _, new: 0 in new[1:3] and new[0] != 0)
    no_zero, _ = prompt_where(generator, 2, lambda _, new: 0 not in new)
    inside = eos_inside(generator)
    some = [draw(generator, 1, 5) for _ in range(4)]
    seven = f"{some[0]}+3 2+5 {some[1]}+1 4+2", "", f"{some[2]}+4 1+3 {some[3]}+2"
    known = {"ends": ends, "goes_on": goes_on, "zero": zero, "no_zero": no_zero, "inside": inside}
    return [
        case("one slot, one new token", 1, "1+1"),
        case("one slot, three new tokens", 1, "2+3"),
        case("one slot, two requests", 1, "3+2 2+2"),
        case("steps in which no request is there", 2, "", "2+1", "", "3+2"),
        case("two slots, two requests of one length", 2, "2+2 2+2"),
        case("two slots, two prompts of different lengths", 2, "4+2 1+3"),
        case("two slots, three requests", 2, "2+2 2+4 4+2"),
        case("three slots, all end in the same step", 3, "2+2 3+2 1+2 2+1"),
        case("a request with one new token among others", 2, "3+3 2+1 2+2"),
        case("two new requests while another runs", 3, "2+5", "", "1+2 3+2"),
        case("EOS ends one of two", 2, "ends+6 goes_on+4 3+2", eos=new[1]),
        case("the first new token is EOS", 2, "goes_on+3 ends+4", "2+2", eos=new[0]),
        case("the EOS token's id is 0", 2, "zero+5 no_zero+4", eos=0),
        case("the EOS token is in a prompt", 1, "inside+3", eos=inside[1]),
        case("one request fills the context", 2, f"{FULL - 2}+5 3+4"),
        case("seven requests for three slots", 3, *seven),
    ]


class LentCache(Lent, reference.SlotCache):
    """The reference's cache, lent to a batcher whose own may be wrong."""

    lends = CachePerSlot.lends


def lend_model_and_cache(data: Mapping[str, Any]) -> dict[str, Service]:
    kv_cache = LentCache(LOOP, data["slots"], data["max_length"], dtype=torch.float64)
    return {**lend_cached_model(data), "kv_cache": kv_cache}


with_model = partial(Exercise, compare=compare_with_work, services=lend_cached_model)
SELECT, ATTEND = drivers.select_as_built, drivers.attend_as_built

EXERCISES = (
    Exercise("batching.pad_left", drivers.pad_left, pad_left_cases),
    Exercise("batching.padded_position_ids", drivers.padded_position_ids, position_cases),
    Exercise("batching.padded_mask", drivers.padded_mask, padded_mask_cases),
    with_model("batching.generate_padded", drivers.generate_padded, generate_cases),
    Exercise("batching.utilisation", drivers.utilisation, utilisation_cases),
    Exercise("batching.dynamic_batches", drivers.dynamic_batches, dynamic_cases),
    Exercise("batching.SlotCache.select", drivers.select, select_cases, as_built=SELECT),
    Exercise("batching.SlotCache.attend", drivers.attend, attend_cases, as_built=ATTEND),
    with_model(
        "batching.ContinuousBatcher.admit",
        *(drivers.admit, admit_cases),
        as_built=drivers.admit_as_built,
    ),
    Exercise(
        "batching.ContinuousBatcher.step",
        *(drivers.step, step_cases, compare_with_work, lend_model_and_cache),
        as_built=drivers.step_as_built,
        in_bundle=lend_model_and_caches,
    ),
)
