"""The exercises of lab 5: decoding strategies."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.attempt.drivers import decoding as drivers
from autograder.judging.draws import draw, normal
from autograder.judging.exercise import Case, Exercise, case_of
from solutions import decoding as reference

# ----------------------------------------------------------------------------- logits to logits

NEVER = float("-inf")
# The words of the lesson, mat 0.6, couch 0.2, ..., in another order.
BY_HAND = torch.tensor([[0.05, 0.2, 0.02, 0.6, 0.03, 0.1]]).log()

Row = Float[Tensor, " vocab"]
Logits = Float[Tensor, "rows vocab"]
Ids = Int[Tensor, "rows seq"]


def row_where(
    generator: torch.Generator,
    vocab: int,
    wanted: Callable[[Logits], bool] = lambda row: True,
    shift: float = 0.0,
    scale: float = 2.0,
    never: int = 0,
) -> Row:
    """A row of logits with `shift` added and `never` of them -inf, for which wanted([row]) holds.

    No two are equal. They have two decimals, so that they can be read, unless there are many.
    """
    for _ in range(20_000):
        row = shift + scale * normal(generator, vocab).float()
        row = row if vocab > 100 else row.round(decimals=2)
        distinct = len(row.unique()) == vocab or vocab > 100
        row[torch.randperm(vocab, generator=generator)[:never]] = NEVER
        if distinct and wanted(row[None]):
            return row
    raise RuntimeError("No row of logits meets the condition.")


def rows_of(generator: torch.Generator, rows: int, vocab: int, **kind: Any) -> Logits:
    return torch.stack([row_where(generator, vocab, **kind) for _ in range(rows)])


def temperature_cases(generator: torch.Generator) -> list[Case]:
    case, some = case_of("temperature", "logits"), partial(rows_of, generator)
    tied = some(2, 6)
    tied[0, 2] = tied[0, 4] = tied[0].max() + 1
    tied[1, 1] = tied[1, 3] = tied[1, 5] = tied[1].max() + 1
    return [
        case("one row, temperature 0.5", 0.5, some(1, 4)),
        case("one row, temperature 2", 2, some(1, 4)),
        case("one row, temperature 1", 1.0, some(1, 4)),
        case("one row, temperature 0", 0, some(1, 4)),
        case("three rows, temperature 0.7", 0.7, some(3, 5)),
        case("three rows, temperature 0", 0, some(3, 5)),
        case("three other rows, temperature 0", 0.0, some(3, 5)),
        case("all logits below 0, temperature 0", 0.0, some(2, 5, shift=-20.0)),
        case("all logits below 0, temperature 1.5", 1.5, some(2, 5, shift=-20.0)),
        case("several largest logits in a row, temperature 0", 0.0, tied),
        case("the lowest temperature above 0", 1e-5, some(2, 5)),
        case("a temperature of 100", 100.0, some(2, 5)),
        case("-inf among the logits, temperature 0.8", 0.8, some(2, 5, never=2)),
        case("-inf among the logits, temperature 0", 0.0, some(2, 5, never=3)),
        case("a vocabulary of 300 tokens, temperature 0", 0.0, some(2, 300)),
        case("a vocabulary of 300 tokens, temperature 1.3", 1.3, some(2, 300)),
        case("float64, temperature 0.6", 0.6, some(2, 4).double()),
        case("float64, temperature 0", 0.0, some(2, 4).double()),
    ]


def top_k_cases(generator: torch.Generator) -> list[Case]:
    case, some = case_of("k", "logits"), partial(rows_of, generator)

    def below_0(row: Logits) -> bool:
        return bool(row.max() < 0)

    tied = some(2, 6)
    tied[0, 1] = tied[0, 4] = tied[0].max() + 1
    tied[1, 0] = tied[1, 3] = tied[1, 5] = tied[1].max() + 1
    apart = torch.stack([row_where(generator, 6, shift=shift) for shift in (3.0, -9.0, 12.0)])
    return [
        case("one row of four tokens, k = 2", 2, some(1, 4)),
        case("one row, k = 1", 1, some(1, 4)),
        case("one row, k = 3 of 6", 3, BY_HAND.clone()),
        case("two rows, k = 3", 3, some(2, 6)),
        case("two other rows, k = 3", 3, some(2, 6)),
        case("rows whose logits are far apart, k = 2", 2, apart),
        case("rows whose logits are far apart, k = 4", 4, apart.flip(0)),
        case("equal logits among the k largest", 4, tied),
        case("k is the vocabulary", 5, some(2, 5)),
        case("k is one less than the vocabulary", 4, some(2, 5)),
        case("k is larger than the vocabulary", 9, some(2, 5)),
        case("all logits below 0, k = 2", 2, some(2, 5, wanted=below_0, shift=-4.0)),
        case("-inf among the logits, k = 2", 2, some(2, 6, never=2)),
        case("fewer than k logits that aren't -inf", 4, some(2, 6, never=4)),
        case("a vocabulary of 300 tokens, k = 40", 40, some(2, 300)),
        case("a vocabulary of 300 tokens, k = 280", 280, some(2, 300)),
        case("a vocabulary of 300 tokens, k = 1000", 1000, some(2, 300)),
        case("five rows in float64, k = 3", 3, some(5, 8).double()),
    ]


def top_p_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        p: float,
        *counts: int | None,
        vocab: int = 6,
        margin: float = 5e-4,
        **kind: Any,
    ) -> Case:
        """Rows that keep these numbers of tokens (None: any). No sum is within `margin` of p."""

        def row(count: int | None) -> Row:
            def wanted(row: Logits) -> bool:
                probs = row.softmax(dim=-1).sort(descending=True).values[0]
                before = (probs.cumsum(dim=0) - probs)[probs > 0]
                clear = bool((before - p).abs().min() > margin)
                return clear and count in (None, int((before < p).sum()))

            return row_where(generator, vocab, wanted, **kind)

        logits = torch.stack([row(count) for count in counts])
        return Case(label, {"logits": logits, "p": p})

    def equal(number: int, p: float) -> Case:
        return Case(f"{number} equal logits, p = {p}", {"logits": torch.zeros(1, number), "p": p})

    far = torch.tensor([[100.0, 300.0, 0.0, 200.0], [0.0, 250.0, 400.0, 150.0]])
    double = case("float64, p = 0.7", 0.7, 2, 3, 1)
    high = case("p just below 1", 0.995, 5, 4, scale=3.0)
    return [
        Case("probabilities 0.05, 0.2, 0.02, 0.6, 0.03, 0.1; p = 0.85", by_hand("p", 0.85)),
        Case("probabilities 0.05, 0.2, 0.02, 0.6, 0.03, 0.1; p = 0.5", by_hand("p", 0.5)),
        case("one row of four tokens, p = 0.8", 0.8, 2, vocab=4),
        case("the likeliest token reaches p alone", 0.3, 1, vocab=4),
        case("a tiny p", 0.01, 1, 1, vocab=5),
        case("p = 1", 1.0, 5, 5, vocab=5, scale=1.0),
        case("two rows, one with a sharper distribution", 0.75, 1, 4, scale=1.5),
        case("two rows, the second one sharper", 0.75, 4, 1, scale=1.5),
        case("three rows that keep 2, 4 and 3 tokens", 0.9, 2, 4, 3),
        case("nearly everything stays", 0.97, 4, 5, vocab=5, scale=1.0),
        case("all logits below 0", 0.8, 2, 3, shift=-20.0),
        case("all logits far above 0", 0.8, 3, 2, shift=30.0),
        case("-inf among the logits", 0.9, 2, 3, never=2),
        case("-inf among the logits, p = 1", 1.0, 3, 3, scale=1.0, never=3),
        case("a vocabulary of 300 tokens, p = 0.9", 0.9, None, None, vocab=300),
        case("a vocabulary of 300 tokens, p = 0.2", 0.2, None, None, vocab=300, scale=1.0),
        case("a vocabulary of 2,000 tokens", 0.9, *[None] * 3, vocab=2000, scale=0.5, margin=1e-5),
        Case(double.label, {**double.data, "logits": double.data["logits"].double()}),
        high,
        equal(5, 0.5),
        *(equal(4, p) for p in (0.25, 0.5, 0.75)),
        Case("logits that are far apart, p = 0.9", {"logits": far, "p": 0.9}),
    ]


def by_hand(name: str, value: float) -> dict[str, Any]:
    return {"logits": BY_HAND.clone(), name: value}


def min_p_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, min_p: float, *counts: int | None, vocab: int = 6, **kind: Any) -> Case:
        """Rows that keep these numbers of tokens; None for any number."""

        def row(count: int | None) -> Row:
            def wanted(row: Logits) -> bool:
                shares = (row - row.max()).exp()[0]
                clear = ((shares - min_p).abs() >= 0.01 * min_p) | (shares == 1)
                stay = int((shares >= min_p).sum())
                return bool(clear.all()) and count in (None, stay)

            return row_where(generator, vocab, wanted, **kind)

        logits = torch.stack([row(count) for count in counts])
        return Case(label, {"logits": logits, "min_p": min_p})

    tied = torch.tensor([[1.5, 3.0, -0.5, 3.0], [2.0, 2.0, 2.0, 0.5]])
    far = torch.tensor([[100.0, 300.0, 0.0, 200.0], [0.0, 250.0, 400.0, 150.0]])
    double = case("float64, min-p 0.2", 0.2, 2, 4, 3)
    return [
        Case("probabilities 0.05, 0.2, 0.02, 0.6, 0.03, 0.1; min-p 0.25", by_hand("min_p", 0.25)),
        Case("probabilities 0.05, 0.2, 0.02, 0.6, 0.03, 0.1; min-p 0.06", by_hand("min_p", 0.06)),
        case("one row of four tokens, min-p 0.1", 0.1, 3, vocab=4),
        case("min-p 1: only the likeliest token", 1.0, 1, 1, vocab=5),
        case("min-p 0: all tokens", 0.0, 5, 5, vocab=5),
        case("two rows, one with a sharper distribution", 0.3, 1, 4, scale=1.5),
        case("two rows, the second one sharper", 0.3, 4, 1, scale=1.5),
        case("a flat row: no token is as likely as min-p", 0.4, 8, 10, vocab=12, scale=0.5),
        case("all logits below 0", 0.2, 2, 3, shift=-20.0),
        case("all logits far above 0", 0.2, 3, 2, shift=30.0),
        case("-inf among the logits", 0.1, 2, 3, never=2),
        case("-inf among the logits, min-p 0", 0.0, 6, 6, never=2),
        case("a vocabulary of 300 tokens, min-p 0.05", 0.05, None, None, vocab=300),
        case("a vocabulary of 300 tokens, min-p 0.3", 0.3, None, None, vocab=300, scale=0.5),
        Case(double.label, {**double.data, "logits": double.data["logits"].double()}),
        Case("several likeliest tokens, min-p 1", {"logits": tied, "min_p": 1.0}),
        Case("logits that are far apart, min-p 0.1", {"logits": far, "min_p": 0.1}),
    ]


def penalty_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, penalty: float, logits: Any, ids: list[list[int]]) -> Case:
        tensors = {"logits": torch.as_tensor(logits), "ids": torch.tensor(ids)}
        return Case(label, {**tensors, "penalty": penalty})

    some = partial(rows_of, generator)

    def texts(rows: int, seq: int, vocab: int) -> list[list[int]]:
        return torch.randint(vocab, (rows, seq), generator=generator).tolist()

    a, b, c, d = torch.randperm(6, generator=generator)[:4].tolist()
    return [
        case("one token, its logit above 0", 2.0, [[1.2, -0.4, 2.6, 0.3]], [[2]]),
        case("one token, its logit below 0", 2.0, [[1.2, -0.4, 2.6, 0.3]], [[1]]),
        case("three tokens of four", 1.5, [[1.2, -0.4, 2.6, 0.3]], [[2, 1, 3]]),
        case("one token, twice", 1.3, [[0.7, -0.6, 1.9, -3.2]], [[0, 0]]),
        case("a token below 0, three times", 1.3, [[0.7, -0.6, 1.9, -3.2]], [[3, 0, 3, 3]]),
        case("two rows with different texts", 1.8, some(2, 6), [[a, b], [c, d]]),
        case("two rows, the same tokens in another order", 1.8, some(2, 6), [[a, b], [b, a]]),
        case("repeated tokens in three rows", 1.2, some(3, 6), [[a, a, b], [c, d, c], [b, b, b]]),
        case("the first token differs from the last", 3.0, some(1, 6), [[a, b, c, c]]),
        case("a penalty below 1", 0.5, some(2, 6), [[a, b, a], [c, a, d]]),
        case("a penalty of 1", 1.0, some(2, 6), [[a, b], [c, d]]),
        case("every token occurs", 1.4, some(1, 4, shift=-1.0), [[3, 1, 0, 2]]),
        case("all logits below 0", 1.4, some(2, 6, shift=-20.0), [[a, b], [c, d]]),
        case("a logit of 0 and one of -inf", 1.6, [[0.0, NEVER, 2.0, -2.0]], [[0, 1, 2, 2]]),
        case("a vocabulary of 300 tokens", 1.7, some(2, 300), [[299, 5, 5], [0, 299, 271]]),
        case("a text longer than the vocabulary", 1.1, some(2, 6), texts(2, 20, 6)),
        case("a text of 40 tokens", 1.2, some(3, 300), texts(3, 40, 300)),
        case("float64", 1.9, some(2, 6).double(), [[a, b, a], [d, c, c]]),
    ]


def in_order(order: str, logits: Logits, ids: Ids, params: reference.SamplingParams) -> Logits:
    """The distribution if the steps are applied in this order."""
    steps: dict[str, Callable[[Logits], Logits]] = {
        "penalty": lambda x: reference.apply_repetition_penalty(x, ids, params.repetition_penalty),
        "temperature": lambda x: reference.apply_temperature(x, params.temperature),
        "top-k": lambda x: reference.apply_top_k(x, params.top_k or x.shape[1]),
        "top-p": lambda x: reference.apply_top_p(x, params.top_p),
        "min-p": lambda x: reference.apply_min_p(x, params.min_p),
    }
    for step in order.split():
        logits = steps[step](logits)
    return logits.softmax(dim=-1)


RIGHT_ORDER = "penalty temperature top-k top-p min-p"
LATE_TEMPERATURE = "penalty top-k top-p min-p temperature"
LATE_TOP_K = "penalty temperature top-p top-k min-p"
EARLY_MIN_P = "penalty temperature top-k min-p top-p"
LATE_PENALTY = "temperature top-k top-p min-p penalty"
NO_TOP_P = "penalty temperature top-k min-p"
NO_MIN_P = "penalty temperature top-k top-p"


def is_clear(logits: Logits, ids: Ids, params: reference.SamplingParams) -> bool:
    """Whether the same tokens stay if p and min-p are a little larger or smaller."""
    supports = [
        in_order(RIGHT_ORDER, logits, ids, replace(params, top_p=top_p, min_p=min_p)) > 0
        for top_p in (params.top_p * 0.9999, min(params.top_p * 1.0001, 1.0))
        for min_p in (params.min_p * 0.99, min(params.min_p * 1.01, 1.0))
    ]
    return all(torch.equal(support, supports[0]) for support in supports)


def probs_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        given: dict[str, Any],
        *unlike: str,
        rows: int = 2,
        vocab: int = 8,
        double: bool = False,
        **kind: Any,
    ) -> Case:
        """Other tokens stay in the orders of `unlike`; a penalty makes another one the likeliest.

        Each row's text has a token twice.
        """
        params = reference.SamplingParams(**given)

        def row() -> tuple[Row, list[int]]:
            text = torch.randperm(vocab, generator=generator)[:3].tolist()
            ids = torch.tensor([[*text, text[1]]])

            def wanted(row: Logits) -> bool:
                right = in_order(RIGHT_ORDER, row, ids, params)
                others = (in_order(order, row, ids, params) for order in unlike)
                moved = right.argmax() != row.argmax() or params.repetition_penalty == 1
                different = all(((other > 0) != (right > 0)).any() for other in others)
                return bool((moved or vocab > 100) and different and is_clear(row, ids, params))

            return row_where(generator, vocab, wanted, **kind), ids[0].tolist()

        logits, texts = zip(*(row() for _ in range(rows)), strict=True)
        stacked = torch.stack(logits).double() if double else torch.stack(logits)
        return Case(label, {"logits": stacked, "ids": torch.tensor(texts), "params": given})

    tied = case("several largest logits, temperature 0", {"temperature": 0.0})
    tied.data["logits"][:, 3:6] = 7.0
    every = {"temperature": 2.0, "top_k": 6, "top_p": 0.8, "min_p": 0.2, "repetition_penalty": 1.5}
    greedy = {**every, "temperature": 0}
    long = {"temperature": 0.8, "top_k": 280, "top_p": 0.9, "repetition_penalty": 1.3}
    return [
        case("the model's own distribution", {}, rows=1, vocab=4, scale=1.0),
        case("temperature 0.5", {"temperature": 0.5}, rows=1, vocab=4, scale=1.0),
        case("temperature 0", {"temperature": 0}, rows=1, vocab=4),
        case("top-k 2", {"top_k": 2}, rows=1, vocab=4),
        case("top-p 0.7", {"top_p": 0.7}, rows=1, vocab=4),
        case("min-p 0.3", {"min_p": 0.3}, rows=1, vocab=4),
        case("top-k 1", {"top_k": 1}),
        case("min-p 1", {"min_p": 1.0}),
        case("repetition penalty 2", {"repetition_penalty": 2.0}, rows=1, vocab=4, scale=1.0),
        case("three rows", {}, rows=3, vocab=5, scale=1.0),
        case("a repetition penalty below 1", {"repetition_penalty": 0.4}, scale=1.0),
        case("a penalty, then greedy", {"repetition_penalty": 1.8, "temperature": 0.0}),
        case("temperature 2, top-p", {"temperature": 2.0, "top_p": 0.7}, LATE_TEMPERATURE),
        case("temperature 0.5, top-p", {"temperature": 0.5, "top_p": 0.9}, LATE_TEMPERATURE),
        case("temperature, min-p", {"temperature": 0.6, "min_p": 0.2}, LATE_TEMPERATURE),
        case("temperature, top-k", {"temperature": 1.7, "top_k": 3}),
        case("top-k, top-p", {"top_k": 3, "top_p": 0.8}, LATE_TOP_K),
        case("top-k, min-p", {"top_k": 4, "min_p": 0.15}, NO_MIN_P),
        case("top-p, min-p", {"top_p": 0.8, "min_p": 0.2}, EARLY_MIN_P, NO_MIN_P, scale=1.0),
        case("penalty, top-k", {"repetition_penalty": 1.6, "top_k": 2}, LATE_PENALTY),
        case("penalty, top-p", {"repetition_penalty": 1.6, "top_p": 0.6}, LATE_PENALTY),
        case("penalty, min-p", {"repetition_penalty": 1.6, "min_p": 0.3}, LATE_PENALTY),
        case("temperature 0, top-p, min-p", {"temperature": 0.0, "top_p": 0.9, "min_p": 0.1}),
        tied,
        case("the lowest temperature, top-p", {"temperature": 1e-5, "top_p": 0.5}),
        case("top-k larger than the vocabulary", {"top_k": 50}, scale=1.0),
        case("tiny top-p, min-p 1", {"top_k": 3, "top_p": 1e-3, "min_p": 1.0}),
        case("-inf among the logits", {"temperature": 1.5, "top_p": 0.9}, never=3),
        case("everything", every, LATE_TEMPERATURE, rows=1),
        case("everything, three rows", every, LATE_TOP_K, rows=3),
        case("everything, temperature 0", greedy, rows=3),
        case("everything, -inf among the logits", every, never=2),
        case("a vocabulary of 300 tokens", long, vocab=300, scale=1.0),
        case("a vocabulary of 300 tokens, no top-k", {}, vocab=300, scale=1.0),
        case("everything, float64", every, double=True),
        case("top-p 0.99", {"top_p": 0.99}, NO_TOP_P),
        case("min-p 0.01", {"min_p": 0.01}, NO_MIN_P),
    ]


# ------------------------------------------------------------------------------ drawing a token

BELOW_1 = 1 - 2**-24  # the largest number below 1 in float32
CLEAR = 1e-4  # the least distance of a uniform from the end of a piece, unless both are exact


def draw_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *rows: tuple[list[float], float], dtype: Any = torch.float32) -> Case:
        """Halves, quarters and eighths, which are exact, and so are their sums."""
        probs, uniforms = zip(*rows, strict=True)
        both = torch.tensor(probs, dtype=dtype), torch.tensor(uniforms, dtype=dtype)
        return Case(label, {"probs": both[0], "uniforms": both[1]})

    def some(label: str, rows: int, scale: float, dtype: Any = torch.float32) -> Case:
        """300 tokens; the first and the last of them have probability 0."""
        for _ in range(1000):
            probs = scale * normal(generator, rows, 300).mul(2).softmax(dim=-1)
            probs[:, :3] = probs[:, -3:] = 0
            uniforms = torch.rand(rows, generator=generator, dtype=torch.float64)
            if is_clear_draw(probs, uniforms):
                return Case(label, {"probs": probs.to(dtype), "uniforms": uniforms.to(dtype)})
        raise RuntimeError("No uniform is clearly on a token's piece.")

    def short() -> Case:
        """Rows whose cumulative sum ends below their sum, so that the uniform may be beyond it.

        Each row has another number of zeros at its end.
        """
        rows: list[Tensor] = []
        for _ in range(1000):
            probs = normal(generator, 300).softmax(dim=-1)
            probs[296 - len(rows) :] = 0
            probs[295 - len(rows)] = 0.01
            probs = probs.float()
            if probs.cumsum(dim=-1)[-1] < probs.sum(dim=-1):
                rows.append(probs)
            if len(rows) == 3:
                break
        uniforms = torch.full((len(rows),), BELOW_1)
        data = {"probs": torch.stack(rows), "uniforms": uniforms}
        return Case("the largest uniform below 1, and sums that are rounded", data)

    eighths, zeros = [0.125, 0.5, 0.25, 0.125], [0.0, 0.0, 0.25, 0.0, 0.75, 0.0, 0.0]
    half, quarters = [0.125, 0.125], [0.25, 0.125, 0.125]
    ends = [2**-20, 0.5, 0.5 - 2**-19, 2**-20]
    three = [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.125, 0.875, 0.0]]
    return [
        case("in the middle of the second piece", ([0.25, 0.5, 0.25], 0.5)),
        case("in the middle of the first piece", ([0.5, 0.25, 0.25], 0.3)),
        case("in the last piece", ([0.25, 0.25, 0.5], 0.9)),
        case("the uniform is 0", ([0.25, 0.75], 0.0)),
        case("where one piece ends and the next begins", ([0.25, 0.25, 0.5], 0.25)),
        case("where the last piece begins", (eighths, 0.875)),
        case("the first token has probability 0, and the uniform is 0", ([0.0, 0.5, 0.5], 0.0)),
        case("at a boundary, with probability 0 in the middle", ([0.5, 0.0, 0.5], 0.5)),
        case("the last token has probability 0", ([0.5, 0.5, 0.0], 0.999)),
        case("the largest uniform below 1", (eighths, BELOW_1)),
        case("one token has probability 1", ([0.0, 1.0, 0.0], 0.0), ([0.0, 1.0, 0.0], 0.999)),
        case("zeros, the uniform 0 and the largest below 1", (zeros, 0.0), (zeros, BELOW_1)),
        case("zeros in the middle, at a boundary", (zeros, 0.25), (zeros, 0.125)),
        case("one distribution, three uniforms", *((eighths, u) for u in (0.9375, 0.0625, 0.5))),
        case("three distributions, one uniform", *((row, 0.375) for row in three)),
        case("as many rows as tokens", *zip(three, (0.5, 0.125, 0.75), strict=True)),
        case("a row that sums to 2", ([0.5, 1.0, 0.5], 0.5)),
        case("a row that sums to one half", ([0.25, 0.125, 0.125], 0.625)),
        case("boundaries in rows that sum to 2 and to a quarter", ([0.5, 1.5], 0.25), (half, 0.5)),
        case("rows with different sums", ([1.0, 0.5, 0.5], 0.375), (quarters, 0.875)),
        case("float64", (eighths, 0.375), ([0.0, 0.125, 0.0, 0.875], 0.125), dtype=torch.float64),
        case("short pieces at both ends", (ends, 0.0), (ends, BELOW_1)),
        some("300 tokens", 4, 1.0),
        some("300 tokens, rows with a sum of 3", 4, 3.0),
        some("300 tokens in float64", 3, 1.0, torch.float64),
        short(),
    ]


def is_clear_draw(probs: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]) -> bool:
    """Whether each uniform is on the piece of a token, and not close to its end."""
    ends = probs.cumsum(dim=-1) / probs.sum(dim=-1, keepdim=True)
    return bool(((ends - uniforms[:, None]).abs() > CLEAR).all())


def sample_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        *served: list[int],
        vocab: int = 6,
        alike: bool = False,
        seeds: list[int] | None = None,
        **given: Any,
    ) -> Case:
        """served: the requests of each step. alike: whether all have the same logits and texts."""
        requests = 1 + max(max(step) for step in served)
        seeds = seeds or [draw(generator, 0, 10**6) for _ in range(requests)]
        for _ in range(5000):
            steps = [
                {
                    "requests": step,
                    "logits": shared(normal(generator, len(step), vocab).float() * 1.5, alike),
                    "ids": shared(torch.randint(vocab, (len(step), 4), generator=generator), alike),
                }
                for step in served
            ]
            if is_clear_sample(steps, seeds, reference.SamplingParams(**given)):
                return Case(label, {"params": given, "seeds": seeds, "steps": steps})
        raise RuntimeError("No logits meet the condition.")

    every: dict[str, Any] = {"temperature": 0.8, "top_k": 4, "top_p": 0.8, "min_p": 0.2}
    every["repetition_penalty"] = 1.5
    return [
        case("one row", [0]),
        case("one row, temperature 0.5", [0], temperature=0.5),
        case("two rows", [0, 1]),
        case("three rows with the same logits, three generators", [0, 1, 2], alike=True),
        case("two rows with the same logits and the same seed", [0, 1], alike=True, seeds=[7, 7]),
        case("the same seed, but one has drawn before", [0], [0, 1], vocab=300, seeds=[7, 7]),
        case("greedy", [0, 1, 2], temperature=0),
        case("greedy, repetition penalty 3", [0, 1, 2], temperature=0, repetition_penalty=3.0),
        case("top-k 2", [0, 1, 2], top_k=2),
        case("top-p 0.6", [0, 1, 2], top_p=0.6),
        case("min-p 0.4", [0, 1, 2], min_p=0.4),
        case("repetition penalty 3", [0, 1, 2], repetition_penalty=3.0),
        case("temperature 2", [0, 1, 2], temperature=2.0),
        case("everything", [0, 1, 2], **every),
        case("one request, three tokens", [0], [0], [0]),
        case("a request alone, then in a batch, then alone", [0], [1, 0, 2], [0], temperature=1.5),
        case("a different batch in each step", [0, 1], [2, 1], [2, 3, 1], [0], **every),
        case("a vocabulary of 300 tokens", [0, 1, 2, 3], vocab=300),
    ]


def shared(rows: Tensor, alike: bool) -> Tensor:
    return rows[:1].repeat(len(rows), 1) if alike else rows


def is_clear_sample(
    steps: list[dict[str, Any]], seeds: list[int], params: reference.SamplingParams
) -> bool:
    """Whether each uniform is clearly on a token's piece and the parameters make a difference.

    At some row at least, another token is drawn without the parameters, with row 0's text or the
    newest token alone in the penalty, and if the likeliest token is taken.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    different = [params == reference.SamplingParams()]
    different += 3 * [params.repetition_penalty == 1]
    for step in steps:
        logits, ids = step["logits"], step["ids"]
        uniforms = [torch.rand(1, generator=generators[request]) for request in step["requests"]]
        uniform = torch.cat(uniforms)
        probs = reference.next_token_probs(logits, ids, params)
        if params.temperature > 0 and not is_clear_draw(probs.double(), uniform.double()):
            return False
        drawn = reference.draw(probs, uniform)
        texts = ids[:1].expand_as(ids), ids[:, -1:]
        wrong = [reference.next_token_probs(logits, text, params) for text in texts]
        others = [reference.draw(other, uniform) for other in (logits.softmax(dim=-1), *wrong)]
        others.append(logits.argmax(dim=-1))
        for number, other in enumerate(others):
            different[number] |= not torch.equal(other, drawn)
    return all(different)


# ------------------------------------------------------------------------------- beam search


def continuation_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        count: int,
        beams: int,
        vocab: int = 5,
        scores: list[float] | None = None,
        shift: float = 0.0,
        never: int = 0,
        dtype: Any = torch.float64,
        wanted: Callable[[list[reference.Candidate]], bool] = lambda found: True,
    ) -> Case:
        """shift: added to the first row's logits, twice to the second row's, and so on.

        never: the number of tokens in each row with -inf.
        """
        for _ in range(5000):
            logits = 1.5 * normal(generator, beams, vocab)
            logits += shift * torch.arange(1, beams + 1).unsqueeze(1)
            logits[:, torch.randperm(vocab, generator=generator)[:never]] = NEVER
            own = -1 - normal(generator, beams).abs() if scores is None else torch.tensor(scores)
            own = own.double().sort(descending=True).values if scores is None else own.double()
            found = reference.best_continuations(own, logits, count + 1)
            if is_ranked(found) and wanted(found[:count]):
                both = {"scores": own.to(dtype), "logits": logits.to(dtype)}
                return Case(label, {**both, "count": count})
        raise RuntimeError("No logits meet the condition.")

    def both_twice(found: list[reference.Candidate]) -> bool:
        """Two of each beam, and not in turns."""
        return sorted(c.parent for c in found) == [0, 0, 1, 1] and found[0].parent == 1

    def one_of_each(found: list[reference.Candidate]) -> bool:
        return [c.parent for c in found] == [1, 0]

    far = torch.tensor([[-120.0, 40.0, -20.0, -70.0]])
    return [
        case("one beam with score 0, the likeliest token", 1, 1, 3, scores=[0.0]),
        case("one beam, two tokens", 2, 1, 4, scores=[-1.5]),
        case("two beams, one continuation of each", 2, 2, wanted=one_of_each),
        case("two beams, two continuations of each", 4, 2, wanted=both_twice),
        case("a beam with a far lower score", 4, 2, scores=[-9.0, -1.0]),
        case("beams whose logits have a constant added", 4, 2, shift=6.0, wanted=both_twice),
        case("four beams, six continuations", 6, 4, 7),
        case("more beams than tokens", 6, 5, 3),
        case("as many beams as tokens", 6, 4, 4),
        case("more continuations than there are", 20, 2, 3),
        case("as many continuations as there are", 6, 2, 3),
        case("-inf among the logits", 4, 2, 6, never=2),
        case("float32", 6, 3, 7, dtype=torch.float32),
        case("long texts, whose probabilities round to 0", 4, 2, scores=[-900.0, -900.5]),
        case("logits so high that their exp is infinite", 4, 2, shift=100.0, dtype=torch.float32),
        case("a vocabulary of 300 tokens", 8, 4, 300),
        Case("logits that are far apart", {"scores": torch.zeros(1), "logits": far, "count": 4}),
    ]


def is_ranked(found: list[reference.Candidate]) -> bool:
    """Whether each is clearly better than the next."""
    scores = torch.tensor([candidate.score for candidate in found], dtype=torch.float64)
    return bool((scores[:-1] - scores[1:] > 1e-3).all())


Search = reference.BeamSearch


def step_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        width: int,
        max_new_tokens: int,
        wanted: Callable[[Search], bool] = lambda search: True,
        vocab: int = 6,
        prompt: tuple[int, ...] = (2, 0),
        **options: Any,
    ) -> Case:
        """A search to its end, for which wanted(the reference's) holds."""
        options |= {"width": width, "max_new_tokens": max_new_tokens}
        places = len(prompt) + max_new_tokens
        for _ in range(5000):
            embedding, head = normal(generator, places, vocab, 4), normal(generator, 4, vocab) / 2
            model = {"prompt": [*prompt], "embedding": embedding, "head": head}
            search = played(model, options)
            if wanted(search) and all(is_ranked(candidates) for candidates in search.trace):
                return Case(label, {**model, **options, "steps": len(search.trace)})
        raise RuntimeError("No search meets the condition.")

    def parents(search: Search, step: int) -> list[int]:
        """Of the beams after a step, counted from 1."""
        candidates = search.trace[step - 1]
        others = [c.parent for c in candidates if c.token != search.eos_token_id]
        return others[: search.width]

    def ends(search: Search, step: int) -> list[int]:
        """The ranks of the candidates of a step that are EOS."""
        ranked = enumerate(search.trace[step - 1])
        return [rank for rank, c in ranked if c.token == search.eos_token_id]

    def lasts(search: Search) -> bool:
        return len(search.trace) == search.max_new_tokens

    def late(search: Search) -> bool:
        """Nothing has ended in the first step."""
        return min(ends(search, 1), default=search.width) >= search.width

    def forgets(search: Search) -> bool:
        """One beam has two children, the other has none."""
        return len({*parents(search, 2)}) == 1

    def three(search: Search) -> bool:
        return parents(search, 2) in ([2, 0, 2], [1, 0, 1], [1, 0, 0], [2, 0, 0])

    def is_best(search: Search) -> bool:
        return lasts(search) and ends(search, 2)[:1] == [0]

    def ending(
        label: str, width: int, new: int, *ranks: list[int], is_late: bool = False, **options: Any
    ) -> Case:
        """A search to its last step, with one of these ranks of EOS, token 3, in the second."""

        def wanted(search: Search) -> bool:
            return lasts(search) and ends(search, 2) in ranks and (late(search) or not is_late)

        return case(label, width, new, wanted, eos_token_id=3, **options)

    def goes_on_when_full(search: Search) -> bool:
        """As many have ended as there is room for, and a better one comes later."""
        return lasts(search) and all(ends(search, n)[:1] in ([0], [1]) for n in (2, 3, 4))

    first_and_third = "EOS is the likeliest and the third likeliest, for two beams"
    none_as_good = "no beam can become as good as the finished texts"
    better_later = "`finished` is full, and a better text ends later"
    return [
        case("one beam, one token", 1, 1),
        case("one beam, three tokens", 1, 3),
        case("two beams, one token", 2, 1),
        case("two beams change places", 2, 2, lambda s: parents(s, 2) == [1, 0]),
        case("both beams continue the same one", 2, 3, forgets),
        case("three beams, one of them without a child", 3, 4, three),
        ending("the likeliest token is EOS", 2, 3, [0], is_late=True),
        ending("EOS is the second likeliest", 2, 3, [1]),
        ending("EOS is the third likeliest, for two beams", 2, 3, [2], is_late=True),
        ending("two of three beams end in one step", 3, 4, [0, 1], [0, 2], [1, 2]),
        ending(first_and_third, 2, 3, [0, 2], is_late=True),
        case(
            "EOS in the first step", 2, 3, lambda s: lasts(s) and ends(s, 1) == [0], eos_token_id=3
        ),
        case("EOS in the last step", 2, 2, is_best, eos_token_id=3),
        ending("one beam, which ends", 1, 4, [0]),
        case(
            none_as_good, 2, 6, lambda s: 2 < len(s.trace) < 5, eos_token_id=3, length_penalty=0.0
        ),
        case(better_later, 2, 4, goes_on_when_full, eos_token_id=3, length_penalty=2.0),
        case("the EOS token's id is 0", 2, 3, is_best, eos_token_id=0),
        case("token 0, without an EOS token", 2, 3, lambda s: s.trace[1][0].token == 0),
        ending("the EOS token is in the prompt", 2, 3, [0], prompt=(3, 1, 3)),
        case("more beams than tokens", 4, 3, vocab=3),
        case("more beams than tokens, and EOS", 4, 3, lasts, vocab=3, eos_token_id=1),
        case(
            "four beams, six tokens", 4, 6, lambda s: lasts(s) and bool(s.finished), eos_token_id=5
        ),
        large_eos(generator),
    ]


def played(model: dict[str, Any], options: dict[str, Any]) -> Search:
    """The reference's search in a model of the driver's, to its end."""
    search = Search(drivers.Texts(**model), model["prompt"], **options)
    search.run()
    return search


def large_eos(generator: torch.Generator) -> Case:
    """An EOS so large that `is` is no `==`: a token that was likely without it."""
    for _ in range(5000):
        embedding, head = normal(generator, 4, 300, 4), normal(generator, 4, 300)
        model = {"prompt": [270], "embedding": embedding, "head": head}
        options: dict[str, Any] = {"width": 2, "max_new_tokens": 3}
        first = played(model, options).trace[1][0]
        search = played(model, options | {"eos_token_id": first.token})
        if first.token > 256 and search.finished and len(search.trace) == 3:
            options |= {"eos_token_id": first.token, "steps": 3}
            return Case("a vocabulary of 300 tokens, EOS", {**model, **options})
    raise RuntimeError("No search meets the condition.")


# ------------------------------------------------------------------------------ stop strings


def stop_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, pieces: list[str], *stops: str) -> Case:
        return Case(label, {"pieces": pieces, "stops": list(stops)})

    return [
        case("no stop string in the text", ["one ", "two"], "END"),
        case("a stop string inside a piece", ["one END two", " three"], "END"),
        case("a stop string that is a piece", ["one ", "END", " two"], "END"),
        case("a stop string over two pieces", ["one E", "ND two", " three"], "END"),
        case("a stop string over three pieces", ["one ", "E", "N", "D", " two"], "END"),
        case("a stop string at the very start", ["END", " one"], "END"),
        case("a stop string that is the whole text", ["E", "ND"], "END"),
        case("the same letters in lower case", ["the end", "ed E", "ND of it"], "END"),
        case("no stop strings", ["one ", "E", "ND"]),
        case("no pieces", [], "END"),
        case("a beginning that is not continued", ["one E", "N", " two", " E"], "END"),
        case("the text ends in a stop string's beginning", ["one ", "E", "N"], "END"),
        case("a stop string of one character", ["one", " two. three", " four"], "."),
        case("two new lines", ["One", "\n", "two", "\n", "\n", "three"], "\n\n"),
        case("two stop strings, the second one comes first", ["one B two A three"], "A", "B"),
        case("two stop strings, the first one comes first", ["one A two B three"], "A", "B"),
        case("a stop string that occurs twice", ["one END two END", " three"], "END"),
        case("one stop string begins another", ["one EN", "D two"], "END", "EN"),
        case("one stop string ends another", ["one E", "ND two"], "ND", "END"),
        case("a stop string that repeats its beginning", ["a", "a", "a", "b", "c"], "aab"),
        case("a beginning within a beginning", ["xaba", "bab", "ac", "d"], "ababac"),
        case("two stops, the same beginning", ["one <e", "n", "ot <e", "os> t"], "<end>", "<eos>"),
        case("two beginnings at once, one longer", ["one a", "b", "x two"], "bx", "abc"),
        case("the longer beginning is not continued", ["one ab", "c two", "d"], "abcd", "bc "),
        case("a letter of the stop string earlier in the piece", ["Every", " Eel E"], "END"),
        case("empty pieces", ["", "one ", "E", "", "ND", "", " two"], "END"),
        case("a stop string longer than the text", ["one ", "two"], "one two three"),
        case("a stop with a new line", ["Q: who?", " A: me.\n", "Q", ": and", " why"], "\nQ:"),
        case("a shorter stop string over two pieces", ["one ST", "OP two"], "LONGER", "STOP"),
        case("one stop string inside another, in one piece", ["xabcdq"], "abcd", "bc"),
        case("one stop string inside another, in two pieces", ["xabc", "dq"], "abcd", "bc"),
        random_stop(generator),
    ]


def random_stop(generator: torch.Generator) -> Case:
    """A text of two letters, whose stop string is at the same place however it is divided."""

    def letters(most: int) -> str:
        return "".join("ab"[draw(generator, 0, 1)] for _ in range(draw(generator, 2, most)))

    for _ in range(1000):
        pieces = [letters(4) for _ in range(8)]
        stops = [letters(5) + "b", letters(6) + "a"]
        text = "".join(pieces)
        found = [text.index(stop) for stop in stops if stop in text]
        passed = ["".join(reference.stop_at(parts, stops)) for parts in (pieces, text)]
        if found and min(found) > 8 and passed == [text[: min(found)]] * 2:
            return Case("a text of two letters", {"pieces": pieces, "stops": stops})
    raise RuntimeError("No text meets the condition.")


EXERCISES: tuple[Exercise, ...] = (
    Exercise("decoding.apply_temperature", drivers.filtered, temperature_cases),
    Exercise("decoding.apply_top_k", drivers.filtered, top_k_cases),
    Exercise("decoding.apply_top_p", drivers.apply_top_p, top_p_cases),
    Exercise("decoding.apply_min_p", drivers.filtered, min_p_cases),
    Exercise("decoding.apply_repetition_penalty", drivers.apply_repetition_penalty, penalty_cases),
    Exercise("decoding.next_token_probs", drivers.next_token_probs, probs_cases),
    Exercise("decoding.draw", drivers.draw, draw_cases),
    Exercise("decoding.sample", drivers.sample, sample_cases),
    Exercise("decoding.stop_at", drivers.stop_at, stop_cases),
    Exercise("decoding.best_continuations", drivers.best_continuations, continuation_cases),
    Exercise("decoding.BeamSearch.step", drivers.step, step_cases),
)
