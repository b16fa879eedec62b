"""The documents' formulas against what plans allocate, to the byte; blocks against tall images."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import leanconv as lc
from leanconv.cli.bench import LAYERS
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned

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


def formulas(spec: ConvSpec) -> tuple[int, int, int]:
    """Elements of im2col's matrix of one image, MEC's L and im2win's tensor, as printed."""
    (h, w), (kh, kw), (oh, ow) = spec.size, spec.kernel, spec.output_size
    n, c = spec.batch, spec.in_channels
    return oh * ow * kh * kw * c, n * ow * h * kw * c, n * c * oh * w * kh


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("layer", LAYERS)
def test_workspaces_of_the_papers_layers(layer: str, layout: str) -> None:
    spec = ConvSpec.parse(LAYERS[layer], layout=layout)
    matrix, lowered, transformed = formulas(spec)
    assert lowered == transformed, "square problems"
    sizes = (4 * matrix / 2**20, 4 * lowered / 2**20)
    assert sizes == pytest.approx(TABLE[layer], abs=6e-4)
    for method, elements in (
        ("im2col:rows=whole", matrix),
        ("mec:solution=B", lowered),
        ("im2win:rows=whole", transformed),
    ):
        made = plan(spec, method)
        assert made.workspace_bytes == aligned(4 * elements)
        assert made.used_bytes == made.memory_bytes
    fits = spec.out_channels * prod(spec.output_size) <= lowered
    if fits:
        assert plan(spec, "mec:solution=A").workspace_bytes == aligned(4 * lowered)
    chosen = "A" if fits and spec.output_size[1] <= 100 else "B"
    assert f"solution={chosen}" in plan(spec, "mec")._candidate.parameters


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("line", ["mb3ic5ih20iw33oc9kh5kw3sh2sw1p0", "mb2ic16ih17oc8kh3ph0"])
def test_the_batch_counts_as_the_papers_say(line: str, dtype: str) -> None:
    spec = ConvSpec.parse(line.removesuffix("p0"), dtype=dtype)
    assert spec.pad_begin == (0, 0)
    matrix, lowered, transformed = (spec.itemsize * n for n in formulas(spec))
    assert plan(spec, "im2col:rows=whole").workspace_bytes == aligned(matrix)
    assert plan(spec, "mec:solution=B").workspace_bytes == aligned(lowered)
    assert plan(spec, "im2win:rows=whole").workspace_bytes == aligned(transformed)


@pytest.mark.parametrize("method", ["im2col", "im2win", "im2col:rows=50", "im2win:rows=3"])
def test_scratch_of_blocks_does_not_grow_with_the_height(method: str) -> None:
    sizes = [
        plan(ConvSpec.parse(f"ic32ih{height}iw60oc48kh3ph0"), method).workspace_bytes
        for height in (80, 160, 1600)
    ]
    assert sizes[0] == sizes[1] == sizes[2] <= 2**20


def test_a_kernel_no_higher_than_its_stride_is_not_transformed() -> None:
    spec = ConvSpec.parse("ic8ih20oc8kh2sh2")
    assert plan(spec, "im2win").workspace_bytes == 0
    assert plan(spec, "im2win:rows=whole").workspace_bytes == 0
