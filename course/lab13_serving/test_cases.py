"""Lab 13: figures are exact, and no answer comes when a deadline passes."""

import ast
import math
from fractions import Fraction

from autograder.exercises import exercises
from tests.common.trials import cases_of, seeds, trials


@seeds
def test_no_percentile_is_on_the_verge_of_another_rank(seed: int) -> None:
    """Whether a rank is p / 100 * n or p * n / 100, it rounds up to the exact one."""
    for case in cases_of(exercises()["serving.percentile"], seed):
        p, n = case.data["p"], len(case.data["values"])
        exact = math.ceil(Fraction(str(p)) * n / 100)
        assert math.ceil(p / 100 * n) == math.ceil(p * n / 100) == exact, case.label


@seeds
def test_ttft_and_tpot_are_computed_exactly(seed: int) -> None:
    """So an answer that just meets the SLO meets it, in whatever order its times are subtracted."""
    for case in cases_of(exercises()["serving.goodput"], seed):
        for due, start, last, tokens, _ in case.data["served"]:
            if start is not None:
                assert Fraction(start) - Fraction(due) == Fraction(start - due)
                assert Fraction(last) - Fraction(start) == Fraction(last - start)
                gaps = max(tokens - 1, 1)
                assert (last - start) / gaps * gaps == last - start, case.label


@seeds
def test_a_request_is_admitted_by_tokens_as_by_seconds(seed: int) -> None:
    for case in cases_of(exercises()["serving.Admission.admit"], seed):
        target, rate = case.data["target_ttft"], case.data["prefill_rate"]
        for tokens in range(1, 1000):
            assert (tokens <= target * rate) == (tokens / rate <= target)


@seeds
def test_no_answer_comes_when_a_deadline_passes(seed: int) -> None:
    """A replica's first piece or fault comes a quarter of a second before or after it, at least."""
    for case in cases_of(exercises()["serving.with_failover"], seed):
        time = 0.0
        for replica in case.data["replicas"]:
            for what, value in case.data["scripts"][replica]:
                if what != "wait":
                    break
                time += value
            assert abs(time - case.data["deadline"]) >= 0.25, case.label
            if what != "fault":
                break


@seeds
def test_chats_end_with_no_load_and_their_turns_stay_on_a_replica(seed: int) -> None:
    (trial,) = trials(exercises()["serving.Router.pick"], seed)
    outcomes = {c.label: o for c, o in zip(trial.cases, trial.expected, strict=True)}
    last = outcomes["the turns of four chats"].seen[-1].value
    books = ast.literal_eval(last.removeprefix("are "))
    assert [load for load, _, _ in books] == [0, 0, 0]
    assert sum(served for _, served, _ in books) == 14
    assert sum(known for _, _, known in books) == 2 * 14
