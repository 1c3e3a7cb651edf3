"""What the machine is, and how fast it reads memory."""

import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from timing.runs import synchronize

BANDWIDTH_BYTES = 512 * 2**20  # read to measure the memory: far more than a cache holds


def memory_bandwidth(device: torch.device) -> float:
    """Bytes a second that this machine reads from memory: the best of several long sums."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4, device=device)

    def seconds() -> float:
        synchronize(device)
        start = time.perf_counter()
        numbers.sum()
        synchronize(device)
        return time.perf_counter() - start

    return numbers.nbytes / min(seconds() for _ in range(10))


def last_level_cache(device: torch.device) -> int | None:
    """Bytes of the processor's last-level caches together, None where the system does not say."""
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
    """What macOS says about itself, "" where it knows no such thing."""
    return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip()
