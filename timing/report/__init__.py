"""The learner's own report: one page of HTML to keep or send, which needs no other file.

It has the speed of their engine next to others, the exercises that passed, and pictures from their
notebooks. It needs only the standard library.
"""

from collections.abc import Sequence
from datetime import date
from html import escape
from pathlib import Path
from string import Template

from autograder.notebook.passed import Progress, progress_in
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from timing.kept_rows import Row, kept
from timing.peers.catalogue import OTHERS
from timing.report.pictures import fitting, pictures_in

WORK = ROOT / "work"
TITLE = "An inference engine of my own"
MARK = '<meta name="generator" content="timing.report">'  # a file without it isn't overwritten
PAGE = Path(__file__).with_name("page.html")
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
    rows, elsewhere = comparable(kept())
    today = f"{date.today():%B %d, %Y}".replace(" 0", " ")
    return Template(PAGE.read_text(encoding="utf-8")).substitute(
        mark=MARK,
        title=TITLE,
        by=escape(f"{name} · {today}" if name else today),
        figures=figures(begun, rows),
        speed=speed(rows, elsewhere),
        exercises=exercises(begun),
        pictures=gallery(begun),
    )


def figures(begun: Sequence[Progress], rows: Sequence[Row]) -> str:
    """Return the numbers that a reader should see first."""
    total = sum(len(lesson.cards) for lesson in lessons().values())
    known = {
        "exercises passed": f"{sum(len(p.passed) for p in begun)} of {total}",
        "labs finished": f"{sum(not p.left for p in begun)} of {len(lessons())}",
    }
    if gains := [gain(row, rows) for row in rows if row["technique"] == "naive"]:
        known["the naive loop's speed"] = f"{max(gains):,.1f} ×"
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in known.items())


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


def speed(rows: Sequence[Row], elsewhere: Sequence[Row]) -> str:
    if not rows:
        return (
            "<p>My code hasn't been timed yet. This times it, next to the reference, transformers "
            'and other engines: <code>make timed ARGS="--mine --peers"</code></p>'
        )
    where = escape(f"{machine(rows[-1])}, torch {rows[-1].get('torch')}")
    intro = (
        f"<p>Tokens per second, on {where}. My code is bold, and other engines have gray "
        "bars. The last column says how many times as fast my code is.</p>"
    )
    workloads = dict.fromkeys(map(work, rows))
    parts = [intro, *(table([row for row in rows if work(row) == it]) for it in workloads)]
    shown = {mark for row in rows for mark in marks(row)}
    parts += [f'<p class="muted">{m} {why}</p>' for m, why in MARKS.items() if m in shown]
    if elsewhere:
        names = "; ".join(dict.fromkeys(map(machine, elsewhere)))
        parts.append(f'<p class="muted">Not compared, timed elsewhere: {escape(names)}.</p>')
    return "\n".join(parts)


def table(rows: Sequence[Row]) -> str:
    """Return the table of one workload, the fastest first. Its bars are the chart."""
    fastest_first = sorted(rows, key=lambda row: -row["tok_per_s"])
    most = fastest_first[0]["tok_per_s"]
    body = "\n".join(
        f'<tr class="{side(row)}"><td>{about(row)}'
        f'<div class="bar" style="width:{100 * row["tok_per_s"] / most:.1f}%"></div>'
        f"<small>{details(row)}</small></td><td>{row['tok_per_s']:,.0f}</td>"
        f"<td>{'' if row['technique'] == MINE else f'{gain(row, rows):,.1f} ×'}</td></tr>"
        for row in fastest_first
    )
    return (
        f"<h3>{title_of(rows[0])}</h3><table><thead><tr><th>engine</th><th>tok/s</th>"
        f"<th>mine is</th></tr></thead><tbody>{body}</tbody></table>"
    )


def side(row: Row) -> str:
    name = row["technique"]
    return "mine" if name == MINE else "other" if name in OTHERS else "course"


def title_of(row: Row) -> str:
    count, workload = row.get("requests"), row["workload"]
    kind = "unequal" if workload == "ragged" else workload
    what = f"One request, {workload}" if count == 1 else f"{count} {kind} requests"
    return escape(f"{what} ({Path(row['model']).name})")  # a model's folder may say who owns it


def about(row: Row) -> str:
    what = str(row.get("about", row["technique"]))
    if row["technique"] == MINE:
        what = what.rpartition(": ")[2].replace("your", "my", 1)
    return escape(" ".join([what, *marks(row)]))


def marks(row: Row) -> list[str]:
    flags = {"#": row.get("differs"), "!": row.get("disturbed")}
    return [mark for mark, flag in flags.items() if flag]


def details(row: Row) -> str:
    """Return when a row was timed, its name on the table of timed_generate.py, and its threads."""
    return escape(f"{row['date'][:10]} · {row['technique']} · threads: {row.get('threads')}")


# ------------------------------------------------------------------------------ labs and pictures


def exercises(begun: Sequence[Progress]) -> str:
    if not begun:
        first = next(iter(lessons().values()))
        return (
            "<p>No exercise has passed its check yet. <code>make lab</code> opens the course, and "
            f"lab 1, {first.lab}, takes {first.minutes} minutes.</p>"
        )
    rows = "\n".join(map(lab_row, begun))
    labs = {progress.lesson.lab for progress in begun}
    others = ", ".join(lab for lab in lessons() if lab not in labs)
    later = f'<p class="muted">Not begun: {others}.</p>' if others else ""
    return (
        "<table><thead><tr><th>lab</th><th>exercises</th><th>points</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>{later}"
    )


def lab_row(progress: Progress) -> str:
    lesson, (earned, points) = progress.lesson, progress.points
    red = [name.partition(".")[2] for name in progress.red]
    notes = []
    if red:
        notes.append(f'<small class="red">passed once, failed since: {", ".join(red)}</small>')
    if not progress.left:
        won = escape(f"{lesson.figure}, {lesson.wins}")
        notes.append(f"<small>finished; in the course's own measurements: {won}</small>")
    return (
        f"<tr><td>{lesson.number} · {lesson.lab}{''.join(notes)}</td>"
        f"<td>{len(progress.passed)} of {len(progress.states)}</td>"
        f"<td>{earned} of {points}</td></tr>"
    )


def gallery(begun: Sequence[Progress]) -> str:
    """Return the pictures in the notebooks of the labs that were begun."""
    found = [picture for p in begun for picture in pictures_in(WORK / p.lesson.notebook)]
    shown = fitting(found)
    parts = [
        f'<figure><img src="{it.uri}" alt="A picture from my notebook"><figcaption>'
        f"{it.lab} · {escape(it.section)}</figcaption></figure>"
        for it in shown
    ]
    if parts:
        parts.insert(0, "<h2>Pictures from my notebooks</h2>")
    if left_out := len(found) - len(shown):
        parts.append(
            f'<p class="muted">The largest are left out, to keep the page small: {left_out}.</p>'
        )
    return "\n".join(parts)
