"""Lab 21: profile, predict, fuse. A whole step of the engine as one compiled function.

The parts of the kernel run in two forms: compiled by numba, or as Python where numba isn't
installed. Arrays are NumPy's, of float32 unless said. A function writes into what it is handed: it
makes no arrays of its own.

Sources: Williams et al., "Roofline", CACM 2009 (a time from bytes and operations); Schraudolph,
"A fast, compact approximation of the exponential function", Neural Computation 1999 (powers of two
by their bits); Spector et al., "Look ma, no bubbles", Hazy Research 2025 (a step as one kernel);
Kruskal and Weiss, "Allocating independent subtasks on parallel processors", IEEE TSE 1985 (work
that is taken share by share).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int8, Int32, Int64

from solutions.compiler import add, compiled, rest

f32, i32 = np.float32, np.int32
Event = tuple[str, float, float]  # name, start and end in microseconds
OVER = -1  # in place of a share: all are done
SHARES = 8  # of a linear layer
LINE = 16  # numbers in a line of the processor's cache, so that two threads write no line together

# ------------------------------------------------------------------------------ where a step goes


def self_times(events: Sequence[Event]) -> tuple[dict[str, list[float]], float]:
    """Return what each operation costs by itself, and the time outside of all operations.

    events: of one thread, in any order. An operation that another one calls lies within it; of two
    with the same start, the longer one is the caller. One that begins where another ends isn't
    called by it. Returns, for each name, its number of calls and its microseconds without those of
    the operations that it calls itself; and the microseconds between the first start and the last
    end in which no operation runs.
    """
    ### BEGIN SOLUTION
    times: dict[str, list[float]] = {}
    running: list[Event] = []
    outside, latest = 0.0, min(start for _, start, _ in events)
    for event in sorted(events, key=lambda event: (event[1], -event[2])):
        name, start, end = event
        while running and running[-1][2] <= start:
            running.pop()
        if running:
            times[running[-1][0]][1] -= end - start
        else:
            outside += max(0.0, start - latest)
        latest = max(latest, end)
        calls = times.setdefault(name, [0, 0.0])
        calls[0] += 1
        calls[1] += end - start
        running.append(event)
    return times, outside
    ### END SOLUTION


class Machine(NamedTuple):
    """bytes_per_second: read from memory. flops: floating-point operations per second.

    seconds_per_call: from one operation's call to the next one's, however small they are.
    """

    bytes_per_second: float
    flops: float
    seconds_per_call: float


def floor_ms(bytes_read: float, flops: float, calls: int, machine: Machine) -> float:
    """Return the milliseconds that a step can't fall below.

    Reading and computing happen at the same time, so the longer one counts. Calling doesn't: on a
    CPU the thread that computes makes the calls, too.
    """
    ### BEGIN SOLUTION
    busy = max(bytes_read / machine.bytes_per_second, flops / machine.flops)
    return 1000 * (busy + calls * machine.seconds_per_call)
    ### END SOLUTION


# ------------------------------------------------------------------------------ parts of the kernel


@compiled
def normalize(
    x: Float32[np.ndarray, " n"],
    norm: Float32[np.ndarray, "2 n"],
    eps: float,
    out: Float32[np.ndarray, " n"],
) -> None:
    """LayerNorm of one vector: (x - mean) / sqrt(variance + eps) * gain + bias.

    norm: [2, n], gain and bias. The variance is around the mean, over n. All of `out` is written.
    """
    ### BEGIN SOLUTION
    n = f32(len(x))
    total, square = f32(0), f32(0)
    for i in range(len(x)):
        total += x[i]
    mean = total / n
    for i in range(len(x)):
        square += (x[i] - mean) * (x[i] - mean)
    factor = f32(1) / np.sqrt(square / n + eps)
    for i in range(len(x)):
        out[i] = (x[i] - mean) * factor * norm[0, i] + norm[1, i]
    ### END SOLUTION


@compiled
def multiply(
    x: Float32[np.ndarray, "rows n_in"],
    weight: Float32[np.ndarray, "n_out n_in"] | Int8[np.ndarray, "n_out n_in"],
    scale: Float32[np.ndarray, " n_out"],
    bias: Float32[np.ndarray, " n_out"],
    first: int,
    last: int,
    out: Float32[np.ndarray, "rows n_out"],
    added: bool,
) -> None:
    """out[r, j] = (sum of x[r, i] * weight[j, i] over i) * scale[j] + bias[j], first <= j < last.

    It is added to what is there if `added`. x: [rows, n_in]; weight: [n_out, n_in], float32 or
    codes of 8 bits. Each row of weights is read once for all rows, and a row's sum is the same to
    the last bit, however many rows there are.
    """
    ### BEGIN SOLUTION
    for j in range(first, last):
        w = weight[j]
        for r in range(len(x)):
            row, total = x[r], f32(0)
            for i in range(len(w)):
                total += row[i] * f32(w[i])
            total = total * scale[j] + bias[j]
            out[r, j] = out[r, j] + total if added else total
    ### END SOLUTION


@compiled
def multiply4(
    x: Float32[np.ndarray, "rows n_in"],
    weight: Float32[np.ndarray, "n_out n_in"] | Int8[np.ndarray, "n_out n_in"],
    scale: Float32[np.ndarray, " n_out"],
    bias: Float32[np.ndarray, " n_out"],
    first: int,
    last: int,
    out: Float32[np.ndarray, "rows n_out"],
    added: bool,
) -> None:
    """What `multiply` does, to the last bit, four rows of weights at a time."""
    ### BEGIN SOLUTION
    whole = first + (last - first) // 4 * 4
    for j in range(first, whole, 4):
        a, b, c, d = weight[j], weight[j + 1], weight[j + 2], weight[j + 3]
        for r in range(len(x)):
            row, p, q, s, t = x[r], f32(0), f32(0), f32(0), f32(0)
            for i in range(len(row)):
                p += row[i] * f32(a[i])
                q += row[i] * f32(b[i])
                s += row[i] * f32(c[i])
                t += row[i] * f32(d[i])
            for k, total in enumerate((p, q, s, t)):
                total = total * scale[j + k] + bias[j + k]
                out[r, j + k] = out[r, j + k] + total if added else total
    multiply(x, weight, scale, bias, whole, last, out, added)
    ### END SOLUTION


@compiled
def exponentiate(x: Float32[np.ndarray, " n"], whole: Int32[np.ndarray, " n"]) -> None:
    """x = e ** x in place, by arithmetic alone. whole: int32 memory of the same length.

    e ** x is 2 ** t with t = x * log2(e). Its whole part n, the nearest whole number, becomes the
    exponent of a float32: the bits (n + 127) << 23 are 2 ** n. The rest is a polynomial. Below
    t = -126 there is no such float32, so t isn't smaller.
    """
    powers = whole.view(np.float32)
    for i in range(len(x)):
        ### BEGIN SOLUTION
        t = max(x[i] * f32(1.44269504), f32(-126))
        n = np.floor(t + f32(0.5))
        whole[i] = (i32(n) + i32(127)) << i32(23)
        f = (t - n) * f32(0.69314718)
        ### END SOLUTION
        high = f32(1 / 24) + f * (f32(1 / 120) + f * f32(1 / 720))
        x[i] = f32(1) + f * (f32(1) + f * (f32(0.5) + f * (f32(1 / 6) + f * high)))
    for i in range(len(x)):
        x[i] *= powers[i]


@compiled
def gelu(
    x: Float32[np.ndarray, " n"],
    exps: Float32[np.ndarray, " n"],
    whole: Int32[np.ndarray, " n"],
) -> None:
    """GELU in place, by its approximation with tanh, which is one exponential."""
    for i in range(len(x)):
        v = x[i]
        exps[i] = min(f32(-1.59576912) * (v + f32(0.044715) * v * v * v), f32(80))
    exponentiate(exps, whole)
    for i in range(len(x)):
        x[i] /= f32(1) + exps[i]


@compiled
def softmax(scores: Float32[np.ndarray, " n"], whole: Int32[np.ndarray, " n"]) -> None:
    """Scores become weights with the sum 1, in place."""
    top, total = scores[0], f32(0)
    for i in range(len(scores)):
        top = max(top, scores[i])
    for i in range(len(scores)):
        scores[i] -= top
    exponentiate(scores, whole)
    for i in range(len(scores)):
        total += scores[i]
    for i in range(len(scores)):
        scores[i] /= total


@compiled
def attend(
    query: Float32[np.ndarray, " head_dim"],
    keys: Float32[np.ndarray, "blocks block_size n"],
    values: Float32[np.ndarray, "blocks block_size n"],
    table: Int64[np.ndarray, " width"],
    start: int,
    stop: int,
    scores: Float32[np.ndarray, " length"],
    whole: Int32[np.ndarray, " length"],
    out: Float32[np.ndarray, " head_dim"],
) -> None:
    """One head of one row over the text's len(scores) tokens, in the blocks of its table.

    keys, values: [blocks, block_size, n]; the head's columns are start to stop. Reads no slot after
    the last token, and no block that isn't in the table.
    """
    ### BEGIN SOLUTION
    size, length = keys.shape[1], len(scores)
    scale = f32(1) / np.sqrt(f32(stop - start))
    for first in range(0, length, size):
        block = keys[table[first // size]]
        for place in range(min(size, length - first)):
            key, score = block[place, start:stop], f32(0)
            for i in range(len(key)):
                score += query[i] * key[i]
            scores[first + place] = score * scale
    softmax(scores, whole)
    out[:] = 0
    for first in range(0, length, size):
        block = values[table[first // size]]
        for place in range(min(size, length - first)):
            value, share = block[place, start:stop], scores[first + place]
            for i in range(len(value)):
                out[i] += share * value[i]
    ### END SOLUTION


# ------------------------------------------------------------------------------------ the threads


@compiled
def take_share(
    counters: Int64[np.ndarray, "2 phases"], phase: int, shares: int, before: int
) -> int:
    """Count the share `before` as done, unless it is OVER, and return the next one.

    counters: how many shares of each phase have been taken, and how many are done. If none is left
    to take, wait until all are done, by any threads, and return OVER.
    """
    taken, done = counters[0, phase : phase + 1], counters[1, phase : phase + 1]
    ### BEGIN SOLUTION
    if before != OVER:
        add(done, 1)
    share = add(taken, 1)
    if share < shares:
        return share
    looks = 0
    while add(done, 0) < shares:
        looks += 1
        rest(looks)
    return OVER
    ### END SOLUTION


@compiled
def cut(n: int, share: int, line: int = LINE) -> int:
    """Return where a share of n outputs begins; share SHARES begins at their end.

    line: outputs that aren't divided.
    """
    return n if share == SHARES else n // line * share // SHARES * line


class Layer(NamedTuple):
    """A linear layer, as `multiply` takes it."""

    weight: Float32[np.ndarray, "n_out n_in"] | Int8[np.ndarray, "n_out n_in"]
    scale: Float32[np.ndarray, " n_out"]
    bias: Float32[np.ndarray, " n_out"]


@compiled
def mlp(
    counters: Int64[np.ndarray, "2 phases"],
    phase: int,
    hidden: Float32[np.ndarray, "rows n"],
    norm: Float32[np.ndarray, "2 n"],
    eps: float,
    c_fc: Layer,
    c_proj: Layer,
    normed: Float32[np.ndarray, "rows n"],
    wide: Float32[np.ndarray, "rows n_inner"],
    exps: Float32[np.ndarray, " n_inner"],
    whole: Int32[np.ndarray, " n_inner"],
) -> None:
    """Do this thread's work of an MLP, which adds to `hidden`, in the phases `phase` and the next.

    Both phases have SHARES shares. hidden and wide belong to all threads together; normed, exps and
    whole are this thread's own. When this returns, all of the MLP is done.
    """
    ### BEGIN SOLUTION
    for r in range(len(hidden)):
        normalize(hidden[r], norm, eps, normed[r])
    share = take_share(counters, phase, SHARES, OVER)
    while share != OVER:
        low, high = cut(wide.shape[1], share), cut(wide.shape[1], share + 1)
        multiply4(normed, c_fc.weight, c_fc.scale, c_fc.bias, low, high, wide, False)
        for r in range(len(hidden)):
            gelu(wide[r, low:high], exps[low:high], whole[low:high])
        share = take_share(counters, phase, SHARES, share)
    share = take_share(counters, phase + 1, SHARES, OVER)
    while share != OVER:
        low, high = cut(hidden.shape[1], share), cut(hidden.shape[1], share + 1)
        multiply4(wide, c_proj.weight, c_proj.scale, c_proj.bias, low, high, hidden, True)
        share = take_share(counters, phase + 1, SHARES, share)
    ### END SOLUTION


# ---------------------------------------------------------------------------- under lab 7's engine


def rows_of(batch: Sequence[Any], tables: dict[int, list[int]]) -> Any:
    """Return the rows of a step, one for each new token.

    Ids, positions, tables [rows, width] padded with 0, and for each request, by its number, the
    rows after which its logits are wanted.
    """
    ### BEGIN SOLUTION
    ids = np.array([token for chunk in batch for token in chunk.ids])
    positions = np.array([chunk.start + i for chunk in batch for i in range(len(chunk.ids))])
    width = max(len(tables[chunk.request]) for chunk in batch)
    blocks, wanted, end = np.zeros((len(ids), width), np.int64), {}, 0
    for chunk in batch:
        table = tables[chunk.request]
        blocks[end : end + len(chunk.ids), : len(table)] = table
        end += len(chunk.ids)
        wanted[chunk.request] = range(end - chunk.wanted, end)
    return ids, positions, blocks, wanted
    ### END SOLUTION


def most_rows(sizes: Sequence[int], kernel: Sequence[float], usual: Sequence[float]) -> int:
    """Return the largest size up to which the kernel is never the slower way; 0 if there is none.

    sizes: numbers of rows, ascending. kernel, usual: the seconds that each way takes for them.
    """
    ### BEGIN SOLUTION
    most = 0
    for size, ours, theirs in zip(sizes, kernel, usual, strict=False):
        if ours > theirs:
            break
        most = size
    return most
    ### END SOLUTION
