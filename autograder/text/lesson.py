"""Read the lessons: the cards, hints, points and minutes of exercises and questions.

A lab is a folder of course/, with its lesson in lesson.md and what is said about the lab in
lab.toml. Cards are prose, in a region of its own before the cell that they belong to:

    <!-- #region exercise="kv_cache.KVCache.truncate" title="…" points=2 difficulty=1 minutes=5 -->
    Where it is in the engine.

    **Hint 1.** A question.

    **Hint 2.** What to do.

    **Hint 3.** The skeleton, as a code block.
    <!-- #endregion -->

A section whose heading ends with "(beyond)" can be left out: the rest of the lab doesn't need it.
Its exercises and minutes are counted apart, and graded like any others.

This module needs only the standard library.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from autograder.text.reference import ROOT, AuthorError

COURSE = ROOT / "course"
ROOM = re.compile(r"lab(\d\d_[a-z][a-z0-9_]*)")
REGION = re.compile(
    r"^<!-- #region (.*?) -->\n(.*?)\n<!-- #endregion -->$", re.DOTALL | re.MULTILINE
)
ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\d+)')
HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
CODE = re.compile(r"^```python.*?^```$", re.DOTALL | re.MULTILINE)
USED = re.compile(r'mine\("(\w+)"\)|^from solutions\.(\w+)', re.MULTILINE)
SECTION, BEYOND = re.compile(r"^(?=## )", re.MULTILINE), "(beyond)"
WORDS_A_MINUTE, MINUTES_A_CELL, MINUTES_A_QUESTION = 120, 0.5, 5
CARD = {"exercise": str, "title": str, "points": int, "difficulty": int, "minutes": int}
QUESTION = {"answer": str, "points": int}


@dataclass(frozen=True)
class Card:
    """What a student should know about an exercise before starting it, and its hints.

    difficulty: 1 to 5. place: where the exercise is in the engine. beyond: whether the lab can be
    finished without it.
    """

    exercise: str
    title: str
    points: int
    difficulty: int
    minutes: int
    place: str
    hints: tuple[str, ...]
    beyond: bool = False


@dataclass(frozen=True)
class Lesson:
    """name: "02_kv_cache". questions: the points of each question in prose.

    minutes: how long the lab takes, to five minutes, without the sections that can be left out;
    beyond: how long these take. uses: the names of the solutions that its notebook imports. From
    lab.toml: line, what one builds in it; track, where the lab belongs in the course; when to do
    it, if that isn't after the labs that it uses; figure, what it wins as one figure, and wins,
    what the figure means; table, the part of the timing table with its rows; solution, what each of
    its files adds. A bundle has none of these.
    """

    name: str
    cards: dict[str, Card]
    questions: dict[str, int]
    minutes: int = 0
    beyond: int = 0
    uses: frozenset[str] = frozenset()
    line: str = ""
    track: str = ""
    when: str = ""
    figure: str = ""
    wins: str = ""
    table: str = ""
    solution: Mapping[str, str] = field(default_factory=dict)

    @property
    def lab(self) -> str:
        return self.name.split("_", 1)[1]

    @property
    def number(self) -> int:
        return int(self.name.split("_")[0])

    @property
    def room(self) -> Path:
        """The folder where an author works on the lab."""
        return COURSE / f"lab{self.name}"

    @property
    def package(self) -> str:
        """The folder's name for imports."""
        return f"{COURSE.name}.{self.room.name}"

    @property
    def notebook(self) -> str:
        """The notebook's path in work/."""
        return f"{self.name}/{self.lab}.ipynb"


@cache
def lessons() -> dict[str, Lesson]:
    """Return every lesson by its lab, in the order of the course."""
    found = [read_lesson(path) for path in sorted(COURSE.glob("*/lesson.md"))]
    return {lesson.lab: lesson for lesson in found}


def builds_on(lesson: Lesson) -> list[Lesson]:
    """Return the labs whose solutions a lab uses, in the order of the course."""
    return [other for other in lessons().values() if other.lab in lesson.uses and other != lesson]


def card_of(exercise: str) -> Card:
    """Return the card of an exercise. Raises AuthorError if its lesson has none."""
    lab = exercise.split(".")[0]
    if lab not in lessons() or exercise not in lessons()[lab].cards:
        raise AuthorError(
            f"The lesson of {lab} has no card for {exercise}. Add a region with "
            f'exercise="{exercise}" before the cell that quotes it.'
        )
    return lessons()[lab].cards[exercise]


def name_of(path: Path) -> str:
    """Return the lab's name, from the folder of its lesson. Raises AuthorError."""
    room = ROOM.fullmatch(path.parent.name)
    if not room:
        raise AuthorError(f"{path.parent.name}: name a lab's folder like lab02_kv_cache.")
    return room[1]


def read_lesson(path: Path) -> Lesson:
    name, text, where = name_of(path), path.read_text(encoding="utf-8"), place_of(path)
    cards, questions, minutes = {}, {}, {False: 0.0, True: 0.0}
    for section in SECTION.split(text):
        beyond = is_beyond(section)
        minutes[beyond] += reading(section)
        for head, body in REGION.findall(section):
            attributes = {key: json.loads(value) for key, value in ATTRIBUTE.findall(head)}
            if "exercise" in attributes:
                card = read_card(attributes, body, where, beyond)
                if card.exercise in cards:
                    raise AuthorError(f"{where}: the card of {card.exercise} occurs twice.")
                cards[card.exercise] = card
                minutes[beyond] += card.minutes
            elif "answer" in attributes:
                require_attributes(attributes, QUESTION, where)
                questions[attributes["answer"]] = attributes["points"]
                minutes[beyond] += MINUTES_A_QUESTION
    is_whole = bool(HEADER.match(text))  # in a bundle there are only cards, and no time is promised
    return Lesson(
        name,
        cards,
        questions,
        minutes=is_whole * promised(minutes[False]),
        beyond=is_whole * promised(minutes[True]),
        uses=frozenset(name for pair in USED.findall(text) for name in pair if name),
        **said_of(path.with_name("lab.toml")),
    )


def place_of(path: Path) -> str:
    """Return a file of a lab as messages name it: "lab02_kv_cache/lesson.md"."""
    return f"{path.parent.name}/{path.name}"


def promised(minutes: float) -> int:
    """Return minutes to the nearest five."""
    return 5 * round(minutes / 5)


def is_beyond(section: str) -> bool:
    return section.partition("\n")[0].endswith(BEYOND)


def reading(section: str) -> float:
    """Return the minutes that a section's words and cells take.

    Hints and model answers don't count, and neither does the file's header.
    """
    lesson = REGION.sub(without_own, HEADER.sub("", section))
    words, cells = len(CODE.sub("", lesson).split()), len(CODE.findall(lesson))
    return words / WORDS_A_MINUTE + MINUTES_A_CELL * cells


def without_own(region: re.Match) -> str:
    """Return the text of a region, unless it is a card or a question, which have own minutes."""
    return "" if region[1].startswith(("exercise=", "answer=")) else region[2]


def said_of(path: Path) -> dict[str, Any]:
    """Read a lab.toml; without one, nothing is said. Raises AuthorError for a key that is none."""
    said = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = {"line", "track", "when", "figure", "wins", "table", "solution"}
    if unknown := said.keys() - known:
        raise AuthorError(f"{place_of(path)}: nothing is known of {', '.join(sorted(unknown))}.")
    return said


def read_card(attributes: dict, body: str, file: str, beyond: bool) -> Card:
    """Make a card from its region's attributes and text. Raises AuthorError with the reason."""
    require_attributes(attributes, CARD, file)
    place, *hints = re.split(r"^\*\*Hint \d\.\*\*\s*", body, flags=re.MULTILINE)
    hints = [hint.strip() for hint in hints]
    name = attributes["exercise"]
    if not place.strip() or len(hints) != 3 or not all(hints) or "```python" not in hints[-1]:
        raise AuthorError(
            f"{file}: the card of {name} needs a sentence on where the exercise is in the engine, "
            "followed by **Hint 1.** to **Hint 3.**, the last one with a code block."
        )
    if not 1 <= attributes["difficulty"] <= 5:
        raise AuthorError(f"{file}: the difficulty of {name} must be 1 to 5.")
    return Card(**attributes, place=" ".join(place.split()), hints=tuple(hints), beyond=beyond)


def require_attributes(attributes: dict, wanted: dict[str, type], file: str) -> None:
    found = {key: type(value) for key, value in attributes.items()}
    if found != wanted or any(v in (0, "") for k, v in attributes.items() if k != "points"):
        shape = " ".join(
            f'{key}="…"' if kind is str else f"{key}=…" for key, kind in wanted.items()
        )
        raise AuthorError(
            f"{file}: a region that begins with {next(iter(attributes))} has {shape}, but this one "
            f"has {' '.join(f'{key}={value!r}' for key, value in attributes.items())}."
        )
