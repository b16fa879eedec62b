"""Single nodes of all operations but chains: what they read, and their attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from leanconv.graph.ops.pointwise import Term
from leanconv.spec import Activation


def array(*shape: int, positive: bool = False) -> np.ndarray:
    """Random numbers that the shape decides."""
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return np.abs(made) + 0.1 if positive else made


WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
POOL = {"kernel_shape": (3, 2), "ceil_mode": False, "count_include_pad": False}
CONV = {**WINDOW, "group": 1, "activation": None}


def nodes() -> Iterator[tuple[Any, ...]]:
    """Operation, inputs, attributes; constants and the order of the operands where it matters."""
    image = array(2, 5, 3, 4)
    for op in ("Relu", "Sigmoid", "HardSwish", "Silu", "Tanh", "Exp", "Erf", "Neg", "Abs"):
        yield op, [image], {}
    for op in ("Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Asinh"):
        yield op, [image], {}
    for op in ("Asin", "Acos", "Atanh"):
        yield op, [np.tanh(image)], {}
    yield "Acosh", [1 + array(2, 5, 3, 4, positive=True)], {}
    for op in ("Reciprocal", "Softplus", "Sqrt", "Log"):
        yield op, [array(2, 5, 3, 4, positive=True)], {}
    yield "LeakyRelu", [array(3, 7)], {"alpha": 0.1}
    yield "Elu", [array(3, 7)], {"alpha": 1.5}
    yield "HardSigmoid", [array(3, 7)], {"alpha": 0.2, "beta": 0.4}
    yield "Gelu", [array(3, 7)], {"approximate": "none"}
    yield "Gelu", [array(3, 7)], {"approximate": "tanh"}
    yield "Clip", [array(3, 7)], {"min": -0.5, "max": float("inf")}
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        yield op, [image, array(5, 1, 1)], {}
    yield "Add", [array(4), image], {}
    terms = (("Sub", (0, 1)), ("Less", (2, 1)), ("Tanh", (2,)), ("Where", (3, 4, 0)))
    terms = tuple(Term(op, args, (), op) for op, args in terms)
    yield "Expression", [image, array(5, 1, 1)], {"terms": terms}
    yield "Pow", [array(3, 4, positive=True), array(3, 4)], {}
    yield "Pow", [array(3, 4), np.full((1,), 3.0, np.float32)], {}
    yield "PRelu", [array(2, 5, 3), array(5, 1)], {}
    whole = array(2, 5, 9, 8)
    for op in ("MaxPool", "AveragePool"):
        yield op, [whole], {**WINDOW, **POOL}
        yield op, [array(1, 9, 9, 8)], {**WINDOW, **POOL}  # enough channels for blocks
        cut = {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1)}
        cut |= {"kernel_shape": (3, 2), "ceil_mode": True, "count_include_pad": True}
        yield op, [whole], cut
        volume = {"strides": (2, 2, 1), "pads": (1, 1, 0, 1, 1, 0), "dilations": (1, 1, 1)}
        volume |= {"kernel_shape": (3, 3, 2), "ceil_mode": False, "count_include_pad": False}
        yield op, [array(2, 5, 4, 9, 8)], volume
    for axes in ((2, 3), (1,), (0,), (0, 2), (2,), ()):
        for keepdims in (False, True):
            yield "ReduceMean", [image], {"axes": axes, "keepdims": keepdims}
    for op in ("CumSum", "CumProd"):
        yield op, [image], {"axis": 1, "exclusive": False, "reverse": False}
        yield op, [image], {"axis": 3, "exclusive": True, "reverse": True}
    for op in (
        *("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"),
        *("ReduceL1", "ReduceSumSquare", "ReduceMeanSquare"),
    ):
        yield op, [array(2, 40, 3, 4)], {"axes": (1, 2), "keepdims": False}
    yield "Extremes", [array(2, 40, 3, 4)], {}
    yield "Softmax", [array(3, 17)], {"axis": 1}
    yield "Softmax", [image], {"axis": 1}
    yield "LogSoftmax", [array(3, 17)], {"axis": 0}
    for a, b in (((3, 4), (4, 5)), ((2, 3, 7, 4), (3, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,))):
        yield "MatMul", [array(*a), array(*b)], {}
    operands = [array(2, 3, 5, 8), array(2, 3, 8, 6), array(2, 3, 6, 4), array(5, 6)]
    yield "Attention", operands, {"scale": 0.3, "transposed": False}
    turned = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    yield "Gemm", [array(4, 3), array(5, 4), array(5)], turned
    yield "Gemm", [array(3, 4), array(4, 5)], {"transA": 0, "transB": 0, "alpha": 1, "beta": 1.0}
    yield "Reshape", [array(2, 6, 2)], {"shape": (4, 6)}
    yield "Expand", [array(3, 1)], {"shape": (2, 3, 4)}
    for perm in ((0, 2, 3, 1), (3, 1, 0, 2), (0, 3, 1, 2)):
        yield "Transpose", [array(2, 3, 4, 5)], {"perm": perm}
    yield "Concat", [array(2, 3, 4), array(2, 1, 4)], {"axis": 1}
    yield "Slice", [array(5, 7, 4)], {"starts": (4, 1, 0), "steps": (-2, 3, 1), "sizes": (3, 2, 4)}
    for mode, pads in (("constant", (0, 1, 2, 1, 0, 3)), ("edge", (0, 1, 2, 1, 0, 3))):
        yield "Pad", [array(2, 3, 4)], {"pads": pads, "mode": mode, "value": 1.5}
    yield "Pad", [array(2, 3, 4)], {"pads": (0, 1, 2, 0, 0, 3), "mode": "reflect", "value": 0.0}
    size = {"sizes": (1, 2, 7, 9), "scales": (1.0, 1.0, 1.75, 1.8), "nearest_mode": "floor"}
    for mode, place in (("nearest", "asymmetric"), ("linear", "half_pixel")):
        kind = {"mode": mode, "coordinate_transformation_mode": place}
        yield "Resize", [array(1, 2, 4, 5)], {**size, **kind}
    kept = {"mode": "cubic", "cubic_coeff_a": -0.75, "exclude_outside": False}
    kept |= {"coordinate_transformation_mode": "half_pixel"}
    for axis, size, antialias in ((2, 7, False), (3, 2, True), (0, 3, False)):
        part = {"axes": (axis,), "sizes": (size,), "scales": (size / (2, 5, 4, 5)[axis],)}
        whole = {**kept, **part, "rois": ((0.0, 1.0),), "antialias": antialias}
        yield "Resample", [array(2, 5, 4, 5)], whole
    part = {"axes": (2, 3), "sizes": (7, 3), "scales": (1.75, 0.6), "rois": ((0.0, 1.0),) * 2}
    yield "Resample", [array(2, 5, 4, 5)], {**kept, **part, "antialias": False}
    yield "LRN", [array(2, 7, 3, 3)], {"size": 5, "alpha": 0.1, "beta": 0.75, "bias": 1.0}
    planes = {"s": array(5, 1, 1), "b": array(1, 5, 1, 1)}
    yield "Normalise", [image], {"first": 2, "epsilon": 1e-5, "centred": True}, planes
    lines = {"s": array(3, 4), "b": array(1)}
    yield "Normalise", [image], {"first": 2, "epsilon": 1e-3, "centred": True}, lines
    yield "Normalise", [image], {"first": 0, "epsilon": 1e-5, "centred": True}
    yield "Normalise", [image], {"first": 2, "epsilon": 1e-5, "centred": False}
    norm = {"s": array(5), "b": array(5), "m": array(5), "v": array(5, positive=True)}
    yield "BatchNormalization", [image], {"epsilon": 1e-5}, norm
    weights = {"w": array(8, 5, 3, 3), "b": array(8)}
    yield "Conv", [array(2, 5, 6, 7)], CONV, weights
    yield "Conv", [array(2, 5, 6, 7), array(2, 8, 6, 7)], CONV, weights, ("x0", "w", "b", "x1")
    volume = {"strides": (1, 2, 1), "pads": (1, 0, 1, 0, 1, 1), "dilations": (1, 1, 1)}
    volume |= {"group": 1, "activation": None}
    yield "Conv", [array(1, 3, 4, 5, 4)], volume, {"w": array(6, 3, 2, 3, 2), "b": array(6)}
    up = {"strides": (2, 3), "pads": (1, 0, 1, 1), "dilations": (1, 2), "group": 2}
    up |= {"activation": Activation("relu"), "output_padding": (1, 0)}
    yield "ConvTranspose", [array(2, 4, 5, 6)], up, {"w": array(4, 3, 3, 2), "b": array(6)}
    line = {"strides": (2,), "pads": (1, 0), "dilations": (1,), "group": 1, "activation": None}
    yield (
        "ConvTranspose",
        [array(2, 4, 5)],
        {**line, "output_padding": (1,)},
        {"w": array(4, 3, 3)},
    )
    block = {"strides": (2, 3, 1), "pads": (1, 0, 1, 0, 1, 1), "dilations": (1, 1, 2)}
    block |= {"group": 2, "activation": Activation("relu"), "output_padding": (0, 1, 0)}
    yield (
        "ConvTranspose",
        [array(2, 4, 3, 2, 4)],
        block,
        {"w": array(4, 3, 3, 2, 2), "b": array(6)},
    )
    same = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    same |= {"activation": None, "output_padding": (0, 0)}
    yield "ConvTranspose", [array(1, 4, 5, 6)], same, {"w": array(4, 3, 3, 3)}
