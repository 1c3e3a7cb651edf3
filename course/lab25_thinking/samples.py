"""What the pictures are handed."""

from tests.samples import of
from visuals import thinking as visuals
from visuals.thinking import Point

CURVES = {
    "budgets": [Point(3, 1, 50), Point(11, 20, 50), Point(19, 50, 50)],
    "votes": [Point(3, 2, 50), Point(12, 3, 50)],
}
TEXTS = {"0": ("", "12"), "2": ("02", "13"), "4": ("0213", "13")}
VOTES = [{"13": 1}, {"13": 1, "20": 1}, {"13": 2, "20": 1}, {"13": 3, "20": 1}, {"13": 4, "20": 1}]

EXAMPLES = (
    of(visuals.show_spending, CURVES),
    of(visuals.show_thoughts, TEXTS, "13"),
    of(visuals.show_votes, VOTES, 6),
    of(visuals.show_votes, VOTES[:2], 6),
)
