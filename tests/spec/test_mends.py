"""Messages write shapes as options take them, and say how an array's axes are put in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.api.inputs import InputSpec, validated_input
from leanconv.errors import InputError, LeanConvError
from leanconv.spec.arguments import mended
from leanconv.types import FLOAT32, FLOAT64, as_dtype
from leanconv.units import shape_text, type_text


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((1, 3, 640, 640), "1x3x640x640"),
        (("batch", 3, None, "W"), "<batch>x3x?xW"),
        (("n" * 99, 2), f"<{'n' * 40}…>x2"),
        ((5,), "5"),
        ((), "a single number"),
        (None, "of any rank"),
    ],
)
def test_shapes_are_written_as_options_take_them(shape: Any, text: str) -> None:
    assert shape_text(shape) == text


def test_types_are_written_with_their_shape() -> None:
    assert type_text(FLOAT32, (1, 3)) == "float32[1x3]"
    assert type_text(np.dtype("u1"), ()) == "uint8[]"
    assert type_text(FLOAT64, None) == "float64 of any rank"


NCHW, NHWC = ("N", 3, 24, 32), (1, 24, 32, 3)
MENDED: list[tuple[tuple[int, ...], Any, str]] = [
    ((1, 24, 32, 3), NCHW, "x.transpose(0, 3, 1, 2)"),
    ((24, 32, 3), NCHW, "x.transpose(2, 0, 1)[None]"),
    ((3, 24, 32), NCHW, "x[None]"),
    ((1, 3, 24, 32), NHWC, "x.transpose(0, 2, 3, 1)"),
    ((3, 24, 32), NHWC, "x.transpose(1, 2, 0)[None]"),
    ((24, 32, 3), NHWC, "x[None]"),
    ((28, 28), (1, 1, 28, 28), "x[None, None]"),
    ((28, 28), (1, 28, 28, 1), "x[None, ..., None]"),
    ((1, 1, 3, 24, 32), NCHW, "x[0]"),
    ((2, 99, 5), (2, 5, 99), "x.transpose(0, 2, 1)"),
    ((1, 6, 7, 8, 3), (1, 3, 6, 7, 8), "x.transpose(0, 4, 1, 2, 3)"),
    ((1, 3, 24, 32), NCHW, ""),
    ((2, 3, 24, 32), (1, 3, 24, 32), ""),
    ((7, 7, 7, 7), NCHW, ""),
    ((7,), NCHW, ""),
    ((7, 7), None, ""),
]


@pytest.mark.parametrize(("shape", "wanted", "text"), MENDED)
def test_axes_in_another_order_are_told_with_the_mend(
    shape: tuple[int, ...], wanted: Any, text: str
) -> None:
    assert mended("x", shape, wanted) == text
    if text:  # and it is Python that does so
        found = eval(text, {"x": np.empty(shape)}).shape
        assert mended("x", found, wanted) == ""
        assert len(found) == len(wanted)


def told(array: np.ndarray, shape: Any, dtype: str = "float32") -> str:
    with pytest.raises(InputError) as caught:
        validated_input(array, InputSpec("images", shape, as_dtype(dtype)))
    return str(caught.value)


def test_a_networks_input_is_mended_in_one_go() -> None:
    image = np.zeros((24, 32, 3), "u1")
    assert told(image, NCHW) == (
        "input 'images' is uint8[24x32x3]; expected float32[Nx3x24x32]: give "
        "x.transpose(2, 0, 1)[None].astype('float32'), scaled as in training: often divided by 255"
    )
    assert told(image[:, :30], NCHW).endswith("divided by 255")
    assert "resize the image" in told(image[:, :30], NCHW)
    assert told(np.zeros((1, 24, 32, 3)), NHWC).endswith("give x.astype('float32')")
    assert told(np.zeros((2, 24, 32, 3), "f4"), NHWC).endswith("expected float32[1x24x32x3]")


def x(*shape: int) -> np.ndarray:
    return np.zeros(shape, "f4")


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
    ((1, 20, 21, 8), (4, 8, 3, 3), {}, r"say layout='NHWC', or give x.transpose\(0, 3, 1, 2\)"),
    ((1, 8, 20, 21), (4, 8, 3, 3), {"layout": "NHWC"}, "say layout='NCHW'"),
    ((1, 8, 20, 21), (3, 3, 8, 4), {}, r"give w.transpose\(3, 2, 0, 1\)"),
    ((1, 20, 21, 8), (3, 3, 8, 4), {"layout": "NHWC"}, r"give w.transpose\(3, 2, 0, 1\)"),
    ((1, 8, 20, 21), (4, 3, 3, 8), {}, r"give w.transpose\(0, 3, 1, 2\)"),
    (
        (1, 8, 20, 21),
        (3, 3, 8, 2),
        {"groups": 8},
        r"give w.transpose\(2, 3, 0, 1\).reshape\(16, 1, 3, 3\)",
    ),
    ((8, 20, 21), (4, 8, 3, 3), {}, r"x has shape 8x20x21 and w 4x8x3x3; .*as x\[None\]"),
    ((1, 8, 20, 21), (4, 5, 3, 3), {}, r"the second axis of x is the channels\)$"),
    ((1, 3, 64, 64), (4, 2, 3, 3), {}, r"x has 3 channels and w takes 2 .* the channels\)$"),
    ((1, 3, 64, 64), (4, 5, 3, 3), {"groups": 3}, r"the second axis of x is the channels\)$"),
    ((1, 64, 64, 3), (4, 2, 3, 3), {"layout": "NHWC"}, r"last axis of x is the channels\)$"),
    ((1, 6, 20, 21), (4, 3, 3, 6), {}, r"; with this w, groups=2 fits$"),
    ((1, 32, 20, 21), (32, 1, 3, 3), {}, r"; with this w, groups=32 fits$"),
    ((1, 8, 20, 21), (3, 3, 3, 8, 4), {}, r"with the same 1 to 3 spatial axes"),
    ((1, 4, 20, 21), (3, 5, 4, 7), {}, r"give w.transpose\(3, 2, 0, 1\)"),
]


@pytest.mark.parametrize(("shape", "weights", "options", "what"), CONVOLUTIONS)
def test_a_convolutions_axes_in_another_order_are_told(
    shape: tuple[int, ...], weights: tuple[int, ...], options: dict[str, Any], what: str
) -> None:
    if len(shape) == len(weights):  # else x is one image
        with pytest.raises(LeanConvError, match=what):
            lc.conv2d(x(*shape), x(*weights), **options)
    with pytest.raises(LeanConvError, match=what):
        lc.plan_conv2d(shape, x(*weights), **options)


def test_an_array_given_to_a_plan_is_mended() -> None:
    plan = lc.plan_conv2d((1, 4, 6, 7), x(4, 4, 3, 3))
    with pytest.raises(InputError, match=r"float32\[1x4x6x7\]: give x.transpose\(0, 3, 1, 2\)"):
        plan(x(1, 6, 7, 4))
    with pytest.raises(InputError, match=r"give x\[None\].astype\('float32'\); all arrays"):
        plan(np.zeros((4, 6, 7)))
