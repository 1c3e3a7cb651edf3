"""The report on a lab: what it counts, and that nobody's text can do anything in it."""

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.course.lesson import lessons
from autograder.grading.report import ExerciseNumbers, Report, report, to_csv, to_html
from autograder.grading.results import Result
from autograder.judging.catalogue import misconceptions
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from tests.common.fake_class import fake_class, fake_mark, fake_result

LESSON = lessons()["generate"]
LOOP, METRICS = LESSON.cards
KNOWN, OTHER = misconceptions(METRICS)[:2]


def graded(student: str, status: str, cause: str | None = None, seconds: float = 0.0) -> Result:
    """A student who passed the first exercise, and did so in the second."""
    second = fake_mark(METRICS, status, LESSON, cause, seconds)
    return fake_result(student, LESSON, (fake_mark(LOOP, PASSED, LESSON, seconds=1.0), second))


def metrics_of(results: list[Result]) -> ExerciseNumbers:
    return next(each for each in report(results, LESSON).exercises if each.name == METRICS)


CLASS = [
    graded("dan", WRONG, OTHER.name, 0.5),
    graded("ada", PASSED, None, 0.25),
    graded("cat", WRONG, KNOWN.name, 4.0),
    graded("eve", WRONG, None, 0.5),
    graded("fay", NOT_ATTEMPTED),
    graded("bob", WRONG, KNOWN.name, 0.5),
]


# ---------------------------------------------------------------------------------- the numbers


def test_an_exercise_says_how_many_passed_and_why_the_others_did_not() -> None:
    found = metrics_of(CLASS)
    assert (found.passed, found.wrong, found.not_attempted) == (1, 4, 1)
    assert [(held.name, held.sentence, held.students) for held in found.held] == [
        (KNOWN.name, KNOWN.sentence, 2),
        (OTHER.name, OTHER.sentence, 1),
    ]
    assert found.unexplained == ("eve",)


def test_processor_time_is_that_of_the_attempts() -> None:
    found = metrics_of(CLASS)
    assert (found.middle, found.largest) == (0.5, 4.0)
    assert metrics_of([graded("fay", NOT_ATTEMPTED)]).middle is None


@pytest.mark.parametrize(
    ("passed", "wrong", "found"),
    [
        *[(10, 0, 1), (9, 1, 1), (8, 1, 2), (3, 1, 2), (2, 1, 3), (2, 2, 3), (1, 2, 4), (1, 3, 4)],
        *[(1, 4, 5), (0, 9, 5), (1, 1, None), (0, 0, None)],
    ],
)
def test_a_difficulty_is_found_by_the_share_of_attempts_that_passed(passed, wrong, found) -> None:
    results = [graded(f"p{i}", PASSED) for i in range(passed)]
    results += [graded(f"w{i}", WRONG) for i in range(wrong)]
    lazy = [graded(f"n{i}", NOT_ATTEMPTED) for i in range(20)]
    assert metrics_of(results).found == metrics_of(results + lazy).found == found


def test_a_row_holds_what_a_student_earned() -> None:
    rows = {row.student: row for row in report(CLASS, LESSON).rows}
    assert list(rows) == ["ada", "bob", "cat", "dan", "eve", "fay"]
    assert (rows["ada"].points, rows["bob"].points, rows["bob"].most) == (8, 5, 8)
    assert [mark.status for mark in rows["bob"].marks if mark] == [PASSED, WRONG]


def test_the_mistakes_of_most_students_come_first() -> None:
    assert [(held.name, held.students) for held in report(CLASS, LESSON).mistakes] == [
        (KNOWN.name, 2),
        (OTHER.name, 1),
    ]


def test_a_report_depends_on_the_class_and_not_on_the_order() -> None:
    assert report(CLASS, LESSON) == report(CLASS[::-1], LESSON)
    results = fake_class(lessons()["kv_cache"], 40)
    assert to_html(report(results, lessons()["kv_cache"])) == to_html(
        report(results[::-1], lessons()["kv_cache"])
    )


@pytest.mark.parametrize("lab", lessons())
def test_every_lab_has_a_report_that_adds_up(lab: str) -> None:
    results = fake_class(lessons()[lab], 60)
    counted = report(results, lessons()[lab])
    for each in counted.exercises:
        assert each.passed + each.wrong + each.not_attempted == 60
        assert sum(held.students for held in each.held) + len(each.unexplained) == each.wrong
    assert sum(row.points for row in counted.rows) == sum(result.points for result in results)
    assert len(text_of(to_html(counted))) > 1000


def test_results_of_another_lab_are_refused() -> None:
    with pytest.raises(ValueError, match="can't hold results of kv_cache"):
        report([*CLASS, fake_result("gus", lessons()["kv_cache"])], LESSON)


def test_an_exercise_that_came_or_went_since_is_shown_as_what_it_is() -> None:
    old = replace(fake_mark(METRICS, WRONG, LESSON, "forgotten"), exercise="generate.gone")
    counted = report([fake_result("ada", LESSON, (old,)), *CLASS], LESSON)
    assert [each.name for each in counted.exercises] == [LOOP, METRICS, "generate.gone"]
    assert [mark is None for mark in counted.rows[0].marks] == [True, True, False]
    page = text_of(to_html(counted))
    assert "generate.gone" in page
    assert "1 forgotten: the catalogue no longer has it." in page


# ------------------------------------------------------------------------------------- the page


class Page(HTMLParser):
    """The tags of a page with their attributes' names, its text, and its tables' rows."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def text_of(source: str) -> str:
    page = Page(source)
    assert page.open == []
    return " ".join(" ".join(page.words).split())


def test_the_page_tells_what_was_counted() -> None:
    page = text_of(to_html(report(CLASS, LESSON)))
    assert "What 6 students made of it." in page
    assert "1 passed, 4 wrong, 1 not attempted" in page
    assert "promised ●○○○○ harder , found ●●●●●" in page
    assert "0.5 s of processor time in the middle, 4 s at most" in page
    assert "1 for no known cause: eve" in page
    assert page.index("What to talk about first") < page.index("2 students")
    assert "20 s of processor time for each exercise 2 GB of memory" in page
    assert "a1b2c3d4" in page
    assert "5e6f7a8b" in page
    prose = sum(LESSON.questions.values())
    assert f"the {prose} points for answers in prose are given by hand" in page


def test_the_page_names_the_exercises_that_were_harder_than_promised() -> None:
    number = list(LESSON.cards).index(METRICS) + 1
    assert f"Harder than their cards promise: {number}. {LESSON.cards[METRICS].title}." in text_of(
        to_html(report(CLASS, LESSON))
    )
    as_promised = [graded(f"p{i}", PASSED) for i in range(5)]
    assert "No exercise was found harder" in text_of(to_html(report(as_promised, LESSON)))


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    source = to_html(report(CLASS, LESSON))
    names = {name for tag, names in Page(source).tags for name in (tag, *names)}
    assert not names & {"script", "link", "img", "iframe", "src", "href", "object", "form"}
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in source
    assert "@import" not in source


def test_what_ran_without_a_sandbox_is_said_at_the_top() -> None:
    assert "without a sandbox" not in to_html(report(CLASS, LESSON))
    mixed = [*CLASS, fake_result("gus", LESSON, sandboxed=False)]
    page = text_of(to_html(report(mixed, LESSON)))
    assert page.index("Graded without a sandbox: 1 of 7 submissions.") < page.index("points in the")


def test_limits_versions_and_secrets_say_for_whom_they_hold() -> None:
    mixed = [
        *CLASS,
        fake_result("gus", LESSON, limits=("2 GB of memory",), version="old", secret="other"),
    ]
    page = text_of(to_html(report(mixed, LESSON)))
    assert "2 GB of memory 20 s of processor time for each exercise (6 of 7)" in page
    assert "a1b2c3d4 (6 of 7) old (1 of 7)" in page
    assert "5e6f7a8b (6 of 7) other (1 of 7)" in page


def test_what_was_odd_is_told_of_whom() -> None:
    odd = fake_result("zoe", LESSON, remarks=("The notebook can't be read: it is no JSON.",))
    assert "zoe The notebook can't be read: it is no JSON." in text_of(
        to_html(report([*CLASS, odd], LESSON))
    )
    assert "What was odd" not in to_html(report(CLASS, LESSON))


def test_nothing_is_told_by_colour_alone() -> None:
    page = text_of(to_html(report(CLASS, LESSON)))
    assert "bob 5 of 8 ✓ 5 ✗ 0" in page
    assert "fay 5 of 8 ✓ 5 ○ 0" in page


def test_a_class_of_nobody_and_of_one_have_a_page() -> None:
    assert "No submission has been graded yet." in text_of(to_html(report([], LESSON)))
    assert "What 1 student made of it." in text_of(to_html(report(CLASS[:1], LESSON)))


# ------------------------------------------------------------------------------- hostile text

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='x",
    "</style></table><h1>All grades: 100",
    "&lt;b&gt;",
    "ada\u202e\u2066bidi\x1b[2J\x00\r\n",
    "`</code><b>`",
    "\ud800",
    "x" * 3000,
]


def with_text(text: str) -> Report:
    """A report in which everything that may be a stranger's is this text."""
    marks = tuple(
        replace(fake_mark(exercise, WRONG, LESSON), paragraphs=(text,), rows=((text, text),))
        for exercise in LESSON.cards
    )
    hostile = fake_result(text, LESSON, marks, (text,), (text,), True, text, text)
    return report([hostile], LESSON)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_changes_the_page_around_it(text: str) -> None:
    source = to_html(with_text(text))
    assert Page(source).tags == Page(to_html(with_text("harmless"))).tags
    assert not re.search(
        r"[^\n\x20-\x7e\xa0-\uffff]|[\u200b-\u200f\u202a-\u202e\u2066-\u2069]", source
    )
    assert len(source) < 40_000
    source.encode()


@given(st.text(min_size=1, max_size=50))
def test_no_text_at_all_changes_the_page_around_it(text: str) -> None:
    assert Page(to_html(with_text(text))).tags == Page(to_html(with_text("harmless"))).tags


# ------------------------------------------------------------------------------------ the table


def test_the_table_has_a_row_for_each_student() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(report(CLASS, LESSON)))))
    assert [row["student"] for row in rows] == ["ada", "bob", "cat", "dan", "eve", "fay"]
    assert rows[1] == {
        "student": "bob",
        LOOP: "5",
        METRICS: "0",
        "total": "5",
        "max": "8",
        "remarks": "",
    }
    assert Counter(row["total"] for row in rows) == {"8": 1, "5": 5}


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", *HOSTILE]
)
def test_no_cell_of_the_table_is_a_formula(text: str) -> None:
    results = [replace(CLASS[0], student=text, remarks=(text, text))]
    [_, row] = csv.reader(io.StringIO(to_csv(report(results, LESSON))))
    assert not [cell for cell in row if cell.strip()[:1] in tuple("=+-@＝\t\r")]
    assert not [cell for cell in row if not cell.isprintable()]
    assert row[1:5] == ["5", "0", "5", "8"]


PIECES = st.sampled_from([*",;\t\"'\\ =+-@＝a1\n\r", "=1+1", ';"=', "…"])
TEXTS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=20))


@given(TEXTS, TEXTS)
def test_no_cell_is_a_formula_wherever_a_spreadsheet_splits(student: str, remark: str) -> None:
    """At each separator, whether or not it takes notice of quotes or of backslashes."""
    results = [replace(CLASS[0], student=student, remarks=(remark, remark))]
    table = to_csv(report(results, LESSON))
    for separator in ",;\t":
        for habit in HABITS:
            for row in csv.reader(io.StringIO(table), delimiter=separator, **habit):
                cells = [cell.lstrip(' "\\') for cell in row]
                assert not [cell for cell in cells if cell[:1] in tuple("=+-@＝＋－＠")]


HABITS: list[dict[str, Any]] = [
    {},
    {"quoting": csv.QUOTE_NONE},
    {"escapechar": "\\"},
    {"doublequote": False},
]
HABITS += [{"quoting": csv.QUOTE_NONE, "escapechar": "\\"}, {"skipinitialspace": True}]
