"""Vector functions on arrays, and how far they are from the exact results."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from leanconv.codegen import activations, trigonometry
from leanconv.codegen import math as vector_math
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.spec.activation import Activation
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, as_dtype
from support.kernel_runner import run_kernel

_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **vars(vector_math),
    **vars(trigonometry),
}


@dataclass(frozen=True)
class MathTestKernel(Kernel):
    """y = function(x) or function(x, z), one vector per chunk."""

    function: str | Activation
    dtype: str
    count: int
    binary: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "z", "y") if self.binary else ("x", "y")

    @property
    def chunks(self) -> int:
        return self.count

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        element = {FLOAT32: "float", FLOAT64: "double"}[self.dtype]
        lanes = target.lanes(self.dtype)
        pointers = [e.pointer(i, element) for i in range(len(self.operands))]
        with e.chunks(self.count) as (i,):
            args = [e.load(p.at(i * lanes), vector(element, lanes)) for p in pointers[:-1]]
            if isinstance(self.function, Activation):
                y = activations.apply(e, args[0], self.function, *args[1:])
            else:
                y = _FUNCTIONS[self.function](e, *args)
            e.store(y, pointers[-1].at(i * lanes))
        return e.finish()


def evaluate(
    function: str | Activation, *arrays: np.ndarray, target: Target | None = None
) -> np.ndarray:
    target = target or host()
    x = arrays[0]
    lanes = target.lanes(as_dtype(x.dtype))
    padded = [np.resize(a, -(-a.size // lanes) * lanes) for a in arrays]
    kernel = MathTestKernel(function, as_dtype(x.dtype), padded[0].size // lanes, len(arrays) == 2)
    y = run_kernel(kernel, *padded, np.full_like(padded[0], math.nan), target=target)
    return y[: x.size]


def exact(function: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    def safe(v: float) -> float:
        try:
            return function(v)
        except OverflowError:
            return math.inf

    return np.array([safe(v) for v in x.astype(np.float64).tolist()])


def ulps(y: np.ndarray, expected: np.ndarray) -> float:
    """Largest error in units of the last place of the expected value, at least 4 times tiny."""
    tiny = 4 * np.finfo(y.dtype).tiny
    unit = np.spacing(np.maximum(np.abs(expected), tiny).astype(y.dtype)).astype(np.float64)
    return float(np.max(np.abs(y.astype(expected.dtype) - expected) / unit))
