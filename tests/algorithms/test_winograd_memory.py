"""Winograd's workspace and weights, to the byte."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from formulas import winograd_elements
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.algorithms.winograd.packing import weight_calls
from leanconv.codegen.host import host
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.spec.format import aligned
from leanconv.types import FLOAT32, FLOAT64
from support.packers import winograd_points
from support.packing import made_by
from support.problems import Problem
from support.winograd_checks import candidate_of, make_plan


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_workspace_of_the_fused_form_does_not_grow_with_the_image(layout: str) -> None:
    def workspace(size: int, batch: int, text: str) -> int:
        line = f"mb{batch}ic64ih{size}oc64kh3ph1"
        return make_plan(Problem(ConvSpec.parse(line, layout=layout), 0), text).workspace_bytes

    images = [(28, 1), (56, 4), (112, 1), (224, 1)]
    assert (
        len({workspace(*image, "winograd:m=4,tiles=14,rows=7,vectors=1") for image in images}) == 1
    )
    for image in images:
        assert workspace(*image, "winograd") <= 0.6 * host().l2_bytes


@pytest.mark.parametrize("layer", ["cv1", "cv2", "cv3", "cv4", "cv7", "cv8"])
def test_workspace_of_the_fused_form_is_below_that_of_mec(layer: str) -> None:
    problem = Problem(ConvSpec.parse(LAYERS[layer]), 0)
    for threads in (1, 2):
        winograd, mec = (make_plan(problem, name, threads) for name in ("winograd", "mec"))
        assert len(winograd.candidate.kernels) == 1
        assert winograd.workspace_bytes < mec.workspace_bytes


@pytest.mark.drawn
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("layer", ["cv5", "cv11"])
def test_stages_need_what_the_documents_count(layer: str, m: int, batch: int, layout: str) -> None:
    spec = replace(ConvSpec.parse(LAYERS[layer], layout=layout), batch=batch)
    kernel = spec.kernel[0]
    tiles = batch * prod(-(-o // m) for o in spec.output_size)
    points = (m + kernel - 1) ** 2
    v, big_m = points * tiles * spec.in_channels, points * tiles * spec.out_channels
    weights = points * spec.in_channels * spec.out_channels
    assert v + weights + big_m == winograd_elements(spec, m)
    for threads in (1, 2):
        plan = make_plan(Problem(spec, 0), f"winograd:form=stages,m={m}", threads)
        between = aligned(4 * points * host().lanes(FLOAT32))
        assert plan.workspace_bytes == aligned(4 * v) + aligned(4 * big_m) + threads * between
        assert plan.used_bytes == plan.memory_bytes
        assert plan.weight_bytes == 4 * weights


def test_stages_of_parts_share_their_memory() -> None:
    """V and M of the largest part; a stride counts every phase's channels."""
    spec = ConvSpec.parse("ic16ih20oc32kh11ph5", layout="NHWC")  # 6 + 5 taps
    plan = make_plan(Problem(spec, 0), "winograd:form=stages,m=2")
    assert dict(plan.candidate.temporaries) == {
        "V": 4 * 7 * 7 * 100 * 16,
        "M": 4 * 7 * 7 * 100 * 32,
    }
    assert len(plan.candidate.kernels) == 3 * 4
    spec = ConvSpec.parse("g2ic10ih20oc14kh3sh2ph1", layout="NHWC")  # 2 taps for each phase
    plan = make_plan(Problem(spec, 0), "winograd:form=stages,m=2")
    assert dict(plan.candidate.temporaries) == {
        "V": 4 * 3 * 3 * 25 * 10 * 4,
        "M": 4 * 3 * 3 * 25 * 14,
    }


@pytest.mark.parametrize(
    ("line", "layout"),
    [
        ("ic3ih31oc20kh7sh2", "NCHW"),  # lanes of several phases and channels
        ("ic3ih47oc20kh11sh4", "NCHW"),
        ("ic20ih31oc20kh7sh2", "NCHW"),
        ("ic20ih31oc20kh5sh3", "NHWC"),
        ("ic20ih31oc20kh4sh2", "NHWC"),  # phases of one length: nothing to leave out
        ("ic20ih31oc20kh3", "NCHW"),
    ],
)
def test_weights_hold_what_is_not_zero_and_no_more(line: str, layout: str) -> None:
    """Shorter phases have no products at the last point of an axis."""
    spec = ConvSpec.parse(line, layout=layout, dtype=FLOAT64)
    for m in ("2", "3x2", "1x4"):
        (use,) = candidate_of(spec, layout, host(), f"winograd:m={m}").kernels
        kernel = use.kernel
        assert isinstance(kernel, WinogradConv)
        w = np.random.default_rng(1).uniform(1, 2, spec.weight_shape)
        whole = winograd_points(kernel.shape, w)
        packed = made_by({"w": weight_calls(kernel.shape, w)})["w"]
        used = whole.any(axis=-1)
        if layout == "NCHW" and spec.kernel[0] >= spec.stride[0]:
            assert used.sum() == kernel.shape.all_steps
        assert used.sum() <= kernel.shape.all_steps <= used.size
        assert packed.nbytes == kernel.shape.weight_bytes
        np.testing.assert_allclose(np.abs(packed).sum(), np.abs(whole).sum(), rtol=1e-12)
