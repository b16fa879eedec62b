"""A block of codes that adds its own image, of few channels: its padding is made by somebody."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from support.quantised_models import model, peer

CHANNELS, WIDE = 4, 8


@pytest.mark.parametrize("zero", [0, 17])
@pytest.mark.parametrize("quantised", [False, True])
def test_an_image_that_is_added_to_its_block(zero: int, quantised: bool) -> None:
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {}

    def conv(
        x: str, y: str, shape: tuple[int, ...], x_zero: int, group: int = 1, pad: int = 1
    ) -> onnx.NodeProto:
        w = rng.integers(-20, 20, shape).astype(np.int8)
        found = {
            "xs": np.float32(0.03), "xz": np.uint8(x_zero), "w": w, "ws": np.float32(0.01),
            "wz": np.int8(0), "ys": np.float32(0.05), "yz": np.uint8(128),
        }  # fmt: skip
        constants.update({y + name: np.asarray(value) for name, value in found.items()})
        names = [x, *(y + name for name in found)]
        return helper.make_node("QLinearConv", names, [y], pads=[pad] * 4, group=group)

    nodes = [
        conv("codes", "a", (WIDE, CHANNELS, 3, 3), zero),
        conv("a", "b", (WIDE, 1, 3, 3), 128, WIDE),
        conv("b", "d", (CHANNELS, WIDE, 1, 1), 128, 1, 0),
    ]
    constants |= {"s": np.float32(0.05), "z": np.uint8(zero), "t": np.uint8(128)}
    operands = ["codes", "s", "z", "d", "s", "t", "s", "t"]
    nodes.append(helper.make_node("QLinearAdd", operands, ["y"], domain="com.microsoft"))
    shape = (1, CHANNELS, 8, 8)
    if quantised:
        x = rng.standard_normal(shape).astype(np.float32)
        nodes.insert(0, helper.make_node("QuantizeLinear", ["x", "s", "z"], ["codes"]))
    else:
        x = rng.integers(0, 256, shape).astype(np.uint8)
        nodes.insert(0, helper.make_node("Identity", ["x"], ["codes"]))
    made = model(nodes, {"x": x}, constants)
    assert np.array_equal(lc.load(made, threads=1).run(None, {"x": x})[0], peer(made, {"x": x})[0])
