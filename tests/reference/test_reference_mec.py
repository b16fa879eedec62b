"""MEC as the paper's figures and algorithms have it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from formulas import im2col_elements, mec_elements
from leanconv.reference import mec
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec
from support.small_specs import operands, specs


def test_example_of_figures_1_and_2() -> None:
    spec = ConvSpec.parse("ic1ih7oc1oh5kh3")
    assert im2col_elements(spec) == 25 * 9 == 225
    assert mec_elements(spec) == 5 * 21 == 105
    image = np.arange(49).reshape(7, 7)
    kernel = np.arange(9).reshape(3, 3) - 4
    lowered = mec.lower(image.reshape(1, 7, 7, 1), 3, 1)
    assert lowered.size == 105
    rows = lowered.reshape(5, 21)
    np.testing.assert_array_equal(rows[0], image[:, 0:3].reshape(-1))  # A = I[0:7, 0:3]
    np.testing.assert_array_equal(rows[1], image[:, 1:4].reshape(-1))  # B = I[0:7, 1:4]
    expected = convolve(spec, image.reshape(1, 1, 7, 7), kernel.reshape(1, 1, 3, 3))
    np.testing.assert_array_equal(mec.vanilla(image, kernel), expected[0, 0])


@settings(deadline=None, max_examples=40)
@given(specs(plain=True))
def test_vanilla_is_algorithm_2_for_one_channel(spec: ConvSpec) -> None:
    x, w, *_ = operands(spec, True)
    y = mec.vanilla(x[0, 0], w[0, 0], spec.stride)
    np.testing.assert_array_equal(y, mec.convolve(x[:1, :1], w[:1, :1], spec.stride)[0, 0])


@settings(deadline=None, max_examples=60)
@given(specs(plain=True))
def test_both_solutions_agree_and_the_lowered_tensor_has_its_size(spec: ConvSpec) -> None:
    x, w, *_ = operands(spec, True)
    kernel = w.transpose(2, 3, 1, 0)
    lowered = mec.lower(x.transpose(0, 2, 3, 1), spec.kernel[1], spec.stride[1])
    assert lowered.size == mec_elements(spec)
    b = mec.solution_b(lowered, kernel, spec.stride[0])
    np.testing.assert_array_equal(b.transpose(0, 3, 1, 2), convolve(spec, x, w))
    if b.size > lowered.size:
        with pytest.raises(ValueError, match="use solution B"):
            mec.solution_a(lowered, kernel, spec.stride[0])
    else:
        np.testing.assert_array_equal(mec.solution_a(lowered, kernel, spec.stride[0]), b)


def test_choice_of_line_8(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mec.takes_solution_a(lowered=10, outputs=10, ow=100)
    assert not mec.takes_solution_a(lowered=10, outputs=10, ow=101)
    assert not mec.takes_solution_a(lowered=10, outputs=11, ow=1)
    taken = []
    for name in ("solution_a", "solution_b"):
        solution = getattr(mec, name)
        monkeypatch.setattr(
            mec, name, lambda *a, name=name, solution=solution: taken.append(name) or solution(*a)
        )
    x, w = np.ones((1, 2, 6, 6), int), np.ones((1, 2, 3, 3), int)
    mec.convolve(x, w)
    mec.convolve(x, w, threshold=3)  # o_w = 4
    mec.convolve(x, np.ones((60, 2, 3, 3), int))  # |O| = 960 > |L| = 144
    assert taken == ["solution_a", "solution_b", "solution_b"]
