"""Conv, ConvChain and BatchNormalization of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from leanconv.gpu.lowering.conv import choose_algorithm
from leanconv.gpu.lowering.conv_problem import ConvProblem
from leanconv.gpu.lowering.depthwise import fused_rejects, lower_fused
from leanconv.gpu.lowering.gemm import Epilogue
from leanconv.gpu.lowering.lowered import joined
from leanconv.gpu.lowering.lowering_context import LoweringContext
from leanconv.gpu.lowering.windows import at_least_2d
from leanconv.graph.ir import Node
from leanconv.graph.ops.chain import stage_inputs
from leanconv.operators.conv_node import attributes_spec
from leanconv.spec import NHWC, ConvSpec


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


def lower_batch_norm(context: LoweringContext, node: Node) -> None:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, as a depthwise convolution of one tap."""
    arrays = [context.given(node, index) for index in range(1, 5)]
    scale, bias, mean, variance = (np.asarray(a, np.float64) for a in arrays)
    factor = scale / np.sqrt(variance + node.attributes["epsilon"])
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
    shift = context.constant(f"{y}/bias", bias - mean * factor)
    problem = _problem(context, spec, x, y, Epilogue(bias=shift), f"{y}/")
    context.add(node, choose_algorithm(problem, w, context.machine, "depthwise"))


HANDLERS = {
    "Conv": lower_conv,
    "ConvChain": lower_chain,
    "BatchNormalization": lower_batch_norm,
}
