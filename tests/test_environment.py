"""What is installed is what is declared, and the project can stand on its own."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import workbook
from tests.common.house import imports

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {
    ".git", ".hypothesis", ".venv", ".venv.old", "__pycache__", "build", "work",
    "autograded", "downloaded", "exchange", "feedback", "source", "submitted",
}  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = PROJECT["dependencies"]
EXTRAS = PROJECT["optional-dependencies"]


def our_files(*suffixes: str) -> list[Path]:
    """The project's own files; never an empty list."""
    found = [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and (not suffixes or path.suffix in suffixes)
        and not NOT_OURS & set(path.relative_to(ROOT).parts)
        and not any(part.endswith((".egg-info", "_cache")) for part in path.parts)
    ]
    assert found, f"no files with {suffixes} under {ROOT}"
    return found


def named(requirements: list[str]) -> dict[str, Requirement]:
    parsed = [Requirement(text) for text in requirements]
    return {canonicalize_name(requirement.name): requirement for requirement in parsed}


PEERS = "peers"  # the extra that no set-up installs: `timed --peers` does, each by itself
GPU = "gpu"  # for the one kernel of lab 12
# What may be missing: the engines' own modules, and vLLM, which brings a torch of its own.
PEER_MODULES = {"ctranslate2", "gguf", "llama_cpp", "vllm"}
DIRECT = named([*BASE, *(text for extra in EXTRAS.values() for text in extra)])


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in found}


@pytest.mark.parametrize("name", sorted(DIRECT))
def test_every_direct_dependency_is_pinned_within_its_range(name):
    assert name in pins(), f"constraints.txt has no {name}; its first lines say how to renew it"
    assert pins()[name] in DIRECT[name].specifier


def test_the_peers_need_no_other_torch():
    """Pip would replace the pinned one: the engines that need one of their own are not listed."""
    assert {"torch", "vllm"}.isdisjoint(named(EXTRAS[PEERS]))


def test_pins_name_no_local_builds():
    assert all(version.local is None for version in pins().values())


def test_conda_users_get_the_same_environment():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, installed = conda["dependencies"]
    oldest = PROJECT["requires-python"].removeprefix(">=")
    assert python == f"python={oldest}"
    assert pip == "pip"
    extras = [extra for extra in EXTRAS if extra not in (PEERS, GPU)]
    wanted = f"--editable .[{','.join(extras)}]"
    assert installed == {"pip": [wanted, "--constraint constraints.txt"]}
    assert extras == workbook.EXTRAS


def test_workbook_refuses_the_pythons_that_pip_would_refuse():
    assert PROJECT["requires-python"] == ">=" + ".".join(map(str, workbook.OLDEST_PYTHON))


# ------------------------------------------------------------------------------------------ imports


OURS = {"autograder", "docs", "gpt", "models", "solutions", "tests", "timed_generate", "timing",
        "visuals", "workbook"}  # fmt: skip
MEASURING = {"timing.stopwatch", "timing.threads", "timing.work"}  # in labs, so without solutions
# Imports run one way only: who may import whom. A file's line counts before its folder's; what is
# not named here may import anything.
MAY_IMPORT = {
    "gpt.py": set(),
    "workbook.py": set(),
    "solutions": {"gpt", "solutions"},
    "solutions/memory.py": {"timing.memory"},
    "timing": {"gpt", "solutions", "timing", "autograder.check"},
    "timing/machine.py": MEASURING,
    "timing/memory.py": set(),
    "timing/peak.py": set(),
    "timing/stopwatch.py": set(),
    "timing/threads.py": MEASURING,
    "timing/work.py": set(),
    "visuals": {"visuals", "timing.machine"},
    "autograder/drivers": {"gpt", "solutions", "autograder.drivers"},
}


def test_every_package_that_is_imported_is_declared():
    providers = packages_distributions()
    undeclared = {
        (path.relative_to(ROOT).as_posix(), top)
        for path in our_files(".py")
        for top in {name.split(".")[0] for name in imports(path)}
        if top not in sys.stdlib_module_names | OURS | PEER_MODULES
        and not {canonicalize_name(name) for name in providers.get(top, [top])} & set(DIRECT)
    }
    assert undeclared == set()


def test_only_the_process_of_an_engine_needs_it():
    importing = {
        path.relative_to(ROOT).as_posix()
        for path in our_files(".py")
        if {name.split(".")[0] for name in imports(path)} & PEER_MODULES
    }
    engines = {path.name for path in (ROOT / "timing" / "peers").glob("*.py")}
    engines -= {"__init__.py", "__main__.py", "catalogue.py", "engine.py", "row.py", "worker.py"}
    assert importing - {"tests/test_peers.py"} <= {f"timing/peers/{name}" for name in engines}
    assert importing


@pytest.mark.parametrize("place", sorted(MAY_IMPORT))
def test_imports_run_one_way(place):
    files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
    assert files
    for path in files:
        allowed = MAY_IMPORT.get(path.relative_to(ROOT).as_posix(), MAY_IMPORT[place])
        ours = {name for name in imports(path) if name.split(".")[0] in OURS}
        wrong = {name for name in ours if not any(f"{name}.".startswith(f"{a}.") for a in allowed)}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_what_runs_before_the_set_up_needs_nothing_installed():
    assert {name.split(".")[0] for name in imports(ROOT / "workbook.py")} <= sys.stdlib_module_names


# ------------------------------------------------------------------------------------------- texts


def test_every_make_command_in_the_texts_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (path.name, command)
        for path in our_files(".md")
        for command in re.findall(r"(?:`|^|&& )make ([a-z]+)", path.read_text(), re.MULTILINE)
    }
    assert {"lab", "test", "timed"} <= {command for _, command in named}
    assert {(name, command) for name, command in named if command not in targets} == set()


def test_every_link_in_the_texts_leads_somewhere():
    links = {
        (path, link)
        for path in our_files(".md")
        for link in re.findall(r"\]\(([^)#:\s]+)[^):]*\)", path.read_text())
    }
    assert links
    assert {link for path, link in links if not (path.parent / link).exists()} == set()


def test_the_project_speaks_of_itself_alone():
    """No path of somebody's machine, and no host of a package registry."""
    foreign = re.compile(
        r"/root/|/home/\w|/Users/\w|/tmp/venv|/work/(main|shared)|shared/corpus"
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
