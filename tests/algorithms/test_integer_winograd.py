"""Winograd of integers equals NumPy's int64, bit by bit, whatever the codes are, or is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.magnitudes import sum_bits
from leanconv.algorithms.winograd import WINOGRAD
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from leanconv.spec.requantise import Quantisation
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, INT8, INT16, UINT8, DType, Precision
from support.integer_conv import (
    S8S8,
    U8S8,
    U8U8,
    added,
    candidate,
    check,
    operands,
    problem,
    runnable,
    scales,
)

pytestmark = pytest.mark.vectors

SHAPES = [
    "ic16ih8iw8oc16oh8ow8kh3ph1pw1",  # whole tiles
    "ic3ih9iw11oc5oh9ow11kh3ph1pw1",  # an odd number of channels in one block
    "ic33ih14iw13oc40oh14ow13kh3ph1pw1",  # narrow tiles at both edges
    "mb2g2ic32ih6iw7oc64oh6ow7kh3ph1pw1",
    "ic17ih3iw3oc17oh1ow1kh3",
    "mb3ic20ih5iw1oc18oh5ow3kh3ph1pw2",  # columns of padding alone
]
OTHERS = [
    "ic18ih9iw10oc33oh4ow4kh3sh2sw2",  # phases
    "ic20ih9iw9oc16oh9ow9kh3dh1dw1ph2pw2",  # residues
    "ic16ih7iw9oc16oh7ow8kh1kw2",
    "ic16ih7iw9oc16oh5ow9kh3kw1",
]
TILES = ["m=4", "m=2", "m=3", "m=4x2", "m=4,edges=narrow", "m=3,edges=narrow", "m=1x4"]


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("text", SHAPES)
def test_bytes_are_convolved_exactly_in_tiles(text: str, target: Target) -> None:
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    given = operands(spec)
    for tile in TILES if target is host() else TILES[:2]:
        check(spec, target, *given, choice=f"winograd:{tile}")


@pytest.mark.parametrize("choice", ["winograd:m=4", "winograd:m=2", "winograd:form=stages,m=4"])
def test_bytes_are_convolved_exactly_on_neon(choice: str) -> None:
    for text in ("ic8ih6iw5oc9oh6ow5kh3ph1pw1", "ic5ih9iw4oc8oh9ow4kh3ph1pw1"):
        spec = ConvSpec.parse(text, precision=U8S8, bias=True)
        check(spec, preset("neoverse-n1"), *operands(spec), choice=choice)


@pytest.mark.drawn
@pytest.mark.parametrize("m", ["2", "4"])
@pytest.mark.parametrize("text", [*SHAPES, *OTHERS])
def test_bytes_are_convolved_exactly_in_stages(text: str, m: str) -> None:
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    check(spec, host(), *operands(spec), choice=f"winograd:form=stages,m={m}")


@pytest.mark.parametrize("text", OTHERS)
def test_strides_dilations_and_lines_are_exact(text: str) -> None:
    for precision in (U8S8, S8S8):
        spec = ConvSpec.parse(text, precision=precision, bias=True)
        for m in (2, 4):
            check(spec, host(), *operands(spec), choice=f"winograd:m={m}")


def test_kernels_of_5_taps_are_exact_along_one_axis() -> None:
    spec = ConvSpec.parse("ic16ih8iw9oc20oh8ow9kh5ph2pw2", precision=U8S8, bias=True)
    for m in ("1x2", "2x1"):
        check(spec, host(), *operands(spec), choice=f"winograd:m={m}")


def test_kernels_of_5_taps_whose_exact_tiles_save_little_have_a_cost() -> None:
    """On maps as large as cv5's none of those tiles would be considered otherwise."""
    spec = ConvSpec.parse("ic16ih24iw24oc16oh20ow20kh5", precision=U8S8, bias=True)
    given = replace(problem(spec, host()), sum_bits=28)
    assert WINOGRAD.cost(given, host()) > 0


@pytest.mark.parametrize("precision", [U8S8, S8S8], ids=str)
@pytest.mark.parametrize("tile", ["m=2", "m=3,edges=narrow", "m=4"])
def test_extreme_codes_overflow_nowhere(precision: Precision, tile: str) -> None:
    """Codes and weights with the signs of each point's transforms, and all alike."""
    spec = ConvSpec.parse("ic64ih6iw6oc16oh6ow6kh3ph1pw1", precision=precision, bias=True)
    rng, (codes, weights) = np.random.default_rng(4), (spec.precision.x, spec.precision.w)
    zero = np.zeros(16, np.int32)
    for trial in range(24):
        signs = rng.integers(0, 2, (2, 6)) if trial else np.ones((2, 6), np.int64)
        high = np.outer(signs[0], signs[1]) if trial % 2 else signs[0][:, None] ^ signs[1]
        plane = np.where(high, codes.high, codes.low).astype(codes)
        x = np.ascontiguousarray(np.broadcast_to(plane, spec.input_shape))
        taps = np.where(high[:3, :3], weights.high, weights.low).astype(weights)
        w = np.ascontiguousarray(np.broadcast_to(taps, spec.weight_shape))
        check(spec, host(), x, w, zero, choice=f"winograd:{tile}")


@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16])
def test_sums_with_a_residual_are_stored_saturated(dtype: DType) -> None:
    precision = replace(U8S8, y=dtype)
    spec = ConvSpec.parse(SHAPES[2], precision=precision, bias=True, residual=True)
    x, w, bias = operands(spec)
    if dtype.bytes == 1:
        x, w, bias = x % 4, w % 5 - 2, bias % 64
    for tile in ("m=4", "m=2", "form=stages,m=4"):
        check(spec, host(), x, w, bias, choice=f"winograd:{tile}")


@pytest.mark.drawn
@pytest.mark.parametrize("dtype", [UINT8, INT8, FLOAT32])
@pytest.mark.parametrize(
    ("text", "tile"), list(zip(SHAPES, ("m=4", "m=2", "m=4", "m=3", "m=2", "m=4"), strict=True))
)
def test_sums_become_codes(text: str, tile: str, dtype: DType) -> None:
    low = int(dtype.low) if dtype != FLOAT32 else -1
    plain_sums = Quantisation(low + 100 if dtype != FLOAT32 else 0, low, low + 246)
    for given in (plain_sums, added(dtype, True)) if dtype != FLOAT32 else (plain_sums,):
        spec = ConvSpec.parse(
            text,
            precision=replace(S8S8 if dtype == INT8 else U8S8, y=dtype),
            bias=True,
            residual=given.residual is not None,
            requantise=given.form,
        )
        factors = scales(spec, tile == "m=3")
        for form in ("", "form=stages,"):
            check(spec, host(), *operands(spec), given, factors, choice=f"winograd:{form}{tile}")


def test_bits_of_sums_follow_from_the_weights_of_each_sign() -> None:
    w = np.full((2, 1024, 3, 3), 127, np.int8)
    w[0] = 0
    assert [sum_bits(w[:, :c], UINT8) for c in (16, 115, 116, 460, 461)] == [26, 26, 28, 28, 30]
    w[:, ::2] *= -1  # half of the sum, either way
    assert [sum_bits(w[:, :c], UINT8) for c in (230, 232, 920, 922)] == [26, 28, 28, 30]
    assert sum_bits(w[:, :228], INT8) == 26
    assert sum_bits(np.zeros((1, 1, 3, 3), np.int8), INT8) == 26


def test_sums_of_all_bits_that_a_tile_leaves_are_exact() -> None:
    """-2^25 has 26 bits and is computed; one weight more, and tiles of 4 are refused."""
    spec = ConvSpec.parse("ic256ih6iw6oc16oh4ow4kh3", precision=S8S8, bias=True)
    x, bias = np.full(spec.input_shape, -128, np.int8), np.zeros(16, np.int32)
    w = np.full(spec.weight_shape, 113, np.int8)
    w.reshape(16, -1)[:, : 2**18 - 113 * 2304] += 1
    assert int(w[0].sum(dtype=np.int64)) == 2**18
    assert sum_bits(w, INT8) == 26
    check(spec, host(), x, w, bias, choice="winograd:m=4")
    w[:, 0, 2, 2] += 1
    assert sum_bits(w, INT8) == 28
    with pytest.raises(SpecError, match="m is 4x4; with these integers expected one of 1x2, .*2x4"):
        candidate(spec, host(), "winograd:m=4", w)
    check(spec, host(), x, w, bias, choice="winograd:m=4x2")


def test_what_is_not_exact_is_refused_with_a_reason() -> None:
    spec, target = ConvSpec.parse("ic16ih8oc16oh8kh3ph1", precision=U8S8), host()
    unknown = problem(spec, target)
    assert "sums of 32 bits" in str(WINOGRAD.refusal(unknown, target))
    other = problem(replace(spec, precision=U8U8), target)
    assert "a precision of uint8" in str(WINOGRAD.refusal(other, target))
    planes = with_conv(replace(unknown, sum_bits=26), x=Access.planes(spec.input_shape))
    assert "not in blocks" in str(WINOGRAD.refusal(planes, target))
    long = ConvSpec.parse("ic16ih8oc16oh8kh7ph3", precision=U8S8)
    given = replace(problem(long, target), sum_bits=26)
    assert "no tile of integers is exact" in str(WINOGRAD.refusal(given, target))
