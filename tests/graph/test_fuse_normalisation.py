"""Means, variances and what they scale become one node, and one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.edit import frozen
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import GPU_PASSES, run_passes
from leanconv.kernels.normalise import accepts_blocked
from support.onnx_models import model, reference

RANDOM = np.random.default_rng(4)


def numbers(*shape: int, dtype: str = "f4") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def ops(proto: onnx.ModelProto, passes: Any = None) -> list[str]:
    bound = read_model(proto.SerializeToString()).bind()
    graph = run_passes(bound) if passes is None else run_passes(bound, passes)
    return [node.op for node in graph.nodes]


def one(op: str, shape: tuple[int | str, ...], *held: np.ndarray, **settings: Any) -> Any:
    """x -> y, normalised by one node; the other operands are constants."""
    constants = {f"c{number}": array for number, array in enumerate(held)}
    nodes = [helper.make_node(op, ["x", *constants], ["y"], **settings)]
    opset = 23 if op == "RMSNormalization" else 21
    return model(nodes, {"x": list(shape)}, ["y"], constants, opset)


def written_out(
    shape: tuple[int, ...], square: str, divide: bool, turned: bool, **held: Any
) -> Any:
    """As exporters write it before opset 17."""
    last = len(shape) - 1
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[last]),
        helper.make_node("Sub", ["x", "m"], ["c"]),
        helper.make_node(square, ["c", "c" if square == "Mul" else "two"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["v"], axes=[-1]),
        helper.make_node("Add", ["e", "v"] if turned else ["v", "e"], ["ve"]),
        helper.make_node("Sqrt", ["ve"], ["d"]),
    ]
    if divide:
        nodes.append(helper.make_node("Div", ["c", "d"], ["n"]))
    else:
        nodes.append(helper.make_node("Reciprocal", ["d"], ["i"]))
        nodes.append(helper.make_node("Mul", ["i", "c"] if turned else ["c", "i"], ["n"]))
    nodes.append(helper.make_node("Mul", ["w", "n"] if turned else ["n", "w"], ["nw"]))
    nodes.append(helper.make_node("Add", ["nw", "b"], ["y"]))
    constants = {"two": np.float32(2), "e": np.float32(1e-5), **held}
    constants = {"w": numbers(shape[-1]), "b": numbers(shape[-1]), **constants}
    given = {"x": list(shape)} | {k: list(v) for k, v in constants.items() if isinstance(v, list)}
    constants = {k: v for k, v in constants.items() if not isinstance(v, list)}
    return model(nodes, given, ["y"], constants, 13)


FUSED = {
    "layer": one("LayerNormalization", (2, 7, 50), numbers(50), numbers(50)),
    "layer-of-two": one("LayerNormalization", (3, 5, 9), numbers(5, 9), axis=1),
    "layer-of-all": one("LayerNormalization", (3, 41), numbers(3, 41), numbers(3, 41), axis=0),
    "long": one("LayerNormalization", (2, 3001), numbers(3001), numbers(3001), epsilon=1e-3),
    "instance": one("InstanceNormalization", (2, 5, 6, 9), numbers(5), numbers(5)),
    "rms": one("RMSNormalization", (2, 7, 50), numbers(50), epsilon=1e-3),
    "rms-of-two": one("RMSNormalization", (3, 5, 9), numbers(5, 9), axis=1),
    "rms-long": one("RMSNormalization", (2, 3001), numbers(3001)),
    "line": one("InstanceNormalization", (1, 19, 600), numbers(19), numbers(19)),
    "volume": one("InstanceNormalization", (2, 3, 2, 5, 7), numbers(3), numbers(3)),
    "squared": written_out((3, 5, 33), "Pow", True, False),
    "multiplied": written_out((3, 33), "Mul", False, True),
}


@pytest.mark.parametrize("name", FUSED)
def test_one_node_is_what_onnx_runtime_gives(name: str) -> None:
    proto = FUSED[name]
    assert ops(proto) == ["Normalise"]
    assert "Normalise" not in ops(proto, GPU_PASSES)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    x = (numbers(*shape) * 3 + 40).astype("f4")
    found = [lc.load(proto.SerializeToString(), threads=n)(x) for n in (1, 3)]
    assert np.array_equal(*found)
    # Of one place, or of places far from 0, ONNX Runtime errs itself: exact is what NumPy computes.
    exact = lc.load(proto.SerializeToString(), dtype="float64", threads=1)(x.astype("f8"))
    assert np.abs(found[0] - exact).max() <= 1e-4 * np.abs(exact).max()
    expected = reference(proto, {"x": x})["y"]
    np.testing.assert_allclose(found[0], expected, rtol=2e-3, atol=2e-3)


LEFT = {
    "two": written_out((3, 5, 33), "Pow", True, False, two=np.float32(3)),
    "scale-of-rows": one("LayerNormalization", (2, 7, 50), numbers(2, 1, 1)),
    "given-scale": written_out((3, 33), "Mul", False, False, w=[33]),
}


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_alone_or_in_part(name: str) -> None:
    found = ops(LEFT[name])
    assert len(found) > 1
    assert ("Normalise" in found) == (name != "two")


def test_statistics_that_are_read_stay() -> None:
    nodes = [helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean", "inverse"])]
    proto = model(nodes, {"x": [4, 20]}, ["y", "mean"], {"s": numbers(20)}, 17)
    assert ops(proto) == ["ReduceMean", "Sub", "Normalise"]


def test_a_scale_of_lines_rounds_by_itself() -> None:
    """Without a mean, products are rounded in the order of the file, whatever becomes one node."""
    scale = numbers(1, 1, 1)
    proto = one("RMSNormalization", (2, 7, 50), scale)
    assert ops(proto) == ["Normalise", "Mul"]
    x = numbers(2, 7, 50)
    inverse = 1 / np.sqrt((x.astype("f8") ** 2).mean(-1, keepdims=True) + 1e-5)
    y = lc.load(proto.SerializeToString(), threads=1)(x)
    np.testing.assert_allclose(y, x * inverse * scale, rtol=1e-6, atol=0)


def test_an_exponent_that_adds_an_axis_is_left_alone() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[2]),
        helper.make_node("Sub", ["x", "m"], ["c"]),
        helper.make_node("Pow", ["c", "two"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["v"], axes=[2, 3]),
        helper.make_node("Add", ["v", "e"], ["ve"]),
        helper.make_node("Sqrt", ["ve"], ["d"]),
        helper.make_node("Div", ["c", "d"], ["y"]),
    ]
    held = {"two": np.full((1, 1, 1, 1), 2, "f4"), "e": np.float32(1e-5)}
    proto, x = model(nodes, {"x": [4, 5, 6]}, ["y"], held, 13), numbers(4, 5, 6)
    y = lc.load(proto.SerializeToString(), threads=1)(x)
    np.testing.assert_allclose(y, reference(proto, {"x": x})["y"], rtol=1e-4, atol=1e-5)


def blocks() -> onnx.ModelProto:
    """Convolutions around norms: maps in blocks of channels, the last block in part."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1])]
    for number, (before, after) in enumerate((("a", "b"), ("d", "y"))):
        nodes.append(
            helper.make_node("InstanceNormalization", [before, f"s{number}", "t"], [f"n{number}"])
        )
        nodes.append(helper.make_node("Relu", [f"n{number}"], [after]))
    nodes.insert(3, helper.make_node("Conv", ["b", "v"], ["d"], pads=[1, 1, 1, 1]))
    constants = {"w": numbers(20, 3, 3, 3), "v": numbers(20, 20, 3, 3), "t": numbers(20)}
    constants |= {f"s{number}": numbers(20) for number in range(2)}
    return model(nodes, {"x": ["N", 3, "H", "W"]}, ["y"], constants, 17)


def test_blocks_of_channels_and_open_sizes() -> None:
    proto = blocks()
    net = lc.load(proto.SerializeToString(), threads=2)
    for shape in ((1, 3, 9, 30), (2, 3, 33, 17), (1, 3, 64, 65), (3, 3, 1, 2), (1, 3, 5, 7)):
        x = numbers(*shape)
        expected = reference(proto, {"x": x})["y"]
        np.testing.assert_allclose(net(x), expected, rtol=1e-3, atol=1e-4)


def test_what_fills_a_block_is_not_divided_by_zero() -> None:
    proto = one("InstanceNormalization", (1, 20, 4, 5), numbers(20), numbers(20))
    graph = run_passes(read_model(proto.SerializeToString()).bind())
    (node,) = graph.nodes
    without = replace(node, attributes=frozen({"first": 2, "epsilon": 0.0, "centred": True}))
    assert accepts_blocked(node, graph, 16)
    assert not accepts_blocked(without, graph, 16)
    assert accepts_blocked(without, graph, 4)


def test_open_lines_in_one_load() -> None:
    proto = one("InstanceNormalization", ("N", 6, "T"), numbers(6), numbers(6))
    net = lc.load(proto.SerializeToString(), threads=2)
    for shape in ((1, 6, 5), (2, 6, 16), (1, 6, 1000), (1, 6, 4003), (3, 6, 31), (1, 6, 2048)):
        x = numbers(*shape)
        expected = reference(proto, {"x": x})["y"]
        np.testing.assert_allclose(net(x), expected, rtol=1e-4, atol=1e-4)


def test_not_finite_lines_stay_by_themselves() -> None:
    x = numbers(4, 50)
    x[1, 3], x[2, 49] = np.nan, np.inf
    y = lc.load(one("LayerNormalization", (4, 50), numbers(50)).SerializeToString(), threads=1)(x)
    assert np.isnan(y[1:3]).all()
    assert np.isfinite(y[[0, 3]]).all()
