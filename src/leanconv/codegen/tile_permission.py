"""Leave to use the CPU's matrix tiles, which Linux gives to a process that asks.

The state of a thread grows by 8 KiB once it uses them. Threads and forked children of a process
that has asked may use them, too.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_ARCH_PRCTL = 158  # the system call's number on x86-64
_REQUEST = 0x1023  # ARCH_REQ_XCOMP_PERM
_TILE_DATA = 18  # XFEATURE_XTILEDATA


@functools.cache
def may_use_tiles() -> bool:
    """Ask once; False where the kernel refuses, or is none that is asked."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    return bool(call(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)
