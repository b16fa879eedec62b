"""A transposed convolution: planned once and run many times, or in one call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.api.conv_arguments import (
    Constants,
    check_output,
    fitting_array,
    lacks_batch,
    weight_dtype,
)
from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.inputs import array_mend
from leanconv.api.options import NetworkOptions, PlanOptions
from leanconv.api.plan_cache import PlanCache
from leanconv.api.weight_changes import KeptPlan, copied_bytes
from leanconv.errors import InputError, memory_reported
from leanconv.graph.convert import LAST_OPSET, FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.planner.network_plan import NetworkPlan
from leanconv.progress import Progress, checked_progress, working
from leanconv.runtime.memory import new_array
from leanconv.runtime.unpicklable import Unpicklable
from leanconv.settings import current_settings
from leanconv.spec.arguments import Padding, Steps
from leanconv.spec.transposed import TransposedArguments, TransposedSpec, transposed_spec
from leanconv.types import FLOAT32, FLOATS


def plan_conv_transpose2d(
    x_shape: Sequence[int],
    w: np.ndarray,
    bias: np.ndarray | None = None,
    stride: Steps = 1,
    padding: Padding = 0,
    output_padding: Steps = 0,
    groups: int = 1,
    dilation: Steps = 1,
    *,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
    progress: Progress | None = None,
) -> TransposedPlan:
    """Plan one transposed convolution: choose the algorithm, emit its code, pack its weights.

    It is computed as ordinary convolutions, one for each phase of the output modulo the stride, or
    one for all phases. One, two and three spatial axes work alike.

    Args:
        x_shape: (N, C, H, W).
        w: weights (C, K / groups, kh, kw), float32 or float64: the dtype of everything.
        bias: (K,), or None.
        stride, dilation: an int, or (h, w); dilation 1 is dense.
        padding: what is cut off the output: an int, (h, w), or (top, left, bottom, right).
        output_padding: what is added at the bottom and at the right: an int, or (h, w), less than
            stride or dilation.
        groups: channel groups.
        memory_limit, max_error, threads, reproducible, progress: as in `plan_conv2d`.

    Returns:
        The plan; call it with x.

    Raises:
        SpecError: the arguments describe no transposed convolution.
        InputError: w or bias is no array of the dtype and shape expected.
        UnsupportedError: the strides make too many phases.
        BudgetError: the plan does not keep the memory limit or the error.
    """
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    arguments = TransposedArguments(stride, padding, output_padding, groups, dilation)
    constants = Constants(w, bias)
    spec = _checked_spec(x_shape, constants, arguments)
    with working(str(spec), checked_progress(progress)):
        return TransposedPlan(spec, constants, options)


class TransposedPlan(Unpicklable):
    """One transposed convolution, ready to run. Calls from several threads run in turn.

    Attributes:
        spec: what is computed.
    """

    instead = "send the weights, and call leanconv.plan_conv_transpose2d where the plan is wanted"

    @memory_reported("planning a convolution")
    def __init__(self, spec: TransposedSpec, constants: Constants, options: PlanOptions) -> None:
        self.spec = spec
        backend = CpuBackend(
            _model(spec, constants),
            NetworkOptions(
                threads=options.threads,
                memory_limit=options.memory_limit,
                max_error=options.max_error,
                reproducible=options.reproducible,
            ),
        )
        self._compiled = backend.compile((spec.input_shape,))

    def __call__(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Compute.

        Args:
            x: the input, of the planned shape and dtype; contiguous arrays are read in place.
            out: where to write y: contiguous, and no part of x; a new array if None.

        Returns:
            y.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for y.
        """
        spec = self.spec
        x = fitting_array("x", x, spec.input_shape, spec.dtype)
        if out is None:
            out = new_array(spec.output_shape, spec.dtype)
        else:
            check_output(out, [x], spec)
        self._compiled.network.run([x.ctypes.data, out.ctypes.data])
        return out

    @property
    def plan(self) -> NetworkPlan:
        """What runs: steps, bytes, expected error."""
        return self._compiled.plan

    @property
    def memory_bytes(self) -> int:
        """Workspace and packed weights."""
        return self.plan.memory_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for this plan, counted as they were."""
        return self._compiled.used_bytes

    @property
    def predicted_error(self) -> float:
        """Expected relative error in the max norm, for data of random sign."""
        return self.plan.predicted_error

    def __repr__(self) -> str:
        return f"<TransposedPlan {self.spec}>"

    def explain(self) -> str:
        """Say how it is computed, with its bytes."""
        return self._compiled.explain()


def conv_transpose2d(
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray | None = None,
    stride: Steps = 1,
    padding: Padding = 0,
    output_padding: Steps = 0,
    groups: int = 1,
    dilation: Steps = 1,
    *,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
) -> np.ndarray:
    """`plan_conv_transpose2d` and one run; plans are kept in a cache of bounded size.

    Args:
        x: the input, of w's dtype; one image may come without the batch axis, and so does y then.
        w, bias, stride, padding, output_padding, groups, dilation, memory_limit, max_error,
            threads, reproducible: as in `plan_conv_transpose2d`. Calls that differ in one of them,
            or in the weights, have plans of their own.

    Returns:
        y, a new array, without elements where x has no images.

    Raises:
        SpecError, InputError, UnsupportedError, BudgetError: as `plan_conv_transpose2d` and
            `TransposedPlan.__call__` do.
    """
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    arguments = TransposedArguments(stride, padding, output_padding, groups, dilation)
    constants = Constants(w, bias)
    if not isinstance(x, np.ndarray):
        raise InputError(f"x is {type(x).__name__}; expected a NumPy array{array_mend(x, FLOAT32)}")
    if lacks_batch(x, w):
        y: np.ndarray = _computed(x[None], constants, arguments, options)[0]
        return y
    return _computed(x, constants, arguments, options)


def _computed(
    x: np.ndarray, constants: Constants, arguments: TransposedArguments, options: PlanOptions
) -> np.ndarray:
    no_images = x.shape[:1] == (0,)
    spec = _checked_spec((1, *x.shape[1:]) if no_images else x.shape, constants, arguments)
    if no_images:
        fitting_array("x", x, (0, *spec.input_shape[1:]), spec.dtype)
        return np.empty((0, *spec.output_shape[1:]), spec.dtype)
    key: Any = spec, options, constants.w.ctypes.data
    cache = _cache()
    kept = cache.take(key)
    if kept is None or not kept.holds(constants):
        packed = copied_bytes(constants)  # before packing: the next call notices a change
        with working(str(spec)):
            kept = KeptPlan(TransposedPlan(spec, constants, options), packed)
    try:
        return kept.plan(x)
    finally:
        cache.put(key, kept, kept.held_bytes)


@functools.cache
def _cache() -> PlanCache[KeptPlan[TransposedPlan]]:
    """The plans that `conv_transpose2d` made."""
    return PlanCache(current_settings().plan_cache_bytes, keep_newest=False)


def _checked_spec(
    x_shape: Sequence[int], constants: Constants, arguments: TransposedArguments
) -> TransposedSpec:
    w, bias = constants.w, constants.bias
    dtype = weight_dtype(w, FLOATS)
    spec = transposed_spec(x_shape, w.shape, arguments, dtype, bias is not None)
    if bias is not None:
        fitting_array("bias", bias, spec.output_shape[1:2], dtype)
    return spec


def _model(spec: TransposedSpec, constants: Constants) -> Model:
    """The network of this one layer, as a file would have it."""
    arrays = {"w": constants.w, **({} if constants.bias is None else {"bias": constants.bias})}
    attributes = {
        "strides": spec.stride,
        "dilations": spec.dilation,
        "pads": spec.pads,
        "output_padding": spec.output_padding,
        "group": spec.groups,
    }
    node = FileNode("ConvTranspose", ("x", *arrays), ("y",), attributes, "conv_transpose")
    return Model(
        inputs=(ModelInput("x", spec.dtype, spec.input_shape),),
        outputs=("y",),
        output_shapes=(spec.output_shape,),
        output_dtypes=(spec.dtype,),
        opset=LAST_OPSET,
        nodes=(node,),
        constants=MappingProxyType({n: np.ascontiguousarray(a) for n, a in arrays.items()}),
        dtype=spec.dtype,
        bytes=sum(array.nbytes for array in arrays.values()),
        limits=Limits(),
        metadata=MappingProxyType({}),
    )
