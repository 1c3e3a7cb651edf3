"""solutions/own_codes.py: a GGUF's codes in the kernel compute what its floats do."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpt import Linear
from solutions.engine.engine import new_engine
from solutions.engine.limits import Limits
from solutions.families import load_model
from solutions.own_codes import OwnCodes
from solutions.quantized_model import bytes_of, matrices
from solutions.server.loaded import load
from solutions.server.settings import Settings
from tests.common.llamas import write_llama
from timing.peers.gguf_file import write_gguf
from timing.table.verify import COARSE_HAIR

VARIANTS = "llama-tied", "llama", "qwen2", "qwen3-biases"


def write(folder: Path, precision: str, variant: str = "llama-tied", **changes: Any) -> Path:
    write_llama(folder, variant, **changes)
    file = folder / "model.gguf"
    write_gguf(folder, file, precision)
    return file


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("precision", ["q4_0", "q4_1"])
def test_each_layer_is_that_of_floats_up_to_bfloat16(variant, precision, tmp_path) -> None:
    file = write(tmp_path, precision, variant)
    floats, coded = load_model(file), load_model(file, codes=True)
    generator = torch.Generator().manual_seed(0)
    for name, linear in matrices(floats).items():
        layer: Any = coded.get_submodule(name)
        assert isinstance(layer, OwnCodes)
        rows = torch.randn(9, len(linear.weight), generator=generator).bfloat16().float()
        # Scale, zero, and each product as a whole are rounded by at most 2^-9 of what they are.
        largest = 16 * layer.scale_and_zero.float().abs().sum(-1).repeat_interleave(32, dim=0)
        most = 2**-8 * (rows.abs() @ largest)
        assert ((layer(rows) - linear(rows)).abs() <= most).all()
        assert layer.product()(rows).equal(layer(rows))


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_engine_writes_what_the_same_model_does_without_a_cache(variant, tmp_path) -> None:
    model = load_model(write(tmp_path, "q4_1", variant), codes=True)
    new: dict[int, list[int]] = {0: [], 1: []}
    limits = Limits(16, 4, 8, 2)  # the first prompt comes in two chunks
    engine = new_engine(model, limits, lambda output: new[output.request].extend(output.new_ids))
    prompts = [list(range(5, 17)), [300, 2, 45]]
    for prompt in prompts:
        engine.submit(prompt, 12)
    engine.run()
    for prompt, ids in zip(prompts, new.values(), strict=True):
        text = torch.tensor([prompt + ids])
        logits = model(text, torch.arange(text.shape[1])[None], None)[0, len(prompt) - 1 : -1]
        picked = logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert len(ids) == 12
        assert (picked >= logits.amax(1) - COARSE_HAIR * logits.abs().amax(1)).all()


def test_a_number_takes_five_bits_and_one_of_the_embedding_eight(tmp_path) -> None:
    file = write(tmp_path, "q4_1")
    coded = load_model(file, codes=True)
    linears = list(matrices(load_model(file)).values())
    expected = sum(weight.weight.numel() * 5 // 8 + weight.bias.nbytes for weight in linears)
    shape = coded.config
    expected += shape.vocab_size * (shape.n_embd + 4 + 2)  # with the scale, twice
    expected += (2 * shape.n_layer + 1) * shape.n_embd * 4  # norms
    assert bytes_of(coded) == expected


def test_a_matrix_that_the_file_has_as_floats_stays_so(tmp_path) -> None:
    file = write(tmp_path, "q4_1", intermediate_size=144)  # whose rows are no whole blocks
    coded: Any = load_model(file, codes=True).transformer.h[1].mlp
    floats: Any = load_model(file).transformer.h[1].mlp
    assert isinstance(coded.c_fc, OwnCodes)
    assert isinstance(coded.c_proj, Linear)
    assert coded.c_proj.weight.equal(floats.c_proj.weight)


@pytest.mark.parametrize(
    ("precision", "changes", "sentence"),
    [
        ("q8_0", {}, "no codes of 4 bits. Load it as floats"),
        ("q4_1", {"intermediate_size": 36}, "multiple of 16 outputs, and 72 is no multiple"),
    ],
)
def test_other_files_are_refused_with_a_sentence(precision, changes, sentence, tmp_path) -> None:
    file = write(tmp_path, precision, **changes)
    with pytest.raises(ValueError, match=sentence):
        load_model(file, codes=True)
    with pytest.raises(ValueError, match="isn't a GGUF file"):
        load_model(tmp_path, codes=True)


def test_a_server_serves_them_where_there_are_any(tmp_path) -> None:
    file = write(tmp_path, "q4_1")
    loaded = load(Settings(model=str(file), technique="codes"))
    assert any(isinstance(layer, OwnCodes) for layer in loaded.model.modules())
    with pytest.raises(ValueError, match="isn't a GGUF file"):
        load(Settings(technique="codes"))
