"""What the pictures are handed."""

from tests.samples import of
from visuals import adapters as visuals

MEASURED = {0: [1.9, 1.5], 4: [1.7, 1.6], 8: [1.6, 1.75]}
STEP = [0, 1, 2, 2, 1]
NAMES = ["base", "verse", "capitals"]
MOMENTS: list[visuals.Moment] = [
    ({1: ("1", 1)}, ["3"]),
    ({1: ("1", 2), 2: ("2", 1)}, ["3", "1"]),
    ({1: ("1", 0), 2: ("2", 1)}, ["3", "1", "2"]),
    ({1: ("3", 1), 2: ("2", 1)}, ["1", "2"]),
]

EXAMPLES = (
    of(visuals.show_losses, MEASURED),
    of(visuals.show_step, STEP, NAMES),
    of(visuals.show_step, [0], ["base"]),
    of(visuals.show_slots, MOMENTS),
)
