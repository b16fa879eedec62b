"""Every reference form of the gradient of weights against the sum, and the sum against others."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.reference import weight_gradient
from leanconv.reference.direct import convolve
from leanconv.reference.weight_gradient import Core, of_spec
from leanconv.spec import ConvSpec
from support import gradients
from support.small_specs import operands, specs

# Every form; the end of a name, after a hyphen, is a variant of one.
CORES: dict[str, Core] = {
    "plain": weight_gradient.plain,
    "im2col": weight_gradient.by_im2col,
    "mec": weight_gradient.by_mec,
    "winograd": partial(weight_gradient.by_winograd, exact=True),
    "winograd-m3x1": partial(weight_gradient.by_winograd, tile=(3, 1), exact=True),
}
few = settings(deadline=None)


def whole_numbers(spec: ConvSpec, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """x and dy of a spec."""
    rng = np.random.default_rng(seed)
    return rng.integers(-4, 5, spec.input_shape), rng.integers(-4, 5, spec.output_shape)


@settings(few, max_examples=60)
@given(specs(plain=False, most_taps=3), st.integers(0, 99))
def test_sum_is_the_derivative_of_the_convolution(spec: ConvSpec, seed: int) -> None:
    """Along any change of the weights: sum(dw · change) = sum(dy · conv(x, change))."""
    x, change, *_ = operands(spec, True, seed)
    assert x is not None
    assert change is not None
    _, dy = whole_numbers(spec, seed)
    plain = {"bias": False, "residual": False, "activation": None}
    y = convolve(ConvSpec(**{**vars(spec), **plain}), x, change)
    dw = of_spec(weight_gradient.plain, spec, x, dy)
    assert dw.dtype == np.int64
    assert int((dw * change).sum()) == int((dy * y).sum())


@settings(few, max_examples=40)
@given(specs(plain=False, most_taps=3), st.integers(0, 99))
def test_sum_is_that_of_the_tests(spec: ConvSpec, seed: int) -> None:
    x, dy = whole_numbers(spec, seed)
    found = of_spec(weight_gradient.plain, spec, x, dy)
    if spec.layout == "NHWC":
        x, dy = (np.moveaxis(each, -1, 1) for each in (x, dy))
    np.testing.assert_array_equal(found, gradients.expected(spec, x, dy))


@pytest.mark.parametrize("name", [n for n in CORES if n != "plain"])
def test_forms_on_plain_problems(name: str) -> None:
    @settings(few, max_examples=20 if "winograd" in name else 60)
    @given(specs(plain=True), st.integers(0, 99))
    def agree(spec: ConvSpec, seed: int) -> None:
        x, dy = whole_numbers(spec, seed)
        found = CORES[name](x, dy, spec.kernel, spec.stride)  # type: ignore[arg-type]
        assert found.dtype == np.int64
        expected = weight_gradient.plain(x, dy, spec.kernel, spec.stride)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, expected)

    agree()


@pytest.mark.parametrize("name", ["im2col", "mec", "winograd"])
def test_forms_on_any_spec(name: str) -> None:
    @settings(few, max_examples=10 if name == "winograd" else 40)
    @given(specs(plain=False, most_taps=2 if name == "winograd" else 3), st.integers(0, 9))
    def agree(spec: ConvSpec, seed: int) -> None:
        x, dy = whole_numbers(spec, seed)
        found = of_spec(CORES[name], spec, x, dy)
        np.testing.assert_array_equal(found, of_spec(weight_gradient.plain, spec, x, dy))

    agree()


@settings(few, max_examples=30)
@given(specs(plain=True), st.sampled_from([(2, 2), (3, 4)]), st.integers(0, 9))
def test_winograd_in_float64(spec: ConvSpec, tile: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, dy = rng.uniform(-1, 1, spec.input_shape), rng.uniform(-1, 1, spec.output_shape)
    kernel, stride = spec.kernel, spec.stride
    found = weight_gradient.by_winograd(x, dy, kernel, stride, tile)  # type: ignore[arg-type]
    expected = weight_gradient.plain(x, dy, kernel, stride)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_mec_reads_partitions_that_overlap() -> None:
    """Figure 2 of the paper: five partitions of 5 x 9 of L, which is 5 x 21."""
    x = np.arange(49).reshape(1, 1, 7, 7)
    dy = np.zeros((1, 1, 5, 5), np.int64)
    dy[0, 0, 2, 1] = 1
    dw = weight_gradient.by_mec(x, dy, (3, 3))
    np.testing.assert_array_equal(dw[0, 0], x[0, 0, 2:5, 1:4])
