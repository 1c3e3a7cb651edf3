"""Code that has passed its check, kept in work/.mine, and getting it back: `mine`.

The file of an exercise holds the definition that passed and whatever of the learner's own it uses.
Nothing there is ever removed; only a passed check writes it. passed.py says where it is.
"""

import contextlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any

from autograder.attempt.notebook import global_names
from autograder.attempt.source import definition, function_of, name_of
from autograder.exercises import exercises
from autograder.judging.exercise import Exercise
from autograder.judging.judge import PASSED, judge, require_outside
from autograder.notebook.passed import graded, is_kept, kept_file, red_file
from autograder.text.reference import fresh_copy, has_reference

NO_SOURCE = "# This exercise passed, but its source could not be found.\n"


# -------------------------------------------------------------------------------------- keeping


def keep(exercise: Exercise, attempt: Any) -> bool:
    """Save the code of an attempt that passed. Returns whether its source was found."""
    if graded():
        return True
    source = source_of(attempt, set(vars(exercise.module)))
    found = source is not None
    if source is None:
        source = NO_SOURCE
    elif name_of(attempt) != exercise.attempt_name:
        source += f"\n\n{exercise.attempt_name} = {name_of(attempt)}\n"
    path = kept_file(exercise.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    red_file(exercise.name).unlink(missing_ok=True)
    return found


def note_red(exercise: Exercise) -> None:
    """Remember that a check which had passed has failed; the code that passed stays."""
    if is_kept(exercise.name):
        with contextlib.suppress(OSError):  # a read-only folder takes nothing from the verdict
            red_file(exercise.name).touch()


def source_of(attempt: Any, given: set[str]) -> str | None:
    """The definition of a function or class, below those of its own that it uses.

    given: names that will be there anyway. Returns None if Python can't say where the code is.
    """
    function = function_of(attempt)
    if function is None:
        return None
    pieces: list[str] = []
    seen = set(given) - {attempt.__name__}

    def add(name: str, value: Any) -> None:
        seen.add(name)
        piece = statement(name, value, attempt.__module__)
        if piece is None:
            return
        for used in global_names(piece):
            if used in function.__globals__ and used not in seen:
                add(used, function.__globals__[used])
        pieces.append(piece)

    add(attempt.__name__, attempt)
    return "\n\n\n".join(pieces) + "\n" if pieces else None


def statement(name: str, value: Any, own_module: str) -> str | None:
    """The code that gives `name` its value; None for a value that has none (a model, a tensor)."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if value is None or isinstance(value, (bool, int, float, str, tuple)):
        return f"{name} = {value!r}"
    module = getattr(value, "__module__", None)
    if module == own_module:
        return definition(value)
    if module and getattr(value, "__name__", None):
        return f"from {module} import {value.__name__} as {name}"
    return None


# ------------------------------------------------------------------------------ getting it back


def mine(lab: str) -> ModuleType:
    """A lab's module made of the learner's own passed code, and of the reference for the rest.

    Prints which is which. Kept code is checked again before it is used, so code that lacks
    something here, or is too old for this version of the lab, does no harm. In a bundle, exercises
    of its own lab that aren't kept are still to be written.
    """
    objects: dict[str, list[Exercise]] = {}
    for exercise in exercises().values():
        if exercise.lab == lab:
            objects.setdefault(exercise.attempt_name, []).append(exercise)
    if not objects:
        labs = dict.fromkeys(f'"{exercise.lab}"' for exercise in exercises().values())
        raise ValueError(f"There is no lab {lab!r}; the labs are {', '.join(labs)}.")

    module = fresh_copy(lab)
    yours, reference = [], []
    for name, group in objects.items():
        kept = [kept_file(exercise.name) for exercise in group if is_kept(exercise.name)]
        newest_first = sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True)
        if not kept:
            reference.append(name)
        elif len(kept) < len(group):
            reference.append(f"{name} (partly open)")
        elif any(replaced(module, name, group, path) for path in newest_first):
            yours.append(name)
        else:
            reference.append(f"{name} (the code kept in {newest_first[0]} does not pass here)")
    others = "from the reference" if has_reference(lab) else "open"
    print(
        f'mine("{lab}"): yours: {", ".join(yours) or "nothing yet"}; '
        f"{others}: {', '.join(reference) or 'nothing'}."
    )
    return module


def lend_new_methods(attempt: Any, reference: Any) -> None:
    """Give a class that was kept from an older version of its lab the methods given since."""
    for name, member in vars(reference).items() if isinstance(attempt, type) else ():
        if not name.startswith("__") and not hasattr(attempt, name):
            setattr(attempt, name, member)


def replaced(module: ModuleType, name: str, group: list[Exercise], path: Path) -> bool:
    """Use kept code instead of the reference's; take it back unless it passes every exercise."""
    require_outside()
    before = dict(vars(module))
    silence = io.StringIO()  # the learner's own prints have been seen when the check passed
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
            attempt = vars(module)[name]
            defined = attempt is not before[name]
            lend_new_methods(attempt, before[name])
            if defined and all(judge(e, attempt).status == PASSED for e in group):
                return True
    except (Exception, SystemExit):
        pass  # whatever is wrong with it, the reference takes its place
    vars(module).clear()
    vars(module).update(before)
    return False
