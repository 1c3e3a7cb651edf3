"""Its row: attention in tiles does the engine's work, and loses no tile."""

from typing import Any

import pytest
import torch

from solutions import flash_attention as lab12
from tests.common.timed import SAME_WORK, broken
from timing.table.workloads import RAGGED

pytestmark = pytest.mark.usefixtures("quick")


def test_attention_in_tiles_is_exact_and_does_the_same_work(table, monkeypatch):
    monkeypatch.setattr(lab12.TiledCache, "tile", 3)
    printed, result = table("--workloads", "ragged", "--techniques", "engine,tiled")
    assert "tiled#" not in printed
    engine, tiled = result["rows"]
    assert {key: tiled[key] for key in SAME_WORK} == {key: engine[key] for key in SAME_WORK}
    assert result["losses"] == {}


def forgetting(state: Any, scores: torch.Tensor, values: torch.Tensor) -> Any:
    """Of all tiles the last one is left."""
    return lab12.absorb(lab12.empty_state(state.weighted), scores, values)


def test_a_lost_tile_is_never_timed(assert_stopped):
    sabotage = broken("flash_attention", absorb=forgetting, TiledCache__tile=3)
    assert_stopped("tiled", RAGGED, sabotage)
