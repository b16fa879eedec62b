"""Forms of the planar kernels: how many there are over sizes, and that the bits stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.planar.depthwise import PlanarDepthwise
from leanconv.algorithms.planar.kernel import PlanarConv
from leanconv.algorithms.planar.pointwise import PlanarPointwise
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.spec import Activation, ConvSpec
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support.forms import constant, same_bits, shared, texts
from support.small_kernels import kernel_of, problem

EPILOGUE = {"bias": True, "residual": True, "activation": Activation.parse("prelu")}


def general(text: str, target: Target, vectors: int, **changes: Any) -> PlanarConv:
    """The kernel of any window, of tiles of two channels."""
    given = problem(text, target, False, **changes).conv
    return PlanarConv(conv=given, lanes=given.lanes(target), channels=2, vectors=vectors, rows=3)


def depthwise(text: str, target: Target, vectors: int, **changes: Any) -> PlanarDepthwise:
    """The depthwise kernel, of tiles of two rows."""
    given = problem(text, target, False, **changes).conv
    sizes = {"planes": 1, "rows": 2, "vectors": vectors, "plane_block": 2, "row_block": 2}
    return PlanarDepthwise(conv=given, lanes=given.lanes(target), **sizes)


def pointwise(text: str, target: Target, vectors: int, **changes: Any) -> PlanarPointwise:
    """The 1x1 kernel, of tiles of three channels."""
    kernel = kernel_of(text, target, False, "planar", **changes)
    assert isinstance(kernel, PlanarPointwise)
    tile = Tile(3, vectors)
    return replace(kernel, tile=tile, column_tiles=2, panel_block=2, prefetch=False)


def square(text: str, width: int, *, stride: int = 1) -> str:
    out = (width - 1) // stride + 1
    return f"mb{2 + width % 3}{text}ih{width}iw{width}oh{out}ow{out}"


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("text", "stride"),
    [("ic3oc6kh3ph1", 1), ("ic3oc6kh5ph2", 1), ("ic3oc6kh3ph1sh2", 2), ("ic3oc6kh7ph3sh2", 2)],
)
@pytest.mark.parametrize("vectors", [1, 3])
def test_rows_end_in_few_ways(text: str, stride: int, vectors: int) -> None:
    target = preset("znver4")
    kernels = [general(square(text, n, stride=stride), target, vectors) for n in range(100, 400, 3)]
    of_a_size = 4 if stride == 2 else 1  # even sizes and odd ones, in one load or two
    assert texts(kernels, target) <= of_a_size * 2 * vectors


@pytest.mark.parametrize("vectors", [1, 3])
def test_depthwise_rows_end_in_few_ways(vectors: int) -> None:
    target = preset("znver4")
    kernels = [depthwise(square("g6ic6oc6kh3ph1", n), target, vectors) for n in range(100, 400, 6)]
    assert texts(kernels, target) <= 2 * vectors


@pytest.mark.parametrize("vectors", [1, 3])
def test_maps_of_pixels_end_in_few_ways(vectors: int) -> None:
    target = preset("znver4")
    kernels = [pointwise(square("ic40oc7kh1", n), target, vectors) for n in range(20, 60)]
    assert texts(kernels, target) <= 2 * vectors


def test_planar_kernels_of_equal_ends_share_a_form() -> None:
    sizes = 97, 113, 129 if host().lanes(FLOAT32) <= 16 else 161
    for make, text in (
        (general, "ic3oc6kh3ph1"),
        (depthwise, "g6ic6oc6kh3ph1"),
        (pointwise, "ic5oc7kh1"),
    ):
        assert shared(make(square(text, size), host(), 1) for size in sizes)


def arrays_of(kernel: Kernel, text: str, dtype: str) -> list[np.ndarray]:
    spec = ConvSpec.parse(text, dtype=dtype, **EPILOGUE)
    generator = np.random.default_rng(len(text))
    shapes = {
        "x": spec.input_shape,
        "w": spec.weight_shape,
        "bias": spec.out_channels,
        "slope": spec.out_channels,
        "residual": spec.output_shape,
    }
    names = kernel.operands[:-1]
    arrays = [generator.standard_normal(shapes[name]).astype(dtype) for name in names]
    return [*arrays, np.full(spec.output_shape, np.nan, dtype)]


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("width", [2, 5, 16, 17, 31, 33, 50, 64, 66])
@pytest.mark.parametrize(
    ("text", "stride"),
    [("ic3oc6kh3ph1", 1), ("ic2oc2kh5ph8dh3", 1), ("ic3oc4kh7ph3sh2", 2), ("ic2oc2kh9ph4sh3", 3)],
)
def test_planar_words_give_the_bits_of_constants(
    text: str, stride: int, width: int, dtype: str
) -> None:
    given = square(text, width, stride=stride)
    changes = {"dtype": dtype, **EPILOGUE}
    kernel = general(given, host(), 2, **changes)
    same_bits(kernel, *arrays_of(kernel, given, dtype))


@pytest.mark.drawn
@pytest.mark.parametrize("width", [2, 7, 16, 29, 40, 66])
@pytest.mark.parametrize("make", [depthwise, pointwise])
def test_depthwise_and_pointwise_words_give_the_bits_of_constants(make: Any, width: int) -> None:
    given = square("g6ic6oc6kh3ph1" if make is depthwise else "ic6oc7kh1", width)
    kernel = make(given, host(), 2, **EPILOGUE)
    same_bits(kernel, *arrays_of(kernel, given, FLOAT32))


def test_code_with_constants_is_that_of_one_size() -> None:
    kernels = [constant(general(square("ic3oc6kh3ph1", n), host(), 1)) for n in (97, 113)]
    assert not shared(kernels)
