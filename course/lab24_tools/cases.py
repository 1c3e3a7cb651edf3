"""The exercises of lab 24: calls in free text, their deltas and messages, and the loop."""

from autograder.judging.exercise import Exercise

NAMES = (
    *("call_pattern", "triggered", "language", "up_to", "CallStream.push", "finish_reason"),
    *("assembled", "written", "run_call", "converse"),
)
EXERCISES = tuple(
    Exercise(f"tools.{name}", lambda attempt: [], lambda generator: []) for name in NAMES
)
