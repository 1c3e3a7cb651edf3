"""How a class did in a lab: the report of `report LAB`.

For an instructor before the next lecture: which mistake to discuss first, which exercise was harder
than its card says, and which students need help. `report` counts; `to_html` and `to_csv` show.
"""

import csv
import html
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from autograder.grading.collect.inventory import Inventory
from autograder.grading.judge.foreign import cell, counted, listed, shown
from autograder.grading.judge.results import Mark, Result
from autograder.judging.catalogue import misconceptions
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.notebook.card import COLORS, code_marked
from autograder.text.lesson import Lesson

# The measured difficulty is the first of these whose share of attempts has passed.
DIFFICULTIES = {1: 0.9, 2: 0.75, 3: 0.5, 4: 0.25, 5: 0.0}
FEWEST = 3  # attempts needed for a measured difficulty
FIRST = 5  # mistakes at the top of the page
BINS = 10
NOT_YET = "not graded yet: python -m autograder grade {}"


@dataclass(frozen=True)
class Held:
    """A misconception and the number of students who hold it."""

    exercise: str
    name: str
    sentence: str
    students: int


@dataclass(frozen=True)
class ExerciseNumbers:
    """One exercise, over all students.

    number: its place in the lab. promised: the difficulty on its card, None for an exercise that
    the lesson no longer has. found: the difficulty measured by the share of attempts that passed,
    None for fewer than FEWEST attempts. middle, largest: median and maximum of the attempts'
    processor seconds. unexplained: the students whose answer is wrong for an unknown reason.
    """

    number: int
    name: str
    title: str
    promised: int | None
    passed: int
    wrong: int
    not_attempted: int
    found: int | None
    middle: float | None
    largest: float | None
    held: tuple[Held, ...]
    unexplained: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One student. marks: in the order of the exercises, None if one was not graded."""

    student: str
    marks: tuple[Mark | None, ...]
    points: float
    most: float
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """limits, versions, secrets: each with the number of submissions that it applies to.

    not_graded: folders of submitted/, each with the reason. notes: on everything else found there.
    """

    lesson: Lesson
    exercises: tuple[ExerciseNumbers, ...]
    rows: tuple[Row, ...]
    unsandboxed: int
    limits: tuple[tuple[str, int], ...]
    versions: tuple[tuple[str, int], ...]
    secrets: tuple[tuple[str, int], ...]
    not_graded: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @property
    def mistakes(self) -> list[Held]:
        """All misconceptions found, the most frequent first."""
        held = [each for exercise in self.exercises for each in exercise.held]
        return sorted(held, key=lambda each: -each.students)


def report(results: Sequence[Result], lesson: Lesson, found: Inventory | None = None) -> Report:
    """Count the results of a class. Raises ValueError for results of another lab.

    results: one for each student. found: the content of submitted/, so that the report also lists
    what is not graded.
    """
    others = sorted({result.lab for result in results} - {lesson.lab})
    if others:
        raise ValueError(f"A report on {lesson.lab} can't contain results of {', '.join(others)}.")
    ordered = sorted(results, key=lambda result: result.student)
    graded = dict.fromkeys(mark.exercise for result in ordered for mark in result.marks)
    names = list(lesson.cards | graded)
    waiting = dict.fromkeys(found.students, NOT_YET.format(lesson.lab)) if found else {}
    misplaced = found.misplaced if found else {}
    return Report(
        lesson,
        tuple(numbers(i, name, ordered, lesson) for i, name in enumerate(names, 1)),
        tuple(row(result, names, misplaced) for result in ordered),
        sum(not result.sandboxed for result in ordered),
        counts(limit for result in ordered for limit in dict.fromkeys(result.limits)),
        counts(result.version for result in ordered),
        counts(result.secret for result in ordered),
        not_graded({result.student for result in ordered}, waiting, misplaced),
        tuple(found.notes) if found else (),
    )


def counts(texts: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return each text with its count, the most frequent first."""
    return tuple(Counter(texts).most_common())


def not_graded(graded: set[str], *reasons: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return each student without a result, with the reasons."""
    students = sorted(set().union(*reasons) - graded)
    return tuple((each, " ".join(r[each] for r in reasons if each in r)) for each in students)


def row(result: Result, names: Sequence[str], misplaced: Mapping[str, str]) -> Row:
    marks = {mark.exercise: mark for mark in result.marks}
    odd = [misplaced[result.student]] if result.student in misplaced else []
    return Row(
        result.student,
        tuple(marks.get(name) for name in names),
        result.points,
        result.most,
        (*result.remarks, *odd),
    )


def numbers(number: int, name: str, results: Sequence[Result], lesson: Lesson) -> ExerciseNumbers:
    marks = [(result.student, m) for result in results for m in result.marks if m.exercise == name]
    status = Counter(mark.status for _, mark in marks)
    seconds = [mark.seconds for _, mark in marks if mark.status != NOT_ATTEMPTED]
    wrong = [(student, mark) for student, mark in marks if mark.status == WRONG]
    card = lesson.cards.get(name)
    return ExerciseNumbers(
        number,
        name,
        card.title if card else name,
        card.difficulty if card else None,
        status[PASSED],
        status[WRONG],
        status[NOT_ATTEMPTED],
        difficulty(status[PASSED], status[PASSED] + status[WRONG]),
        median(seconds) if seconds else None,
        max(seconds, default=None),
        held_misconceptions(name, [mark.misconception for _, mark in wrong if mark.misconception]),
        tuple(student for student, mark in wrong if not mark.misconception),
    )


def difficulty(passed: int, attempted: int) -> int | None:
    if attempted < FEWEST:
        return None
    return next(level for level, share in DIFFICULTIES.items() if passed / attempted >= share)


def held_misconceptions(exercise: str, names: Sequence[str]) -> tuple[Held, ...]:
    sentences = {known.name: known.sentence for known in misconceptions(exercise)}
    gone = "{}: no longer in the catalogue."
    return tuple(
        Held(exercise, name, sentences.get(name, gone.format(name)), students)
        for name, students in counts(names)
    )


# -------------------------------------------------------------------------------------- the table


def to_csv(report: Report) -> str:
    """Make a table with a row for each student: points by exercise, total, and remarks."""
    names = [exercise.name for exercise in report.exercises]
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["student", *names, "total", "max", "remarks"])
    for each in report.rows:
        points = [f"{mark.points:g}" if mark else "" for mark in each.marks]
        remarks = cell(" ".join(each.remarks))
        total = [f"{each.points:g}", f"{each.most:g}"]
        table.writerow([cell(each.student), *points, *total, remarks])
    for student, why in report.not_graded:
        table.writerow([cell(student), *[""] * len(names), "", "", cell(why)])
    return file.getvalue()


# --------------------------------------------------------------------------------------- the page

INK, MUTED, LINE, BLUE = "#24292f", "#6b7078", "#d8dce1", "#4a7fb0"
SIGNS = {PASSED: "✓", WRONG: "✗", NOT_ATTEMPTED: "○"}  # so that no information is in color alone
CLASSES = {PASSED: "passed", WRONG: "wrong", NOT_ATTEMPTED: "open"}
STYLE = f"""
:root {{ color-scheme: light; }}
* {{ box-sizing: border-box; print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; color: {INK}; background: white; margin: 0 auto;
  max-width: 62rem; padding: 1.5rem 1rem 4rem; overflow-wrap: anywhere; }}
h1 {{ font-size: 1.7rem; line-height: 1.2; margin: 0; }}
h2 {{ font-size: 1.15rem; margin: 2.6rem 0 .3rem; break-after: avoid; }}
p {{ margin: .3rem 0; max-width: 44rem; }}
code {{ font: .9em ui-monospace, monospace; }}
.muted {{ color: {MUTED}; font-size: .9rem; }}
.banner {{ border: 2px solid {COLORS[WRONG]}; border-radius: 6px; padding: .6rem .9rem;
  margin: 1rem 0; max-width: none; }}
.facts {{ display: flex; flex-wrap: wrap; gap: .5rem 2.2rem; margin: 1rem 0 0; padding: 0; }}
.facts div {{ min-width: 5rem; }}
.facts b {{ display: block; font-size: 1.7rem; line-height: 1.2; font-weight: 600; }}
.spread {{ display: flex; align-items: flex-end; gap: 3px; height: 7rem; margin: 1.4rem 0 0;
  max-width: 32rem; border-bottom: 1px solid {LINE}; }}
.spread div {{ flex: 1; background: {BLUE}; border-radius: 3px 3px 0 0; position: relative; }}
.spread span {{ position: absolute; top: -1.35rem; width: 100%; text-align: center;
  font-size: .8rem; color: {MUTED}; }}
.scale {{ display: flex; justify-content: space-between; max-width: 32rem; }}
ol.first {{ padding: 0; margin: .6rem 0; list-style: none; }}
ol.first li {{ display: grid; grid-template-columns: 4.2rem 1fr; gap: 0 1rem; padding: .7rem 0;
  border-top: 1px solid {LINE}; break-inside: avoid; }}
ol.first li > b {{ font-size: 1.7rem; line-height: 1.2; text-align: right; font-weight: 600; }}
ol.first small {{ font-weight: 400; font-size: .8rem; color: {MUTED}; display: block; }}
.exercise {{ border-top: 1px solid {LINE}; padding: .9rem 0; break-inside: avoid; }}
.exercise h3 {{ font-size: 1rem; margin: 0; }}
.number {{ display: inline-block; min-width: 1.6em; color: {MUTED}; font-weight: 400; }}
.bar {{ display: flex; height: 1.5rem; margin: .45rem 0 .3rem; border-radius: 4px;
  overflow: hidden; background: {LINE}; }}
.bar span {{ color: white; font-size: .8rem; line-height: 1.5rem; padding: 0 .4rem;
  white-space: nowrap; overflow: hidden; }}
.passed {{ background: {COLORS[PASSED]}; }}
.wrong {{ background: {COLORS[WRONG]}; }}
.open {{ background: {COLORS[NOT_ATTEMPTED]}; }}
.about {{ display: flex; flex-wrap: wrap; gap: 0 1.6rem; }}
.dots {{ letter-spacing: .1em; color: {INK}; }}
.harder {{ color: {COLORS[WRONG]}; font-weight: 600; }}
.exercise ul {{ margin: .4rem 0 0; padding-left: 1.2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .45rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid {LINE}; }}
th:first-child, td:first-child {{ text-align: left; position: sticky; left: 0; background: white;
  min-width: 7rem; max-width: 14rem; padding-left: 0; }}
td.text {{ text-align: left; }}
.total {{ white-space: nowrap; padding-right: 1rem; }}
th {{ color: {MUTED}; font-weight: 400; font-size: .9rem; }}
tr {{ break-inside: avoid; }}
td i {{ font-style: normal; display: inline-block; color: white; border-radius: 4px;
  min-width: 2.6rem; padding: 0 .35rem; text-align: center; white-space: nowrap; }}
@media print {{ :root {{ font-size: 11px; }} body {{ max-width: none; padding: 0; }}
  .wide {{ overflow: visible; }} }}
"""


def to_html(report: Report) -> str:
    """Make a self-contained page: no scripts, no downloads, readable on a phone, printable."""
    parts = [
        head(report),
        banner(report),
        summary(report),
        first_mistakes(report),
        all_exercises(report),
        remarks(report),
        left(report),
        students(report),
        grading(report),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title(report.lesson)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def title(lesson: Lesson) -> str:
    return f"Lab {int(lesson.name[:2])}, {said(lesson.lab)}"


def head(report: Report) -> str:
    points = sum(report.lesson.questions.values())
    prose = f"; the {points} points for written answers are given by hand" if points else ""
    who = counted(len(report.rows), "student")
    return (
        f"<h1>{title(report.lesson)}</h1>\n"
        f'<p class="muted">Results of {who}. The points are those '
        f"for the exercises{prose}.</p>"
    )


def banner(report: Report) -> str:
    if not report.unsandboxed:
        return ""
    number = f"{report.unsandboxed} of {len(report.rows)} submissions"
    return (
        f'<p class="banner"><b>Graded without a sandbox: {number}.</b> Their code ran with your '
        "rights, so it could read and change your files, including these grades.</p>"
    )


def summary(report: Report) -> str:
    if not report.rows:
        return "<p>No submission has been graded yet.</p>"
    most = max(each.most for each in report.rows)
    points = [each.points for each in report.rows]
    full = sum(each.points == each.most for each in report.rows)
    facts = {
        f"of {most:g} points (median)": f"{median(points):.3g}",
        "on average": f"{mean(points):.3g}",
        "with all points": f"{full}",
        "with no points": f"{points.count(0)}",
    }
    items = "".join(f"<div><b>{value}</b>{label}</div>" for label, value in facts.items())
    return f'<div class="facts">{items}</div>\n{spread(report.rows)}'


def spread(rows: Sequence[Row]) -> str:
    """Draw how many students have which share of the points."""
    shares = [each.points / each.most if each.most else 0 for each in rows]
    bins = Counter(min(BINS - 1, int(share * BINS)) for share in shares)
    tallest = max(bins.values())
    bars = "".join(
        f'<div style="height:{100 * bins[i] / tallest:.0f}%">'
        + (f"<span>{bins[i]}</span>" if bins[i] else "")
        + "</div>"
        for i in range(BINS)
    )
    return (
        f'<div class="spread" role="img" aria-label="Students by share of the points">{bars}</div>'
        '<div class="scale muted"><span>no points</span><span>students by share</span>'
        "<span>all points</span></div>"
    )


def first_mistakes(report: Report) -> str:
    mistakes = report.mistakes[:FIRST]
    if not mistakes:
        return ""
    titles = {exercise.name: exercise for exercise in report.exercises}
    items = "".join(
        f"<li><b>{held.students}<small>student{'s' * (held.students != 1)}</small></b>"
        f"<div>{code_marked(shown(held.sentence, 600))}"
        f'<div class="muted">{titles[held.exercise].number}. '
        f"{said(titles[held.exercise].title)}</div></div></li>"
        for held in mistakes
    )
    return (
        "<h2>What to discuss first</h2>\n<p>The most frequent mistakes, in the words of the "
        f'feedback.</p>\n<ol class="first">{items}</ol>'
    )


def all_exercises(report: Report) -> str:
    if not report.rows:
        return ""
    return (
        f"<h2>What was hard</h2>\n<p>{harder_ones(report)}</p>\n"
        f'<p class="muted">Measured difficulty depends only on the attempts: 1 of 5 if {levels()}.'
        "</p>\n" + "\n".join(map(one_exercise, report.exercises))
    )


def harder_ones(report: Report) -> str:
    titles = [f"{each.number}. {said(each.title)}" for each in report.exercises if is_harder(each)]
    if not titles:
        return "No exercise was harder than its card says."
    return f"Harder than their cards say: {'; '.join(titles)}."


def is_harder(exercise: ExerciseNumbers) -> bool:
    return (exercise.found or 0) > (exercise.promised or len(DIFFICULTIES))


def levels() -> str:
    first, *others = [(level, share) for level, share in DIFFICULTIES.items() if share]
    rest = ", ".join(f"{level} from {share:.0%}" for level, share in others)
    return f"at least {first[1]:.0%} of them passed, {rest}, otherwise {len(DIFFICULTIES)}"


def one_exercise(exercise: ExerciseNumbers) -> str:
    numbers = exercise.passed, exercise.wrong, exercise.not_attempted
    by_status = dict(zip(SIGNS, numbers, strict=True))
    spans = "".join(
        f'<span class="{CLASSES[status]}" style="flex:{number}" title="{number} {status}">'
        f"{SIGNS[status]} {number}</span>"
        for status, number in by_status.items()
        if number
    )
    words = ", ".join(f"{number} {status}" for status, number in by_status.items())
    mistakes = "".join(
        f"<li><b>{held.students}</b> {code_marked(shown(held.sentence, 600))}</li>"
        for held in exercise.held
    )
    causes = mistakes + (f"<li>{unexplained(exercise)}</li>" if exercise.unexplained else "")
    return (
        f'<div class="exercise"><h3><span class="number">{exercise.number}.</span>'
        f"{said(exercise.title)}</h3>"
        f'<div class="bar" role="img" aria-label="{words}">{spans}</div>'
        f'<div class="about muted"><span>{words}</span>{difficulties(exercise)}{times(exercise)}'
        f"<code>{said(exercise.name)}</code></div>"
        + (f"<ul>{causes}</ul>" if causes else "")
        + "</div>"
    )


def difficulties(exercise: ExerciseNumbers) -> str:
    """Show the difficulty on the card and the measured one."""
    promised = f"<span>card {dots(exercise.promised)}</span>" if exercise.promised else ""
    if exercise.found is None:
        return f"{promised}<span>too few attempts to measure</span>"
    harder = '<span class="harder">harder</span>, ' if is_harder(exercise) else ""
    return f"{promised}<span>{harder}measured {dots(exercise.found)}</span>"


def dots(level: int) -> str:
    picture = "●" * level + "○" * (len(DIFFICULTIES) - level)
    words = f"{level} of {len(DIFFICULTIES)}"
    return f'<span class="dots" role="img" aria-label="{words}" title="{words}">{picture}</span>'


def times(exercise: ExerciseNumbers) -> str:
    if exercise.middle is None:
        return ""
    return (
        f"<span>{exercise.middle:.2g} s of processor time (median), {exercise.largest:.2g} s "
        "at most</span>"
    )


def unexplained(exercise: ExerciseNumbers) -> str:
    """List the students to look at: the catalogue of mistakes doesn't explain their answers."""
    number = len(exercise.unexplained)
    who = html.escape(listed(exercise.unexplained, 8))
    return f"<b>{number}</b> wrong for an unknown reason: {who}"


def remarks(report: Report) -> str:
    odd = [(each.student, " ".join(each.remarks)) for each in report.rows if each.remarks]
    return f"<h2>Remarks</h2>\n{told(odd)}" if odd else ""


def left(report: Report) -> str:
    """List what is in submitted/ without points."""
    if not report.not_graded and not report.notes:
        return ""
    notes = "".join(f"\n<p>{said(note, 1000)}</p>" for note in report.notes)
    return f"<h2>What is not graded</h2>\n{told(report.not_graded)}{notes}"


def told(sentences: Sequence[tuple[str, str]]) -> str:
    """Make a table of students with a text for each."""
    rows = "".join(
        f'<tr><td>{said(student)}</td><td class="text">{said(text, 400)}</td></tr>'
        for student, text in sentences
    )
    return f'<div class="wide"><table>{rows}</table></div>' if rows else ""


def students(report: Report) -> str:
    if not report.rows:
        return ""
    head = '<th>student</th><th class="total">total</th>' + "".join(
        f'<th title="{said(exercise.title)}">{exercise.number}</th>'
        for exercise in report.exercises
    )
    rows = "".join(
        f'<tr><td>{said(each.student, 60)}</td><td class="total"><b>{each.points:g}</b> of '
        f"{each.most:g}</td>{''.join(map(mark_cell, each.marks))}</tr>"
        for each in report.rows
    )
    legend = ", ".join(f"{sign} {status}" for status, sign in SIGNS.items())
    return (
        f'<h2>Students</h2>\n<p>Points by exercise: {legend}.</p>\n<div class="wide"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def mark_cell(mark: Mark | None) -> str:
    if mark is None:
        return "<td>–</td>"
    return f'<td><i class="{CLASSES[mark.status]}">{SIGNS[mark.status]} {mark.points:g}</i></td>'


def grading(report: Report) -> str:
    if not report.rows:
        return ""
    items = [
        ("limits", report.limits or (("none", len(report.rows)),)),
        ("version of the course", report.versions),
        ("secret", report.secrets),
    ]
    total = len(report.rows)
    rows = "".join(
        f'<tr><td>{label}</td><td class="text">{texts(found, total)}</td></tr>'
        for label, found in items
    )
    return f'<h2>How it was graded</h2>\n<div class="wide"><table>{rows}</table></div>'


def texts(found: Sequence[tuple[str, int]], total: int) -> str:
    """Join texts, each with its number of submissions unless it applies to all."""
    return "<br>".join(
        said(text, 300) + ("" if number == total else f" ({number} of {total})")
        for text, number in found
    )


def said(text: str, most: int = 120) -> str:
    """Escape untrusted text for HTML."""
    return html.escape(shown(text, most))
