"""Reductions against float64 NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.errors import UnsupportedError
from leanconv.graph.ops import evaluate
from leanconv.kernels import KernelContext
from leanconv.kernels.reduce import Extremes, accepts_blocked, lower
from leanconv.spec.format import Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, INT32, INT64, DType
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.nodes import TARGETS, one_node, run_node

OPS = ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin")
OF_EACH = ("ReduceL1", "ReduceSumSquare", "ReduceMeanSquare")


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    generator = np.random.default_rng(len(shape) * 1000 + sum(shape))
    return generator.normal(size=shape).astype(dtype)


def check(y: np.ndarray, expected: np.ndarray, x: np.ndarray, roundings: float = 12) -> None:
    """Sums may be off by some roundings of the sum of absolute values."""
    assert y.shape == expected.shape
    scale = np.abs(x).mean() * x.size / max(1, expected.size)
    eps = float(np.finfo(y.dtype).eps)
    np.testing.assert_allclose(y, expected, rtol=eps, atol=roundings * eps * scale)


AXES = [a for n in (1, 2, 3, 4) for a in itertools.combinations(range(4), n)]


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("op", [*OPS, *OF_EACH])
def test_any_axes(op: str, axes: tuple[int, ...], target: Target) -> None:
    for shape, keepdims in (((2, 19, 6, 35), True), ((3, 5, 2, 3), False), ((2, 1, 5, 1), True)):
        x = numbers(*shape)
        outcome = run_node(lower, op, {"x": x}, target=target, axes=axes, keepdims=keepdims)
        check(outcome.y, outcome.expected, x)


@pytest.mark.drawn
@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [INT32, INT64])
@pytest.mark.parametrize("op", [op for op in OPS if op != "ReduceMean"])
def test_integers(op: str, dtype: DType, target: Target) -> None:
    """Exactly, modulo their range; all of them negative or positive, and the ends."""
    for number, shape in enumerate(((2, 19, 6, 35), (3, 1, 40, 1), (1, 300, 3, 17))):
        x = np.random.default_rng(number).integers(-99, 99, shape).astype(dtype)
        for given in (x, np.abs(x) + 1, -np.abs(x) - 1, np.full(shape, dtype.low, dtype.numpy)):
            for axes in ((3,), (1,), (0, 2), (1, 2, 3)):
                attributes = {"axes": axes, "keepdims": True}
                outcome = run_node(lower, op, {"x": given}, target=target, **attributes)
                (expected,) = evaluate(op, [given], attributes)
                np.testing.assert_array_equal(outcome.y, expected)


SIZES = (1, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 8191, 8209)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("size", SIZES)
def test_sizes_along_and_across_lanes(size: int, dtype: str, target: Target) -> None:
    shapes = (((3, size), 1), ((size, 3), 0), ((3, size), 0), ((2, size, 70), 1))
    first = SIZES.index(size) + TARGETS.index(target) + (dtype == FLOAT64)
    for number, (shape, axis) in enumerate(shapes, first):
        # Each meets every size, and every shape on several: loops are the same for all of them.
        op = ("ReduceSum", "ReduceMax", "ReduceMin")[number % 3]
        x = numbers(*shape, dtype=dtype)
        outcome = run_node(
            lower, op, {"x": x}, target=target, parts=(0.5,), axes=(axis,), keepdims=False
        )
        check(outcome.y, outcome.expected, x)


@pytest.mark.pairs
@pytest.mark.parametrize("plain_result", [False, True])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("shape", [(1, 16, 7, 7), (2, 35, 7, 5), (3, 1, 1, 1), (1, 40, 60, 61)])
def test_global_pool_of_blocks(
    shape: tuple[int, ...], dtype: str, target: Target, plain_result: bool
) -> None:
    x = numbers(*shape, dtype=dtype)
    for op in ("ReduceMean", "ReduceMax"):
        outcome = run_node(
            lower,
            op,
            {"x": x},
            blocked=True,
            block_output=not plain_result,
            target=target,
            parts=(0.5,),
            axes=(2, 3),
            keepdims=not plain_result,
        )
        check(outcome.y, outcome.expected, x)


@pytest.mark.parametrize(("axes", "keepdims"), [((2,), True), ((3,), False), ((0,), True)])
def test_other_axes_of_blocks(axes: tuple[int, ...], keepdims: bool) -> None:
    x = numbers(2, 35, 6, 5)
    outcome = run_node(lower, "ReduceSum", {"x": x}, blocked=True, axes=axes, keepdims=keepdims)
    check(outcome.y, outcome.expected, x)


def test_accepts_blocked_unless_channels_are_reduced() -> None:
    def accepts(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> bool:
        attributes = {"axes": axes, "keepdims": keepdims}
        return accepts_blocked(
            *one_node("ReduceSum", {"x": numbers(*shape)}, {}, "x", attributes), 16
        )

    assert accepts((2, 3, 4, 5), (2, 3), True)
    assert accepts((2, 3, 4, 5), (2, 3), False)
    assert accepts((2, 3, 4, 5), (0,), True)
    assert not accepts((2, 3, 4, 5), (0,), False)
    assert not accepts((2, 3, 4, 5), (1, 2), True)
    assert not accepts((2, 3), (0,), True)


@pytest.mark.parametrize(("shape", "axis"), [((1 << 20,), 0), ((60000, 3), 0), ((50000, 2, 3), 0)])
def test_error_of_long_sums_is_small(shape: tuple[int, ...], axis: int) -> None:
    x = np.abs(numbers(*shape)) + 1
    axes = (axis, *range(2, len(shape)))
    outcome = run_node(lower, "ReduceSum", {"x": x}, axes=axes, keepdims=False)
    np.testing.assert_allclose(outcome.y, outcome.expected, rtol=3e-6)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceSumSquare", "ReduceMeanSquare"])
@pytest.mark.parametrize("columns", [1, 2, 4, 8, 16])
def test_steps_before_sums_of_few_columns(op: str, columns: int) -> None:
    x = numbers(3, 120, columns)
    outcome = run_node(lower, op, {"x": x}, axes=(1,), keepdims=False)
    np.testing.assert_allclose(outcome.y, outcome.expected, rtol=3e-6)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_stays(op: str, axis: int) -> None:
    x = numbers(41, 43)
    for place in (0, 20, 40):
        x[place, place] = np.nan
        outcome = run_node(lower, op, {"x": x}, axes=(axis,), keepdims=False)
        np.testing.assert_array_equal(np.isnan(outcome.y), np.isnan(outcome.expected))


def test_results_do_not_depend_on_the_cuts() -> None:
    x = numbers(40, 300, 70)
    for axes in ((1,), (2,), (0, 2)):
        whole = run_node(lower, "ReduceSum", {"x": x}, axes=axes, keepdims=False)
        cut = run_node(
            lower, "ReduceSum", {"x": x}, parts=(0.1, 0.3, 0.7), axes=axes, keepdims=False
        )
        np.testing.assert_array_equal(whole.y, cut.y)


def with_nan(*shape: int, dtype: str) -> np.ndarray:
    """Numbers, some of them -0 or NaN; whole ones of an integer type."""
    x = numbers(*shape)
    if np.dtype(dtype).kind != "f":
        return np.round(x * 99).astype(dtype)
    chosen = np.random.default_rng(0).integers(0, 199, shape)
    return np.where(chosen == 0, np.nan, np.where(chosen < 9, -0.0, x)).astype(dtype)


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, INT64])
@pytest.mark.parametrize("size", [1, 3, 17, 56, 65, 700])
def test_a_row_is_the_same_among_others(size: int, dtype: DType, target: Target) -> None:
    """Bit for bit: the last steps of many rows are taken together, of one row by itself."""
    x = with_nan(35, size, dtype=dtype)
    for op in OPS[dtype.is_integer :]:
        kernel, y = kernel_of(op, x, 1, target), np.zeros(35, dtype.numpy)
        many = run_kernel(kernel, x, y, target=target)
        for number in (0, 14, 34):
            row = x[number : number + 1]
            alone = run_kernel(kernel_of(op, row, 1, target), row, y[:1], target=target)
            assert many[number : number + 1].tobytes() == alone.tobytes()


@pytest.mark.drawn
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64, INT32, INT64])
@pytest.mark.parametrize("rows", [4, 508, 516, 1028])
def test_columns_are_the_same_among_few(rows: int, dtype: DType, target: Target) -> None:
    """Bit for bit: of 2, 4 and 8 columns, several rows fill a vector; of one less they do not."""
    for columns in (2, 4, 8):
        x = with_nan(3, rows, columns, dtype=dtype)
        part = np.ascontiguousarray(x[..., : columns - 1])
        for op in OPS[dtype.is_integer :]:
            found, wanted = (
                run_kernel(
                    kernel_of(op, each, 1, target),
                    each,
                    np.zeros((3, each.shape[2]), dtype.numpy),
                    target=target,
                )
                for each in (x, part)
            )
            if columns > 2:  # a single column is an axis of its own
                assert found[:, : columns - 1].tobytes() == wanted.tobytes()
            (expected,) = evaluate(op, [x], {"axes": (1,), "keepdims": False})
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def kernel_of(op: str, x: np.ndarray, axis: int, target: Target) -> Kernel:
    """The kernel of a reduction of one axis."""
    node, graph = one_node(op, {"x": x}, {}, ("x",), {"axes": (axis,), "keepdims": False})
    (call,) = lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, target)).calls
    return call.kernel


def test_infinities() -> None:
    x = np.full((3, 40), -np.inf, np.float32)
    outcome = run_node(lower, "ReduceMax", {"x": x}, axes=(1,), keepdims=False)
    np.testing.assert_array_equal(outcome.y, outcome.expected)


def test_empty_reduction_is_refused() -> None:
    attributes = {"axes": (0,), "keepdims": False}
    node, graph = one_node("ReduceSum", {"x": numbers(0, 3)}, {}, "x", attributes)
    with pytest.raises(UnsupportedError, match="empty axis"):
        lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, host()))


@pytest.mark.parametrize("name", ["neoverse-n1", "icelake-server", "haswell"])
@pytest.mark.parametrize("axes", [(2, 3), (1,), (0, 3)], ids=str)
def test_emission_for_other_targets(axes: tuple[int, ...], name: str) -> None:
    target = preset(name)
    attributes = {"axes": axes, "keepdims": True}
    node, graph = one_node("ReduceMax", {"x": numbers(2, 35, 9, 31)}, {}, "x", attributes)
    lowered = lower(KernelContext(node, graph, {"x": Format(), "y": Format()}, target))
    text = assembly(lowered.calls[0].kernel, target)
    assert "call" not in text
    assert "\tbl\t" not in text
    assert len(text.splitlines()) < 700


@pytest.mark.pairs
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 64, 67, 128, 1039])
def test_both_ends_at_once(count: int, dtype: DType, target: Target) -> None:
    x = np.random.default_rng(count).normal(0, 1, count).astype(dtype.numpy)
    for place in {0, count // 2, count - 1}:
        for odd in (-np.inf, -9.0, 9.0, np.inf, np.nan):
            given = x.copy()
            given[place] = odd
            y = run_kernel(Extremes(dtype, count), given, np.zeros(2, dtype.numpy), target=target)
            np.testing.assert_array_equal(y, [given.min(), given.max()])
