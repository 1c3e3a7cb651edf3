"""Drivers of lab 21: a profile, parts of a kernel in their Python form, and shares of its work.

No threads run here. The attempt is one thread, and the driver plays the others, in a given order.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from autograder.attempt.around import lending, notebook_of
from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of, kind_or_none
from autograder.attempt.records import Attempt, Seen, as_it_was, one_call, things
from solutions.compiler import python_of

Array = Num[np.ndarray, "..."]
f32 = np.float32
OVER, SHARES, LINE = -1, 8, 16  # as the notebook's own
MOST_STEPS = 120  # of one call to take_share, before a wait counts as endless
FAR_BELOW = -1000.0  # where wrong exponents depend on how a whole number overflows
ROWS_AT_ONCE = 4  # of weights that a processor's cache keeps

# ---------------------------------------------------------------------------------- two forms


def call(attempt: Attempt, *given: Any, **lent: Any) -> Any:
    """Call the Python form of an attempt, in which its notebook's functions have theirs, too.

    lent: what it finds in place of other exercises, by name. Overflows show in the result, without
    a warning.
    """
    names = notebook_of(attempt).items()
    functions = {name: python_of(value) for name, value in names if python_of(value) is not value}
    functions |= {name: sealed(function) for name, function in lent.items()}
    with lending(attempt, functions), np.errstate(all="ignore"):
        return python_of(attempt)(*given)


def numbers_of(array: Any) -> Any:
    """Return an array as a tensor of its own memory."""
    return torch.from_numpy(array.copy()) if isinstance(array, np.ndarray) else array


def unwritten(*shape: int) -> Array:
    return np.full(shape, np.nan, np.float32)


BEFORE = 7.0  # what an output holds: a number, so that adding to it isn't the same as leaving it


def output(length: int) -> Array:
    return np.full(length, BEFORE, np.float32)


def written(out: Array) -> list[Seen]:
    """Return whether an output was written, and its numbers."""
    left = (out == BEFORE).nonzero()[0].tolist()
    state = "are written"
    if len(left) == len(out):
        state = "are as before the call (`out = …` and `return …` write nothing into `out`)"
    elif left:
        state = f"aren't all written: [{left[0]}] is as before the call"
    return [Seen("The numbers of `out`", state), Seen("`out`", numbers_of(out))]


# --------------------------------------------------------------------- lent in place of exercises


def right_normalize(x: Array, norm: Array, eps: float, out: Array) -> None:
    wide = x.astype(np.float64)
    out[:] = (wide - wide.mean()) / np.sqrt(wide.var() + eps) * norm[0] + norm[1]


def right_multiply(
    x: Array, weight: Array, scale: Array, bias: Array, first: int, last: int, out: Array,
    added: bool,
) -> None:  # fmt: skip
    """Its sums have the bits of a loop: they are added up one after the other."""
    if last <= first:
        return
    w = np.stack([weight[j] for j in range(first, last)]).astype(f32)
    found = np.cumsum(np.asarray(x)[:, None] * w, axis=2, dtype=f32)[..., -1]
    found = found * scale[first:last] + bias[first:last]
    out[:, first:last] = out[:, first:last] + found if added else found


def right_exponentiate(x: Array, whole: Array) -> None:
    x[:] = np.exp(np.maximum(x, f32(-87.3)))


def right_gelu(x: Array, exps: Array, whole: Array) -> None:
    x[:] = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def right_softmax(scores: Array, whole: Array) -> None:
    wide = np.exp(scores.astype(np.float64) - scores.max())
    scores[:] = wide / wide.sum()


def right_cut(n: int, share: int) -> int:
    return n if share == SHARES else n // LINE * share // SHARES * LINE


FUNCTIONS = {"exponentiate": right_exponentiate, "gelu": right_gelu, "softmax": right_softmax}
PARTS = {
    "normalize": right_normalize,
    "multiply": right_multiply,
    "multiply4": right_multiply,
    "cut": right_cut,
    **FUNCTIONS,
}

# ------------------------------------------------------------------------------ where a step goes


def self_times(attempt: Attempt, events: list[tuple[str, float, float]]) -> list[Seen]:
    times, outside = things(2, attempt(events), "self_times returns a dict and a number")
    if not isinstance(times, Mapping):
        return [Seen("The first thing returned", f"is {kind_or_none(times)}")]
    seen = [Seen("The first thing returned", "is a dict")]
    seen.append(Seen("The list of names", sorted(map(str, times))))
    for name, both in times.items():
        calls, own = things(2, both, f"self_times has calls and microseconds for {name!r}")
        seen += [Seen(f"The calls of {name!r}", calls), Seen(f"The microseconds of {name!r}", own)]
    return [*seen, Seen("The time outside of all operations", outside)]


class Machine(NamedTuple):
    """As the notebook's own."""

    bytes_per_second: float
    flops: float
    seconds_per_call: float


def floor_ms(
    attempt: Attempt, bytes_read: float, flops: float, calls: int, machine: Sequence[float]
) -> list[Seen]:
    return [Seen("What it returned", attempt(bytes_read, flops, calls, Machine(*machine)))]


# ------------------------------------------------------------------------------ parts of the kernel


def normalize(
    attempt: Attempt, x: Float[Tensor, " n"], norm: Float[Tensor, "2 n"], eps: float
) -> list[Seen]:
    out = output(len(x))
    call(attempt, x.numpy(), norm.numpy(), f32(eps), out)
    return written(out)


class Fetched:
    """Counts how often a row of weights comes that isn't one of the last few."""

    def __init__(self, weight: Array) -> None:
        self.count, self.last = 0, list[int]()

        def get(array: Any, place: Any) -> Any:
            if array.ndim == 2:
                first = place[0] if isinstance(place, tuple) else place
                for row in np.atleast_1d(np.arange(len(array))[first]).tolist():
                    self.note(row)
            return np.asarray(np.ndarray.__getitem__(array, place))

        kind: Any = type("Weights", (np.ndarray,), {"__getitem__": sealed(get)})
        self.weight = weight.view(kind)

    def note(self, row: int) -> None:
        if row not in self.last:
            self.count += 1
            self.last = [*self.last, row][-ROWS_AT_ONCE:]


def multiply(
    attempt: Attempt,
    x: Float[Tensor, "rows n_in"],
    weight: Num[Tensor, "n_out n_in"],
    scale: Float[Tensor, " n_out"],
    bias: Float[Tensor, " n_out"],
    first: int,
    last: int,
    out: Float[Tensor, "rows n_out"],
    added: bool,
    **lent: Any,
) -> list[Seen]:
    """out: what is there before. Then each row is computed alone, which must give the same bits."""
    rows, rest = x.numpy(), (scale.numpy(), bias.numpy(), first, last)
    fetched, found = Fetched(weight.numpy()), out.numpy().copy()
    call(attempt, rows, fetched.weight, *rest, found, added, **lent)
    count, seen = fetched.count, [Seen("`out`", numbers_of(found))]
    often = f"are fetched {count} times for {last - first} of them"
    enough = count <= last - first
    seen.append(Seen("The rows of weights", "are fetched once for all rows" if enough else often))
    for r in range(len(rows)) if len(rows) > 1 else ():
        alone = out.numpy()[r : r + 1].copy()
        call(attempt, rows[r : r + 1], weight.numpy(), *rest, alone, added, **lent)
        same = np.array_equal(alone[0], found[r], equal_nan=True)
        bits = "are those of the row alone" if same else "aren't those of the row alone"
        seen.append(Seen("The bits", bits, f"of row {r}"))
    return seen


def multiply4(attempt: Attempt, **case: Any) -> list[Seen]:
    """The same, and the bits of `multiply`."""
    given = list[int]()

    def noted(*args: Any) -> None:
        given.append(args[5] - args[4])
        right_multiply(*args)

    seen = multiply(attempt, **case, multiply=noted)
    few = (
        "gets three outputs at most" if max(given, default=0) < 4 else f"gets {max(given)} outputs"
    )
    seen.append(Seen("`multiply`", few))
    arrays: dict[str, Any] = {n: v.numpy() if isinstance(v, Tensor) else v for n, v in case.items()}
    out = arrays.pop("out").copy()
    right_multiply(**arrays, out=out)
    same = torch.equal(seen[0].value, torch.from_numpy(out))
    return [*seen, Seen("The bits", "are those of `multiply`" if same else "are others", "in all")]


def exponentiate(attempt: Attempt, x: Float[Tensor, " n"]) -> list[Seen]:
    """What is near enough to a power of e is seen as that power."""
    numbers, whole = x.numpy().copy(), unwritten(len(x)).view(np.int32)
    call(attempt, numbers, whole)
    seen = []
    for power, found in zip(x.tolist(), map(float, numbers), strict=True):
        where, is_near = f"for x = {power:g}", near(power, found)
        if power < FAR_BELOW:
            seen.append(Seen("The result", "is nearly 0" if is_near else "isn't nearly 0", where))
            continue
        seen.append(Seen("The result", np.exp(power) if is_near else found, where))
        off = "are right" if is_near else "are off by more than a few millionths"
        seen.append(Seen("The digits of the result", off, where))
    return seen


def near(power: float, found: float) -> bool:
    """Below the smallest float32, anything from 0 up to it is right."""
    if power < -87.3:
        return 0 <= found < 1.3e-38
    right = float(np.exp(power))
    return abs(found - right) <= (1e-6 + 2e-7 * abs(power)) * right


def attend(
    attempt: Attempt,
    query: Float[Tensor, " head_dim"],
    keys: Float[Tensor, "blocks block_size n"],
    values: Float[Tensor, "blocks block_size n"],
    table: list[int],
    start: int,
    length: int,
) -> list[Seen]:
    out, scores, whole = output(len(query)), unwritten(length), np.full(length, 7, np.int32)
    blocks, stop = np.array(table, np.int64), start + len(query)
    memory = query.numpy(), keys.numpy(), values.numpy(), blocks, start, stop
    call(attempt, *memory, scores, whole, out, **FUNCTIONS)
    return written(out)


# ---------------------------------------------------------------------------------- the threads


def take_share(
    attempt: Attempt, phase: int, shares: int, taken: int, done: int, between: list[str], calls: int
) -> list[Seen]:
    """One thread takes shares until it has been told that all are done, or `calls` times.

    taken, done: of this phase, by other threads, before. between: what another thread does each
    time before this one takes a share or looks at a counter: "take", "finish", both, or nothing.
    """
    counters = np.full((2, phase + 2), 5, np.int64)
    counters[:, phase] = taken, done
    script, expected, steps, rests = list(between), counters.copy(), list[str](), list[int]()

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) > MOST_STEPS:
            raise RuntimeError("The thread waits without end.")

    def others_act() -> None:
        what = script.pop(0) if script else "finish"
        if "take" in what and counters[0, phase] < shares:
            counters[0, phase] += 1
            expected[0, phase] += 1
            taken_by_others.append(int(counters[0, phase]) - 1)
        if "finish" in what and finished_by_others[0] < len(taken_by_others):
            finished_by_others[0] += 1
            counters[1, phase] += 1
            expected[1, phase] += 1

    taken_by_others, finished_by_others = list(range(taken)), [done]

    def add(array: Array, value: int) -> int:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"add takes a slice of one counter, not {kind_of(array)}.")
        place = (array.__array_interface__["data"][0] - counters.ctypes.data) // 8
        step("take" if place < counters.shape[1] else "count" if value else "look")
        if steps[-1] != "count":  # it may come before the next share is taken, or after
            others_act()
        before = int(array[0])
        array[0] += value
        expected.flat[place] += value
        return before

    def rest(count: int) -> None:
        if steps[-1:] != ["look"]:  # it looks without `add`
            others_act()
        step("rest")
        rests.append(int(count))

    share, seen, got = OVER, list[Seen](), list[int]()
    for number in range(1, calls + 1):
        steps.clear()
        rests.clear()
        share = call(attempt, counters, phase, shares, share, add=add, rest=rest)
        seen.append(Seen("The share", share, f"of call {number}"))
        if share == OVER:
            is_over = counters[1, phase] >= shares
            over = "are done" if is_over else "aren't all done"
            seen.append(Seen("When it returns OVER, the shares", over, f"in call {number}"))
            seen.append(Seen("`rest`", told_by(rests, steps.count("look")), f"in call {number}"))
            break
        got.append(share)
    both = sorted(set(got) & set(taken_by_others))
    twice = f"got share {both[0]}, which another thread has" if both else "got shares of its own"
    others_changed = (np.delete(counters, phase, axis=1) != 5).any()
    by_add = "is made by `add`" if np.array_equal(counters, expected) else "is made without `add`"
    return [
        *seen,
        Seen("This thread", twice),
        Seen("A change of the counters", by_add),
        Seen("The number of shares taken", int(counters[0, phase]), "afterwards"),
        Seen("The number of shares done", int(counters[1, phase]), "afterwards"),
        Seen("The counters of other phases", "are changed" if others_changed else "are as before"),
    ]


def told_by(rests: list[int], looks: int) -> str:
    """Whether there is a rest between any two looks, with the number of looks until then."""
    if len(rests) < looks - 1:
        return f"is called {len(rests)} times for {looks} looks"
    first = rests[0] if rests else 1
    grows = first in (0, 1) and rests == list(range(first, first + len(rests)))
    return "is told the number of looks, each time" if grows else f"is told {rests}"


class Others:
    """The other threads of an MLP. Which of its shares they take, and when these are done.

    early: shares that are done as soon as they are taken, of each phase. late: those that are done
    only when the attempt waits for them.
    """

    def __init__(self, phase: int, early: list[list[int]], late: list[list[int]]) -> None:
        self.phase, self.early, self.late = phase, early, list(late)
        self.work: list[Callable[[int], None]] = []
        self.next, self.given = [0, 0], [list[int](), list[int]()]
        self.counted: list[list[int]] = [[], []]

    def take_share(self, counters: Array, phase: int, shares: int, before: int) -> int:
        if phase - self.phase not in (0, 1):
            ours = f"{self.phase} and {self.phase + 1}"
            raise ValueError(f"There is no phase {phase} in this MLP; its phases are {ours}.")
        if shares != SHARES:
            raise ValueError(f"A linear layer has {SHARES} shares, not {shares}.")
        at = phase - self.phase
        if before != OVER:
            self.counted[at].append(int(before))
        while self.next[at] < SHARES:
            share = self.next[at]
            self.next[at] += 1
            if share in self.early[at]:
                self.work[at](share)
            elif share not in self.late[at]:
                self.given[at].append(share)
                while self.next[at] in self.early[at]:  # others are quick
                    self.work[at](self.next[at])
                    self.next[at] += 1
                return share
        if missing := sorted(set(self.given[at]) - set(self.counted[at])):
            raise RuntimeError(f"All threads wait without end: share {missing[0]} isn't counted.")
        for share in self.late[at]:
            self.work[at](share)
        self.late[at] = []
        return OVER


class Layer(NamedTuple):
    """As the notebook's own."""

    weight: Any
    scale: Any
    bias: Any


def mlp(
    attempt: Attempt,
    phase: int,
    hidden: Float[Tensor, "rows n"],
    norm: Float[Tensor, "2 n"],
    eps: float,
    c_fc: list[Tensor],
    c_proj: list[Tensor],
    early: list[list[int]],
    late: list[list[int]],
) -> list[Seen]:
    """What a thread must not read before it is written is NaN."""
    state, gains = hidden.numpy().copy(), norm.numpy()
    wide_layer, narrow = (Layer(*(part.numpy() for part in layer)) for layer in (c_fc, c_proj))
    rows, n_inner = len(state), len(wide_layer.weight)
    wide, normed = unwritten(rows, n_inner), np.full(state.shape, 7, np.float32)
    others = Others(phase, early, late)
    theirs = np.empty_like(state)
    for r in range(rows):
        right_normalize(state[r], gains, eps, theirs[r])

    def first(share: int) -> None:
        low, high = right_cut(n_inner, share), right_cut(n_inner, share + 1)
        right_multiply(theirs, *wide_layer, low, high, wide, False)
        right_gelu(wide[:, low:high], wide, wide)

    def second(share: int) -> None:
        low, high = right_cut(state.shape[1], share), right_cut(state.shape[1], share + 1)
        right_multiply(wide, *narrow, low, high, state, True)

    others.work = [first, second]
    computed = list[int]()

    def noted(*args: Any) -> None:
        computed.append(args[5] - args[4])
        right_multiply(*args)

    parts = {**PARTS, "take_share": others.take_share, "multiply": noted, "multiply4": noted}
    counters, exps = np.zeros((2, phase + 2), np.int64), unwritten(n_inner)
    whole, given = np.full(n_inner, 7, np.int32), (gains, f32(eps), wide_layer, narrow)
    call(attempt, counters, phase, state, *given, normed, wide, exps, whole, **parts)
    return [
        Seen("`wide`", numbers_of(wide)),
        Seen("`hidden`", numbers_of(state)),
        Seen("The number of outputs that were computed", sum(computed)),
        *(
            Seen("The list of shares that were counted", counted, f"in phase {phase + at}")
            for at, counted in enumerate(others.counted)
        ),
    ]


# ---------------------------------------------------------------------------- under lab 7's engine


class Chunk(NamedTuple):
    """As the engine's own."""

    request: int
    ids: list[int]
    start: int
    wanted: int


def rows_of(
    attempt: Attempt, batch: list[dict[str, Any]], tables: dict[int, list[int]]
) -> list[Seen]:
    chunks = [Chunk(**chunk) for chunk in batch]
    found = attempt(chunks, tables)
    ids, positions, blocks, wanted = things(4, found, "rows_of returns four things")
    parts = {"The ids": ids, "The positions": positions, "The tables": blocks}
    seen = [
        Seen(name, numbers_of(np.asarray(part)) if isinstance(part, list) else numbers_of(part))
        for name, part in parts.items()
    ]
    if not isinstance(wanted, Mapping):
        return [*seen, Seen("The wanted rows", f"are {kind_or_none(wanted)}")]
    seen.append(Seen("The wanted rows", "are a dict"))
    seen.append(Seen("The list of requests", sorted(wanted)))
    for request, rows in wanted.items():
        listed = [int(row) for row in rows] if hasattr(rows, "__iter__") else rows
        seen.append(Seen("The list of wanted rows", listed, f"of request {request}"))
    return [*seen, as_it_was("`batch`", chunks, [Chunk(**chunk) for chunk in batch])]


most_rows = one_call(__name__, "most_rows", "What it returned", "sizes kernel usual")
