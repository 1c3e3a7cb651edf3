"""A sandbox for tests, where there is one."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from autograder.grading.jail import Jail, JailError


@contextmanager
def jailed(**settings: Any) -> Iterator[Jail]:
    """A Jail. Where none can be had the test is skipped, and fails where CI is set."""
    with ExitStack() as stack:
        try:
            jail = stack.enter_context(Jail(**settings))
        except JailError as error:
            if os.environ.get("CI"):
                pytest.fail(f"CI is set, and there is no sandbox: {error}")
            pytest.skip(f"no sandbox: {error}")
        yield jail
