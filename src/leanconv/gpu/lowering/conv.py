"""Convolution on a GPU: the algorithms, the choice, and the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from leanconv.algorithms.parameters import Parameters, one_of, parameter, parse_choice
from leanconv.errors import SpecError
from leanconv.gpu.lowering.conv_problem import ConvProblem, Epilogue, Lowered, joined
from leanconv.gpu.lowering.depthwise import (
    DepthwiseParameters,
    fused_rejects,
    lower_depthwise,
    lower_fused,
)
from leanconv.gpu.lowering.gemm import Product, best_blocking, lower_product
from leanconv.gpu.lowering.lowering_context import Handlers, LoweringContext
from leanconv.gpu.lowering.patches import (
    TAPS,
    WINDOWS,
    best_patching,
    lower_patches,
    patches_reject,
)
from leanconv.gpu.lowering.pointwise import (
    best_boxing,
    best_slicing,
    boxes_reject,
    lower_pointwise,
    slices_reject,
)
from leanconv.gpu.lowering.unfold_methods import (
    Im2winParameters,
    MecParameters,
    lower_im2col,
    lower_im2win,
    lower_mec,
)
from leanconv.gpu.lowering.windows import at_least_2d, conv_windows
from leanconv.gpu.lowering.winograd import WinogradParameters, lower_winograd, winograd_rejects
from leanconv.gpu.machine import Machine
from leanconv.graph.ir import Node
from leanconv.graph.ops.algebra import batch_norm_affine
from leanconv.graph.ops.chain import stage_inputs
from leanconv.operators.conv_node import attributes_spec
from leanconv.records import dataclass, replace
from leanconv.spec import NHWC, ConvSpec

P = TypeVar("P", bound=Parameters)
HANDLERS = Handlers()
_STEP = 32  # elements of k by which windows are laid


@dataclass(frozen=True)
class DeviceAlgorithm(Generic[P]):
    """One way to convolve.

    Attributes:
        name: as on the CPU.
        reject: gives the reason, beside the rank, why it cannot compute a problem, or None.
        parameters: the record of those that may go with it, such as `solution` in `mec:solution=B`.
        make: the launches, given weights (K, C/g, kh, kw) and parameters; see `lower`.
        automatic: whether it is considered where the user asks for none.
        has_depth: whether it knows three spatial axes.
    """

    name: str
    parameters: type[P]
    reject: Callable[[ConvProblem], str | None]
    make: Callable[[ConvProblem, np.ndarray, Machine, P], Lowered]
    automatic: bool = False
    has_depth: bool = False

    def rejects(self, problem: ConvProblem) -> str | None:
        """A reason why it cannot compute a problem, or None."""
        if len(problem.spec.size) > 2 and not self.has_depth:
            return "three spatial axes; expected one or two"
        return self.reject(problem)

    def lower(
        self, problem: ConvProblem, w: np.ndarray, machine: Machine, given: Parameters | None = None
    ) -> Lowered:
        """The launches with the parameters that are given."""
        given = self.parameters() if given is None else given
        assert isinstance(given, self.parameters)
        return self.make(problem, w, machine, given)


def _no_reason(problem: ConvProblem) -> str | None:
    del problem
    return None


@dataclass(frozen=True)
class DirectParameters(Parameters):
    """The way in which tiles of the input are loaded; see `lower_direct`."""

    loads: str | None = parameter(one_of("tma", TAPS, WINDOWS, "boxes", "pointers", "slices"))


def lower_direct(
    problem: ConvProblem, w: np.ndarray, machine: Machine, parameters: DirectParameters
) -> Lowered:
    """Implicit GEMM over windows read in place, by pointers or by bulk tensor copies (`loads`).

    `loads=tma` takes the tensor map that is expected to be faster, `taps` and `windows` name one:
    each tap a patch of the input, or the input as an overlapping view of its windows.
    `loads=boxes` copies rows of both operands: 1x1 convolutions in float16, bfloat16 or tf32.
    `loads=slices` shares k among the warps of a program: matrix products of few rows.
    """
    spec, loads = problem.spec, parameters.loads
    windows = conv_windows(spec, _STEP)
    columns = spec.out_channels // spec.groups
    segments = np.moveaxis(w, 1, -1).reshape(spec.out_channels, windows.segments, windows.length)
    product = Product(
        windows, columns, problem.dtype, problem.x, problem.y, problem.epilogue, problem.name
    )
    finite = bool(np.isfinite(w).all())
    sliced = loads == "slices" or (loads is None and not problem.lean)
    slicing = best_slicing(problem, machine, finite) if sliced else None
    if loads == "slices":
        if slicing is None:
            reason = slices_reject(problem) or "no arithmetic that is allowed"
            raise SpecError(f"loads is {loads!r} for {spec}: {reason}; leave loads out")
        return lower_pointwise(problem, w, slicing)
    boxed = loads == "boxes" or (loads is None and not problem.lean)
    boxing = best_boxing(problem, machine) if boxed else None
    if loads == "boxes":
        if boxing is None:
            refused = boxes_reject(problem, machine)
            raise SpecError(f"loads is {loads!r} for {spec}: {refused}; leave loads out")
        return lower_pointwise(problem, w, boxing)
    if loads != "pointers" and (loads or not problem.lean):
        forms = tuple(form for form in (WINDOWS, TAPS) if loads in (None, "tma", form))
        patching = best_patching(problem, machine, finite, forms)
        if loads and patching is None:
            reasons = dict.fromkeys(
                patches_reject(problem, machine, form) for form in reversed(forms)
            )
            shown = "; ".join(r or "the weights are not finite" for r in reasons)
            raise SpecError(f"loads is {loads!r} for {spec}: {shown}; leave loads out")
        other, _ = best_blocking(product, finite, problem.arithmetics, machine)
        least = min(other.estimate_s, patching.estimate_s if patching else other.estimate_s)
        if boxing and boxing.estimate_s < min(least, slicing.estimate_s if slicing else least):
            return lower_pointwise(problem, w, boxing)
        if slicing and slicing.estimate_s < least:
            return lower_pointwise(problem, w, slicing)
        if patching and (loads or patching.estimate_s < other.estimate_s):
            return lower_patches(problem, w, patching)
    return lower_product(
        product, segments, problem.arithmetics, machine, "direct", lean=problem.lean
    )


def _depthwise_rejects(problem: ConvProblem) -> str | None:
    spec = problem.spec
    if spec.in_channels != spec.groups:
        return (
            f"groups is {spec.groups}; expected one group for each of {spec.in_channels} channels"
        )
    return None


def _unfold_rejects(problem: ConvProblem) -> str | None:
    if problem.spec.groups > 1:
        return f"groups is {problem.spec.groups}; expected 1"
    return None


def _mec_rejects(problem: ConvProblem) -> str | None:
    if problem.spec.dilation[0] > 1 and problem.spec.kernel[0] > 1:
        return "the kernel is dilated along h, so that no window is contiguous"
    return _unfold_rejects(problem)


def _im2win_rejects(problem: ConvProblem) -> str | None:
    if problem.spec.dilation[1] > 1 and problem.spec.kernel[1] > 1:
        return "the kernel is dilated along w, so that no window is contiguous"
    return _unfold_rejects(problem)


DEVICE_ALGORITHMS: tuple[DeviceAlgorithm[Any], ...] = (
    DeviceAlgorithm(
        "depthwise", DepthwiseParameters, _depthwise_rejects, lower_depthwise, automatic=True
    ),
    DeviceAlgorithm(
        "direct", DirectParameters, _no_reason, lower_direct, automatic=True, has_depth=True
    ),
    DeviceAlgorithm("winograd", WinogradParameters, winograd_rejects, lower_winograd),
    DeviceAlgorithm("im2col", Parameters, _unfold_rejects, lower_im2col),
    DeviceAlgorithm("mec", MecParameters, _mec_rejects, lower_mec),
    DeviceAlgorithm("im2win", Im2winParameters, _im2win_rejects, lower_im2win),
)
_BY_NAME = {algorithm.name: algorithm for algorithm in DEVICE_ALGORITHMS}


def choose_algorithm(
    problem: ConvProblem, w: np.ndarray, machine: Machine, algorithm: str | None = None
) -> Lowered:
    """The launches of the algorithm that is named, or of the one with the least estimated time.

    Raises:
        SpecError: there is no such algorithm or parameter, or it rejects the problem.
    """
    if algorithm is None:
        possible = [a for a in DEVICE_ALGORITHMS if a.automatic and a.rejects(problem) is None]
        made = [a.lower(problem, w, machine) for a in possible]
        return min(made, key=lambda lowered: lowered.estimate_s)
    known = {name: each.parameters for name, each in _BY_NAME.items()}
    choice = parse_choice(algorithm, known, " on this device")
    chosen = _BY_NAME[choice.algorithm]
    reason = chosen.rejects(problem)
    if reason:
        raise SpecError(f"algorithm {chosen.name!r} cannot compute {problem.spec}: {reason}")
    return chosen.lower(problem, w, machine, choice.parameters)


def _plane_spec(
    context: LoweringContext,
    x_shape: tuple[int, ...],
    w: np.ndarray,
    attributes: Mapping[str, Any],
    bias: bool,
    residual: bool,
) -> ConvSpec:
    """The spec of a convolution of a graph, with two or three spatial axes."""
    spec = attributes_spec(
        x_shape,
        w.shape,
        attributes,
        context.dtype,
        bias=bias,
        residual=residual,
        activation=attributes["activation"],
    )
    return at_least_2d(replace(spec, layout="NHWC"))


def _channels(context: LoweringContext, node: Node, index: int, role: str) -> str:
    """The buffer of a bias or slope, which must be constant."""
    array = context.given(node, index)
    return "" if array is None else context.constant(f"{node.output}/{role}", array)


@HANDLERS.of("Conv")
def lower_conv(context: LoweringContext, node: Node) -> None:
    """Lower a Conv to the algorithm that is expected to be fastest."""
    w = context.given(node, 1)
    assert w is not None
    x_shape, residual = context.shape(node.inputs[0]), node.input(3)
    spec = _plane_spec(context, x_shape, w, node.attributes, bool(node.input(2)), bool(residual))
    epilogue = Epilogue(
        _channels(context, node, 2, "bias"),
        context.read(residual, NHWC),
        _channels(context, node, 4, "slope"),
        spec.activation,
    )
    x = context.read(node.inputs[0], NHWC)
    y = context.define(node.output, NHWC)
    problem = _problem(context, spec, x, y, epilogue, f"{y}/")
    context.add(node, choose_algorithm(problem, _spread(w), context.machine))


def _problem(
    context: LoweringContext, spec: ConvSpec, x: str, y: str, epilogue: Epilogue, name: str
) -> ConvProblem:
    """A convolution with the network's own dtype, arithmetic and aim."""
    name = context.fresh(name)
    return ConvProblem(spec, context.dtype, context.arithmetics, x, y, epilogue, name, context.lean)


def _spread(w: np.ndarray) -> np.ndarray:
    """Weights with two spatial axes at least."""
    return w[:, :, None] if w.ndim == 3 else w


@HANDLERS.of("ConvChain")
def lower_chain(context: LoweringContext, node: Node) -> None:
    """Lower a ConvChain: depthwise and 1x1 in one launch where that pays, the others one by one."""
    stages = node.attributes["stages"]
    x_shape = context.shape(node.inputs[0])
    x = context.read(node.inputs[0], NHWC)
    residual = context.read(node.input(1), NHWC)
    y = context.define(node.output, NHWC)
    problems, weights = [], []
    for number, stage in enumerate(stages):
        names = stage_inputs(node.inputs, number, "", stages)
        held = Node(node.op, tuple(n or "" for n in names), node.outputs, {}, node.name)
        w = context.given(held, 1)
        assert w is not None
        final = number == len(stages) - 1
        spec = _plane_spec(
            context, x_shape, w, stage.attributes, bool(names[2]), final and bool(residual)
        )
        bias = context.given(held, 2)
        bias_name = "" if bias is None else context.constant(f"{y}/bias{number}", bias)
        epilogue = Epilogue(bias_name, residual if final else "", "", spec.activation)
        size = prod(spec.output_shape) * context.dtype.bytes
        target = y if final else context.buffer(f"{y}/stage{number}", size)
        problems.append(_problem(context, spec, x, target, epilogue, f"{y}/{number}/"))
        weights.append(w)
        x, x_shape = target, (spec.batch, spec.out_channels, *spec.output_size)
    _add_chain(context, node, problems, weights)


def _add_chain(
    context: LoweringContext,
    node: Node,
    problems: list[ConvProblem],
    weights: list[np.ndarray],
) -> None:
    machine = context.machine
    depth, point = problems[-2:]
    parts = [choose_algorithm(t, w, machine) for t, w in zip(problems, weights, strict=True)]
    reason = fused_rejects(depth.spec, point.spec, context.dtype)
    if reason is None:
        fused_problem = replace(point, x=depth.x)
        if any(a.name != "fp16x3" for a in fused_problem.arithmetics):
            fused = lower_fused(
                fused_problem, depth.spec, weights[-2], depth.epilogue.bias, weights[-1], machine
            )
            alone = parts[-1].estimate_s + parts[-2].estimate_s
            if fused.estimate_s <= alone or context.lean:
                context.bytes.pop(depth.y, None)
                parts[-2:] = [fused]
    algorithm = ", ".join(part.algorithm for part in parts)
    arithmetic = ", ".join(part.arithmetic for part in parts)
    parameters = "; ".join(part.parameters for part in parts)
    context.add(node, joined(parts, algorithm, arithmetic, parameters))


@HANDLERS.of("BatchNormalization")
def lower_batch_norm(context: LoweringContext, node: Node) -> None:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, as a depthwise convolution of one tap."""
    arrays = [np.asarray(context.given(node, index), np.float64) for index in range(1, 5)]
    factor, summand = batch_norm_affine(arrays, node.attributes["epsilon"])
    shape = context.shape(node.inputs[0])
    attributes = {
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads": (0, 0, 0, 0),
        "group": shape[1],
        "activation": None,
    }
    flat = (shape[0], shape[1], 1, prod(shape[2:]))
    w = factor.reshape(-1, 1, 1, 1)
    spec = _plane_spec(context, flat, w, attributes, True, False)
    x = context.read(node.inputs[0], NHWC)
    y = context.define(node.output, NHWC)
    shift = context.constant(f"{y}/bias", summand)
    problem = _problem(context, spec, x, y, Epilogue(bias=shift), f"{y}/")
    context.add(node, choose_algorithm(problem, w, context.machine, "depthwise"))
