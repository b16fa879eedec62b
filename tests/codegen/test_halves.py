"""Halves in memory: every one is read exactly, floats are rounded as NumPy rounds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.kernel import Kernel
from leanconv.half_arrays import as_float32, in_memory
from leanconv.target import Target
from leanconv.types import BFLOAT16, FLOAT32, HALVES, DType
from support.integer_conv import runnable
from support.kernel_runner import run_kernel

EVERY = np.arange(2**16, dtype=np.uint16)
TARGETS = pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)


@dataclass(frozen=True)
class Converting(Kernel):
    """Copies `count` elements of x to y, a vector at a time, as float32 between them."""

    VARIES = False

    count: int
    x: DType
    y: DType
    how: str

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return 1

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x, y = e.pointer(0, self.x.llvm), e.pointer(1, self.y.llvm)
        lanes = target.vector_bytes // 4
        kind, live = vector("float", lanes), lanes - 3
        with e.chunks(1), e.loop("i", self.count // lanes) as i:
            a, b = x.at(i * lanes), y.at(i * lanes)
            if self.how == "whole":
                e.store(e.load(a, kind), b)
            elif self.how == "one by one":
                with e.loop("lane", lanes) as lane:
                    e.store(e.load(a.at(lane)), b.at(lane))
            elif self.how == "broadcast":
                with e.loop("lane", lanes) as lane:
                    e.store(e.extract(e.broadcast(a.at(lane), kind), lanes - 1), b.at(lane))
            else:
                count = e.i64(live) if self.how == "any first" else live
                e.store_first(e.load_first(a, kind, count), b, count)
                e.store(e.load(a.at(live), vector("float", 2)), b.at(live))
                e.store(e.load(a.at(live + 2)), b.at(live + 2))
        return e.finish()


def copied(given: np.ndarray, x: DType, y: DType, how: str, target: Target) -> np.ndarray:
    """What the kernel makes of an array."""
    kernel = Converting(given.size, x, y, how)
    return run_kernel(kernel, given, np.full(given.size, 77, y.numpy), target=target)


HOW = ["whole", "one by one", "broadcast", "first", "any first"]


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_read_exactly_and_written_back(dtype: DType, target: Target) -> None:
    expected = as_float32(EVERY.view(dtype.numpy), dtype)
    for how in HOW:
        wide = copied(EVERY.view(dtype.numpy), dtype, FLOAT32, how, target)
        assert np.array_equal(wide, expected, equal_nan=True), how
        back = copied(wide, FLOAT32, dtype, how, target).view(np.uint16)
        nan, written = np.isnan(expected), EVERY
        if dtype == BFLOAT16 and "bf16" in target.extensions:  # an instruction without subnormals
            tiny = np.abs(expected) < FLOAT32.least_normal
            assert np.isin(back[tiny], [*EVERY[tiny], 0, 0x8000]).all()
            written = np.where(tiny, back, EVERY)
        assert np.array_equal(back[~nan], written[~nan]), how
        assert np.isnan(as_float32(back.view(dtype.numpy), dtype)[nan]).all(), how


@TARGETS
@pytest.mark.parametrize("dtype", HALVES)
def test_floats_are_rounded_to_the_nearest_even(dtype: DType, target: Target) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 2**15, np.uint32)
    exact = as_float32(EVERY[: 2**14].view(dtype.numpy), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        ties = (exact + np.nextafter(exact, np.float32(np.inf))) / 2
        halfway = (exact[:-1].astype("f8") + exact[1:]) / 2
    numbers = np.concatenate([bits.view("f4"), ties, halfway.astype("f4"), [np.float32(65520)]])
    numbers = numbers[: len(numbers) // 16 * 16].astype(np.float32)
    numbers = numbers[(np.abs(numbers) >= 1.2e-38) | (numbers == 0) | np.isnan(numbers)]
    numbers = numbers[: len(numbers) // 16 * 16]
    found = copied(numbers, FLOAT32, dtype, "whole", target)
    expected = in_memory(numbers, dtype)
    wide = [as_float32(each.view(dtype.numpy), dtype) for each in (found, expected)]
    assert np.array_equal(*wide, equal_nan=True)
