"""Which values of a network of float32 stay float32 where the others are stored in halves."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.graph.ir import Graph
from leanconv.graph.passes.fuse_chains import separated
from leanconv.graph.passes.store_in_halves import store_in_halves
from leanconv.graph.verify import verify
from leanconv.types import FLOAT16, FLOAT32, INT64, DType
from support.graph_builder import Builder
from support.interpret import interpret

SHAPE = (1, 8, 32, 32)  # values of more than 4096 elements are stored in halves


def stored(graph: Graph) -> Graph:
    """The graph with values in float16, one node for each operation."""
    return separated(verify(store_in_halves(graph, FLOAT16)))


def as_large(op: str, b: Builder, x: str) -> str:
    """The results of an operation that are as large as what it reads."""
    if op == "Where":
        return b.op(op, b.op("Less", b.input(*SHAPE), 0.0), x, x)
    if op in ("Max", "Min"):
        return b.op(op, x, x)
    if op == "PRelu":
        return b.op(op, x, 0.1)
    if op == "Clip":
        return b.op(op, x, min=-1e9, max=1e9)
    if op in ("MaxPool", "AveragePool"):
        return b.pool(x, (2, 2), op)
    if op == "LRN":
        return b.op(op, x, size=3, alpha=0.0, beta=0.5, bias=1.0)
    if op == "Resize":
        given = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}
        sizes, scales = (1, 8, 64, 64), (1.0, 1.0, 2.0, 2.0)
        return b.op(op, x, mode="linear", sizes=sizes, scales=scales, **given)
    if op == "Resample":
        given = {"coordinate_transformation_mode": "half_pixel", "cubic_coeff_a": -0.75}
        given |= {"mode": "cubic", "exclude_outside": False, "antialias": False}
        return b.op(op, x, axes=(3,), sizes=(64,), scales=(2.0,), rois=((0.0, 1.0),), **given)
    if op == "ReduceMax":
        return b.op(op, x, axes=(0,), keepdims=True)
    return b.op(op, x)


@pytest.mark.parametrize(
    "op",
    [
        *("Relu", "Where", "MaxPool", "ReduceMax", "Max", "Abs", "Clip", "PRelu", "Softplus"),
        *("AveragePool", "LRN", "Resize", "Resample"),
    ],
)
def test_what_is_as_large_as_its_inputs_overflows_no_more_than_they(op: str) -> None:
    b = Builder(FLOAT32)
    x = b.input(*SHAPE)
    y = b.op("Log", as_large(op, b, b.op("Exp", x)))
    graph = stored(b.graph(y))
    inputs = {name: np.full(SHAPE, 12, np.float32) for name in graph.inputs}  # e^12 > 65504
    expected = interpret(b.graph(y), inputs)[y]
    np.testing.assert_array_equal(interpret(graph, inputs)[y], expected)


@pytest.mark.parametrize(("op", "kept"), [("Add", FLOAT32), ("Max", FLOAT32), ("Mul", FLOAT16)])
def test_sums_with_exponentials_overflow_no_more_than_they(op: str, kept: DType) -> None:
    """A factor, as that of a normalisation, may make what is large small."""
    b = Builder(FLOAT32)
    both = b.op(op, b.op("Exp", b.input(*SHAPE)), b.input(*SHAPE))
    y = b.op("Log", both)
    graph = stored(b.graph(y))
    assert graph.types[both].dtype == kept
    large, small = np.full(SHAPE, 12, np.float32), np.full(SHAPE, 2**-9, np.float32)
    inputs = dict(zip(graph.inputs, (large, small), strict=True))
    expected = interpret(b.graph(y), inputs)[y]
    np.testing.assert_allclose(interpret(graph, inputs)[y], expected, rtol=1e-3)


@pytest.mark.parametrize("op", ["Relu", "Max", "Abs", "Neg", "Clip", "PRelu", "Resize"])
def test_scores_before_a_softmax_stay_float32_where_their_errors_are_kept(op: str) -> None:
    b = Builder(FLOAT32)
    scores = b.op("Add", b.input(*SHAPE), b.input(*SHAPE))
    y = b.op("Softmax", as_large(op, b, scores), axis=1)
    graph = stored(b.graph(y))
    assert graph.types[scores].dtype == FLOAT32


@pytest.mark.parametrize("op", ["Sin", "Cos", "Tan", "Exp", "Sinh", "Cosh"])
def test_large_angles_and_exponents_stay_float32(op: str) -> None:
    """Half precision has no digits of 2048.5: the sine would be that of another angle."""
    b = Builder(FLOAT32)
    x = b.op("Mul", b.input(*SHAPE), 2.0)
    y = b.op(op, x)
    graph = stored(b.graph(y))
    assert graph.types[x].dtype == FLOAT32
    inputs = {name: np.full(SHAPE, 1024.25, np.float32) for name in graph.inputs}
    expected = interpret(b.graph(y), inputs)[y]
    np.testing.assert_array_equal(interpret(graph, inputs)[y], expected)


@pytest.mark.parametrize("how", ["Mod", "Floor", "int64"])
def test_what_counts_stays_float32(how: str) -> None:
    """Half precision has no 2049: an index would be another one, and a remainder nothing."""
    b = Builder(FLOAT32)
    x = b.op("Mul", b.input(*SHAPE), 2.0)
    if how == "Mod":
        y = b.op("Mul", b.op("Mod", x, 2.0, fmod=False), 1.5)
    else:
        y = b.op("Cast", b.op("Floor", x) if how == "Floor" else x, to=INT64)
    graph = stored(b.graph(y))
    assert graph.types[x].dtype == FLOAT32
    inputs = {name: np.full(SHAPE, 1024.5, np.float32) for name in graph.inputs}
    expected = interpret(b.graph(y), inputs)[y]
    np.testing.assert_array_equal(interpret(graph, inputs)[y], expected)


def test_means_of_scores_stay_float32_but_not_what_they_are_means_of() -> None:
    b = Builder(FLOAT32)
    scores = b.op("Add", b.input(*SHAPE), b.input(*SHAPE))
    mean = b.op("ReduceMean", scores, axes=(0,), keepdims=True)
    graph = stored(b.graph(b.op("Softmax", mean, axis=1)))
    assert (graph.types[scores].dtype, graph.types[mean].dtype) == (FLOAT16, FLOAT32)


@pytest.mark.parametrize("moved", [False, True])
def test_places_in_images_stay_float32_where_they_are_made(moved: bool) -> None:
    b = Builder(FLOAT32)
    image, base, shift = b.input(1, 2, 64, 64), b.input(4096, 2), b.input(4096, 2)
    places = b.op("Add", base, b.op("Tanh", shift))
    if moved:
        places = b.op("Add", b.input(2, 4096), b.op("Tanh", b.input(2, 4096)))
    read = b.op("Transpose", places, perm=(1, 0)) if moved else places
    y = b.op(
        "GridSample",
        image,
        read,
        mode="linear",
        padding_mode="zeros",
        align_corners=False,
        sizes=(64, 64),
    )
    graph = stored(b.graph(y))
    assert graph.types[places].dtype == FLOAT32


def test_regions_of_interest_stay_float32_where_they_are_made() -> None:
    b = Builder(FLOAT32)
    regions = b.op("Mul", b.input(4, 2048), 16.0)
    images = b.op("Cast", b.input(2048), to=INT64)
    y = b.op(
        "RoiAlign",
        b.input(1, 2, 64, 64),
        b.op("Transpose", regions, perm=(1, 0)),
        images,
        mode="avg",
        half_pixel=True,
        sampling_ratio=1,
        spatial_scale=1.0,
        sizes=(2, 2),
    )
    graph = stored(b.graph(y))
    assert graph.types[regions].dtype == FLOAT32
