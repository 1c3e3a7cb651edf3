"""Measuring: the machine, the work of a forward, clocks, and the advice on threads."""

import pytest
import torch
from torch import nn

import timing.machine
import timing.threads
from timing.machine import (
    Machine,
    advise_threads,
    forward_work,
    measure_machine,
    median_seconds,
    median_seconds_of,
    memory_bandwidth,
)
from timing.threads import step_seconds, thread_advice
from timing.work import weight_bytes


def test_the_roof_is_memory_left_of_the_ridge_and_arithmetic_right_of_it():
    machine = Machine(bandwidth=10e9, flops=50e9)
    assert machine.ridge == 5
    assert machine.limit(0.5) == 5e9
    assert machine.limit(5) == machine.limit(100) == 50e9


def test_this_machine_can_be_measured(monkeypatch):
    monkeypatch.setattr(timing.machine, "BANDWIDTH_BYTES", 2**20)
    monkeypatch.setattr(timing.machine, "MATRIX_SIZE", 64)
    assert measure_machine().flops > 0
    assert measure_machine(torch.device("cpu")).bandwidth > 0


def test_lab_and_table_measure_one_bandwidth(monkeypatch):
    monkeypatch.setattr(timing.machine, "MATRIX_SIZE", 64)
    monkeypatch.setattr(timing.machine, "fastest_seconds", lambda run, device: 0.5)
    assert measure_machine().bandwidth == memory_bandwidth(torch.device("cpu")) == 2**30


def test_work_is_counted_by_the_weights_of_the_model():
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wpe = nn.Embedding(100, 4)
            self.linear = nn.Linear(4, 7)

    work = forward_work(Tiny(), "prefill", tokens=6, seconds=2.0)
    assert work.flops == 2 * 35 * 6
    assert work.bytes_read == weight_bytes(Tiny()) == 35 * 4
    assert work.intensity == 3
    assert work.speed == 210


# ----------------------------------------------------------------------------------- clocks


def test_a_measurement_runs_once_more_to_warm_up():
    calls: list[None] = []
    assert median_seconds(lambda: calls.append(None)) >= 0
    assert len(calls) == 10


def test_what_is_compared_takes_turns_and_keeps_its_name():
    calls: list[int] = []
    found = median_seconds_of({size: lambda size=size: calls.append(size) for size in (8, 1, 4)})
    assert list(found) == [8, 1, 4]
    assert calls == [8, 1, 4] * 10


def test_the_median_of_each_is_taken(monkeypatch):
    times = iter([1, 10, 2, 20, 9, 90, 3, 30, 4, 40, 5, 50, 6, 60, 7, 70, 8, 80])
    monkeypatch.setattr("timing.stopwatch.seconds", lambda run, device: next(times))
    assert median_seconds_of({"a": int, "b": int}) == {"a": 5, "b": 50}


# ---------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(("several", "one"), [(0.001, 0.002), (0.002, 0.002), (0.0029, 0.002)])
def test_without_a_clear_gain_nothing_is_advised(several, one):
    assert thread_advice(4, several, one) is None


def test_a_clear_gain_is_told_with_both_figures_and_the_line_to_run():
    advice = thread_advice(4, 0.0123, 0.0014)
    assert advice is not None
    assert "4 threads a small step takes 12.3 ms here, with one thread 1.4 ms" in advice
    assert advice.endswith("\n    torch.set_num_threads(1)")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_put_back(monkeypatch):
    monkeypatch.setattr(timing.threads, "LONGEST_SECONDS", 0)
    assert min(step_seconds(2)) > 0
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("several", "printed"), [(5.0, True), (1.0, False)])
def test_advice_is_printed_where_there_is_some(monkeypatch, capsys, several, printed):
    monkeypatch.setattr(timing.threads, "step_seconds", lambda threads: (several, 1.0))
    advise_threads()
    assert ("torch.set_num_threads(1)" in capsys.readouterr().out) == printed


def test_with_one_thread_there_is_nothing_to_compare(monkeypatch, capsys):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(timing.threads, "step_seconds", lambda threads: pytest.fail("measured"))
    advise_threads()
    assert capsys.readouterr().out == ""
