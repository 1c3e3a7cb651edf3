"""The machine: how fast it reads memory and computes, its cache, and the processor's name.

Labs import all their measuring tools from here: clocks, the work of a forward pass, threads.
Because labs import this module, it imports no solution.
"""

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from timing.stopwatch import fastest_seconds as fastest_seconds
from timing.stopwatch import median_seconds as median_seconds
from timing.stopwatch import median_seconds_of as median_seconds_of
from timing.threads import advise_threads as advise_threads
from timing.work import Work as Work
from timing.work import forward_work as forward_work

BANDWIDTH_BYTES = 512 * 2**20  # read to measure the bandwidth: far more than a cache holds
MATRIX_SIZE = 2048  # rows and columns of the matrices whose product measures the arithmetic


@dataclass(frozen=True)
class Machine:
    """bandwidth: bytes read from memory per second. flops: floating-point operations per second."""

    bandwidth: float
    flops: float

    @property
    def ridge(self) -> float:
        """The arithmetic intensity at which both limits meet, in FLOPs per byte."""
        return self.flops / self.bandwidth

    def limit(self, intensity: float) -> float:
        """Return the FLOPs per second that the machine can reach at this intensity."""
        return min(self.flops, self.bandwidth * intensity)


def measure_machine(device: str | torch.device = "cpu") -> Machine:
    """Measure both limits in about a second."""
    return Machine(memory_bandwidth(device), arithmetic_speed(device))


def memory_bandwidth(device: str | torch.device = "cpu") -> float:
    """Measure the bytes per second read from memory: the best of several long sums."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4, device=device)
    return numbers.nbytes / fastest_seconds(numbers.sum, device)


def arithmetic_speed(device: str | torch.device = "cpu") -> float:
    """Measure the floating-point operations per second: the best of several large matmuls."""
    matrix = torch.randn(MATRIX_SIZE, MATRIX_SIZE, device=device)
    return 2 * MATRIX_SIZE**3 / fastest_seconds(lambda: matrix @ matrix, device)


def last_level_cache(device: torch.device) -> int | None:
    """Return the total bytes of the processor's last-level caches, or None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    if sys.platform == "darwin":
        found = sysctl("hw.l3cachesize") or sysctl("hw.perflevel0.l2cachesize")
        return int(found) if found else None
    sizes: dict[tuple[int, str], int] = {}  # cores that share a cache list the same one
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*/size"):
        level = int(path.with_name("level").read_text())
        cores = path.with_name("shared_cpu_list").read_text()
        sizes[level, cores] = int(path.read_text().strip().removesuffix("K")) * 1024
    top = max((level for level, _ in sizes), default=None)
    return sum(size for (level, _), size in sizes.items() if level == top) or None


def processor_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string")
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def sysctl(name: str) -> str:
    """Return a system setting of macOS, or "" if there is none of this name."""
    return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip()
