"""Lab 22, given: records the operations of PyTorch while a function runs.

What a CUDA stream does while it is captured, on any machine: the functions of PyTorch's library are
noted with the memory that they read and write.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"aten._local_scalar_dense.default", "aten.item.default", "aten.nonzero.default"}

Recorded = tuple[Any, Sequence[Any], list[Tensor]]  # function, inputs, results


class Recorder(TorchDispatchMode):
    """Notes each operation that runs, except views, which compute nothing.

    is_capturing: refuse what decides something by a number, because a replay couldn't decide anew.
    """

    def __init__(self, is_capturing: bool = False) -> None:
        super().__init__()
        self.is_capturing, self.recorded = is_capturing, list[Recorded]()

    def __torch_dispatch__(
        self, function: Any, types: Any, inputs: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        if self.is_capturing and str(function) in READS:
            raise RuntimeError(
                f"{function} brings numbers to the host, and Python may decide by them. A graph "
                "can't do that: it would have decided once, for all replays."
            )
        found = function(*inputs, **named)
        in_place = function._schema.is_mutable
        results = [] if in_place else tensors(found)
        if in_place or not memory_of(results) <= memory_of(inputs):
            self.recorded.append((partial(again, function, named), inputs, results))
        return found


def again(function: Any, named: dict[str, Any], *inputs: Any) -> list[Tensor]:
    """Run an operation again; return its new tensors, of which one that works in place has none."""
    found = function(*inputs, **named)
    return [] if function._schema.is_mutable else tensors(found)


def tensors(found: Any) -> list[Tensor]:
    several = found if isinstance(found, tuple | list) else [found]
    return [each for each in several if isinstance(each, Tensor)]


def memory_of(things: Any) -> set[int]:
    """Return where the numbers of tensors are. Views of a tensor are where it is."""
    plain = [each for each in tensors(things) if each.layout == torch.strided]
    return {each.untyped_storage().data_ptr() for each in plain}
