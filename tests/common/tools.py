"""The programs and packages that some tests need and a bare machine lacks.

A test that needs one says so: `@pytest.mark.needs("git")`. So `-m "not needs"` chooses the tests
that run with nothing but Python and what the set-up installs, and the others are skipped for the
same reasons wherever they are.
"""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PROMISED = {"bwrap", "chromium", "git", "make", "sphinx"}  # .ci/run has them, or installs them


def require(item: pytest.Item) -> None:
    """Skip a test that needs what isn't here. Where CI is set and promises it, the test fails."""
    for marker in item.iter_markers("needs"):
        for tool in marker.args:
            if reason := absence(tool):
                if os.environ.get("CI") and tool in PROMISED:
                    pytest.fail(f"CI is set, but {reason}", pytrace=False)
                pytest.skip(reason)


@cache
def absence(tool: str) -> str:
    """Return why a tool can't be used and how to get it, in a sentence; "" if it can be used."""
    return ABSENCE[tool]()


def program(how: str, *names: str) -> Callable[[], str]:
    def reason() -> str:
        return "" if any(map(shutil.which, names)) else f"there is no {names[0]} on the path: {how}"

    return reason


def package(name: str, how: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"{name} isn't installed: {how}"


def without_sandbox() -> str:
    """Grading needs more than the program: where users may make no namespaces, it has no walls."""
    from autograder.grading.judge.jail import (  # torch takes seconds, and few tests ask
        Jail,
        JailError,
    )

    try:
        with Jail() as jail:
            jail.is_root  # noqa: B018  (a sandbox can be made)
    except JailError as error:
        return f"there is no sandbox: {error}"
    return ""


def without_docker() -> str:
    try:
        subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "Docker does not run here: install it and start its service"
    return ""


def without_cuda() -> str:
    import torch

    return "" if torch.cuda.is_available() else "there is no CUDA device"


def without_quota() -> str:
    from tests.common.starved import new_group

    try:
        with new_group():
            return ""
    except OSError as error:
        return f"no quota of the processor can be set, as root can in a writable cgroup: {error}"


def without_smollm2() -> str:
    from solutions.families import find_checkpoint

    try:
        find_checkpoint("smollm2")
    except ValueError as error:
        return str(error)
    return ""


def find_browser() -> str | None:
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


CLIENTS = ("instructor", "langchain_openai", "litellm", "llm", "lm_eval", "pydantic_ai")

ABSENCE: dict[str, Callable[[], str]] = {
    **{name: package(name, "docs/serving.md says how to try it") for name in CLIENTS},
    "bwrap": without_sandbox,
    "chromium": program("install Chromium or Chrome", *BROWSERS),
    "docker": without_docker,
    "git": program("apt install git, or git-scm.com", "git"),
    "make": program("apt install make", "make"),
    "uv": program("docs.astral.sh/uv says how to install it", "uv"),
    "cuda": without_cuda,
    "quota": without_quota,
    "ctranslate2": package("ctranslate2", "make timed ARGS=--peers installs it"),
    "gguf": package("gguf", "make timed ARGS=--peers installs it"),
    "llama_cpp": package("llama_cpp", "make timed ARGS=--peers installs it"),
    "numba": package("numba", 'pip install -e ".[kernel]"'),
    "pip": package("pip", "uv made this environment"),
    "ray": package("ray", 'pip install -e ".[ray]"'),
    "smollm2": without_smollm2,
    "sphinx": package("sphinx", "make site installs it"),
    "triton": package("triton", 'pip install -e ".[gpu]", on Linux'),
    "vllm": package("vllm", "it needs an environment of its own"),
}
