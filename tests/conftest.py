"""Settings that every test shares."""

import os
from collections.abc import Iterator

# The tests run side by side, one process a core; threads inside each would only get in the way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings  # after the above, which torch reads when it is imported

# No deadline: a slow machine is no failure. The same cases every time, fewer of them with
# `make test`; `make soak` draws others.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("soak", deadline=None, max_examples=3000)
settings.load_profile("default")

# Several processes share the files. Those that take longest come first, so that at the end none
# works on a long one while the others have nothing left to do.
LONGEST = (
    *("test_build", "test_exercises", "test_cluster", "test_answers", "test_oracle"),
    *("test_hostile", "test_bundle", "test_mutants", "test_nbgrader", "test_browser"),
    *("test_processes", "test_demo", "test_pictures"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first, and leave out what only `make soak` asks for, or -m soak by name."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))
    if config.getoption("--hypothesis-profile") == "soak" or "soak" in config.getoption("-m"):
        return
    left_out = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def short_stretches() -> Iterator[None]:
    """For texts of a few tokens: an engine serves them apart, too, where their lengths differ."""
    from solutions.engine import runner

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STRETCH", 5)
        yield
