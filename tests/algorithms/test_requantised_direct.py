"""Direct convolution of codes to codes has the definition's bits on every target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.codegen.matrix_tiles import multiplies
from leanconv.errors import SpecError
from leanconv.graph.ops.quantised_layers import form_of
from leanconv.spec import ConvSpec
from leanconv.spec.requantise import Quantisation, ResidualCodes
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, INT8, UINT8, DType
from support.integer_conv import (
    S8S8,
    SHAPES,
    U8S8,
    added,
    candidate,
    check,
    operands,
    runnable,
    scales,
)
from support.listing import assembly

pytestmark = pytest.mark.vectors


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("ties", [False, True], ids=["any", "ties"])
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_sums_become_codes(dtype: DType, ties: bool, target: Target) -> None:
    given = Quantisation(int(dtype.low) + 100, dtype.low, dtype.high - 9)
    precision = replace(U8S8 if dtype == UINT8 else S8S8, y=dtype)
    for text in SHAPES[1:5]:
        spec = ConvSpec.parse(text, precision=precision, bias=True, requantise=given.form)
        check(spec, target, *operands(spec), given, scales(spec, ties))


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_codes_are_added_as_two_operators_do(dtype: DType, first: bool, target: Target) -> None:
    given = added(dtype, first)
    for text in SHAPES[2:5]:
        spec = ConvSpec.parse(
            text,
            precision=replace(U8S8, y=dtype),
            bias=True,
            residual=True,
            requantise=given.form,
        )
        check(spec, target, *operands(spec), given, scales(spec, False))


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [UINT8, INT8])
def test_codes_that_have_their_type_s_bounds_alone(dtype: DType, target: Target) -> None:
    low = int(dtype.low)
    text = "ic20ih6iw7oc33oh6ow7kh1"
    for scale_of_own in (0.0172, 1e7):
        own = ResidualCodes(low + 91, low, low + 255, scale_of_own, 0.0172, 0.0403, low + 120)
        for residual in (None, own):
            given = Quantisation(0, dtype.low, dtype.high, residual)
            spec = ConvSpec.parse(
                text, precision=replace(U8S8, y=dtype), bias=True, residual=residual is not None
            )
            scale = scales(spec, False)
            form = form_of(given, scale, dtype)
            assert form.saturates == (residual is None or scale_of_own < 1)
            spec = replace(spec, requantise=form)
            check(spec, target, *operands(spec), given, scale)
            if multiplies(spec.precision, target):
                check(spec, target, *operands(spec), given, scale, "amx")


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
def test_sums_become_floats(target: Target) -> None:
    for given in (Quantisation(), Quantisation(low=0.0, high=1.5)):
        for text in SHAPES[2:5]:
            spec = ConvSpec.parse(
                text, precision=replace(U8S8, y=FLOAT32), bias=True, requantise=given.form
            )
            check(spec, target, *operands(spec), given, scales(spec, False))


@pytest.mark.parametrize("target", runnable()[:2], ids=lambda target: target.name)
def test_extreme_scales_stay_within_bounds(target: Target) -> None:
    text = "ic16ih3iw5oc33oh3ow5kh1"
    spec = ConvSpec.parse(text, precision=replace(U8S8, y=UINT8), bias=True)
    numbers = np.float32([3e38, -3e38, np.inf, -np.inf, np.nan, 0.0, 1e-38, 1.0])
    scale = np.resize(numbers, spec.out_channels)
    for zero in (128, 0):
        given = Quantisation(zero, 0, 255)
        form = form_of(given, scale, UINT8)
        assert form.saturates == (zero == 0)
        assert not form.small
        check(replace(spec, requantise=form), target, *operands(spec), given, scale)


def test_what_cannot_be_requantised_is_refused() -> None:
    text, form = "ic16ih3iw5oc33oh3ow5kh1", Quantisation().form
    with pytest.raises(SpecError, match="sums in int32 that become"):
        ConvSpec.parse(text, requantise=form)
    precision = replace(U8S8, y=FLOAT32)
    with pytest.raises(SpecError, match="a residual of codes"):
        ConvSpec.parse(text, precision=precision, residual=True, requantise=form)


@pytest.mark.parametrize("name", ["haswell", "icelake-server", "neoverse-n1"])
def test_rounding_is_one_instruction_of_a_vector(name: str) -> None:
    target, given = preset(name), added(UINT8, False)
    precision = replace(U8S8, y=UINT8)
    spec = ConvSpec.parse(
        "ic16ih8oc16oh8kh1",
        precision=precision,
        bias=True,
        residual=True,
        requantise=given.form,
    )
    (use,) = candidate(spec, target).kernels
    text = assembly(use.kernel, target)
    words = ("vcvtps2dq",) if name != "neoverse-n1" else ("frintn", "frintx")
    assert any(word in text for word in words)
    assert "lrintf" not in text
    assert "roundevenf" not in text
