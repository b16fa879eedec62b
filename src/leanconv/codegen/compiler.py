"""From kernels to addresses: emit, compile or fetch from the cache, load into this process."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import check_runs_here, host
from leanconv.codegen.kernel import Kernel
from leanconv.errors import CompileError
from leanconv.settings import current_settings
from leanconv.spelling import spelled
from leanconv.target import Target

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked child finds the compiler whole and unlocked
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
_library_numbers = itertools.count()


@functools.cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def _initialise_foreign() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _new_machine(target: Target, jit: bool) -> llvm.TargetMachine:
    _initialise()
    if target.triple.split("-")[0] != host().triple.split("-")[0]:
        _initialise_foreign()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=2,
        reloc="pic" if jit else "default",
        codemodel="small" if jit else "default",
        jit=jit,
    )


_machine = functools.cache(_new_machine)


@functools.cache
def generator_hash() -> str:
    """Hash of the sources that decide what is emitted."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in ("codegen", "kernels", "algorithms", "target", "winograd", "runtime"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    digest.update(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    return digest.hexdigest()


def _key(description: str, target: Target) -> str:
    text = f"{generator_hash()}\n{spelled(target)}\n{description}"
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@functools.cache
def _cache() -> DiskCache:
    settings = current_settings()
    folder = settings.cache_dir / "objects" if settings.cache_bytes else None
    return DiskCache(folder, settings.cache_bytes)


def _parse(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"the generator emitted invalid code: {error}") from error
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    return module


def compile_text(text: str, target: Target) -> bytes:
    """Compile LLVM IR to an object file.

    Raises:
        CompileError: the text is not valid LLVM IR, a fault of the generator.
    """
    with _lock:
        machine = _machine(target, True)
        object_file: bytes = machine.emit_object(_parse(text, machine))
        return object_file


def assembly(kernel: Kernel, target: Target) -> str:
    """Emit a kernel as assembly for reading: any target, not only this machine's."""
    with _lock:
        machine = _machine(target, False)
        listing: str = machine.emit_assembly(_parse(kernel.emit(target), machine))
        return listing


def _object(kernel: Kernel, key: str, target: Target) -> bytes:
    found = _cache().get(key)
    if found is None:
        text = kernel.emit(target).replace(f"@{kernel.NAME}(", f"@k{key}(", 1)
        found = compile_text(text, target)
        _cache().put(key, found)
    return found


class Library:
    """Compiled code in this process; it is freed with the last reference to this object."""

    def __init__(self, addresses: Mapping[object, int], tracker: object, code_bytes: int) -> None:
        self._addresses, self._tracker = addresses, tracker
        self.code_bytes = code_bytes

    def address(self, entry: Kernel | str) -> int:
        """Address of a kernel's function, or of a function by its name."""
        return self._addresses[entry]


@functools.cache
def _jit() -> llvm.LLJIT:
    _initialise()
    return llvm.create_lljit_compiler(_new_machine(host(), True))  # it takes the machine over


def _link(objects: Mapping[object, tuple[str, bytes]]) -> Library:
    builder = llvm.JITLibraryBuilder()
    for symbol, body in dict(objects.values()).items():
        builder = builder.add_object_img(body)
        builder = builder.export_symbol(symbol)
    builder = builder.add_current_process()
    tracker = builder.link(_jit(), f"leanconv.{next(_library_numbers)}")
    addresses = {entry: tracker[symbol] for entry, (symbol, _) in objects.items()}
    return Library(addresses, tracker, sum(len(body) for _, body in objects.values()))


def load(kernels: Sequence[Kernel], target: Target | None = None) -> Library:
    """Compile kernels, or fetch them from the cache, and load them into this process.

    Args:
        kernels: any number; equal ones are compiled once.
        target: what to compile for; this machine by default. It must be able to run here.

    Returns:
        The library that gives each kernel's address.

    Raises:
        SpecError: the target's code cannot run here.
    """
    wanted = target or host()
    check_runs_here(wanted)
    objects: dict[object, tuple[str, bytes]] = {}
    with _lock:
        for kernel in dict.fromkeys(kernels):
            key = _key(spelled(kernel), wanted)
            objects[kernel] = (f"k{key}", _object(kernel, key, wanted))
        return _link(objects)


def load_text(text: str, names: Sequence[str], description: str) -> Library:
    """Compile and load a hand-written module; `description` names it in the cache."""
    with _lock:
        key = _key(f"{description}\n{text}", host())
        body = _cache().get(key)
        if body is None:
            body = compile_text(text, host())
            _cache().put(key, body)
        builder = llvm.JITLibraryBuilder().add_object_img(body)
        for name in names:
            builder = builder.export_symbol(name)
        tracker = builder.link(_jit(), f"leanconv.{next(_library_numbers)}")
        return Library({name: tracker[name] for name in names}, tracker, len(body))
