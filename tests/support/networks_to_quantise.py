"""Small files and numbers for the tests of quantising."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from leanconv.graph.onnx_graph import OnnxGraph
from leanconv.quantizer import choose
from leanconv.quantizer.costs import Clock, LayerCost, Planned, RungCost


def model(
    nodes: list[onnx.NodeProto],
    shape: list[int | str | None],
    weights: dict[str, np.ndarray],
    opset: int = 13,
    rank: int = 4,
) -> bytes:
    """A file of nodes from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 7
    data: bytes = made.SerializeToString()
    return data


def fixed_times(monkeypatch: pytest.MonkeyPatch, *gains: int) -> None:
    """Let nothing be timed: a layer on codes gains what is given, a file something for each."""

    def planned(_: Clock, graph: OnnxGraph, __: object) -> Planned:
        codes = sum(node.bare_op == "DequantizeLinear" for node in graph.nodes)
        return Planned(1_000_000 - codes, 0, 0)

    def costs(sizes: dict[str, int], *_: object) -> list[LayerCost]:
        return [
            LayerCost(name, {"int8": RungCost(gain, 0, 3 * size)})
            for gain, (name, size) in zip(cycle(gains or (9,)), sizes.items(), strict=False)
        ]

    monkeypatch.setattr(Clock, "planned", planned)
    monkeypatch.setattr(choose, "layer_costs", costs)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_network(seed: int) -> tuple[bytes, np.ndarray]:
    """Four to eight operations on maps, and a dense end; and samples of it."""
    random = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, np.ndarray] = {}
    values = [("x", 4)]  # maps of one size, with their channels

    def fresh(op: str, inputs: list[str], channels: int, **attributes: object) -> None:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], **attributes))
        values.append((name, channels))

    def constant(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = normal(*shape, seed=seed * 100 + len(weights))
        return name

    def convolution(source: str, channels: int) -> None:
        depthwise = bool(random.integers(2))
        taps = int(random.choice([1, 3]))
        made = channels if depthwise else int(random.choice([3, 4, 6]))
        inner = 1 if depthwise else channels
        inputs = [source, constant(made, inner, taps, taps)]
        inputs += [constant(made)] if random.integers(2) else []
        groups = channels if depthwise else 1
        fresh("Conv", inputs, made, pads=[taps // 2] * 4, group=groups)

    convolution("x", 4)
    for _ in range(int(random.integers(4, 9))):
        source, channels = values[int(random.integers(len(values)))]
        kind = str(random.choice(["conv", "conv", "unary", "affine", "mix", "pool", "concat"]))
        alike = [name for name, count in values if count == channels]
        if kind == "conv":
            convolution(source, channels)
        elif kind == "unary":
            fresh(str(random.choice(["Relu", "Sigmoid", "LeakyRelu", "Tanh"])), [source], channels)
        elif kind == "affine":
            op = str(random.choice(["Mul", "Add", "Sub", "Div"]))
            fresh(op, [source, constant(channels, 1, 1)], channels)
        elif kind == "mix":
            op = str(random.choice(["Add", "Mul"]))
            fresh(op, [source, str(random.choice(alike))], channels)
        elif kind == "pool":
            fresh("MaxPool", [source], channels, kernel_shape=[3, 3], pads=[1] * 4)
        else:
            other, more = values[int(random.integers(len(values)))]
            fresh("Concat", [source, other], channels + more, axis=1)
    name, channels = values[-1]
    convolution(name, channels)
    name, channels = values[-1]
    nodes += [
        helper.make_node("GlobalAveragePool", [name], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", constant(channels, 5)], ["y"]),
    ]
    data = model(nodes, ["n", 4, 7, 9], weights, opset=14, rank=2)
    return data, np.concatenate([normal(1, 4, 7, 9, seed=n) for n in range(16)])
