"""Scan: a body over the slices of tensors, against ONNX Runtime, written out and held."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import leanconv as lc
from leanconv.errors import LeanConvError
from support.control_flow import graph, node, value
from support.loops import hold
from support.onnx_models import Array, reference

R = np.random.default_rng(3)


def made(
    inside: onnx.GraphProto, shapes: dict[str, tuple[Any, ...]], opset: int, **given: Any
) -> Any:
    """A model of one Scan."""
    names = " ".join(shapes)
    scan = node("Scan", names if opset > 8 else f"- {names}", "y z w", body=inside, **given)
    ends = [value(name, "float") for name in ("y", "z", "w")]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    whole = helper.make_graph([scan], "scan", inputs, ends)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def inside() -> onnx.GraphProto:
    """A running sum, its square, and what it was before the slice."""
    nodes = [
        node("Mul", "a b", "p"),
        node("Add", "s p", "t"),
        node("Mul", "t t", "q"),
        node("Neg", "s", "before"),
    ]
    return graph(nodes, "t q before", {"s": "float", "a": "float", "b": "float"})


def agrees(proto: onnx.ModelProto, feed: dict[str, Array]) -> lc.Network:
    network = lc.load(proto, threads=1)
    found = network.run(feed)
    for name, wanted in reference(proto, feed).items():
        assert found[name].shape == wanted.shape
        np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-5, err_msg=name)
    return network


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("opened", [False, True])
def test_scans(held: bool, opened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if held:
        hold(monkeypatch)
    arrays = {"s": (2, 3), "a": (7, 2, 3), "b": (2, 7, 3)}
    feed = {name: R.standard_normal(shape).astype("f4") for name, shape in arrays.items()}
    shapes = {"s": (2, 3), "a": ("n", 2, 3), "b": (2, "n", 3)} if opened else arrays
    given = {"num_scan_inputs": 2, "scan_input_axes": [0, 1]}
    network = agrees(made(inside(), shapes, 17, **given), feed)
    assert any("Loop" in step.op for step in network.plan.steps) == held
    backwards = {"scan_input_directions": [1, 0], "scan_output_directions": [0, 1]}
    agrees(made(inside(), shapes, 17, **given, **backwards, scan_output_axes=[1, -1]), feed)


def test_scans_of_a_batch() -> None:
    arrays = {"s": (2, 3), "a": (2, 5, 3), "b": (2, 5, 3)}
    feed = {name: R.standard_normal(shape).astype("f4") for name, shape in arrays.items()}
    agrees(made(inside(), arrays, 8, num_scan_inputs=2), feed)
    agrees(made(inside(), arrays, 8, num_scan_inputs=2, directions=[1, 0]), feed)


def test_no_slices() -> None:
    arrays = {"s": (2, 3), "a": (0, 2, 3), "b": (0, 2, 3)}
    feed = {name: np.ones(shape, "f4") for name, shape in arrays.items()}
    shapes = {"s": (2, 3), "a": ("n", 2, 3), "b": ("n", 2, 3)}
    found = lc.load(made(inside(), shapes, 17, num_scan_inputs=2)).run(feed)
    np.testing.assert_array_equal(found["y"], feed["s"])
    assert found["z"].shape == found["w"].shape == (0, 2, 3)  # ONNX Runtime refuses it


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({}, "num_scan_inputs is None"),
        ({"num_scan_inputs": 4}, "num_scan_inputs is 4"),
        ({"num_scan_inputs": 2, "scan_input_axes": [0]}, "scan_input_axes has 1"),
        ({"num_scan_inputs": 2, "scan_input_axes": [0, 5]}, "axis is 5"),
        ({"num_scan_inputs": 2, "scan_input_axes": [0, 0]}, "scans extents"),
        ({"num_scan_inputs": 2, "scan_input_axes": [0, 1], "scan_output_axes": [9, 0]}, "is 9"),
    ],
)
def test_scans_that_do_not_fit(given: dict[str, Any], what: str) -> None:
    arrays = {"s": (2, 3), "a": (7, 2, 3), "b": (2, 7, 3)}
    with pytest.raises(LeanConvError, match=what):
        lc.load(made(inside(), arrays, 17, **given))
