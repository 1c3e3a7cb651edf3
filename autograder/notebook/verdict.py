"""A judgement in words: the card that a check shows."""

from typing import Any

from torch import Tensor

from autograder.attempt.plain import Strange
from autograder.judging.exercise import Case, Exercise
from autograder.judging.judge import WRONG, Judgement
from autograder.notebook.calls import calls_of
from autograder.notebook.card import VerdictCard

SMALL = 24  # numbers that a value may hold to be shown at once
LARGE = 200  # ... to be written out among the rest


def verdict_card(exercise: Exercise, judgement: Judgement) -> VerdictCard:
    """The verdict, its likely cause, the first place that differs; the whole case folded away."""
    if judgement.status != WRONG:
        hint = [] if judgement.case else [f'For a start: `hint("{exercise.name}")`']
        said = [judgement.message, *(hint if judgement.status != "passed" else [])]
        return VerdictCard(exercise.name, judgement.status, said)
    case = judgement.case
    return VerdictCard(
        exercise.name,
        WRONG,
        judgement.paragraphs,
        rows(judgement),
        pasted(exercise, case) if case else "",
    )


def rows(judgement: Judgement) -> list[tuple[str, str]]:
    """The smallest failing case, the learner's own line, and the two values if they are small."""
    found = [("smallest failing case", judgement.case.label)] if judgement.case else []
    if judgement.line:
        found.append(("your line", judgement.line))
    difference = judgement.difference
    if difference is not None and (difference.got is not None or difference.expected is not None):
        got, expected = part(difference.got, difference.expected)
        if size(got) <= SMALL and size(expected) <= SMALL:
            found += [("got", python(got)), ("expected", python(expected))]
    return found


def part(got: Any, expected: Any) -> tuple[Any, Any]:
    """The innermost two parts that differ, so that no more is shown than must be."""
    if isinstance(got, Tensor) and isinstance(expected, Tensor):
        same = got.shape == expected.shape and got.ndim > 1 and got.dtype == expected.dtype
        pairs = list(zip(got, expected, strict=True)) if same and size(got) > SMALL else []
    elif (
        type(got) is type(expected) and isinstance(got, (list, tuple)) and len(got) == len(expected)
    ):
        pairs = list(zip(got, expected, strict=True))
    elif isinstance(got, dict) and isinstance(expected, dict) and got.keys() == expected.keys():
        pairs = [(got[key], expected[key]) for key in expected]
    else:
        pairs = []
    for mine, theirs in pairs:
        if size(mine) != size(theirs) or python(mine) != python(theirs):
            return part(mine, theirs)
    return got, expected


# ------------------------------------------------------------------------------ values as Python


def pasted(exercise: Exercise, case: Case) -> str:
    """The case in Python that can be pasted: its calls, or its data by name.

    What is large is fetched from where it is kept.
    """
    if calls := calls_of(exercise, case, python):
        return calls
    lines = []
    if any(size(value) > LARGE for value in case.data.values()):
        lines += ["from autograder.check import failing_case", "", "case = failing_case()"]
    for key, value in case.data.items():
        lines.append(f"{key} = {python(value) if size(value) <= LARGE else f'case[{key!r}]'}")
    return "\n".join(lines)


def python(value: Any) -> str:
    """A value as Python writes it, tensors as torch.tensor([...])."""
    if isinstance(value, Strange):  # what stood there is no plain data
        return value.kind
    if isinstance(value, Tensor):
        dtype = ""
        if str(value.dtype) not in ("torch.int64", "torch.bool", "torch.float32", "torch.float64"):
            dtype = f", dtype={value.dtype}"
        return f"torch.tensor({numbers(value.tolist())}{dtype})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {python(item)}" for key, item in value.items()) + "}"
    if hasattr(value, "_fields"):
        fields = value._asdict().items()
        return f"{type(value).__name__}({', '.join(f'{k}={python(item)}' for k, item in fields)})"
    if type(value) is tuple:
        return "(" + ", ".join(map(python, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(python, value)) + "]"
    return numbers(value)


def numbers(value: Any) -> str:
    """Nested lists of numbers; floats in six digits, and always with a point."""
    if isinstance(value, list):
        return "[" + ", ".join(map(numbers, value)) + "]"
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if set(text) & set(".en") else f"{text}.0"
    return repr(value)


def size(value: Any) -> int:
    """How many numbers a value holds."""
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(size, value))
    return 1
