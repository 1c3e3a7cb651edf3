"""What grading one submission came to: plain data, so that it can be kept, sent and compared."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, get_args, get_origin, get_type_hints

RESULT = "inference_result"  # in the metadata of nbgrader's copy: the id of its result


@dataclass(frozen=True)
class Mark:
    """What one exercise earned, and why.

    status: "passed", "wrong" or "not attempted". paragraphs: the likely cause where one is known,
    then what was found. rows: labelled values, the smallest failing case among them.
    misconception: the name of the one that explains every case. reread: where in the lesson to look
    again. seconds: of processor time, all that the attempt took.
    """

    exercise: str
    points: float
    most: float
    status: str
    paragraphs: tuple[str, ...]
    rows: tuple[tuple[str, str], ...] = ()
    misconception: str | None = None
    reread: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """What one submission of a lab earned.

    submission: the SHA-256 of what was handed in. remarks: what concerns all of it, such as why it
    could not be read. limits: those that held while its code ran, in words. sandboxed: whether it
    ran in a sandbox. version: of the course. secret: the id of the secret that its cases came from.
    """

    student: str
    lab: str
    submission: str
    marks: tuple[Mark, ...]
    remarks: tuple[str, ...]
    limits: tuple[str, ...]
    sandboxed: bool
    version: str
    secret: str
    seconds: float = 0.0

    @property
    def points(self) -> float:
        return sum(mark.points for mark in self.marks)

    @property
    def most(self) -> float:
        return sum(mark.most for mark in self.marks)

    def mark(self, exercise: str) -> Mark:
        return next(mark for mark in self.marks if mark.exercise == exercise)


@dataclass(frozen=True)
class NotGraded:
    """Stands in a result's place where there is none. why: in words, to whoever grades."""

    why: str


def to_json(result: Result) -> str:
    return json.dumps(asdict(result), indent=1)


def from_json(text: str) -> Result:
    """Raises ValueError for anything but what `to_json` writes."""
    try:
        return made(Result, json.loads(text))
    except RecursionError:
        raise ValueError("its parts lie too deep in one another") from None


def made(kind: Any, value: Any) -> Any:
    """Turn JSON into a dataclass, a tuple or a plain value. Raises ValueError for other types."""
    if kind in (Result, Mark):
        types = get_type_hints(kind)
        if isinstance(value, dict) and value.keys() == types.keys():
            return kind(**{name: made(types[name], value[name]) for name in types})
    elif get_origin(kind) is tuple:
        if isinstance(value, list):
            parts = get_args(kind)
            parts = parts[:1] * len(value) if parts[-1] is ... else parts
            return tuple(made(part, item) for part, item in zip(parts, value, strict=True))
    elif isinstance(value, (int, float) if kind is float else kind):
        return value
    raise ValueError(f"{kind} is expected, not {type(value).__name__}")


def result_id(result: Result) -> str:
    """Identify a result by its content."""
    return hashlib.sha256(to_json(result).encode()).hexdigest()[:32]
