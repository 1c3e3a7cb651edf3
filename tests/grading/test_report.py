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

from autograder.grading.give_back.report import ExerciseNumbers, Report, report, to_csv, to_html
from autograder.grading.judge.results import Result
from autograder.judging.catalogue import misconceptions
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.text.lesson import lessons
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
    metrics = metrics_of(CLASS)
    assert (metrics.passed, metrics.wrong, metrics.not_attempted) == (1, 4, 1)
    assert [(each.name, each.sentence, each.students) for each in metrics.mistakes] == [
        (KNOWN.name, KNOWN.sentence, 2),
        (OTHER.name, OTHER.sentence, 1),
    ]
    assert report(CLASS, LESSON).mistakes == [*metrics.mistakes]
    assert metrics.unexplained == ("eve",)
    assert (metrics.middle, metrics.largest) == (0.5, 4.0)  # of the attempts alone
    assert metrics_of([graded("fay", NOT_ATTEMPTED)]).middle is None


@pytest.mark.parametrize(
    ("passed", "wrong", "measured"),
    [
        *[(10, 0, 1), (9, 1, 1), (8, 1, 2), (3, 1, 2), (2, 1, 3), (2, 2, 3), (1, 2, 4), (1, 3, 4)],
        *[(1, 4, 5), (0, 9, 5), (1, 1, None), (0, 0, None)],
    ],
)
def test_a_difficulty_is_the_share_of_attempts_that_passed(passed, wrong, measured) -> None:
    results = [graded(f"p{i}", PASSED) for i in range(passed)]
    results += [graded(f"w{i}", WRONG) for i in range(wrong)]
    lazy = [graded(f"n{i}", NOT_ATTEMPTED) for i in range(20)]
    assert metrics_of(results).measured == metrics_of(results + lazy).measured == measured


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
        explained = sum(mistake.students for mistake in each.mistakes)
        assert explained + len(each.unexplained) == each.wrong
    assert sum(row.points for row in counted.rows) == sum(result.points for result in results)
    assert len(text_of(to_html(counted))) > 1000


def test_results_of_another_lab_are_refused() -> None:
    with pytest.raises(ValueError, match="can't contain results of kv_cache"):
        report([*CLASS, fake_result("gus", lessons()["kv_cache"])], LESSON)


def test_an_exercise_that_came_or_went_since_is_shown_as_what_it_is() -> None:
    old = replace(fake_mark(METRICS, WRONG, LESSON, "forgotten"), exercise="generate.gone")
    counted = report([fake_result("ada", LESSON, (old,)), *CLASS], LESSON)
    assert [each.name for each in counted.exercises] == [LOOP, METRICS, "generate.gone"]
    assert [mark is None for mark in counted.rows[0].marks] == [True, True, False]
    page = text_of(to_html(counted))
    assert "generate.gone" in page
    assert "1 forgotten: no longer in the catalogue." in page


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


HARDER = f"{list(LESSON.cards).index(METRICS) + 1}. {LESSON.cards[METRICS].title}"
UNSAFE = {"limits": ("2 GB of memory",), "sandboxed": False, "version": "old", "secret": "other"}
GUS = fake_result("gus", LESSON, (), ("It is odd.",), **UNSAFE)
PAGES: dict[str, tuple[list[Result], list[str]]] = {
    "a class": (
        CLASS,
        [
            "Results of 6 students.",
            f"the {sum(LESSON.questions.values())} points for written answers are given by hand",
            "What to discuss first",
            "2 students",
            f"Harder than their cards say: {HARDER}.",
            "1 passed, 4 wrong, 1 not attempted",
            "card ●○○○○ harder , measured ●●●●●",
            "0.5 s of processor time (median), 4 s at most",
            "1 wrong for an unknown reason: eve",
            "bob 5 of 8 ✓ 5 ✗ 0",  # no information is in color alone
            "fay 5 of 8 ✓ 5 ○ 0",
            "20 s of processor time for each exercise 2 GB of memory",
            "a1b2c3d4",
            "5e6f7a8b",
        ],
    ),
    "one who is like no other": (
        [*CLASS, GUS],
        [
            "Graded without a sandbox: 1 of 7 submissions.",
            "points (median)",
            "Remarks",
            "gus It is odd.",
            "2 GB of memory 20 s of processor time for each exercise (6 of 7)",
            "a1b2c3d4 (6 of 7) old (1 of 7)",
            "5e6f7a8b (6 of 7) other (1 of 7)",
        ],
    ),
    "all right": ([graded(f"p{i}", PASSED) for i in range(5)], ["No exercise was harder"]),
    "nobody": ([], ["No submission has been graded yet."]),
    "one": (CLASS[:1], ["Results of 1 student."]),
}


@pytest.mark.parametrize("what", PAGES)
def test_the_page_tells_what_was_counted_in_this_order(what: str) -> None:
    results, told = PAGES[what]
    page = text_of(to_html(report(results, LESSON)))
    places = [page.find(words) for words in told]
    assert -1 not in places, told[places.index(-1)]
    assert places == sorted(places)
    is_odd = GUS in results
    assert ("ithout a sandbox" in page) == ("Remarks" in page) == is_odd


def test_the_page_fetches_nothing_and_runs_nothing() -> None:
    source = to_html(report(CLASS, LESSON))
    names = {name for tag, names in Page(source).tags for name in (tag, *names)}
    assert not names & {"script", "link", "img", "iframe", "src", "href", "object", "form"}
    assert not [name for name in names if name.startswith("on")]
    assert "url(" not in source
    assert "@import" not in source


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

HIDDEN = r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]"


def with_text(text: str) -> Report:
    """A report in which everything that may be a stranger's is this text."""
    marks = tuple(
        replace(fake_mark(exercise, WRONG, LESSON), paragraphs=(text,), rows=((text, text),))
        for exercise in LESSON.cards
    )
    hostile = fake_result(text, LESSON, marks, (text,), limits=(text,), version=text, secret=text)
    return report([hostile], LESSON)


@given(st.sampled_from(HOSTILE) | st.text(min_size=1, max_size=50))
def test_no_text_at_all_changes_the_page_around_it(text: str) -> None:
    source = to_html(with_text(text))
    assert Page(source).tags == Page(to_html(with_text("harmless"))).tags
    assert not re.search(HIDDEN, source)
    assert len(source) < 40_000
    source.encode()


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


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1"]
PIECES = st.sampled_from([*",;\t\"'\\ =+-@＝a1\n\r", "=1+1", ';"=', "…"])
TEXTS = st.one_of(
    st.sampled_from(FORMULAS + HOSTILE), st.lists(PIECES, max_size=12).map("".join), st.text()
)
HABITS: list[dict[str, Any]] = [
    *({}, {"quoting": csv.QUOTE_NONE}, {"escapechar": "\\"}, {"doublequote": False}),
    *({"quoting": csv.QUOTE_NONE, "escapechar": "\\"}, {"skipinitialspace": True}),
]


@given(TEXTS, TEXTS)
def test_no_cell_is_a_formula_wherever_a_spreadsheet_splits(student: str, remark: str) -> None:
    """At each separator, whether or not it takes notice of quotes or of backslashes."""
    results = [replace(CLASS[0], student=student, remarks=(remark, remark))]
    table = to_csv(report(results, LESSON))
    [_, whole] = csv.reader(io.StringIO(table))
    assert not [cell for cell in whole if re.search(f"{HIDDEN}|\n", cell)]
    assert whole[1:5] == ["5", "0", "5", "8"]
    for separator in ",;\t":
        for habit in HABITS:
            for row in csv.reader(io.StringIO(table), delimiter=separator, **habit):
                cells = [cell.lstrip(' "\\') for cell in row]
                assert not [cell for cell in cells if cell[:1] in tuple("=+-@＝＋－＠")]
