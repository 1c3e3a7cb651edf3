"""The learner's own report: one page of HTML to keep or send, which needs no other file.

It has the speed of their engine next to others, the exercises that passed, and pictures from their
notebooks. It needs no torch.
"""

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from autograder.notebook.passed import progress_in
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from timing.kept_rows import Row, kept
from timing.peers.catalogue import OTHERS
from timing.report.pictures import fitting, pictures_in

WORK = ROOT / "work"
TITLE = "An inference engine of my own"
MARK = '<meta name="generator" content="timing.report">'  # a file without it isn't overwritten
MINE = "mine"
MARKS = {
    "#": "Its weights are rounded or a window hides tokens, so its text may differ.",
    "!": "Other programs were busy meanwhile, so its time is too long.",
}


def write_report(out: Path | None = None, name: str | None = None) -> Path:
    """Write the page, by default to work/report.html. Return its path.

    name: the learner's, if the page is to show it. Raises ValueError if another file is in the way,
    and OSError if the page can't be written.
    """
    out = out or WORK / "report.html"
    if out.exists() and (out.is_dir() or MARK.encode() not in out.read_bytes()):
        raise ValueError(f"{out} isn't a report, so it stays as it is. Name another file.")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(name), encoding="utf-8")
    return out


def page(name: str | None) -> str:
    begun = [p for p in map(progress_in, lessons().values()) if p.is_begun]
    labs = {progress.lesson.lab for progress in begun}
    rows, others = comparable(kept())
    pictures = [picture for p in begun for picture in pictures_in(WORK / p.lesson.notebook)]
    shown = fitting(pictures)
    used = {mark for row in rows for mark in marks(row)}
    return TEMPLATE.render(
        name=name,
        today=f"{date.today():%B %d, %Y}".replace(" 0", " "),
        begun=begun,
        not_begun=[lab for lab in lessons() if lab not in labs],
        lessons=list(lessons().values()),
        exercises=sum(len(lesson.cards) for lesson in lessons().values()),
        tables=tables(rows),
        gains=[gain(row, rows) for row in rows if row["technique"] == "naive"],
        machine=f"{machine(rows[-1])}, torch {rows[-1].get('torch')}" if rows else "",
        elsewhere=list(dict.fromkeys(map(machine, others))),
        marks={mark: why for mark, why in MARKS.items() if mark in used},
        shown=shown,
        left_out=len(pictures) - len(shown),
    )


def names_in(exercises: Sequence[str]) -> list[str]:
    """Return the names of exercises without their lab's."""
    return [exercise.partition(".")[2] for exercise in exercises]


# ------------------------------------------------------------------------------------------ speed


def comparable(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows to compare, and those of other machines.

    They are of the machine where the learner's code was timed last, and of the workloads that it
    has served there.
    """
    own = [row for row in rows if row["technique"] == MINE]
    if not own:
        return [], []
    here = [row for row in rows if machine(row) == machine(own[-1])]
    served = {work(row) for row in here if row["technique"] == MINE}
    return (
        [row for row in here if work(row) in served],
        [row for row in rows if machine(row) != machine(own[-1])],
    )


def machine(row: Row) -> str:
    return f"{row['processor']}, cores: {row.get('cores')}, device: {row.get('device')}"


def work(row: Row) -> tuple[str, str]:
    return row["model"], row["workload"]


def gain(row: Row, rows: Sequence[Row]) -> float:
    """Return how many times as fast the learner's code is on a row's workload."""
    [mine] = [r for r in rows if r["technique"] == MINE and work(r) == work(row)]
    return mine["tok_per_s"] / row["tok_per_s"]


def times(factor: float) -> str:
    return f"{factor:,.1f} ×"


def tables(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each workload, the fastest first."""
    fastest_first = sorted(rows, key=lambda row: -row["tok_per_s"])
    return [
        [row for row in fastest_first if work(row) == it] for it in dict.fromkeys(map(work, rows))
    ]


def side(row: Row) -> str:
    name = row["technique"]
    return "mine" if name == MINE else "other" if name in OTHERS else "course"


def title_of(row: Row) -> str:
    count, workload = row.get("requests"), row["workload"]
    kind = "unequal" if workload == "ragged" else workload
    what = f"One request, {workload}" if count == 1 else f"{count} {kind} requests"
    return f"{what} ({Path(row['model']).name})"  # a model's folder may say who owns it


def about(row: Row) -> str:
    what = str(row.get("about", row["technique"]))
    if row["technique"] == MINE:
        what = what.rpartition(": ")[2].replace("your", "my", 1)
    return " ".join([what, *marks(row)])


def marks(row: Row) -> list[str]:
    flags = {"#": row.get("differs"), "!": row.get("disturbed")}
    return [mark for mark, flag in flags.items() if flag]


def details(row: Row) -> str:
    """Return when a row was timed, its name on the table of timed_generate.py, and its threads."""
    return f"{row['date'][:10]} · {row['technique']} · threads: {row.get('threads')}"


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
)
PAGES.globals |= {"title": TITLE, "mark": MARK, "mine": MINE}
PAGES.globals |= {it.__name__: it for it in (title_of, side, about, details, gain, times, names_in)}
TEMPLATE = PAGES.get_template("page.html")
