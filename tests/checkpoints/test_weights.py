"""solutions/checkpoints: every checkpoint of Llama's family computes what transformers computes."""

from pathlib import Path

import pytest
import torch

from solutions.checkpoints.weights import read_checkpoint
from solutions.llama import LlamaLMHead
from tests.common.llamas import VARIANTS, write_llama
from timing.peers.gguf_file import write_gguf


def logits_of(path: Path, ids: torch.Tensor) -> torch.Tensor:
    model = LlamaLMHead.of(*read_checkpoint(path))
    with torch.inference_mode():
        return model(ids, torch.arange(ids.shape[1]).expand_as(ids))


def theirs_of(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(ids).logits


def draw_ids(count: int) -> torch.Tensor:
    return torch.randint(4096, (1, count), generator=torch.Generator().manual_seed(1))


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ours.argmax(-1).equal(theirs.argmax(-1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_folder_of_the_hub_computes_what_transformers_computes(variant: str, tmp_path) -> None:
    theirs, ids = write_llama(tmp_path, variant), draw_ids(250)
    assert_equal(logits_of(tmp_path, ids), theirs_of(theirs, ids))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gguf_computes_what_transformers_computes(variant: str, tmp_path) -> None:
    theirs, ids, file = write_llama(tmp_path, variant), draw_ids(250), tmp_path / "model.gguf"
    write_gguf(tmp_path, file, "float32")
    assert_equal(logits_of(file, ids), theirs_of(theirs, ids))
