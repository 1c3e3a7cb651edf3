"""The model that lab 2 ends with, for all later labs."""

from collections.abc import Mapping
from typing import Any

from autograder.judging.exercise import Service
from autograder.lending.naive import lend_model
from solutions.kv_cache import CachedLMHead


def lend_cached_model(data: Mapping[str, Any]) -> dict[str, Service]:
    return lend_model(CachedLMHead)
