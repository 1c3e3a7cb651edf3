"""What several tests of grading use."""

from collections.abc import Iterator

import pytest

from autograder.grading.judge.jail import Jail
from tests.common.graded import SOON


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    with Jail(seconds=SOON) as jail:
        yield jail
