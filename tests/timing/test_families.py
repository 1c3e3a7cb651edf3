"""A model of another family on the table: every row that can be, and a sentence for the others."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import timed_generate
from course.lab20_llama import row as lab20
from tests.common.llamas import write_llama
from tests.common.timed import COMPILED, shorten
from timed_generate import TECHNIQUES
from timing.peers.gguf_file import write_gguf

GPT2_ONLY = {
    *("cached-concat", "speculative", "tree", "experts", "experts-half", "tensor-parallel"),
    *("merged", "adapters"),
}


@pytest.fixture(scope="module", params=["a folder", "a GGUF"])
def whole(request, tmp_path_factory) -> tuple[bool, dict[str, Any]]:
    """Whether the model is a GGUF, and all rows of the table on it."""
    folder = tmp_path_factory.mktemp("llama")
    write_llama(folder)
    is_gguf, model = request.param == "a GGUF", folder
    if is_gguf:
        model = folder / "model.gguf"
        write_gguf(folder, model, "q4_1")
    return is_gguf, all_rows(model)


def all_rows(model: Path) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as monkeypatch, redirect_stdout(StringIO()) as out:
        shorten(monkeypatch)
        for name, row in lab20.ROWS.items():
            monkeypatch.setitem(TECHNIQUES, name, row)
        rows = list(dict.fromkeys([*timed_generate.DEFAULT, *lab20.ROWS]))
        monkeypatch.setattr(timed_generate, "DEFAULT", rows)
        timed_generate.main(["--model", str(model), "--repeats", "1", "--tokens", "7", "--all"])
    return json.loads(out.getvalue().splitlines()[-1])


@pytest.mark.slow  # test_row.py of lab 20 shows a few rows
def test_each_row_is_verified_and_timed_or_left_out_with_a_sentence(whole) -> None:
    is_gguf, result = whole
    without = {*GPT2_ONLY, "medusa", "llama", *COMPILED}
    without |= {"text", "json", "json-jump", "planned", "tools"} if is_gguf else {"codes"}
    assert result["not_timed"].keys() == without
    timed = {row["technique"] for row in result["rows"]}
    assert timed == (TECHNIQUES.keys() | lab20.ROWS.keys()) - without - {"mine"}
    for name in GPT2_ONLY:
        assert "GPT-2" in result["not_timed"][name]


def test_the_naive_loop_is_left_out_where_it_would_take_minutes(table, monkeypatch) -> None:
    monkeypatch.setattr(timed_generate, "SHORT", 8)
    monkeypatch.setattr(timed_generate, "DEFAULT", ["naive", "cached"])
    for large, left in ((2**30, {7: "naive", 9: "naive"}), (1, {7: "naive", 9: "cached"})):
        monkeypatch.setattr(timed_generate, "LARGE", large)
        _, result = table("--tokens", "7,9")
        references = {row["new_tokens"]: row["speedup_over"] for row in result["rows"]}
        assert references == left
        assert all(row["speedup"] for row in result["rows"])
        assert ("minutes" in result["not_timed"].get("naive", "")) == (left[9] == "cached")
    _, result = table("--tokens", "9", "--techniques", "naive")
    assert [row["technique"] for row in result["rows"]] == ["naive"]
