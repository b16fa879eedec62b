"""Compilation of LLVM IR to machine code, on any number of threads at once."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leanconv.codegen import backend
from leanconv.codegen.host import host
from leanconv.codegen.process_limits import require_for_compiling
from leanconv.errors import CompileError
from leanconv.target import Target

if TYPE_CHECKING:
    from leanconv.codegen.backend import llvm


@functools.cache
def _initialise() -> None:
    backend.llvm.initialize_native_target()
    backend.llvm.initialize_native_asmprinter()
    backend.llvm.initialize_native_asmparser()


@functools.cache
def _initialise_foreign() -> None:
    backend.llvm.initialize_all_targets()
    backend.llvm.initialize_all_asmprinters()


def new_machine(target: Target, jit: bool) -> llvm.TargetMachine:
    """Make LLVM's machine for a target: for code to load into this process, or to read."""
    _initialise()
    if target.triple.split("-")[0] != host().triple.split("-")[0]:
        _initialise_foreign()
    return backend.llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.features,
        opt=2,
        reloc="pic" if jit and not target.triple.startswith("wasm") else "default",
        codemodel="small" if jit else "default",
        jit=jit,
    )


@functools.cache
def _emission() -> Callable[..., Any]:
    """LLVM's function that makes machine code, without the lock that llvmlite puts around all.

    LLVM needs none where threads have contexts and machines of their own.
    """
    locked = backend.ffi.lib.LLVMPY_TargetMachineEmitToMemory
    try:
        free: Any = ctypes.CDLL(backend.ffi.lib._name).LLVMPY_TargetMachineEmitToMemory
    except (AttributeError, OSError):
        return locked  # type: ignore[no-any-return]
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free  # type: ignore[no-any-return]


_kept = threading.local()


def _machine_of_thread(target: Target) -> llvm.TargetMachine:
    """Return this thread's LLVM machine, kept until it is of another target."""
    kept: tuple[Target, llvm.TargetMachine] | None = getattr(_kept, "machine", None)
    if kept is None or kept[0] != target:
        kept = _kept.machine = target, new_machine(target, True)
    return kept[1]


def _parsed(text: str, context: llvm.ContextRef) -> llvm.ModuleRef:
    require_for_compiling(text)
    try:
        module = backend.llvm.parse_assembly(text, context)
        module.verify()
    except RuntimeError as error:
        raise CompileError(
            f"the generator emitted invalid code, a defect of leanconv: {error}; please report it"
        ) from error
    return module


def _emit(module: llvm.ModuleRef, machine: llvm.TargetMachine, as_object: bool) -> bytes:
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    with backend.ffi.OutputString() as message:
        buffer = _emission()(machine, module, int(as_object), message)
        if not buffer:
            raise CompileError(
                f"no machine code can be made of what was emitted, a defect of leanconv: "
                f"{message}; please report it"
            )
    try:
        start = backend.ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, backend.ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        backend.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def with_features(text: str, target: Target) -> str:
    """Return LLVM IR whose functions are for a target, whatever their module is compiled for."""
    features = f'"target-cpu"="{target.cpu}" "target-features"="{target.features}"'
    return re.sub(r"^(define .*) \{", rf"\1 {features} {{", text, flags=re.MULTILINE)


def linked_object(texts: Sequence[str], names: Collection[str], target: Target) -> bytes:
    """Compile several modules of LLVM IR to one object file.

    Args:
        texts: the modules; functions `with_features` need no others.
        names: functions that others may call; all other ones are the object's own.
        target: of this machine's or any other system; of its features none are used.

    Raises:
        CompileError: a text is not valid LLVM IR, a fault of the generator.
    """
    context = backend.llvm.create_context()
    with contextlib.ExitStack() as modules:  # they end before the context does
        whole, *more = (modules.enter_context(_parsed(text, context)) for text in texts)
        for module in more:
            whole.link_in(module)
        for function in whole.functions:
            if not function.is_declaration and function.name not in names:
                function.linkage = "internal"
        return _emit(whole, new_machine(replace(target, cpu="", features=""), True), True)


def compile_text(text: str, target: Target) -> bytes:
    """Compile LLVM IR to an object file.

    Raises:
        CompileError: the text is not valid LLVM IR, a fault of the generator.
    """
    module = _parsed(text, backend.llvm.create_context())
    return _emit(module, _machine_of_thread(target), True)
