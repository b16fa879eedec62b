"""A convolution in one call."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanconv.api.borders import ZEROS, bordered
from leanconv.api.conv import cpu_plan
from leanconv.api.conv_arguments import (
    Constants,
    checked_layer,
    checked_transposed_spec,
    fitting_array,
    given_array,
    holds_codes,
    lacks_batch,
)
from leanconv.api.kept_plans import KnownCalls, Layer
from leanconv.api.layer_plan import LayerSpec
from leanconv.api.options import PlanOptions, checked_precision
from leanconv.half_arrays import numpy_dtype
from leanconv.spec import Activation
from leanconv.spec.arguments import ConvArguments, Padding, Steps
from leanconv.spec.transposed import TransposedArguments
from leanconv.types import DType


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
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    tune: bool = False,
    reproducible: bool = False,
    device: str = "cpu",
    precision: str | None = None,
    padding_mode: str = "zeros",
) -> np.ndarray:
    """Convolve: `plan_conv2d` and one run; plans are kept in a cache of bounded size.

    One, two and three spatial axes work alike: `conv1d` and `conv3d` are this function.

    Weights are packed again when w, bias or slope have changed since the last call with this w.

    Images of the size that comes first with an array of weights have the plan of `plan_conv2d`.
    Those of further sizes take kernels that serve all sizes, so that nothing is compiled for a new
    one; their results may differ from that plan's by rounding, within the error that is stated, and
    so may results after other weights were put into the array. `reproducible` and `tune` plan each
    size.

    Args:
        x: the input, of w's dtype; uint8 or int8 where w is one of the two. One image may come
            without the batch axis, and so does y then.
        residual: of y's shape, added before the activation, or None.
        w, bias, stride, padding, dilation, groups, activation, layout, slope, algorithm,
            memory_limit, max_error, threads, tune, reproducible, device, precision, padding_mode:
            as in `plan_conv2d`. Calls that differ in one of them have plans of their own.

    Returns:
        y, a new array in the layout of x, without elements where x has no images; for an array of
        a GPU another one there.

    Raises:
        SpecError, InputError, BudgetError: as `plan_conv2d` and `LayerPlan.__call__` do.
    """
    constants = Constants(w, bias, slope)
    arguments = ConvArguments(stride, padding, dilation, groups, activation, layout)
    limits = algorithm, memory_limit, max_error, threads, tune, reproducible
    given = *arguments, *limits, device, precision, padding_mode
    if lacks_batch(x, w):
        added = residual[None] if lacks_batch(residual, w) and residual is not None else residual
        image: np.ndarray = _convolved(x[None], added, constants, given)[0]
        return image
    return _convolved(x, residual, constants, given)


def _convolved(
    x: np.ndarray, residual: np.ndarray | None, constants: Constants, given: tuple[Any, ...]
) -> np.ndarray:
    """`conv2d` of images, with all other arguments as they came."""
    y = _known.run(given, x, residual, constants)
    if y is not None:
        return y
    arguments, limits = ConvArguments(*given[:6]), given[6:12]
    device, precision, mode = given[12:]
    options = PlanOptions.checked(*limits)
    if mode != ZEROS:
        return _bordered(mode, x, residual, constants, arguments, options, device, precision)
    if device != "cpu":
        from leanconv.gpu import backend

        backend.check_options(**options.of_cpu)
        computed: np.ndarray = backend.convolve(
            x, residual, constants, arguments, options.limits, device=device, precision=precision
        )
        return computed
    options = options._replace(precision=checked_precision(precision))
    x = given_array(x, constants.w)
    y, layer = _computed(x, residual, constants, arguments, options)
    if layer is not None:
        _known.add(layer, given, x, residual, constants)
    return y


def _computed(
    x: np.ndarray,
    residual: np.ndarray | None,
    constants: Constants,
    arguments: ConvArguments,
    options: PlanOptions,
) -> tuple[np.ndarray, Layer | None]:
    """The output on the CPU, and the layer that computed it; None where there are no images."""
    shape, added = _of_images(x), residual is not None
    kind = x.dtype if holds_codes(constants.w) else None
    spec = checked_layer(shape, kind, constants, arguments, added, options)
    if x.shape[:1] == (0,):
        return _of_no_images(spec, spec.precision.x, spec.precision.y, x, residual), None
    layer = Layer(spec, options)
    return layer.run(x, residual, constants, constants.w.ctypes.data), layer


def _of_images(x: np.ndarray) -> tuple[int, ...]:
    """The shape of the images; of one image where a batch is empty."""
    return (1, *x.shape[1:]) if x.shape[:1] == (0,) else x.shape


def _of_no_images(
    spec: LayerSpec, x_dtype: DType, y_dtype: DType, x: np.ndarray, residual: np.ndarray | None
) -> np.ndarray:
    """The output for arrays of a batch of 0; `spec` is that of one image."""
    (_, *size), (_, *kept) = spec.input_shape, spec.output_shape
    fitting_array("x", x, (0, *size), x_dtype)
    if residual is not None:
        fitting_array("residual", residual, (0, *kept), y_dtype)
    return np.empty((0, *kept), numpy_dtype(y_dtype))


def _bordered(
    mode: str,
    x: np.ndarray,
    residual: np.ndarray | None,
    constants: Constants,
    arguments: ConvArguments,
    options: PlanOptions,
    device: str,
    precision: str | None,
) -> np.ndarray:
    """`conv2d` of images with a border of other numbers than zeros."""
    x = given_array(x, constants.w)
    border, inner = bordered(_of_images(x), constants.w, arguments, mode, device)
    options = options._replace(precision=checked_precision(precision))
    if x.shape[:1] == (0,):
        return _computed(x, residual, constants, arguments, options)[0]
    limit, added = options.memory_limit, residual is not None
    if limit is not None and limit <= border.bytes:  # refused before the image is copied
        given = constants, inner, added, str(x.dtype), None
        border.within(options, lambda left: cpu_plan(border.shape, *given, left))

    def convolved(left: PlanOptions) -> np.ndarray:
        filled = border.fill(x, border.empty(x.dtype))
        return _computed(filled, residual, constants, inner, left)[0]

    return border.within(options, convolved)


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
            threads, reproducible: as in `plan_conv_transpose2d`. Calls that differ in one of them
            have plans of their own; those that differ in the weights alone share the code.

    Returns:
        y, a new array, without elements where x has no images.

    Raises:
        SpecError, InputError, UnsupportedError, BudgetError: as `plan_conv_transpose2d` and
            `LayerPlan.__call__` do.
    """
    constants = Constants(w, bias)
    window = stride, padding, output_padding, groups, dilation
    given = *window, memory_limit, max_error, threads, reproducible
    if isinstance(x, np.ndarray) and lacks_batch(x, w):
        image: np.ndarray = _transposed(x[None], constants, given)[0]
        return image
    return _transposed(x, constants, given)


def _transposed(x: np.ndarray, constants: Constants, given: tuple[Any, ...]) -> np.ndarray:
    """`conv_transpose2d` of images, with all other arguments as they came."""
    y = _known.run(given, x, None, constants)
    if y is not None:
        return y
    memory_limit, max_error, threads, reproducible = given[5:]
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    x = given_array(x, constants.w)
    spec = checked_transposed_spec(_of_images(x), constants, TransposedArguments(*given[:5]))
    if x.shape[:1] == (0,):
        return _of_no_images(spec, spec.dtype, spec.dtype, x, None)
    layer = Layer(spec, options)
    y = layer.run(x, None, constants, constants.w.ctypes.data)
    _known.add(layer, given, x, None, constants)
    return y


_known = KnownCalls()
