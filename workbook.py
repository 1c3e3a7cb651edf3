"""Set up the workbook and run it: `make` calls this, and it works without make.

    python3 workbook.py lab      open the workbook in JupyterLab
    python3 workbook.py timed    time the techniques: --all of them, or with other engines, --peers
    python3 workbook.py serve    serve a model to browsers and to clients of OpenAI's API
    python3 workbook.py labs     build labs/ from solutions/
    python3 workbook.py test     lint, types and the quick tests
    python3 workbook.py test-all lint, types and all tests
    python3 workbook.py soak     the tests, on many more random cases

Options after the command are passed on to JupyterLab, timed_generate.py, serve.py or
pytest.

The environment is created in .venv from pyproject.toml and constraints.txt, and created again when
one of them changes. If the Python that runs this already has the workbook installed (a conda
environment), that Python is used instead; if it lacks packages, the command says how to install
them. The engines chosen with --peers are installed into .venv when they are first needed; pip
keeps what it compiles in its own cache, so a new .venv has it in seconds. This file needs only the
standard library, because it runs before anything is installed.
"""

from __future__ import annotations  # so that an old Python can still print the message about itself

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV, OLD_VENV = ROOT / ".venv", ROOT / ".venv.old"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OLDEST_PYTHON = (3, 11)
EXTRAS = ["lab", "grade", "serve", "cluster", "test"]  # of pyproject.toml: those that .venv has
WHOLE_PROJECT = ["--editable", f".[{','.join(EXTRAS)}]"]
COMPILED = {"llama-cpp-python": "eight minutes on two cores"}  # measured; there are no wheels
LABS, WORK = ROOT / "labs", ROOT / "work"
FOR_LEARNERS = ROOT / ".jupyter"  # settings that hide nbgrader, whose panels are for instructors
TESTERS = "3"  # on two cores: while one waits for a browser or a sandbox, the others go on
RECORD = ".labs.json"  # in work/: the hash that every released file had when it was copied


class Refused(Exception):
    """What went wrong and what to do about it, in a sentence or two."""


def main(arguments: list[str]) -> int:
    commands = {  # what each needs of EXTRAS
        "lab": (lab, ["lab"]),
        "timed": (timed, []),
        "serve": (serve, ["serve"]),
        "labs": (build_labs, ["grade"]),
        "test": (test, EXTRAS),
        "test-all": (test_all, EXTRAS),
        "soak": (soak, EXTRAS),
    }
    if not arguments or arguments[0] not in commands:
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    command, extras = commands[arguments[0]]
    try:
        require_python(sys.version_info[:2])
        python = environment(extras)
        return command(python, arguments[1:])
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1


# ------------------------------------------------------------------------------------ environment


def require_python(version: tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        oldest, found = (".".join(map(str, v)) for v in (OLDEST_PYTHON, version))
        raise Refused(
            f"The workbook needs Python {oldest} or newer; {sys.executable} is {found}. Install a "
            "newer one and name it: make lab PYTHON=python3.12"
        )


def environment(extras: list[str]) -> Path:
    """Return the Python to run everything with, after setting up its environment if necessary.

    Raises Refused if it is the user's own Python and lacks packages, including those of `extras`.
    """
    if installed_here():
        require_packages(extras)
        return Path(sys.executable)
    set_up()
    return VENV_PYTHON


def installed_here() -> bool:
    if Path(sys.prefix) == VENV:
        return False  # this is our own .venv, which set_up keeps current
    elsewhere = [folder for folder in sys.path if folder and Path(folder).resolve() != ROOT]
    return any(importlib.metadata.distributions(name="inference-workbook", path=elsewhere))


def require_packages(extras: list[str]) -> None:
    project = read_project()
    wanted = [*project["dependencies"]]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    names = [package_name(requirement) for requirement in wanted]
    if missing := [name for name in names if not is_installed(name)]:
        raise Refused(
            f"{sys.executable} has the workbook, but lacks {', '.join(missing)}. Install "
            f"everything that the workbook needs, in the folder {ROOT}:\n"
            f'    {sys.executable} -m pip install -e ".[{",".join(EXTRAS)}]" -c constraints.txt'
        )


def read_project() -> dict[str, Any]:
    import tomllib  # not in an old Python, which is refused before this

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package_name(requirement: str) -> str:
    return re.split("[^A-Za-z0-9_.-]", requirement)[0]


def is_installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def set_up() -> None:
    """Create .venv, unless it exists and is current.

    If the set-up fails, the previous .venv is put back; if it is killed, the next call does that.
    """
    stamp = VENV / "set-up.stamp"
    if OLD_VENV.exists():
        shutil.rmtree(VENV, ignore_errors=True)
        OLD_VENV.rename(VENV)
    if stamp.exists() and stamp.read_text() == fingerprint():
        return
    print("Setting up .venv. This takes some minutes, because PyTorch is large.", flush=True)
    if VENV.exists():
        VENV.rename(OLD_VENV)
    try:
        install()
        stamp.write_text(fingerprint())
    except BaseException:
        shutil.rmtree(VENV, ignore_errors=True)
        if OLD_VENV.exists():
            OLD_VENV.rename(VENV)
        raise
    shutil.rmtree(OLD_VENV, ignore_errors=True)


def fingerprint() -> str:
    """Hash everything that .venv is made from: while the hash stays the same, .venv is current."""
    made_from = [f"{ROOT}\n{sys.version_info[:2]}\n".encode()]
    made_from += [(ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256(b"".join(made_from)).hexdigest()


def install() -> None:
    try:
        venv.create(VENV, with_pip=has_ensurepip())
        pip_install(*WHOLE_PROJECT)
    except (subprocess.CalledProcessError, OSError) as error:
        raise Refused(
            f"\nThe set-up failed ({error}); pip's own message is above. No half-made .venv was "
            f"left behind. {what_to_do(unmet_constraints())}"
        ) from error
    silence_news()


def unmet_constraints() -> list[str]:
    """Return the lines of constraints.txt that pip can't meet.

    Runs pip once more without installing anything, because its output can't be both shown live,
    with progress bars, and parsed. Only wheels are allowed: a version that has no wheel for this
    Python is the other reason why an installation fails.
    """
    if not VENV_PYTHON.exists():
        return []
    print("\nChecking which lines of constraints.txt pip can't meet.", flush=True)
    options = ["--dry-run", "--only-binary", ":all:", "--retries", "0"]
    asked = subprocess.run(pip_command(*options, *WHOLE_PROJECT), cwd=ROOT, capture_output=True)
    _, _, conflict = asked.stdout.decode(errors="replace").partition("The conflict is caused by:")
    named = re.findall(r"The user requested \(constraint\) (\S+)", conflict)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if as_pip_says(line) in named]


def as_pip_says(line: str) -> str:
    """Return a line of constraints.txt with its package's name as pip spells it, such as pyyaml."""
    name = package_name(line)
    return re.sub("[-_.]+", "-", name).lower() + line.removeprefix(name)


def what_to_do(lines: list[str]) -> str:
    if not lines:
        return "Remove the cause and run the same command again."
    return (
        "These versions in constraints.txt don't exist for this Python or this system:\n"
        + "".join(f"    {line}\n" for line in lines)
        + "Delete these lines from constraints.txt and run the same command again. Versions within "
        "the ranges in pyproject.toml are then installed instead."
    )


def has_ensurepip() -> bool:
    return importlib.util.find_spec("ensurepip") is not None


def pip_install(*arguments: str) -> None:
    """Install into .venv, in the versions of constraints.txt. Raises CalledProcessError."""
    subprocess.run(pip_command(*arguments), cwd=ROOT, check=True)


def pip_command(*arguments: str) -> list[str]:
    pip = [str(VENV_PYTHON), "-m", "pip"]
    if not has_ensurepip():  # as Debian and Ubuntu ship Python: pip then installs from outside
        pip = [sys.executable, "-m", "pip", "--python", str(VENV_PYTHON)]
    return [*pip, "install", *arguments, "--constraint", "constraints.txt"]


def peer_packages(arguments: list[str]) -> set[str]:
    """Return the packages that the engines chosen with --peers need.

    With an unknown name there are none: timed_generate.py then refuses it, before any long wait.
    """
    from timing.peers.catalogue import NEVER, PEERS  # an old Python can't read it

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--peers", nargs="?", const=",".join(PEERS), default="")
    given, _ = parser.parse_known_args(arguments)
    names = {name.strip() for name in given.peers.split(",")}
    if not names <= {*PEERS, *NEVER}:
        return set()
    return {package for name in names - {*NEVER} for package in PEERS[name].modules.values()}


def install_peers(packages: set[str]) -> None:
    """Install those of these packages that are missing and that the extra `peers` lists.

    Each is installed by itself, so that one failure stops no other.
    """
    look = "import importlib.metadata, sys; importlib.metadata.distribution(sys.argv[1])"
    for requirement in read_project()["optional-dependencies"]["peers"]:
        name = package_name(requirement)
        if name not in packages:
            continue
        if not subprocess.run([VENV_PYTHON, "-c", look, name], capture_output=True).returncode:
            continue
        print(f"Installing {name}.")
        if name in COMPILED:
            print(f"Unless pip kept it from before, it is compiled, in about {COMPILED[name]}.")
        try:
            run_with_clock(pip_command("--quiet", requirement))
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"{name} could not be installed ({error}); pip's own message is above.")


def run_with_clock(command: list[str]) -> None:
    """Run a silent command; a terminal shows the elapsed time. Raises CalledProcessError."""
    start, terminal = time.monotonic(), sys.stdout.isatty()
    status: int | None = None
    with subprocess.Popen(command, cwd=ROOT) as process:
        while status is None:
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            if terminal:
                print(f"{minutes}:{seconds:02} elapsed", end="\r")
            sys.stdout.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=1)
    if terminal:
        print()
    if status:
        raise subprocess.CalledProcessError(status, command)


def silence_news() -> None:
    """Keep JupyterLab from opening a dialog over the first lab that asks about fetching news."""
    settings = VENV / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    settings.parent.mkdir(parents=True, exist_ok=True)
    news = {"fetchNews": "false", "checkForUpdates": False}
    settings.write_text(json.dumps({"@jupyterlab/apputils-extension:notification": news}))


# -------------------------------------------------------------------------------- a learner's labs


def copy_labs(labs: Path, work: Path) -> tuple[list[str], list[str]]:
    """Copy to `work` every file of `labs` that is missing there; never change an existing file.

    Returns the names of the copied files, and the names of those whose release has changed since
    the learner copied them.
    """
    files = sorted(path for path in labs.rglob("*") if path.is_file())
    released = [path for path in files if not hidden(path, labs)]
    if not released:
        raise Refused(f"There are no labs in {labs}. Build them first: make labs")
    work.mkdir(parents=True, exist_ok=True)
    record_file = work / RECORD
    record = json.loads(record_file.read_text()) if record_file.exists() else {}
    copied, changed = [], []
    for path in released:
        name = path.relative_to(labs).as_posix()
        release = hashlib.sha256(path.read_bytes()).hexdigest()
        if copy_new(path, work / name):
            record[name] = release
            copied.append(name)
        elif record.setdefault(name, release) != release:
            changed.append(name)
    record_file.write_text(json.dumps(record, indent=1))
    return copied, changed


def hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def copy_new(source: Path, target: Path) -> bool:
    """Copy a file unless `target` exists. Returns whether it was copied."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as file:
            file.write(source.read_bytes())
    except (FileExistsError, NotADirectoryError):  # a file has the folder's name
        return False
    return True


# ---------------------------------------------------------------------------------------- commands


def lab(python: Path, arguments: list[str]) -> int:
    copied, changed = copy_labs(LABS, WORK)
    for name in copied:
        print(f"New in work/: {name}")
    for name in changed:
        print(
            f"{name} has changed since you copied it. Your copy stays as it is. To see the "
            f"difference:\n    {python} -m nbdime diff --sources work/{name} labs/{name}\n"
            "For a fresh copy, rename your file and run this command again."
        )
    sys.stdout.flush()
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command = ["-m", "jupyterlab", f"--ServerApp.root_dir={WORK}", *root, *arguments]
    settings = [str(FOR_LEARNERS)]
    if "JUPYTER_CONFIG_PATH" in os.environ:
        settings.append(os.environ["JUPYTER_CONFIG_PATH"])
    return run(python, *command, JUPYTER_CONFIG_PATH=os.pathsep.join(settings))


def timed(python: Path, arguments: list[str]) -> int:
    if python == VENV_PYTHON:
        install_peers(peer_packages(arguments))
    return run(python, "timed_generate.py", *arguments)


def serve(python: Path, arguments: list[str]) -> int:
    return run(python, "serve.py", *arguments)


def build_labs(python: Path, arguments: list[str]) -> int:
    return run(python, "-m", "autograder.build", *arguments)


def test(python: Path, arguments: list[str]) -> int:
    return test_all(python, ["-m", "not slow", "--hypothesis-profile=quick", *arguments])


def test_all(python: Path, arguments: list[str]) -> int:
    lint = run(python, "-m", "ruff", "check", ".")
    types = run(python, "-m", "mypy")
    tests = run(python, "-m", "pytest", "-n", TESTERS, "--dist", "loadfile", *arguments)
    return lint or types or tests


def soak(python: Path, arguments: list[str]) -> int:
    return run(python, "-m", "pytest", "-n", TESTERS, "--hypothesis-profile=soak", *arguments)


def run(python: Path, *arguments: str, **variables: str) -> int:
    """Run Python in the project's folder, with the environment's own programs first on the path.

    variables: added to the environment variables.
    """
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    command = [str(python), *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PATH": path, **variables})
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # the command got it too, and handles it: JupyterLab asks whether to stop


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
