"""Read the cards, hints, points and minutes of exercises and questions from the lessons.

They are prose, in a region of its own before the cell that they belong to:

    <!-- #region exercise="kv_cache.KVCache.truncate" title="…" points=2 difficulty=1 minutes=5 -->
    Where it is in the engine.

    **Hint 1.** A question.

    **Hint 2.** What to do.

    **Hint 3.** The skeleton, as a code block.
    <!-- #endregion -->

This module needs only the standard library.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autograder.text.reference import SOLUTIONS, AuthorError

LESSONS = SOLUTIONS / "lessons"
FILE = re.compile(r"\d\d_([a-z][a-z0-9_]*)")
REGION = re.compile(
    r"^<!-- #region (.*?) -->\n(.*?)\n<!-- #endregion -->$", re.DOTALL | re.MULTILINE
)
ATTRIBUTE = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\d+)')
PROMISE = re.compile(r"about (?:(\d+) hours?)? ?(?:(\d+) minutes)? in all")
USED = re.compile(r'mine\("(\w+)"\)|^from solutions\.(\w+)', re.MULTILINE)
HEAD = re.compile(r'^    (track|when|figure|wins): "(.*)"$', re.MULTILINE)
CARD = {"exercise": str, "title": str, "points": int, "difficulty": int, "minutes": int}
QUESTION = {"answer": str, "points": int}


@dataclass(frozen=True)
class Card:
    """What a student should know about an exercise before starting it, and its hints.

    difficulty: 1 to 5. place: where the exercise is in the engine.
    """

    exercise: str
    title: str
    points: int
    difficulty: int
    minutes: int
    place: str
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Lesson:
    """name: of its file, "02_kv_cache". questions: the points of each question in prose.

    minutes: how long the lab takes, as its text promises. uses: the names of the solutions that
    its notebook imports. From the lesson's head: track, where the lab belongs in the course; when
    to do it, if that isn't after the labs that it uses; figure, what it wins as one figure, and
    wins, what the figure means. A bundle has none of these.
    """

    name: str
    cards: dict[str, Card]
    questions: dict[str, int]
    minutes: int = 0
    uses: frozenset[str] = frozenset()
    track: str = ""
    when: str = ""
    figure: str = ""
    wins: str = ""

    @property
    def lab(self) -> str:
        return self.name.split("_", 1)[1]

    @property
    def number(self) -> int:
        return int(self.name.split("_")[0])

    @property
    def notebook(self) -> str:
        """The notebook's path in work/."""
        return f"{self.name}/{self.lab}.ipynb"


@cache
def lessons() -> dict[str, Lesson]:
    """Return every lesson by its lab, in the order of the course."""
    found = [read_lesson(path) for path in sorted(LESSONS.glob("*.md"))]
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


def read_lesson(path: Path) -> Lesson:
    if not FILE.fullmatch(path.stem):
        raise AuthorError(f"{path.name}: name a lesson like 02_kv_cache.md.")
    text = path.read_text(encoding="utf-8")
    cards, questions = {}, {}
    for head, body in REGION.findall(text):
        attributes = {key: json.loads(value) for key, value in ATTRIBUTE.findall(head)}
        if "exercise" in attributes:
            card = read_card(attributes, body, path.name)
            if card.exercise in cards:
                raise AuthorError(f"{path.name}: {card.exercise} has two cards. Keep one.")
            cards[card.exercise] = card
        elif "answer" in attributes:
            require_attributes(attributes, QUESTION, path.name)
            questions[attributes["answer"]] = attributes["points"]
    promise = PROMISE.search(text)
    hours, minutes = promise.groups(default="0") if promise else ("0", "0")
    return Lesson(
        path.stem,
        cards,
        questions,
        minutes=60 * int(hours) + int(minutes),
        uses=frozenset(name for pair in USED.findall(text) for name in pair if name),
        **dict(HEAD.findall(text.partition("\n---\n")[0])),
    )


def read_card(attributes: dict, body: str, file: str) -> Card:
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
    return Card(**attributes, place=" ".join(place.split()), hints=tuple(hints))


def require_attributes(attributes: dict, wanted: dict[str, type], file: str) -> None:
    found = {key: type(value) for key, value in attributes.items()}
    if found != wanted or any(value in (0, "") for value in attributes.values()):
        shape = " ".join(
            f'{key}="…"' if kind is str else f"{key}=…" for key, kind in wanted.items()
        )
        raise AuthorError(
            f"{file}: a region that begins with {next(iter(attributes))} has {shape}, but this one "
            f"has {' '.join(f'{key}={value!r}' for key, value in attributes.items())}."
        )
