"""The lesson build: from course/*/lesson.md to autograder/source/ (solved) and labs/ (student).

A lesson is a jupytext Markdown notebook. The build adds the parts that a lesson only names. A code
cell marked `from="kv_cache.KVCache"` gets the object's source from solutions/kv_cache.py, and a
check cell for every exercise in it. A region marked `exercise=` becomes that exercise's card,
without its hints. Questions marked `answer=` get their points. nbgrader's own generate_assignment
then removes the solutions. Run it with `make labs`; edit lessons, not labs.
"""

import ast
import difflib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config, PyFileConfigLoader

from autograder import colab
from autograder.exercises import exercises
from autograder.judging import catalogue
from autograder.judging.exercise import Exercise
from autograder.text.lesson import (
    CARD,
    QUESTION,
    Card,
    Lesson,
    name_of,
    place_of,
    read_lesson,
    require_attributes,
)
from autograder.text.reference import BEGIN, ROOT, AuthorError, Module, parts_of, read_module

METADATA = {"code": {"from", "tags"}, "markdown": {*CARD, *QUESTION, "tags"}}
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def build(root: Path, course: Path, registry: Mapping[str, Exercise]) -> list[Path]:
    """Write autograder/source and labs of `course`; return the files, sorted.

    The lessons are in course/ of `root`; they quote the modules in its solutions/, and gpt.py. The
    assignments are entered into the course's gradebook. Raises AuthorError, before anything is
    written, if a lesson is wrong or a file in the way was not written by the build.
    """
    files = sorted(root.glob("course/*/lesson.md"))
    if not files:
        raise AuthorError(f"There are no lessons in {root / 'course'}.")
    modules = read_modules(root / "solutions")
    require_registered(modules, registry, {name_of(file).partition("_")[2] for file in files})
    solved = {name_of(file): solve(file, modules, registry) for file in files}
    require_all_used(solved, registry)
    for name in solved:
        require_replaceable(course, notebook_paths(course, name))
    released = release(solved, course / "autograder" / "gradebook.db")
    written = []
    for name in solved:
        mark(name, solved[name], released[name])
        source, lab = notebook_paths(course, name)
        written += [write(solved[name], source), write(released[name], lab)]
    remove_stale(course, written)
    return sorted(written)


# ------------------------------------------------------------------- from lesson to solved notebook


def read_modules(folder: Path) -> dict[str, Module]:
    """Read the modules that lessons quote from: those of the course, and gpt.py."""
    paths = [folder.parent / "gpt.py", *sorted(folder.rglob("*.py"))]
    parts = {folder / f"{part}.py" for path in paths for part in parts_of(path.stem)[:-1]}
    return {p.stem: read_module(p) for p in paths if p.stem != "__init__" and p not in parts}


def stretches(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return the lines of every solution, by exercise id."""
    return {
        f"{lab}.{path}": module.stretch(path)
        for lab, module in modules.items()
        for path in module.stretches
    }


def solve(
    lesson: Path, modules: Mapping[str, Module], registry: Mapping[str, Exercise]
) -> NotebookNode:
    """Make the solved notebook of one lesson, with cell ids that depend only on the lesson."""
    name, file, known = name_of(lesson), place_of(lesson), read_lesson(lesson)
    cells: list[NotebookNode] = []
    cards: dict[str, Card] = {}
    for number, cell in enumerate(read_cells(lesson), 1):
        where = f"{file}, cell {number}"
        require_known_metadata(cell, where)
        if "exercise" in cell.metadata:
            card = cards[cell.metadata["exercise"]] = known.cards[cell.metadata["exercise"]]
            cells.append(card_cell(card, modules, where))
        elif "from" in cell.metadata:
            cells += quoted_cells(cell, modules, registry, cards, where)
        elif "answer" in cell.metadata:
            cells.append(answer_cell(cell, where))
        elif BEGIN in cell.source:
            raise AuthorError(
                f"{where} contains a solution. Solutions belong in the module; name the object "
                'with from="module.object" and leave the cell empty.'
            )
        elif only_imports(cell):
            cells += set_up_cells(cell, name)
        else:
            cells.append(plain_cell(cell))
    needed = [card.exercise for card in cards.values() if not card.beyond]
    written = sum(count_code(stretches(modules)[exercise]) for exercise in needed)
    promise(cells, known, written)
    give_ids(cells, file)
    return new_notebook(cells=cells, metadata=KERNEL)


def read_cells(lesson: Path) -> list[NotebookNode]:
    cells = jupytext.read(lesson).cells
    for cell in cells:  # jupytext notes the blank lines between cells; they have no meaning here
        cell.metadata = {k: v for k, v in cell.metadata.items() if not k.startswith("lines_to_")}
    return cells


def promise(cells: list[NotebookNode], lesson: Lesson, lines: int) -> None:
    """Say what the lab takes, where its text has {time}, and {lines}, to the nearest five.

    {beyond} is the time of the sections that neither counts.
    """
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace("{time}", in_words(lesson.minutes))
            cell.source = cell.source.replace("{beyond}", in_words(lesson.beyond))
            cell.source = cell.source.replace("{lines}", str(5 * round(lines / 5)))


def in_words(minutes: int) -> str:
    """Return a length of time as prose has it: "3 hours 45 minutes"."""
    parts = zip(divmod(minutes, 60), ("hour", "minute"), strict=True)
    return " ".join(f"{count} {unit}{'s' * (count > 1)}" for count, unit in parts if count)


def require_known_metadata(cell: NotebookNode, where: str) -> None:
    known = METADATA.get(cell.cell_type, set())
    for key in cell.metadata:
        if key not in known:
            raise AuthorError(
                f"{where}: {key!r} has no meaning on a {cell.cell_type} cell. "
                f"Allowed there: {', '.join(sorted(known))}."
            )


def only_imports(cell: NotebookNode) -> bool:
    if cell.cell_type != "code":
        return False
    statements = ast.parse(cell.source).body
    return bool(statements) and all(isinstance(s, ast.Import | ast.ImportFrom) for s in statements)


def set_up_cells(cell: NotebookNode, lesson: str) -> list[NotebookNode]:
    """Return a lab's imports, folded away: fifty lines are no way to begin a lab.

    The cell before them prepares Google Colab, and does nothing elsewhere.
    """
    title = (
        "### Set-up\n\nRun the cells below: they import what this lab uses. Their code is folded "
        "away."
    )
    folded = {"jupyter": {"source_hidden": True}}
    on_colab = {**folded, "cellView": "form", "tags": ["remove-cell"]}  # not in the site's pages
    return [
        new_markdown_cell(title),
        new_code_cell(colab.cell(lesson, repository()), metadata=on_colab),
        new_code_cell(cell.source, metadata={**cell.metadata, **folded}),
    ]


def repository() -> str:
    """Return the address of the course's repository, or "" if it isn't set."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings["tool"]["workbook"]["repository"]


def plain_cell(cell: NotebookNode) -> NotebookNode:
    new_cell = new_code_cell if cell.cell_type == "code" else new_markdown_cell
    return new_cell(cell.source, metadata=cell.metadata)


def card_cell(card: Card, modules: Mapping[str, Module], where: str) -> NotebookNode:
    """Make the cell with a card, which students read before they start."""
    solutions = stretches(modules)
    if card.exercise not in solutions:
        raise AuthorError(
            f"{where}: this is the card of {card.exercise}, but no such solution is marked in "
            "solutions/. Check the name in exercise=."
        )
    lines = count_code(solutions[card.exercise])
    return new_markdown_cell(
        f"### Exercise: {card.title}\n\n"
        f"**Difficulty** {card.difficulty} of 5 · **Time** about {card.minutes} min · "
        f"**Length** about {lines} line{'s' if lines > 1 else ''}"
        f"{' · **Beyond** the lab, which you can finish without it' * card.beyond}\n\n"
        f"**Its place in the engine.** {card.place}\n\n"
        f'Stuck? Run `hint("{card.exercise}")`.'
    )


def quoted_cells(
    cell: NotebookNode,
    modules: Mapping[str, Module],
    registry: Mapping[str, Exercise],
    cards: Mapping[str, Card],
    where: str,
) -> Iterator[NotebookNode]:
    """Yield a cell with the named objects, and then a check for each exercise in them."""
    if cell.source.strip():
        raise AuthorError(
            f"{where}: a cell with from= is filled from the module, so it must be empty. Move its "
            "code into another cell."
        )
    names = str(cell.metadata["from"]).split() or [""]
    source = "\n\n\n".join(quoted_source(name, modules, where) for name in names)
    todo = [
        registry[id]
        for name in names
        for id in stretches(modules)
        if id == name or id.startswith(f"{name}.")
    ]
    for exercise in todo:
        if exercise.name not in cards:
            raise AuthorError(
                f"{where}: {exercise.name} has no card before it. Put a region "
                f'exercise="{exercise.name}" there, with its title, points, minutes and hints.'
            )
    metadata = {key: cell.metadata[key] for key in cell.metadata if key != "from"}
    if todo:
        metadata["nbgrader"] = nbgrader_metadata(todo[0].name, solution=True)
    yield new_code_cell(source, metadata=metadata)
    for exercise in todo:
        yield check_cell(exercise, cards[exercise.name].points)


def quoted_source(name: str, modules: Mapping[str, Module], where: str) -> str:
    module, _, object_name = name.partition(".")
    if module not in modules:
        raise AuthorError(
            f"{where}: there is no module {module!r}. Lessons quote from {', '.join(modules)}."
        )
    objects = modules[module].objects
    if object_name not in objects:
        close = difflib.get_close_matches(object_name.split(".")[0], objects, n=3)
        raise AuthorError(
            f"{where}: {modules[module].path.name} defines no {object_name!r} at its top level. "
            + (f"Did you mean {' or '.join(close)}?" if close else "Check the name in from=.")
        )
    return modules[module].text(objects[object_name])


def count_code(lines: list[str]) -> int:
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def check_cell(exercise: Exercise, points: int) -> NotebookNode:
    metadata = nbgrader_metadata(f"check.{exercise.name}", grade=True, points=points)
    return new_code_cell(
        f'check("{exercise.name}", {exercise.attempt_name})', metadata={"nbgrader": metadata}
    )


def answer_cell(cell: NotebookNode, where: str) -> NotebookNode:
    """Make the cell of a question that is graded by hand; the lesson has the model answer."""
    require_attributes(dict(cell.metadata), QUESTION, where)
    name, points = cell.metadata["answer"], cell.metadata["points"]
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise AuthorError(f"{where}: answer={name!r} must be lower-case words joined by _.")
    metadata = nbgrader_metadata(name, grade=True, solution=True, points=points)
    return new_markdown_cell(cell.source, metadata={"nbgrader": metadata})


def nbgrader_metadata(
    name: str, grade: bool = False, solution: bool = False, points: int | None = None
) -> dict:
    metadata = {
        "schema_version": 3,
        "grade_id": name.replace(".", "-"),  # nbgrader takes no dots
        "grade": grade,
        "solution": solution,
        "locked": not solution,
        "task": False,
    }
    return metadata | ({"points": points} if grade else {})


def give_ids(cells: list[NotebookNode], lesson: str) -> None:
    """Derive ids from cells, so that builds are equal everywhere and an edit changes one id."""
    seen: dict[str, int] = {}
    for cell in cells:
        graded = cell.metadata.get("nbgrader")
        text = f"{cell.cell_type}\n{cell.source}"
        id = graded["grade_id"] if graded else hashlib.sha256(text.encode()).hexdigest()[:12]
        seen[id] = seen.get(id, 0) + 1
        if graded and seen[id] > 1:
            raise AuthorError(
                f"{lesson}: {id} occurs twice. Quote each exercise once, and give every answer its "
                "own name."
            )
        cell["id"] = id if seen[id] == 1 else f"{id}-{seen[id]}"


# ------------------------------------------------------------------ lessons and registry must agree


def require_registered(
    modules: Mapping[str, Module], registry: Mapping[str, Exercise], labs: Container[str]
) -> None:
    """Raise AuthorError for a solution without an exercise, if its lab has a lesson."""
    for name in stretches(modules):
        if name.split(".")[0] in labs and name not in registry:
            raise AuthorError(
                f"solutions/{name.split('.')[0]}.py has a solution in {name}, but there is no such "
                "exercise. Register it in the lab's cases.py, or remove the markers."
            )


def require_all_used(solved: Mapping[str, NotebookNode], registry: Mapping[str, Exercise]) -> None:
    used = [cell.id for notebook in solved.values() for cell in notebook.cells]
    for name in registry:
        times = used.count(f"check-{name.replace('.', '-')}")
        if times != 1:
            raise AuthorError(
                f"The exercise {name} is in {times} lessons and must be in one: quote its "
                f'object there once, with from="{".".join(name.split(".")[:2])}".'
            )


# ----------------------------------------------------------------- release with nbgrader, and write


def course_config(course: Path) -> Config:
    config = PyFileConfigLoader("nbgrader_config.py", path=str(Path(__file__).parent)).load_config()
    config.CourseDirectory.root = str(course)
    return config


def release(solved: Mapping[str, NotebookNode], gradebook: Path) -> dict[str, NotebookNode]:
    """Release the solved notebooks with nbgrader's generate_assignment, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        config = course_config(Path(folder))
        gradebook.parent.mkdir(parents=True, exist_ok=True)
        config.CourseDirectory.db_url = f"sqlite:///{gradebook.resolve().as_posix()}"
        api = NbGraderAPI(config=config)
        released = {}
        for name, notebook in solved.items():
            source, lab = notebook_paths(Path(folder), name)
            write(notebook, source)
            result = api.generate_assignment(name)
            if not result["success"]:
                raise AuthorError(refusal(name, gradebook, result))
            released[name] = nbformat.read(lab, as_version=4)
        return released


def require_alembic() -> None:
    """Raise AuthorError unless nbgrader can start `alembic`, with which it makes a gradebook.

    Otherwise it would fail when all lessons are read, which takes minutes.
    """
    course_config(ROOT)  # puts this Python's programs on the path
    try:
        subprocess.run(["alembic", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise AuthorError(
            f"nbgrader needs the program `alembic`, which can't be started: {error}. Activate the "
            "course's environment (source .venv/bin/activate), and build again."
        ) from None


def refusal(name: str, gradebook: Path, result: dict) -> str:
    if "submissions associated" in result.get("log", ""):
        return (
            f"{gradebook} contains submissions for {name}, whose graded cells have changed since. "
            "Move that gradebook to a safe place and build again."
        )
    return f"nbgrader could not release {name}:\n{result.get('log', '')}{result['error']}"


def notebook_paths(course: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of the solved and the released notebook of a lesson."""
    file = f"{name.split('_', 1)[1]}.ipynb"
    return course / "autograder" / "source" / name / file, course / "labs" / name / file


def digest(notebook: NotebookNode) -> str:
    """Return a hash of a notebook's cell types and sources, without outputs."""
    cells = [[cell.cell_type, cell.source] for cell in notebook.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def mark(name: str, solved: NotebookNode, released: NotebookNode) -> None:
    """Note in both notebooks where they come from, so that a later build recognizes them.

    Both have the same note, so nbgrader's generate_assignment, run by hand, gives the same lab.
    """
    note = {
        "lesson": f"course/lab{name}/lesson.md",
        "note": "Written by `make labs`. Edit the lesson, not this file.",
        "sha256": {"solved": digest(solved), "released": digest(released)},
    }
    solved.metadata["lesson_build"] = released.metadata["lesson_build"] = note


def written_by_build(path: Path) -> bool:
    """Whether a notebook has exactly the cells that a build wrote."""
    try:
        notebook = nbformat.read(path, as_version=4)
        return digest(notebook) in notebook.metadata["lesson_build"]["sha256"].values()
    except (ValueError, KeyError, AttributeError):  # not a notebook, or not written by the build
        return False


def require_replaceable(course: Path, paths: tuple[Path, Path]) -> None:
    for path in paths:
        if path.exists() and not written_by_build(path):
            raise AuthorError(
                f"{path.relative_to(course)} was changed by hand, or was not written by the build. "
                "If you need it, move it away (your own work belongs in work/); otherwise delete "
                "it. Then build again."
            )


def write(notebook: NotebookNode, path: Path) -> Path:
    nbformat.validate(notebook)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"{nbformat.writes(notebook)}\n".encode())
    return path


def remove_stale(course: Path, written: list[Path]) -> None:
    """Remove the files that an earlier build wrote for a lesson that no longer exists."""
    for folder in (course / "labs", course / "autograder" / "source"):
        for path in folder.glob("*/*.ipynb"):
            if path not in written and written_by_build(path):
                path.unlink()
                if not any(path.parent.iterdir()):
                    path.parent.rmdir()


def main() -> None:
    try:
        require_alembic()
        catalogue.require_current()
        written = build(ROOT, ROOT, exercises())
    except AuthorError as error:
        sys.exit(f"The labs were not built. {error}")
    for path in written:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
