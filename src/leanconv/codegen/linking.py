"""Machine code loaded into this process, and freed again.

The code of a form is loaded once: libraries share the batches in which their forms were linked.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeAlias

from leanconv import forks
from leanconv.codegen import backend
from leanconv.codegen.elf_objects import LoadedObjects, NotPlainError, load_objects, takes_objects
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.machine_code import new_machine
from leanconv.codegen.process_limits import require_for_linking
from leanconv.records import dataclass

if TYPE_CHECKING:
    from leanconv.codegen.backend import llvm
    from leanconv.codegen.forms import Instance

log = logging.getLogger(__name__)
_LIBRARIES = 128  # of one linker
lock = threading.RLock()  # the compiler's and the linker's
forks.hold_over_forks(forks.COMPILER, lambda: lock)

Code: TypeAlias = "llvm.ResourceTracker | LoadedObjects"  # addresses by symbol


class Batch:
    """Objects that were linked together; their code is freed with the last reference to this.

    Attributes:
        code_bytes: of its objects.
    """

    def __init__(self, tracker: Code, code_bytes: int) -> None:
        self._tracker, self.code_bytes = tracker, code_bytes

    def address(self, symbol: str) -> int:
        """Address of one of its functions."""
        address: int = self._tracker[symbol]
        return address


@dataclass(frozen=True)
class KernelForm:
    """Facts of a kernel that a program needs, as plain data that outlives kernel and process.

    Attributes:
        form: names the code: the digest of its text.
        words: before the table of addresses, in order of memory: the kernel's extents.
    """

    form: str
    words: tuple[int, ...]
    chunks: int
    rounds: int
    result_count: int
    scratch_bytes: int
    index_ranges: Sequence[tuple[int, int]]
    wants_consecutive_chunks: bool
    reuses_scratch: bool


_FACTS = tuple(field.name for field in fields(KernelForm))[2:]


class Library:
    """Functions in this process: their batches are freed with the last library that holds them.

    Args:
        places: each entry's batch and symbol: of forms by their digests, of others by their names.
        instances: each kernel as an instance of its form.
        compiled: number of forms that were compiled for it; the others were there.

    Attributes:
        batches: in which the functions are; they keep them loaded.
        forms, compiled: numbers of its forms, and of those compiled for it.
        code_bytes: of the whole batches that it holds. Several libraries count a batch that they
            share each, so that together they never take more than the sum.
    """

    def __init__(
        self,
        places: Mapping[str, tuple[Batch, str]],
        instances: Mapping[Kernel, Instance],
        compiled: int = 0,
    ) -> None:
        self._addresses = {entry: batch.address(name) for entry, (batch, name) in places.items()}
        self.batches = frozenset(batch for batch, _ in places.values())
        self._instances = instances
        self.forms, self.compiled = len(set(self._addresses.values())), compiled
        self.code_bytes = sum(batch.code_bytes for batch in self.batches)

    def address(self, entry: Kernel | str) -> int:
        """Address of a kernel's function, of a form's by its digest, or of one by its name."""
        return self._addresses[entry if isinstance(entry, str) else self._instances[entry].digest]

    def form(self, kernel: Kernel) -> KernelForm:
        """Return the facts of a kernel that a program needs."""
        return form_of(kernel, self._instances[kernel])


def form_of(kernel: Kernel, instance: Instance) -> KernelForm:
    """Return the facts of a kernel that a program needs, given what it is of which form."""
    facts = {name: getattr(kernel, name) for name in _FACTS}
    return KernelForm(instance.digest, instance.words[::-1], **facts)


class _Linker:
    """One of LLVM's linkers. What it has linked stays in memory until it is freed itself.

    Each therefore takes a bounded number of libraries, and is freed some time after the last.
    """

    def __init__(self) -> None:
        # JITLink lays the sections of an object side by side. LLVM's older linker maps each where
        # there is room, and ends the process where two are more than 2 GiB apart.
        machine = new_machine(host(), True)  # the compiler takes it over
        self._jit = backend.llvm.create_lljit_compiler(machine, use_jit_link=True)
        self._begun = 0
        self._trackers: list[weakref.ref[llvm.ResourceTracker]] = []
        self.unused_before = False

    @property
    def full(self) -> bool:
        return self._begun >= _LIBRARIES

    @property
    def unused(self) -> bool:
        """True if no library is left; never after a Ctrl-C that may have lost track of one."""
        return self._begun == len(self._trackers) and all(t() is None for t in self._trackers)

    def link(self, objects: Mapping[str, bytes], symbols: list[str]) -> llvm.ResourceTracker:
        builder = backend.llvm.JITLibraryBuilder()
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


def link(objects: Mapping[str, bytes], symbols: Iterable[str]) -> Batch:
    """Load objects into this process.

    Args:
        objects: by name, each once.
        symbols: functions to find in them.

    Raises:
        OutOfMemoryError: less memory is left than linking takes.
    """
    size = sum(map(len, objects.values()))
    require_for_linking(len(objects), size)
    with lock:
        return Batch(_linked(objects, list(symbols)), size)


def _linked(objects: Mapping[str, bytes], symbols: list[str]) -> Code:
    if takes_objects():
        try:
            return load_objects(objects.values())
        except NotPlainError as error:
            log.info("LLVM links %d objects: %s", len(objects), error)
    return _free_linker().link(objects, symbols)


# Batches by the keys of their forms, under the lock. Callbacks of weak references would lose what a
# signal handler raises in them; what is dead goes when the next batch is linked.
_loaded: dict[str, weakref.ref[Batch]] = {}


def loaded(key: str) -> Batch | None:
    """The batch in this process that has a form's code; only under the lock."""
    found = _loaded.get(key)
    return found() if found else None


def load_forms(objects: Mapping[str, bytes]) -> Batch:
    """Link the objects of forms, by key, for all libraries to come; only under the lock.

    Raises:
        OutOfMemoryError: as for `link`.
    """
    batch = link(objects, map(symbol_of, objects))
    for key in [key for key, found in _loaded.items() if found() is None]:
        del _loaded[key]
    _loaded.update(dict.fromkeys(objects, weakref.ref(batch)))
    return batch


def symbol_of(key: str) -> str:
    """The name of a form's function."""
    return f"k{key}"
