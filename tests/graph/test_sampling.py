"""Reading images between their pixels as files have it, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.errors import ModelError
from support.import_cases import Numbers
from support.onnx_models import Array, Const, agree, ints, reference, single

N = Numbers(5)
R = np.random.default_rng(5)
X = N.normal(2, 6, 7, 8)


def uniform(least: float, most: float, *shape: int) -> Array:
    return R.uniform(least, most, shape).astype(np.float32)


def case(op: str, operands: list[Any], opset: int, **attributes: Any) -> tuple[Any, Any]:
    """A model of one node whose integers, data too, are int64."""
    proto, given = single(op, operands, opset, **attributes)
    for value in proto.graph.input:
        if given[value.name].dtype == np.int64:
            value.type.tensor_type.elem_type = 7
    return proto, given


def check(op: str, operands: list[Any], opset: int, **attributes: Any) -> None:
    """The graph, and what is compiled."""
    proto, given = case(op, operands, opset, **attributes)
    agree(proto, given, 2e-5)
    found, wanted = lc.load(proto, threads=1).run(given)["out0"], reference(proto, given)["out0"]
    np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str) -> None:
    grid, older = uniform(-1.5, 1.5, 2, 3, 5, 2), {"linear": "bilinear", "cubic": "bicubic"}
    for padding in ("zeros", "border", "reflection"):
        for align in (0, 1):
            how = {"padding_mode": padding, "align_corners": align}
            check("GridSample", [X, grid], 20, mode=mode, **how)
        check("GridSample", [X, grid], 16, mode=older.get(mode, mode), padding_mode=padding)
    if mode != "cubic":
        volume = uniform(-1.2, 1.2, 2, 3, 2, 4, 3)
        check("GridSample", [N.normal(2, 3, 4, 5, 6), volume], 20, mode=mode)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_places_that_are_no_numbers(mode: str) -> None:
    """They are the first place of their axis, -1, and so are those beyond 64-bit integers."""
    strange = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0]
    grid = np.array([(a, b) for a in strange for b in strange], np.float32).reshape(1, 6, 6, 2)
    for padding in ("zeros", "border", "reflection"):
        for align in (0, 1):
            how = {"padding_mode": padding, "align_corners": align}
            check("GridSample", [X[:1], grid], 20, mode=mode, **how)


def test_a_deform_conv_reads_zeros_where_offsets_are_no_numbers() -> None:
    offset = N.normal(2, 2, 7, 8)
    offset[0, :, 2, 3], offset[1, 0, 4, 4], offset[1, 1, 1, 1] = np.nan, np.inf, -np.inf
    check("DeformConv", [X, Const(N.normal(5, 6, 1, 1)), offset], 19)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(align: int) -> None:
    check("AffineGrid", [N.normal(2, 2, 3), ints(2, 5, 4, 7)], 20, align_corners=align)
    check("AffineGrid", [N.normal(2, 3, 4), ints(2, 5, 4, 7, 1)], 20, align_corners=align)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode: str) -> None:
    first = uniform(-3, 10, 6, 2)
    regions = np.concatenate([first, first + uniform(-1, 12, 6, 2)], axis=1)
    for ratio in (0, 1 if mode == "max" else 3):
        how = {"mode": mode, "sampling_ratio": ratio, "output_height": 3, "output_width": 2}
        operands = [X, regions, R.integers(0, 2, 6)]
        check("RoiAlign", operands, 10, **how, spatial_scale=0.5)
        for place in ("half_pixel", "output_half_pixel"):
            check("RoiAlign", operands, 16, **how, coordinate_transformation_mode=place)


def deformed(x: Array, outputs: int, group: int, groups: int, **attributes: Any) -> list[Any]:
    """Operands of a DeformConv with a kernel of 3 x 3 and a result of the same size."""
    images, channels, *size = x.shape
    w, b = N.normal(outputs, channels // group, 3, 3), N.normal(outputs)
    offset = uniform(-2, 2, images, groups * 18, *size)
    return [x, w, offset, b, uniform(0, 1, images, groups * 9, *size)]


@pytest.mark.parametrize(("group", "groups"), [(1, 1), (2, 1), (1, 3), (2, 6)])
def test_deform_conv(group: int, groups: int) -> None:
    how = {"group": group, "offset_group": groups, "pads": [1] * 4}
    operands = deformed(X, 8, group, groups)
    held = [operands[0], Const(operands[1]), operands[2], Const(operands[3]), operands[4]]
    check("DeformConv", held, 19, **how)
    check("DeformConv", [*held[:3], None, held[4]], 19, **how)
    check("DeformConv", [held[0], held[1], held[2]], 19, **how)
    check("DeformConv", operands, 19, **how)  # weights that are data
    check("DeformConv", operands[:3], 19, **how)


def test_deform_conv_in_blocks() -> None:
    operands = deformed(N.normal(1, 64, 9, 8), 48, 2, 2)
    held = [operands[0], Const(operands[1]), operands[2], Const(operands[3]), operands[4]]
    check("DeformConv", held, 19, group=2, offset_group=2, pads=[1] * 4, kernel_shape=[3, 3])
    x, w, offset, *_ = deformed(N.normal(1, 32, 9, 8), 16, 1, 1)
    window = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 1, 2]}
    check("DeformConv", [x, Const(w), offset[:, :, :5].copy()], 19, **window)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("GridSample", [X, N.normal(2, 3, 5, 3)], {}, "expected 2 numbers"),
        ("GridSample", [X, N.normal(1, 3, 5, 2)], {}, "expected 2 numbers"),
        ("GridSample", [X, N.normal(2, 3, 5, 2)], {"mode": "area"}, "got mode 'area'"),
        ("GridSample", [X[:, :, :0], N.normal(2, 3, 5, 2)], {}, "no elements"),
        ("AffineGrid", [N.normal(2, 3, 3), ints(2, 5, 4, 7)], {}, "2x3 or 3x4"),
        ("RoiAlign", [X, N.normal(3, 5), np.zeros(3, int)], {}, "expected 4 each"),
        ("RoiAlign", [X, N.normal(3, 4), np.zeros(2, int)], {}, "an image for each"),
        (
            "RoiAlign",
            [X, N.normal(3, 4), np.zeros(3, int)],
            {"sampling_ratio": 1 << 40},
            "ratio of 0 to 256",
        ),
        ("DeformConv", [X, N.normal(4, 5, 3, 3), X], {}, "to fit"),
        ("DeformConv", [X, N.normal(4, 6, 3, 3), X], {}, "got offsets"),
    ],
)
def test_refusals(op: str, operands: list[Any], attributes: dict[str, Any], message: str) -> None:
    proto, given = case(op, operands, 22, **attributes)
    with pytest.raises(ModelError, match=f"{op}.*{message}"):
        lc.load(proto, threads=1).run(given)
