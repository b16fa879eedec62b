"""A convolution in one call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from leanconv.api.any_sizes import layer_sizes
from leanconv.api.borders import ZEROS, bordered
from leanconv.api.conv import ConvPlan, cpu_plan
from leanconv.api.conv_arguments import (
    Constants,
    checked_spec,
    fitting_array,
    given_array,
    holds_codes,
    lacks_batch,
)
from leanconv.api.kept_plans import KeptPlan, KnownCalls, Layer
from leanconv.api.options import PlanOptions, checked_precision
from leanconv.api.plan_cache import PlanCache
from leanconv.half_arrays import numpy_dtype
from leanconv.progress import working
from leanconv.runtime.outputs import Outputs
from leanconv.settings import current_settings
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.arguments import ConvArguments, Padding, Steps


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
        SpecError, InputError, BudgetError: as `plan_conv2d` and `ConvPlan.__call__` do.
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
    y = _known.run(_cache(), given, x, residual, constants)
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
    layer = _layer(x, residual, constants, arguments, options)
    y = _computed(layer, x, residual, constants)
    if x.shape[:1] != (0,):
        _known.add(layer, given, x, residual, constants)
    return y


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
    shape = (x.shape[0] or 1, *x.shape[1:]) if x.ndim else x.shape
    border, inner = bordered(shape, constants.w, arguments, mode, device)
    options = options._replace(precision=checked_precision(precision))
    if x.shape != shape:
        layer = _layer(x, residual, constants, arguments, options)
        return _computed(layer, x, residual, constants)
    limit, added = options.memory_limit, residual is not None
    if limit is not None and limit <= border.bytes:  # refused before the image is copied
        given = constants, inner, added, str(x.dtype), None
        border.within(options, lambda left: cpu_plan(border.shape, *given, left))

    def convolved(left: PlanOptions) -> np.ndarray:
        filled = border.fill(x, border.empty(x.dtype))
        layer = _layer(filled, residual, constants, inner, left)
        return _computed(layer, filled, residual, constants)

    return border.within(options, convolved)


def _layer(
    x: np.ndarray,
    residual: np.ndarray | None,
    constants: Constants,
    arguments: ConvArguments,
    options: PlanOptions,
) -> Layer[Any]:
    """What is computed: of one image, where there is none.

    Raises:
        InputError, SpecError: the arguments describe no convolution.
    """
    shape = (1, *x.shape[1:]) if x.shape[:1] == (0,) else x.shape
    added = residual is not None
    if holds_codes(constants.w):
        from leanconv.api.integer_conv import IntegerPlan, checked_integer_spec
        from leanconv.api.layer_plan import kept_layer

        spec = checked_integer_spec(shape, x.dtype, constants, arguments, added, options)
        return Layer(spec, options, functools.partial(kept_layer, IntegerPlan, spec, options))
    spec = checked_spec(shape, constants, arguments, added, options.precision)
    return Layer(spec, options, functools.partial(_planned, spec, options))


def _computed(
    layer: Layer[Any], x: np.ndarray, residual: np.ndarray | None, constants: Constants
) -> np.ndarray:
    if x.shape[:1] == (0,):
        assert isinstance(layer.spec, ConvSpec)
        return _of_no_images(layer.spec, x, residual)
    return layer.run(_cache(), x, residual, constants, constants.w.ctypes.data)


def _planned(spec: ConvSpec, options: PlanOptions, constants: Constants) -> KeptPlan[ConvPlan]:
    """A plan with these constants; of further sizes one that shares them."""
    layer = layer_sizes(spec, options, constants.w.ctypes.data)
    copied = layer.copied(constants)  # before packing: the next call notices a change
    with working(str(spec)):
        found = layer.found(spec, constants, options)
        plan = ConvPlan(spec, constants, options, _outputs(), found)
    if plan.shares:
        return KeptPlan(plan, copied, plan.packed)
    return KeptPlan(plan, copied, None, plan.repack, layer.copied)


def _of_no_images(spec: ConvSpec, x: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """The output for arrays of a batch of 0; `spec` is that of one image."""
    (_, *size), (_, *kept) = spec.input_shape, spec.output_shape
    fitting_array("x", x, (0, *size), spec.precision.x)
    if residual is not None:
        fitting_array("residual", residual, (0, *kept), spec.precision.y)
    return np.empty((0, *kept), numpy_dtype(spec.precision.y))


@functools.cache
def _outputs() -> Outputs:
    """The memory of large results."""
    return Outputs()


@functools.cache
def _cache() -> PlanCache[KeptPlan[Any]]:
    """The plans that `conv2d` made."""
    return PlanCache(current_settings().plan_cache_bytes, keep_newest=False)


_known: KnownCalls[Any] = KnownCalls()
