"""Random small networks: valid files, onnxruntime's answers those of our own run, floats near."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import leanconv as lc
from support.networks_to_quantise import model, normal


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


@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int) -> None:
    data, samples = random_network(seed)
    made = lc.quantize(data, samples, threads=1, ranges="min-max", rounding=seed % 2 == 0)
    onnx.checker.check_model(onnx.load_from_string(made.data), full_check=True)
    session = onnxruntime.InferenceSession(made.data, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": samples})
    exact = lc.load(data, threads=1)(samples)
    ours = lc.load(made.data, threads=1)(samples)
    size = np.linalg.norm(exact)
    assert np.linalg.norm(ours - found) < 0.03 * size
    assert np.linalg.norm(found - exact) < 0.25 * size
