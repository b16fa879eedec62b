"""Receptive fields against what an interpreter's outputs say when one pixel changes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from leanconv.graph.fields.axis_map import AxisMap, IrregularError, table_map, transposed_map
from leanconv.graph.fields.receptive_fields import Local, Whole, receptive_fields
from leanconv.graph.ir import Graph
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import PASSES, UNFUSED_PASSES, run_passes
from support.interpret import interpret
from support.local_networks import local_network
from support.onnx_models import model

EXTENT = 48


def bound(proto: onnx.ModelProto, *shape: int, fused: bool = False) -> Graph:
    read = read_model(proto.SerializeToString())
    return run_passes(read.bind({"x": shape}), PASSES if fused else UNFUSED_PASSES)


def changed_by(graph: Graph) -> np.ndarray:
    """Which elements along the output's last axis change with a pixel of the input's, (o, p)."""
    random = np.random.default_rng(0)
    (name,), (output,) = graph.inputs, graph.outputs
    shape = graph.types[name].shape
    x = random.standard_normal(shape).astype(graph.types[name].dtype)
    before = interpret(graph, {name: x})[output]
    rows = []
    for pixel in range(shape[-1]):
        changed = x.copy()
        changed[..., pixel] += random.uniform(0.5, 1, x.shape[:-1])
        after = interpret(graph, {name: changed})[output]
        rows.append((after != before).reshape(-1, before.shape[-1]).any(axis=0))
    return np.stack(rows, axis=1)


def check_fields(graph: Graph) -> None:
    """In the middle of the image the field is exact: its ends are read, and nothing outside."""
    fields = receptive_fields(graph)
    (name,), (output,) = graph.inputs, graph.outputs
    state = fields.states[output][name, len(graph.types[name].shape) - 1]
    assert isinstance(state, Local), state
    changed = changed_by(graph)
    count = len(changed)
    for element in range(count // 3, count - count // 3):
        first, last = state.map.reads(element)
        if first < 0 or last >= changed.shape[1]:
            continue
        read = np.flatnonzero(changed[element])
        if last < first:
            assert not len(read)
        else:
            assert (read[0], read[-1]) == (first, last), (element, state.map)


@pytest.mark.parametrize("seed", range(24))
def test_random_networks(seed: int) -> None:
    graph = bound(local_network(seed, rank=1, smooth=True), 1, 3, EXTENT)
    check_fields(graph)


_FLOAT = np.float32


def _one(op: str, *constants: Any, **attributes: Any) -> onnx.ModelProto:
    held = {f"c{n}": array for n, array in enumerate(constants) if array is not None}
    names = [f"c{n}" if array is not None else "" for n, array in enumerate(constants)]
    node = helper.make_node(op, ["x", *names], ["y"], name="it", **attributes)
    return model([node], {"x": [1, 2, "L"]}, ["y"], held, opset=19)


def _w(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.5, 1, shape).astype(_FLOAT)


def _scales(scale: float) -> tuple[None, np.ndarray]:
    return None, np.array([1, 1, scale], _FLOAT)


LOCAL: dict[str, tuple[onnx.ModelProto, Fraction, int]] = {
    "dilated, uneven": (_one("Conv", _w(2, 2, 3), dilations=[3], pads=[5, 1]), Fraction(1), 7),
    "strided": (_one("Conv", _w(2, 2, 5), strides=[3], auto_pad="SAME_LOWER"), Fraction(3), 5),
    "transposed": (_one("ConvTranspose", _w(2, 2, 3), strides=[2], pads=[1, 0]), Fraction(1, 2), 2),
    "transposed, with holes": (_one("ConvTranspose", _w(2, 2, 2), strides=[3]), Fraction(1, 3), 1),
    "nearest": (_one("Resize", *_scales(2), mode="nearest"), Fraction(1, 2), 1),
    "linear": (_one("Resize", *_scales(2), mode="linear"), Fraction(1, 2), 2),
    "linear, smaller": (_one("Resize", *_scales(0.5), mode="linear"), Fraction(2), 2),
    "cubic": (_one("Resize", *_scales(2), mode="cubic"), Fraction(1, 2), 4),
    "antialiased": (
        _one("Resize", *_scales(0.5), mode="linear", antialias=1),
        Fraction(2),
        4,
    ),
    "three halves": (_one("Resize", *_scales(1.5), mode="linear"), Fraction(2, 3), 2),
    "every other": (
        _one("Slice", *(np.array([n], np.int64) for n in (3, 1000, 2, 2))),
        Fraction(2),
        1,
    ),
    "average": (_one("AveragePool", kernel_shape=[4], strides=[2]), Fraction(2), 4),
    "channels": (_one("Softmax", axis=1), Fraction(1), 1),
}


@pytest.mark.parametrize("name", LOCAL)
def test_single_operations(name: str) -> None:
    proto, stride, extent = LOCAL[name]
    graph = bound(proto, 1, 2, EXTENT)
    (field,) = receptive_fields(graph).of_outputs()
    assert (field.stride, field.extent) == (stride, extent)
    check_fields(graph)


WHOLE = {
    "GlobalAveragePool": _one("GlobalAveragePool"),
    "Softmax": _one("Softmax", axis=2),
    "InstanceNormalization": _one("InstanceNormalization", _w(2), _w(2)),
    "Flatten": _one("Flatten"),
    "MatMul": _one("MatMul", _w(EXTENT, 3)),
    "Reversed": _one("Slice", *(np.array([n], np.int64) for n in (-1, -1000, 2, -1))),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_read_as_a_whole(name: str) -> None:
    (field,) = receptive_fields(bound(WHOLE[name], 1, 2, EXTENT)).of_outputs()
    assert isinstance(field.state, Whole)
    assert "it" in field.state.because
    assert (field.stride, field.extent, field.offset) == (None, None, None)


def test_fused_chains_have_the_fields_of_their_layers() -> None:
    w, d, p = _w(12, 6, 1, 1), _w(12, 1, 3, 3), _w(8, 12, 1, 1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "d"], ["c"], pads=[1] * 4, strides=[2, 2], group=12),
        helper.make_node("Relu", ["c"], ["e"]),
        helper.make_node("Conv", ["e", "p"], ["y"]),
    ]
    proto = model(nodes, {"x": [1, 6, "H", "W"]}, ["y"], {"w": w, "d": d, "p": p})
    found = []
    for fused in (False, True):
        graph = bound(proto, 1, 6, 32, 32, fused=fused)
        found.append([str(f.state) for f in receptive_fields(graph).of_outputs()])
        assert any(node.op == "ConvChain" for node in graph.nodes) == fused
    assert found[0] == found[1]


def test_maps_put_one_after_the_other() -> None:
    doubled = AxisMap(1, (0, 0), (0, 0))
    halved = AxisMap(2, (0,), (1,))
    assert halved.after(doubled) == AxisMap(1, (0,), (0,))
    assert doubled.after(halved) == AxisMap(2, (0, 0), (1, 1))
    assert transposed_map(2, 2, 1, 0) == doubled
    with pytest.raises(IrregularError):
        doubled.joined(halved)
    with pytest.raises(IrregularError):  # align_corners moves by no whole period
        table_map(np.array([0, 1, 1, 2, 3, 4]), np.array([0, 1, 1, 2, 3, 4]), 5)
