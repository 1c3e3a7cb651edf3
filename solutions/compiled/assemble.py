"""Lab 21, given: a whole step made of a learner's own parts.

numba freezes what a compiled function calls, so a new part reaches the step only if all that calls
it is compiled anew. No compiled code is kept, because numba would not see a change in a part.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from solutions import one_kernel
from solutions.compiled import steps
from solutions.compiler import ON, compiled, python_of

MODULES = one_kernel, steps
PARTS = ["normalize", "multiply", "multiply4", "exponentiate", "attend", "take_share", "mlp"]

# What takes a place in the step, where a part of the learner's is there.
IN_PLACE = {
    "multiply": ("products", "multiply"),
    "multiply4": ("products", "multiply4"),
    "mlp": ("mlp_of_step", "learners_mlp"),
}


def assemble(**parts: Callable[..., Any]) -> Callable[..., None]:
    """Return a `step` that has these functions in place of the reference's.

    parts: by the names of their exercises. Raises ValueError for a part that has not passed its
    check: compiled code can't be interrupted, and writes anywhere.
    """
    require_passed(parts)
    names = {name: value for module in MODULES for name, value in vars(module).items()}
    own = [rebuilt(part, dict(python_of(part).__globals__)) for part in parts.values()]
    for name, value in list(names.items()):
        function = python_of(value)
        if isinstance(function, FunctionType) and function.__module__ in map(name_of, MODULES):
            fresh = rebuilt(function, names)
            names[name] = fresh if value is function else compiled(fresh)
    names.update(zip(parts, map(compiled, own), strict=True))
    for name, (place, taker) in IN_PLACE.items():
        if name in parts:
            names[place] = names[taker]
    for part in own:
        part.__globals__.update({name: names[name] for name in [*PARTS, "gelu", "softmax", "cut"]})
    if ON:
        from numba.extending import overload

        overload(names["multiply_part"])(names["compiled_part"])
    return names["step"]


def require_passed(parts: dict[str, Callable[..., Any]]) -> None:
    for name, part in parts.items():
        if name not in PARTS:
            raise ValueError(f"The step has no part {name!r}; its parts are {', '.join(PARTS)}.")
        is_ours = part is getattr(one_kernel, name)
        if not is_ours and not getattr(python_of(part), "has_passed", False):
            raise ValueError(
                f'`{name}` has not passed yet: run check("one_kernel.{name}", {name}).'
            )


def rebuilt(function: Any, names: dict[str, Any]) -> FunctionType:
    """Return the Python form of a function with other globals, whose code isn't kept."""
    f = python_of(function)
    made = FunctionType(f.__code__, names, f.__name__, f.__defaults__, f.__closure__)
    made.__module__ = __name__.rpartition(".")[2]
    return made


def name_of(module: Any) -> str:
    return str(module.__name__)
