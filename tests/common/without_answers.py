"""Run the drivers of one lab where neither its answers nor those of later labs can be imported.

    python -m tests.common.without_answers kv_cache

What the trusted side knows is prepared first; then the doors are closed. Prints how many cases ran.
"""

import importlib
import sys

import solutions
from autograder.drivers.seen import Seen
from autograder.exercise import Outcome
from autograder.judge import lent, run_all
from autograder.reference import fresh_copy, parts_of
from tests.common.trials import EXERCISES, LABS, cases_of

lab = sys.argv[1]
later = [file for name in LABS[LABS.index(lab) :] for file in parts_of(name)]
exercises = [exercise for exercise in EXERCISES if exercise.lab == lab]
notebook = vars(fresh_copy(lab))  # stands for a student's

prepared = []
for exercise in exercises:
    cases = cases_of(exercise)
    outcomes = run_all(exercise, exercise.driver, exercise.reference, cases)
    lent_services = [exercise.services(case.data) for case in cases]
    answers = {f"solutions.{name}" for name in later}
    lendable = {n: f for n, f in lent(exercise).items() if f.__module__ not in answers}
    prepared.append((exercise, lendable, list(zip(cases, outcomes, lent_services, strict=True))))

open_doors = {"autograder", "autograder.drivers"}
open_doors |= {"autograder.drivers.seen", "autograder.drivers.queues"}
for name in later:
    sys.modules[f"solutions.{name}"] = None  # type: ignore[assignment]  # importing it now fails
    vars(solutions).pop(name, None)
for name in [name for name in sys.modules if f"{name}.".startswith("autograder.")]:
    if name in open_doors or name == f"autograder.drivers.{lab}":
        del sys.modules[name]
    else:
        sys.modules[name] = None  # type: ignore[assignment]

drivers = importlib.import_module(f"autograder.drivers.{lab}")
seen = importlib.import_module("autograder.drivers.seen")
assert seen.Seen is not Seen

ran = 0
for exercise, lendable, trials in prepared:
    driver = getattr(drivers, exercise.driver.__name__)
    attempt = notebook[exercise.attempt_name]
    for case, expected, services in trials:
        with seen.lending(attempt, lendable):
            records = driver(attempt, **case.data, **services)
        counts = {name: service.counts() for name, service in services.items()}
        got = Outcome(tuple(Seen(what, seen.plain(v), where) for what, v, where in records), counts)
        difference = exercise.compare(got, expected)
        assert difference is None, (exercise.name, case.label, difference)
        ran += 1
print(ran)
