"""What sizes of a network share is said, and what parts them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.cli.explain_sizes import larger_shapes, network_sharing
from leanconv.errors import ModelError
from leanconv.planner.explain import Shared, what_is_shared
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.onnx_models import model, reference
from support.small_kernels import conv_kernel


@pytest.fixture(scope="module")
def net() -> lc.Network:
    """A layer that all sizes share, one that looks at the size, and a matrix of pixels."""
    held = {
        "w": np.ones((16, 3, 3, 3), np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "shape": np.array([0, 16, -1]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Resize", ["a", "", "scales"], ["b"], name="cubic", mode="cubic"),
        helper.make_node("Reshape", ["a", "shape"], ["m"], name="matrix"),
        helper.make_node("Transpose", ["m"], ["y"], name="turned", perm=[0, 2, 1]),
    ]
    proto = model(nodes, {"x": (1, 3, "H", "W")}, ["y", "b"], held)
    return lc.load(proto.SerializeToString(), threads=1)


def test_what_is_shared_by_sizes(net: lc.Network) -> None:
    every = [{"x": (1, 3, 32, width)} for width in (40, 72, 104, 136, 24)]
    rows, refused = network_sharing(net, every)
    assert not refused
    found = {(row.level, row.name): row for row in rows}
    layers = {name.split()[1]: row for (level, name), row in found.items() if level == "layer"}
    assert (layers["first"].kept, layers["first"].refusals) == (1, [])
    assert layers["first"].served >= 3
    conv = found["kernel", "DirectConv"]
    assert (conv.kept, conv.served) == (1, len(every))
    (graph,) = (row for row in rows if row.level == "graph" and row.kept)
    assert graph.name == "for open H, W"
    (search,) = (row for row in rows if row.level == "search")
    assert (search.name, search.kept, search.refusals) == ("H 96, W 96", 1, [])
    assert search.served >= len(every)
    parted = [row for row in rows if row.kept > 1]
    assert parted
    assert all(row.parted_by for row in parted)


def test_kernels_that_differ_in_more_than_sizes_have_rows_of_their_own() -> None:
    """Two forms of one row are parted by guards; other kernels of the class say nothing of it."""
    target, size = preset("znver3"), "ic16ih14oc16kh3ph1"
    kernels = [conv_kernel(size, target, dtype=dtype) for dtype in (FLOAT32, FLOAT64)]
    rows = [row for row in what_is_shared([], kernels, target) if row.level == "kernel"]
    assert [(row.kept, row.served) for row in rows] == [(1, 1), (1, 1)]


def test_what_is_made_for_each_size_says_why() -> None:
    proto = model(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[3] * 4)],
        {"x": (1, 8, "H", "W")},
        ["y"],
        {"w": np.ones((8, 8, 7, 7), np.float32)},
    )
    spectral = lc.load(proto.SerializeToString(), threads=1, algorithms={"c": "fft"})
    rows, _ = network_sharing(spectral, [{"x": (1, 8, 48, width)} for width in (48, 56, 72)])
    (layer,) = (row for row in rows if row.level == "layer")
    assert layer.kept == 0
    assert "looks <" in layer.refusals[0]


def test_shapes_that_do_not_fit_are_left_out(net: lc.Network) -> None:
    rows, refused = network_sharing(net, [{"x": (1, 3, 16, 16)}, {"x": (1, 4, 16, 16)}])
    assert all(isinstance(row, Shared) for row in rows)
    assert len(refused) == 1
    assert refused[0].startswith("x 1x4x16x16: ")
    with pytest.raises((ModelError, lc.InputError)):
        network_sharing(net, [{"x": (1, 4, 16, 16)}])


def test_each_axis_is_larger_by_itself(net: lc.Network) -> None:
    shapes = [each["x"] for each in larger_shapes(net, {"x": (1, 3, 8, 10)})]
    assert shapes == [
        (1, 3, 8, 10),
        (1, 3, 8, 20),
        (1, 3, 8, 30),
        (1, 3, 16, 10),
        (1, 3, 24, 10),
        (1, 3, 16, 20),
        (1, 3, 24, 30),
    ]


def test_kernels_in_planes_and_numbers_that_follow_from_sizes_are_shared() -> None:
    """1x1 and general kernels of plain tensors; a product with columns' numbers."""
    r = np.random.default_rng(0)
    held = {
        "one": r.integers(-3, 4, (3, 16, 1, 1)).astype(np.float32),
        "all": r.integers(-3, 4, (2, 16, 5, 5)).astype(np.float32),
        "axis": np.array(3),
        "zero": np.array(0),
        "step": np.array(1),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis"], ["W"]),
        helper.make_node("Range", ["zero", "W", "step"], ["places"]),
        helper.make_node("Cast", ["places"], ["columns"], to=1),
        helper.make_node("Mul", ["x", "columns"], ["a"], name="columns"),
        helper.make_node("Conv", ["x", "one"], ["b"], name="one"),
        helper.make_node("Conv", ["x", "all"], ["c"], name="all", pads=[2] * 4),
    ]
    proto = model(nodes, {"x": ("N", 16, "H", "W")}, ["a", "b", "c"], held)
    planar = {"one": "planar", "all": "planar"}
    net = lc.load(proto.SerializeToString(), threads=1, algorithms=planar)
    every = [{"x": (1, 16, *size)} for size in ((9, 150), (12, 170), (31, 181))]
    rows, refused = network_sharing(net, every)
    assert not refused
    assert {"PlanarPointwise", "PlanarConv"} <= {row.name for row in rows}
    layers = [row for row in rows if row.level == "layer"]
    assert {row.name.split()[1].split("_")[0] for row in layers} >= {"columns", "one", "all"}
    assert all((row.served or row.parted_by) and not row.refusals for row in layers), layers
    assert sum(bool(row.served) for row in layers) > 1  # a cache's bytes may part one
    for each in every:
        x = r.integers(-3, 4, each["x"]).astype(np.float32)
        found, wanted = net.run({"x": x}), reference(proto, {"x": x})
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
