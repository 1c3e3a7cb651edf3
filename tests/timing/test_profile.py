"""What `timed_generate.py --profile` shows of a step, and what it refuses."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import timed_generate
from course.lab07_engine.row import engine
from solutions.one_kernel import floor_ms
from tests.common.commands import resize
from tests.common.timed import CONTEXT
from timed_generate import TECHNIQUES
from timing import profile
from timing.machine import Machine
from timing.operations import ATTENTION, KERNEL, PRODUCTS, REST, called_from_python, kind_of, record
from timing.table import NotTimed
from timing.table.workloads import LENGTHS
from timing.work import weight_bytes

pytestmark = pytest.mark.usefixtures("quick")
MEASURED = Machine(bandwidth=1e9, flops=1e15)
PROMPT, NEW = 17, 20  # tokens


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (PRODUCTS, ["aten::mm", "aten::addmm", "aten::baddbmm", "mkldnn::_linear_pointwise"]),
        (PRODUCTS, ["aten::_weight_int8pack_mm", "aten::_weight_int4pack_mm_for_cpu", "aten::mv"]),
        (ATTENTION, ["aten::_scaled_dot_product_flash_attention_for_cpu"]),
        (REST, ["aten::linear", "aten::matmul", "aten::scaled_dot_product_attention"]),
        (REST, ["aten::t", "aten::gelu", "aten::as_strided", "aten::native_layer_norm"]),
        (KERNEL, [KERNEL]),
    ],
)
def test_what_chooses_an_operation_is_not_counted_as_that(kind, names):
    assert {name: kind_of(name) for name in names} == dict.fromkeys(names, kind)


@torch.inference_mode()
def test_a_recorded_step_has_each_operation_within_its_caller():
    rows, weight, heads = torch.ones(1, 8), torch.ones(8, 8), torch.ones(1, 2, 3, 8)
    events = record(
        lambda: (F.linear(rows, weight), F.scaled_dot_product_attention(heads, heads, heads))
    )
    calls = called_from_python(events)
    assert [name for name, *_ in calls] == ["aten::linear", "aten::scaled_dot_product_attention"]
    kinds = [kind_of(name) for name, *_ in events]
    assert (kinds.count(PRODUCTS), kinds.count(ATTENTION)) == (1, 1)
    assert all(any(a <= start and end <= b for _, a, b in calls) for _, start, end in events)


@pytest.fixture
def profile_of(tiny, tmp_path, monkeypatch, capsys):
    """Profile a row of the tiny model; return the lines of the table, and all that was printed."""
    resize(monkeypatch, profile, CALLS=10)
    monkeypatch.setattr(profile, "measure_machine", lambda: MEASURED)
    monkeypatch.setattr(profile, "seconds_per_call", lambda: 1e-5)
    monkeypatch.setattr("timing.cores.others_seconds", lambda: 0.0)
    monkeypatch.chdir(tmp_path)

    def run(name, *args):
        given = "--model", str(tiny), "--tokens", str(NEW), "--profile", name
        timed_generate.main([*given, *args])
        printed = capsys.readouterr().out
        lines = (re.split(r"\s{2,}", line.strip()) for line in printed.splitlines())
        return {name: numbers for name, *numbers in lines if numbers}, printed

    return run


def test_the_table_has_each_product_and_its_parts_make_the_step(profile_of, tiny, tmp_path):
    table, printed = profile_of("engine", "--products", "F.linear")
    layers = TECHNIQUES["engine"][LENGTHS](bench_of(tiny)).model.config.n_layer
    assert table[PRODUCTS][0] == str(4 * layers + 1)
    assert table[ATTENTION][0] == str(layers)
    *parts, whole = [float(table[row][-2]) for row in (PRODUCTS, ATTENTION, REST, *LAST)]
    assert sum(parts) == pytest.approx(whole, abs=0.03)
    assert float(table["a step without the profiler"][0]) > 0
    assert "The picture: timed-profile.png" in printed
    assert (tmp_path / "timed-profile.png").read_bytes().startswith(b"\x89PNG")


LAST = "Python between them", "the recorded step"


def bench_of(tiny):
    return profile.Bench(tiny, torch.device("cpu"))


def test_the_floor_is_of_all_that_a_step_reads_and_of_its_calls(profile_of, tiny):
    table, printed = profile_of("engine")
    model = bench_of(tiny).load()
    config = model.config
    cached = 2 * 4 * config.n_layer * config.n_embd * (PROMPT + NEW - 1)
    read = weight_bytes(model) + cached
    calls = int(table["its floor with the calls"][0])
    machine = profile.Machine(1e9, 1e15, 1e-5)
    floors = [floor_ms(read, 0, n, machine) for n in (0, calls)]
    shown = [float(table[row][-1]) for row in ("its floor", "its floor with the calls")]
    assert shown == pytest.approx(floors, abs=0.006)
    assert f"{read / 1e6:.1f} MB of weights, keys and values at 1.0 GB/s" in printed
    assert f"Python calls {calls:,} of the operations" in printed


def test_a_kernel_is_one_operation(profile_of, monkeypatch):
    """Here it only runs the usual way, so the operations in it are its own."""

    def with_kernel(bench):
        served = engine(bench)

        def new_engine(*given):
            made = served.new_engine(*given)
            runner, usual = made.runner, made.runner.forward
            runner.kernel = usual
            runner.forward = lambda batch: runner.kernel(batch)
            return made

        return replace(served, new_engine=new_engine)

    monkeypatch.setitem(TECHNIQUES, "kernel", {LENGTHS: with_kernel})
    table, _ = profile_of("kernel")
    assert table[KERNEL][0] == "1"


@pytest.mark.parametrize("name", ["prefix", "int8"])
def test_any_row_of_the_engine_can_be_profiled(profile_of, name):
    table, _ = profile_of(name)
    assert f"a decode step of {name}" in table
    assert int(table[PRODUCTS][0]) > 0


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["engin"], "invalid choice: 'engin'"),
        (["cached"], "cached runs without it. Name engine, int8, prefix"),
        (["engine", "--tokens", "15"], "it needs --tokens 16 or more"),
        (["engine", "--tokens", str(CONTEXT)], f"--tokens {CONTEXT} is too long"),
        (["engine", "--race", "--repeats", "2"], "leave out --race, --repeats."),
        (["engine", "--workloads", "equal", "--json", "a.json"], "leave out --workloads, --json."),
        (["engine", "--mine", "--all", "--peers"], "leave out --all, --mine, --peers."),
        (["absent"], "absent can't be profiled: it needs what isn't here."),
    ],
)
def test_what_cannot_be_profiled_is_told_in_one_line(
    profile_of, capsys, monkeypatch, args, sentence
):
    def absent(bench):
        raise NotTimed("it needs what isn't here.")

    monkeypatch.setitem(TECHNIQUES, "absent", {LENGTHS: absent})
    with pytest.raises(SystemExit) as stopped:
        profile_of(*args)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


def test_without_the_packages_of_the_pictures_there_is_none(profile_of, monkeypatch, tmp_path):
    monkeypatch.setattr(timed_generate, "has_pictures", lambda: False)
    _, printed = profile_of("engine")
    assert "The picture" not in printed
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        profile_of("engine", "--plot", "strip.png")
