"""Tensors as an engine lays them out in memory, and what a value holds of them."""

import copy
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def as_in_an_engine(value: Any, whole: Collection[str] = (), is_whole: bool = False) -> Any:
    """A copy of a case's data, with its tensors laid out in memory as an engine makes them.

    So code that needs contiguous memory, as `view` does, raises here where an engine would raise.
    whole: the names of what an engine allocates or computes as a whole. All else is a slice there.
    """
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.contiguous_format) if is_whole else laid_out(value)
    if type(value) is dict:
        return {k: as_in_an_engine(v, whole, is_whole or k in whole) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(as_in_an_engine(item, whole, is_whole) for item in value)
    return copy.deepcopy(value)


def laid_out(tensor: Tensor) -> Tensor:
    """A copy of a tensor that is a slice of a larger one.

    Floats of four dimensions or more are taken for queries, keys or values: a permuted slice of
    what `c_attn` returns, [batch, seq, 3 * n_embd]. In others the rows are a number apart, like
    the rows of `logits[:, -1]`.
    """
    if tensor.ndim < 2:
        return tensor.clone()
    if tensor.ndim >= 4 and tensor.is_floating_point():
        *batch, heads, seq, head_dim = tensor.shape
        projected = tensor.new_zeros(*batch, seq, 3, heads, head_dim)
        part = projected[..., 0, :, :].transpose(-3, -2)
    else:
        part = tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)[..., :-1]
    return part.copy_(tensor)


def copied(value: Any) -> Any:
    """A copy of a list, because the attempt may change it later."""
    return list(value) if isinstance(value, list) else value


def snapshot(value: Any) -> Any:
    """A copy of a tensor, because its memory may change."""
    return value.clone() if isinstance(value, Tensor) else value


def place_of(memory: tuple[Tensor, Tensor], cache: Any) -> str:
    """Whether a cache's `keys` and `values` are still in the same memory."""
    both = zip(memory, (cache.keys, cache.values), strict=True)
    same = all(was.data_ptr() == now.data_ptr() and was.shape == now.shape for was, now in both)
    return "is the same as before" if same else "has been allocated again"


def tensors_in(thing: Any, inside: type | tuple[()] = (), depth: int = 12) -> Iterator[Tensor]:
    """The tensors that a value is or holds; also those in objects of the type `inside`."""
    if isinstance(thing, Tensor):
        yield thing
        return
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    elif isinstance(thing, inside) and hasattr(thing, "__dict__"):
        thing = list(vars(thing).values())
    if depth and isinstance(thing, (list, tuple, set, deque)):
        for part in thing:
            yield from tensors_in(part, inside, depth - 1)


def float_type(data: Any) -> torch.dtype:
    """The dtype of the floats in a case, in which a driver builds what computes with them."""
    floats = (t.dtype for t in tensors_in(data) if t.is_floating_point())
    return next(floats, torch.float64)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all the memory that tensors are in, counted once; a slice keeps all of it alive."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
