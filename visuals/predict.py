"""Predict, then run: compare the learner's estimate with the measurement."""

from functools import cache
from numbers import Real

from IPython import get_ipython


def reveal(what: str, guess: object, measured: object, unit: str = "", exact: bool = False) -> None:
    """Print the measurement, the estimate, and how far apart they are.

    Both may be numbers or shapes. Without an estimate (None), only the measurement is printed, and
    once in a cell's output why to write one down. exact: for a count or an address, where a near
    miss is wrong.
    """
    print(f"{what}: {amount(measured, unit)}")
    if guess is None:
        shell = get_ipython()
        remind(shell.execution_count if shell else None)
    else:
        print(f"Your estimate: {amount(guess, unit)}. {verdict(guess, measured, unit, exact)}")


@cache  # so that it is printed once
def remind(cell: int | None) -> None:
    print("No estimate yet. Next time, write one down first: a wrong guess teaches the most.")


def amount(value: object, unit: str) -> str:
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        is_small = 0 < abs(number) < 100 and not number.is_integer()
        text = f"{number:.3g}" if is_small else f"{number:,.0f}"
    else:
        text = str(shape(value))
    return f"{text} {unit}".rstrip()


def verdict(guess: object, measured: object, unit: str, exact: bool) -> str:
    """Return one sentence that compares the estimate with the measurement."""
    if not isinstance(guess, Real) or not isinstance(measured, Real):
        same = shape(guess) == shape(measured)
        return "Exactly right." if same else "They differ: find out why."
    guessed, found = float(guess), float(measured)
    if guessed == found:
        return "Exactly right."
    side = "high" if guessed > found else "low"
    if exact:
        by = amount(abs(guessed - found), unit)
        return f"Too {side} by {by}: only the exact number is right here."
    if guessed <= 0 or found <= 0:
        return "They differ: find out why."
    ratio = max(guessed / found, found / guessed)
    if ratio < 1.1:
        return "Less than 10% off."
    return f"Too {side} by a factor of {amount(ratio, '')}."


def shape(value: object) -> object:
    """Return a shape as a tuple, so that a torch.Size, a list and a tuple can be compared."""
    return tuple(value) if isinstance(value, list | tuple) else value
