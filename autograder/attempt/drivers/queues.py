"""Shared by drivers of several labs: a scheduler that runs without a model, plan by plan."""

from collections import deque
from collections.abc import Iterator, Mapping
from inspect import unwrap
from typing import Any

from autograder.attempt.lent import sealed
from autograder.attempt.plain import Strange, in_numbers, kind_of
from autograder.attempt.records import Seen
from solutions.engine.managers import EngineManager
from solutions.engine.sequence import Sequence
from solutions.paged_attention import OutOfBlocks

Requests = list[dict[str, Any]]
MOST_SHOWN = 2000  # characters


def numbered(requests: Any) -> Any:
    """The numbers of requests, in a list or a deque as they are."""
    if not isinstance(requests, (list, deque)):
        return requests
    return [r.number if isinstance(r, Sequence) else kind_of(r) for r in requests]


def by_number(sequences: list[Sequence], where: str) -> Iterator[Seen]:
    """The books of each request."""
    for name in ("num_computed_tokens", "ids", "drafts"):
        values = {sequence.number: getattr(sequence, name) for sequence in sequences}
        yield Seen(f"`{name}`, by request,", shown(values), where)


def outgoing(outputs: list[Any], where: str) -> Seen:
    by_request: dict[int, list[Any]] = {}
    for output in outputs:
        by_request.setdefault(output.request, []).append([output.new_ids, output.finish_reason])
    return Seen("What goes out, by request,", shown(by_request), where)


def shown(value: Any) -> Any:
    """A value as the end of a sentence; a dict sorted by its keys, whatever its own order."""
    value = in_numbers(value)
    if value is None or isinstance(value, Strange):
        return value
    if isinstance(value, dict):
        value = dict(sorted(value.items(), key=lambda item: (str(type(item[0])), item[0])))
    return f"is {str(value)[:MOST_SHOWN]}"


# ------------------------------------------------------------------------------------- the queue


def pool_of(
    raises: type[Exception], found: list[int], num_blocks: int, block_size: int
) -> EngineManager:
    """Return lab 4's manager, for an engine. raises: the OutOfBlocks that the attempt catches.

    found: how many tokens of each request the cache already holds when it is admitted.
    """
    manager: Any = EngineManager(num_blocks, block_size)
    own_admit, own_require_free = manager.admit, manager.require_free

    def admit(request: int, *tokens: Any) -> int:
        own_admit(request, *tokens)
        return found[request]

    def require_free(needed: int) -> None:
        try:
            own_require_free(needed)
        except OutOfBlocks as error:
            raise raises(*error.args) from None

    manager.admit, manager.require_free = sealed(admit), sealed(require_free)
    return manager


def schedule(
    attempt: Any, requests: Requests, steps: int, token_budget: int, max_running: int, **pool: int
) -> list[Seen]:
    """Run several steps without a model: after each, the requests are as an engine would have them.

    A request has ids, an `end`, and the number of the step in which it `comes`. A request that runs
    from the start has a number of tokens `computed`, and `drafts`; for one that waits, the cache
    may hold so many tokens already that are `found`. Whenever all its tokens are
    computed it gains as many tokens as the next number in `gains`, and up to `k` new drafts.
    """
    names = getattr(unwrap(attempt.make_room), "__globals__", {})
    found = [request.get("found", 0) for request in requests]
    manager = pool_of(names.get("OutOfBlocks", OutOfBlocks), found, **pool)
    scheduler = attempt(manager, token_budget, max_running)
    sequences = [
        Sequence(number, list(request["ids"]), request["end"])
        for number, request in enumerate(requests)
    ]
    for sequence, request in zip(sequences, requests, strict=True):
        if request["computed"] is not None:
            run_from_the_start(scheduler, sequence, request)
    turns = [0] * len(requests)
    seen: list[Seen] = []
    for step in range(1, steps + 1):
        coming = [s for s, request in zip(sequences, requests, strict=True) if due(request, step)]
        scheduler.waiting.extend(coming)
        plan = scheduler.schedule()
        seen += scheduled(scheduler, plan, sequences, f"of step {step}", f"after step {step}")
        if not is_plan(plan, len(requests)):
            break
        for number, count in plan.items():
            catch_up(scheduler, sequences[number], count, requests[number], turns)
    return seen


def due(request: dict[str, Any], step: int) -> bool:
    return request["computed"] is None and request["comes"] == step


def run_from_the_start(scheduler: Any, sequence: Sequence, request: dict[str, Any]) -> None:
    """In decode the newest token has no slot yet; a prompt already has all of its blocks."""
    decodes = request["computed"] == len(sequence.ids) - 1
    scheduler.manager.admit(sequence.number, sequence.ids[: -1 if decodes else None])
    scheduler.running.append(sequence)
    sequence.num_computed_tokens = request["computed"]
    sequence.drafts = list(request["drafts"])


def is_plan(plan: Any, requests: int) -> bool:
    """Whether a plan can be followed, right or wrong."""
    return isinstance(plan, Mapping) and all(
        isinstance(part, int) and not isinstance(part, bool) and 0 <= part < most
        for pair in plan.items()
        for part, most in zip(pair, (requests, 10_000), strict=True)
    )


def scheduled(
    scheduler: Any, plan: Any, sequences: list[Sequence], of: str, after: str
) -> Iterator[Seen]:
    yield Seen("The plan", shown(plan), of)
    yield Seen("`running`, by number,", shown(numbered(scheduler.running)), after)
    yield Seen("`waiting`, by number,", shown(numbered(scheduler.waiting)), after)
    yield Seen("`preemptions`", scheduler.preemptions, after)
    blocks = {request: len(table) for request, table in scheduler.manager.tables.items()}
    yield Seen("The number of blocks, by request,", shown(blocks), after)
    yield from by_number(sequences, after)
    limits = [scheduler.token_budget, scheduler.max_running]
    yield Seen("`token_budget` and `max_running`", shown(limits), after)


def catch_up(
    scheduler: Any, sequence: Sequence, count: int, request: dict[str, Any], turns: list[int]
) -> None:
    """Do to a scheduled request what the other parts of a step would do."""
    sequence.num_computed_tokens += count
    if not sequence.has_caught_up or sequence.has_ended:
        return
    gains = request["gains"]
    gain = min(gains[turns[sequence.number] % len(gains)], len(sequence.drafts) + 1)
    turns[sequence.number] += 1
    sequence.extend([100 + len(sequence.ids) + new for new in range(gain)])
    if sequence.has_ended:
        if sequence in scheduler.running or sequence in scheduler.waiting:
            scheduler.retire(sequence)
    else:
        room = sequence.end - len(sequence.ids) - 1
        sequence.drafts = [200 + draft for draft in range(min(request["k"], room))]
