"""Hostile submissions, and honest ones that look odd, each with the points it must get.

Most attacks are right only if they succeed, so that points mean a forgery. Those on the grader as
such stand here by family, those that need a certain exercise in `labs.py`.
"""

from tests.hostile import (
    floods,
    forgery,
    hangs,
    hogs,
    honest,
    import_time,
    kills,
    labs,
    left_behind,
    lent,
    names,
    protocol,
    reaching,
    spoiled,
    tampering,
)
from tests.hostile.notebooks import Hostile

FAMILIES = (
    *(forgery, protocol, tampering, reaching, hangs, hogs, kills, floods, import_time),
    *(left_behind, spoiled, names, labs, lent, honest),
)
CORPUS: list[Hostile] = [found for family in FAMILIES for found in family.CORPUS]
