"""im2win as the thesis' figures and algorithms have it, with its index corrected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from formulas import im2col_elements, im2win_elements
from leanconv.reference import im2win
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec
from support.small_specs import operands, specs


def test_example_of_figure_2_5() -> None:
    spec = ConvSpec.parse("ic3ih3oc1oh2kh2")
    assert im2col_elements(spec) == 48
    assert im2win_elements(spec) == 36  # 25 % less; the text says a third
    x = np.arange(27).reshape(1, 3, 3, 3)
    planes, order = im2win.transform(x, (2, 2), (1, 1))
    assert order.transformed
    assert planes.size == 36
    # Column by column, two rows of windows: each window is one run.
    np.testing.assert_array_equal(planes[0, 0], [0, 3, 1, 4, 2, 5, 3, 6, 4, 7, 5, 8])


@settings(deadline=None, max_examples=100)
@given(specs(plain=True))
def test_windows_hold_what_the_index_says(spec: ConvSpec) -> None:
    x, *_ = operands(spec, True)
    planes, order = im2win.transform(x, spec.kernel, spec.stride)
    assert order.transformed == (spec.kernel[0] > spec.stride[0])
    assert planes.size == im2win_elements(spec)
    (oh, ow), (kh, kw), (sh, sw) = spec.output_size, spec.kernel, spec.stride
    for m, n in ((0, 0), (oh - 1, ow - 1)):
        for u, v in ((0, 0), (kh - 1, kw - 1)):
            element = planes[:, :, order.offset(m, n, u, v)]
            np.testing.assert_array_equal(element, x[:, :, m * sh + u, n * sw + v])
    if order.transformed:
        start = order.offset(oh - 1, ow - 1, 0, 0)
        window = x[:, :, (oh - 1) * sh : (oh - 1) * sh + kh, (ow - 1) * sw : (ow - 1) * sw + kw]
        run = window.transpose(0, 1, 3, 2).reshape(*x.shape[:2], kh * kw)
        np.testing.assert_array_equal(planes[:, :, start : start + kh * kw], run)


def test_printed_index_is_right_for_square_kernels_only() -> None:
    """The thesis starts a window at n·s·W_f; it must be n·s·H_f."""

    def printed(order: im2win.WindowOrder, n: int) -> int:
        return n * order.stride[1] * order.kernel[1]

    x = np.zeros((1, 1, 9, 9), int)
    for kernel, right in (((3, 3), True), ((3, 2), False), ((2, 3), False)):
        _, order = im2win.transform(x, kernel, (1, 1))
        assert (printed(order, 2) == order.offset(0, 2, 0, 0)) == right


@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize(("channels", "columns", "taps"), [(1, 1, 1), (2, 3, 2), (5, 4, 7)])
def test_tiles_of_algorithm_6_change_nothing(
    lanes: int, channels: int, columns: int, taps: int
) -> None:
    for line in ("ic2ih8iw9oc3oh3ow7kh3kw3sh2sw1", "ic2ih8iw9oc3oh3ow4kh2kw3sh3sw2"):
        spec = ConvSpec.parse(line)
        x, w, *_ = operands(spec, True)
        y = im2win.high_performance(x, w, spec.stride, lanes, channels, columns, taps)
        np.testing.assert_array_equal(y, convolve(spec, x, w))
        np.testing.assert_array_equal(im2win.reordered(x, w, spec.stride, lanes), y)
