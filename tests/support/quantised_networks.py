"""Random networks with QuantizeLinear and DequantizeLinear round every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.quantised_models import model

F = np.float32
Tensor = tuple[str, tuple[int, ...]]  # the name of its floats, its shape


class QuantisedNetwork:
    """A chain of random layers with branches; every tensor of codes is an output.

    Args:
        seed: of everything.
        dtype: of activations' codes.
        layers: how many.
    """

    def __init__(self, seed: int, dtype: Any = np.uint8, layers: int = 6) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), np.dtype(dtype)
        self.ends = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        self.outputs: list[str] = []
        channels = int(self.rng.integers(1, 20))
        shape = (int(self.rng.integers(1, 3)), channels, *map(int, self.rng.integers(5, 12, 2)))
        self.inputs = {"x": (self.rng.standard_normal(shape) * 2).astype(F)}
        self.tensors: list[Tensor] = [(self.quantised("x"), shape)]
        self.kinds: list[str] = []
        for _ in range(layers):
            self.layer()

    @property
    def proto(self) -> onnx.ModelProto:
        return model(self.nodes, self.inputs, self.constants, self.outputs, opset=18)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def held(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def quantised(self, name: str, scale: float = 0.03) -> str:
        """The floats behind codes of a tensor, which are an output."""
        low, high = self.ends
        zero = self.rng.choice([low, (low + high + 1) // 2, int(self.rng.integers(low, high))])
        parameters = self.held(F(scale)), self.held(self.dtype.type(zero))
        codes = self.node("QuantizeLinear", name, *parameters)
        self.outputs.append(codes)
        return self.node("DequantizeLinear", codes, *parameters)

    def weights(self, shape: tuple[int, ...], axis: int, x_scale: float = 0.03) -> list[str]:
        """Weights and a bias behind codes, with one scale or one for each channel."""
        count = shape[axis] if self.rng.integers(2) else 1
        scale = self.rng.uniform(0.002, 0.01, count).astype(F)
        scale = scale if count > 1 else scale[0]
        codes = self.rng.integers(-127, 128, shape).astype(np.int8)
        zero = np.zeros(np.shape(scale), np.int8)
        w = self.node("DequantizeLinear", *map(self.held, (codes, scale, zero)), axis=axis)
        bias = self.rng.integers(-2000, 2000, shape[axis]).astype(np.int32)
        factor = (F(x_scale) * scale).astype(F)
        zero = np.zeros(np.shape(scale), np.int32)
        return [w, self.node("DequantizeLinear", *map(self.held, (bias, factor, zero)), axis=0)]

    def layer(self) -> None:
        """One more layer of one of the tensors."""
        made = None
        while made is None:
            name, shape = self.tensors[int(self.rng.integers(-2, 0)) % len(self.tensors)]
            kind = str(self.rng.choice(list(LAYERS)))
            made = LAYERS[kind](self, name, shape)
        self.kinds.append(kind)
        name, shape = made
        if self.rng.integers(3) == 0:
            low, high = sorted(self.rng.uniform(-2, 4, 2))
            bounds = [self.held(F(low)), self.held(F(high))]
            name = self.node("Relu", name) if low > 0 else self.node("Clip", name, *bounds)
        self.tensors.append((self.quantised(name), shape))

    # -- layers: the floats that one gives, None where it does not fit ---------------------------
    def conv(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4 or min(shape[2:]) < 3:
            return None
        group = int(self.rng.choice([n for n in (1, 1, 2, shape[1]) if shape[1] % n == 0]))
        channels = group * int(self.rng.integers(1, 5))
        kernel = int(self.rng.choice([1, 3]))
        pad, step = int(self.rng.integers(0, kernel)), int(self.rng.integers(1, 3))
        weights = self.weights((channels, shape[1] // group, kernel, kernel), 0)
        window = {"pads": [pad] * 4, "strides": [step, step], "group": group}
        y = self.node("Conv", name, *weights, **window)
        size = [(n + 2 * pad - kernel) // step + 1 for n in shape[2:]]
        return y, (shape[0], channels, *size)

    def dense(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        columns = int(self.rng.integers(1, 12))
        if len(shape) == 2 and self.rng.integers(2):
            return self.node("Gemm", name, *self.weights((columns, shape[1]), 0), transB=1), (
                shape[0],
                columns,
            )
        w, _ = self.weights((shape[-1], columns), 1)
        return self.node("MatMul", name, w), (*shape[:-1], columns)

    def unary(self, name: str, shape: tuple[int, ...]) -> Tensor:
        op = str(self.rng.choice(["Sigmoid", "HardSwish", "LeakyRelu", "Tanh", "Abs", "silu"]))
        if op == "silu":
            return self.node("Mul", name, self.node("Sigmoid", name)), shape
        return self.node(op, name), shape

    def shifted(self, name: str, shape: tuple[int, ...]) -> Tensor:
        op = str(self.rng.choice(["Add", "Mul"]))
        return self.node(op, name, self.held(F(self.rng.uniform(-2, 2)))), shape

    def pair(self, name: str, shape: tuple[int, ...]) -> Tensor:
        others = [other for other, extents in self.tensors if extents == shape]
        op = str(self.rng.choice(["Add", "Mul"]))
        return self.node(op, name, str(self.rng.choice(others))), shape

    def concat(self, name: str, shape: tuple[int, ...]) -> Tensor:
        others = [other for other, extents in self.tensors if extents == shape]
        joined = (shape[0], 2 * shape[1], *shape[2:])
        return self.node("Concat", name, str(self.rng.choice(others)), axis=1), joined

    def pool(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4 or min(shape[2:]) < 3:
            return None
        op = str(self.rng.choice(["MaxPool", "AveragePool"]))
        window = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]}
        return self.node(op, name, **window), (*shape[:2], *((n - 1) // 2 + 1 for n in shape[2:]))

    def mean(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4:
            return None
        return self.node("GlobalAveragePool", name), (*shape[:2], 1, 1)

    def softmax(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.node("Softmax", name, axis=int(self.rng.integers(len(shape)))), shape

    def flat(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.node("Flatten", name), (shape[0], int(np.prod(shape[1:])))

    def turned(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4:
            return None
        return self.node("Transpose", name, perm=[0, 1, 3, 2]), (*shape[:2], shape[3], shape[2])

    def resized(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4 or max(shape[2:]) > 12:
            return None
        scales = self.held(np.array([1, 1, 2, 2], F))
        modes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
        y = self.node("Resize", name, "", scales, nearest_mode="floor", **modes)
        return y, (*shape[:2], 2 * shape[2], 2 * shape[3])

    def padded(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4:
            return None
        y = self.node("Pad", name, self.held(np.array([0, 0, 1, 0, 0, 0, 0, 1])))
        return y, (*shape[:2], shape[2] + 1, shape[3] + 1)

    def sliced(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        if len(shape) != 4 or shape[2] < 3:
            return None
        ends = (self.held(np.array([number])) for number in (1, shape[2], 2))
        return self.node("Slice", name, *ends), (*shape[:2], shape[2] - 1, *shape[3:])


LAYERS: dict[str, Callable[[QuantisedNetwork, str, tuple[int, ...]], Tensor | None]] = {
    "Conv": QuantisedNetwork.conv,
    "Conv again": QuantisedNetwork.conv,
    "dense": QuantisedNetwork.dense,
    "unary": QuantisedNetwork.unary,
    "shifted": QuantisedNetwork.shifted,
    "pair": QuantisedNetwork.pair,
    "pair again": QuantisedNetwork.pair,
    "concat": QuantisedNetwork.concat,
    "pool": QuantisedNetwork.pool,
    "mean": QuantisedNetwork.mean,
    "softmax": QuantisedNetwork.softmax,
    "flat": QuantisedNetwork.flat,
    "turned": QuantisedNetwork.turned,
    "resized": QuantisedNetwork.resized,
    "padded": QuantisedNetwork.padded,
    "sliced": QuantisedNetwork.sliced,
}
