"""The pages of LLVM's own code, which are resident long after it has done its work."""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import sys
from pathlib import Path

_LOAD, _WRITABLE = 1, 2  # of ELF: a segment that is mapped, and the flag of one that is written to
_HEADERS = struct.Struct("<32xQ14xHH")  # where the table of segments is; bytes of one, how many
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, -, bytes in the file, …, -


def release_llvm_pages() -> None:
    """Give back the pages of LLVM's code and tables until it is called again.

    They are 40 MB that linking, or asking for the CPU's name, leaves resident: clean pages of a
    file, which come back from the system's cache when they are touched. Only segments that are
    never written to are given back. Does nothing but on Linux.
    """
    if "llvmlite.binding.ffi" not in sys.modules:
        return
    for start, size in _constant_segments():
        _madvise()(start, size, mmap.MADV_DONTNEED)


@functools.cache
def _madvise() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


@functools.cache
def _constant_segments() -> tuple[tuple[int, int], ...]:
    """(address, bytes), whole pages, of the segments of llvmlite's library that are read only."""
    if sys.platform != "linux" or sys.byteorder != "little":
        return ()
    try:
        base, path = _place("libllvmlite.so")
        segments = _segments(path)
    except (OSError, ValueError, struct.error):
        return ()
    first = min(address for kind, _, _, address, *_ in segments if kind == _LOAD)
    shift = base - first // mmap.PAGESIZE * mmap.PAGESIZE
    found = []
    for kind, flags, _, address, _, _, held, _ in segments:
        if kind == _LOAD and not flags & _WRITABLE:
            start = -(-(shift + address) // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = (shift + address + held) // mmap.PAGESIZE * mmap.PAGESIZE
            if stop > start:
                found.append((start, stop - start))
    return tuple(found)


def mapped_bytes(path: str | Path) -> int:
    """How many bytes of addresses a shared library takes; that of its file where it is no ELF."""
    try:
        return max(address + size for kind, _, _, address, _, _, size, _ in _segments(path))
    except (OSError, ValueError, struct.error):
        return Path(path).stat().st_size


def _segments(path: str | Path) -> list[tuple[int, ...]]:
    """The table of segments of an ELF file of 64 bits.

    Raises:
        ValueError, struct.error: it is none.
    """
    with open(path, "rb") as file:
        identity = file.read(64)
        if identity[:5] != b"\x7fELF\x02":
            raise ValueError(f"{path} is no ELF file of 64 bits")
        table, size, count = _HEADERS.unpack(identity[:58])
        file.seek(table)
        return [_SEGMENT.unpack_from(file.read(size)) for _ in range(count)]


def _place(name: str) -> tuple[int, str]:
    """Where a library is mapped, and its file.

    Raises:
        ValueError: it is not.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        *fields, path = line.split(maxsplit=5)
        if len(fields) == 5 and path.endswith(f"/{name}"):
            return int(fields[0].split("-")[0], 16), path
    raise ValueError(f"{name} is not mapped")
