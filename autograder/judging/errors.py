"""Errors: what Python or PyTorch means by one, in the words of the course, whatever the exercise.

Only errors that mean the same wherever they are raised. The learner's own line is shown with them.
"""

import re
from typing import NamedTuple

from autograder.judging.catalogue import Misconception
from autograder.judging.exercise import Exercise


class Meaning(NamedTuple):
    """words: a pattern of what an error says. sentence: to the learner."""

    words: str
    sentence: str


MEANINGS = {
    "several_truth_values": Meaning(
        r"Boolean value of Tensor with more than one value is ambiguous",
        "A tensor of several numbers is used where Python needs one True or False: after `if` or "
        "`while`, with `and` or `not`, or in Python's `max`, `min`, `sorted` or `in`. Take one of "
        "its entries, or use `.any()`, `.all()`, `torch.where` or `clamp`.",
    ),
    "values_and_indices": Meaning(
        r"torch\.return_types\.",
        "`max`, `min`, `sort` and `topk` along a dimension return values and indices together: "
        "take `.values`, or unpack both.",
    ),
    "list_times_a_fraction": Meaning(
        r"can't multiply sequence by non-int of type 'float'",
        "A list or tuple is multiplied by a fraction, as only a number or a tensor can be. `max`, "
        "`sort` and `topk` along a dimension return a tuple: take `.values`.",
    ),
    "indexed_like_a_tensor": Meaning(
        r"(list|tuple) indices must be integers or slices, not tuple",
        "A list or tuple is indexed with several places at once, as only a tensor can be. `topk` "
        "and `sort` return a tuple: take `.values`. torch.tensor(...) makes a tensor of a list.",
    ),
    "dimensions_of_an_index": Meaning(
        r"Index tensor must have the same number of dimensions as (self|input) tensor",
        "`gather` and `scatter` need an index with as many dimensions as the tensor. `argmax` and "
        "`sum` drop one without `keepdim=True`; `[:, None]` adds one.",
    ),
    "changed_while_looping": Meaning(
        r"(changed size|changed|mutated) during iteration",
        "A loop goes over something that changes while it runs: loop over a copy, `list(...)`, or "
        "use `while`.",
    ),
    "nothing_to_choose_from": Meaning(
        r"(max|min)\(\) (arg is an empty sequence|iterable argument is empty)",
        "`max` or `min` gets nothing to choose from: check first that there is something, or pass "
        "`default=`.",
    ),
    "no_value_yet": Meaning(
        r"(local variable '\w+' referenced before assignment|cannot access local variable)",
        "A variable has no value yet: the line that gives it one comes later, or is in a loop or "
        "an `if` that did not run.",
    ),
    "one_number_asked_for": Meaning(
        r"a Tensor with \d+ elements cannot be converted to Scalar|only one element tensors can be",
        "`int`, `float` and `.item()` take a tensor of one number: take one entry, or use "
        "`.tolist()`.",
    ),
    "calls_itself": Meaning(
        r"maximum recursion depth exceeded",
        "A function calls itself more often than Python allows, directly or through others. Does "
        "that end? A loop has no such limit.",
    ),
    "not_called": Meaning(
        r"'(builtin_function_or_method|function|method)' object is not (subscriptable|iterable)",
        "A function or method is not called: `()` is missing, or written as `[]`.",
    ),
    "no_such_number": Meaning(
        r"math domain error|expected a (positive|nonnegative) input",
        "A function of `math` has no value here: `math.log` needs a number above 0, `math.sqrt` "
        "one that isn't below 0.",
    ),
    "value_called": Meaning(
        r"'(bool|int|float|str|list|tuple|dict|Tensor)' object is not callable",
        "A value is called like a function. A property takes no `()`, and a name that you have "
        "given to a value no longer names a function.",
    ),
    "two_dtypes": Meaning(
        r"Expected self\.dtype to be equal to src\.dtype|the source and destination dtypes match"
        r"|expected (m1 and m2|scalar type)",
        "Two tensors of different dtypes meet: convert one with `.to(x.dtype)`, or make it with "
        "`torch.zeros_like(x)`.",
    ),
}


def meaning(exercise: Exercise, told: str) -> Misconception | None:
    """What an error means, in the form of a misconception; None where its words don't say."""
    for name, (words, sentence) in MEANINGS.items():
        if re.search(words, told):
            return Misconception(exercise.name, name, sentence, ())
    return None
