"""What the tests of measuring share: the rows they keep are not a learner's, and no other program
disturbs them, or one of theirs does."""

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import pytest

from tests.common.timed import assert_stopped, quick, table, tiny, written  # noqa: F401
from timing.cores import OtherPrograms


@pytest.fixture(autouse=True, scope="module")
def quiet_machine() -> Iterator[None]:
    """No other program computes, whatever this machine does meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timing.cores.others_seconds", lambda: 0.0)
        yield


@pytest.fixture(autouse=True, scope="module")
def own_folder(tmp_path_factory) -> Iterator[None]:
    """Rows that are timed here are kept in a folder of the test's, not in work/."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINE_FOLDER", str(tmp_path_factory.mktemp("mine")))
        yield


@pytest.fixture
def others_take(monkeypatch) -> Callable[[ModuleType, Sequence[float]], None]:
    """Let other programs take this many cores during each measurement of a module; later none."""

    def take(module: ModuleType, cores: Sequence[float]) -> None:
        taken = iter(cores)

        class Known(OtherPrograms):
            def __exit__(self, *error: object) -> None:
                self.cores = next(taken, 0.0)

        monkeypatch.setattr(module, "OtherPrograms", Known)

    return take
