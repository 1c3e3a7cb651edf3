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
)
from timing.threads import step_seconds
from timing.work import weight_bytes


def test_the_roof_is_memory_left_of_the_ridge_and_arithmetic_right_of_it():
    machine = Machine(bandwidth=10e9, flops=50e9)
    assert machine.ridge == 5
    assert machine.limit(0.5) == 5e9
    assert machine.limit(5) == machine.limit(100) == 50e9


def test_this_machine_is_measured_by_bytes_and_operations_a_second(monkeypatch):
    for name, value in (("BANDWIDTH_BYTES", 2**20), ("MATRIX_SIZE", 64)):
        monkeypatch.setattr(timing.machine, name, value)
    assert measure_machine(torch.device("cpu")).flops > 0
    monkeypatch.setattr(timing.machine, "fastest_seconds", lambda run, device: run() is None or 0.5)
    assert measure_machine() == Machine(bandwidth=2 * 2**20, flops=2 * 2 * 64**3)


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


def test_what_is_compared_takes_turns_and_runs_once_more_to_warm_up():
    calls: list[int] = []
    found = median_seconds_of({size: lambda size=size: calls.append(size) for size in (8, 1, 4)})
    assert list(found) == [8, 1, 4]
    assert calls == [8, 1, 4] * 10
    assert median_seconds(lambda: calls.append(0)) >= 0
    assert calls[30:] == [0] * 10


def test_the_median_of_each_is_taken(monkeypatch):
    times = iter([1, 10, 2, 20, 9, 90, 3, 30, 4, 40, 5, 50, 6, 60, 7, 70, 8, 80])
    monkeypatch.setattr("timing.stopwatch.seconds", lambda run, device: next(times))
    assert median_seconds_of({"a": int, "b": int}) == {"a": 5, "b": 50}


# ---------------------------------------------------------------------------------- threads


def test_the_number_of_threads_is_put_back(monkeypatch):
    monkeypatch.setattr(timing.threads, "LONGEST_SECONDS", 0)
    before = torch.get_num_threads()
    assert min(step_seconds(2)) > 0
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("threads", "several", "one", "advised"),
    [
        (4, 0.0123, 0.0014, True),
        (4, 0.0029, 0.002, False),  # no clear gain
        (4, 0.001, 0.002, False),
        (1, 0.0123, 0.0014, False),  # there is nothing to compare
    ],
)
def test_one_thread_is_advised_where_it_is_clearly_quicker(
    monkeypatch, capsys, threads, several, one, advised
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(timing.threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(timing.threads, "step_seconds", lambda threads: (several, one))
    advise_threads()
    printed = capsys.readouterr().out
    told = "12.3 ms with torch's 4 threads and 1.4 ms with one thread" in printed
    assert told == printed.endswith("\n    torch.set_num_threads(1)\n") == advised
    assert advised or not printed
