"""llvmlite, loaded with care and late: everything else in `codegen` takes it from here.

`backend.llvm`, `backend.ffi` and `backend.llvmlite` load LLVM's library when one of them is first
used: 120 MB of addresses, of which 40 are touched. A process whose code is all in the cache uses
none.

The pages of LLVM's own code are resident long after it has done its work
(`release_llvm_pages`).
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import mmap
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanconv import forks
from leanconv.codegen.process_limits import Need, require, require_for_products
from leanconv.errors import BackendError
from leanconv.files import elf_segments

_LOAD, _WRITABLE = 1, 2  # of ELF: a segment that is mapped, and the flag of one that is written to


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
    """Return the bytes of addresses that a shared library takes; of no ELF file, its size."""
    try:
        return max(address + size for kind, _, _, address, _, _, size, _ in _segments(path))
    except (OSError, ValueError, struct.error):
        return Path(path).stat().st_size


def _segments(path: str | Path) -> list[tuple[int, ...]]:
    """The segments of an ELF file."""
    with open(path, "rb") as file:
        return elf_segments(file)


def _place(name: str) -> tuple[int, str]:
    """Return the address where a library is mapped, and its file.

    Raises:
        ValueError: it is not mapped.
    """
    for line in Path("/proc/self/maps").read_text().splitlines():
        *fields, path = line.split(maxsplit=5)
        if len(fields) == 5 and path.endswith(f"/{name}"):
            return int(fields[0].split("-")[0], 16), path
    raise ValueError(f"{name} is not mapped")


__all__ = ["ffi", "llvm", "llvmlite"]

_LEAST = (0, 50)
_LIBRARY_BYTES = 192 * 2**20  # of addresses, where the file cannot be looked at
_BESIDE_BYTES = 24 * 2**20  # what initialising it and Python's modules take
_MEND = "install it anew: pip install --force-reinstall 'llvmlite>=0.50'"


def _library_bytes() -> int:
    """Return the bytes of addresses that LLVM's shared library takes."""
    spec = importlib.util.find_spec("llvmlite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder, "binding").glob("*llvmlite.*"):
            return mapped_bytes(file)
    return _LIBRARY_BYTES


def version() -> str:
    """The version of llvmlite, whose library is not loaded for that.

    Raises:
        BackendError: it is not installed, or too old.
    """
    try:
        import llvmlite
    except ImportError as error:
        raise BackendError(
            f"llvmlite cannot be imported ({error}); expected 0.50 or later: {_MEND}"
        ) from error
    found = str(llvmlite.__version__)
    if tuple(int(part) for part in found.split(".")[:2]) < _LEAST:
        raise BackendError(f"llvmlite is {found}; expected 0.50 or later: {_MEND}")
    return found


def _imported() -> tuple[Any, Any, Any]:
    """llvmlite, its binding and its `ffi`, with LLVM's library loaded.

    Raises:
        BackendError: it is not installed, too old, or its library cannot be loaded.
        OutOfMemoryError: there is no room for the library; LLVM would end the process.
    """
    version()
    try:
        require_for_products()  # first: what it takes is then counted below
        loaded = "llvmlite.binding" in sys.modules
        require(Need(_BESIDE_BYTES, mapped=0 if loaded else _library_bytes()), "loading LLVM")
        import llvmlite
        import llvmlite.binding
        from llvmlite.binding import ffi

        ffi.lib.LLVMPY_GetVersionInfo()  # which loads the library, if nothing has yet
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise BackendError(
            f"llvmlite does not load ({' '.join(str(error).split())}); expected version 0.50 or "
            f"later, made for this system and processor: {_MEND}"
        ) from error
    release_llvm_pages()  # of 42 MB that loading leaves resident, 8 stay
    return llvmlite, llvmlite.binding, ffi


class _Lock(type(threading.RLock())):  # type: ignore[misc]
    """LLVM's lock, taken and released by the interpreter itself.

    llvmlite's own is a class in Python: an exception of a signal handler between two of its lines
    leaves it taken, and every other thread that calls LLVM waits for ever. Callbacks
    at taking and releasing, which profilers register, are left to that class.
    """

    def register(self, acquired: Callable[[], None], released: Callable[[], None]) -> None:
        """Return to llvmlite's lock, and register there."""
        _use(ffi.lib, _theirs)
        _theirs.register(acquired, released)

    def unregister(self, acquired: Callable[[], None], released: Callable[[], None]) -> None:
        """Do nothing: nothing is registered here."""
        _theirs.unregister(acquired, released)


def _use(lib: Any, lock: Any) -> None:
    lib._lock = lock
    for function in list(lib._fntab.values()):
        function._lock = lock


if TYPE_CHECKING:
    import llvmlite
    import llvmlite.binding as llvm
    from llvmlite.binding import ffi

_loading = threading.RLock()
forks.hold_over_forks(forks.LOADING, lambda: _loading)
_theirs: Any = None


def __getattr__(name: str) -> Any:
    if name not in ("llvmlite", "llvm", "ffi"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _loading:
        if name not in globals():
            _load()
        return globals()[name]


def _load() -> None:
    """Load LLVM, and take its lock over."""
    global _theirs
    found = _imported()
    lib = found[2].lib
    held = getattr(lib, "_lock", None)
    if not isinstance(held, _Lock):
        _theirs = held
        if hasattr(lib, "_fntab") and not getattr(_theirs, "_cblist", True):
            with _theirs:
                _use(lib, _Lock())
    globals().update(zip(("llvmlite", "llvm", "ffi"), found, strict=True))


def _system_lock() -> Any:
    """The `threading.RLock` of LLVM's lock, as it is now."""
    loaded = globals().get("ffi")
    held: Any = getattr(loaded.lib, "_lock", None) if loaded else None
    held = held or threading.RLock()
    return held if hasattr(held, "_is_owned") else held._lock


forks.hold_over_forks(forks.LLVM, _system_lock)
version()
