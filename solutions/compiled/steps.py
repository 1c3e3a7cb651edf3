"""Lab 21, given: a whole step of a model as one function, which several threads run together.

The work of a step lies in phases of several shares each. No share belongs to a thread: each takes
the next one with an atomic addition. A phase is over when all its shares are done, by any threads,
so none waits for a thread that the system isn't running.

It serves GPT-2 and Llama's family. What a model lacks has no numbers here: without a rotation there
are no radians, and without gates `gate` is None.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64, Num

from solutions.compiled.weights import TILE, Codes, Matrix, Weights
from solutions.compiler import ON, ONE_STREAM, compiled, python_of
from solutions.one_kernel import (
    OVER,
    SHARES,
    Layer,
    attend,
    cut,
    exponentiate,
    f32,
    gelu,
    i32,
    mlp,
    multiply4,
    normalize,
    take_share,
)

Array = Num[np.ndarray, "..."]
GROUP = 32  # inputs that share a scale, where codes have 4 bits


class Shape(NamedTuple):
    """heads: of keys and values. group: query heads for each of them. is_centered: the norm
    subtracts the mean.
    """

    heads: int
    group: int
    head_dim: int
    eps: np.float32
    is_centered: bool


class Rows(NamedTuple):
    """A row for each new token. tables: the blocks of its text. wanted: rows that need logits.

    cos, sin: of the angles by which its queries and keys are turned.
    """

    ids: Int64[np.ndarray, " rows"]
    positions: Int64[np.ndarray, " rows"]
    cos: Float32[np.ndarray, "rows half"]
    sin: Float32[np.ndarray, "rows half"]
    tables: Int64[np.ndarray, "rows width"]
    wanted: Int64[np.ndarray, " wanted"]


class Room(NamedTuple):
    """Memory of a step that all threads share. last: the hidden states before the head."""

    hidden: Float32[np.ndarray, "rows n_embd"]
    qkv: Float32[np.ndarray, "rows n_qkv"]
    mixed: Float32[np.ndarray, "rows n_attended"]
    gates: Float32[np.ndarray, "rows 0|n_inner"]
    wide: Float32[np.ndarray, "rows n_inner"]
    last: Float32[np.ndarray, "rows n_embd"]
    logits: Float32[np.ndarray, "wanted vocab"]


# ------------------------------------------------------------------------------------ linear layers


@compiled
def multiply_pairs(
    x: Array, weight: Array, scale: Array, bias: Array, first: int, last: int, out: Array,
    added: bool,
) -> None:  # fmt: skip
    """What `multiply` does, to the last bit, two rows of x at a time: a weight is loaded once for
    both. The compiler gives the sums of both loops one order. (Four at a time weren't faster.)
    """
    whole = len(x) // 2 * 2
    for n in range(first, last):
        w = weight[n]
        for r in range(0, whole, 2):
            a, b, p, q = x[r], x[r + 1], f32(0), f32(0)
            for i in range(len(w)):
                p += a[i] * f32(w[i])
                q += b[i] * f32(w[i])
            for k, total in enumerate((p, q)):
                made = total * scale[n] + bias[n]
                out[r + k, n] = out[r + k, n] + made if added else made
        for r in range(whole, len(x)):  # the odd one; called apart, its sum gets another order
            a, p = x[r], f32(0)
            for i in range(len(w)):
                p += a[i] * f32(w[i])
            made = p * scale[n] + bias[n]
            out[r, n] = out[r, n] + made if added else made


products = multiply_pairs if ONE_STREAM else multiply4  # a learner's in a step with their own


@compiled
def multiply_numbers(
    x: Array, matrix: Any, layer: int, low: int, high: int, out: Array, added: bool
) -> None:
    weight, scale, bias = matrix.weight[layer], matrix.scale[layer], matrix.bias[layer]
    products(x, weight, scale, bias, low, high, out, added)


@compiled
def multiply_codes(
    x: Array, matrix: Any, layer: int, low: int, high: int, out: Array, added: bool
) -> None:
    """Compute the tiles that have an output between low and high."""
    codes, scale, zero = matrix.weight[layer], matrix.scale[layer], matrix.zero[layer]
    bias, sums, totals = matrix.bias[layer], np.empty(TILE, np.float32), np.empty(TILE, np.float32)
    for tile in range(low // TILE, (high + TILE - 1) // TILE):
        for r in range(len(x)):
            multiply_tile(x[r], codes[tile], scale[tile], zero[tile], sums, totals)
            for j in range(max(low, tile * TILE), min(high, tile * TILE + TILE)):
                total = totals[j - tile * TILE] + bias[j]
                out[r, j] = total + out[r, j] if added else total


@compiled
def multiply_tile(
    x: Array, codes: Array, scale: Array, zero: Array, sums: Array, totals: Array
) -> None:
    """Compute the totals of a tile for one row. A vector holds one number of each output, so at
    the end of a group, where scale and zero come in, there is no vector to add up.
    """
    half = GROUP // 2
    totals[:] = 0
    for group in range(len(scale)):
        inputs, total = x[group * GROUP : group * GROUP + GROUP], f32(0)
        for i in range(len(inputs)):
            total += inputs[i]
        sums[:] = 0
        for i in range(half):
            pair, first, second = codes[group * half + i], inputs[i], inputs[half + i]
            for j in range(len(sums)):
                sums[j] += first * f32(i32(pair[j] & 15)) + second * f32(i32(pair[j] >> 4))
        for j in range(len(sums)):
            totals[j] += sums[j] * scale[group, j] + total * zero[group, j]


def multiply_part(
    x: Array, matrix: Any, layer: int, low: int, high: int, out: Array, added: bool
) -> None:
    """Compute the outputs from low to high of a linear layer, of numbers or of codes."""
    kind = multiply_codes if isinstance(matrix, Codes) else multiply_numbers
    kind(x, matrix, layer, low, high, out, added)


if ON:
    from numba.extending import overload

    @overload(multiply_part)  # numba wants the same signature of all
    def compiled_part(
        x: Array, matrix: Any, layer: int, low: int, high: int, out: Array, added: bool
    ) -> Any:
        return python_of(multiply_codes if matrix.instance_class is Codes else multiply_numbers)


@compiled
def multiply_together(
    counters: Array, phase: int, x: Array, matrix: Any, layer: int, out: Array, added: bool
) -> None:
    """Compute a linear layer."""
    n, share = out.shape[1], take_share(counters, phase, SHARES, OVER)
    while share != OVER:
        multiply_part(x, matrix, layer, cut(n, share, TILE), cut(n, share + 1, TILE), out, added)
        share = take_share(counters, phase, SHARES, share)


# ------------------------------------------------------------------------------- parts of a family


@compiled
def rms_normalize(x: Array, gain: Array, eps: float, out: Array) -> None:
    """Divide a vector by its root mean square, and multiply by the gain; `out` may be x."""
    square = f32(0)
    for i in range(len(x)):
        square += x[i] * x[i]
    factor = f32(1) / np.sqrt(square / f32(len(x)) + eps)
    for i in range(len(x)):
        out[i] = x[i] * factor * gain[i]


@compiled
def normalize_rows(x: Array, norm: Array, shape: Shape, out: Array) -> None:
    for r in range(len(x)):
        if shape.is_centered:
            normalize(x[r], norm, shape.eps, out[r])
        else:
            rms_normalize(x[r], norm[0], shape.eps, out[r])


@compiled
def turn(head: Array, gains: Array, eps: float, cos: Array, sin: Array) -> None:
    """Normalize a head, if there are gains, and rotate it, if there are angles."""
    for i in range(len(gains)):
        rms_normalize(head, gains[i], eps, head)
    half = len(cos)
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i], head[half + i] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]


@compiled
def multiply_by_gates(neurons: Array, gates: Array, exps: Array, whole: Array) -> None:
    """neurons *= gates * sigmoid(gates)."""
    for i in range(len(gates)):
        exps[i] = min(-gates[i], f32(80))
    exponentiate(exps, whole)
    for i in range(len(gates)):
        neurons[i] *= gates[i] / (f32(1) + exps[i])


# ---------------------------------------------------------------------------------------- the step


@compiled
def embed(counters: Array, rows: Rows, w: Weights, hidden: Array) -> None:
    table, scale = w.wte.weight[0], w.wte.scale[0]
    share = take_share(counters, 0, 1, OVER)
    if share != OVER:
        for r in range(len(hidden)):
            token = rows.ids[r]
            for i in range(hidden.shape[1]):
                hidden[r, i] = f32(table[token, i]) * scale[token]
            if len(w.wpe):
                place = w.wpe[rows.positions[r]]
                for i in range(len(place)):
                    hidden[r, i] += place[i]
        take_share(counters, 0, 1, share)


@compiled
def attend_together(
    counters: Array, phase: int, layer: int, rows: Rows, pool: Array, shape: Shape, w: Weights,
    normed: Array, numbers: Array, whole: Array, room: Room,
) -> None:  # fmt: skip
    """Project queries, keys and values, store these, and attend. A KV head is a share."""
    dim, group, qkv, size = shape.head_dim, shape.group, room.qkv, pool.shape[3]
    n_queries, n_keys = shape.heads * group * dim, shape.heads * dim
    keys, values, gains = pool[0, layer], pool[1, layer], w.head_norms[layer]
    head = take_share(counters, phase, shape.heads, OVER)
    while head != OVER:
        low, high = head * dim, head * dim + dim
        key, value = n_queries + low, n_queries + n_keys + low
        multiply_part(normed, w.c_attn, layer, low * group, high * group, qkv, False)
        multiply_part(normed, w.c_attn, layer, key, key + dim, qkv, False)
        multiply_part(normed, w.c_attn, layer, value, value + dim, qkv, False)
        for r in range(len(normed)):
            cos, sin = rows.cos[r], rows.sin[r]
            for query in range(low * group, high * group, dim):
                turn(qkv[r, query : query + dim], gains[:1], shape.eps, cos, sin)
            turn(qkv[r, key : key + dim], gains[1:], shape.eps, cos, sin)
            block, place = rows.tables[r, rows.positions[r] // size], rows.positions[r] % size
            for i in range(dim):  # an assignment of arrays takes numba seconds to compile
                keys[block, place, low + i] = qkv[r, key + i]
                values[block, place, low + i] = qkv[r, value + i]
        for r in range(len(normed)):
            seen, table = rows.positions[r] + 1, rows.tables[r]
            scores, powers = numbers[:seen], whole[:seen]
            for query in range(low * group, high * group, dim):
                out = room.mixed[r, query : query + dim]
                its = qkv[r, query : query + dim]
                attend(its, keys, values, table, low, high, scores, powers, out)
        head = take_share(counters, phase, shape.heads, head)


@compiled
def activate(
    gate: Any, layer: int, low: int, high: int, normed: Array, numbers: Array, whole: Array,
    room: Room,
) -> None:  # fmt: skip
    """Apply GELU to neurons low to high, or multiply them by their gates if there are any."""
    if gate is None:
        for r in range(len(normed)):
            gelu(room.wide[r, low:high], numbers[low:high], whole[low:high])
    else:
        multiply_part(normed, gate, layer, low, high, room.gates, False)
        for r in range(len(normed)):
            neurons, gates = room.wide[r, low:high], room.gates[r, low:high]
            multiply_by_gates(neurons, gates, numbers[low:high], whole[low:high])


@compiled
def mlp_together(
    counters: Array, phase: int, layer: int, shape: Shape, w: Any, gate: Any, normed: Array,
    numbers: Array, whole: Array, room: Room,
) -> None:  # fmt: skip
    """Compute an MLP. Without gates it does what lab 21's `mlp` does, with any weights."""
    normalize_rows(room.hidden, w.norms[layer, 1], shape, normed)
    n, share = room.wide.shape[1], take_share(counters, phase, SHARES, OVER)
    while share != OVER:
        low, high = cut(n, share, TILE), cut(n, share + 1, TILE)
        multiply_part(normed, w.c_fc, layer, low, high, room.wide, False)
        activate(gate, layer, low, high, normed, numbers, whole, room)
        share = take_share(counters, phase, SHARES, share)
    multiply_together(counters, phase + 1, room.wide, w.mlp_proj, layer, room.hidden, True)


@compiled
def learners_mlp(
    counters: Array, phase: int, layer: int, shape: Shape, w: Any, gate: Any, normed: Array,
    numbers: Array, whole: Array, room: Room,
) -> None:  # fmt: skip
    """Compute an MLP without gates by `mlp`."""
    if gate is None:
        c_fc, c_proj = layer_of(w.c_fc, layer), layer_of(w.mlp_proj, layer)
        norm = w.norms[layer, 1]
        given = counters, phase, room.hidden, norm, shape.eps, c_fc, c_proj, normed, room.wide
        mlp(*given, numbers, whole)
    else:
        mlp_together(counters, phase, layer, shape, w, gate, normed, numbers, whole, room)


@compiled
def layer_of(matrix: Matrix, layer: int) -> Layer:
    return Layer(matrix.weight[layer], matrix.scale[layer], matrix.bias[layer])


mlp_of_step = mlp_together  # `learners_mlp` in a step that is assembled with an `mlp`


@compiled
def step(counters: Array, rows: Rows, pool: Array, shape: Shape, w: Weights, room: Room) -> None:
    """Compute a step together with other threads that call it with the same arguments.

    counters: [2, phases] of zeros. pool: [2, layers, blocks, block_size, heads * head_dim].
    """
    hidden = room.hidden
    normed = np.empty_like(hidden)  # each thread computes its own
    longest = max(room.wide.shape[1], rows.positions.max() + 1)
    numbers, whole = np.empty(longest, np.float32), np.empty(longest, np.int32)
    embed(counters, rows, w, hidden)
    for layer in range(len(w.norms)):
        phase = 4 * layer + 1
        normalize_rows(hidden, w.norms[layer, 0], shape, normed)
        attend_together(counters, phase, layer, rows, pool, shape, w, normed, numbers, whole, room)
        multiply_together(counters, phase + 1, room.mixed, w.attn_proj, layer, hidden, True)
        mlp_of_step(counters, phase + 2, layer, shape, w, w.gate, normed, numbers, whole, room)
    normalize_rows(hidden, w.last_norm, shape, normed)
    wanted, phase = normed[rows.wanted], 4 * len(w.norms) + 1
    multiply_together(counters, phase, wanted, w.head, 0, room.logits, False)
    for r in range(len(normed)):
        for i in range(normed.shape[1]):
            room.last[r, i] = normed[r, i]  # of each thread the same numbers
