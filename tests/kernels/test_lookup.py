"""Tables of bytes, and of wider elements, exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.kernels import lookup
from leanconv.kernels.lookup import PIECE, Lookup
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, FLOAT64, INT8, UINT8, DType
from support.listing import assembly
from support.nodes import TARGETS, Case, run_in_place, run_node

SIZES = (1, 15, 16, 17, 63, 64, 65, 1000, PIECE - 1, PIECE, 2 * PIECE + 77)


def without_permutes(target: Target) -> Target:
    """The same machine without AVX512-VBMI."""
    left = tuple(name for name in target.extensions if name != "vbmi")
    return replace(target, name=f"{target.name}, no vbmi", extensions=left)


def table(dtype: DType) -> np.ndarray:
    """Elements that are all different."""
    mixed = np.random.default_rng(1).permutation(256) - (128 if dtype == INT8 else 0)
    return mixed.astype(dtype.numpy)


def case(x: np.ndarray, dtype: DType) -> Case:
    return Case(lookup, "Lookup", [x, table(dtype)], {}, constants=(1,))


@pytest.mark.parametrize("target", [*TARGETS, without_permutes(host())], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", [UINT8, INT8, FLOAT32, FLOAT64])
def test_tables(dtype: DType, target: Target) -> None:
    for number, size in enumerate(SIZES if target.isa != "neon" else SIZES[:-3]):
        bytes_ = np.random.default_rng(size).integers(0, 256, size).astype(np.uint8)
        one = case(bytes_.view(np.int8) if number % 2 else bytes_, dtype)
        np.testing.assert_array_equal(one.run(target, False), one.expected())
    every = case(np.arange(256, dtype=np.uint8), dtype)
    np.testing.assert_array_equal(every.run(target, False), table(dtype))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_blocks_of_channels(target: Target) -> None:
    one = case(np.random.default_rng(0).integers(0, 256, (2, 19, 3, 5)).astype(np.uint8), UINT8)
    assert one.accepts(target)
    np.testing.assert_array_equal(one.run(target, True), one.expected())


def test_in_place() -> None:
    x = np.arange(256, dtype=np.uint8)
    outcome = run_node(lookup.lower, "Lookup", {"x": x}, {"t": table(UINT8)})
    assert outcome.lowered.calls[0].in_place == (0,)
    np.testing.assert_array_equal(run_in_place(outcome, 0, x, table(UINT8)), table(UINT8))


@pytest.mark.parametrize(
    ("name", "word", "count"),
    [
        ("sapphirerapids", ("vpermi2b", "vpermt2b"), 2),
        ("znver4", ("vpermi2b", "vpermt2b"), 2),
        ("haswell", ("vpshufb",), 16),
        ("skylake-avx512", ("vpshufb",), 16),
        ("neoverse-n1", ("tbx",), 3),
    ],
)
def test_instructions(name: str, word: tuple[str, ...], count: int) -> None:
    listing = assembly(Lookup(UINT8, 1000), preset(name))
    first_words = [line.split()[0] for line in listing.splitlines() if line.strip()]
    assert sum(each in word for each in first_words) == count, listing
