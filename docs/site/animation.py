"""A moving picture of continuous batching: which request each slot serves, step by step.

The trace is that of the reference. The picture is SVG and CSS: it moves three times and then shows
the whole run, which is all that readers see who prefer no motion.
"""

from gpt import GPTConfig
from solutions.batching import Trace, generate_continuous, generate_static
from solutions.kv_cache import CachedLMHead

SLOTS, NEW_TOKENS = 4, (4, 8, 3, 5, 5, 4, 3)  # more requests than slots, of unequal lengths
REST = 3  # steps for which the whole run is shown before it begins again
SECONDS = 0.7  # for a step
CELL, LEFT, TOP = 46, 62, 58  # the size of a cell and the place of the first, in pixels


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


def draw(trace: Trace) -> str:
    """Return the picture of a trace as SVG, to be put into a page that has style.css."""
    steps, slots = len(trace), len(trace[0])
    width, height = LEFT + steps * CELL + 8, TOP + slots * CELL + 8
    seconds = SECONDS * (steps + REST)
    parts = [
        f'<svg class="run" viewBox="0 0 {width} {height}" style="--seconds:{seconds:.1f}s"',
        'role="img" aria-labelledby="run-title run-text">',
        '<title id="run-title">Seven requests in four slots, with continuous batching</title>',
        f'<desc id="run-text">{described(trace)}</desc>',
        f"<style>{keyframes(steps)}</style>",
        '<text x="0" y="24">waiting</text>',
    ]
    for request, (slot, first, last) in lives(trace).items():
        parts.append(cell(request, LEFT + request * CELL, 0, f"leave-{first}", "waits"))
        for step in range(first, last + 1):
            done = " ends" if step == last else ""
            x, y = LEFT + step * CELL, TOP + slot * CELL
            parts.append(cell(request, x, y, f"join-{step}", f"served{done}"))
    for slot in range(slots):
        y = TOP + slot * CELL
        parts.append(f'<text x="0" y="{y + 26}">slot {slot + 1}</text>')
    parts.append(f'<path class="now" d="M{LEFT} {TOP - 6} v{slots * CELL + 6}"/></svg>')
    return "\n".join(parts)


def cell(request: int, x: int, y: int, moves: str, looks: str) -> str:
    return (
        f'<g class="{looks} request-{request}" style="animation-name:{moves}">'
        f'<rect x="{x + 2}" y="{y + 2}" width="{CELL - 4}" height="{CELL - 8}" rx="4"/>'
        f'<text x="{x + CELL // 2}" y="{y + 26}">{letter(request)}</text></g>'
    )


def keyframes(steps: int) -> str:
    """Return when the cells of each step appear, when the queue loses them, and the line's way."""
    whole = steps + REST
    end = f"opacity: .6; transform: translateX({steps * CELL}px)"
    frames = [
        f"@keyframes now {{ 0% {{ opacity: .6 }} {100 * steps / whole:.1f}%, 100% {{ {end} }} }}"
    ]
    for step in range(steps):
        before, after = 100 * (step + 0.2) / whole, 100 * (step + 0.3) / whole
        for name, first, last in (("join", 0, 1), ("leave", 1, 0.2)):
            frames.append(
                f"@keyframes {name}-{step} {{ 0%, {before:.1f}% {{ opacity: {first} }} "
                f"{after:.1f}%, 100% {{ opacity: {last} }} }}"
            )
    return "\n".join(frames)
