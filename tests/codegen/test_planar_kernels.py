"""The planar kernels: every form exact on small integers, nothing touched outside, no spills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms.planar.columns import column_vectors, shared_loads
from leanconv.algorithms.planar.depthwise import PlanarDepthwise, plan_planar_depthwise
from leanconv.algorithms.planar.kernel import PlanarConv
from leanconv.algorithms.planar.pointwise import PlanarPointwise
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.tiling import Tile
from leanconv.spec import Activation, ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.kernel_runner import run_kernel
from support.listing import assembly, multiply_loops
from support.packing import packed_weights
from support.small_kernels import kernel_of, problem, reference

EPILOGUE = {"bias": True, "residual": True, "activation": Activation.parse("prelu")}


def check(kernel: Kernel, spec: ConvSpec) -> None:
    """Hold a planar kernel with the whole epilogue to the definition, exactly."""
    generator = np.random.default_rng(7)

    def integers(*shape: int) -> np.ndarray:
        return generator.integers(-4, 5, shape).astype(spec.dtype)

    x, w = integers(*spec.input_shape), integers(*spec.weight_shape)
    bias, slope = integers(spec.out_channels), integers(spec.out_channels)
    residual = integers(*spec.output_shape)
    packed = w.reshape(-1)
    if isinstance(kernel, PlanarPointwise):
        packed = packed_weights(kernel, w[:, :, np.newaxis])
    y = np.full(spec.output_shape, np.nan, spec.dtype)
    found = run_kernel(kernel, x, packed, bias, residual, slope, y, parts=[kernel.chunks // 2])
    sums = reference(x, w, spec) + bias.reshape(1, -1, 1, 1) + residual
    expected = np.where(sums > 0, sums, sums * slope.reshape(1, -1, 1, 1))
    assert np.array_equal(found, expected)


def planar(text: str, **changes: Any) -> tuple[Kernel, ConvSpec]:
    """The planar kernel of a problem for this machine, and its spec."""
    changes = {**EPILOGUE, **changes}
    return kernel_of(text, host(), False, "planar", **changes), ConvSpec.parse(text, **changes)


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    "text",
    [
        "ic1ih1oc1oh1kh1",
        "ic5ih7oc3oh7kh1",
        "mb2g2ic6ih5iw3oc10oh5ow3kh1",
        "ic16ih4iw21oc33oh4ow21kh1",
        "ic130ih9oc19oh9kh1",  # partial sums
        "mb2g3ic24ih16oc30oh16kh1",
        "ic40ih90oc36oh90kh1",  # large enough to ask for lines ahead
    ],
)
def test_pointwise_is_exact(text: str, dtype: str) -> None:
    kernel, spec = planar(text, dtype=dtype)
    assert isinstance(kernel, PlanarPointwise)
    check(kernel, spec)


@pytest.mark.parametrize("tile", [(1, 1), (5, 1), (3, 2), (4, 4), (2, 6)])
@pytest.mark.parametrize(("column_tiles", "panel_block"), [(1, 1), (2, 3), (99, 99)])
@pytest.mark.parametrize("prefetch", [False, True])
def test_pointwise_tiles_and_chunks(
    tile: tuple[int, int], column_tiles: int, panel_block: int, prefetch: bool
) -> None:
    kernel, spec = planar("mb2ic9ih13oc14oh13kh1")
    assert isinstance(kernel, PlanarPointwise)
    chosen = replace(kernel, tile=Tile(*tile), prefetch=prefetch)
    tiles = -(-chosen.pixels // chosen.span)
    columns, panels = min(column_tiles, tiles), min(panel_block, chosen.panels)
    check(replace(chosen, column_tiles=columns, panel_block=panels), spec)


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    "text",
    [
        "g6ic6ih7oc6oh7kh3",
        "mb2g5ic5ih7oc5oh7kh7",
        "g3ic3ih14oc3oh14kh5",
        "g2ic2ih28oc2oh28kh7",
        "g4ic4ih15iw33oc4oh8ow17kh3sh2ph1",
        "g4ic4ih30oc4oh24kh3dh2",
        "g2ic2ih33oc2oh17kh5sh2ph2",
        "g4ic4ih40oc4oh13kh4sh3",
        "g2ic2ih1iw40oc2oh1ow38kh1kw3",
        "g2ic2ih3oc2oh9kh3dh1ph5",  # rows that touch nothing but padding
        "g3ic3ih113iw5oc3oh113ow5kh3",
    ],
)
def test_depthwise_is_exact(text: str, dtype: str) -> None:
    given = problem(text, host(), False, dtype=dtype, **EPILOGUE)
    sizes = {"planes": 1, "rows": 1, "vectors": 1, "plane_block": 1, "row_block": 1}
    kernel = PlanarDepthwise(conv=given.conv, lanes=given.conv.lanes(host()), **sizes)
    planned = plan_planar_depthwise(kernel, host())
    assert planned is not None
    check(planned[0], ConvSpec.parse(text, dtype=dtype, **EPILOGUE))


@pytest.mark.drawn
@pytest.mark.parametrize(
    "text", ["mb2g4ic4ih11iw37oc4oh11ow37kh3", "g4ic4ih11iw37oc4oh6ow19kh3sh2ph1"]
)
@pytest.mark.parametrize(
    ("planes", "rows", "vectors"), [(1, 1, 1), (1, 3, 2), (2, 2, 1), (2, 6, 1), (1, 4, 3)]
)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("block", [1, 2])
def test_depthwise_tiles_and_chunks(
    text: str, planes: int, rows: int, vectors: int, half: bool, block: int
) -> None:
    kernel, spec = planar(text)
    assert isinstance(kernel, PlanarDepthwise)
    lanes = host().lanes(spec.dtype) // (2 if half else 1)
    chosen = replace(
        kernel,
        lanes=lanes,
        planes=planes,
        rows=rows,
        vectors=vectors,
        plane_block=block,
        row_block=block,
    )
    check(chosen, spec)


@pytest.mark.parametrize(
    "text", ["ic3ih33oc7oh17kh3sh2ph1", "ic3ih50oc8oh25kh7sh2ph3", "ic2ih30oc4oh30kh9"]
)
def test_other_planar_convolutions_are_exact(text: str) -> None:
    kernel, spec = planar(text)
    assert isinstance(kernel, PlanarConv)
    check(kernel, spec)


def test_taps_of_a_stride_share_their_loads() -> None:
    def shared(text: str) -> dict[int, list[tuple[int, int]]]:
        kernel = kernel_of(text, preset("znver4"), False, "planar")
        assert isinstance(kernel, PlanarConv)
        return shared_loads(kernel.conv.window)

    assert shared("ic3ih33oc7oh17kh3sh2ph1") == {0: [(0, 0), (1, 1)], 2: [(2, 0)]}
    assert shared("ic3ih33oc7oh33kh3") == {0: [(0, 0)], 1: [(1, 0)], 2: [(2, 0)]}
    assert shared("ic3ih40oc7oh18kh3sh2dh1ph0") == {0: [(0, 0)], 1: [(1, 0)], 2: [(2, 0)]}


def test_vectors_cover_every_column_once() -> None:
    target = preset("znver4")
    for width in range(1, 70):
        kernel = kernel_of(f"g2ic2ih{width}oc2oh{width}kh3", target, False, "planar")
        assert isinstance(kernel, PlanarDepthwise)
        for vectors in (1, 2, 3):
            tiles = column_vectors(kernel.conv.window, 16, vectors, target)
            assert sum(tile.count * sum(tile.live) for tile in tiles) == width


@pytest.mark.parametrize(
    ("name", "width", "lanes"),
    [("znver4", 7, 8), ("znver5", 7, 8), ("znver5", 9, 16), ("znver5", 24, 16), ("haswell", 7, 8)],
)
def test_half_registers_are_used_for_columns_that_fill_them(
    name: str, width: int, lanes: int
) -> None:
    text = f"g64ic64ih{width}oc64oh{width}kh3ph1"
    kernel = kernel_of(text, preset(name), False, "planar")
    assert isinstance(kernel, PlanarDepthwise)
    assert kernel.lanes == lanes


def test_few_weights_of_a_channel_stay_in_registers() -> None:
    for text, held in (("g64ic64ih14oc64oh14kh3ph1", True), ("g64ic64ih14oc64oh14kh7ph3", False)):
        kernel = kernel_of(text, preset("znver5"), False, "planar")
        assert isinstance(kernel, PlanarDepthwise)
        assert kernel.holds_weights == held
        for loop in multiply_loops(assembly(kernel, preset("znver5"))):
            assert not loop.vector_spills


@pytest.mark.parametrize("name", ["znver4", "haswell", "neoverse-n1"])
@pytest.mark.parametrize(
    "text", ["ic64ih56oc64oh56kh1", "ic768ih17oc192oh17kh1", "ic24ih56oc144oh56kh1"]
)
def test_pointwise_loops_have_their_multiply_adds_and_no_spills(name: str, text: str) -> None:
    target = preset(name)
    kernel = kernel_of(text, target, False, "planar")
    assert isinstance(kernel, PlanarPointwise)
    loops = multiply_loops(assembly(kernel, target))
    assert kernel.tile.rows * kernel.tile.vectors in {loop.fmas for loop in loops}
    for loop in loops:
        assert not loop.vector_spills


@pytest.mark.parametrize("text", ["g64ic64ih7oc64oh7kh7", "g64ic64ih56oc64oh56kh3"])
def test_depthwise_keeps_its_sums_in_registers(text: str) -> None:
    target = preset("znver4")
    kernel = kernel_of(text, target, False, "planar")
    assert isinstance(kernel, PlanarDepthwise)
    listing = assembly(kernel, target)
    spilled = sum("(%rsp)" in line and "mm" in line for line in listing.splitlines())
    assert spilled * 20 <= listing.count("vfmadd")
