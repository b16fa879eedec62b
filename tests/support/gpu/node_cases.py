"""Single nodes on a device, each lowered as a network of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from leanconv.gpu.compiled_network import CompiledDeviceNetwork
from leanconv.graph.ops import evaluate
from leanconv.spec import Activation
from support.errors import relative_error
from support.gpu.stand import Case, Row, Stand
from support.nodes import one_node


def _array(*shape: int, positive: bool = False) -> np.ndarray:
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return np.abs(made) + 0.1 if positive else made


def node(
    stand: Stand,
    op: str,
    inputs: Sequence[np.ndarray],
    constants: Mapping[str, np.ndarray],
    order: Sequence[str],
    attributes: Mapping[str, Any],
) -> Row:
    """Lower one node as a network of its own, and compare it with NumPy in float64."""
    given = {f"x{number}": array for number, array in enumerate(inputs)}
    names = tuple(order) or (*given, *constants)
    made, graph = one_node(op, given, constants, names, attributes)
    del made
    network = CompiledDeviceNetwork(graph, stand.driver, "float32", compile_code=stand.compile_code)
    (found,) = network.run(list(inputs))
    stand.check_guards()
    wide = [{**given, **constants}[name].astype(np.float64) for name in names]
    return {"error": relative_error(found, evaluate(op, wide, attributes)), "allowed": 2e-6}


WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
POOL = {"kernel_shape": (3, 2), "ceil_mode": False, "count_include_pad": False}
CONV = {**WINDOW, "group": 1, "activation": None}


def _nodes() -> Iterator[tuple[Any, ...]]:
    image = _array(2, 5, 3, 4)
    for op in ("Relu", "Sigmoid", "HardSwish", "Silu", "Tanh", "Exp", "Erf", "Neg", "Abs"):
        yield op, [image], {}
    for op in ("Reciprocal", "Softplus", "Sqrt", "Log"):
        yield op, [_array(2, 5, 3, 4, positive=True)], {}
    yield "LeakyRelu", [_array(3, 7)], {"alpha": 0.1}
    yield "Elu", [_array(3, 7)], {"alpha": 1.5}
    yield "HardSigmoid", [_array(3, 7)], {"alpha": 0.2, "beta": 0.4}
    yield "Gelu", [_array(3, 7)], {"approximate": "none"}
    yield "Gelu", [_array(3, 7)], {"approximate": "tanh"}
    yield "Clip", [_array(3, 7)], {"min": -0.5, "max": float("inf")}
    for op in ("Add", "Sub", "Mul", "Div", "Min", "Max"):
        yield op, [image, _array(5, 1, 1)], {}
    yield "Add", [_array(4), image], {}
    yield "Pow", [_array(3, 4, positive=True), _array(3, 4)], {}
    yield "Pow", [_array(3, 4), np.full((1,), 3.0, np.float32)], {}
    yield "PRelu", [_array(2, 5, 3), _array(5, 1)], {}
    whole = _array(2, 5, 9, 8)
    for op in ("MaxPool", "AveragePool"):
        yield op, [whole], {**WINDOW, **POOL}
        cut = {"strides": (2, 2), "pads": (1, 0, 1, 1), "dilations": (1, 1)}
        cut |= {"kernel_shape": (3, 2), "ceil_mode": True, "count_include_pad": True}
        yield op, [whole], cut
        volume = {"strides": (2, 2, 1), "pads": (1, 1, 0, 1, 1, 0), "dilations": (1, 1, 1)}
        volume |= {"kernel_shape": (3, 3, 2), "ceil_mode": False, "count_include_pad": False}
        yield op, [_array(2, 5, 4, 9, 8)], volume
    for axes in ((2, 3), (1,), (0,), (0, 2), (2,), ()):
        for keepdims in (False, True):
            yield "ReduceMean", [image], {"axes": axes, "keepdims": keepdims}
    for op in ("ReduceMax", "ReduceMin", "ReduceSum"):
        yield op, [_array(2, 40, 3, 4)], {"axes": (1, 2), "keepdims": False}
    yield "Softmax", [_array(3, 17)], {"axis": 1}
    yield "Softmax", [image], {"axis": 1}
    yield "LogSoftmax", [_array(3, 17)], {"axis": 0}
    for a, b in (((3, 4), (4, 5)), ((2, 3, 7, 4), (3, 4, 5)), ((4,), (4, 5)), ((2, 3, 4), (4,))):
        yield "MatMul", [_array(*a), _array(*b)], {}
    turned = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    yield "Gemm", [_array(4, 3), _array(5, 4), _array(5)], turned
    yield "Gemm", [_array(3, 4), _array(4, 5)], {"transA": 0, "transB": 0, "alpha": 1, "beta": 1.0}
    yield "Reshape", [_array(2, 6, 2)], {"shape": (4, 6)}
    yield "Expand", [_array(3, 1)], {"shape": (2, 3, 4)}
    for perm in ((0, 2, 3, 1), (3, 1, 0, 2), (0, 3, 1, 2)):
        yield "Transpose", [_array(2, 3, 4, 5)], {"perm": perm}
    yield "Concat", [_array(2, 3, 4), _array(2, 1, 4)], {"axis": 1}
    yield "Slice", [_array(5, 7, 4)], {"starts": (4, 1, 0), "steps": (-2, 3, 1), "sizes": (3, 2, 4)}
    for mode, pads in (("constant", (0, 1, 2, 1, 0, 3)), ("edge", (0, 1, 2, 1, 0, 3))):
        yield "Pad", [_array(2, 3, 4)], {"pads": pads, "mode": mode, "value": 1.5}
    yield "Pad", [_array(2, 3, 4)], {"pads": (0, 1, 2, 0, 0, 3), "mode": "reflect", "value": 0.0}
    size = {"sizes": (1, 2, 7, 9), "scales": (1.0, 1.0, 1.75, 1.8), "nearest_mode": "floor"}
    for mode, place in (("nearest", "asymmetric"), ("linear", "half_pixel")):
        kind = {"mode": mode, "coordinate_transformation_mode": place}
        yield "Resize", [_array(1, 2, 4, 5)], {**size, **kind}
    yield "LRN", [_array(2, 7, 3, 3)], {"size": 5, "alpha": 0.1, "beta": 0.75, "bias": 1.0}
    norm = {"s": _array(5), "b": _array(5), "m": _array(5), "v": _array(5, positive=True)}
    yield "BatchNormalization", [image], {"epsilon": 1e-5}, norm
    weights = {"w": _array(8, 5, 3, 3), "b": _array(8)}
    yield "Conv", [_array(2, 5, 6, 7)], CONV, weights
    yield "Conv", [_array(2, 5, 6, 7), _array(2, 8, 6, 7)], CONV, weights, ("x0", "w", "b", "x1")
    volume = {"strides": (1, 2, 1), "pads": (1, 0, 1, 0, 1, 1), "dilations": (1, 1, 1)}
    volume |= {"group": 1, "activation": None}
    yield "Conv", [_array(1, 3, 4, 5, 4)], volume, {"w": _array(6, 3, 2, 3, 2), "b": _array(6)}
    up = {"strides": (2, 3), "pads": (1, 0, 1, 1), "dilations": (1, 2), "group": 2}
    up |= {"activation": Activation("relu"), "output_padding": (1, 0)}
    yield "ConvTranspose", [_array(2, 4, 5, 6)], up, {"w": _array(4, 3, 3, 2), "b": _array(6)}
    line = {"strides": (2,), "pads": (1, 0), "dilations": (1,), "group": 1, "activation": None}
    yield (
        "ConvTranspose",
        [_array(2, 4, 5)],
        {**line, "output_padding": (1,)},
        {"w": _array(4, 3, 3)},
    )
    block = {"strides": (2, 3, 1), "pads": (1, 0, 1, 0, 1, 1), "dilations": (1, 1, 2)}
    block |= {"group": 2, "activation": Activation("relu"), "output_padding": (0, 1, 0)}
    yield (
        "ConvTranspose",
        [_array(2, 4, 3, 2, 4)],
        block,
        {"w": _array(4, 3, 3, 2, 2), "b": _array(6)},
    )
    same = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    same |= {"activation": None, "output_padding": (0, 0)}
    yield "ConvTranspose", [_array(1, 4, 5, 6)], same, {"w": _array(4, 3, 3, 3)}


def nodes(stand: Stand) -> Iterator[Case]:
    for number, (op, inputs, attributes, *rest) in enumerate(_nodes()):
        constants, order = (*rest, {}, ())[:2] if len(rest) < 2 else rest
        yield (
            f"{number} {op}",
            lambda o=op, i=inputs, c=constants, r=order, a=attributes: node(stand, o, i, c, r, a),
        )
