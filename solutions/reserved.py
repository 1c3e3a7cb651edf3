"""Memory that has addresses but no pages yet, and lab 3's cache over it: given with lab 4.

On Linux a page is taken when it is first written, and can be given back. Elsewhere all of it is
taken at once.
"""

import contextlib
import mmap
import re
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from gpt import GPTConfig
from solutions.batching import SlotCache

MAPS = Path("/proc/self/smaps")  # what Linux says about this process's memory
IS_LAZY = MAPS.exists()
NORESERVE = 0x4000  # mmap.MAP_NORESERVE is new in Python 3.13


class Reserved:
    """`tensor`: float32 zeros in a row. On Linux no page of it is taken before it is written."""

    def __init__(self, numbers: int) -> None:
        self.tensor: Float[Tensor, " numbers"]
        if not IS_LAZY:
            self.tensor = torch.zeros(numbers)
            return
        # Python's default is a shared mapping, which keeps pages that are given back.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self.memory = mmap.mmap(-1, 4 * numbers, flags=flags)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self.memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.tensor = torch.frombuffer(self.memory, dtype=torch.float32)

    def resident_bytes(self) -> int:
        """Return the bytes of the pages that are taken."""
        inside = False
        for line in MAPS.read_text().splitlines() if IS_LAZY else ():
            if addresses := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
                first, last = (int(address, 16) for address in addresses.groups())
                inside = first <= self.tensor.data_ptr() < last
            elif inside and line.startswith("Rss:"):
                return 1024 * int(line.split()[1])
        return self.tensor.nbytes

    def give_back(self) -> None:
        """Give all pages back. On Linux their numbers are zeros again."""
        if IS_LAZY:
            self.memory.madvise(mmap.MADV_DONTNEED)


class ReservedCache(SlotCache):
    """Lab 3's cache, all its methods unchanged, over reserved memory in one of the layouts."""

    def __init__(self, config: GPTConfig, slots: int, max_length: int, layout: str) -> None:
        super().__init__(config, slots, 1)
        self.max_length = max_length
        sizes = {"n": 2, "l": config.n_layer, "s": slots, "t": max_length}
        sizes |= {"h": config.n_head, "d": config.head_dim}
        order = {"heads": "nlshtd", "layers": "nlsthd", "slices": "stnlhd"}[layout]
        shape = [sizes[name] for name in order]
        self.memory = Reserved(torch.Size(shape).numel())
        lab_3s = [order.index(name) for name in "nlshtd"]
        self.keys, self.values = self.memory.tensor.view(shape).permute(lab_3s)
