"""What the tests of the labs' rows on the timing table share."""

from tests.common.timed import assert_stopped, quick, table, tiny, written  # noqa: F401
