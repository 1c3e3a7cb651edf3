"""The exercises of lab 3: static batching with left padding, then slots that are never idle."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from autograder.compare import first, same_counts, same_kind
from autograder.drivers import batching as drivers
from autograder.exercise import Case, Exercise
from autograder.exercises.kv_cache import LAYERS, LOOP, draw, normal, same_value
from autograder.misconceptions import batching as misconceptions
from autograder.services import CountedModel, random_model
from solutions import batching as reference
from solutions.kv_cache import CachedLMHead


def same_seen(got: Any, expected: Any) -> str | None:
    """The first thing that a driver saw otherwise than in the reference."""
    return first(
        *(
            same_list(got["returned"].get(what), value, what)
            if isinstance(value, list)
            else same_value(got["returned"].get(what), value, what)
            for what, value in expected["returned"].items()
        )
    )


def same_list(got: Any, expected: list[Any], what: str) -> str | None:
    if not isinstance(got, list):
        return same_kind(got, expected, what)
    return None if repr(got) == repr(expected) else f"{what}: got {got}, expected {expected}."


def same_seen_and_work(got: Any, expected: Any) -> str | None:
    work = "forward calls", "tokens computed"
    return first(same_seen(got, expected), same_counts(got["model"], expected["model"], *work))


# ------------------------------------------------------------------------------------- pad_left


def random_prompt(generator: torch.Generator, seq: int) -> list[int]:
    return torch.randint(LOOP.vocab_size, (seq,), generator=generator).tolist()


def pad_left_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, lengths: list[int], **pad_id: int) -> Case:
        prompts = [random_prompt(generator, n) for n in lengths]
        return Case(label, {"prompts": prompts, **pad_id})

    return [
        case("one prompt of one token", [1]),
        case("one prompt of three tokens", [3]),
        case("two prompts of one length", [2, 2]),
        case("two prompts, the second one shorter", [3, 1]),
        case("two prompts, the first one shorter", [2, 4], pad_id=7),
        case("four prompts of very different lengths", [2, 9, 1, 5], pad_id=1),
        Case(
            "a pad id that is also a token of the prompts",
            {"prompts": [[5, 8, 5], [5], [8, 5]], "pad_id": 5},
        ),
        Case("prompts that hold token 0", {"prompts": [[0, 3, 0], [4, 0]]}),
    ]


PAD_LEFT = Exercise(
    name="batching.pad_left",
    lab="batching",
    title="A rectangle of prompts",
    points=2,
    difficulty=1,
    minutes=10,
    place="The door of static batching: a model takes tensors, and tensors have no ragged edge.",
    hints=(
        (
            "The rectangle is as wide as the longest prompt. How many pads does a prompt of n "
            "tokens need, and at which column does it begin?"
        ),
        (
            "Begin with a tensor full of `pad_id` and one full of False, then write each prompt, "
            "and True, from column `longest - len(prompt)` to the end of its row. Don't find the "
            "pads by their id: a prompt may hold the same one."
        ),
        (
            "    longest = max(len(prompt) for prompt in prompts)\n"
            "    input_ids = torch.full((len(prompts), longest), pad_id)\n"
            "    attention_mask = torch.zeros(input_ids.shape, dtype=torch.bool)\n"
            "    for row, prompt in enumerate(prompts):\n"
            "        input_ids[row, ...:] = torch.tensor(prompt)\n"
            "        ...                                   # and the mask\n"
            "    return input_ids, attention_mask"
        ),
    ),
    reference=reference.pad_left,
    driver=drivers.pad_left,
    cases=pad_left_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.PAD_LEFT),
)


# ---------------------------------------------------------------- padded_position_ids, padded_mask


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
        case("two prompts, the second one shorter", 3, 2),
        case("two prompts, the first one a single token", 1, 4),
        case("every row has pads", 2, 3, columns=5),
        case("four prompts of very different lengths", *some, columns=10),
    ]


POSITIONS = Exercise(
    name="batching.padded_position_ids",
    lab="batching",
    title="Pads don't count",
    points=1,
    difficulty=1,
    minutes=5,
    place="What keeps padding out of the answer: a token's position is that in its own text.",
    hints=(
        (
            "Write a row of the mask as 0 0 1 1 1, and under it the positions that you want. "
            "Which running sum comes close?"
        ),
        (
            "`attention_mask.cumsum(dim=1)` counts the tokens up to each column: 0 0 1 2 3. "
            "Positions start at 0, one less; that makes the pads -1, which the model refuses."
        ),
        "    return (attention_mask.cumsum(dim=1) - ...).clamp(min=...)",
    ),
    reference=reference.padded_position_ids,
    driver=drivers.padded_position_ids,
    cases=position_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.POSITIONS),
)


def padded_mask_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *lengths: int, columns: int, q_len: int) -> Case:
        return Case(
            label, {"attention_mask": left_padded(*lengths, columns=columns), "q_len": q_len}
        )

    some = [draw(generator, 2, 8) for _ in range(3)]
    return [
        case("one prompt of one token", 1, columns=1, q_len=1),
        case("prefill of one prompt, no pad", 3, columns=3, q_len=3),
        case("prefill of two prompts, the second one shorter", 3, 2, columns=3, q_len=3),
        case("prefill of two prompts, the first one a single token", 1, 4, columns=4, q_len=4),
        case("decode: one column behind two prompts", 4, 2, columns=4, q_len=1),
        case("a chunk of the last two columns", 5, 2, columns=5, q_len=2),
        case("a chunk of four columns, some of them pads", 6, 3, columns=6, q_len=4),
        case("every row has pads", 2, 3, columns=5, q_len=5),
        case("three prompts of different lengths", *some, columns=9, q_len=9),
    ]


def lent_to_the_mask(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"lent": {"padded_position_ids": reference.padded_position_ids}}


MASK = Exercise(
    name="batching.padded_mask",
    lab="batching",
    title="Who may see whom, with pads in between",
    points=2,
    difficulty=2,
    minutes=10,
    place="The rule of lab 2 with half a sentence more. `PaddedCache` hands the mask to attention.",
    hints=(
        (
            "Two conditions hide a key: it stands behind the query, or it is a pad. Which of them "
            "does `causal_mask` from lab 2 know? And which columns ask, if the last q_len do?"
        ),
        (
            "Hand `causal_mask` the positions of the last `q_len` columns as queries and those of "
            "all columns as keys. Then join it to the attention mask with `&`: dimensions for the "
            "heads and the queries make that [batch, 1, 1, k_len]. Take `padded_position_ids` and "
            "not the columns: pads have position 0 there, like the first token, so each pad sees "
            "that one and its softmax has something to share out."
        ),
        (
            "    positions = padded_position_ids(attention_mask)\n"
            "    visible = causal_mask(positions[:, ...], positions)\n"
            "    return visible & attention_mask[:, None, ...]"
        ),
    ),
    reference=reference.padded_mask,
    driver=drivers.padded_mask,
    cases=padded_mask_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.MASK),
    services=lent_to_the_mask,
)


# ------------------------------------------------------------------------------ generate_padded


class CountedCachedModel(CountedModel):
    """With a weight to be asked for its device and its dtype; it is empty."""

    def __init__(self, model: CachedLMHead) -> None:
        super().__init__(model)
        self.transformer = SimpleNamespace(wte=SimpleNamespace(weight=next(self.parameters())))


@cache
def small_model() -> CachedLMHead:
    return random_model(CachedLMHead, LOOP, seed=1)


def model_and_what_it_needs(data: Mapping[str, Any]) -> dict[str, Any]:
    """The model, and right solutions of the three exercises that generate_padded is built on."""
    names = "pad_left", "padded_position_ids", "PaddedCache"
    lent = {name: getattr(reference, name) for name in names}
    return {"model": CountedCachedModel(small_model()), "lent": lent}


Continued = tuple[list[int], list[int]]  # a prompt, and its new ids where nothing stops them


def continued(generator: torch.Generator, seq: int) -> Iterator[Continued]:
    """Random prompts, one after the other."""
    while True:
        prompts = [random_prompt(generator, seq) for _ in range(16)]
        for output in reference.generate_padded(small_model(), prompts, [6] * 16):
            yield output[:seq], output[seq:]


def alone(
    generator: torch.Generator, seq: int, wanted: Callable[[list[int], list[int]], bool]
) -> list[int]:
    """A prompt for which wanted(prompt, new ids) holds."""
    return next(prompt for prompt, new in continued(generator, seq) if wanted(prompt, new))


def one_ends(generator: torch.Generator) -> tuple[list[int], list[int], list[int]]:
    """Two prompts and the new ids of the first: six different ones, of which the second prompt
    makes none of the first three.
    """
    both = zip(continued(generator, 4), continued(generator, 2), strict=True)
    return next(
        (ends, goes_on, new)
        for (ends, new), (goes_on, other) in both
        if len(set(new)) == 6 and not {*new[:3]} & {*other}
    )


def both_end(generator: torch.Generator) -> tuple[list[list[int]], int]:
    """Two prompts, and an id that comes second in the one and fourth in the other."""
    both = zip(continued(generator, 4), continued(generator, 3), strict=True)
    return next(
        ([one, other], new[1])
        for (one, new), (other, others) in both
        if new[1] == others[3] and new[1] not in [new[0], *others[:3]]
    )


def generate_cases(generator: torch.Generator) -> list[Case]:
    def prompts(*lengths: int) -> list[list[int]]:
        return [random_prompt(generator, n) for n in lengths]

    def batch(prompts: list[list[int]], limits: list[int], eos: int | None = None) -> Any:
        return {"prompts": prompts, "max_new_tokens": limits, "eos_token_id": eos}

    def case(label: str, *batches: Any) -> Case:
        return Case(label, {"batches": list(batches)})

    full = LOOP.n_positions
    ends, goes_on, new = one_ends(generator)
    both, eos_of_both = both_end(generator)
    zero = alone(generator, 3, lambda _, new: 0 in new[1:3] and new[0] != 0)
    no_zero = alone(generator, 2, lambda _, new: 0 not in new)
    inside = alone(generator, 4, lambda old, new: old[1] not in new and old[1] != old[-1])
    last = alone(generator, 3, lambda old, new: old[-1] not in new[:2] and old[-1] in new[2:5])
    return [
        case("one prompt, one new token", batch(prompts(1), [1])),
        case("one prompt, three new tokens", batch(prompts(4), [3])),
        case("two prompts of one length", batch(prompts(3, 3), [3, 3])),
        case("two prompts of different lengths", batch(prompts(4, 1), [4, 4])),
        case("three prompts, the last one the longest", batch(prompts(1, 2, 6), [3, 3, 3])),
        case("different limits", batch(prompts(2, 3, 2), [3, 1, 5])),
        case("EOS ends the first row early", batch([ends, goes_on], [6, 6], new[1])),
        case("EOS ends the second row early", batch([goes_on, ends], [6, 6], new[2])),
        case("the first new token of a row is EOS", batch([ends, goes_on], [4, 4], new[0])),
        case("the last token that a row may have is EOS", batch([ends, goes_on], [3, 5], new[2])),
        case("EOS ends both rows early", batch(both, [8, 8], eos_of_both)),
        case("the EOS token's id is 0", batch([zero, no_zero], [6, 5], 0)),
        case("the EOS token stands in a prompt", batch([inside, *prompts(2)], [5, 1], inside[1])),
        case("a prompt ends with the EOS token", batch([*prompts(2), last], [1, 6], last[-1])),
        case(
            "one row fills the context while the other goes on",
            batch(prompts(full - 2, 3), [5, 7]),
        ),
        case("one of the prompts fills the context", batch(prompts(full, 2), [3, 4])),
        case("the only prompt fills the context", batch(prompts(full), [3])),
        case(
            "two batches, one after the other",
            batch(prompts(4, 2), [2, 4]),
            batch(prompts(3, 3, 1), [4, 2, 3]),
        ),
    ]


GENERATE = Exercise(
    name="batching.generate_padded",
    lab="batching",
    title="One loop for all rows",
    points=4,
    difficulty=3,
    minutes=20,
    place="The loop of static batching: it is over when the last row has ended.",
    hints=(
        (
            "Lab 2's loop makes one token a step; now a step makes one for every row. What does "
            "each row have of its own: which end, which ways to reach it, which position? And "
            "when may the whole loop stop?"
        ),
        (
            "Keep for each row its output, how long it may become (`min(len(prompt) + limit, "
            "n_positions)`), and whether it has ended. A step: one forward, argmax of the last "
            "column, append to the rows that have not ended, then see who has. The next input is "
            "the column of new tokens, at positions one further. A row that has ended is computed "
            "along, and its position could leave the context, which the model refuses: clamp it. "
            "Ask whether all have ended before the first forward, too."
        ),
        (
            "    outputs = [list(prompt) for prompt in prompts]\n"
            "    ends = [min(len(prompt) + limit, ...) for prompt, limit in zip(...)]\n"
            "    ended = [len(output) == end for output, end in zip(outputs, ends)]\n"
            "    while not all(ended):\n"
            "        logits = model(input_ids, position_ids, kv_cache)\n"
            "        next_ids = ...\n"
            "        for row, token in enumerate(next_ids.tolist()):\n"
            "            ...                        # append, and has it ended?\n"
            "        input_ids = next_ids[:, None]\n"
            "        position_ids = (position_ids[:, -1:] + 1).clamp(max=...)\n"
            "    return outputs"
        ),
    ),
    reference=reference.generate_padded,
    driver=drivers.generate_padded,
    cases=generate_cases,
    compare=same_seen_and_work,
    misconceptions=tuple(misconceptions.GENERATE),
    services=model_and_what_it_needs,
)


# ---------------------------------------------------------------------------------- utilisation


def utilisation_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *trace: list[int | None]) -> Case:
        return Case(label, {"trace": list(trace)})

    busy = torch.rand(5, 4, generator=generator) < 0.6
    some = [
        [slot if is_busy else None for slot, is_busy in enumerate(row)] for row in busy.tolist()
    ]
    some[0][:3] = [0, 1, None]
    return [
        case("one slot, one step, busy", [1]),
        case("one step, two slots, one of them idle", [1, None]),
        case("two slots, busy in every step", [1, 2], [1, 2], [3, 2]),
        case("request 0", [0, None], [0, 1], [None, 1]),
        case("one slot, idle for a step", [0], [None], [1]),
        case("static batching of two: the short one waits", [0, 1], [0, None], [0, None]),
        case("a step in which nobody is served", [None, 2, 3], [None, None, None]),
        case("four slots, five steps", *some),
    ]


UTILISATION = Exercise(
    name="batching.utilisation",
    lab="batching",
    title="How busy the slots were",
    points=1,
    difficulty=1,
    minutes=5,
    place="The number on which static and continuous batching differ.",
    hints=(
        (
            "The trace is a table: a row for every step, a cell for every slot. Which share of "
            "its cells is filled?"
        ),
        (
            "Go through all cells of all rows and ask of each whether it `is not None`. Don't ask "
            "whether it is true: the first request has number 0. In Python True counts as 1, so "
            "`sum` counts them."
        ),
        "    served = [... for step in trace for request in step]\n    return sum(served) / ...",
    ),
    reference=reference.utilisation,
    driver=drivers.utilisation,
    cases=utilisation_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.UTILISATION),
)


# -------------------------------------------------------------------------------- SlotCache.select


def select_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *steps: tuple[list[int], list[int], int], max_length: int = 12) -> Case:
        """Steps: the length of every slot, the slots selected, and q_len."""
        return Case(
            label,
            {
                "config": asdict(LAYERS),
                "slots": len(steps[0][0]),
                "max_length": max_length,
                "steps": [(torch.tensor(lengths), slots, q) for lengths, slots, q in steps],
            },
        )

    some = [draw(generator, 1, 9) for _ in range(4)]
    return [
        case("one empty slot, one token", ([0], [0], 1)),
        case("one empty slot, a prompt of three tokens", ([0], [0], 3)),
        case("decode: one slot that holds four tokens", ([4], [0], 1)),
        case("the second of two empty slots, a prompt of two", ([0, 0], [1], 2)),
        case("two slots of equal length", ([3, 3], [0, 1], 1)),
        case("two slots, the first one longer", ([5, 2], [0, 1], 1)),
        case("two slots, the second one longer", ([1, 4], [0, 1], 1)),
        case("a newcomer beside slots that hold more", ([6, 0, 3], [1], 2)),
        case("slots 2 and 0 of three, in this order", ([1, 7, 4], [2, 0], 1)),
        case("a chunk of three tokens for each of two slots", ([5, 0, 2], [0, 2], 3)),
        case("the last place of a slot", ([3, 5], [0, 1], 1), max_length=6),
        case("several forwards", (some, [3, 1], 2), (some, [0, 1, 2, 3], 1), (some, [2], 3)),
    ]


SELECT = Exercise(
    name="batching.SlotCache.select",
    lab="batching",
    title="Rows of different lengths, without pads",
    points=3,
    difficulty=3,
    minutes=15,
    place="Before every forward: where do the new tokens of each row go, and what may they see?",
    hints=(
        (
            "Slot 2 holds five tokens and gets two more: at which positions do they stand? Now for "
            "slots 2 and 0 at once, with other lengths. And how many keys must the mask cover?"
        ),
        (
            "A row's new tokens stand at `length`, `length + 1`, ...: add the lengths of the "
            "selected slots, as a column, to `torch.arange(q_len)`, as a row. A slot's keys stand "
            "at 0, 1, 2, ..., so `causal_mask` of lab 2 does it all: what lies beyond a row's "
            "own length comes behind its queries and is hidden with the future. The longest row "
            "has its highest position plus one keys; the mask needs no more columns."
        ),
        (
            "    self.positions = self.lengths[self.slots, None] + ...\n"
            "    k_len = int(self.positions.max()) + ...\n"
            "    key_positions = torch.arange(k_len, device=device).unsqueeze(0)\n"
            "    self.mask = causal_mask(..., key_positions)\n"
            "    return self.positions"
        ),
    ),
    reference=reference.SlotCache,
    driver=drivers.select,
    cases=select_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.SELECT),
)


# -------------------------------------------------------------------------------- SlotCache.attend


def attend_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_layer: int, slots: int, *steps: Any) -> Case:
        """Steps: (slots, q_len), with what a right `select` keeps for it; or ("free", slot)."""
        config = asdict(LAYERS) | {"n_layer": n_layer}
        cache = reference.SlotCache(reference.GPTConfig(**config), slots, 12)
        drawn: list[Any] = []
        for step in steps:
            if step[0] == "free":
                cache.free(step[1])
                drawn.append(step)
                continue
            served, q_len = step
            positions = cache.select(served, q_len)
            cache.lengths[cache.slots] += q_len
            shape = n_layer, len(served), LAYERS.n_head, q_len, LAYERS.head_dim
            projected = (normal(generator, *shape) for _ in range(3))
            drawn.append(("forward", served, positions, cache.mask, *projected))
        data = {"config": config, "slots": slots, "max_length": 12, "steps": drawn}
        return Case(label, data)

    some = [draw(generator, 1, 4) for _ in range(3)]
    return [
        case("one layer, one slot, one token", 1, 1, ([0], 1)),
        case("one layer, one slot, a prompt of three tokens", 1, 1, ([0], 3)),
        case("one layer, the second of two slots, a prompt of three tokens", 1, 2, ([1], 3)),
        case("two layers, a prompt, then one token at a time", 2, 1, ([0], 3), ([0], 1), ([0], 1)),
        case(
            "two slots, prompts of two and four tokens, then both",
            2,
            2,
            ([0], 2),
            ([1], 4),
            ([0, 1], 1),
        ),
        case(
            "three slots, one of them idle",
            2,
            3,
            ([0], 3),
            ([1], 2),
            ([2], 1),
            ([0, 2], 1),
            ([0, 1, 2], 1),
        ),
        case(
            "three slots, 2 before 0", 1, 3, ([0], 2), ([2], 4), ([2, 0], 1), ([2, 0], 1), ([0], 1)
        ),
        case(
            "a slot freed, and given to a shorter prompt",
            2,
            2,
            ([0], 5),
            ([1], 2),
            ("free", 0),
            ([0], 2),
            ([0, 1], 1),
        ),
        case(
            "a slot freed while the others go on",
            3,
            3,
            ([0, 1, 2], 4),
            ("free", 1),
            ([0, 2], 1),
            ([1], 1),
            ([2, 0, 1], 1),
        ),
        case(
            "three layers, chunks of two for slots of different lengths",
            3,
            3,
            ([1], 3),
            ([0], 1),
            ([0, 1], 2),
            ([1, 2], 2),
        ),
        case(
            "four slots, three layers",
            3,
            4,
            ([3], some[0]),
            ([1], some[1]),
            ([1, 3], some[2]),
            ([0, 2], 2),
            ([0, 1, 2, 3], 1),
        ),
    ]


ATTEND = Exercise(
    name="batching.SlotCache.attend",
    lab="batching",
    title="Every row to its own slot",
    points=4,
    difficulty=3,
    minutes=20,
    place="Lab 2's `attend` once more, behind the same model. Now each row has its own place to "
    "write to.",
    hints=(
        (
            "Row r of the keys belongs to slot `slots[r]`, and its tokens at `positions[r]` there. "
            "How do you write to all of them at once? Which slots does attention read, how far, "
            "and who forbids it to see too much?"
        ),
        (
            "Index with two tensors that broadcast to [rows, q_len]: `self.slots[:, None]` and "
            "`self.positions`. With the heads' `:` between them, torch puts the indexed dimensions "
            "first, so the place has shape [rows, q_len, heads, head_dim]: transpose the keys to "
            "match. Assign in one indexing; an index behind an index would write to a copy. Then "
            "attend to rows `self.rows`, as many keys as the mask has columns, with `self.mask`. "
            "When the last layer is served, the lengths of these slots grow by q_len."
        ),
        (
            "    all_keys[self.slots[:, None], :, self.positions] = keys.transpose(1, 2)\n"
            "    ...                                     # the values likewise\n"
            "    if layer == ...:                        # the last one\n"
            "        self.lengths[...] += queries.shape[2]\n"
            "    k_len = self.mask.shape[-1]\n"
            "    return F.scaled_dot_product_attention(\n"
            "        queries,\n"
            "        all_keys[self.rows, :, :k_len],\n"
            "        ...,\n"
            "        attn_mask=...,\n"
            "    )"
        ),
    ),
    reference=reference.SlotCache,
    driver=drivers.attend,
    cases=attend_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.ATTEND),
)


# ------------------------------------------------------------------------ ContinuousBatcher.admit


def admit_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, running: list[int | None], waiting: list[int], *steps: Any) -> Case:
        """Steps that come after a first call of admit."""
        numbers = range(12)
        return Case(
            label,
            {
                "prompt_lengths": [2 + (5 * n + 3) % 7 for n in numbers],
                "running": running,
                "waiting": waiting,
                "steps": [("admit",), *steps],
            },
        )

    ending = draw(generator, 0, 2)
    again = ("admit",)
    return [
        case("one free slot, one request waiting", [None], [0]),
        case("one free slot, nobody waiting", [None], []),
        case("one slot, and it is busy", [0], [1]),
        case("two free slots, one request waiting", [None, None], [0]),
        case("two free slots, three requests waiting", [None, None], [0, 1, 2]),
        case("three slots, the last one busy", [None, None, 0], [1, 2]),
        case("three slots, the first one busy", [0, None, None], [1, 2, 3]),
        case("three slots, the one in the middle busy", [None, 0, None], [1, 2, 3]),
        case("called again, with nothing free", [None, None], [0, 1, 2], again),
        case(
            "requests end one after the other",
            [None, None, None],
            [0, 1, 2, 3, 4, 5],
            ("end", 1),
            again,
            ("end", 0, 3),
            again,
        ),
        case(
            "a request comes when slots have been free for a while",
            [None, None],
            [],
            again,
            ("submit", 4),
            again,
            ("submit", 2, 3),
            again,
            ("end", 4),
            again,
        ),
        case(
            "four slots, requests come and end",
            [0, 1, 2, None],
            [3, 4],
            ("end", ending),
            ("submit", 5, 6),
            again,
            ("end", 3, 4),
            again,
        ),
    ]


ADMIT = Exercise(
    name="batching.ContinuousBatcher.admit",
    lab="batching",
    title="First come, first served",
    points=2,
    difficulty=2,
    minutes=10,
    place="The scheduler in its smallest form: it fills the slots that others have left.",
    hints=(
        (
            "Which two things must be there before a request can be admitted? Who is the next to "
            "be served?"
        ),
        (
            "Walk over the slots with `enumerate(self.running)`. Where a slot is None and somebody "
            "waits, put `self.waiting.popleft()` there, from the left because new ones join on the "
            "right, and note the slot. The others in `running` stay where they are: their keys and "
            "values lie in those slots."
        ),
        (
            "    admitted = []\n"
            "    for slot, request in enumerate(self.running):\n"
            "        if ... and self.waiting:\n"
            "            self.running[slot] = ...\n"
            "            admitted.append(slot)\n"
            "    return admitted"
        ),
    ),
    reference=reference.ContinuousBatcher,
    driver=drivers.admit,
    cases=admit_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.ADMIT),
)


# ------------------------------------------------------------------------- ContinuousBatcher.step

Arrival = tuple[int, list[int], int]  # a request's number, its prompt, and how long it may become


def scheduled(
    arrivals: list[list[Arrival]], slots: int, eos_token_id: int | None
) -> dict[str, Any]:
    """What comes before each step until nobody is left, and what a right `admit` does in it."""
    length = max(end for step in arrivals for _, _, end in step)
    batcher: Any = reference.ContinuousBatcher(small_model(), slots, length, eos_token_id)
    admissions: list[list[tuple[int, int]]] = []

    def admit() -> list[int]:
        admitted = reference.ContinuousBatcher.admit(batcher)
        admissions.append([(slot, batcher.running[slot].number) for slot in admitted])
        return admitted

    batcher.admit, steps = admit, iter(arrivals)
    while len(admissions) < len(arrivals) or batcher.waiting or any(batcher.running):
        arriving = next(steps, [])
        batcher.waiting.extend(reference.Request(n, list(ids), end) for n, ids, end in arriving)
        batcher.step()
    return {
        "slots": slots,
        "max_length": length,
        "eos_token_id": eos_token_id,
        "arrivals": arrivals + [[]] * (len(admissions) - len(arrivals)),
        "admissions": admissions,
    }


def step_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, slots: int, *arriving: list[tuple[list[int], int]], eos: int | None = None
    ) -> Case:
        """Arriving before each step: (prompt, how many new tokens)."""
        numbers = count()
        arrivals = [
            [(next(numbers), ids, min(len(ids) + limit, LOOP.n_positions)) for ids, limit in step]
            for step in arriving
        ]
        return Case(label, scheduled(arrivals, slots, eos))

    def request(seq: int, limit: int) -> tuple[list[int], int]:
        return random_prompt(generator, seq), limit

    full = LOOP.n_positions
    ends, goes_on, new = one_ends(generator)
    zero = alone(generator, 3, lambda _, new: 0 in new[1:3] and new[0] != 0)
    no_zero = alone(generator, 2, lambda _, new: 0 not in new)
    inside = alone(generator, 4, lambda old, new: old[1] not in new and old[1] != old[-1])
    some_lengths = [draw(generator, 1, 5) for _ in range(4)]
    return [
        case("one slot, one new token", 1, [request(1, 1)]),
        case("one slot, three new tokens", 1, [request(2, 3)]),
        case("one slot, two requests", 1, [request(3, 2), request(2, 2)]),
        case("two slots, two requests of one length", 2, [request(2, 2), request(2, 2)]),
        case("two slots, two prompts of different lengths", 2, [request(4, 2), request(1, 3)]),
        case("two slots, three requests", 2, [request(2, 2), request(2, 4), request(4, 2)]),
        case(
            "three slots, all end in the same step",
            3,
            [request(2, 2), request(3, 2), request(1, 2), request(2, 1)],
        ),
        case(
            "a request with one new token beside others",
            2,
            [request(3, 3), request(2, 1), request(2, 2)],
        ),
        case(
            "two newcomers beside a request that runs",
            3,
            [request(2, 5)],
            [],
            [request(1, 2), request(3, 2)],
        ),
        case("EOS ends one of two", 2, [(ends, 6), (goes_on, 4), request(3, 2)], eos=new[1]),
        case(
            "the first new token is EOS", 2, [(goes_on, 3), (ends, 4)], [request(2, 2)], eos=new[0]
        ),
        case("the EOS token's id is 0", 2, [(zero, 5), (no_zero, 4)], eos=0),
        case("the EOS token stands in a prompt", 1, [(inside, 3)], eos=inside[1]),
        case("one request fills the context", 2, [request(full - 2, 5), request(3, 4)]),
        case(
            "seven requests for three slots",
            3,
            [
                request(some_lengths[0], 3),
                request(2, 5),
                request(some_lengths[1], 1),
                request(4, 2),
            ],
            [],
            [request(some_lengths[2], 4), request(1, 3), request(some_lengths[3], 2)],
        ),
    ]


def model_and_cache(data: Mapping[str, Any]) -> dict[str, Any]:
    size = data["slots"], data["max_length"]
    return {
        "model": CountedCachedModel(small_model()),
        "kv_cache": reference.SlotCache(LOOP, *size, dtype=torch.float64),
    }


STEP = Exercise(
    name="batching.ContinuousBatcher.step",
    lab="batching",
    title="One iteration",
    points=4,
    difficulty=3,
    minutes=20,
    place="The heart of a server: it repeats this as long as there is anybody to serve.",
    hints=(
        (
            "Two kinds of requests get a token in a step, and they cannot share a forward: one "
            "kind has a whole prompt to compute, the other one token. How do you tell them apart, "
            "and when must you note who is who?"
        ),
        (
            "Note the slots that are busy before you call `admit`, or newcomers look like the "
            "others. Then a `self.forward([slot])` for each newcomer, and one `self.forward(...)` "
            "for all the others together, unless there are none. Write the trace while everybody "
            "who was served still has a slot: number or None, a new list. Then `retire` each slot "
            "whose request `has_ended`."
        ),
        (
            "    veterans = [slot for slot, request in enumerate(self.running) if request]\n"
            "    for slot in self.admit():\n"
            "        ...\n"
            "    if veterans:\n"
            "        ...\n"
            "    self.trace.append([... for request in self.running])\n"
            "    for slot, request in enumerate(self.running):\n"
            "        if request and ...:\n"
            "            self.retire(slot)"
        ),
    ),
    reference=reference.ContinuousBatcher,
    driver=drivers.step,
    cases=step_cases,
    compare=same_seen_and_work,
    misconceptions=tuple(misconceptions.STEP),
    services=model_and_cache,
)


EXERCISES = (
    PAD_LEFT,
    POSITIONS,
    MASK,
    GENERATE,
    UTILISATION,
    SELECT,
    ATTEND,
    ADMIT,
    STEP,
)
