"""The exercises of lab 23: adapters of a matrix, rows of many, slots, salts, the next request."""

from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers import adapters as drivers
from autograder.judging.draws import draw, normal
from autograder.judging.exercise import Case, Exercise, case_of
from solutions import adapters as reference

Added = tuple[Tensor, Tensor, float]

# ------------------------------------------------------------------------------------ one matrix


def some_adapter(
    generator: torch.Generator, n_in: int, n_out: int, rank: int, alpha: float
) -> Added:
    return normal(generator, n_in, rank), normal(generator, rank, n_out), alpha


def delta_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, rows: int, n_in: int, n_out: int, rank: int, alpha: float) -> Case:
        added = some_adapter(generator, n_in, n_out, rank, alpha)
        return Case(label, {"hidden": normal(generator, rows, n_in), "added": added})

    alpha = float(draw(generator, 5, 9))
    return [
        case("one row, rank 1, alpha 1", 1, 3, 4, 1, 1.0),
        case("one row, rank 1, alpha 3", 1, 3, 4, 1, 3.0),
        case("one row, rank 2, alpha 3", 1, 5, 6, 2, 3.0),
        case("rank 2, alpha 6", 4, 7, 5, 2, 6.0),
        case("rank 3, alpha 1.5", 4, 9, 11, 3, 1.5),
        case("as many inputs as outputs", 4, 10, 10, 3, 12.0),
        case("no rows", 0, 5, 6, 2, 4.0),
        case("a wide matrix", 3, 64, 48, 2, alpha),
        case("another one", draw(generator, 2, 5), 20, 31, 4, alpha),
    ]


def merged_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, rank: int, alpha: float, **sign: int) -> Case:
        added = some_adapter(generator, n_in, n_out, rank, alpha)
        weight = normal(generator, n_in, n_out)
        return Case(label, {"weight": weight, "added": added, **sign})

    def taken_out(label: str, n_in: int, n_out: int, rank: int, alpha: float) -> Case:
        put_in = case(label, n_in, n_out, rank, alpha, sign=-1)
        added = reference.LowRank(*put_in.data["added"])
        weight = reference.merged(put_in.data["weight"], added)
        return Case(label, {**put_in.data, "weight": weight})

    alpha = float(draw(generator, 5, 9))
    return [
        case("rank 1, alpha 1", 2, 3, 1, 1.0),
        case("rank 1, alpha 3", 3, 2, 1, 3.0, sign=1),
        case("rank 2, alpha 6", 7, 5, 2, 6.0),
        case("a square one, rank 3", 6, 6, 3, 1.5),
        case("more outputs than inputs", 4, 9, 2, 5.0, sign=1),
        taken_out("one that is taken out", 5, 7, 2, 6.0),
        taken_out("a square one that is taken out", 6, 6, 3, 1.5),
        case("another one", 11, draw(generator, 5, 9), 4, alpha),
    ]


# ------------------------------------------------------------------------------- many in one batch

THREE = (3, 6.0), (1, 0.5), (2, 4.0)  # rank and alpha of each


def stacked_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *each: tuple[int, float], n_in: int = 5, n_out: int = 7) -> Case:
        return Case(label, {"adapters": [some_adapter(generator, n_in, n_out, *e) for e in each]})

    some = [(draw(generator, 1, 5), float(draw(generator, 1, 9))) for _ in range(5)]
    return [
        case("one adapter of rank 1", (1, 1.0)),
        case("one adapter of rank 2", (2, 6.0)),
        case("two of equal rank", (2, 2.0), (2, 8.0)),
        case("three of ranks 3, 1 and 2", *THREE),
        case("the largest rank last", (1, 3.0), (2, 1.0), (4, 8.0)),
        case("a square matrix", *THREE, n_in=6, n_out=6),
        case("five more", *some, n_in=6, n_out=4),
    ]


def adapter_rows_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *chunks: tuple[int, int, int], of: dict[int, int]) -> Case:
        """chunks: the request of each, how many tokens are new, and how many come before."""
        batch: list[dict[str, Any]] = [
            {"request": request, "ids": random_ids(new), "start": start, "wanted": 1}
            for request, new, start in chunks
        ]
        return Case(label, {"batch": batch, "adapter_of": of})

    def random_ids(count: int) -> list[int]:
        return torch.randint(3, 90, (count,), generator=generator).tolist()

    five = {4: 1, 2: 2, 9: 0, 3: 3, 5: 2}
    mixed = [(4, 3, 0), (2, 1, 9), (9, 3, 5), (3, 1, 2), (5, 2, 8)]
    numbers = torch.randperm(30, generator=generator).tolist()
    some = [(n, draw(generator, 1, 4), draw(generator, 0, 6)) for n in numbers[:7]]
    return [
        case("one request that decodes", (2, 1, 9), of={2: 2}),
        case("one prompt of three tokens", (2, 3, 0), of={2: 1}),
        case("one request of the base", (7, 2, 0), of={7: 0}),
        case("two that decode, in the row's order", (0, 1, 4), (1, 1, 9), of={0: 2, 1: 1}),
        case("two that decode, in another order", (0, 1, 9), (1, 1, 4), of={0: 2, 1: 1}),
        case("a prompt and one that decodes", (5, 4, 0), (6, 1, 8), of={5: 2, 6: 1}),
        case("two of the same shape", (8, 2, 3), (1, 2, 3), (3, 1, 3), of={8: 1, 1: 3, 3: 2}),
        case("five requests, three adapters and the base", *mixed, of=five),
        case("a map with requests that aren't in the step", *mixed[:2], of=five),
        case("seven more", *some, of={n: n % 4 for n in numbers}),
    ]


def segment_cases(generator: torch.Generator) -> list[Case]:
    *cases, last = rows_cases(generator)
    own = Case("its own product", {**last.data, "counted": False})
    return [*cases, own, last]


def rows_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *numbers: int, n_in: int = 5, n_out: int = 7) -> Case:
        adapters = [some_adapter(generator, n_in, n_out, *each) for each in THREE]
        all_a, all_b = reference.stacked([reference.LowRank(*each) for each in adapters])
        hidden, rows = normal(generator, len(numbers), n_in), torch.tensor(numbers)
        return Case(label, {"hidden": hidden, "all_a": all_a, "all_b": all_b, "numbers": rows})

    some = [draw(generator, 0, 3) for _ in range(9)]
    return [
        case("one row", 1),
        case("one row of the base", 0),
        case("two rows of one adapter", 2, 2),
        case("two adapters", 1, 3),
        case("neighbors of three adapters", 1, 1, 2, 3, 3),
        case("rows of an adapter that are no neighbors", 1, 3, 1),
        case("adapters in descending order", 3, 2, 1),
        case("rows of the base between others", 3, 0, 1, 3, 0, 2),
        case("only rows of the base", 0, 0, 0),
        case("a square matrix", 3, 0, 1, 3, 1, 2, n_in=6, n_out=6),
        case("nine more rows", *some),
    ]


# ------------------------------------------------------------------------------------------ slots


def take_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, size: int, there: str, users: str, steps: str, broken: str = "") -> Case:
        """there: in the order of use, "a2": a in slot 2. users: of each. steps: "a", or "-a"."""
        slots = [(each[0], int(each[1:])) for each in there.split()]
        counts = [int(count) for count in users.split()]
        data = {"size": size, "slots": slots, "broken": broken.split()}
        data["users"] = {name: n for (name, _), n in zip(slots, counts, strict=True)}
        told = [
            ("release", each[1]) if each[0] == "-" else ("take", each) for each in steps.split()
        ]
        return Case(label, {**data, "steps": told})

    names = "abcdef"
    some = life(generator, names, 3, 14)
    return [
        case("the first adapter", 2, "", "", "a"),
        case("two adapters", 2, "", "", "a b"),
        case("one that is there, without users", 2, "a1", "0", "a"),
        case("one that has a user", 2, "a1", "1", "a a"),
        case("three in turn, two slots", 2, "", "", "a b -a -b c"),
        case("a free slot and an adapter without users", 3, "a1 b3", "0 0", "c"),
        case("the only slot, without users", 1, "a1", "0", "b"),
        case("all have users", 2, "a1 b2", "1 2", "c b c"),
        case("the older one has users", 2, "a1 b2", "1 0", "c"),
        case("the one that was used longest ago is in slot 2", 2, "b2 a1", "0 0", "c d"),
        case("taken again, so the other is the older one", 2, "a1 b2", "0 0", "a -a c"),
        case("two requests, one of which has ended", 1, "a1", "2", "-a b -a b"),
        case("three slots, the one in the middle has no users", 3, "a3 b1 c2", "1 0 1", "d -d e"),
        case("a file that is missing", 2, "a1", "1", "b a", broken="b"),
        case("a file that is missing, in a full cache", 2, "a2 b1", "0 1", "c d", broken="c"),
        case("a missing file, and no slot", 1, "a1", "1", "b -a a", broken="b"),
        case("a long life", 3, "", "", " ".join(some)),
    ]


def life(generator: torch.Generator, names: str, most: int, length: int) -> list[str]:
    """Steps of requests that come and go, at most one more than there are slots."""
    running, steps = list[str](), list[str]()
    while len(steps) < length:
        if len(running) >= most or (running and draw(generator, 0, 2) == 0):
            steps.append(f"-{running.pop(draw(generator, 0, len(running) - 1))}")
        else:
            running.append(names[draw(generator, 0, len(names) - 1)])
            steps.append(running[-1])
    return steps


def release_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, slots: list[tuple[str, int]], users: list[int], *steps: str) -> Case:
        counts = {name: count for (name, _), count in zip(slots, users, strict=True)}
        return Case(label, {"size": 3, "slots": slots, "users": counts, "steps": list(steps)})

    one, three = [("a", 1)], [("b", 3), ("a", 1), ("c", 2)]
    more = draw(generator, 3, 8)
    return [
        case("the only user", one, [1], "a"),
        case("one of two users", one, [2], "a"),
        case("both users", one, [2], "a", "a"),
        case("of three adapters the oldest", three, [1, 1, 1], "b"),
        case("of three adapters the newest", three, [1, 0, 1], "c"),
        case("of three adapters all", three, [1, 2, 1], "a", "c", "b", "a"),
        case("many users", three, [1, more, 0], "a", "a"),
    ]


# ---------------------------------------------------------------------------------- whose blocks


def salted_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *owners: tuple[str | int, str | None, int]) -> Case:
        return Case(label, {"owners": list(owners)})

    def joined(sign: str) -> Case:
        """Salts and names that are alike when they are joined with a sign, in any order."""
        texts = "a", f"a{sign}a", f"1{sign}a", f"a{sign}1", f"a1{sign}a"
        owners = [(salt, adapter, 1) for salt in texts for adapter in texts]
        return case(f"salts and names with {sign!r} in them", *owners)

    version = draw(generator, 3, 9)
    return [
        case("the base", ("", None, 0)),
        case("the base, twice", ("", None, 0), ("", None, 0)),
        case("an adapter, twice", ("", "verse", 1), ("", "verse", 1)),
        case("the base and an adapter", ("", None, 0), ("", "verse", 1)),
        case("two adapters", ("", "verse", 1), ("", "capitals", 1)),
        case("two versions of an adapter", ("", "verse", 1), ("", "verse", 2)),
        case("two users of the base", ("ann", None, 0), ("bob", None, 0), ("", None, 0)),
        case("two users of an adapter", ("ann", "verse", 1), ("bob", "verse", 1)),
        case("version 11 of x, version 1 of x1", ("", "x", 11), ("", "1x", 1), ("", "x1", 1)),
        case("a client whose salt is an adapter's result", ("", "verse", 1), (0, None, 0)),
        case("a client whose salt is a result of the base", ("", None, 0), (0, None, 0)),
        case("names like those of none", ("", "", 0), ("", "None", 0), ("", None, 0)),
        case("a name that isn't ASCII", ("", "für", version), ("", "fur", version)),
        case("salts of zero bytes", ("", None, 0), ("\0", None, 0), ("\0" * 8, None, 0)),
        *(joined(sign) for sign in ["", *":|/,;- _#\n\0"]),
    ]


# -------------------------------------------------------------------------- the next, and its name


def next_request_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("waiting", "running", "passed", "most", "patience")
    p = draw(generator, 2, 6)
    waiting = [draw(generator, 0, 4) for _ in range(8)]
    passed = sorted((draw(generator, 0, p) for _ in waiting), reverse=True)
    return [
        case("no request waits", [], [1], [], 1, p),
        case("one waits, none runs", [1], [], [0], 1, p),
        case("two wait, none runs", [1, 2], [], [0, 0], 1, p),
        case("the first doesn't fit, the second does", [2, 1], [1], [0, 0], 1, p),
        case("the base needs no slot", [2, 0], [1], [0, 0], 1, p),
        case("the base runs, and takes no slot", [2, 0], [0, 0], [0, 0], 1, p),
        case("base first", [0, 1], [1], [0, 0], 1, p),
        case("none of them fits", [2, 3], [1, 1, 0], [0, 0], 1, p),
        case("three requests of two adapters run", [3, 2], [1, 1, 2], [0, 0], 2, p),
        case("three requests of one adapter run", [3, 2], [1, 1, 1], [0, 0], 2, p),
        case("a slot is free", [3, 1], [1, 0], [0, 0], 2, p),
        case("the first was passed as often as it may be", [2, 1], [1], [p, 0], 1, p),
        case("the first was passed once more", [2, 1], [1], [p + 1, 0], 1, p),
        case("a late one that fits", [1, 2], [3], [0, p + 3], 2, p),
        case("a late one doesn't fit, the base would", [0, 2], [1], [0, p + 3], 1, p),
        case("of two late ones the first", [1, 2, 3], [1], [0, p + 1, p + 4], 2, p),
        case("of two late ones the first doesn't fit", [2, 1, 3], [1], [p + 1, p + 4, 0], 1, p),
        case("more run than may", [3], [1, 2], [0], 1, p),
        case("three late ones", [1, 0, 1], [1], [p + 2, p + 4, p + 1], 1, p),
        case("a late one of the base", [2, 0, 1], [1], [0, p + 1, 0], 1, p),
        case("patience 0, and none was passed", [2, 1], [1], [0, 0], 1, 0),
        case("patience 0", [2, 1], [1], [1, 0], 1, 0),
        case("eight more", waiting, [1, 2, 0, 1], passed, 3, p),
        case("the same, a slot less", waiting, [1, 2, 0, 1], passed, 2, p),
    ]


def served_cases(generator: torch.Generator) -> list[Case]:
    case = case_of("models", "base", "versions")
    few = {"capitals": 3, "verse": 1}
    wrong = ["verse", "fable:", "other:verse", "fable:versex", "fable:ver", "fable:verse:1", ""]
    other = {"a": draw(generator, 2, 9), "ab": 1, "b": draw(generator, 10, 90)}
    names = ["m", "m:a", "m:ab", "m:b"]
    return [
        case("the base", ["fable"], "fable", {}),
        case("an adapter", ["fable:verse"], "fable", {"verse": 1}),
        case("two adapters and the base", ["fable:capitals", "fable:verse", "fable"], "fable", few),
        *(case(f"a name that isn't served: {name!r}", [name], "fable", few) for name in wrong),
        case("an adapter where there is none", ["fable:verse"], "fable", {}),
        case("names that begin alike", names, "m", other),
        case("an adapter that is named as the base", ["m:m", "m"], "m", {"m": 2}),
        case("a base with a colon", ["m:8b:x", "m:8b", "m"], "m:8b", {"x": 4}),
    ]


EXERCISES = (
    Exercise("adapters.delta", drivers.delta, delta_cases),
    Exercise("adapters.merged", drivers.merged, merged_cases),
    Exercise("adapters.stacked", drivers.stacked, stacked_cases),
    Exercise("adapters.adapter_rows", drivers.adapter_rows, adapter_rows_cases),
    Exercise("adapters.gathered", drivers.gathered, rows_cases),
    Exercise("adapters.in_segments", drivers.in_segments, segment_cases),
    Exercise("adapters.AdapterCache.take", drivers.take, take_cases),
    Exercise("adapters.AdapterCache.release", drivers.release, release_cases),
    Exercise("adapters.salted", drivers.salted, salted_cases),
    Exercise("adapters.next_request", drivers.next_request, next_request_cases),
    Exercise("adapters.served", drivers.served, served_cases),
)
