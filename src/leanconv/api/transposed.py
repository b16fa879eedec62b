"""A transposed convolution: planned once and run many times, or in one call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.api.conv_arguments import (
    Constants,
    fitting_array,
    given_array,
    lacks_batch,
    weight_dtype,
)
from leanconv.api.kept_plans import KeptPlan, KnownCalls, Layer
from leanconv.api.layer_plan import LayerPlan, kept_layer, layer_model
from leanconv.api.options import PlanOptions
from leanconv.api.plan_cache import PlanCache
from leanconv.graph.convert import FileNode
from leanconv.graph.onnx_import import Model
from leanconv.progress import Progress, checked_progress, working
from leanconv.settings import current_settings
from leanconv.spec.arguments import Padding, Steps
from leanconv.spec.transposed import TransposedArguments, TransposedSpec, transposed_spec
from leanconv.types import FLOATS

_NODE = "conv_transpose"
_known: KnownCalls[TransposedPlan] = KnownCalls()


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
    one for all phases. One, two and three spatial axes work alike: `plan_conv_transpose1d` and
    `plan_conv_transpose3d` are this function, as `conv_transpose3d` is `conv_transpose2d`.

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


class TransposedPlan(LayerPlan):
    """One transposed convolution, ready to run. Calls from several threads run in turn.

    Attributes:
        spec: what is computed.
    """

    instead = "send the weights, and call leanconv.plan_conv_transpose2d where the plan is wanted"

    def __init__(self, spec: TransposedSpec, constants: Constants, options: PlanOptions) -> None:
        super().__init__(spec, _model(spec, constants), options, _NODE)


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
    constants = Constants(w, bias)
    window = stride, padding, output_padding, groups, dilation
    given = *window, memory_limit, max_error, threads, reproducible
    if isinstance(x, np.ndarray) and lacks_batch(x, w):
        image: np.ndarray = _computed(x[None], constants, given)[0]
        return image
    return _computed(x, constants, given)


def _computed(x: np.ndarray, constants: Constants, given: tuple[Any, ...]) -> np.ndarray:
    """`conv_transpose2d` of images, with all other arguments as they came."""
    y = _known.run(_cache(), given, x, None, constants)
    if y is not None:
        return y
    memory_limit, max_error, threads, reproducible = given[5:]
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    x = given_array(x, constants.w)
    no_images = x.shape[:1] == (0,)
    shape = (1, *x.shape[1:]) if no_images else x.shape
    spec = _checked_spec(shape, constants, TransposedArguments(*given[:5]))
    if no_images:
        fitting_array("x", x, (0, *spec.input_shape[1:]), spec.dtype)
        return np.empty((0, *spec.output_shape[1:]), spec.dtype)
    make = functools.partial(kept_layer, TransposedPlan, spec, options)
    layer = Layer(spec, options, make)
    y = layer.run(_cache(), x, None, constants, constants.w.ctypes.data)
    _known.add(layer, given, x, None, constants)
    return y


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
    node = FileNode("ConvTranspose", ("x", *arrays), ("y",), attributes, _NODE)
    x, y = (spec.dtype, spec.input_shape), (spec.dtype, spec.output_shape)
    return layer_model((node,), x, y, arrays, spec.dtype)
