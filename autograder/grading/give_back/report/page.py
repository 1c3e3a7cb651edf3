"""The report as a page: page.html shows what `report` counts."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from autograder.grading.give_back.report.counts import DIFFICULTIES, Report, StudentRow
from autograder.grading.judge.foreign import counted, listed, shown
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.notebook.card import COLORS
from autograder.text.templates import render

PAGE = Path(__file__).with_name("page.html")
BINS = 10
SIGNS = {PASSED: "✓", WRONG: "✗", NOT_ATTEMPTED: "○"}  # so that no information is in color alone
CLASSES = {PASSED: "passed", WRONG: "wrong", NOT_ATTEMPTED: "open"}


def to_html(report: Report) -> str:
    """Make a self-contained page: no scripts, no downloads, readable on a phone, printable."""
    return render(
        PAGE,
        report=report,
        facts=facts(report.rows),
        bins=bins(report.rows),
        levels=levels(),
        hardest=len(DIFFICULTIES),
        remarks=[(each.student, " ".join(each.remarks)) for each in report.rows if each.remarks],
        limits=report.limits or (("none", len(report.rows)),),
        COLORS=COLORS,
        SIGNS=SIGNS,
        CLASSES=CLASSES,
        counted=counted,
        listed=listed,
        shown=shown,
    )


def facts(rows: Sequence[StudentRow]) -> dict[str, str]:
    """Return the numbers to show first, by what they mean."""
    if not rows:
        return {}
    points = [each.points for each in rows]
    return {
        f"of {max(each.most for each in rows):g} points (median)": f"{median(points):.3g}",
        "on average": f"{mean(points):.3g}",
        "with all points": f"{sum(each.points == each.most for each in rows)}",
        "with no points": f"{points.count(0)}",
    }


def bins(rows: Sequence[StudentRow]) -> list[int]:
    """Return how many students have which share of the points."""
    shares = [each.points / each.most if each.most else 0 for each in rows]
    numbers = Counter(min(BINS - 1, int(share * BINS)) for share in shares)
    return [numbers[i] for i in range(BINS)]


def levels() -> str:
    first, *others = [(level, share) for level, share in DIFFICULTIES.items() if share]
    rest = ", ".join(f"{level} from {share:.0%}" for level, share in others)
    return f"at least {first[1]:.0%} of them passed, {rest}, otherwise {len(DIFFICULTIES)}"
