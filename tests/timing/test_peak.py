"""Peak memory of a call: what it takes is seen, and nothing else is."""

import os
import sys
import textwrap

import pytest

from timing.peak import MEGABYTE, peak_megabytes

SMALL = 30  # MB


def filled(megabytes: int) -> bytes:
    return b"x" * (megabytes * MEGABYTE)


def test_what_a_call_allocates_is_seen():
    assert peak_megabytes(lambda: filled(200)) == pytest.approx(200, rel=0.2)


def test_what_it_gives_back_before_it_ends_is_seen():
    def run():
        for _ in range(3):
            filled(200)  # gone again before the next one comes
        return filled(1)

    assert peak_megabytes(run) == pytest.approx(200, rel=0.2)


def test_a_small_call_takes_little():
    assert peak_megabytes(lambda: None) < SMALL


def test_what_the_parent_holds_does_not_matter():
    held = filled(400)
    assert peak_megabytes(lambda: filled(1)) < SMALL
    assert len(held) == 400 * MEGABYTE


def test_a_call_does_not_pay_for_the_one_before():
    peak_megabytes(lambda: filled(200))
    assert peak_megabytes(lambda: filled(1)) < SMALL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a peak be forgotten")
def test_what_goes_along_is_there_when_it_begins():
    given = filled(200)
    assert peak_megabytes(lambda: len(given)) < SMALL
    assert peak_megabytes(lambda: given + b"x") == pytest.approx(200, rel=0.2)


def test_it_runs_in_another_process():
    seen = []

    def run():
        seen.append(os.getpid())
        assert seen != [here]

    here = os.getpid()
    peak_megabytes(run)
    assert seen == []


def test_a_function_of_a_notebook_goes_along_with_all_it_needs():
    notebook = {"__name__": "__main__"}
    cell = """
        SIZE = 200_000_000

        class Kept:
            def __init__(self, text):
                self.text = text * SIZE

        def keep(text):
            return Kept(text)

        calls = [lambda text=text: keep(text) for text in (b"x", b"y")]
    """
    exec(textwrap.dedent(cell), notebook)
    for run in notebook["calls"]:
        assert peak_megabytes(run) == pytest.approx(200, rel=0.2)


def test_an_error_comes_through_with_its_text():
    def run():
        raise ValueError("Tiles of 0 queries are none.")

    with pytest.raises(RuntimeError, match=r"(?s)failed in its process.*Tiles of 0 queries"):
        peak_megabytes(run)


def test_a_process_that_dies_is_told():
    with pytest.raises(RuntimeError, match="died, with exit code 7"):
        peak_megabytes(lambda: os._exit(7))
