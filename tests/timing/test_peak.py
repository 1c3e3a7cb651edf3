"""Peak memory of a call: what it takes is seen, and nothing else is."""

import os
import sys
import textwrap

import pytest

from timing.peak import MEGABYTE, peak_megabytes


def filled(megabytes: int) -> bytes:
    return b"x" * (megabytes * MEGABYTE)


def filled_thrice() -> bytes:
    for _ in range(3):
        filled(200)  # gone again before the next one comes
    return filled(1)


@pytest.mark.parametrize(
    ("run", "megabytes"),
    [(lambda: filled(200), 200), (filled_thrice, 200), (lambda: filled(1), 1), (int, 0)],
)
def test_what_a_call_allocates_is_seen_and_neither_what_was_before_nor_what_the_parent_holds(
    run, megabytes
):
    held = filled(400)
    assert peak_megabytes(run) == pytest.approx(megabytes, abs=30)
    assert len(held) == 400 * MEGABYTE


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a peak be forgotten")
def test_what_goes_along_is_there_when_it_begins():
    given = filled(200)
    assert peak_megabytes(lambda: len(given)) == pytest.approx(0, abs=30)
    assert peak_megabytes(lambda: given + b"x") == pytest.approx(200, abs=30)


def test_a_function_of_a_notebook_goes_along_and_what_it_changes_stays_in_its_process():
    notebook = {"__name__": "__main__"}
    cell = """
        SIZE = 200_000_000
        seen = []

        class Kept:
            def __init__(self, text):
                self.text = text * SIZE

        def keep(text):
            seen.append(text)
            return Kept(text)

        calls = [lambda text=text: keep(text) for text in (b"x", b"y")]
    """
    exec(textwrap.dedent(cell), notebook)
    for run in notebook["calls"]:
        assert peak_megabytes(run) == pytest.approx(200, abs=40)
    assert notebook["seen"] == []


def test_an_error_comes_through_with_its_text_and_a_process_that_dies_is_told():
    def run():
        raise ValueError("Tiles of 0 queries are none.")

    with pytest.raises(RuntimeError, match=r"(?s)failed in its process.*Tiles of 0 queries"):
        peak_megabytes(run)
    with pytest.raises(RuntimeError, match="died with exit code 7"):
        peak_megabytes(lambda: os._exit(7))
