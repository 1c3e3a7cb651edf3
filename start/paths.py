"""The paths through the course: how long each takes, what it contains and what it leaves out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autograder.text.lesson import Card, Lesson, lessons
from start.words import duration, labeled

QUESTION = 5  # minutes, as a lab's own minutes count each written question

Sitting = tuple[str, ...]  # the labs that are done in it


@dataclass(frozen=True)
class CoursePath:
    """only: the exercises of a lab that isn't done in full; such a path has no written questions.

    sitting: what a sitting is called, "week".
    """

    title: str
    plan: str
    sitting: str
    sittings: tuple[Sitting, ...]
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def labs(self) -> list[Lesson]:
        return [lessons()[lab] for sitting in self.sittings for lab in sitting]

    @property
    def minutes(self) -> int:
        return sum(self.minutes_in(lesson) for lesson in self.labs)

    def minutes_in(self, lesson: Lesson) -> int:
        """Return a lab's minutes. Its reading is in proportion to the exercises that are done."""
        if not self.only:
            return lesson.minutes
        without_questions = lesson.minutes - QUESTION * len(lesson.questions)
        done = sum(card.minutes for card in self.exercises(lesson))
        share = done / sum(card.minutes for card in lesson.cards.values() if not card.beyond)
        return 5 * round(without_questions * share / 5)

    def exercises(self, lesson: Lesson) -> list[Card]:
        chosen = self.only.get(lesson.lab)
        return [
            card
            for name, card in lesson.cards.items()
            if (not card.beyond if chosen is None else name.partition(".")[2] in chosen)
        ]

    @property
    def contains(self) -> list[str]:
        """What is done in each sitting, and how long that takes."""
        lines = []
        for number, sitting in enumerate(self.sittings, start=1):
            labs = [lessons()[lab] for lab in sitting]
            partly = any(lab in self.only for lab in sitting)
            done = "; ".join(map(self.part, labs)) if partly else labeled(labs)
            time = duration(sum(self.minutes_in(lesson) for lesson in labs))
            count = f"{self.sitting} {number}: " if len(self.sittings) > 1 else ""
            lines.append(f"{count}{done} ({time})")
        return lines

    def part(self, lesson: Lesson) -> str:
        titles = ", ".join(f"“{card.title}”" for card in self.exercises(lesson))
        return f"lab {lesson.number}, {titles}"

    @property
    def left_out(self) -> str:
        others = [lesson for lesson in lessons().values() if lesson not in self.labs]
        skipped = sum(len(lesson.cards) - len(self.exercises(lesson)) for lesson in self.labs)
        partly = [lessons()[lab] for lab in self.only]
        found = [labeled(others)] if others else []
        if self.only:
            found += [f"{skipped} exercises of {labeled(partly)}", "the written questions"]
        if beyond := [lesson for lesson in self.labs if lesson.beyond and not self.only]:
            time = duration(sum(lesson.beyond for lesson in beyond))
            found.append(f"what is beyond in {labeled(beyond)} ({time})")
        return ", ".join(found) or "nothing"


PATHS = (
    CoursePath(
        "90 minutes",
        "Write the loop that generates text, then the mask and the attention that let it keep its "
        "keys and values. End with `make timed`.",
        "part",
        (("generate", "kv_cache"),),
        {"generate": ("generate",), "kv_cache": ("causal_mask", "ThreadedAttention.forward")},
    ),
    CoursePath(
        "One day",
        "The core, with continuous batching but no static batches, and with blocks but no sharing "
        "or preemption. If a cell needs code that you skipped, import it from `solutions`.",
        "part",
        (("generate", "kv_cache"), ("batching", "paged_attention")),
        {
            "batching": (
                *("SlotCache.select", "SlotCache.attend"),
                *("ContinuousBatcher.admit", "ContinuousBatcher.step"),
            ),
            "paged_attention": (
                *("BlockManager.allocate", "BlockManager.append", "BlockManager.free"),
                *("slot_mapping", "PagedCache.attend"),
            ),
        },
    ),
    CoursePath(
        "A week of evenings",
        "The whole core, one lab an evening, and then the engine that brings its parts together. "
        "What the engine needs from labs 5 and 6 comes with it.",
        "evening",
        (("generate",), ("kv_cache",), ("batching",), ("paged_attention",), ("engine",)),
    ),
    CoursePath(
        "A term of fifteen weeks",
        "The engine, its server and larger models: two labs in the first week, then one a week.",
        "week",
        (
            *(("generate", "kv_cache"), ("batching",), ("paged_attention",), ("decoding",)),
            *(("speculative",), ("engine",), ("prefix_caching",), ("disaggregation",)),
            *(("quantization",), ("kv_reduction",), ("flash_attention",), ("serving",)),
            *(("moe",), ("parallelism",), ("estimating",)),
        ),
    ),
    CoursePath(
        "Half a year",
        "The whole course: two labs in the first week, then one a week.",
        "week",
        (("generate", "kv_cache"), *((lab,) for lab in list(lessons())[2:])),
    ),
)


def table() -> str:
    """Return the paths as a table in Markdown."""
    rows = [
        [path.title, duration(path.minutes), "; ".join(path.contains), path.left_out]
        for path in PATHS
    ]
    head = [["path", "time", "contains", "leaves out"], ["---"] * 4]
    return "".join(f"| {' | '.join(row)} |\n" for row in [*head, *rows])
