"""The exercises of lab 9: chunks, stall-free scheduling, gaps, keys and values sent, leases."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.drivers import disaggregation as drivers
from autograder.attempt.drivers.disaggregation import VOCAB, logits_at
from autograder.judging.draws import draw, normal, prompt_ids, steps_in
from autograder.judging.exercise import Case, Exercise, Lends, Service, in_float32, no_services
from autograder.lending.cached import lend_cached_model
from autograder.lending.lent import Lent
from course.lab07_engine.cases import AT_ONCE, FIRST_RUNS, ROOM_FOR_TWO, SMALL, TWO_AND_ONE, Queue
from solutions.disaggregation import unpack_kv

Request = dict[str, Any]

# ----------------------------------------------------------------------------- a prompt in chunks


def prefill_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, seq: int, chunk: int, batch: int = 1) -> Case:
        ids, next_ids = (prompt_ids(generator, length, batch) for length in (seq, 1))
        return Case(label, {"ids": ids, "chunk": chunk, "next_ids": next_ids})

    return [
        case("one token, chunks of one", 1, 1),
        case("one token, chunks of four", 1, 4),
        case("three tokens, one by one", 3, 1),
        case("four tokens, chunks of two", 4, 2),
        case("five tokens, chunks of two", 5, 2),
        case("two prompts of six tokens, chunks of three", 6, 3, batch=2),
        case("a prompt as long as a chunk", 4, 4),
        case("a prompt one token longer than a chunk", 5, 4),
        case("a prompt one token shorter than a chunk", 3, 4),
        case("a chunk much longer than the prompt", 3, 100),
        case("three prompts, the last chunk shorter", 7, 2, batch=3),
        case("a long prompt", draw(generator, 10, 14), draw(generator, 2, 4)),
    ]


# ------------------------------------------------------------------------------------ the schedule


def schedule_cases(generator: torch.Generator) -> list[Case]:
    queue = Queue(generator)
    case, some = queue.case, list(queue.some(7, longest=12, latest=6))
    first_runs = [case(*about) for about in FIRST_RUNS]
    between = "started 2/6, decodes 5, started 4/12, decodes 3"
    two_and_one, behind = "started 3/7|3/8, decodes 2", "started 2/9, decodes 5|3|4"
    long_and_short = "started 2/9|4/6, decodes 2"
    newcomer = "started 5/8, decodes 4, waits 6, waits 5"
    too_many = "started 2/9, decodes 6 drafts=2, decodes 5 drafts=2, decodes 4, waits 3"
    none_needed, late = "decodes 4, started 4/8, waits 2", "started 2/8, decodes 5+9"
    three = "decodes 5 drafts=3, started 1/3, decodes 2"
    later = "waits 1 comes=2 k=1, waits 1 k=1"
    return [
        *first_runs,
        case("a started prompt, and an adopted request after it", 4, "started 2/9, decodes 5"),
        case("one decodes before a started prompt", 4, "decodes 5, started 2/9", steps=3),
        case("started prompts between decodes", 6, between, steps=4),
        case("two started prompts, and room for the rest of both", 8, "started 3/6, started 4/7"),
        case("two started prompts, and room for one of them", 4, two_and_one, steps=3),
        case("two started prompts, the second one nearly computed", 4, long_and_short, steps=2),
        case("a started prompt takes all that is left", 4, "started 2/9, waits 3", steps=3),
        case("a started prompt leaves room for a new one", 8, "started 4/7, waits 9", steps=2),
        case("a new request after decodes and a started prompt", 9, newcomer, steps=3),
        case("two prompts wait, and share the budget", 8, "waits 6, waits 5", steps=3),
        case("a prompt as long as the budget, and one after it", 4, "waits 4, waits 3", steps=2),
        case("a prompt that just fits after a decode", 5, "decodes 3, waits 4, waits 2"),
        case("the decodes use up the budget", 2, "decodes 5, decodes 3, waits 4", steps=2),
        case("more decodes than the budget has tokens", 2, "decodes 5|3|4"),
        case("more decodes than tokens, after a started prompt", 2, behind, steps=2),
        case("a budget of one token", 1, "waits 2+2, waits 3+2", steps=8),
        case("as many are running as allowed", 16, "waits 3+2|2+2|4+2", steps=3, max_running=2),
        case("drafts that just fit", 4, "started 2/8, decodes 5 drafts=2"),
        case("drafts that don't fit the rest of the budget", 5, too_many, steps=2),
        case("drafts after a prompt", 6, "waits 4+9 k=2 gains=1+3, waits 7", steps=4),
        case("a prompt of which only the last token is left", 8, "started 1/6, started 4/5"),
        case("a prompt of one token, and a started one", 3, "started 2/9, waits 1", steps=3),
        case("no block is free, and none is needed", 8, none_needed, num_blocks=3),
        case("a decode finds no block", 8, "decodes 5, started 1/4, waits 1", 3, num_blocks=2),
        case("an adopted request finds no block", 4, late, 3, num_blocks=3),
        case("the only one finds no block for its drafts", 8, "decodes 4 drafts=2", num_blocks=1),
        case("two requests are preempted for one", 8, three, steps=2, num_blocks=5, block_size=2),
        case(AT_ONCE, 8, TWO_AND_ONE, steps=3, **ROOM_FOR_TWO),
        case("recompute in chunks, with decodes", 4, "decodes 9+6|8+6|6+6", 9, num_blocks=6),
        case("blocks of one token", 8, "waits 4+3|3+3|2+3", num_blocks=11, block_size=1, steps=9),
        case("seven requests, a small pool, drafts", 6, some, 16, **SMALL),
        case("request 1 runs before request 0, too few tokens for both", 3, later, steps=3),
    ]


# ----------------------------------------------------------------------------------------- the gaps


def gap_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *trace: str, request: int = 0) -> Case:
        """In a step, "0+3" is a chunk of three tokens after which request 0 gains a token; "1:4" is
        a chunk of four tokens, and request 1 gains none."""
        steps = [[served(*re.split("([+:])", word)) for word in step.split()] for step in trace]
        return Case(label, {"trace": steps, "request": request})

    def served(request: str, sign: str, tokens: str) -> tuple[int, int, bool]:
        return int(request), int(tokens), sign == "+"

    def some_step() -> str:
        requests = torch.randperm(4, generator=generator)[: draw(generator, 0, 4)].tolist()
        chunks = [(r, draw(generator, 1, 9), draw(generator, 0, 2)) for r in requests]
        return " ".join(f"{request}{'+' if gains else ':'}{n}" for request, n, gains in chunks)

    some = [some_step() for _ in range(20)]
    return [
        case("one token", "0+5"),
        case("two tokens, no other request", "0+5", "0+1"),
        case("three tokens, no other request", "0+5", "0+1", "0+1"),
        case("a prompt in chunks", "0:4", "0:4", "0+2", "0+1"),
        case("a long prompt in the same step", "0+3", "0+1 1+9", "0+1"),
        case("a long prompt in chunks, in the same steps", "0+3", "0+1 1:4", "0+1 1:4", "0+1"),
        case("steps of others between its tokens", "0+3", "1+9", "0+1"),
        case("a step in which it is served and gains nothing", "0+3", "0+1", "0:2 1+1", "1+1 0+2"),
        case("others come before it", "1+8", "1+1 0+3", "0+1"),
        case("others go on after it", "0+3 1+2", "0+1", "1+1"),
        case("a step that serves no request", "0+3", "", "0+1", ""),
        case("tokens are verified several at a time", "0+3", "0+4", "0+2"),
        case("the second of two requests", "4+6 7+3", "4+1", "4+1 7+1", "7+1", request=7),
        case("a request that never gains a token", "1+4 0:2", "1+1"),
        case("a request that isn't there", "1+4", "1+1"),
        case("no step at all"),
        case("1,500 steps, in each of which it gains a token", *["0+1"] * 1500),
        case("twenty steps, four requests", *some, request=draw(generator, 0, 3)),
        case("the same for another", *some, request=3),
    ]


# ---------------------------------------------------------------------------- keys and values sent

LAYERS, HEADS, HEAD_DIM = 3, 2, 5


def a_pool(
    generator: torch.Generator, blocks: int, block_size: int
) -> Float[Tensor, "2 layers blocks block_size heads head_dim"]:
    """A pool with numbers in every slot."""
    return normal(generator, 2, LAYERS, blocks, block_size, HEADS, HEAD_DIM)


def pack_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, table: list[int], start: int, end: int, blocks: int = 7
    ) -> Case:
        own = {"table": table, "start": start, "end": end}
        return Case(label, {"pool": a_pool(generator, blocks, block_size), **own})

    some = torch.randperm(7, generator=generator)[:4].tolist()
    start = draw(generator, 1, 4)
    return [
        case("one token, blocks of one", 1, [3], 0, 1),
        case("one token, blocks of four", 4, [2], 0, 1),
        case("three tokens of one block", 4, [2], 0, 3),
        case("a full block", 4, [5], 0, 4),
        case("two blocks, the last one partly filled", 4, [5, 2], 0, 7),
        case("consecutive blocks", 4, [2, 3, 4], 0, 12),
        case("consecutive blocks, the last one partly filled", 4, [1, 2, 3], 0, 9),
        case("the whole pool, in order", 2, [0, 1, 2], 0, 6, blocks=3),
        case("from the middle of a block", 4, [4, 0, 6], 3, 10),
        case("from the beginning of a block", 4, [4, 0, 6], 4, 12),
        case("a stretch within a block", 4, [4, 1], 5, 7),
        case("no token", 4, [4, 1], 5, 5),
        case("no token, from the first one on", 3, [4], 0, 0),
        case("blocks that lie backwards", 2, [6, 4, 2, 1], 0, 8),
        case("blocks of one token", 1, [6, 2, 5, 0], 1, 4),
        case("more blocks than the tokens take", 3, [5, 1, 4, 0], 0, 4),
        case("four blocks of three", 3, some, start, start + draw(generator, 4, 8)),
        in_float32(case("four tokens", 2, [3, 1], 1, 4)),
    ]


def unpack_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, table: list[int], start: int, tokens: int, blocks: int = 7
    ) -> Case:
        pool = a_pool(generator, blocks, block_size)
        kv = normal(generator, 2, LAYERS, tokens, HEADS, HEAD_DIM)
        return Case(label, {"pool": pool, "table": table, "start": start, "kv": kv})

    some = torch.randperm(7, generator=generator)[:4].tolist()
    return [
        case("one token, blocks of one", 1, [3], 0, 1),
        case("one token, blocks of four", 4, [2], 0, 1),
        case("three tokens of one block", 4, [2], 0, 3),
        case("a full block", 4, [5], 0, 4),
        case("two blocks, the last one partly filled", 4, [5, 2], 0, 7),
        case("consecutive blocks", 4, [2, 3, 4], 0, 12),
        case("from the middle of a block", 4, [4, 0, 6], 3, 7),
        case("from the beginning of a block", 4, [4, 0, 6], 4, 8),
        case("from the beginning of a block, as many tokens as fill one", 4, [6, 1], 4, 4),
        case("a stretch within a block", 4, [4, 1], 5, 2),
        case("no token", 4, [4, 1], 5, 0),
        case("blocks that lie backwards", 2, [6, 4, 2, 1], 0, 8),
        case("blocks of one token", 1, [6, 2, 5, 0], 1, 3),
        case("more blocks than the tokens take", 3, [5, 1, 4, 0], 0, 4),
        case("blocks of sixteen", 16, [2, 0], 12, 9, blocks=3),
        case("four blocks of three", 3, some, draw(generator, 1, 4), draw(generator, 4, 8)),
    ]


# ---------------------------------------------------------------------------------------- adopting


class Writer(Lent):
    """Stands for unpack_kv if the pool is on the other side: returns the pool as it should be."""

    lends = Lends(call={"written"})

    def written(self, pool: Tensor, table: list[int], start: int, kv: Tensor) -> Tensor:
        after = pool.clone()
        unpack_kv(after, table, start, kv)
        return after


def lend_writer(data: Mapping[str, Any]) -> dict[str, Service]:
    return {"writer": Writer()}


def adopt_cases(generator: torch.Generator) -> list[Case]:
    salt = draw(generator, 0, 10**6)

    def case(
        label: str, *requests: Request, blocks: int = 8, block_size: int = 4, **more: int
    ) -> Case:
        limits = {"steps": 4, "token_budget": 8, "max_running": 4} | more
        pool = a_pool(generator, blocks, block_size)
        return Case(label, {"pool": pool, "requests": list(requests), **limits, "salt": salt})

    def here(length: int, new: int, comes: int = 1) -> Request:
        """A request that is prefilled here."""
        prompt = torch.randint(VOCAB, (length,), generator=generator).tolist()
        return {"comes": comes, "prompt": prompt, "first_token": None, "end": length + new}

    def sent(length: int, new: int, start: int = 0, **about: Any) -> Request:
        """A request that is adopted; `start` of its tokens have been sent before."""
        first_token = draw(generator, 0, VOCAB - 1)
        kv = normal(generator, 2, LAYERS, length - start, HEADS, HEAD_DIM)
        usual = {"eos_token_id": None, "params": None, "seed": 0, "drawn": 1}
        own = {"first_token": first_token, "start": start, "kv": kv, **usual, **about}
        return {**here(length, new), **own}

    def ending(length: int, new: int, at: int, **about: Any) -> Request:
        """A request whose new token number `at`, counted from 0, is EOS."""
        request = sent(length, new, **about)
        token = request["first_token"]
        for place in range(length, length + at):
            token = int(logits_at(place, token, salt).argmax())
        return {**request, "eos_token_id": token}

    seed = draw(generator, 0, 10**4)
    drawn: dict[str, Any] = {"params": {"temperature": 1.0, "top_k": 20}, "seed": seed}
    return [
        case("a prompt of one token, two new tokens", sent(1, 2)),
        case("three new tokens", sent(5, 3)),
        case("a prompt that fills its block", sent(4, 3)),
        case("a prompt one token longer than a block", sent(5, 2)),
        case("a prompt one token shorter than a block", sent(3, 3)),
        case("blocks of one token", sent(3, 3), block_size=1),
        case("its beginning has arrived before", sent(7, 3, start=4)),
        case("all but one token have arrived before", sent(6, 2, start=5)),
        case("all of it has arrived before", sent(6, 2, start=6)),
        case("the only new token is the first one", sent(5, 1)),
        case("the first new token is EOS", ending(5, 4, at=0)),
        case("the first new token is EOS, another request goes on", ending(5, 4, at=0), sent(3, 3)),
        case("EOS comes a step later", ending(5, 4, at=1)),
        case("the only new token is the first, another request goes on", sent(5, 1), sent(3, 3)),
        case("tokens are sampled", sent(4, 4, **drawn), steps=5),
        case("tokens are sampled, after several draws", sent(4, 4, drawn=3, **drawn), steps=5),
        case("two are adopted in one step", sent(5, 3), sent(2, 4)),
        case("one is adopted after the other", sent(5, 4), sent(6, 3, start=3, comes=3), steps=5),
        case("together with one that is prefilled here", here(6, 4), sent(5, 3, comes=2), steps=5),
        case("one is submitted, another is adopted", here(3, 3, comes=2), sent(5, 3, comes=2)),
        case(
            "together with a prompt in chunks",
            *[here(11, 2), sent(5, 4, comes=2), sent(3, 2, comes=3)],
            steps=6,
            token_budget=4,
        ),
        case(
            "as many are running as allowed, and one waits",
            *[sent(4, 2), sent(6, 3), here(3, 2)],
            steps=6,
            max_running=2,
        ),
        case("one is preempted", sent(4, 5), sent(4, 5), steps=9, blocks=3),
    ]


# ------------------------------------------------------------------------------------------ leases


def due_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, events: str, seconds: float = 10.0) -> Case:
        """ "hold 3 1.5" is a lease for request 3 from 1.5 s on; "due 2 3 4" is a call at 2 s, with
        requests 3 and 4 confirmed."""
        made = [event(*step) for step in steps_in(events)]
        return Case(label, {"seconds": seconds, "events": made})

    def event(what: str, first: float, *rest: Any) -> tuple[Any, ...]:
        if what == "hold":
            return what, first, *map(float, rest or [0])
        return what, float(first), list(rest)

    others, longer = "hold 5|2, hold 9 1, due 12 9, due 13 5", "hold 1, hold 6 5, due 10 6, due 30"
    order = torch.randperm(12, generator=generator).tolist()
    held = [f"hold {request} {second}" for second, request in enumerate(order)]
    first, second = order[3:5], [*order[:2], order[8], order[3], 40]
    early, late = (" ".join(map(str, numbers)) for numbers in (first, second))
    twelve = [*held[:6], f"due 6 {early}", *held[6:], f"due 12 {late}", "due 14|18|30"]
    return [
        case("no request has a lease", "due 5"),
        case("nothing happens yet", "hold 0, due 5"),
        case("one is confirmed", "hold 0, due 5 0, due 6"),
        case("one lease ends", "hold 0, due 10.5|11"),
        case("a call at the very end of a lease", "hold 0, due 10"),
        case("a call just before the end of a lease", "hold 0, due 9.5|10"),
        case("a lease that begins later", "hold 0 7, due 10|16.5|17.5"),
        case("several calls about one lease", "hold 0, due 4|8|12"),
        case("a confirmation comes twice", "hold 3, due 2 3, due 3 3, due 20"),
        case("a confirmation comes twice at once", "hold 3|4, due 2 3 3, due 4 4"),
        case("a confirmation comes too late", "hold 3, due 11, due 12 3, due 13"),
        case("a confirmation comes just when the lease ends", "hold 3, due 12 3, due 13"),
        case("a confirmation for a request without a lease", "hold 3, due 2 8, due 3 3"),
        case("a new lease after a confirmation", "hold 3, due 2 3, hold 3 4, due 13|14"),
        case(
            "a new lease after the first has ended", "hold 3, due 12, hold 3 15, due 16 3, due 30"
        ),
        case("two, and one of them is confirmed", "hold 0|1, due 2 1, due 12"),
        case("two, and one lease ends", "hold 0, hold 1 4, due 11|13|14"),
        case("two, and both leases end", "hold 7|2, due 12|13"),
        case("three, confirmed in another order", "hold 5|2|9, due 3 9 5 2, due 20"),
        case("one is confirmed and the leases of others end", others),
        case("one is confirmed early, and the lease of another ends", longer),
        case("request 0 and others", "hold 1|0, due 4 0 1, due 15 1 0"),
        case("a lease that is held later", "hold 4, due 10, hold 6 11, due 20|21"),
        case("short leases", "hold 4, hold 6 0.25, due 0.5, due 0.75 4", seconds=0.5),
        case("twelve requests", ", ".join(twelve)),
    ]


with_model = partial(Exercise, services=lend_cached_model)
with_writer = partial(Exercise, services=lend_writer, in_bundle=no_services)

EXERCISES = (
    with_model("disaggregation.prefill_in_chunks", drivers.prefill_in_chunks, prefill_cases),
    Exercise("disaggregation.StallFree.schedule", drivers.schedule, schedule_cases),
    Exercise("disaggregation.token_gaps", drivers.token_gaps, gap_cases),
    Exercise("disaggregation.pack_kv", drivers.pack_kv, pack_cases, whole=("pool",)),
    Exercise("disaggregation.unpack_kv", drivers.unpack_kv, unpack_cases, whole=("kv", "pool")),
    with_writer("disaggregation.adopt", drivers.adopt, adopt_cases, whole=("kv", "pool")),
    Exercise("disaggregation.Leases.due", drivers.due, due_cases),
)
