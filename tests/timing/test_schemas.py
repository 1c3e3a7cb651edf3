"""The command that runs the server's formats and other libraries over schemas."""

import json
import os
import signal
import sys

import pytest

from tests.common.commands import resize, table_in
from timing.peers import schemas
from timing.peers.masks import Library

CONTENTS = {  # a schema, texts that fit it, texts that don't
    "a": ({"enum": ["king", 1]}, ["king", 1], ["wolf"]),
    "b": ({"type": "boolean"}, [True], [1, None]),
    "c": ({"not": {}}, [], ["king"]),
}


def all_allowed(tokenizer) -> Library:
    return Library(lambda _: Anything(), lambda _, row: row.fill_(-1), lambda *_: None)


class Anything:
    def reset(self) -> None:
        """All tokens are allowed at all places."""


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    for name, (schema, valid, invalid) in CONTENTS.items():
        tests = [{"data": data, "valid": True} for data in valid]
        tests += [{"data": data, "valid": False} for data in invalid]
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": schema, "tests": tests}))

    def rows(every: int = 1, **peers) -> dict[str, list[str]]:
        for package in ("outlines_core", "llguidance"):
            monkeypatch.setitem(sys.modules, package, None)
        resize(monkeypatch, schemas, str(tmp_path), "--every", str(every), PEERS=peers)
        schemas.main()
        header, *found = table_in(capsys.readouterr().out)
        assert {len(row) for row in found} == {len(header)}
        return {row[0]: row[1:4] for row in found}

    return rows


def test_what_is_supported_and_accepted_is_counted(run):
    assert run()["the server"] == ["2 of 3, 67%", "3 of 3", "0 of 3"]
    assert run(every=2)["the server"] == ["1 of 2, 50%", "2 of 2", "0 of 1"]


def test_an_engine_that_allows_all_accepts_texts_that_dont_fit(run):
    (row,) = [row for name, row in run(torch=all_allowed).items() if name.startswith("torch")]
    assert row == ["3 of 3, 100%", "3 of 3", "4 of 4"]


def test_a_schema_that_ends_its_process_isnt_supported(run, monkeypatch):
    monkeypatch.setattr(schemas, "SLOW", {"torch"})

    def slow(tokenizer) -> Library:
        return all_allowed(tokenizer)._replace(new=quick_with_enum)

    (row,) = [row for name, row in run(torch=slow).items() if name.startswith("torch")]
    assert row == ["1 of 3, 33%", "2 of 2", "1 of 1"]


def quick_with_enum(schema: str) -> Anything:
    if "enum" not in schema:
        os.kill(os.getpid(), signal.SIGXCPU)
    return Anything()
