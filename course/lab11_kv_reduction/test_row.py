"""Its row: a window is marked, and is no longer than it says."""

import pytest
import torch

from solutions import flash_attention as lab12
from solutions import kv_cache as lab2
from solutions import kv_reduction as lab11
from solutions.quality.bits_per_byte import bits_per_byte, loss, passages
from tests.common.timed import CONTEXT, assert_marked, broken, rows_of
from timing.table.workloads import LENGTHS, RAGGED

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def narrow(monkeypatch):
    """A window that the short texts here are longer than, and tiles."""
    monkeypatch.setattr("course.lab11_kv_reduction.row.WINDOW", 6)
    monkeypatch.setattr("course.lab11_kv_reduction.row.SINKS", 2)
    monkeypatch.setattr(lab12.TiledCache, "tile", 3)


def test_a_window_is_marked_and_tells_what_it_loses(table, tiny, narrow):
    args = "--workloads", "lengths,ragged", "--tokens", "40", "--techniques", "engine,window"
    printed, result = table(*args)
    assert_marked("window", printed, result)
    assert "# window, 40 new tokens: a token sees at most 8. 0 of 1 texts equal" in printed
    scored, exact = CONTEXT // 2, lab2.CachedLMHead.from_pretrained(tiny)
    texts = passages(length=CONTEXT)[:4]

    def bits(window: int) -> torch.Tensor:
        def logits(ids: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(ids.shape[1])[None]
            return exact(ids, positions, lab11.WindowCache(2, window, sinks=2))

        return bits_per_byte(logits, texts, scored=scored)

    expected, found = loss(bits(6), bits(CONTEXT)), result["losses"]["window"]
    assert found["bits"] == pytest.approx(expected.bits, rel=1e-3)
    assert found["error"] == pytest.approx(expected.error, rel=1e-3)
    engine, window = rows_of(result, "ragged").values()
    for key in ("batch", "tokens_computed", "kv_bytes_reserved", "weight_bytes"):
        assert window[key] == engine[key]
    # Of a text of 4 blocks the first one and two more: one that is full, and one that fills.
    engine, window = rows_of(result, "40 new tokens").values()
    assert window["kv_bytes"] / engine["kv_bytes"] == 3 / 4


def test_a_window_as_long_as_the_text_loses_nothing(table):
    printed, result = table("--tokens", "9", "--techniques", "window")
    assert "a token sees at most 68. 1 of 1 texts equal the reference's; 100% of" in printed
    assert result["losses"]["window"]["bits"] == pytest.approx(0, abs=1e-5)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(("longer", "more"), [(1, 0), (-1, 0), (0, -1)])
@pytest.mark.parametrize("kind", [LENGTHS, RAGGED])
@pytest.mark.usefixtures("narrow")
def test_another_window_is_never_timed(assert_stopped, longer, more, kind):
    def window_mask(queries, keys, window, sinks):
        return lab11.window_mask(queries, keys, window + longer, sinks + more)

    assert_stopped("window", kind, broken("kv_reduction", window_mask=window_mask))
