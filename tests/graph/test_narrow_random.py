"""Random networks of narrow types and codes of 16 bits, against onnxruntime: equal results.

Scales are powers of two and sums have few bits, so that no engine rounds a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import leanconv as lc

FLOAT = TensorProto.FLOAT
RANGES = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}
OF_WEIGHTS = (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8)
FLOAT8 = (
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
)


class Maker:
    """A network under construction: a chain of layers, each between codes of some type."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.held: list[Any] = []
        self.count = 0

    def pick(self, *of: Any) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def named(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = self.named()
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, kind: int, array: Any) -> str:
        name, array = self.named(), np.asarray(array)
        self.held.append(helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist()))
        return name

    def parameters(
        self, shape: tuple[int, ...], kind: int, steps: tuple[int, int]
    ) -> tuple[list[str], dict[str, int]]:
        """A scale and a zero point: of all, of each place along an axis, or of blocks."""
        form, axis = self.pick("all", "axis", "blocks"), int(self.rng.integers(len(shape)))
        sizes: tuple[int, ...] = ()
        attributes = {}
        if form != "all":
            attributes["axis"] = self.pick(axis, axis - len(shape))
        if form == "axis":
            sizes = shape[axis : axis + 1]
        if form == "blocks":
            block = attributes["block_size"] = int(self.rng.integers(1, shape[axis] + 1))
            sizes = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
        scale = self.constant(FLOAT, 2.0 ** self.rng.integers(*steps, sizes))
        if kind in FLOAT8:
            return [scale, self.constant(kind, np.zeros(sizes))], attributes
        low, high = RANGES[kind]
        middle = (low + high + 1) // 2
        zeros = self.rng.integers(max(low, middle - 4), middle + 4, sizes)
        return [scale, self.constant(kind, zeros)], attributes

    def through_codes(self, x: str, shape: tuple[int, ...]) -> str:
        """Floats as codes of a random type, and back; between them the codes may be turned."""
        kind = self.pick(*RANGES, *FLOAT8)
        steps = (-1, 2) if kind in RANGES and RANGES[kind][1] < 16 else (-4, 0)
        found, attributes = self.parameters(shape, kind, steps)
        y = self.node("QuantizeLinear", [x, *found], **attributes)
        if self.rng.integers(3) == 0 and kind not in (TensorProto.INT16, TensorProto.UINT16):
            turned = self.node("Transpose", [y], perm=[0, *range(len(shape) - 1, 0, -1)])
            y = self.node("Transpose", [turned], perm=[0, *range(len(shape) - 1, 0, -1)])
        return self.node("DequantizeLinear", [y, *found], **attributes)

    def weights(self, shape: tuple[int, ...]) -> str:
        kind = self.pick(*OF_WEIGHTS, *FLOAT8)
        found, attributes = self.parameters(shape, kind, (-3, -1))
        numbers = self.rng.integers(-7, 8, shape)
        if kind in RANGES:
            numbers = np.clip(numbers + (8 if kind == TensorProto.UINT4 else 0), *RANGES[kind])
        return self.node("DequantizeLinear", [self.constant(kind, numbers), *found], **attributes)

    def network(self) -> tuple[Any, dict[str, Any]]:
        channels, rows, columns = (int(n) for n in self.rng.integers(1, 6, 3))
        shape: tuple[int, ...] = (1, channels, rows, columns)
        given = self.rng.integers(-64, 64, shape) / 16
        x = self.through_codes("x", shape)
        for _ in range(int(self.rng.integers(1, 3))):
            if len(shape) == 4 and self.rng.integers(3):
                outputs = int(self.rng.integers(1, 9))
                kernel = [self.pick(1, 3) for _ in range(2)]
                pads = [n // 2 for n in kernel] * 2
                weights = self.weights((outputs, shape[1], *kernel))
                x = self.node("Conv", [x, weights], kernel_shape=kernel, pads=pads)
                shape = (1, outputs, *shape[2:])
            else:
                outputs = int(self.rng.integers(1, 9))
                x = self.node("MatMul", [x, self.weights((shape[-1], outputs))])
                shape = (*shape[:-1], outputs)
            if self.rng.integers(2):
                x = self.node("Relu", [x])
            x = self.through_codes(x, shape)
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "g",
            [info("x", FLOAT, given.shape)],
            [info(x, FLOAT, None)],
            self.held,
        )
        opsets = [helper.make_opsetid("", 21)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), {
            "x": given.astype(np.float32)
        }


def compare(seed: int) -> None:
    proto, feed = Maker(seed).network()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    # Optimised it loses a Relu in front of codes of float8, and makes a QLinearConv of int4.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = proto.SerializeToString()
    (theirs,) = onnxruntime.InferenceSession(data, options).run(None, feed)
    (ours,) = lc.load(data, threads=1).run(None, feed)
    np.testing.assert_array_equal(ours, theirs, f"seed {seed}")


@pytest.mark.drawn
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_networks_of_narrow_types(first: int) -> None:
    for seed in range(first, first + 10):
        compare(seed)


def test_in_float64_codes_are_those_of_float32() -> None:
    """A network that is computed in float64 gives the same codes."""
    for seed in range(4):
        proto, feed = Maker(seed).network()
        data = proto.SerializeToString()
        (single,) = lc.load(data, threads=1).run(None, feed)
        double = {"x": feed["x"].astype(np.float64)}
        (exact,) = lc.load(data, threads=1, dtype="float64").run(None, double)
        np.testing.assert_array_equal(single, exact, f"seed {seed}")
