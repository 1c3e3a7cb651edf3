"""What is put around an attempt while it runs: right neighbors, and torch's settings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import torch


def notebook_of(attempt: Any) -> dict[str, Any]:
    """The names of the notebook in which an attempt was written."""
    classes = attempt.__mro__ if isinstance(attempt, type) else ()
    members = [m for cls in classes for m in vars(cls).values()] or [attempt]
    found = (getattr(unwrap(member), "__globals__", None) for member in members if callable(member))
    return next((names for names in found if names is not None), {})


@contextmanager
def lending(attempt: Any, lent: Mapping[str, Any]) -> Iterator[None]:
    """Let an attempt find right solutions of other exercises under the names that it calls.

    While it runs, they replace the learner's own in its notebook, so that a mistake in one exercise
    costs one exercise. Then the learner's own are put back.
    """
    notebook = notebook_of(attempt)
    own = {name: notebook[name] for name in lent if name in notebook}
    notebook.update({name: lent[name] for name in own})
    try:
        yield
    finally:
        notebook.update(own)


UNUSED_SEED = 2**40 + 15  # no case hands over a generator with it
OTHER_SEED = UNUSED_SEED + 1


@contextmanager
def torch_as_it_is(seed: int = UNUSED_SEED) -> Iterator[None]:
    """Put back what an attempt may change of torch: defaults, the random state, and the threads.

    An attempt that draws numbers of its own draws the same ones each time, so that its mistake can
    be recognized; with another seed it shows that it does.
    """
    dtype, device, state = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_rng_state(),
    )
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats the stack
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_rng_state(state)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
