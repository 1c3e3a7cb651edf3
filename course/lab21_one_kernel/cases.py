"""The exercises of lab 21: a profile, a floor, parts of a kernel, shares, and the engine's rows."""

from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import one_kernel as drivers
from autograder.judging.draws import draw, normal
from autograder.judging.exercise import Case, Exercise, case_of


def floats(generator: torch.Generator, *shape: int) -> Tensor:
    return normal(generator, *shape).float()


def quarters(generator: torch.Generator, *shape: int, most: int = 8) -> Tensor:
    """Multiples of 1/4: their sums and products are exact in float32, in any order."""
    return torch.randint(-4 * most, 4 * most + 1, shape, generator=generator) / 4


# ------------------------------------------------------------------------------ where a step goes


def profile_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *events: tuple[str, float, float]) -> Case:
        return Case(label, {"events": list(events)})

    n = draw(generator, 2, 9)
    nested = [
        ("linear", 0, 10 + n),
        ("addmm", 2, 9 + n),
        ("copy", 3, 4 + n),
        ("gelu", 12 + n, 14 + n),
        ("linear", 14 + n, 20 + n),
        ("addmm", 15 + n, 19 + n),
    ]
    deep = [("a", 0, 40), ("b", 1, 30), ("c", 2, 20), ("d", 3, 10), ("e", 35, 39), ("a", 50, 60)]
    order = torch.randperm(len(nested), generator=generator).tolist()
    return [
        case("one operation", ("add", 5, 9)),
        case("two, one after the other", ("add", 0, 3), ("mul", 5, 9)),
        case("one within another", ("linear", 0, 10), ("addmm", 2, 9)),
        case("one begins where another ends", ("add", 0, 4), ("mul", 4, 7)),
        case("two within another, which touch", ("f", 0, 9), ("g", 1, 4), ("h", 4, 8)),
        case("three that are nested", ("f", 2, 9 + n), ("g", 3, 6), ("h", 4, 5)),
        case("back by several levels", *deep),
        case("a step with two linear layers", *nested),
        case("the same in another order", *(nested[i] for i in order)),
        case("two with the same start", ("g", 5, 7), ("f", 5, 9), ("h", 20, 21)),
        case("an operation within itself", ("f", 5, 9), ("f", 6, 8), ("f", 12, 13)),
        case("an operation that takes no time", ("f", 1, 6), ("g", 3, 3), ("h", 8, 8)),
        case("one of no time where two meet", ("f", 0, 4), ("g", 4, 4), ("h", 4, 9)),
        case("the last outer one ends late", ("f", 10, 90), ("g", 20, 80), ("h", 85, 88)),
        case("many", *((f"op{i % 3}", 10 * i, 10 * i + 1 + i % n) for i in range(12))),
    ]


def floor_cases(generator: torch.Generator) -> list[Case]:
    made = case_of("bytes_read", "flops", "calls", "machine")
    some = [float(draw(generator, 10, 90)) for _ in range(3)]
    return [
        made("a second of reading", 8.0, 1.0, 0, (8.0, 8.0, 1.0)),
        made("a second of computing", 1.0, 8.0, 0, (8.0, 8.0, 1.0)),
        made("both take long", 30.0, 20.0, 0, (10.0, 10.0, 0.5)),
        made("one call", 30.0, 20.0, 1, (10.0, 10.0, 0.5)),
        made("calls that take longest", 30.0, 20.0, 100, (10.0, 10.0, 0.5)),
        made("a machine whose calls cost nothing", 30.0, 50.0, 100, (10.0, 10.0, 0.0)),
        made("fable on a CPU", 42.5e6, 21.2e6, 336, (22e9, 60e9, 5e-6)),
        made("a large model", 16e9, 16e9, 900, (1e12, 4e14, 3e-6)),
        made("other numbers", some[0], some[1], draw(generator, 2, 9), (some[2], 5.0, 0.25)),
    ]


# ------------------------------------------------------------------------------ parts of the kernel


def normalize_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, x: Tensor, eps: float = 1e-5) -> Case:
        norm = 1 + 0.5 * floats(generator, 2, len(x))
        return Case(label, {"x": x, "norm": norm, "eps": eps})

    def far(at: float) -> Tensor:
        """Eight numbers whose mean is exact, and whose squares aren't."""
        return at + quarters(generator, 8, most=2)

    return [
        case("two numbers", torch.tensor([1.0, 3.0])),
        case("three numbers", floats(generator, 3)),
        case("eight numbers", floats(generator, 8)),
        case("small numbers, where eps counts", 1e-3 * floats(generator, 7)),
        case("an eps of 0.5", floats(generator, 7), 0.5),
        case("an eps of 2, small numbers", 0.1 * floats(generator, 5), 2.0),
        case("equal numbers", torch.full((4,), 3.0)),
        case("a mean of 300", far(300)),
        case("a mean of 5,000", far(5000)),
        case("a mean of -5,000", far(-5000)),
        case("some more", floats(generator, draw(generator, 20, 40))),
    ]


def product_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        rows: int,
        outputs: int,
        first: int = 0,
        last: int | None = None,
        added: bool = False,
        codes: bool = False,
        n_in: int = 5,
    ) -> Case:
        weight = floats(generator, outputs, n_in)
        if codes:
            shape = outputs, n_in
            weight = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
        data = {"x": floats(generator, rows, n_in), "weight": weight}
        data["scale"] = 0.5 + floats(generator, outputs).abs()
        data |= {"bias": floats(generator, outputs), "out": floats(generator, rows, outputs)}
        last = outputs if last is None else last
        return Case(label, {**data, "first": first, "last": last, "added": added})

    some = draw(generator, 9, 14)
    return [
        case("one row, one output", 1, 1),
        case("one row, three outputs", 1, 3),
        case("three rows", 3, 6),
        case("as many rows as outputs and inputs", 5, 5),
        case("outputs 2 to 4 of six", 2, 6, 2, 5),
        case("outputs 1 to 3, added", 2, 6, 1, 4, True),
        case("no output", 2, 4, 2, 2),
        case("codes of 8 bits", 2, 6, 0, 3, codes=True),
        case("codes of 8 bits, added", 2, 6, 2, 5, True, True),
        case("one group of four", 1, 4),
        case("one group of four, three rows", 3, 4, added=True),
        case("two groups", 3, 8),
        case("two groups and a rest", 4, 11),
        case("outputs 3 to 11 of fourteen", 3, 14, 3, 12, True),
        case("outputs 1 to 9, codes", 4, 11, 1, 10, codes=True),
        case("outputs 2 to 8, codes, added", 2, 11, 2, 9, True, True),
        case("twelve rows, 40 inputs", 12, 9, n_in=40),
        case("some more", 3, some, 1, some - 1, n_in=draw(generator, 20, 30)),
    ]


def power_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *numbers: float) -> Case:
        return Case(label, {"x": torch.tensor(numbers, dtype=torch.float32)})

    some = floats(generator, 12).tolist()
    return [
        case("1", 1.0),
        case("0 and -0", 0.0, -0.0),
        case("-1, 2", -1.0, 2.0),
        case("whole powers of two", 0.6931472, -0.6931472, 1.3862944),
        case("around half a power of two", -0.3466, -0.3465, 0.3465, 0.3467, 1.0397, 1.0398),
        case("some numbers", *some),
        case("large and small", *(30 * n for n in some if abs(n) < 2.9)),
        case("a ladder", *range(-80, 81, 8)),
        case("near the ends", 88.0, -87.0, -87.3),
        case("below the smallest float32", -88.0, -95.0, -100.0),
        case("far below", -1e4, -1e30, 1.0),
        case("a mask", -torch.inf, 0.5),
    ]


def attend_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        length: int,
        size: int,
        *table: int,
        dim: int = 4,
        heads: int = 1,
        head: int = 0,
        scores: float = 0.0,
    ) -> Case:
        """scores: about how large, for numbers with which they are exact; 0 for any."""
        shape = max(table) + 2, size, heads * dim
        keys, values = floats(generator, *shape), floats(generator, *shape)
        query = floats(generator, dim)
        if scores:
            keys = quarters(generator, *shape, most=2)
            keys[..., head * dim] = 2 + keys[..., head * dim].abs()
            query = quarters(generator, dim, most=2)
            query[0] = 2 * int(scores) / 4
        mine = torch.zeros(shape[:2], dtype=torch.bool)
        for place in range(length):
            mine[table[place // size], place % size] = True
        for part in (keys, values):
            part[~mine] = torch.inf  # with which 0 makes NaN
        data = {"query": query, "keys": keys, "values": values, "table": list(table)}
        return Case(label, {**data, "start": head * dim, "length": length})

    return [
        case("one token", 1, 4, 0),
        case("a full block", 4, 4, 0),
        case("three tokens of one block", 3, 4, 0),
        case("a block that isn't the first", 4, 4, 2),
        case("two blocks in order", 7, 4, 0, 1),
        case("two blocks in another order", 7, 4, 3, 1),
        case("three blocks", 9, 4, 5, 0, 2),
        case("blocks of one", 5, 1, 4, 2, 0, 3, 1),
        case("blocks of three", 6, 3, 2, 4),
        case("a table that is longer than the text", 5, 4, 1, 3, 0, 0),
        case("the second of three heads", 6, 4, 2, 0, heads=3, head=1),
        case("the last of two heads, eight numbers", 5, 3, 3, 1, dim=8, heads=2, head=1),
        case("scores of hundreds", 6, 4, 1, 0, scores=400.0),
        case("scores far below 0", 6, 4, 1, 0, scores=-400.0),
        case("scores far below 0, one block", 3, 4, 2, scores=-250.0),
        case("16 numbers in a head", 11, 4, 4, 0, 2, dim=16, heads=2),
        case("some more", draw(generator, 13, 16), 4, 6, 1, 3, 0, heads=2, head=1),
    ]


# ---------------------------------------------------------------------------------- the threads


def share_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        shares: int,
        between: str = "",
        phase: int = 0,
        taken: int = 0,
        done: int | None = None,
        calls: int = 30,
    ) -> Case:
        """between: what another thread does, "t" for take, "f" for finish, "b" for both."""
        kinds = {"t": "take", "f": "finish", "b": "take, finish", "-": ""}
        data: dict[str, Any] = {"phase": phase, "shares": shares, "taken": taken, "calls": calls}
        data["done"] = taken if done is None else done
        return Case(label, {**data, "between": [kinds[letter] for letter in between]})

    phase = draw(generator, 2, 5)
    drawn = "".join("tfb--"[draw(generator, 0, 4)] for _ in range(20))
    return [
        case("the first of three shares", 3, calls=1),
        case("one share", 1),
        case("three shares, no other thread", 3, "-" * 9),
        case("eight shares in the third phase", 8, "-" * 20, phase=2),
        case("all shares were done before", 4, phase=1, taken=4),
        case("another thread takes each second share", 6, "tftftftftftf"),
        case("another thread takes two at once", 7, "ttffttff"),
        case("another thread finishes late", 5, "t--t--" + "-" * 12, phase=1),
        case("another thread finishes very late", 3, "t" + "-" * 25),
        case("all are taken, and none is done", 4, "------ffff", taken=4, done=0),
        case("more threads than shares", 2, "----f-f", taken=5, done=0),
        case("shares run out while it looks", 3, "-t-t-t---", taken=1, done=0),
        case("another thread is quick", 9, "bbbbbbbb", phase=phase),
        case("in some order", 8, drawn, phase=phase, taken=2, done=1),
    ]


def mlp_cases(generator: torch.Generator) -> list[Case]:
    everything = list(range(drivers.SHARES))

    def case(
        label: str,
        rows: int,
        n: int,
        n_inner: int,
        early: tuple[list[int], list[int]] = ([], []),
        late: tuple[list[int], list[int]] = ([], []),
        phase: int = 0,
    ) -> Case:
        def layer(outputs: int, inputs: int) -> list[Tensor]:
            weight = floats(generator, outputs, inputs) / inputs**0.5
            scale = 0.5 + floats(generator, outputs).abs()
            return [weight, scale, floats(generator, outputs)]

        data: dict[str, Any] = {"hidden": floats(generator, rows, n)}
        data |= {"norm": 1 + 0.5 * floats(generator, 2, n)}
        data |= {"c_fc": layer(n_inner, n), "c_proj": layer(n, n_inner)}
        order = {"early": list(map(list, early)), "late": list(map(list, late)), "phase": phase}
        return Case(label, {**data, **order, "eps": 1e-5})

    def shares(*numbers: int) -> list[int]:
        return list(numbers)

    return [
        case("one row, one thread", 1, 16, 128),
        case("three rows, one thread", 3, 32, 128),
        case("widths that leave a rest", 2, 37, 150),
        case("a small MLP, most shares are empty", 2, 6, 20),
        case("phases 5 and 6", 2, 32, 128, phase=5),
        case("another thread is quick", 2, 40, 130, (shares(1, 3), shares(3, 6)), phase=1),
        case("another thread is slow", 2, 130, 150, late=(shares(2, 5), shares(0, 4)), phase=1),
        case("another thread has the last shares", 2, 40, 150, late=(shares(6, 7), shares(7))),
        case("another thread does the first layer", 1, 130, 150, (everything, shares())),
        case("... and is slow", 2, 130, 150, late=(everything, shares(1)), phase=2),
        case("all is done already", 2, 37, 150, (everything, everything), phase=3),
        case("all is taken, and will be done", 2, 37, 150, late=(everything, everything)),
        case("two others", 3, 130, 140, (shares(0, 4), shares(2)), (shares(3, 7), shares(5, 6))),
    ]


# ---------------------------------------------------------------------------- under lab 7's engine


def row_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, tables: dict[int, list[int]], *chunks: tuple[int, int, int, int]) -> Case:
        """chunks: request, number of new tokens, how many are computed, how many are wanted."""
        batch = []
        for request, count, start, wanted in chunks:
            ids = torch.randint(99, (count,), generator=generator).tolist()
            batch.append({"request": request, "ids": ids, "start": start, "wanted": wanted})
        return Case(label, {"batch": batch, "tables": tables})

    first = draw(generator, 20, 40)
    return [
        case("one request decodes", {0: [3]}, (0, 1, 2, 1)),
        case("one prompt of three tokens", {0: [1]}, (0, 3, 0, 1)),
        case("two requests decode", {0: [3], 1: [5]}, (0, 1, 2, 1), (1, 1, 3, 1)),
        case("a chunk whose logits aren't wanted", {0: [2, 4]}, (0, 4, 3, 0)),
        case("two chunks, of which one is wanted", {4: [2], 2: [7]}, (4, 3, 0, 0), (2, 2, 1, 1)),
        case("a draft of three tokens", {7: [6, 1, 3]}, (7, 4, 5, 4)),
        case("tables of different length", {1: [2], 3: [5, 4, 9]}, (1, 1, 2, 1), (3, 2, 9, 1)),
        case("the longest table first", {5: [8, 1, 2], 3: [6]}, (5, 1, 9, 1), (3, 3, 0, 2)),
        case("the last request comes first", {2: [1, 5], 9: [3, 4]}, (9, 2, 4, 1), (2, 1, 6, 1)),
        case("a request waits", {2: [1, 5], 6: [7], 9: [3, 4]}, (9, 1, 4, 1), (2, 1, 6, 1)),
        case("chunks, drafts and decoding", {first: [2, 8], first + 3: [5], first - 9: [9, 1, 4]},
             (first, 1, 7, 1), (first + 3, 3, 0, 0), (first - 9, 5, 4, 5)),
    ]  # fmt: skip


def size_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("sizes", "kernel", "usual")
    some = [draw(generator, 3, 9) / 2 for _ in range(3)]
    return [
        case("one size, the kernel is faster", [1], [1.0], [2.0]),
        case("one size, the kernel is slower", [1], [2.0], [1.0]),
        case("two sizes, faster at 1", [1, 2], [1.0, 3.0], [2.0, 2.5]),
        case("always faster", [1, 2, 4, 8], [1.0, 1.5, 2.0, 3.0], [2.0, 2.5, 3.0, 3.5]),
        case("never faster", [1, 2, 4], [3.0, 4.0, 5.0], [2.0, 2.5, 3.0]),
        case("as fast", [1, 2, 4], [1.0, 2.0, 4.0], [1.0, 2.0, 3.0]),
        case("faster again later", [1, 2, 4, 8], [1.0, 3.0, 4.0, 5.0], [2.0, 2.5, 9.0, 9.0]),
        case("slower at 1, then faster", [1, 2, 4], [3.0, 1.0, 1.0], [2.0, 2.0, 2.0]),
        case("sizes that are no powers of two", [3, 5, 12], [1.0, 1.0, 9.0], [2.0, 2.0, 8.0]),
        case("other times", [1, 4, 6], some, [some[0] + 0.5, some[1] + 0.5, some[2] - 0.5]),
    ]


EXERCISES = (
    Exercise("one_kernel.self_times", drivers.self_times, profile_cases),
    Exercise("one_kernel.floor_ms", drivers.floor_ms, floor_cases),
    Exercise("one_kernel.normalize", drivers.normalize, normalize_cases),
    Exercise("one_kernel.multiply", drivers.multiply, product_cases),
    Exercise("one_kernel.multiply4", drivers.multiply4, product_cases),
    Exercise("one_kernel.exponentiate", drivers.exponentiate, power_cases),
    Exercise("one_kernel.attend", drivers.attend, attend_cases, whole=("keys", "values")),
    Exercise("one_kernel.take_share", drivers.take_share, share_cases),
    Exercise("one_kernel.mlp", drivers.mlp, mlp_cases),
    Exercise("one_kernel.rows_of", drivers.rows_of, row_cases),
    Exercise("one_kernel.most_rows", drivers.most_rows, size_cases),
)
