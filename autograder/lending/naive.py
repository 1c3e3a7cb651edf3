"""A small model that counts its work."""

from collections.abc import Callable, Mapping
from typing import Any

from autograder.judging.draws import small_model
from autograder.judging.exercise import Service
from autograder.lending.services import CountedModel
from gpt import GPTConfig, GPTLMHead


def lend_model(cls: Callable[[GPTConfig], Any]) -> dict[str, Service]:
    return {"model": CountedModel(small_model(cls))}


def lend_naive_model(data: Mapping[str, Any]) -> dict[str, Service]:
    return lend_model(GPTLMHead)
