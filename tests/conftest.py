"""Settings that every test shares."""

import os
from collections import Counter
from collections.abc import Iterator
from zlib import crc32

# Tests run in parallel, one process per core; more threads in each process would only interfere.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No product is chosen by a clock, in a test or in what it starts.
os.environ.setdefault("PRODUCTS", "F.linear")

import pytest
from hypothesis import settings  # after the line above, which torch reads when it is imported

from tests.common.tools import require as pytest_runtest_setup  # noqa: F401

# No deadline, because a slow machine is no failure. The cases are the same every time, and fewer
# with `make test`; `make soak` draws new ones.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("soak", deadline=None, max_examples=3000)
settings.load_profile("default")

# Several processes share the files. The longest files come first, so that at the end no process is
# busy with a long one while the others are idle.
LONGEST = (
    *("test_notebooks", "test_exercises", "test_cluster", "test_hostile", "test_bundle"),
    *("test_oracle", "test_answers", "test_nbgrader", "test_build", "test_mutants"),
    *("test_browser", "test_processes", "test_demo", "test_pictures", "test_site"),
)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first. Leave out the soak tests without `make soak` or -m soak.

    Where tests are chosen by -k or by name, none of their cases waits for its turn.
    """
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    if not config.getoption("-k") and not any("::" in argument for argument in config.args):
        leave_to_soak(items)
    if config.getoption("--hypothesis-profile") == "soak" or "soak" in config.getoption("-m"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def leave_to_soak(items: list[pytest.Item]) -> None:
    """Of a test with the marker in_turn(3), every third case stays; each test begins elsewhere."""
    numbers = Counter[str]()
    for item in items:
        turn = item.get_closest_marker("in_turn")
        if turn is not None and item.get_closest_marker("soak") is None:
            test = item.nodeid.partition("[")[0]
            if (crc32(test.encode()) + numbers[test]) % turn.args[0]:
                item.add_marker("soak")
            numbers[test] += 1


@pytest.fixture(scope="module")
def short_stretches() -> Iterator[None]:
    """Let an engine serve even a few short texts in several rectangles."""
    from solutions.engine import runner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "ROOM", 2000)
        yield
