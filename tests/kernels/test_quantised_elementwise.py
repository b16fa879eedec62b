"""Elementwise kernels on the codes of quantised tensors: the bits of the reference, all codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from leanconv.kernels import elementwise
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, INT8, INT16, INT32, UINT8, UINT16, DType
from support.nodes import TARGETS, Case

CODES = [UINT8, INT8]
targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
# Scales of a, b and the result: of powers of two every second number lies between two codes.
SCALES = [(0.0231, 0.0417, 0.0513), (0.5, 0.25, 1.0), (1.0, 1.0, 1.0), (0.003, 1.7, 0.9)]


def floats(dtype: DType, zero: int, scale: float, ends: tuple[int, int]) -> np.ndarray:
    """Numbers on, beside and between all codes and beyond them; NaN and infinities."""
    codes = np.arange(ends[0] - 3, ends[1] + 4, 0.5)
    exact = ((codes - zero) * scale).astype(dtype.numpy)
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 1e-40], dtype.numpy)
    beside = [np.nextafter(exact, exact.dtype.type(way)) for way in (-np.inf, np.inf)]
    return np.concatenate([odd, exact, *beside, odd])


def quantisation(op: str, x: np.ndarray, scale: Any, zero: Any, **given: Any) -> Case:
    """One node with constants."""
    return Case(elementwise, op, [x, np.asarray(scale), np.asarray(zero)], given, constants=(1, 2))


def check(case: Case, target: Target, blocked: bool = False) -> None:
    with np.errstate(all="ignore"):
        found, wanted = case.run(target, blocked), case.expected()
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@targets
@pytest.mark.parametrize("real", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("dtype", [*CODES, UINT16, INT16])
def test_quantize(dtype: DType, real: DType, target: Target) -> None:
    for zero, scale in ((int(dtype.low) + 117, 0.3712), (0, 0.25), (int(dtype.high), 3.0)):
        x = floats(real, zero, scale, (int(dtype.low), int(dtype.low) + 255))
        constants = np.float32(scale), np.array(zero, dtype.numpy)
        check(quantisation("QuantizeLinear", x, *constants, axis=0), target)


@targets
@pytest.mark.parametrize("dtype", [*CODES, UINT16, INT16])
def test_quantize_by_scales_that_are_data(dtype: DType, target: Target) -> None:
    """Rows of one scale each: of any bits, whose reciprocals are no floats, and no numbers."""
    generator = np.random.default_rng(7)
    odd = [0.0, -0.25, np.inf, -np.inf, np.nan, 1e-42, -1e-30, 2.0**-60, 2.0**-61, 2.0**60, 3e38]
    bits = generator.integers(0x3F800000, 0x40000000, 40, dtype=np.uint32)
    scales = np.array([*odd, *bits.view(np.float32), *(bits.view(np.float32) * 2.0**-59)], "f4")
    zeros = generator.integers(int(dtype.low), int(dtype.high) + 1, len(scales)).astype("f4")
    with np.errstate(all="ignore"):
        rows = [
            floats(FLOAT32, int(zero), scale, (int(zero) - 50, int(zero) + 50))
            for scale, zero in zip(scales, zeros, strict=True)
        ]
        rest = generator.normal(0, 90, (len(scales), 71)).astype("f4") * scales[:, None]
    x = np.concatenate([np.stack(rows), rest], 1)
    bounds = {"low": int(dtype.low), "high": int(dtype.high), "dtype": dtype}
    case = Case(elementwise, "QuantizeFloats", [x, scales[:, None], zeros[:, None]], bounds)
    check(case, target)


def test_a_scale_of_a_long_line_divides_once() -> None:
    def divisions(shape: tuple[int, ...], target: Target) -> int:
        x = np.zeros(shape, np.float32)
        case = quantisation("QuantizeLinear", x, np.float32(0.3), np.uint8(7), axis=0)
        (call,) = case.lower(target, False).calls
        return sum(bool(step.parameters) for step in call.kernel.steps)

    assert divisions((300,), preset("znver4")) == 1
    assert divisions((30,), preset("znver4")) == divisions((300,), preset("haswell")) == 0


@targets
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("dtype", [*CODES, INT16, INT32])
def test_along_an_axis(dtype: DType, blocked: bool, target: Target) -> None:
    generator = np.random.default_rng(0)
    scale = generator.uniform(0.01, 2, 21).astype(np.float32)
    zero = generator.integers(0, 100, 21).astype(dtype.numpy) * (dtype != INT32)
    codes = generator.integers(dtype.low, dtype.high, (2, 21, 3, 7)).astype(dtype.numpy)
    constants = scale, zero.astype(dtype.numpy)
    given: dict[str, Any] = {"axis": 1, "dtype": FLOAT32}
    check(quantisation("DequantizeLinear", codes, *constants, **given), target, blocked)
    if dtype != INT32:
        x = generator.normal(0, 60, (2, 21, 3, 7)).astype(np.float32)
        check(quantisation("QuantizeLinear", x, *constants, axis=1), target, blocked)


@targets
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(("a", "b", "y"), [(UINT8,) * 3, (INT8,) * 3, (UINT8, INT8, UINT8)])
def test_all_pairs(op: str, a: DType, b: DType, y: DType, target: Target) -> None:
    every = [np.arange(dtype.low, dtype.high + 1).astype(dtype.numpy) for dtype in (a, b)]
    pairs = [np.repeat(every[0], 256), np.tile(every[1], 256)]
    for number, scales in enumerate(SCALES if target is TARGETS[0] else SCALES[:1]):
        zeros = tuple(int(dtype.low) + 12 + 31 * number for dtype in (a, b, y))
        bounds = {"low": int(y.low) + number, "high": int(y.high) - 9 * number}
        given = {"scales": scales, "zeros": zeros, "dtype": y, **bounds}
        check(Case(elementwise, op, pairs, given), target)


@targets
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize("blocked", [False, True])
def test_broadcast(op: str, blocked: bool, target: Target) -> None:
    generator = np.random.default_rng(0)
    given = {"scales": SCALES[0], "zeros": (3, 200, 90), "low": 0, "high": 255, "dtype": UINT8}
    for shapes in (
        ((2, 19, 3, 5), (2, 19, 1, 1)),
        ((2, 19, 3, 5), (1, 1, 1, 1)),
        ((1, 1, 1, 5), (2, 19, 3, 1)),
    ):
        arrays = [generator.integers(0, 256, shape).astype(np.uint8) for shape in shapes]
        check(Case(elementwise, op, arrays, given), target, blocked)
