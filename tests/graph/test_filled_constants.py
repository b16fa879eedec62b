"""Weights that a file only describes, as one number repeated: they load, and are bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import leanconv as lc
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, is_filled
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing
from leanconv.types import FLOAT64
from support.hostile import MIB, bounded, network, node
from support.onnx_models import agree, model, reference

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def filled(name: str, shape: str, number: float = 0.5) -> onnx.NodeProto:
    value = numpy_helper.from_array(np.array([number], "f4"))
    return helper.make_node("ConstantOfShape", [shape], [name], value=value)


def dense(outputs: int, layers: int = 1, **attributes: Any) -> bytes:
    """x (1, 256) times matrices (256, outputs) of a file of a few hundred bytes."""
    nodes, held = [], {}
    for i in range(layers):
        held[f"s{i}"] = np.array([256, outputs])
        nodes += [filled(f"w{i}", f"s{i}"), node("Gemm", f"x w{i}", f"y{i}", **attributes)]
    nodes.append(node("Sum", " ".join(f"y{i}" for i in range(layers))))
    return model(nodes, {"x": (1, 256)}, ["y"], held).SerializeToString()


def ready(data: bytes | Path, limits: Limits | None = None, dtype: str | None = None) -> Graph:
    """The graph as it is planned."""
    return check_flowing(run_passes(read_model(data, limits).bind(dtype=dtype)))


@pytest.mark.parametrize("dtype", [None, FLOAT64])
def test_repeated_numbers_take_no_memory_at_load(dtype: str | None) -> None:
    with bounded(2, 2 * MIB):
        graph = ready(dense(MIB - 1), dtype=dtype)  # just under 1 GiB
    (weight,) = (array for array in graph.constants.values() if array.size > 1)
    assert is_filled(weight)
    assert weight.size == 256 * (MIB - 1)


@pytest.mark.parametrize("name", ["bvlc_alexnet", "vgg19", "zfnet512", "resnet50"])
def test_the_published_networks_without_weights_load(name: str) -> None:
    """Up to 548 MiB of weights in 9 kB; resnet50's are multiplied by those of its norms."""
    with bounded(5, 160 * MIB if name == "resnet50" else 2 * MIB):
        graph = ready(LIGHT / f"light_{name}.onnx")
    assert sum(array.nbytes for array in graph.constants.values()) > 97 * MIB


def test_repeated_numbers_are_computed_with_as_others() -> None:
    """In every place where a constant is moved, widened or folded."""
    held = {
        "wide": np.array([6, 4, 3, 3]),
        "flat": np.array([24, 9]),
        "some": np.array([6]),
        "row": np.array([1, 5]),
        "rows": np.array([3, 5]),
        "back": np.array([6, 4, 3, 3]),
        "from": np.array([0, 1]),
        "to": np.array([3, 5]),
    }
    nodes = [
        filled("w0", "flat", 0.25),
        node("Reshape", "w0 back", "w1"),
        filled("b0", "some", 2.0),
        node("Conv", "x w1 b0", "c", strides=[2, 2]),
        filled("scale", "some", 3.0),
        node("BatchNormalization", "c scale b0 b0 scale", "n"),
        node("GlobalAveragePool", "n", "p"),
        node("Flatten", "p", "f"),
        filled("g0", "row", 0.125),
        node("Expand", "g0 rows", "g1"),
        node("Slice", "g1 from to", "g2"),
        node("Transpose", "g2", "g3", perm=[1, 0]),
        filled("g4", "rows", 0.125),
        node("Mul", "g4 g1", "g5"),
        node("ReduceSum", "g5", "total", keepdims=0),
        node("ReduceSum", "g3", "less", keepdims=0),
        node("Add", "f total", "a"),
        node("Mul", "a less", "y"),
    ]
    x = np.random.default_rng(0).standard_normal((2, 4, 9, 9)).astype("f4")
    proto = model(nodes, {"x": x.shape}, ["y"], held)
    agree(proto, {"x": x})
    np.testing.assert_allclose(lc.load(proto)(x), reference(proto, {"x": x})["y"], rtol=1e-5)


def moved(nodes: list[onnx.NodeProto], **shapes: list[int]) -> bytes:
    arrays = {name: np.array(shape) for name, shape in shapes.items()}
    return network([*nodes, node("ReduceMax", "k", "m", keepdims=0), node("Add", "x m")], arrays)


@pytest.mark.parametrize(
    "data",
    [
        dense(MIB + 1),
        dense(MIB // 4, layers=5),
        moved([filled("k", "s")], s=[2**30]),
        moved([filled("a", "s"), node("Reshape", "a t", "k")], s=[2**28 - 8], t=[8, -1]),
        moved([filled("a", "s"), node("Expand", "a t", "k")], s=[1], t=[2**30]),
        moved([filled("a", "s"), node("Transpose", "a", "k")], s=[2**14, 2**14 - 1]),
    ],
)
def test_repeated_numbers_are_bounded_all_together(data: bytes) -> None:
    with bounded(), pytest.raises(UnsupportedError, match="over 1 GiB; expected"):
        ready(data)


def test_what_reads_repeated_numbers_is_paid_for() -> None:
    data = moved([filled("a", "s"), node("Neg", "a", "k")], s=[2**26])
    with bounded(), pytest.raises(UnsupportedError, match="over 64 MiB of traffic; expected"):
        ready(data)


def test_layers_that_share_repeated_numbers_do_not_copy_them_without_end() -> None:
    """Every layer asks for other multiples of one matrix of 8 MiB, in a file of two kilobytes."""
    nodes = [filled("w", "s")]
    nodes += [node("Gemm", "x w", f"y{i}", alpha=2.0 + i) for i in range(20)]
    nodes.append(node("Sum", " ".join(f"y{i}" for i in range(20))))
    data = model(nodes, {"x": (1, 256)}, ["y"], {"s": np.array([256, 8192])})
    with bounded(5, 96 * MIB):
        graph = ready(data.SerializeToString())
    made = sum(a.nbytes for a in graph.constants.values() if not is_filled(a))
    assert 8 * MIB <= made <= (8 + 16) * MIB
