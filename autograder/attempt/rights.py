"""Giving up root's rights: the first thing that a program in a sandbox does."""

import ctypes
import os
import sys

PR_CAPBSET_DROP, CAPABILITIES = 24, 64
CAPSET_VERSION_3 = 0x20080522


def become(user: int) -> None:
    """Give root's rights away for good; where something of root's stays open, don't begin."""
    if os.geteuid() == 0 != user:
        libc = ctypes.CDLL(None)
        for capability in range(CAPABILITIES):  # none can be had back, by no program whatever
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        none, this = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 2)(CAPSET_VERSION_3, 0)
        libc.capset(this, none)
    if os.getpid() == 1 and os.access("/proc/sys/kernel/core_pattern", os.W_OK):
        sys.exit("The kernel's switches can be written from within.")
