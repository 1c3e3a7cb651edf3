"""The limits of an engine: how much it may hold, and how much it may do in a step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any


@dataclass(frozen=True)
class Limits:
    """token_budget: tokens of a step, at most. max_running: requests that hold blocks, at most."""

    num_blocks: int
    block_size: int
    token_budget: int
    max_running: int


def or_four_numbers(new: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function that makes an engine also take its limits as four numbers.

    Labs that were released before there were `Limits` call it that way.
    """

    def with_numbers(
        model: Any,
        num_blocks: int,
        block_size: int,
        token_budget: int,
        max_running: int,
        *given: Any,
        **named: Any,
    ) -> Any:
        limits = Limits(num_blocks, block_size, token_budget, max_running)
        return new(model, limits, *given, **named)

    @wraps(new)
    def either(*given: Any, **named: Any) -> Any:
        are_numbers = "max_running" in named or any(isinstance(one, int) for one in given[1:2])
        return (with_numbers if are_numbers else new)(*given, **named)

    return either
