"""From kernels to addresses: emit, compile or fetch from the cache, load into this process."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from leanconv.codegen.cache import DiskCache
from leanconv.codegen.host import check_runs_here, host, usable_cores
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import Library, link, lock
from leanconv.codegen.machine_code import assembly_text, compile_text
from leanconv.settings import current_settings
from leanconv.spelling import spelled
from leanconv.target import Target


@functools.cache
def generator_hash() -> str:
    """Hash of the sources that decide what is emitted."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in ("spec", "codegen", "kernels", "algorithms", "target", "winograd", "runtime"):
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


def assembly(kernel: Kernel, target: Target) -> str:
    """Emit a kernel as assembly for reading: any target, not only this machine's."""
    return assembly_text(kernel.emit(target), target)


def _objects(kernels: Mapping[str, Kernel], target: Target) -> dict[str, bytes]:
    """The objects of kernels by key: those of the cache, and the others compiled on all cores."""
    found = {key: _cache().get(key) for key in kernels}
    absent = [key for key, body in found.items() if body is None]
    for key, body in zip(absent, _compiled({k: kernels[k] for k in absent}, target), strict=True):
        _cache().put(key, body)
        found[key] = body
    return {key: body for key, body in found.items() if body is not None}


def _compiled(kernels: Mapping[str, Kernel], target: Target) -> Iterator[bytes]:
    """Compile kernels: this thread emits their text, others make machine code of it meanwhile."""
    texts = (_named_text(key, kernel, target) for key, kernel in kernels.items())
    if len(kernels) < 2:
        yield from (compile_text(text, target) for text in texts)
        return
    workers = ThreadPoolExecutor(min(usable_cores(), len(kernels)))
    try:
        under_way = [workers.submit(compile_text, text, target) for text in texts]
        yield from (future.result() for future in under_way)
    finally:
        workers.shutdown(cancel_futures=True)


def _named_text(key: str, kernel: Kernel, target: Target) -> str:
    return kernel.emit(target).replace(f"@{kernel.NAME}(", f"@k{key}(", 1)


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
    with lock:
        keys = {kernel: _key(spelled(kernel), wanted) for kernel in dict.fromkeys(kernels)}
        objects = _objects({key: kernel for kernel, key in keys.items()}, wanted)
        return link(objects, {kernel: f"k{key}" for kernel, key in keys.items()})


def load_text(text: str, names: Sequence[str], description: str) -> Library:
    """Compile and load a hand-written module; `description` names it in the cache."""
    with lock:
        key = _key(f"{description}\n{text}", host())
        body = _cache().get(key)
        if body is None:
            body = compile_text(text, host())
            _cache().put(key, body)
        return link({description: body}, {name: name for name in names})
