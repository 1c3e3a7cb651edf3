"""Settings that every test shares."""

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

# Tests run in parallel, one process per core; more threads in each process would only interfere.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No product is chosen by a clock, in a test or in what it starts.
os.environ.setdefault("PRODUCTS", "F.linear")

import pytest
from hypothesis import settings  # after the line above, which torch reads when it is imported

from tests.common import turns
from tests.common.tools import require as pytest_runtest_setup  # noqa: F401

# No deadline, because a slow machine is no failure. Random cases follow from the turn; there are
# fewer with `make test`; `make soak` draws new ones.
settings.register_profile("default", deadline=None, database=None, max_examples=50)
settings.register_profile("quick", deadline=None, database=None, max_examples=15)
settings.register_profile("soak", deadline=None, max_examples=3000)
settings.load_profile("default")

# Several processes share the tests, a unit at a time. The longest units come first, so that at the
# end no process is busy with a long one while the others are idle.
LONGEST = (
    *("test_notebooks", "test_hostile", "test_cluster", "test_bundle", "test_exercises"),
    *("test_answers", "test_mutants", "test_cases", "test_oracle"),
    *("test_nbgrader", "test_build", "test_browser", "test_processes", "test_demo"),
    *("test_pictures", "test_site"),
)
TURNS = pytest.StashKey[list[str]]()  # what was left out, in lines


@pytest.hookimpl(tryfirst=True)  # before Hypothesis asks for its seed
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the processes of pytest-xdist are told
        turns.settle()
        shared = tempfile.TemporaryDirectory()
        os.environ["SHARED_FOLDER"] = shared.name
        config.add_cleanup(shared.cleanup)
    if config.getoption("--hypothesis-profile") != "soak":
        config.option.hypothesis_seed = config.option.hypothesis_seed or turns.seed()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Look for no garbage in what collecting makes, a million objects: nearly all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> turns.ByUnit:
    return turns.ByUnit(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first. Leave out the soak tests without `make soak` or -m soak.

    Where tests are chosen by -k or by name, none of their cases waits for its turn.
    """
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    if config.getoption("--hypothesis-profile") == "soak" or "soak" in config.getoption("-m"):
        return
    left_out = {item for item in items if item.get_closest_marker("soak")}
    if not config.getoption("-k") and not any("::" in argument for argument in config.args):
        thinned = turns.thin(items)
        left_out.update(thinned.left_out)
        config.stash[TURNS] = thinned.report() if thinned.tried else []
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["turns"] = session.config.stash.get(TURNS, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear from a process of pytest-xdist what was left out; all of them say the same."""
    node.config.stash[TURNS] = getattr(node, "workeroutput", {}).get("turns", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if lines := config.stash.get(TURNS, []):
        terminalreporter.section("large grids")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture(scope="module")
def short_stretches() -> Iterator[None]:
    """Let an engine serve even a few short texts in several rectangles."""
    from solutions.engine import runner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "ROOM", 2000)
        yield
