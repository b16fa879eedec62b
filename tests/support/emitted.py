"""Compile what the emitter wrote and call it with NumPy arrays and numbers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from leanconv.codegen.compiler import load_text
from leanconv.codegen.emitter import Function, Value, bytes_of, element_of, lanes_of
from leanconv.codegen.host import host
from leanconv.codegen.machine_code import compile_text
from leanconv.types import FLOAT32, FLOAT64, INT8, INT16, INT32, INT64

_C = {"i64": ctypes.c_int64, "ptr": ctypes.c_void_p, "float": ctypes.c_float}
DTYPE = {"float": FLOAT32, "double": FLOAT64, "i8": INT8, "i16": INT16, "i32": INT32, "i64": INT64}


def integer_function(body: Callable[[Function, Value, Value], Value]) -> Callable[[int, int], int]:
    """Compile `i64 f(i64 a, i64 b)` whose result is what `body` returns."""
    e = Function("f", [("a", "i64"), ("b", "i64")], returns="i64")
    text = e.finish(body(e, *e.arguments))
    library = load_text(text, ["f"], "test")
    native = ctypes.CFUNCTYPE(_C["i64"], _C["i64"], _C["i64"])(library.address("f"))

    def call(a: int, b: int) -> int:
        assert library.code_bytes
        return int(native(a, b))

    return call


def map_arrays(kind: str, body: Callable[..., Value], *arrays: np.ndarray) -> np.ndarray:
    """Compile a function of vectors of a type and apply it to the start of each array."""
    e = Function("f", [("args", "ptr")])
    values = [e.load(e.pointer(i), kind) for i in range(len(arrays))]
    result = body(e, *values)
    e.store(result, e.pointer(len(arrays)))
    library = load_text(e.finish(), ["f"], "test")
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("f"))
    out = np.zeros(lanes_of(result.kind), DTYPE[element_of(result.kind)])
    held = [np.ascontiguousarray(a) for a in arrays]
    for array in held:
        assert array.nbytes >= lanes_of(kind) * bytes_of(element_of(kind))
    table = (ctypes.c_int64 * (len(arrays) + 1))(*(a.ctypes.data for a in (*held, out)))
    native(ctypes.addressof(table))
    return out


def compiles(text: str) -> bool:
    """Whether LLVM accepts a module; raises CompileError if it does not."""
    return len(compile_text(text, host())) > 0
