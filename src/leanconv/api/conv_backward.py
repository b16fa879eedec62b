"""Gradients of a convolution: planned once and run many times, or in one call."""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from leanconv.api.conv_arguments import fitting_array, given_array, weight_dtype
from leanconv.api.gradient_graph import NEEDS, NODES, RESULTS, GradientSpec
from leanconv.api.gradient_plan import GradientPlan, Gradients
from leanconv.api.kept_plans import MOST_LAYERS, sizeless
from leanconv.api.options import PlanOptions
from leanconv.api.plan_cache import PlanCache
from leanconv.errors import BudgetError, SpecError, short
from leanconv.half_arrays import numpy_dtype
from leanconv.progress import Progress, checked_progress, working
from leanconv.settings import current_settings
from leanconv.spec.arguments import ConvArguments, Padding, Steps, spec_of
from leanconv.spec.transposed import TransposedArguments, transposed_spec
from leanconv.types import FLOAT32, FLOATS, HALVES, DType

_TAKEN = (*FLOATS, *HALVES)
# Of a plan that is kept: the algorithms by what needs them.
Key: TypeAlias = tuple[GradientSpec, PlanOptions, tuple[tuple[str, str], ...]]


def plan_conv2d_backward(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    layout: str = "NCHW",
    *,
    needs: Collection[str] = NEEDS,
    dtype: str = FLOAT32,
    algorithm: str | Mapping[str, str] | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
    progress: Progress | None = None,
) -> GradientPlan:
    """Plan the gradients of y = conv2d(x, w, bias): by x, by w, by the bias.

        dx[n, c, i] = sum of dy[n, k, o] w[k, c, t]    over o · stride + t · dilation - padding = i
        dw[k, c, t] = sum of dy[n, k, o] x[n, c, o · stride + t · dilation - padding]
        db[k]       = sum of dy[n, k, o]

    One, two and three spatial axes work alike: `plan_conv1d_backward` and `plan_conv3d_backward`
    are this function.

    Args:
        x_shape: (N, C, H, W), or (N, H, W, C) for layout "NHWC".
        w_shape: (K, C / groups, kh, kw).
        stride, padding, dilation, groups, layout: as `plan_conv2d` has them.
        needs: which gradients are computed: some of "x", "w" and "bias".
        dtype: of all arrays: "float32", "float64", "float16" or "bfloat16" (of the package
            ml_dtypes); sums of halves are float32, and each gradient is rounded once.
        algorithm: the one to use for all gradients that have one, or a mapping from "x" and "w" to
            theirs; None takes the best.
        memory_limit: bytes, or text such as "1 MiB", for the workspace.
        max_error: the largest relative error accepted of each: max|dw - exact| / max|exact|.
        threads: threads that take part; by default the cores that this process may use.
        reproducible: the memory limit changes no bits, and within one the number of threads changes
            none, either; where what is fastest without a limit does not fit, nothing else is taken.
            (Without a limit the number of threads never changes any.)
        progress: a function of (stage, done, total), called while this plans, as by `load`.

    Returns:
        The plan; call it with x, w and dy.

    Raises:
        SpecError: the arguments describe no convolution, or an algorithm rejects it.
        BudgetError: the plan does not keep the memory limit or the error.
    """
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    arguments = ConvArguments(stride, padding, dilation, groups, None, layout)
    spec = gradient_spec(x_shape, w_shape, arguments, needs, _dtype(dtype))
    with working(str(spec), checked_progress(progress)):
        return GradientPlan(spec, options, _algorithms(algorithm, spec.needs))


def plan_conv_transpose2d_backward(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    stride: Steps = 1,
    padding: Padding = 0,
    output_padding: Steps = 0,
    groups: int = 1,
    dilation: Steps = 1,
    *,
    needs: Collection[str] = NEEDS,
    dtype: str = FLOAT32,
    algorithm: str | Mapping[str, str] | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
    progress: Progress | None = None,
) -> GradientPlan:
    """Plan the gradients of y = conv_transpose2d(x, w, bias): by x, by w, by the bias.

    One, two and three spatial axes work alike.

    Args:
        x_shape: (N, C, H, W).
        w_shape: (C, K / groups, kh, kw).
        stride, padding, output_padding, groups, dilation: as `plan_conv_transpose2d` has them.
        needs, dtype, algorithm, memory_limit, max_error, threads, reproducible, progress: as
            `plan_conv2d_backward` has them.

    Returns:
        The plan; call it with x, w and dy.

    Raises:
        SpecError: the arguments describe no transposed convolution, or an algorithm rejects it.
        BudgetError: the plan does not keep the memory limit or the error.
    """
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    arguments = TransposedArguments(stride, padding, output_padding, groups, dilation)
    spec = gradient_spec(x_shape, w_shape, arguments, needs, _dtype(dtype))
    with working(str(spec), checked_progress(progress)):
        return GradientPlan(spec, options, _algorithms(algorithm, spec.needs))


def conv2d_backward(
    x: np.ndarray,
    w: np.ndarray,
    dy: np.ndarray,
    stride: Steps = 1,
    padding: Padding = 0,
    dilation: Steps = 1,
    groups: int = 1,
    layout: str = "NCHW",
    *,
    needs: Collection[str] = NEEDS,
    algorithm: str | Mapping[str, str] | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
) -> Gradients:
    """The gradients of y = conv2d(x, w, bias): `plan_conv2d_backward` and one run.

    Plans are kept in a cache of bounded size.

    Args:
        x: the input of the convolution, of a type that `plan_conv2d_backward` has.
        w: its weights (K, C / groups, kh, kw), of x's dtype.
        dy: the gradient by y, of its shape.
        stride, padding, dilation, groups, layout, needs, algorithm, memory_limit, max_error,
            threads, reproducible: as `plan_conv2d_backward` has them.

    Returns:
        `Gradients(dx, dw, db)`, new arrays in the layout of x; None for what is not needed.

    Raises:
        SpecError, InputError, BudgetError: as `plan_conv2d_backward` and `GradientPlan` do.
    """
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    arguments = ConvArguments(stride, padding, dilation, groups, None, layout)
    return _computed(x, w, dy, arguments, needs, algorithm, options)


def conv_transpose2d_backward(
    x: np.ndarray,
    w: np.ndarray,
    dy: np.ndarray,
    stride: Steps = 1,
    padding: Padding = 0,
    output_padding: Steps = 0,
    groups: int = 1,
    dilation: Steps = 1,
    *,
    needs: Collection[str] = NEEDS,
    algorithm: str | Mapping[str, str] | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    threads: int | None = None,
    reproducible: bool = False,
) -> Gradients:
    """The gradients of y = conv_transpose2d(x, w, bias); plans are kept in a bounded cache.

    Args:
        x, w, dy: the input, the weights (C, K / groups, kh, kw), and the gradient by y.
        stride, padding, output_padding, groups, dilation, needs, algorithm, memory_limit,
            max_error, threads, reproducible: as `plan_conv_transpose2d_backward` has them.

    Returns:
        `Gradients(dx, dw, db)`, new arrays; None for what is not needed.

    Raises:
        SpecError, InputError, BudgetError: as `plan_conv_transpose2d_backward` and
            `GradientPlan` do.
    """
    options = PlanOptions.checked(None, memory_limit, max_error, threads, False, reproducible)
    arguments = TransposedArguments(stride, padding, output_padding, groups, dilation)
    return _computed(x, w, dy, arguments, needs, algorithm, options)


# -- arguments -----------------------------------------------------------------------------------
def gradient_spec(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    arguments: ConvArguments | TransposedArguments,
    needs: Collection[str],
    dtype: DType,
) -> GradientSpec:
    """The gradients that are asked for.

    Raises:
        SpecError: the arguments describe no convolution.
    """
    checked = _needs(needs)
    if isinstance(arguments, TransposedArguments):
        return GradientSpec(transposed_spec(x_shape, w_shape, arguments, dtype), checked)
    return GradientSpec(spec_of(x_shape, w_shape, arguments, dtype), checked)


def _needs(needs: Collection[str]) -> tuple[str, ...]:
    given = [needs] if isinstance(needs, str) or not isinstance(needs, Collection) else list(needs)
    if not given or any(each not in NEEDS for each in given):
        raise SpecError(
            f"needs is {short(needs)}; expected some of {', '.join(NEEDS)}, whose gradients are "
            f"{', '.join(RESULTS.values())}"
        )
    return tuple(each for each in NEEDS if each in given)


def _dtype(dtype: object) -> DType:
    name = dtype if isinstance(dtype, str | np.dtype) else getattr(dtype, "__name__", dtype)
    found = next((each for each in _TAKEN if each == name), None)
    if found is None:
        raise SpecError(f"dtype is {short(dtype)}; expected one of {', '.join(_TAKEN)}")
    return found


def _algorithms(algorithm: str | Mapping[str, str] | None, needs: Sequence[str]) -> dict[str, str]:
    """The algorithms that are asked for, by what needs them."""
    if algorithm is None:
        return {}
    if isinstance(algorithm, str):
        return {each: algorithm for each in needs if each in NODES}
    named = algorithm if isinstance(algorithm, Mapping) else {"": algorithm}
    if any(n not in NODES or not isinstance(text, str) for n, text in named.items()):
        raise SpecError(
            f"algorithm is {short(algorithm)}; expected a name, or a mapping from "
            f"{' and '.join(NODES)} to names"
        )
    return {each: text for each, text in named.items() if each in needs}


# -- one call ------------------------------------------------------------------------------------
def _computed(
    x: np.ndarray,
    w: np.ndarray,
    dy: np.ndarray,
    arguments: ConvArguments | TransposedArguments,
    needs: Collection[str],
    algorithm: str | Mapping[str, str] | None,
    options: PlanOptions,
) -> Gradients:
    dtype, x = weight_dtype(w, _TAKEN), given_array(x, w)
    no_images = x.shape[:1] == (0,)
    shape = (1, *x.shape[1:]) if no_images else x.shape
    spec = gradient_spec(shape, w.shape, arguments, needs, dtype)
    if no_images:
        return _of_no_images(spec, x, dy)
    key = spec, options, tuple(sorted(_algorithms(algorithm, spec.needs).items()))
    plan = _plans().get(key)
    if plan is None:
        given = {"x": x, "w": w, "dy": dy}
        for name in spec.reads:  # before a plan is made for them
            fitting_array(name, given[name], spec.shapes[name], dtype)
        plan = _kept(key)
    return plan(x, w, dy)


def _of_no_images(spec: GradientSpec, x: np.ndarray, dy: np.ndarray) -> Gradients:
    """Gradients for a batch of 0: no dx, and sums of nothing; `spec` is that of one image."""
    shapes, kind = spec.shapes, numpy_dtype(spec.dtype)
    fitting_array("x", x, (0, *shapes["x"][1:]), spec.dtype)
    fitting_array("dy", dy, (0, *shapes["dy"][1:]), spec.dtype)
    results: dict[str, Any] = {name: np.zeros(shapes[name], kind) for name in spec.results}
    if "dx" in results:
        results["dx"] = np.empty(x.shape, kind)
    return Gradients(*(results.get(name) for name in Gradients._fields))


@functools.cache
def _plans() -> PlanCache[GradientPlan]:
    return PlanCache(current_settings().plan_cache_bytes, keep_newest=False)


class _Sizes:
    """What the sizes of a layer have in common.

    Attributes:
        first: the one that came first, whose plan is made for it alone.
        choices: how all others are computed, by what needs them: as the second size was chosen.
    """

    def __init__(self) -> None:
        self.first: GradientSpec | None = None
        self.choices: dict[str, str] = {}

    def plan(
        self, spec: GradientSpec, options: PlanOptions, algorithms: Mapping[str, str]
    ) -> GradientPlan:
        """Plan a size: the first for itself, others with choices and code that serve all of them.

        Raises:
            BudgetError: the limits are not kept.
            SpecError: an algorithm does not compute its gradient.
        """
        self.first = self.first or spec
        if self.first == spec or options.reproducible:
            return GradientPlan(spec, options, algorithms)
        try:
            plan = GradientPlan(spec, options, {**self.choices, **algorithms}, any_size=True)
        except (BudgetError, SpecError):
            if not self.choices:
                raise
            plan = GradientPlan(spec, options, algorithms, any_size=True)
        self.choices = self.choices or {
            need: str(part.choice) for part in plan.parts for need in part.needs if need in NODES
        }
        return plan


@functools.lru_cache(MOST_LAYERS)
def _sizes(*layer: Hashable) -> _Sizes:
    del layer
    return _Sizes()


def gradient_plan(
    spec: GradientSpec, options: PlanOptions, algorithms: Sequence[tuple[str, str]] = ()
) -> GradientPlan:
    """A new plan, which has its code in common with those of other sizes of the layer."""
    lies = spec.taps_first, spec.transposed_last
    limits = options._replace(threads=None)  # how many take part decides on no bits
    sizes = _sizes(sizeless(spec.layer), spec.needs, lies, limits, algorithms)
    with working(str(spec)):
        return sizes.plan(spec, options, dict(algorithms))


def _kept(key: Key) -> GradientPlan:
    """A new plan, which later calls take."""
    spec, options, algorithms = key
    plan = gradient_plan(spec, options, algorithms)
    _plans().put(key, plan, plan.weight_bytes, working_bytes=plan.workspace_bytes)
    return plan
