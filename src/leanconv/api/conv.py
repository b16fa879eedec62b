"""One convolution: planned once and run many times, or in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.api.borders import ZEROS, BorderedPlan, bordered
from leanconv.api.compiled_conv import planned_layer
from leanconv.api.conv_arguments import (
    Constants,
    any_constants,
    checked_layer,
    checked_transposed_spec,
    fitting_array,
    given_array,
    holds_codes,
    lacks_batch,
)
from leanconv.api.kept_plans import KnownCalls, Layer, memory_of
from leanconv.api.layer_plan import LayerPlan, LayerSpec
from leanconv.api.options import PlanOptions, checked_flag, checked_precision
from leanconv.errors import SpecError
from leanconv.half_arrays import numpy_dtype
from leanconv.progress import Progress, checked_progress, working
from leanconv.spec import Activation
from leanconv.spec.arguments import ConvArguments, Padding, Steps
from leanconv.spec.transposed import TransposedArguments
from leanconv.types import DType

if TYPE_CHECKING:
    from leanconv.gpu.backend import ConvPlan as DevicePlan


def plan_conv2d(
    x_shape: Sequence[int],
    w: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    activation: str | Activation | None = None,
    layout: str = "NCHW",
    algorithm: str | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    tune: bool = False,
    reproducible: bool = False,
    *,
    residual: bool = False,
    slope: np.ndarray | None = None,
    device: str = "cpu",
    precision: str | None = None,
    x_dtype: str | None = None,
    progress: Progress | None = None,
    padding_mode: str = "zeros",
    w_shape: Sequence[int] | None = None,
) -> LayerPlan | DevicePlan:
    """Plan one convolution: choose the algorithm, emit its code, pack its weights.

    y = activation(conv(x, w) + bias + residual). One, two and three spatial axes work alike:
    `plan_conv1d` and `plan_conv3d` are this function.

    Args:
        x_shape: (N, C, H, W), or (N, H, W, C) for layout "NHWC".
        w: weights (K, C / groups, kh, kw), float32 or float64, or float16 or bfloat16 (of the
            package ml_dtypes), whose sums are float32: the dtype of all arrays. Of int8 or uint8: x
            is of bytes, too, bias and y are int32, every sum exact. None where `w_shape` is given.
        bias: (K,), or None.
        stride, dilation: an int, or (h, w); dilation 1 is dense.
        padding: an int, (h, w), (top, left, bottom, right), "same" or "valid".
        groups: channel groups.
        activation: None, or a name with its parameters, such as "relu", "relu6", "clip:0:1",
            "leaky_relu:0.1", "prelu" or "gelu"; docs/operations.md has all of them.
        layout: "NCHW" or "NHWC", of input, residual and output.
        algorithm: the one to use; None takes the best.
        memory_limit: bytes, or text such as "1 MiB", for workspace and packed weights together.
        max_error: the largest relative error accepted: max|y - exact| / max|exact|.
        threads: threads that take part; by default the cores that this process may use.
        tune: measure the few choices that are estimated best, once, and take the fastest; what was
            measured is kept in the settings' cache folder for later processes. Progress is logged.
        reproducible: an image gives the same bits alone and within any batch, with any threads and
            memory limit: the algorithm, and those open parameters of it that change bits,
            are chosen as for one image without a limit; where these do not fit a limit, no others
            are taken. With `tune` one image is measured, on one thread, and other plans give the
            same bits as long as the cache folder keeps what was measured.
            (Without it, one plan gives the same bits with any threads, run after run.)
        residual: whether each run is given a tensor of y's shape to add.
        slope: (K,), the slopes of "prelu".
        device: "cpu", or "cuda" or "cuda:1" for a GPU, whose arrays come and go through DLPack.
        precision: "float16" or "bfloat16" keeps the weights of float32 arrays in that type; sums
            are float32. None: as the arrays are. On a GPU, how products are made: None is as
            accurate as the arrays' dtype; "ieee", "tf32x3" and "fp16x3" name a method, "tf32"
            accepts its 10 bits.
        x_dtype: "uint8" (None) or "int8", of x where w is of integers; else that of w. Where
            `w_shape` is given, the float type of all arrays, "float32" by default.
        progress: a function of (stage, done, total), called while this plans, as by `load`.
        padding_mode: the contents of padding: "zeros"; "reflect" (dcb|abcd|cba, as OpenCV
            by default), "replicate" (aaa|abcd|ddd) or "circular" (bcd|abcd|abc), as PyTorch has
            them; "symmetric" (cba|abcd|dcb, SciPy's "reflect"). All but zeros copy the image first,
            into memory that is counted, and plan its convolution without padding.
        w_shape: of weights, floats, that come with each run, as `plan(x, w)` or `plan(x, w, bias)`,
            with `slope=` where the activation takes it. The run packs them, which counts as part of
            its time where the algorithm is chosen. Give neither `w` nor `padding_mode` then.

    Returns:
        The plan; call it with x. A `LayerPlan` on the CPU.

    Raises:
        SpecError: the arguments describe no convolution, or the algorithm rejects it; or `tune` and
            `reproducible` are given together while no cache is allowed.
        InputError: w, bias or slope is no array of the dtype and shape expected.
        BudgetError: the plan does not keep the memory limit or the error.
    """
    options = PlanOptions.checked(algorithm, memory_limit, max_error, threads, tune, reproducible)
    arguments = ConvArguments(stride, padding, dilation, groups, activation, layout)
    residual = checked_flag("residual", residual)
    constants = Constants(w, bias, slope)  # type: ignore[arg-type]  # no w is refused
    checked_progress(progress)
    if w_shape is not None:
        if device != "cpu" or padding_mode != ZEROS:
            raise SpecError("got w_shape with device or padding_mode; expected w")
        constants = any_constants(w_shape, constants, x_dtype, activation)
        options = options._replace(packs=True)
    w, border = constants.w, None
    if padding_mode != ZEROS:
        border, arguments = bordered(x_shape, w, arguments, padding_mode, device)
    if device != "cpu":
        from leanconv.gpu import backend

        backend.check_options(**options.of_cpu)
        with working("convolution", progress):
            return backend.plan_conv(
                device, precision, x_shape, constants, arguments, residual, options.limits
            )
    options = options._replace(precision=checked_precision(precision))
    given = constants, arguments, residual, x_dtype, progress
    if border is None:
        return cpu_plan(x_shape, *given, options)
    return border.within(
        options, lambda left: BorderedPlan(cpu_plan(border.shape, *given, left), border)
    )


def cpu_plan(
    x_shape: Sequence[int],
    constants: Constants,
    arguments: ConvArguments,
    residual: bool,
    x_dtype: str | None,
    progress: Progress | None,
    options: PlanOptions,
) -> LayerPlan:
    """`plan_conv2d` on the CPU, of images with zeros around them."""
    spec = checked_layer(x_shape, x_dtype, constants, arguments, residual, options)
    with working(str(spec), progress):
        return planned_layer(spec, constants, options)


def plan_conv_transpose2d(
    x_shape: Sequence[int],
    w: np.ndarray | None = None,
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
    w_shape: Sequence[int] | None = None,
    x_dtype: str | None = None,
) -> LayerPlan:
    """Plan one transposed convolution: choose the algorithm, emit its code, pack its weights.

    It is computed as ordinary convolutions, one for each phase of the output modulo the stride, or
    one for all phases. One, two and three spatial axes work alike: `plan_conv_transpose1d` and
    `plan_conv_transpose3d` are this function, as `conv_transpose3d` is `conv_transpose2d`.

    Args:
        x_shape: (N, C, H, W).
        w: weights (C, K / groups, kh, kw), float32 or float64: the dtype of everything.
        bias: (K,), or None.
        stride, dilation: an int, or (h, w); dilation 1 is dense.
        padding: pixels cut off the output: an int, (h, w), or (top, left, bottom, right).
        output_padding: rows and columns added at the end: an int, or (h, w), less than
            stride or dilation.
        groups: channel groups.
        memory_limit, max_error, threads, reproducible, progress, w_shape: as in `plan_conv2d`.
        x_dtype: of all arrays where `w_shape` is given.

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
    constants = Constants(w, bias)  # type: ignore[arg-type]  # no w is refused
    if w_shape is not None:
        constants = any_constants(w_shape, constants, x_dtype, None, groups)
        options = options._replace(packs=True)
    spec = checked_transposed_spec(x_shape, constants, arguments)
    with working(str(spec), checked_progress(progress)):
        return planned_layer(spec, constants, options)


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
    given = constants.w.ctypes.data, memory_of(constants), lambda: constants
    y = layer.run(lambda plan: plan(x, None, residual), *given)
    return y, layer


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
    lies = constants.w.ctypes.data, memory_of(constants), lambda: constants
    y = layer.run(lambda plan: plan(x), *lies)
    _known.add(layer, given, x, None, constants)
    return y


_known = KnownCalls()
