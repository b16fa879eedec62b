"""Machine code loaded into this process, and freed again."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping

from leanconv.codegen.backend import llvm
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.machine_code import new_machine
from leanconv.codegen.memory_limits import require_for_linking

_LIBRARIES = 128  # of one linker
lock = threading.RLock()  # the compiler's and the linker's
if hasattr(os, "register_at_fork"):  # a forked child finds them whole and unlocked
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


class Library:
    """Compiled code in this process; it is freed with the last reference to this object.

    Attributes:
        code_bytes: of its objects.
    """

    def __init__(
        self,
        addresses: Mapping[object, int],
        tracker: llvm.ResourceTracker,
        code_bytes: int,
        words: Mapping[Kernel, tuple[int, ...]],
    ) -> None:
        self._addresses, self._tracker = addresses, tracker
        self.code_bytes, self._words = code_bytes, words

    def address(self, entry: Kernel | str) -> int:
        """Address of a kernel's function, or of a function by its name."""
        return self._addresses[entry]

    def words(self, kernel: Kernel) -> tuple[int, ...]:
        """What stands before the kernel's table of addresses, in order of memory: its extents."""
        return self._words[kernel][::-1]


class _Linker:
    """One of LLVM's linkers. What it has linked stays in memory until it is freed itself.

    Each therefore takes a bounded number of libraries, and is freed some time after the last.
    """

    def __init__(self) -> None:
        # JITLink lays the sections of an object side by side. LLVM's older linker maps each where
        # there is room, and ends the process where two are more than 2 GiB apart.
        machine = new_machine(host(), True)  # the compiler takes it over
        self._jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        self._begun = 0
        self._trackers: list[weakref.ref[llvm.ResourceTracker]] = []
        self.unused_before = False

    @property
    def full(self) -> bool:
        return self._begun >= _LIBRARIES

    @property
    def unused(self) -> bool:
        """Whether no library is left; never so after a Ctrl-C that may have lost sight of one."""
        return self._begun == len(self._trackers) and all(t() is None for t in self._trackers)

    def link(self, objects: Mapping[str, bytes], symbols: list[str]) -> llvm.ResourceTracker:
        builder = llvm.JITLibraryBuilder()
        for body in objects.values():
            builder = builder.add_object_img(body)
        for symbol in symbols:
            builder = builder.export_symbol(symbol)
        builder = builder.add_current_process()
        self._begun += 1
        tracker = builder.link(self._jit, f"leanconv.{self._begun}")
        self._trackers.append(weakref.ref(tracker))
        return tracker


_linkers: list[_Linker] = []  # the last one takes new libraries


def _free_linker() -> _Linker:
    """The linker that takes the next library.

    A linker is freed at the second look that finds it unused: a library in a circle that is being
    collected seems gone shortly before it is.
    """
    if not _linkers or _linkers[-1].full:
        _linkers[:] = [each for each in _linkers if not (each.unused and each.unused_before)]
        for each in _linkers:
            each.unused_before = each.unused
        _linkers.append(_Linker())
    return _linkers[-1]


def link(
    objects: Mapping[str, bytes],
    symbols: Mapping[object, str],
    words: Mapping[Kernel, tuple[int, ...]] | None = None,
) -> Library:
    """Load objects into this process.

    Args:
        objects: by name, each once.
        symbols: the symbol to be found for each entry of the library.
        words: of each kernel, the first one nearest to its table.

    Raises:
        OutOfMemoryError: less memory is left than linking takes.
    """
    size = sum(map(len, objects.values()))
    require_for_linking(len(objects), size)
    with lock:
        tracker = _free_linker().link(objects, list(dict.fromkeys(symbols.values())))
    addresses = {entry: tracker[symbol] for entry, symbol in symbols.items()}
    return Library(addresses, tracker, size, words or {})
