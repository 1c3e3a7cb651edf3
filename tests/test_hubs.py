"""The course opens without being installed: in Colab, on hubs, in Codespaces; CI runs elsewhere.

No test here asks the network. Colab is played by a module of its name, its pip by one that only
writes down what it should install. Docker is played by nothing: where it runs, it builds the image.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

import workbook
from autograder import colab
from autograder.text.imports import imports
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from tests.common.files import tree

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]

# ------------------------------------------------------------------------------------ Google Colab

PLAYED = """\
import json, os, sys
from types import ModuleType
sys.modules["google.colab"] = ModuleType("google.colab")
cell = open(sys.argv[1]).read()
for _ in range(int(sys.argv[2])):
    exec(cell, {"__name__": "__main__"})
print(json.dumps([os.getcwd(), sys.modules["autograder.colab"].__file__]))
"""
PIP = """\
import os, sys
open(os.environ["PIP_LOG"], "a").write(" ".join(sys.argv[1:]) + "\\n")
"""


def first_code(lab: str) -> nbformat.NotebookNode:
    cells = nbformat.read(ROOT / "labs" / lessons()[lab].notebook, as_version=4).cells
    return next(cell for cell in cells if cell.cell_type == "code")


@pytest.mark.parametrize("lab", lessons())
def test_the_first_code_cell_of_a_lab_is_for_colab_and_hidden_elsewhere(lab):
    cell = first_code(lab)
    address = PROJECT["tool"]["workbook"]["repository"]
    assert cell.source == colab.cell(lessons()[lab].name, address)
    assert cell.metadata == {
        "cellView": "form",
        "jupyter": {"source_hidden": True},
        "tags": ["remove-cell"],
    }


def test_outside_colab_the_cell_does_nothing(monkeypatch):
    monkeypatch.setattr("subprocess.run", lambda *command, **options: pytest.fail("It ran."))
    before = os.getcwd(), [*sys.path], set(sys.modules)
    names = {}
    exec(colab.cell("01_generate", ""), names)
    assert (os.getcwd(), [*sys.path], set(sys.modules)) == before
    assert set(names) == {"__builtins__", "sys"}


@pytest.fixture
def repository(tmp_path) -> Path:
    """A bare clone that holds what the cell needs of the course."""
    course, bare = tmp_path / "course", tmp_path / "course.git"
    (course / "autograder").mkdir(parents=True)
    for name in ("autograder/__init__.py", "autograder/colab.py"):
        shutil.copy(ROOT / name, course / name)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test"]
    for command in (
        [*git, "init", "--quiet", str(course)],
        [*git, "-C", str(course), "add", "."],
        [*git, "-C", str(course), "commit", "--quiet", "--message=Labs"],
        [*git, "clone", "--quiet", "--bare", str(course), str(bare)],
    ):
        subprocess.run(command, check=True)
    return bare


def in_colab(cell: str, folder: Path, times: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a cell in a Python that takes itself for Colab, with `folder` in place of /content."""
    (folder / "pip.py").write_text(PIP)
    (folder / "cell.py").write_text(cell.replace("/content", folder.as_posix()))
    return subprocess.run(
        [sys.executable, "-c", PLAYED, str(folder / "cell.py"), str(times)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PIP_LOG": str(folder / "pip.log")},
        capture_output=True,
        text=True,
    )


@pytest.mark.needs("git")
def test_in_colab_the_cell_fetches_the_course_and_keeps_what_colab_has(repository, tmp_path):
    played = in_colab(colab.cell("02_kv_cache", repository.as_uri()), tmp_path)
    assert played.returncode == 0, played.stderr
    course = tmp_path / "workbook"
    folder, module = json.loads(played.stdout.splitlines()[-1])
    assert Path(folder) == course / "work" / "02_kv_cache"
    assert Path(module) == course / "autograder" / "colab.py"
    assert (course / ".git" / "shallow").exists()
    (asked,) = (tmp_path / "pip.log").read_text().splitlines()
    assert asked.startswith(f"install --quiet --editable {course}[serve] ")
    kept = {Requirement(text).name: str(Requirement(text).specifier) for text in asked.split()[4:]}
    assert kept == {name: f"=={colab.version(name)}" for name in ("torch", "transformers", "numpy")}


@pytest.mark.needs("git")
def test_the_cell_may_run_twice_and_keeps_what_was_written(repository, tmp_path):
    cell = colab.cell("02_kv_cache", repository.as_uri())
    assert in_colab(cell, tmp_path).returncode == 0
    (tmp_path / "workbook" / "work" / "02_kv_cache" / "notes").write_text("mine")
    before = tree(tmp_path / "workbook" / "work")
    played = in_colab(cell, tmp_path, times=2)
    assert played.returncode == 0, played.stderr
    assert tree(tmp_path / "workbook" / "work") == before


def test_without_an_address_the_cell_refuses_and_says_where_to_write_it(tmp_path):
    played = in_colab(colab.cell("01_generate", ""), tmp_path)
    assert played.returncode
    assert re.search(r"no address yet.* pyproject\.toml.*\[tool\.workbook\]", played.stderr)
    assert not (tmp_path / "workbook").exists()


def test_what_colab_runs_before_the_install_needs_nothing_installed():
    needed = {name.split(".")[0] for name in imports(ROOT / "autograder" / "colab.py")}
    assert needed <= sys.stdlib_module_names


# ------------------------------------------------------------------------------ Docker and the hubs


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile with what follows them, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines]


def of(instruction: str) -> list[str]:
    return [rest for name, rest in instructions() if name == instruction]


def test_the_image_installs_the_project_as_it_is_pinned():
    (pip,) = [shlex.split(rest) for rest in of("RUN") if rest.startswith("pip")]
    project = Requirement(pip[pip.index("--editable") + 1].replace(".", "inference-workbook", 1))
    assert project.extras <= set(EXTRAS)
    assert {"lab", "serve"} <= project.extras  # for learners
    assert {"grade", "cluster"} <= project.extras  # for the workers of docs/cluster.md
    assert (ROOT / pip[pip.index("--constraint") + 1]).exists()


def test_the_image_is_of_the_python_that_the_pins_were_tested_with():
    (base,) = [rest for rest in of("ARG") if rest.startswith("BASE=")]
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert base.startswith(f"BASE={conda['dependencies'][0].replace('=', ':')}-")


def test_the_image_follows_the_conventions_of_hubs_and_binder():
    arguments = " ".join(of("ARG"))
    assert "NB_USER=jovyan NB_UID=1000" in arguments
    assert of("USER") == ["${NB_USER}"]  # nothing runs as root
    assert of("EXPOSE") == ["8888"]
    names = [name for name, _ in instructions()]
    assert names.index("COPY") < names.index("USER") < names.index("CMD")
    assert json.loads(of("ENTRYPOINT")[0])[2].endswith('&& exec "$@"')  # hubs give the command
    assert "jupyterhub" in " ".join(of("RUN"))
    assert json.loads(of("CMD")[0])[:3] == ["python", "workbook.py", "lab"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no sh")
def test_the_image_copies_the_labs_to_the_home_and_then_runs_what_a_hub_says(tmp_path):
    play = "import sys; from pathlib import Path; (Path.home() / 'work' / sys.argv[1]).mkdir()"
    (tmp_path / "workbook.py").write_text(play)
    command = ["sh", "-c", 'ls "$HOME/work"; echo "$@"', "sh", "two words"]
    started = subprocess.run(
        [*json.loads(of("ENTRYPOINT")[0]), *command],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stdout.splitlines() == ["lab", "two words"]


def test_the_image_holds_nothing_that_git_ignores():
    def lines(file: str) -> list[str]:
        text = (ROOT / file).read_text(encoding="utf-8")
        return [line for line in text.splitlines() if line and not line.startswith("#")]

    ignored = [line if line.startswith("/") else f"**/{line}" for line in lines(".gitignore")]
    assert {"/.git", *ignored} <= set(lines(".dockerignore"))


@pytest.mark.needs("docker")
@pytest.mark.slow
def test_the_image_builds_and_runs():
    built = subprocess.run(["docker", "build", "--quiet", "."], cwd=ROOT, stdout=subprocess.PIPE)
    assert built.returncode == 0
    run = ["docker", "run", "--rm", built.stdout.decode().strip()]
    for command in (["jupyterhub-singleuser", "--version"], ["ls", "work/start.ipynb"]):
        subprocess.run([*run, *command], check=True)
    check = "import autograder.check, gpt, os; assert os.getuid() == 1000"
    subprocess.run([*run, "python", "-c", check], check=True)


# --------------------------------------------------------------------- Codespaces, VS Code, and CI


def test_a_codespace_sets_up_the_environment_that_its_kernel_uses():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "python workbook.py lab --version"
    settings = container["customizations"]["vscode"]["settings"]
    folder = workbook.VENV.relative_to(ROOT)
    kernel = f"${{containerWorkspaceFolder}}/{folder}/bin/python"
    assert settings["python.defaultInterpreterPath"] == kernel


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def steps(name: str) -> list[dict]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def commands(name: str) -> list[str]:
    return [step["run"] for step in steps(name) if "run" in step]


def test_linux_runs_all_tests_and_students_systems_the_quick_ones():
    linux, students = workflow("tests")["jobs"].values()
    assert linux["steps"][-1]["run"] == ".ci/run"
    systems = {system.split("-")[0] for system in students["strategy"]["matrix"]["os"]}
    assert systems == {"macos", "windows"}
    quick, table = commands("tests")[-2:]
    assert quick.startswith("python workbook.py test ")
    assert table.startswith("python workbook.py timed ")
    matrix = json.dumps(students["strategy"]["matrix"])
    left_out = re.findall(r"--ignore=([\w/.]+)", quick + matrix)
    assert left_out
    assert all((ROOT / path).exists() for path in left_out)


def test_the_published_site_is_the_one_that_make_site_builds():
    assert commands("pages") == ["make site"]
    assert re.search("^site:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"path": "site"} in [step.get("with") for step in steps("pages")]
