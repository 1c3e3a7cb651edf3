"""Bytes of keys and values that a technique holds, and bytes that it has reserved.

Each function is called after a forward pass with its arguments and its output, and returns both.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

Bytes = tuple[int, int]  # held, reserved


def none_held(args: Sequence[Any], output: Any) -> Bytes:
    return 0, 0


def of_tuples(args: Sequence[Any], output: Any) -> Bytes:
    _logits, kv_cache = output
    held = sum(keys.nbytes + values.nbytes for keys, values in kv_cache)
    return held, held


def of_transformers(args: Sequence[Any], output: Any) -> Bytes:
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in output.past_key_values.layers)
    return held, held


def of_object(args: Sequence[Any], output: Any) -> Bytes:
    """Count for lab 2's KVCache and lab 3's PaddedCache, which holds padding, too."""
    kv_cache = cache_among(args)
    return kv_cache.bytes_held, kv_cache.bytes_reserved


def of_slots(args: Sequence[Any], output: Any) -> Bytes:
    kv_cache = cache_among(args)
    reserved = kv_cache.keys.nbytes + kv_cache.values.nbytes
    places = len(kv_cache.lengths) * kv_cache.max_length
    return reserved * int(kv_cache.lengths.sum()) // places, reserved


def of_blocks(args: Sequence[Any], output: Any) -> Bytes:
    """Count every allocated block as held, however few of its slots are filled."""
    kv_cache = cache_among(args)
    reserved = kv_cache.pool.nbytes
    return reserved * kv_cache.manager.used_blocks // kv_cache.manager.num_blocks, reserved


def cache_among(args: Sequence[Any]) -> Any:
    """Return the one argument of a forward pass that is not a tensor."""
    return next(arg for arg in args if not isinstance(arg, Tensor))
