"""The catalogue of misconceptions: wrong solutions, each an edit of the reference, with a sentence.

One Markdown file a lab, `course/lab02_kv_cache/wrong.md`:

    ## kv_cache.KVCache.truncate            the exercise

    ### length_stays                        a name
    Nothing is truncated: `length` says how many tokens the cache holds.      the sentence
    - `self.length = n` → `self.length`     a form: an edit, as a student would have written it

An edit changes the reference's function, its signature included. In an item of the list, the code
before the arrow occurs there exactly once, and the code after the arrow replaces it:
`` `old` → `new` ``. Several places are divided by commas; "or" divides the new code of several
forms; `` no `old` `` leaves something out; code alone is the whole solution stretch.

An edit of several lines is an indented block, and a form of its own. Lines that begin with a space
or with `-` occur together exactly once in the function, at any indentation; lines with `+` replace
those with `-`; `@@` begins the next place. A block without any `-` or `+` is the whole solution
stretch.

Nothing here runs before an answer is wrong; each judgement compiles what it needs afresh.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any

from autograder.text.lesson import lessons, place_of
from autograder.text.reference import AuthorError, Module, executed, lab_module, module_of


@dataclass(frozen=True)
class Misconception:
    """A wrong solution that people really write, and a sentence for its author.

    forms: the edits by which it is written, each as the catalogue has it.
    """

    exercise: str
    name: str
    sentence: str
    forms: tuple[str, ...]

    @property
    def path(self) -> str:
        """Of the exercise within its lab: KVCache.attend."""
        return self.exercise.split(".", 1)[1]

    @property
    def lab(self) -> str:
        return self.exercise.split(".")[0]

    def sources(self) -> list[str]:
        """For each form the function, or the class that holds it, as the edit makes it.

        Raises AuthorError for a form that is no edit of the present reference.
        """
        where = f"{file_of(self.lab)}: {self.exercise}, {self.name}"
        return [edited(lab_module(self.lab), self.path, [form], where) for form in self.forms]

    def attempts(self) -> Iterator[Any]:
        """For each form the wrong function, or the class that holds it, made afresh."""
        for source in self.sources():
            yield made(self, source)


def misconceptions(exercise: str) -> tuple[Misconception, ...]:
    """Those of one exercise, in the order of the catalogue."""
    return catalogue(exercise.split(".")[0]).get(exercise, ())


def made(misconception: Misconception, source: str) -> Any:
    """The wrong function, or the class that holds it."""
    names = vars(module_of(misconception.lab))
    made = executed(source, names, f"<{misconception.name}>")
    return made[misconception.path.split(".")[0]]


def pairs(exercise: str) -> Iterator[tuple[Misconception, Any]]:
    """Two misconceptions at once, each in its first form, wherever they edit other places.

    They have the name of the first one, and both sentences.
    """
    edits = [each for each in misconceptions(exercise) if not is_whole(each.forms[0])]
    for one, other in combinations(edits, 2):
        both = replace(one, sentence=f"Two things together. {one.sentence} {other.sentence}")
        try:
            source = edited(lab_module(one.lab), one.path, [one.forms[0], other.forms[0]], "")
            yield both, made(both, source)
        except (AuthorError, SyntaxError):
            continue  # the first edit changes what the second one needs


@cache
def catalogue(lab: str) -> dict[str, tuple[Misconception, ...]]:
    """All of a lab's misconceptions, by exercise."""
    path = lessons()[lab].room / "wrong.md"
    if not path.exists():
        return {}
    return parsed(path.read_text(encoding="utf-8"), place_of(path))


def file_of(lab: str) -> str:
    return place_of(lessons()[lab].room / "wrong.md")


def require_current() -> None:
    """Raise AuthorError for an entry that is no edit of the present reference."""
    for lab in lessons():
        for exercise, entries in catalogue(lab).items():
            own, _, name = exercise.partition(".")
            if own != lab or name not in lab_module(lab).stretches:
                raise AuthorError(f"{file_of(lab)}: there is no exercise {exercise} in solutions/.")
            for misconception in entries:
                for source in misconception.sources():
                    require_python(source, f"{file_of(lab)}: {exercise}, {misconception.name}")


def require_python(source: str, where: str) -> None:
    try:
        compile(source, where, "exec")
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise AuthorError(f"{where}: what comes of the edit is no Python: {line}") from None


def parsed(text: str, file: str) -> dict[str, tuple[Misconception, ...]]:
    found = {}
    for exercise, section in titled(text, "## "):
        entries = [entry(exercise, name, body, file) for name, body in titled(section, "### ")]
        if exercise in found or len({e.name for e in entries}) < len(entries):
            raise AuthorError(f"{file}: a title occurs twice in or at {exercise}.")
        found[exercise] = tuple(entries)
    return found


def titled(text: str, mark: str) -> Iterator[tuple[str, str]]:
    """The sections of a Markdown text whose titles begin with `mark`: title and body."""
    parts = re.split(rf"^{mark}(.+)\n", text, flags=re.MULTILINE)
    return zip((title.strip() for title in parts[1::2]), parts[2::2], strict=True)


def entry(exercise: str, name: str, body: str, file: str) -> Misconception:
    """One misconception: prose, then its forms."""
    prose, *rest = re.split(r"^(?=- (?:no )?`|    )", body.strip("\n"), maxsplit=1, flags=re.M)
    if not prose.rstrip().endswith((".", "?", ")")) or not rest:
        raise AuthorError(f"{file}: {name} needs a sentence, and below it an edit.")
    return Misconception(exercise, name, " ".join(prose.split()), tuple(forms_in(rest[0])))


def forms_in(text: str) -> Iterator[str]:
    """The forms of a misconception: each item of a list, new code by new code, and each block."""
    for part in re.split(r"\n(?=- )|\n\n+", text.rstrip("\n")):
        if not part.startswith("- "):
            yield textwrap.dedent(part)
            continue
        first, *others = re.split(r" or (?=`)", re.sub(r"\n +", " ", part.removeprefix("- ")))
        old = first.split(" → ")[0]
        yield first
        yield from (f"{old} → {new}" if " → " in first else new for new in others)


# -------------------------------------------------------------------------- edits of the reference


def edited(module: Module, path: str, forms: Sequence[str], where: str) -> str:
    """The source of the object around the exercise `path`, changed as these forms say, in turn."""
    if is_whole(forms[0]):
        margin = indent_of(next(line for line in module.stretch(path) if line.strip()))
        lines = forms[0].strip("`").split("\n")
        return module.with_stretch(path, [margin + line for line in lines])
    span = module.functions[path]
    function = [line for line in module.lines[span.start : span.stop] if "### " not in line]
    for form in forms:
        for hunk in [form] if "`" in form else form.split("\n@@\n"):
            change = with_codes if "`" in form else with_hunk
            function = change(function, hunk, where)
    return module.with_function(path, function)


def is_whole(form: str) -> bool:
    """Whether a form is all of the solution stretch, and no edit of it."""
    if "`" in form:
        return form.count("`") == 2 and form[0] == "`"
    return not any(line[:1] in ("+", "-") for line in form.split("\n"))


def with_codes(function: list[str], form: str, where: str) -> list[str]:
    """The function's lines with new code instead of old: `` `old` → `new`, no `old` ``."""
    text = "\n".join(function)
    for edit in re.split(r", (?=`|no `)", form):
        read = re.fullmatch(r"no `([^`]+)`|`([^`]+)` → `([^`]+)`", edit)
        if read is None:
            raise AuthorError(f"{where}: this is no edit: {edit}")
        old, new = read[1] or read[2], read[3] or ""
        require_once(text.count(old), old, where)
        text = text.replace(old, new)
    return text.split("\n")


def require_once(times: int, old: str, where: str) -> None:
    if times != 1:
        raise AuthorError(
            f"{where}: this code occurs {times} times in the reference, and must occur there "
            f"once:\n{old}"
        )


def with_hunk(function: list[str], hunk: str, where: str) -> list[str]:
    """The function's lines with one place changed."""
    lines = hunk.split("\n")
    old = [line[1:] for line in lines if line[0] != "+"]
    new = [line[1:] for line in lines if line[0] != "-"]
    places = [i for i in range(len(function)) if stands_at(function[i : i + len(old)], old)]
    require_once(len(places) if old else 0, "\n".join(old), where)
    start = places[0]
    margin = margin_of(function[start], old[0])
    return function[:start] + [margin + line for line in new] + function[start + len(old) :]


def stands_at(lines: list[str], old: list[str]) -> bool:
    """Whether these lines are the old ones, all indented by the same margin."""
    if len(lines) < len(old) or not lines or not lines[0].endswith(old[0]):
        return False
    margin = margin_of(lines[0], old[0])
    return not margin.strip() and lines == [margin + line for line in old]


def margin_of(line: str, unindented: str) -> str:
    return line[: len(line) - len(unindented)]


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
