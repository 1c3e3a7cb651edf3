"""Comparisons that look at more than what a driver saw: at the work that was done.

A bundle's exercises name one of these, or `compare_seen`.
"""

from autograder.judging.compare import (
    Difference,
    first,
    no_more_work,
    same_ids,
    same_records,
    same_seen,
)
from autograder.judging.exercise import FORWARDS, MOVED, TOKENS, Outcome
from autograder.judging.exercise import compare_seen as compare_seen


def compare_with_work(got: Outcome, expected: Outcome) -> Difference | None:
    """What was seen, and no more work than the reference did."""
    work = got.counts["model"], expected.counts["model"]
    return first(same_seen(got.seen, expected.seen), no_more_work(*work, FORWARDS, TOKENS))


def compare_ids(got: Outcome, expected: Outcome) -> Difference | None:
    """Token ids, and no more forward calls than the reference made."""
    ids = same_records(got.seen, expected.seen, same_ids)
    return first(ids, no_more_work(got.counts["model"], expected.counts["model"], FORWARDS))


ENOUGH = {
    FORWARDS: "The prefill gives the first new token and every decode step one more; nothing "
    "follows the last token, so it needs no forward.",
    TOKENS: "With the cache, every token goes through the model once.",
}


def compare_ids_from_a_cache(got: Outcome, expected: Outcome) -> Difference | None:
    """Token ids, and no more work than with a cache, with the reason."""
    if (ids := same_records(got.seen, expected.seen, same_ids)) is not None:
        return ids
    for what, reason in ENOUGH.items():
        more = no_more_work(got.counts["model"], expected.counts["model"], what)
        if more is not None:
            return Difference(f"{more.sentence} {reason}")
    return None


def compare_with_traffic(got: Outcome, expected: Outcome) -> Difference | None:
    """What was seen, and no more numbers moved than by the reference."""
    if (seen := same_seen(got.seen, expected.seen)) is not None:
        return seen
    moved, enough = (outcome.counts["memory"][MOVED] for outcome in (got, expected))
    if moved <= enough:
        return None
    return Difference(
        f"The result is right, but {moved:,} numbers were moved; {enough:,} are enough."
    )
