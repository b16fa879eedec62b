"""Every reference algorithm against the oracle, and the oracle against other hands."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.graph.ir import Node
from leanconv.graph.ops import evaluate_node
from leanconv.reference import direct, fft, im2col, im2win, mec, winograd
from leanconv.reference.direct import convolve, seven_loops
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.activation import KINDS
from leanconv.types import FLOAT64
from support.plain_cores import Core, convolve_by
from support.small_specs import operands, specs

# Every algorithm; the end of a name, after a hyphen, is a variant of one.
CORES: dict[str, Core] = {
    "direct": direct.seven_loops,
    "im2col": im2col.convolve,
    "im2col-rows": partial(im2col.convolve, block=2),
    "mec": mec.convolve,
    "mec-b": partial(mec.convolve, threshold=0),
    "im2win": im2win.convolve,
    "im2win-base": im2win.base,
    "im2win-vector": im2win.reordered,
    "im2win-high": im2win.high_performance,
    "im2win-implicit": im2win.implicit_product,
    "winograd": winograd.convolve,
    "winograd-f2": partial(winograd.convolve, tile=(2, 2)),
    "winograd-f6x2": partial(winograd.convolve, tile=(6, 2)),
    "fft": fft.convolve,
    "fft-16": partial(fft.convolve, size=16),
    "fft-32-gauss": partial(fft.convolve, size=32, multiplications=3),
}
EXACT = [name for name in CORES if not name.startswith(("winograd", "fft"))]
ROUNDED = [name for name in CORES if name not in EXACT]
# Written as Python loops over single elements or vectors.
SLOW = {"direct", "im2win-base", "im2win-vector", "im2win-high"}
few = settings(deadline=None)


@settings(few, max_examples=60)
@given(specs(plain=True), st.integers(0, 99))
def test_oracle_equals_the_seven_loops(spec: ConvSpec, seed: int) -> None:
    x, w, *_ = operands(spec, True, seed)
    y = seven_loops(x, w, spec.stride)
    assert y.dtype == np.int64
    np.testing.assert_array_equal(convolve(spec, x, w), y)


@settings(few, max_examples=100)
@given(specs(plain=False, activations=(None, "relu", "clip:-2:3", "prelu")), st.integers(0, 99))
def test_oracle_equals_the_interpreter_of_graphs(spec: ConvSpec, seed: int) -> None:
    def turn(array: np.ndarray | None) -> np.ndarray | None:
        if array is None or spec.layout == "NCHW" or array.ndim == 1:
            return array
        return np.moveaxis(array, -1, 1)

    x, w, bias, residual, slope = operands(spec, False, seed)
    given_ = {"x": turn(x), "w": w, "bias": bias, "residual": turn(residual), "slope": slope}
    node = Node(
        "Conv",
        tuple(name if value is not None else "" for name, value in given_.items()),
        ("y",),
        {
            "strides": spec.stride,
            "pads": spec.pad_begin + spec.pad_end,
            "dilations": spec.dilation,
            "group": spec.groups,
            "activation": spec.activation,
        },
    )
    (other,) = evaluate_node(node, {k: v for k, v in given_.items() if v is not None})
    y = convolve(spec, x, w, bias, residual, slope)
    np.testing.assert_allclose(turn(y), other, rtol=0, atol=1e-13 * max(1.0, np.abs(y).max()))


@pytest.mark.parametrize("name", EXACT)
def test_exact_algorithms_on_plain_problems(name: str) -> None:
    @settings(few, max_examples=15 if name in SLOW else 60)
    @given(specs(plain=True), st.integers(0, 99))
    def agree(spec: ConvSpec, seed: int) -> None:
        x, w, *_ = operands(spec, True, seed)
        y = CORES[name](x, w, spec.stride)
        assert y.dtype == np.int64
        np.testing.assert_array_equal(y, convolve(spec, x, w))

    agree()


@pytest.mark.parametrize("name", [n for n in EXACT if n not in SLOW])
def test_exact_algorithms_on_any_spec(name: str) -> None:
    @settings(few, max_examples=60)
    @given(specs(plain=False, most_taps=3, activations=(None, "relu", "prelu")), st.integers(0, 9))
    def agree(spec: ConvSpec, seed: int) -> None:
        arrays = operands(spec, True, seed)
        y = convolve_by(CORES[name], spec, *arrays)
        assert y.shape == spec.output_shape
        np.testing.assert_array_equal(y, convolve(spec, *arrays))

    agree()


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "any"])
@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_algorithms(name: str, plain: bool) -> None:
    @settings(few, max_examples=40)
    @given(specs(plain, most_taps=12 if plain else 3), st.integers(0, 9))
    def agree(spec: ConvSpec, seed: int) -> None:
        arrays = operands(spec, False, seed)
        y, expected = convolve_by(CORES[name], spec, *arrays), convolve(spec, *arrays)
        scale = max(1.0, np.abs(expected).max()) * spec.reduction
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12 * scale)

    agree()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_activations_equal_those_of_the_graph(kind: str) -> None:
    spec = ConvSpec.parse("ic1iw101oc1kw1", dtype=FLOAT64, activation=Activation(kind))
    x = np.linspace(-8, 8, 101).reshape(spec.input_shape)
    slope = np.array([-0.3]) if kind == "prelu" else None
    names = ("x", "w", "", "", "slope" if kind == "prelu" else "")
    node = Node(
        "Conv",
        names,
        ("y",),
        {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1}
        | {"activation": spec.activation},
    )
    values = {"x": x, "w": np.ones((1, 1, 1))} | ({} if slope is None else {"slope": slope})
    y = convolve(spec, x, values["w"], slope=slope)
    np.testing.assert_allclose(y, *evaluate_node(node, values), rtol=1e-12, atol=1e-15)


def test_oracle_says_what_does_not_fit() -> None:
    spec = ConvSpec.parse("ic2ih5oc3oh3kh3", bias=True)
    x, w, bias, *_ = operands(spec, True)
    for wrong, message in (
        ((x[:, :1], w, bias), r"x has shape \(1, 1, 5, 5\); expected \(1, 2, 5, 5\)"),
        ((x, w), r"bias has shape None; expected \(3,\)"),
        ((x, w, bias, x), r"residual has shape \(1, 2, 5, 5\); expected None"),
    ):
        with pytest.raises(ValueError, match=message):
            convolve(spec, *wrong)
