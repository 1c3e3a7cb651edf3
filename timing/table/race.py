"""Several techniques side by side in the terminal, each at the speed it has alone.

If they ran together they would compete for the processor. So each one runs alone first; then the
texts are played back, token by token, at the speed at which they came.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from timing.table.runs import Run

FRAMES = 20  # a second


@dataclass(frozen=True)
class Lane:
    """One technique in a race. times: when each new token came, in seconds from the start."""

    name: str
    tokens: list[int]
    times: list[float]

    @classmethod
    def of(cls, name: str, run: Run) -> "Lane":
        """Make a lane of a run's first request."""
        times = [moment - run.start for moment in run.token_times[0]]
        return cls(name, run.outputs[0][-len(times) :], times)

    def reached(self, moment: float) -> int:
        """Return how many tokens had come by a moment."""
        return sum(came <= moment for came in self.times)

    def title(self, moment: float) -> str:
        count = self.reached(moment)
        if count < len(self.tokens):
            return f"{self.name}: {count} of {len(self.tokens)} tokens"
        return f"{self.name}: {self.times[-1]:.2f} s, {count / self.times[-1]:.0f} tok/s"


def frame(lanes: list[Lane], tokenizer: Any, moment: float, width: int) -> Columns:
    """Return what is on the screen at a moment, in seconds."""
    wide = max(20, width // len(lanes) - 1)
    shown = []
    for lane in lanes:
        text = tokenizer.decode(lane.tokens[: lane.reached(moment)])
        is_through = lane.reached(moment) == len(lane.tokens)
        style = "green" if is_through else "default"
        shown.append(Panel(Text(text), title=lane.title(moment), width=wide, border_style=style))
    return Columns(shown)


def show_race(console: Console, runs: Mapping[str, Run], tokenizer: Any, prompt: str) -> None:
    """Play runs back side by side. Without a terminal, print only the end."""
    lanes = [Lane.of(name, run) for name, run in runs.items()]
    last = max(lane.times[-1] for lane in lanes)
    heading = Text(prompt, style="dim")

    def seen(moment: float) -> Group:
        return Group(heading, frame(lanes, tokenizer, moment, console.width))

    if not console.is_terminal:
        console.print(seen(last))
        return
    with Live(seen(0), console=console, refresh_per_second=FRAMES) as live:
        start = time.perf_counter()
        while (moment := time.perf_counter() - start) < last:
            live.update(seen(moment))
            time.sleep(1 / FRAMES)
        live.update(seen(last))
