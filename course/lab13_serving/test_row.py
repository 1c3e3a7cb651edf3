"""The row `serve`: the engine's tokens through a real HTTP server, verified as tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import timed_generate
from course.lab07_engine.row import engine
from course.lab13_serving import row as row
from solutions import serving
from solutions.engine.limits import Limits
from solutions.server.here import serve_here
from tests.common.checkpoints import write_tiny
from timing.table import Bench, NotTimed, over_http, workloads
from timing.table.workloads import LENGTHS, RAGGED, Workload, ragged

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A small model that often writes its EOS, which must not end a text here."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_tiny(folder, n_positions=64, n_embd=32)
    with torch.no_grad():
        model.transformer.wte.weight[0] *= 30
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def short(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"RAGGED_REQUESTS": 12, "RAGGED_PROMPT": (2, 8), "RAGGED_NEW": (2, 12)}
        for name, size in sizes.items():
            patch.setattr(workloads, name, size)
        patch.setattr("timing.machine.BANDWIDTH_BYTES", 2**20)
        patch.setenv("MINE_FOLDER", str(tmp_path_factory.mktemp("mine")))  # rows are kept there
        yield


def test_every_token_of_the_engine_comes_over_http_with_its_time(tiny):
    bench = Bench(tiny, CPU)
    workload = ragged(bench.load().config)
    ours, theirs = row.serve(bench).run(workload), engine(bench).run(workload)
    assert ours.outputs == theirs.outputs
    assert any(0 in ids[:-1] for ids in ours.outputs)
    assert [len(times) for times in ours.token_times] == workload.new_tokens
    for times in ours.token_times:
        assert ours.start < times[0]
        assert times == sorted(times)
    assert (ours.batch, ours.tokens_computed) == (12, None)
    again = row.serve(bench).run(workload)  # by the same server
    assert again.outputs == ours.outputs


class OtherNumber(over_http.NumberedText):
    """The fifth token of a text gets a wrong number."""

    def push(self, token_id: int) -> str:
        return super().push((token_id + 1) % 4096 if len(self.ids) == 4 else token_id)


def test_a_wrong_token_stops_the_table(tiny, monkeypatch, capsys):
    lab = SimpleNamespace(**{**vars(serving), "TextStream": OtherNumber})
    with serve_here(lab, model=str(tiny)) as server:
        monkeypatch.setattr(over_http, "url_of", lambda settings: server.url)
        args = ["--model", str(tiny), "--techniques", "serve", "--workloads", LENGTHS]
        with pytest.raises(SystemExit, match="Stopped: serve "):
            timed_generate.main([*args, "--tokens", "8", "--repeats", "1"])
    assert "tok/s" not in capsys.readouterr().out


def test_an_error_of_the_server_is_raised_and_no_short_answer():
    with pytest.raises(RuntimeError, match="The server failed"):
        over_http.ids_in(json.dumps(serving.error_body(Exception())).encode())


def test_the_server_has_the_engine_s_room_and_refuses_nothing(tiny):
    settings = over_http.settings_for(tiny, Limits(20, 16, 256, 64))
    with serve_here(**vars(settings)) as server:
        service = server.app.state.service
        manager, admission = service.engine.engine.scheduler.manager, service.requests.admission
        assert (manager.num_blocks, manager.block_size) == (20, 16)
        assert admission.admit(10**9) is admission.admit(10**9) is None
        admission.release(2 * 10**9)


def test_without_the_server_s_packages_the_row_is_left_out_with_a_sentence(
    tiny, monkeypatch, capsys
):
    monkeypatch.setattr(row, "PACKAGES", ("no_such_package",))
    args = ["--model", str(tiny), "--techniques", "serve,cached", "--workloads", RAGGED]
    timed_generate.main([*args, "--repeats", "1"])
    *printed, result = capsys.readouterr().out.splitlines()
    assert [row["technique"] for row in json.loads(result)["rows"]] == ["cached"]
    told = "ragged: it needs the server's packages. Install them: pip install -e '.[serve]'"
    assert json.loads(result)["not_timed"] == {"serve": told}
    assert any(line.startswith("serve") and told in line for line in printed)


def test_on_a_gpu_it_is_left_out():
    with pytest.raises(NotTimed, match="computes on the processor"):
        row.serve(Bench(Path(), torch.device("cuda"))).run(Workload(RAGGED, "", "", [], []))
