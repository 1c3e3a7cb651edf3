"""The result of grading one submission: plain data that can be kept, sent and compared."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, get_args, get_origin, get_type_hints

RESULT = "inference_result"  # in the metadata of nbgrader's copy: the id of the result


@dataclass(frozen=True)
class Mark:
    """The points of one exercise, and the reason.

    status: "passed", "wrong" or "not attempted". paragraphs: the likely cause if one is known, then
    what was found. rows: labeled values, including the smallest failing case. misconception: the
    name of the one that explains every case. reread: the section of the lesson to read again.
    seconds: the attempt's processor time.
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
    """The result of one submission of a lab.

    submission: the SHA-256 of its content. remarks: about all of it, such as why it could not be
    read. limits: those in force while its code ran, in words. sandboxed: whether it ran in a
    sandbox. version: of the course. secret: the id of the secret from which its cases were derived.
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
    """Replaces a missing result. why: the reason, in words for the instructor."""

    why: str


def to_json(result: Result) -> str:
    return json.dumps(asdict(result), indent=1)


def from_json(text: str) -> Result:
    """Raises ValueError for anything but what `to_json` writes."""
    try:
        return made(Result, json.loads(text))
    except RecursionError:
        raise ValueError("its parts are nested too deeply") from None


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
    raise ValueError(f"expected {kind}, not {type(value).__name__}")


def result_id(result: Result) -> str:
    """Identify a result by its content."""
    return hashlib.sha256(to_json(result).encode()).hexdigest()[:32]
