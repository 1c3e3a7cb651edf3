"""Installed packages are as declared, imports run one way, and links and names in texts exist."""

import re
import sys
import tomllib
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path

import pytest
import yaml
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import workbook
from autograder.text.imports import imports
from tests.common.tools import CLIENTS

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {
    ".git", ".hypothesis", ".venv", ".venv.old", "__pycache__", "build", "work",
    "autograded", "downloaded", "exchange", "feedback", "source", "submitted",
}  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = PROJECT["dependencies"]
EXTRAS = PROJECT["optional-dependencies"]


def our_files(*suffixes: str) -> list[Path]:
    """Return the project's own files. Asserts that there are some."""
    found = [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and (not suffixes or path.suffix in suffixes)
        and not NOT_OURS & set(path.relative_to(ROOT).parts)
        and path.relative_to(ROOT).parts[0] != "site"
        and not any(part.endswith((".egg-info", "_cache")) for part in path.parts)
    ]
    assert found, f"no files with {suffixes} under {ROOT}"
    return found


def named(requirements: list[str]) -> dict[str, Requirement]:
    parsed = [Requirement(text) for text in requirements]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


KERNEL = "kernel"  # an extra that a learner may install: lab 21 runs without it, too
PEERS = "peers"  # an extra that no set-up installs; `timed --peers` installs each package by itself
GPU = "gpu"  # for lab 12's one kernel
RAY = "ray"  # for replicas on many machines
SITE = "site"  # installed when the site is first built
# Modules that may be missing: the engines' own, and vLLM, which needs its own version of torch.
PEER_MODULES = {"ctranslate2", "gguf", "llama_cpp", "vllm"}
PEER_MODULES |= {"outlines_core", "llguidance", "xgrammar"}  # of timing/peers/masks.py
DIRECT = named([*BASE, *(text for extra in EXTRAS.values() for text in extra)])


# The Python versions that the README promises: the oldest, Debian 12's, and the first of each later
# minor version.
PROMISED = ["3.11.0", "3.11.2", "3.12.0", "3.13.0", "3.14.0"]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in found}


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_every_direct_dependency_is_pinned_within_its_range(name):
    assert name in pins(), f"constraints.txt has no {name}; its first lines say how to renew it"
    assert pins()[name] in DIRECT[name].specifier


def test_the_peers_need_no_other_torch():
    """Pip would replace the pinned torch, so engines that need another one are not listed."""
    assert {"torch", "vllm"}.isdisjoint(named(EXTRAS[PEERS]))


def installed_as_pinned() -> dict[str, Distribution]:
    """Return the packages that are installed in the pinned version; this rarely includes peers."""
    pinned = pins()
    return {
        name: installed
        for installed in distributions()
        if (name := canonicalize_name(installed.name)) in pinned
        and pinned[name] == Version(Version(installed.version).public)
    }


def left_out(requires_python: str | None) -> list[str]:
    """Return the promised Python versions that don't meet a package's Requires-Python."""
    return [python for python in PROMISED if python not in SpecifierSet(requires_python or "")]


def test_a_package_that_asks_for_a_later_patch_of_the_oldest_python_is_found():
    assert left_out(">=3.11.5") == ["3.11.0", "3.11.2"]
    assert left_out(">=3.9,<3.14") == ["3.14.0"]
    assert left_out(">=3.11") == left_out(None) == []


def test_every_pin_holds_for_every_python_that_is_promised():
    found = installed_as_pinned()
    assert set(named(BASE)) <= set(found), "too little is installed as pinned to look at"
    wrong = {name: left_out(d.metadata.get("Requires-Python")) for name, d in found.items()}
    assert {name: pythons for name, pythons in wrong.items() if pythons} == {}


@pytest.mark.parametrize("python", PROMISED)
def test_no_pin_contradicts_another(python):
    """Also for other Python versions than this environment's, according to package metadata."""
    machine = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    pinned, found = pins(), installed_as_pinned()
    wrong = {
        f"{name} needs {text}"
        for name, installed in found.items()
        for text in installed.requires or []
        if (needed := Requirement(text)).marker is None
        or needed.marker.evaluate({**machine, "extra": ""})
        if (pin := pinned.get(canonicalize_name(needed.name))) and pin not in needed.specifier
    }
    assert set(named(BASE)) <= set(found)
    assert wrong == set()


def test_pins_name_no_local_builds():
    assert all(version.local is None for version in pins().values())


def test_conda_users_get_the_same_environment():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, installed = conda["dependencies"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert python == f"python={oldest}"
    assert pip == "pip"
    extras = [extra for extra in EXTRAS if extra not in (PEERS, GPU, KERNEL, RAY, SITE)]
    wanted = f"--editable .[{','.join(extras)}]"
    assert installed == {"pip": [wanted, "--constraint constraints.txt"]}
    assert extras == workbook.EXTRAS


def test_workbook_refuses_the_pythons_that_pip_would_refuse():
    oldest = ".".join(map(str, workbook.OLDEST_PYTHON))
    assert PROJECT["requires-python"] == f">={oldest}"
    assert PROMISED[0] == f"{oldest}.0"


# ------------------------------------------------------------------------------------------ imports


OURS = {"autograder", "course", "docs", "gpt", "models", "serve", "solutions", "start", "tests",
        "timed_generate", "timing", "visuals", "workbook"}  # fmt: skip


def test_every_package_that_is_imported_is_declared():
    providers = packages_distributions()
    undeclared = {
        (path.relative_to(ROOT).as_posix(), top)
        for path in our_files(".py")
        for top in {name.split(".")[0] for name in imports(path)}
        if top not in sys.stdlib_module_names | OURS | PEER_MODULES | {*CLIENTS, "langchain_core"}
        and not {canonicalize_name(name) for name in providers.get(top, [top])} & set(DIRECT)
    }
    assert undeclared == set()


def test_only_the_process_of_an_engine_needs_it():
    importing = {
        path.relative_to(ROOT).as_posix()
        for path in our_files(".py")
        if "tests" not in path.parts and {n.split(".")[0] for n in imports(path)} & PEER_MODULES
    }
    engines = {path.name for path in (ROOT / "timing" / "peers").glob("*.py")}
    engines -= {"__init__.py", "__main__.py", "catalogue.py", "engine.py", "row.py", "worker.py"}
    assert importing <= {f"timing/peers/{name}" for name in engines}
    assert importing


def test_imports_run_one_way(monkeypatch):
    """As the contracts of pyproject.toml say; `lint-imports` shows what breaks one."""
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename="pyproject.toml", cache_dir=None) == EXIT_STATUS_SUCCESS
    assert not {name.split(".")[0] for name in imports(ROOT / "gpt.py")} & OURS


def test_what_runs_before_the_set_up_needs_nothing_installed():
    catalogue = "timing.peers.catalogue"
    for path in (ROOT / "workbook.py", ROOT / f"{catalogue.replace('.', '/')}.py"):
        needed = {name.split(".")[0] for name in imports(path) if not name.startswith(catalogue)}
        assert needed <= sys.stdlib_module_names


# ------------------------------------------------------------------------------------------- texts


def test_every_make_command_in_the_texts_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path.name, command)
        for path in our_files(".md")
        for command in re.findall(r"(?:`|^|&& )make ([a-z-]+)", path.read_text(), re.MULTILINE)
    }
    assert {"lab", "test", "timed"} <= {command for _, command in named}
    assert {(name, command) for name, command in named if command not in targets} == set()


def test_every_link_in_the_texts_leads_somewhere():
    links = {
        (path, link)
        for path in our_files(".md")
        for prose in path.read_text().split("```")[::2]
        for link in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", prose)
    }
    assert links
    assert {link for path, link in links if not (path.parent / link).exists()} == set()


def test_every_test_that_the_documentation_names_exists():
    named = {
        name
        for path in (ROOT / "docs").glob("*.md")
        for name in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", path.read_text())
    }
    assert len(named) > 20
    for name in named:
        file, _, function = name.partition("::")
        text = (ROOT / file).read_text()
        assert not function or f"def {function}(" in text, name


def test_the_project_speaks_of_itself_alone():
    """No path of a particular machine, and no host of a package registry."""
    foreign = re.compile(
        r"/root/|/home/(?!jovyan)\w|/Users/\w|/tmp/venv|/work/(main|shared)|shared/corpus"
        r"|pypi\.(org|python)|pythonhosted\.org|npmjs\.|anaconda\.org"
    )
    texts = our_files(".py", ".md", ".toml", ".txt", ".yml", ".json", ".ipynb", ".cfg", "", ".svg")
    found = {
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in texts
        if path != Path(__file__).resolve()
        for match in foreign.finditer(path.read_text(encoding="utf-8"))
    }
    assert found == set()
