"""Every method of the gradient of weights, and of the bias beside it, against NumPy's sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.algorithms import WEIGHT_GRADIENTS, select
from leanconv.algorithms.problem import walk_steps
from leanconv.algorithms.weight_gradient.bias import with_bias
from leanconv.half_arrays import held_as
from leanconv.runtime.calibration import planning_target
from leanconv.spec import PLAIN, ConvSpec
from leanconv.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, Precision
from support import gradients
from support.problems import ANY_CHANNELS, Problem, problems

FLOATS = ("float32", "float64")
# Sizes along one axis: extent, taps, stride, dilation, paddings before and after.
AXES = {
    "one of all": (1, 1, 1, 1, 0, 0),
    "one pixel": (1, 3, 1, 1, 1, 1),
    "padding on the left": (3, 2, 1, 1, 7, 0),
    "padding on the right": (3, 3, 2, 1, 0, 9),
    "padding on both sides": (2, 3, 1, 2, 8, 11),
    "one output": (5, 5, 3, 1, 0, 0),
    "taps that meet no column": (1, 3, 1, 2, 2, 2),
    "taps on both sides and none inside": (2, 2, 1, 9, 5, 5),
    "a stride beyond the taps": (17, 2, 5, 1, 1, 0),
    "odd": (19, 5, 1, 1, 2, 1),
    "wide": (35, 3, 2, 1, 1, 1),
}
CHANNELS = {"dense": (1, 5, 3), "grouped": (2, 6, 10), "depthwise": (19, 19, 19)}
CHANNELS["multiplied"] = 3, 3, 12


def spec_of(rows: str, columns: str, channels: str, precision: object = FLOAT32) -> ConvSpec:
    """A convolution of two axes of those above, with two images."""
    groups, inputs, outputs = CHANNELS[channels]
    size, kernel, stride, dilation, begin, end = zip(AXES[rows], AXES[columns], strict=True)
    shape = 2, inputs, outputs, size, kernel, stride, dilation, begin, end, groups
    return ConvSpec(*shape, Precision.of(precision))


def drawn_problem(name: str, data: st.DataObject, dtypes: tuple[str, ...]) -> tuple[Problem, Any]:
    """A convolution that a method is made for, and formats of x and dy."""
    kinds = ("depthwise", "narrow") if name == "depthwise" else ANY_CHANNELS
    drawn = data.draw(problems((None,), dtypes, channels=kinds))
    plain = replace(drawn.spec, layout="NCHW")
    forms = data.draw(st.sampled_from(gradients.formats(plain, planning_target())))
    return replace(drawn, spec=plain), forms


def refused(spec: ConvSpec, name: str, forms: Any) -> bool:
    """Whether a method does not compute a convolution with tensors in these formats."""
    problem = gradients.gradient_problem(spec, *forms)
    choice = select.gradient_choice_named(name)
    return select.refusal(choice, problem, planning_target()) is not None


def drawn_numbers(spec: ConvSpec, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal numbers that the types of x and dy hold."""
    rng, sums = np.random.default_rng(seed), spec.precision.accumulate
    x = rng.standard_normal(spec.input_shape).astype(sums)
    dy = rng.standard_normal(spec.output_shape).astype(sums)
    return held_as(x, spec.precision.x), held_as(dy, spec.precision.y)


def check_error(spec: ConvSpec, name: str, forms: Any, seed: int = 0, **given: Any) -> None:
    """Compare with sums of more bits: no further off than the method states.

    Errors are relative to the largest sum, or to what it would be if no products cancelled.
    """
    x, dy = drawn_numbers(spec, seed)
    got = gradients.computed(spec, x, dy, name, x_format=forms[0], dy_format=forms[1], **given)
    wide = np.longdouble if spec.precision.accumulate == FLOAT64 else np.float64
    x, dy = x.astype(wide), dy.astype(wide)
    wanted = gradients.expected(spec, x, dy)
    walk = np.sqrt(gradients.expected(spec, x * x, dy * dy))
    problem = gradients.gradient_problem(spec, *forms)
    choice = select.gradient_choice_named(name)
    stated = select.choose(problem, planning_target(), choice).choice.error
    assert 0 < stated < 1
    assert np.abs(got - wanted).max() <= stated * max(np.abs(wanted).max(), walk.max())


def whole_numbers(spec: ConvSpec, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Small ones for x and dy."""
    rng = np.random.default_rng(seed)
    x, dy = (rng.integers(-3, 4, shape) for shape in (spec.input_shape, spec.output_shape))
    return x.astype(spec.dtype), dy.astype(spec.dtype)


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whole_numbers_are_exact(name: str, data: st.DataObject) -> None:
    """Sums of products of small whole numbers have no rounding, in any layout."""
    drawn, forms = drawn_problem(name, data, FLOATS)
    spec, target = drawn.spec, planning_target()
    if refused(spec, name, forms):
        return
    x, dy = whole_numbers(spec, drawn.seed)
    got = gradients.computed(spec, x, dy, name, x_format=forms[0], dy_format=forms[1])
    wanted = gradients.expected(spec, x, dy)
    problem = gradients.gradient_problem(spec, *forms)
    choice = select.choose(problem, target, select.gradient_choice_named(name)).choice
    if select.transforms(choice, problem):  # what is multiplied is rounded
        walk = np.sqrt(gradients.expected(spec, x * x, dy * dy)).max()
        assert np.abs(got - wanted).max() <= choice.error * max(np.abs(wanted).max(), walk)
    else:
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_errors_are_no_larger_than_stated(name: str, data: st.DataObject) -> None:
    """Sums of normal numbers, in any layout."""
    drawn, forms = drawn_problem(name, data, FLOATS)
    if not refused(drawn.spec, name, forms):
        check_error(drawn.spec, name, forms, drawn.seed)


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_threads_do_not_change_bits(name: str, data: st.DataObject) -> None:
    """One, two and five threads: sums are split by the shape alone."""
    drawn, forms = drawn_problem(name, data, FLOATS)
    spec = replace(drawn.spec, batch=5)
    if refused(spec, name, forms):
        return
    x, dy = drawn_numbers(spec, drawn.seed)
    given = {"x_format": forms[0], "dy_format": forms[1]}
    one, *others = (
        gradients.computed(spec, x, dy, name, threads=threads, **given) for threads in (1, 2, 5)
    )
    assert all(np.array_equal(one, other) for other in others)


@pytest.mark.pairs
@pytest.mark.parametrize("rows", AXES)
@pytest.mark.parametrize("columns", AXES)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("pages", ["start", "end"])
@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_nothing_is_read_beside_the_arrays(
    name: str, pages: Literal["start", "end"], channels: str, rows: str, columns: str
) -> None:
    """Pages that nobody may touch beside x, dy and dw: extents of one, paddings beyond images."""
    spec = spec_of(rows, columns, channels)
    for forms in gradients.formats(spec, planning_target()):
        if not refused(spec, name, forms):
            check_error(spec, name, forms, pages=pages)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("result", ["half", "float32"])
@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_halves(name: str, result: str, half: DType, data: st.DataObject) -> None:
    """Operands in halves: sums are float32, and dw is rounded once, if at all."""
    types = Precision(half, half if result == "half" else FLOAT32, FLOAT32, half)
    drawn, forms = drawn_problem(name, data, ("float32",))
    spec = replace(drawn.spec, precision=types)
    if not refused(spec, name, forms):
        check_error(spec, name, forms, drawn.seed)


# -- the bias --------------------------------------------------------------------------------------
def summed(dy: np.ndarray) -> np.ndarray:
    """The gradient of the bias, of planes."""
    found: np.ndarray = dy.sum(axis=(0, *range(2, dy.ndim)))
    return found


def check_whole(spec: ConvSpec, name: str, forms: Any, seed: int = 0, **given: Any) -> None:
    """Sums of whole numbers are exact; dw is what it is without db, to the bit."""
    x, dy = whole_numbers(spec, seed)
    dw, db = gradients.computed_with_bias(spec, x, dy, name, forms, **given)
    assert np.array_equal(db, summed(dy))
    alone = gradients.computed(spec, x, dy, name, x_format=forms[0], dy_format=forms[1])
    assert np.array_equal(dw.reshape(alone.shape), alone)


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_bias_is_exact(name: str, data: st.DataObject) -> None:
    """In any layout, and beside the dw that there is without it."""
    drawn, forms = drawn_problem(name, data, FLOATS)
    if not refused(drawn.spec, name, forms):
        check_whole(drawn.spec, name, forms, drawn.seed)


@pytest.mark.pairs
@pytest.mark.parametrize("rows", AXES)
@pytest.mark.parametrize("columns", AXES)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("pages", ["start", "end"])
@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
def test_nothing_is_read_beside_the_arrays_for_the_bias(
    name: str, pages: Literal["start", "end"], channels: str, rows: str, columns: str
) -> None:
    """Pages that nobody may touch beside the arrays; outputs that no tap meets count, too."""
    spec = spec_of(rows, columns, channels)
    for forms in gradients.formats(spec, planning_target()):
        if not refused(spec, name, forms):
            check_whole(spec, name, forms, pages=pages)


@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_errors_and_threads_of_the_bias(name: str, data: st.DataObject) -> None:
    """Sums err as a walk of as many steps as pixels does, at most, with equal bits by threads."""
    drawn, forms = drawn_problem(name, data, FLOATS)
    spec = replace(drawn.spec, batch=5)
    if refused(spec, name, forms):
        return
    x, dy = drawn_numbers(spec, drawn.seed)
    one, *others = (
        gradients.computed_with_bias(spec, x, dy, name, forms, threads=threads)[1]
        for threads in (1, 2, 5)
    )
    assert all(np.array_equal(one, other) for other in others)
    wide = dy.astype(np.longdouble)
    wanted, walk = summed(wide), np.sqrt(summed(wide * wide)).max()
    pixels = dy.size // spec.out_channels
    most = spec.precision.accumulate.roundoff * walk_steps(pixels)
    assert np.abs(one - wanted).max() <= most * max(np.abs(wanted).max(), walk)


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
@pytest.mark.parametrize("name", WEIGHT_GRADIENTS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_bias_in_halves(name: str, half: DType, data: st.DataObject) -> None:
    """Sums are float32, and db is rounded once: as NumPy rounds the exact sum."""
    drawn, forms = drawn_problem(name, data, ("float32",))
    spec = replace(drawn.spec, precision=Precision(half, half, FLOAT32, half))
    if refused(spec, name, forms):
        return
    x, dy = whole_numbers(drawn.spec, drawn.seed)
    _, db = gradients.computed_with_bias(spec, x, dy, name, forms)
    wanted = summed(dy.astype("f8"))
    assert np.abs(db - wanted).max() <= half.roundoff * max(1, np.abs(wanted).max())


def own_sums(spec: ConvSpec, name: str) -> list[str]:
    """The kernels that read dy and nothing else, of a method."""
    problem = gradients.gradient_problem(spec, PLAIN, PLAIN, sums_dy=True)
    choice = select.gradient_choice_named(name)
    found = with_bias(select.choose(problem, planning_target(), choice), problem)
    return [type(use.kernel).__name__ for use in found.kernels if use.roles == ("dy", "db")]


def test_which_methods_sum_dy_again() -> None:
    """Those that read it several times, or one element at a time; no other does."""
    dense, depthwise = spec_of("odd", "odd", "dense"), spec_of("wide", "wide", "depthwise")
    names = [name for name in WEIGHT_GRADIENTS if name != "depthwise"]
    assert [name for name in names if own_sums(dense, name)] == ["naive"]
    assert not own_sums(depthwise, "depthwise")
    many = replace(depthwise, kernel=(13, 13), pad_begin=(6, 6), pad_end=(6, 6))
    assert own_sums(many, "depthwise") == ["Reduction"]
