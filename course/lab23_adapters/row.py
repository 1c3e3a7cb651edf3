"""Lab 23: no row, for the table's requests name no adapter; the lesson measures."""

from timing.table import Own, Rows

ROWS: Rows = {}
OWN: list[Own] = []
