"""A moving picture of continuous batching: which request each slot serves, step by step.

The trace is that of the reference. The picture is SVG and CSS: it moves three times and then shows
the whole run, which is all that readers see who prefer no motion.
"""

from pathlib import Path

from markupsafe import Markup

from autograder.text.templates import render
from gpt import GPTConfig
from solutions.batching import Trace, generate_continuous, generate_static
from solutions.kv_cache import CachedLMHead

SLOTS, NEW_TOKENS = 4, (4, 8, 3, 5, 5, 4, 3)  # more requests than slots, of unequal lengths
PICTURE = Path(__file__).with_name("animation.svg")


def runs() -> tuple[Trace, Trace]:
    """Serve the requests continuously and in static batches; return both traces.

    The tiny model's tokens make no difference to a trace.
    """
    config = GPTConfig(vocab_size=8, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    requests = CachedLMHead(config), [[0]] * len(NEW_TOKENS), list(NEW_TOKENS), SLOTS
    return generate_continuous(*requests).trace, generate_static(*requests).trace


def lives(trace: Trace) -> dict[int, tuple[int, int, int]]:
    """Return for each request its slot, its first step and its last one, all counted from 0."""
    found: dict[int, tuple[int, int, int]] = {}
    for step, row in enumerate(trace):
        for slot, request in enumerate(row):
            if request is not None:
                found[request] = slot, found.get(request, (slot, step))[1], step
    return dict(sorted(found.items()))


def letter(request: int) -> str:
    return chr(ord("A") + request)


def described(trace: Trace) -> str:
    """Say in words what the picture shows."""
    parts = [
        f"{letter(request)} in slot {slot + 1}, steps {first + 1} to {last + 1}"
        for request, (slot, first, last) in lives(trace).items()
    ]
    return f"Rows are slots, columns are steps. {'; '.join(parts)}."


def draw(trace: Trace) -> Markup:
    """Return the picture of a trace as SVG, to be put into a page that has style.css."""
    drawn = render(
        PICTURE,
        steps=len(trace),
        slots=len(trace[0]),
        lives=lives(trace),
        letter=letter,
        words=described(trace),
    )
    return Markup(drawn)
