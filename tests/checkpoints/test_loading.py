"""solutions/families.py: one place finds and loads models of all families."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from solutions import families
from solutions.families import find_checkpoint, is_gpt2, load_model, load_tokenizer
from solutions.fused_rope import FusedLlama
from solutions.kv_cache import CachedLMHead
from tests.common.checkpoints import SHIPPED, write_tiny
from tests.common.llamas import write_llama
from timing.peers.gguf_file import write_gguf


def test_each_family_gets_its_model(tmp_path) -> None:
    for name, write in [("gpt2", write_tiny), ("llama", write_llama)]:
        (tmp_path / name).mkdir()
        write(tmp_path / name)
        model = load_model(find_checkpoint(tmp_path / name))
        assert isinstance(model, CachedLMHead) == is_gpt2(tmp_path / name) == (name == "gpt2")
    assert model.transformer.fused is FusedLlama


def test_a_gguf_has_all_that_a_folder_has(tmp_path) -> None:
    write_llama(tmp_path)
    file = tmp_path / "model.gguf"
    write_gguf(tmp_path, file, "q8_0")
    assert not is_gpt2(find_checkpoint(file))
    text = "The naïve fox's 12 eggs,\n\nall 345678 of them."
    assert load_tokenizer(file).encode(text).ids == load_tokenizer(SHIPPED).encode(text).ids


def test_what_is_installed_is_found_by_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(families, "INSTALLED", tmp_path)
    with pytest.raises(ValueError, match=r"smollm2 isn't installed.*make chat"):
        find_checkpoint("smollm2")
    (tmp_path / "smollm2").mkdir()
    assert find_checkpoint("smollm2") == tmp_path / "smollm2"
    assert find_checkpoint("fable") == SHIPPED


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_of_the_hub_is_fetched_whole(fails: bool, tmp_path, monkeypatch) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    write_llama(there, max_shard_size="400KB")
    (there / "chat_template.jinja").write_text("{{ messages }}")

    def snapshot_download(name: str, allow_patterns: list[str]) -> str:
        assert name == "someone/llama"
        if fails and "*.jinja" in allow_patterns:
            raise OSError
        for file in there.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, here)
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    if fails:
        with pytest.raises(ValueError, match=r"can't be fetched whole.*OSError"):
            find_checkpoint("someone/llama")
        return
    assert find_checkpoint("someone/llama") == Path(here)
    assert sorted(file.name for file in here.iterdir()) == sorted(f.name for f in there.iterdir())
    load_model(here)
