"""The cores of this process, and what other programs take of them."""

import math
from collections import namedtuple
from types import SimpleNamespace

import psutil
import pytest
import torch

from timing import cores, stopwatch, threads
from timing.cores import OtherPrograms, disturb, disturbance, quota, usable_cores

others_seconds = cores.others_seconds  # before the fixture of all these tests replaces it


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine with 8 cores, whose cgroups are files that the tests write."""
    monkeypatch.setattr(cores, "physical_cores", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(16), raising=False)
    monkeypatch.setattr(cores, "CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "OWN_CGROUPS", tmp_path / "own")
    return tmp_path


# ------------------------------------------------------------------------------------ usable cores


V2, V1 = {"own": "0::/hub/ada"}, {"own": "4:memory:/other\n1:cpu,cpuacct:/hub/ada"}
ADA, HUB = "cpu/hub/ada/cpu.cfs", "cpu/hub/cpu.cfs"


@pytest.mark.parametrize(
    ("files", "granted", "usable"),
    [
        ({}, math.inf, 8),  # macOS and Windows have none
        ({**V2, "hub/ada/cpu.max": "max 100000"}, math.inf, 8),
        ({**V2, "hub/ada/cpu.max": "200000 100000"}, 2, 2),
        ({**V2, "hub/cpu.max": "175000 100000"}, 1.75, 1),  # of all users of a hub
        ({**V2, "cpu.max": "20000 100000"}, 0.2, 1),  # a container sees its own folder as the top
        ({**V2, "cpu.max": "3200000 100000"}, 32, 8),
        ({**V1, f"{ADA}_quota_us": "150000", f"{ADA}_period_us": "50000"}, 3, 3),
        ({**V1, f"{HUB}_quota_us": "-1", f"{HUB}_period_us": "50000"}, math.inf, 8),
    ],
)
def test_a_quota_limits_the_cores(machine, files, granted, usable):
    for name, text in files.items():
        (machine / name).parent.mkdir(parents=True, exist_ok=True)
        (machine / name).write_text(f"{text}\n")
    assert (quota(), usable_cores()) == (granted, usable)


def test_the_affinity_limits_the_cores(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5}, raising=False)
    assert usable_cores() == 2


@pytest.mark.parametrize(
    ("own", "asked", "set_to"), [(16, None, [8]), (4, None, []), (4, 12, [12]), (16, 2, [2])]
)
def test_threads_are_those_asked_for_or_no_more_than_the_cores(monkeypatch, own, asked, set_to):
    calls: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: own)
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    threads.set_threads(asked)
    assert calls == set_to


def test_more_threads_than_cores_are_advised_against_without_a_measurement(monkeypatch, capsys):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(threads, "step_seconds", lambda number: pytest.fail("measured"))
    threads.advise_threads()
    printed = capsys.readouterr().out
    assert "torch has 16 threads, but this process may use 8" in printed
    assert printed.endswith("\n    torch.set_num_threads(8)\n")


# ---------------------------------------------------------------------------------- other programs


Times = namedtuple("Times", ["user", "system", "children_user", "children_system", "iowait"])


def test_the_children_of_this_process_are_no_other_program(monkeypatch):
    def ended() -> Times:
        raise psutil.NoSuchProcess(7)

    child = SimpleNamespace(cpu_times=lambda: Times(4, 1, 0, 0, 100))
    late = SimpleNamespace(cpu_times=ended)
    own = SimpleNamespace(
        cpu_times=lambda: Times(10, 2, 3, 1, 100), children=lambda recursive: [child, late]
    )
    total = SimpleNamespace(user=30.0, system=5.0, idle=1000.0, iowait=50.0, steal=7.0)
    monkeypatch.setattr(psutil, "Process", lambda: own)
    monkeypatch.setattr(psutil, "cpu_times", lambda: total)
    assert others_seconds() == 30 + 5 + 7 - (10 + 2 + 3 + 1) - (4 + 1)


@pytest.mark.parametrize(
    ("seconds", "taken", "found"), [(2.0, 3.0, 1.5), (2.0, -0.01, 0), (0.09, 0.09, 0)]
)
def test_other_programs_are_measured_in_cores_unless_it_is_too_short(
    monkeypatch, seconds, taken, found
):
    clock, readings = iter([50.0, 50.0 + seconds]), iter([700.0, 700.0 + taken])
    monkeypatch.setattr(cores, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(cores, "others_seconds", lambda: next(readings))
    with OtherPrograms() as others:
        pass
    assert others.cores == found


@pytest.mark.parametrize(
    ("others", "threads", "instead"),
    [
        (0.2, 8, None),  # a program in the background
        (0.3, 8, ", or add --threads 7."),
        (1.2, 7, None),  # there is a core for it
        (1.3, 7, ", or add --threads 6."),
        (7.9, 1, "."),  # no number of threads would help
        (0.2, 16, None),  # more threads than cores: as asked
    ],
)
def test_where_too_few_cores_are_left_as_many_threads_are_advised(others, threads, instead):
    assert disturb(others, threads) == (instead is not None)
    told = disturbance(others, "add --threads {}")
    assert told.startswith(f"Other programs kept {others:.1f} cores busy (of 8)")
    assert instead is None or told.endswith(f"measure again{instead}")


@pytest.mark.parametrize(
    ("readings", "runs", "told"), [([9, 0], 2, 0), ([0], 1, 0), ([9, 9], 2, 1)]
)
def test_a_disturbed_measurement_is_made_once_more_and_then_told(
    monkeypatch, capsys, others_take, readings, runs, told
):
    """Of two calls that are compared, each warmed up and then run once."""
    others_take(stopwatch, readings)
    monkeypatch.setattr(stopwatch, "MANY", 1)
    calls: list[str] = []
    stopwatch.median_seconds_of({name: lambda name=name: calls.append(name) for name in "ab"})
    assert calls == ["a", "b"] * (1 + runs)
    assert capsys.readouterr().out.count("Other programs") == told
