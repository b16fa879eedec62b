"""A convolution in one call."""

from __future__ import annotations

import functools

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
from leanconv.api.options import PlanOptions, checked_precision
from leanconv.api.plan_cache import PlanCache
from leanconv.api.weight_changes import KeptPlan, keep
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
    options = PlanOptions.checked(algorithm, memory_limit, max_error, threads, tune, reproducible)
    arguments = ConvArguments(stride, padding, dilation, groups, activation, layout)
    how = Constants(w, bias, slope), arguments, options, device, precision
    convolved = _convolved if padding_mode == ZEROS else functools.partial(_bordered, padding_mode)
    if lacks_batch(x, w):
        added = residual[None] if lacks_batch(residual, w) and residual is not None else residual
        y: np.ndarray = convolved(x[None], added, *how)
        image: np.ndarray = y[0]
        return image
    return convolved(x, residual, *how)


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
    if x.shape != shape:
        return _convolved(x, residual, constants, arguments, options, device, precision)
    limit, added = options.memory_limit, residual is not None
    if limit is not None and limit <= border.bytes:  # refused before the image is copied
        given = constants, inner, added, str(x.dtype), None
        border.within(options, lambda left: cpu_plan(border.shape, *given, left))

    def convolved(left: PlanOptions) -> np.ndarray:
        filled = border.fill(x, border.empty(x.dtype))
        return _convolved(filled, residual, constants, inner, left, device, precision)

    return border.within(options, convolved)


def _convolved(
    x: np.ndarray,
    residual: np.ndarray | None,
    constants: Constants,
    arguments: ConvArguments,
    options: PlanOptions,
    device: str,
    precision: str | None,
) -> np.ndarray:
    """`conv2d` of images."""
    if device != "cpu":
        from leanconv.gpu import backend

        backend.check_options(**options.of_cpu)
        y: np.ndarray = backend.convolve(
            x, residual, constants, arguments, options.limits, device=device, precision=precision
        )
        return y
    options = options._replace(precision=checked_precision(precision))
    x = given_array(x, constants.w)
    if holds_codes(constants.w):
        from leanconv.api.integer_conv import convolve_integers

        return convolve_integers(x, residual is not None, constants, arguments, options)
    no_images = x.shape[:1] == (0,)
    shape = (1, *x.shape[1:]) if no_images else x.shape
    spec = checked_spec(shape, constants, arguments, residual is not None, options.precision)
    if no_images:
        return _of_no_images(spec, x, residual)
    # Layers of one shape have a plan each, found by the address of their weights.
    key = spec, options, constants.w.ctypes.data
    cache = _cache()
    kept = cache.take(key)  # removed, so that no other thread repacks it meanwhile
    if kept is None or not kept.holds(constants):
        kept = _planned(kept, spec, constants, options)
    try:
        return kept.plan(x, residual=residual)
    finally:
        keep(cache, key, kept)


def _planned(
    kept: KeptPlan[ConvPlan] | None, spec: ConvSpec, constants: Constants, options: PlanOptions
) -> KeptPlan[ConvPlan]:
    """A plan with these constants; `kept` is one with others, if there is any."""
    layer = layer_sizes(spec, options, constants.w.ctypes.data)
    copied = layer.copied(constants)  # before packing: the next call notices a change
    if kept is not None and not kept.plan.shares:
        kept.plan.repack(*constants)
        return KeptPlan(kept.plan, copied)
    with working(str(spec)):
        found = layer.found(spec, constants, options)
        plan = ConvPlan(spec, constants, options, _outputs(), found)
    return KeptPlan(plan, copied, plan.packed if plan.shares else None)


def _of_no_images(spec: ConvSpec, x: np.ndarray, residual: np.ndarray | None) -> np.ndarray:
    """The output for arrays of a batch of 0; `spec` is that of one image."""
    (_, *size), (_, *kept) = spec.input_shape, spec.output_shape
    fitting_array("x", x, (0, *size), spec.precision.x)
    if residual is not None:
        fitting_array("residual", residual, (0, *kept), spec.precision.y)
    return np.empty((0, *kept), x.dtype)


@functools.cache
def _outputs() -> Outputs:
    """The memory of large results."""
    return Outputs()


@functools.cache
def _cache() -> PlanCache[KeptPlan[ConvPlan]]:
    """The plans that `conv2d` made."""
    return PlanCache(current_settings().plan_cache_bytes, keep_newest=False)
