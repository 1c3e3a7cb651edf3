"""Drivers of lab 23: adapters of one matrix, rows of many adapters, slots, salts, and a queue."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of, kind_or_none
from autograder.attempt.records import Attempt, Seen, as_it_was, one_call, parts, things

RESULT = "What it returned"


class LowRank(NamedTuple):
    """As the notebook's own."""

    a: Float[Tensor, "n_in rank"]
    b: Float[Tensor, "rank n_out"]
    alpha: float


class Chunk(NamedTuple):
    """As the engine's own, whose `shape` is a property."""

    request: int
    ids: list[int]
    start: int
    wanted: int
    shape: tuple[int, int]


def chunk_of(request: int, ids: list[int], start: int, wanted: int) -> Chunk:
    return Chunk(request, list(ids), start, wanted, (len(ids), start + len(ids)))


# ------------------------------------------------------------------------------------ one matrix


def delta(
    attempt: Attempt, hidden: Float[Tensor, "rows n_in"], added: tuple[Any, ...]
) -> list[Seen]:
    one = LowRank(*added)
    thin = 2 * len(hidden) * (one.a.numel() + one.b.numel())
    with FlopCounterMode(display=False) as counter:
        found = attempt(hidden, one)
    return [Seen(RESULT, found), work(counter, thin)]


def work(counter: FlopCounterMode, thin: int) -> Seen:
    """Whether products took more than those of each row with its own two thin matrices."""
    flops = counter.get_total_flops()
    state = "are those of thin matrices" if flops <= thin else f"take {flops:,} FLOPs, not {thin:,}"
    return Seen("The matrix products", state)


def merged(
    attempt: Attempt,
    weight: Float[Tensor, "n_in n_out"],
    added: tuple[Any, ...],
    **sign: int,
) -> list[Seen]:
    """A case without `sign` needs the attempt's default."""
    found = attempt(weight, LowRank(*added), **sign)
    is_new = "is the weight that it was given" if found is weight else "is a tensor of its own"
    return [Seen(RESULT, is_new), Seen("The merged weight", found)]


# ------------------------------------------------------------------------------- many in one batch


def stacked(attempt: Attempt, adapters: list[tuple[Any, ...]]) -> list[Seen]:
    given = [LowRank(*adapter) for adapter in adapters]
    before = list(map(id, given))
    seen = parts(attempt(given), "stacked returns all A and all B", "`all_a`", "`all_b`")
    return [*seen, as_it_was("`adapters`", list(map(id, given)), before)]


def adapter_rows(
    attempt: Attempt, batch: list[dict[str, Any]], adapter_of: dict[int, int]
) -> list[Seen]:
    chunks = [chunk_of(**chunk) for chunk in batch]
    found = attempt(chunks, adapter_of)
    if not isinstance(found, Tensor):
        return [Seen(RESULT, f"is {kind_or_none(found)}")]
    return [
        Seen(RESULT, "is a tensor"),
        Seen("The list of numbers", found.tolist()),
        Seen("The dtype", f"is {found.dtype}"),
        as_it_was("`batch`", chunks, [chunk_of(**chunk) for chunk in batch]),
    ]


def gathered(
    attempt: Attempt, hidden: Tensor, all_a: Tensor, all_b: Tensor, numbers: Tensor
) -> list[Seen]:
    thin = 2 * len(hidden) * (all_a[0].numel() + all_b[0].numel())
    with FlopCounterMode(display=False) as counter:
        found = attempt(hidden, all_a, all_b, numbers)
    return [Seen(RESULT, found), work(counter, thin)]


def in_segments(
    attempt: Attempt,
    hidden: Tensor,
    all_a: Tensor,
    all_b: Tensor,
    numbers: Tensor,
    counted: bool = True,
) -> list[Seen]:
    """counted: whether it is given a product that counts; otherwise it needs its default."""
    rows = list[int]()

    def product(left: Any, right: Any) -> Any:
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            raise TypeError(f"product takes two tensors, not {kind_of(left)} and {kind_of(right)}.")
        rows.append(len(left))
        return left @ right

    lent = {"product": sealed(product)} if counted else {}
    found = attempt(hidden, all_a, all_b, numbers, **lent)
    return [
        Seen(RESULT, found),
        Seen("The number of calls of `product`", len(rows)),
        Seen("The number of rows in all calls of `product`", sum(rows)),
    ]


# ------------------------------------------------------------------------------------------ slots

Slots = list[tuple[str, int]]  # of each adapter, the one that was used longest ago first


def cache_of(
    attempt: type, size: int, slots: Slots, users: dict[str, int], broken: Sequence[str] = ()
) -> tuple[Any, list[str]]:
    """Return a cache in this state, and the list that it writes into what it loads."""
    log = list[str]()

    def load(adapter: Any, slot: Any) -> None:
        log.append(f"{adapter} into {slot}")
        if adapter in broken:
            raise OSError(f"There is no file of {adapter}.")

    cache = attempt(size, sealed(load))
    cache.slots, cache.users = OrderedDict(slots), dict(users)
    return cache, log


def books(cache: Any, where: str) -> list[Seen]:
    """An adapter that isn't there may keep a count of 0 users."""
    slots, users = cache.slots, cache.users
    there = {name: count for name, count in users.items() if count or name in slots}
    order = list(slots) if isinstance(slots, OrderedDict) else f"are {kind_of(slots)}"
    return [
        Seen("The slots", dict(slots), where),
        Seen("The order of `slots`", order, where),
        Seen("`users`", dict(sorted(there.items())), where),
    ]


def take(attempt: type, steps: list[tuple[str, str]], **state: Any) -> list[Seen]:
    """What is released between, is released by hand."""
    cache, log = cache_of(attempt, **state)
    seen = list[Seen]()
    for number, (what, name) in enumerate(steps, 1):
        where = f"after step {number}, {what} {name!r}"
        if what == "release":
            cache.users[name] -= 1
            cache.slots.move_to_end(name)
            continue
        log.clear()
        seen += taken(cache, name, where)
        seen.append(Seen("The list of what was loaded", list(log), where))
        seen += books(cache, where)
    return seen


def taken(cache: Any, name: str, where: str) -> list[Seen]:
    """What `take` returned, or which of two errors it raised, by the error's name."""
    try:
        slot = cache.take(name)
    except Exception as error:
        if {"NoSlot", "OSError"} & {kind.__name__ for kind in type(error).__mro__}:
            return [Seen("`take`", f"raised {type(error).__name__}", where)]
        raise
    return [Seen("`take`", "returned something", where), Seen("The slot", slot, where)]


def release(attempt: type, steps: list[str], **state: Any) -> list[Seen]:
    cache, log = cache_of(attempt, **state)
    seen = list[Seen]()
    for number, name in enumerate(steps, 1):
        cache.release(name)
        seen += books(cache, f"after step {number}, release {name!r}")
    return [*seen, Seen("The list of what was loaded", log)]


# ---------------------------------------------------------------------------------- whose blocks


def salted(attempt: Attempt, owners: list[tuple[str | int, str | None, int]]) -> list[Seen]:
    """Each salt is shown as a number, in the order in which new ones come.

    A request's own salt is a text, or the result for an owner before, which a client may know.
    """
    found, numbers = list[Any](), dict[Any, int]()
    for salt, adapter, version in owners:
        own = found[salt] if isinstance(salt, int) else salt.encode()
        found.append(attempt(own, adapter, version))
        if not isinstance(found[-1], bytes):
            return [Seen(RESULT, f"is {kind_or_none(found[-1])}")]
    listed = [numbers.setdefault(salt, len(numbers)) for salt in found]
    again = [attempt(salt.encode(), *of) for salt, *of in owners if isinstance(salt, str)]
    once_more = "are the same" if again == found[: len(again)] else "are others"
    return [
        Seen(RESULT, "is bytes"),
        Seen("The list of salts, numbered as new ones come,", f"is {listed}"),
        Seen("The salts of a second round", once_more),
    ]


# -------------------------------------------------------------------------- the next, and its name


next_request = one_call(__name__, "next_request", RESULT, "waiting running passed most patience")


def served(attempt: Attempt, models: list[str], base: str, versions: dict[str, int]) -> list[Seen]:
    names = [base, *(f"{base}:{adapter}" for adapter in versions)]
    seen = list[Seen]()
    for model in models:
        where = f"for {model!r}"
        try:
            found = attempt(model, base, dict(versions))
        except LookupError as error:
            missing = [name for name in names if name not in str(error)]
            told = f"doesn't name {missing[0]!r}" if missing else "names all models"
            seen += [Seen("It", "raised a LookupError", where), Seen("The error", told, where)]
        else:
            seen += [Seen("It", "returned something", where)]
            adapter, version = things(2, found, "served returns an adapter and a version")
            seen += [Seen("The adapter", adapter, where), Seen("The version", version, where)]
    return seen
