"""A convolution in one call."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from leanconv.api.conv import ConvPlan
from leanconv.api.conv_arguments import checked_spec
from leanconv.api.options import checked_algorithm, checked_threads
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import InputError, SpecError
from leanconv.settings import current_settings
from leanconv.spec import Activation
from leanconv.spec.arguments import Padding, Steps

_Constants = tuple[np.ndarray | None, ...]


def conv2d(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    layout: str = "NCHW",
    *,
    residual: np.ndarray | None = None,
    slope: np.ndarray | None = None,
    algorithm: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
    precision: str | None = None,
) -> np.ndarray:
    """Convolve: `plan_conv2d` and one run; plans are kept in a cache of bounded size.

    Weights are packed again when w, bias or slope have changed since the last call with this w.

    Args:
        x: the input, of w's dtype.
        residual: of y's shape, added before the activation, or None.
        w, bias, stride, padding, dilation, groups, activation, layout, slope, algorithm, threads,
            device, precision: as in `plan_conv2d`.

    Returns:
        y, a new array in the layout of x; for an array of a GPU another one there.

    Raises:
        SpecError, InputError: as `plan_conv2d` and `ConvPlan.__call__` do.
    """
    if device != "cpu":
        from leanconv.gpu import entry

        entry.check_options(threads=threads)
        window = (stride, padding, dilation, groups)
        return cast(
            np.ndarray,
            entry.convolve(
                device,
                precision,
                x,
                residual,
                (w, bias, slope),
                window,
                (activation, layout),
                algorithm,
            ),
        )
    if precision is not None:
        raise SpecError(f"precision is {precision!r} for device 'cpu'; expected None")
    if not isinstance(x, np.ndarray):
        raise InputError(f"x is {type(x).__name__}; expected a NumPy array")
    spec = checked_spec(
        x.shape,
        w,
        bias,
        stride,
        padding,
        dilation,
        groups,
        activation,
        layout,
        residual is not None,
        slope,
    )
    threads = checked_threads(threads)
    constants = w, bias, slope
    # Layers of one shape have a plan each, found by where their weights lie.
    key = spec, checked_algorithm(algorithm), threads, w.ctypes.data
    cache = _cache()
    kept = cache.take(key)  # out of it, so that no other thread runs it with other weights
    if kept is None or not kept.holds(constants):
        packed = tuple(map(bytearray, _bytes(constants)))  # first: what changes now is seen later
        if kept is None:
            plan = ConvPlan(spec, w, bias, slope, algorithm, None, None, threads)
        else:
            plan = kept.plan
            plan.repack(w, bias, slope)
        kept = _Kept(plan, packed)
    try:
        return kept.plan(x, residual=residual)
    finally:
        cache.put(key, kept, kept.held_bytes)


@dataclass(frozen=True)
class _Kept:
    """A plan, and the bytes of what it has packed: the caller may write into its arrays."""

    plan: ConvPlan
    packed: tuple[bytearray, ...]

    @property
    def held_bytes(self) -> int:
        return self.plan.memory_bytes + sum(map(len, self.packed))

    def holds(self, constants: _Constants) -> bool:
        """Whether these are, bit by bit, the constants that are packed."""
        return all(map(operator.eq, self.packed, _bytes(constants)))


def _bytes(constants: _Constants) -> Iterator[memoryview]:
    """The memory of those that are given; a `bytearray` compares with it at memory's speed."""
    return (np.ascontiguousarray(array).data for array in constants if array is not None)


@functools.cache
def _cache() -> PlanCache[_Kept]:
    """The plans that `conv2d` made."""
    return PlanCache(current_settings().plan_cache_bytes, keep_newest=False)
