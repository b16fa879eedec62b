"""Values that ask for much where extents follow from them: bounded, whatever they are."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import LeanConvError, UnsupportedError
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from support.control_flow import graph, node
from support.hostile import bounded
from support.interpret import interpret
from support.onnx_models import model

TINY = np.ones(4, "f4")


def late(proto: onnx.ModelProto, **arrays: np.ndarray) -> None:
    """Run the late nodes of a network whose inputs they read, within little."""
    limits = Limits(late_nodes=2000, late_bytes=8 << 20, late_traffic_bytes=64 << 20)
    found = read_model(proto.SerializeToString(), limits)
    shapes = {name: array.shape for name, array in arrays.items()}
    static = found.bind(shapes, late=True)
    tail = found.tail(static)
    assert tail is not None
    tail.run({**arrays, **interpret(static, arrays)})


def counted(inputs: str) -> onnx.ModelProto:
    """A loop whose limit or end is data; its body is small."""
    inside = graph(
        [node("Less", "s limit", "more"), node("Mul", "s one", "t")],
        "more t",
        {"i": "int64", "on": "bool", "s": "float"},
        {"limit": np.float32(9), "one": np.float32(1)},
        kinds={"more": "bool"},
    )
    nodes = [
        node("ReduceMax", "x", "first", keepdims=0),
        node("Loop", inputs, "y", body=inside),
    ]
    held = {"n": np.array(2**63 - 1), "true": np.array(True)}
    return model(nodes, {"x": (4,)}, ["y"], held)


@pytest.mark.parametrize("inputs", ["n true first", "- - first", "n - first"])
def test_loops_without_end(inputs: str) -> None:
    with bounded(seconds=5), pytest.raises(UnsupportedError, match="become over 2000 nodes"):
        late(counted(inputs), x=TINY)


def test_places_of_a_huge_tensor() -> None:
    nodes = [node("Cast", "x", "b", to=9), node("Compress", "x b", "c"), node("NonZero", "c", "y")]
    proto = model(nodes, {"x": ("n",)}, ["y"])
    with bounded(peak_bytes=64 << 20), pytest.raises(UnsupportedError, match="in this run"):
        late(proto, x=np.broadcast_to(np.float32(1), (1 << 21,)).copy())


def test_results_that_grow() -> None:
    grown = graph(
        [node("Concat", "s s", "t", axis=0), node("Less", "i n", "more")],
        "more t",
        {"i": "int64", "on": "bool", "s": "float"},
        kinds={"more": "bool"},
    )
    nodes = [node("NonZero", "x", "p"), node("Size", "p", "n"), node("Cast", "p", "c", to=1)]
    nodes.append(node("Loop", "n - c", "y", body=grown))
    proto = model(nodes, {"x": (64,)}, ["y"])
    with bounded(seconds=5, peak_bytes=64 << 20), pytest.raises(LeanConvError, match="in this run"):
        late(proto, x=np.ones(64, "f4"))


def test_boxes_that_nothing_drops() -> None:
    """Of boxes whose number is data, which NumPy compares, and of others, which are compiled."""
    held = {"most": np.array([2**63 - 1])}
    each = node("NonMaxSuppression", "c s most", "y")
    nodes = [node("Compress", "b flags", "c", axis=1), each]
    proto = model(nodes, {"b": None, "s": None, "flags": None}, ["y"], held)
    proto.graph.input[2].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    every = np.ones(400, bool)
    numbers = np.random.default_rng(0).choice(
        np.float32([np.nan, np.inf, -np.inf, -1, 0, 1, 1e38]), (1, 400, 4)
    )
    scores = np.full((1, 3, 400), np.nan, "f4")
    with bounded(seconds=5, peak_bytes=64 << 20):
        late(proto, b=numbers, s=scores, flags=every)
        late(proto, b=numbers, s=np.full((1, 3, 400), -np.inf, "f4"), flags=every)
        late(proto, b=np.zeros((1, 9, 4), "f4"), s=np.zeros((1, 0, 0), "f4"), flags=~every[:9])
    many = np.arange(40_000, dtype="f4").reshape(1, 10_000, 4)
    far = {"b": many + np.float32([0, 0, 1, 1]) * 0, "s": np.ones((1, 1, 10_000), "f4")}
    with bounded(seconds=5, peak_bytes=64 << 20), pytest.raises(UnsupportedError, match="traffic"):
        late(proto, **far, flags=np.ones(10_000, bool))
    compiled = lc.load(
        model([node("Identity", "b", "c"), each], {"b": None, "s": None}, ["y"], held)
    )
    compiled.bind({name: array.shape for name, array in far.items()})
    with bounded(seconds=5, peak_bytes=64 << 20):
        assert len(compiled.run(far)["y"]) == 10_000
        compiled.run({"b": numbers, "s": scores})
        assert compiled.run({"b": many[:, :0], "s": far["s"][:, :, :0]})["y"].shape == (0, 3)


def test_operands_of_networks_that_run() -> None:
    """The same through `load`, with the limits for all networks."""
    proto = model([node("ConstantOfShape", "s", "y")], {"s": (2,)}, ["y"])
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    for shape in ([2**40, 2**40], [-1, 3], [2**63 - 1, 1]):
        with bounded(peak_bytes=64 << 20), pytest.raises(LeanConvError):
            lc.load(proto).run({"s": np.array(shape)})
