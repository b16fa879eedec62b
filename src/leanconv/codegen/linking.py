"""Machine code loaded into this process, and let go again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping

import llvmlite.binding as llvm

from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.machine_code import new_machine

_LIBRARIES = 128  # of one linker
lock = threading.RLock()  # ends of libraries come at any moment, also while this thread links
if hasattr(os, "register_at_fork"):  # a forked child finds compiler and linker whole and unlocked
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )


class _Linker:
    """One of LLVM's linkers. What it was ever told stays in memory until it ends itself.

    Each therefore takes so many libraries only, and ends with the last of them.
    """

    def __init__(self) -> None:
        self._jit = llvm.create_lljit_compiler(new_machine(host(), True))  # takes the machine over
        self._made = 0
        self._alive = 0

    @property
    def full(self) -> bool:
        return self._made >= _LIBRARIES

    def link(self, objects: Mapping[str, bytes], symbols: list[str]) -> llvm.ResourceTracker:
        builder = llvm.JITLibraryBuilder()
        for body in objects.values():
            builder = builder.add_object_img(body)
        for symbol in symbols:
            builder = builder.export_symbol(symbol)
        builder = builder.add_current_process()
        self._made += 1
        return builder.link(self._jit, f"leanconv.{self._made}")

    def enter(self) -> None:
        self._alive += 1

    def leave(self) -> None:
        self._alive -= 1
        if self.full and not self._alive:
            self._jit.close()


class Library:
    """Compiled code in this process; it is freed with the last reference to this object.

    Attributes:
        code_bytes: of its objects.
    """

    def __init__(
        self,
        linker: _Linker,
        tracker: llvm.ResourceTracker,
        addresses: Mapping[object, int],
        code_bytes: int,
    ) -> None:
        self._addresses, self.code_bytes = addresses, code_bytes
        linker.enter()
        self._tracker, self._linker = tracker, linker

    def address(self, entry: Kernel | str) -> int:
        """Address of a kernel's function, or of a function by its name."""
        return self._addresses[entry]

    def __del__(self) -> None:
        if hasattr(self, "_linker") and not sys.is_finalizing():
            with lock:
                self._tracker.close()  # before its linker may end
                self._linker.leave()


_current: list[_Linker] = []


def link(objects: Mapping[str, bytes], symbols: Mapping[object, str]) -> Library:
    """Load objects into this process.

    Args:
        objects: by name, each once.
        symbols: the symbol to be found for each entry of the library.
    """
    with lock:
        if not _current or _current[0].full:
            _current[:] = [_Linker()]
        linker = _current[0]
        tracker = linker.link(objects, list(dict.fromkeys(symbols.values())))
        addresses = {entry: tracker[symbol] for entry, symbol in symbols.items()}
        return Library(linker, tracker, addresses, sum(map(len, objects.values())))
