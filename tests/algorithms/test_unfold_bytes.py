"""The documents' formulas against what plans allocate, to the byte; blocks against tall images."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, seed, settings

import formulas
import leanconv as lc
from leanconv.algorithms.problem import Problem as Lowering
from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned, ceil_div
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64
from support import guard_pages
from support.problems import EXACT, Problem, problems

# MiB of the lowered tensors at batch 1, float32: im2col, MEC and im2win alike.
TABLE = {
    "cv1": (4.189, 1.572),
    "cv2": (4.343, 1.628),
    "cv3": (6.909, 2.018),
    "cv4": (142.131, 41.727),
    "cv5": (3.662, 0.879),
    "cv6": (0.879, 0.352),
    "cv7": (5.076, 1.707),
    "cv8": (26.587, 9.023),
    "cv9": (6.407, 2.215),
    "cv10": (2.971, 1.066),
    "cv11": (1.266, 0.492),
    "cv12": (0.439, 0.205),
}


def plan(spec: ConvSpec, method: str) -> lc.ConvPlan:
    """A plan of one thread."""
    return lc.plan_conv2d(
        spec.input_shape,
        np.zeros(spec.weight_shape, spec.dtype),
        stride=spec.stride,
        layout=spec.layout,
        algorithm=method,
        threads=1,
    )


def elements(spec: ConvSpec) -> tuple[int, int, int]:
    """Elements of im2col's matrix of one image, MEC's L and im2win's tensor, by the papers."""
    return (
        formulas.im2col_elements(spec) // spec.batch,
        formulas.mec_elements(spec),
        formulas.im2win_elements(spec),
    )


@pytest.mark.drawn
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("layer", LAYERS)
def test_workspaces_of_the_papers_layers(layer: str, layout: str) -> None:
    spec = ConvSpec.parse(LAYERS[layer], layout=layout)
    matrix, lowered, transformed = elements(spec)
    assert lowered == transformed, "square problems"
    sizes = (4 * matrix / 2**20, 4 * lowered / 2**20)
    assert sizes == pytest.approx(TABLE[layer], abs=6e-4)
    for method, count in (
        ("im2col:rows=whole", matrix),
        ("mec:solution=B", lowered),
        ("im2win:rows=whole", transformed),
    ):
        made = plan(spec, method)
        assert made.workspace_bytes == aligned(4 * count)
        assert made.used_bytes == made.memory_bytes
    fits = spec.out_channels * prod(spec.output_size) <= lowered
    if fits:
        assert plan(spec, "mec:solution=A").workspace_bytes == aligned(4 * lowered)
    chosen = "A" if fits and spec.output_size[1] <= 100 else "B"
    assert f"solution={chosen}" in plan(spec, "mec").candidate.details


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("line", ["mb3ic5ih20iw33oc9kh5kw3sh2sw1p0", "mb2ic16ih17oc8kh3ph0"])
def test_the_batch_counts_as_the_papers_say(line: str, dtype: str) -> None:
    spec = ConvSpec.parse(line.removesuffix("p0"), dtype=dtype)
    assert spec.pad_begin == (0, 0)
    matrix, lowered, transformed = (spec.itemsize * n for n in elements(spec))
    assert plan(spec, "im2col:rows=whole").workspace_bytes == aligned(matrix)
    assert plan(spec, "mec:solution=B").workspace_bytes == aligned(lowered)
    assert plan(spec, "im2win:rows=whole").workspace_bytes == aligned(transformed)


def tall(height: int) -> ConvSpec:
    return ConvSpec.parse(f"ic32ih{height}iw60oc48kh3ph0")


@pytest.mark.parametrize("method", ["im2col:rows=50", "im2win:rows=3"])
def test_scratch_of_blocks_does_not_grow_with_the_height(method: str) -> None:
    assert len({plan(tall(height), method).workspace_bytes for height in (80, 160, 1600)}) == 1


@pytest.mark.parametrize("method", ["im2col", "im2win"])
def test_blocks_stay_in_half_of_the_l2(method: str) -> None:
    """Of any height; im2win's tensor is not cut where the whole of it stays in the L2."""

    def scratch(height: int, target: Target) -> int:
        spec = tall(height)
        x, y = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
        return choose(Lowering.of(spec, x, y), target, choice_named(method)).workspace_bytes(
            threads=1
        )

    for target in (host(), *map(preset, ("haswell", "znver4", "sapphirerapids"))):
        for height in (20, 80, 160, 1600, 16000):
            whole = 4 * elements(tall(height))[2] if method == "im2win" else None
            stays = whole is not None and whole <= target.l2_bytes
            assert scratch(height, target) <= target.l2_bytes // (1 if stays else 2)
    assert max(scratch(height, preset("skylake-avx512")) for height in (80, 160, 1600)) <= 2**19


def test_a_kernel_no_higher_than_its_stride_is_not_transformed() -> None:
    spec = ConvSpec.parse("ic8ih20oc8kh2sh2")
    assert plan(spec, "im2win").workspace_bytes == 0
    assert plan(spec, "im2win:rows=whole").workspace_bytes == 0


# -- any problem: predicted, allocated and used bytes ------------------------------------------
def lowered_bytes(spec: ConvSpec, method: str) -> int:
    """What a method lowers at a time: MEC equations 2 and 3 and thesis equation 2-4, in bytes.

    The papers' inputs are padded before; here L holds no rows of padding, and I^ no columns.
    """
    _, ih, iw = (1, 1, *spec.size)[-3:]
    _, kh, kw = (1, 1, *spec.kernel)[-3:]
    _, oh, ow = (1, 1, *spec.output_size)[-3:]
    planes, taps, depth = (prod(v[:-2]) for v in (spec.size, spec.kernel, spec.output_size))
    n, c, inputs = spec.batch, spec.in_channels, spec.in_channels // spec.groups
    window = inputs * taps * kh * kw
    overlapping = kh > (1, 1, *spec.stride)[-2]
    lowered = n * c * planes * ih * ow * kw
    counts = {
        "im2col:rows=whole": depth * oh * ow * window * spec.groups,
        "im2col:rows=7": (min(oh, 7 // ow) * ow if ow <= 7 else 7) * window,
        "mec:solution=A": lowered,
        "mec:solution=B": lowered,
        "im2win:rows=whole": n * c * planes * oh * iw * kh * overlapping,
        "im2win:rows=2": inputs * taps * min(2, oh) * iw * kh * overlapping,
    }
    return counts[method] * spec.itemsize


def constant_bytes(spec: ConvSpec, method: str) -> int:
    """Weights in whole vectors of a group's output channels; a number for each image."""
    lanes, outputs = host().lanes(spec.dtype), spec.out_channels // spec.groups
    packed = spec.groups * spec.reduction * ceil_div(outputs, lanes) * lanes * spec.itemsize
    images = spec.batch if method == "im2col:rows=whole" and spec.batch > 1 else 0
    return aligned(packed) + images * aligned(8)


METHODS = (
    "im2col:rows=whole",
    "im2col:rows=7",
    "mec:solution=A",
    "mec:solution=B",
    "im2win:rows=whole",
    "im2win:rows=2",
)


@pytest.mark.skipif(bool(guard_pages.side()), reason="kernels work in guarded memory instead")
@pytest.mark.drawn
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_bytes_predicted_are_bytes_used(method: str, number: int) -> None:
    """The workspace is the formula's, and one thread writes every byte of it."""
    taken = []

    @seed(number)
    @settings(max_examples=14, deadline=None, database=None)
    @given(problems(EXACT, (FLOAT32, FLOAT64)))
    def each(problem: Problem) -> None:
        try:
            check_bytes(problem, method)
        except SpecError as error:
            if method != "mec:solution=A" or "solution A is not possible" not in str(error):
                raise
            return
        taken.append(problem)

    each()
    assert len(taken) >= (3 if method == "mec:solution=A" else 14)


def check_bytes(problem: Problem, method: str) -> None:
    """Plan and run one problem on one thread, and compare its bytes with the formulas.

    Raises:
        SpecError: the method does not take the problem.
    """
    spec, arrays = problem.spec, problem.arrays(True)
    made = lc.plan_conv2d(
        spec.input_shape,
        arrays.w,
        arrays.bias,
        residual=spec.residual,
        slope=arrays.slope,
        algorithm=method,
        threads=1,
        **problem.options,
    )
    wanted = lowered_bytes(spec, method)
    assert made.workspace_bytes == aligned(wanted)
    if arrays.bias is None and arrays.slope is None:
        assert made.weight_bytes == constant_bytes(spec, method)
    assert made.used_bytes == made.memory_bytes == made.workspace_bytes + made.weight_bytes
    workspace = made.layer.arena.arena.block.view(0, made.workspace_bytes)
    workspace[:] = 0xFF  # not a sum of whole numbers, and no copy of one
    made(arrays.x, residual=arrays.residual)
    numbers = workspace.view(f"u{spec.itemsize}")
    untouched = np.count_nonzero(numbers == np.iinfo(numbers.dtype).max)
    assert untouched * spec.itemsize == made.workspace_bytes - wanted
