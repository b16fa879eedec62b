"""Run kernels in Triton's interpreter on addresses of this host's memory, without torch.

Import only with TRITON_INTERPRET=1: the flag is read where `@triton.jit` stands.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

from leanconv.gpu.device.compiler import EARLY, constants_of, function_of
from leanconv.gpu.launch import DTYPES_OF_TRITON, TENSOR_MAP, Code
from leanconv.types import as_dtype

assert triton.knobs.runtime.interpret, "set TRITON_INTERPRET=1 before triton is imported"


class Dtype(str):
    """A dtype's name that knows its size, as tensor maps ask for."""

    __slots__ = ()

    @property
    def itemsize(self) -> int:
        return as_dtype(str(self)).bytes


class Address:
    """As much of a torch tensor as the interpreter asks of one: where it begins, and its dtype."""

    def __init__(self, address: int, dtype: str) -> None:
        self._address, self.dtype = address, Dtype(dtype)

    def data_ptr(self) -> int:
        return self._address

    def _itself(self, *_: Any, **__: Any) -> Address:
        return self

    untyped_storage = cpu = new_empty = set_ = copy_ = _itself
    storage_offset = size = stride = _itself


def execute(code: Code, grid: tuple[int, int, int], arguments: list[Any]) -> None:
    """Run a launch as the fake driver decodes it."""
    given: dict[str, Any] = constants_of(code)
    function = function_of(code)
    if EARLY in function.arg_names:
        given[EARLY] = False  # nothing runs at the same time
    for (name, kind), value in zip(code.types, arguments, strict=True):
        if kind.startswith(TENSOR_MAP):
            dtype = DTYPES_OF_TRITON[kind.partition("<")[2].partition("[")[0]]
            base = Address(value.address, dtype)
            given[name] = TensorDescriptor(
                base, list(value.shape), list(value.strides), list(value.box)
            )
        else:
            given[name] = Address(value, DTYPES_OF_TRITON[kind[1:]]) if kind[0] == "*" else value
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        function[grid](**given)


# -- bfloat16: the interpreter multiplies bit patterns, and truncates what it stores ------------


def _as_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _repair_bfloat16() -> None:
    builder: Any = interpreter.InterpreterBuilder
    plain_dot, plain_convert = builder.create_dot, interpreter._convert_float

    def dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if a.dtype.scalar != tl.bfloat16:
            return plain_dot(self, a, b, d, *rest)
        product = np.matmul(_as_float(a.data), _as_float(b.data), dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    def convert(x: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target != tl.bfloat16:
            return plain_convert(x, source, target, rounding)
        bits = x.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    builder.create_dot = dot
    interpreter._convert_float = convert


_repair_bfloat16()
