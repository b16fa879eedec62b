"""What the machine is given: multiply-adds as counted, nothing spilled, every target served."""

from __future__ import annotations

import re

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.codegen.tiling import fits, rank_tiles
from leanconv.spec import ConvSpec
from leanconv.target import PRESETS, preset
from leanconv.types import FLOAT32, FLOAT64
from support.kernel_runner import run_kernel
from support.listing import assembly, innermost_loops, multiply_loops
from support.packing import packed_constants
from support.small_kernels import candidate, conv_kernel, kernel_of, reference, with_tile

WIDE = [(14, 2), (9, 3), (8, 3), (6, 4), (7, 2), (28, 1)]
NARROW = [(6, 2), (4, 3), (12, 1)]
TILES = [
    *[(name, *tile) for name in ("skylake-avx512", "znver4") for tile in WIDE],
    *[(name, *tile) for name in ("haswell", "znver3") for tile in NARROW],
    # 14x2 is left out: LLVM keeps two scalars besides, and one accumulator goes to the stack.
    *[("neoverse-n1", *tile) for tile in WIDE[1:]],
]
# Maps are four tiles wide, so that there are whole tiles; rows of 1x1 maps may be merged.
SHAPES = {
    "1x1": "ic{c}ih4iw{w}oc{k}oh4ow{w}kh1",
    "3x3 without padding": "ic{c}ih6iw{p}oc{k}oh4ow{w}kh3",
}


@pytest.mark.drawn
@pytest.mark.parametrize(("name", "rows", "vectors"), TILES)
@pytest.mark.parametrize("shape", SHAPES)
def test_inner_loop_has_its_multiply_adds_and_no_spills(
    shape: str, name: str, rows: int, vectors: int
) -> None:
    target = preset(name)
    width = 4 * rows
    text = SHAPES[shape].format(c=64, w=width, p=width + 2, k=2 * vectors * target.lanes(FLOAT32))
    kernel = with_tile(conv_kernel(text, target), rows, vectors)
    loops = multiply_loops(assembly(kernel, target))
    rest = kernel.conv.window.out[2] % rows
    assert {loop.fmas for loop in loops} == {rows * vectors} | ({rest * vectors} if rest else set())
    for loop in loops:
        assert not loop.stack_references


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["skylake-avx512", "haswell", "neoverse-n1"])
@pytest.mark.parametrize(
    "text",
    [
        "ic64ih56oc64oh56kh3ph1",
        "ic64ih56oc256kh1oh56",
        "ic128ih28oc128oh14kh3ph1sh2",
        "ic960ih7oc160oh7kh1",
        "ic512ih7oc512oh7kh3ph1",
    ],
)
def test_real_layers_spill_no_vector_in_the_loop_over_channels(text: str, name: str) -> None:
    """Layers in blocks and plain, with the tile that the model chose."""
    target = preset(name)
    for blocked in (True, False):
        kernel = conv_kernel(text, target, blocked)
        tile = kernel.tile
        assert fits(target, tile.rows, tile.vectors)
        loops = multiply_loops(assembly(kernel, target))
        size = tile.rows * tile.vectors
        assert any(loop.fmas % size == 0 for loop in loops)
        for loop in loops:
            # Eight steps of a block of channels are written out: there LLVM may move a few loads.
            allowed = 0 if loop.fmas <= size else loop.fmas // 20
            if name == "neoverse-n1" and (tile.rows, tile.vectors) == (5, 5):
                allowed = 2 if loop.fmas <= size else 8  # all registers but one are taken
            assert len(loop.vector_spills) <= allowed


def test_every_tile_that_fits_keeps_a_register_for_each_part() -> None:
    for target in PRESETS.values():
        for _, tile in rank_tiles(target, columns=56, channel_vectors=8, steps=576):
            used = tile.rows * tile.vectors + tile.vectors + 1
            assert used <= target.registers


def test_spills_are_seen() -> None:
    """The check itself can fail: a tile that is too large spills."""
    target = preset("haswell")
    kernel = with_tile(conv_kernel("ic64ih4iw56oc64oh4ow56kh1", target), 14, 2)
    loops = multiply_loops(assembly(kernel, target))
    assert any(loop.stack_references for loop in loops)


# -- every target --------------------------------------------------------------------------
PROBLEMS = {
    "dense 3x3": ("direct", "ic18ih7oc36oh7kh3ph1", {"bias": True}),
    "dense 1x1 residual": ("direct", "ic32ih14oc32oh14kh1", {"bias": True, "residual": True}),
    "first layer": ("direct", "ic3ih32oc24oh16kh3sh2ph1", {}),
    "depthwise 3x3": ("depthwise", "g40ic40ih14oc40oh14kh3ph1", {"bias": True}),
    "depthwise 5x5 stride 2": ("depthwise", "g32ic32ih15oc32oh8kh5ph2sh2", {}),
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("what", PROBLEMS)
def test_every_target_gets_code(what: str, name: str) -> None:
    algorithm, text, changes = PROBLEMS[what]
    target = preset(name)
    for dtype in (FLOAT32, FLOAT64):
        blocked = dtype == FLOAT32 or algorithm == "depthwise"
        kernel = kernel_of(text, target, blocked, algorithm, dtype=dtype, **changes)
        listing = assembly(kernel, target)
        letter = "ps" if dtype == FLOAT32 else "pd"
        if target.isa == "neon":
            assert "fmla" in listing
            assert (".4s" if dtype == FLOAT32 else ".2d") in listing
        elif target.isa == "wasm":
            kind = "f32x4" if dtype == FLOAT32 else "f64x2"
            assert {f"{kind}.mul", f"{kind}.add"} <= set(listing.split())
        else:
            register = {"avx2": "%ymm", "avx512": "%zmm"}[target.isa]
            assert re.search(rf"vfmadd\d+{letter}\s.*{register}", listing)
            assert ("%zmm" in listing) == (target.isa == "avx512")
        assert not re.search(r"^\s+(call|bl)\s", listing, re.MULTILINE)  # no library's function


def test_depthwise_does_not_spill_in_its_loops() -> None:
    for name in ("skylake-avx512", "haswell", "neoverse-n1"):
        target = preset(name)
        for text in ("g96ic96ih56oc96oh56kh3ph1", "g144ic144ih56oc144oh28kh3ph1sh2"):
            kernel = kernel_of(text, target, True, "depthwise")
            for loop in innermost_loops(assembly(kernel, target)):
                assert not loop.stack_references


def _blocks(array: np.ndarray, block: int) -> np.ndarray:
    n, c, h, w = array.shape
    return array.reshape(n, c // block, block, h, w).transpose(0, 1, 3, 4, 2).copy()


@pytest.mark.parametrize("name", ["haswell", "znver2"])
@pytest.mark.parametrize(
    "text",
    [
        "ic24ih13oc40oh13kh3ph1",
        "ic16ih11oc16oh6kh3ph1sh2",
        "mb2ic40ih7oc24oh7kh1",
        "g24ic24ih9oc24oh9kh3ph1",
        "g16ic16ih10oc16oh5kh5ph2sh2",
    ],
)
@pytest.mark.parametrize("blocked", [True, False])
def test_avx2_code_runs_here_and_is_exact(blocked: bool, text: str, name: str) -> None:
    if host().isa not in ("avx2", "avx512"):
        pytest.skip("this machine runs no AVX2 code")
    target, spec, random = preset(name), ConvSpec.parse(text), np.random.default_rng(5)
    grouped = blocked and spec.groups > 1
    chosen = candidate(text, target, blocked, "depthwise" if grouped else "direct")
    kernel = chosen.kernels[0].kernel
    x = random.integers(-4, 5, spec.input_shape).astype("f4")
    w = random.integers(-4, 5, spec.weight_shape).astype("f4")
    y = reference(x, w, spec)
    packed = packed_constants(chosen, w)
    given, wanted = (_blocks(x, 8), _blocks(y, 8)) if blocked else (x, y)
    values = {"x": given, **packed, "y": np.full(wanted.shape, np.nan, "f4")}
    found = run_kernel(
        kernel,
        *(values[operand] for operand in kernel.operands),
        target=target,
        parts=[kernel.chunks // 3, kernel.chunks // 2],
    )
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("text", ["ic64ih28oc64oh28kh3ph1", "ic128ih14oc128oh14kh1"])
def test_neon_multiplies_by_lanes_of_one_load(text: str) -> None:
    """Four steps load each row's input once, and a factor of every multiply-add is a lane."""
    target = preset("neoverse-n1")
    kernel = conv_kernel(text, target, True)
    assert kernel.by_lane
    loop = max(multiply_loops(assembly(kernel, target)), key=lambda loop: loop.fmas)
    assert loop.fmas == 4 * kernel.tile.rows * kernel.tile.vectors
    lanes = [line[-2] for line in loop.lines if "fmla" in line and line.endswith("]")]
    assert {lanes.count(lane) for lane in "0123"} == {loop.fmas // 4}
    assert not any("ld1r" in line or " s" in line.split(",")[0] for line in loop.lines)
    assert not loop.vector_spills
