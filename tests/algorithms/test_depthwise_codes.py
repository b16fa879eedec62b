"""Depthwise convolution of codes has the definition's bits: every stride, dilation and edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.depthwise import DEPTHWISE
from leanconv.algorithms.depthwise.quads import QUAD, DepthwiseCodes, operations, quad_step
from leanconv.spec import Activation, ConvSpec
from leanconv.spec.requantise import Quantisation, ResidualCodes
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, INT8, INT32, UINT8, Precision
from support.integer_conv import S8S8, U8S8, U8U8, candidate, check, operands, problem, runnable
from support.listing import assembly

pytestmark = pytest.mark.vectors

SHAPES = [
    "g16ic16ih1iw1oc16oh1ow1kh1",
    "g2ic2ih1iw1oc2oh1ow1kh3ph1pw1",  # taps beside the only pixel
    "g19ic19ih5iw3oc19oh5ow3kh3ph1pw1",
    "g32ic32ih7iw7oc32oh7ow7kh3ph1pw1",
    "mb2g17ic17ih6iw33oc17oh6ow33kh3ph1pw1",
    "g16ic16ih14iw15oc16oh7ow8kh3sh2sw2ph1pw1",
    "g24ic24ih11iw40oc24oh5ow19kh3sh2sw2",
    "g16ic16ih9iw21oc16oh9ow21kh5ph2pw2",
    "g40ic40ih9iw20oc40oh5ow10kh5sh2sw2ph2pw2",
    "g16ic16ih8iw17oc16oh8ow17kh3ph2pw2dh1dw1",  # dilation 2
    "g16ic16ih6iw31oc16oh3ow10kh3kw4sh2sw3ph1pw1",
    "g16ic16ih4iw40oc16oh4ow35kh2kw6dh1ph1pw0",
    "g16ic16ih3iw30oc16oh3ow30kh1kw15ph0pw7",  # too many taps to be written out
    "g16ic16ih3iw9oc16oh3ow9kh1kw17ph0pw8",
    "g20ic20iw29oc20ow29kw3pw1",
    "g16ic16id4ih5iw9oc16od4oh5ow9kd3kh3kw3pd1ph1pw1",
]
targets = pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)


@pytest.mark.drawn
@targets
def test_sums_are_exact(target: Target) -> None:
    for text in SHAPES:
        spec = ConvSpec.parse(text, precision=U8S8, bias=True)
        check(spec, target, *operands(spec), choice="depthwise")


@pytest.mark.drawn
@targets
def test_operands_of_other_signs(target: Target) -> None:
    for text in SHAPES[4:9:4]:
        for precision in (S8S8, U8U8, replace(S8S8, y=INT8), replace(U8S8, y=UINT8)):
            spec = ConvSpec.parse(text, precision=precision, bias=True)
            check(spec, target, *operands(spec), choice="depthwise")


@pytest.mark.drawn
@targets
def test_one_code_for_rows_of_any_width(target: Target) -> None:
    for text in (*SHAPES[3:10:2], SHAPES[12]):
        spec = ConvSpec.parse(text, precision=U8S8, bias=True)
        check(spec, target, *operands(spec), choice="depthwise", any_size=(1, 2))


@pytest.mark.drawn
@targets
@pytest.mark.parametrize("dtype", [UINT8, INT8, FLOAT32])
def test_sums_become_codes(dtype: object, target: Target) -> None:
    for number, text in enumerate(SHAPES[2:10:2]):
        for residual in (False, dtype != FLOAT32):
            own = ResidualCodes(7, -9, 100, 0.031, 0.0172, 0.0403, 12, True) if residual else None
            given = Quantisation(11, 3, 110, own)
            precision = replace(U8S8 if dtype != INT8 else S8S8, y=dtype)
            form = replace(given.form, small=number % 2 == 0)
            settings = {"precision": precision, "bias": True, "residual": residual}
            spec = ConvSpec.parse(text, requantise=form, **settings)
            scale = np.random.default_rng(1).random(spec.out_channels).astype(np.float32) * 0.002
            check(spec, target, *operands(spec), given, scale, choice="depthwise")


def test_quads_are_shared_between_columns() -> None:
    """A row of three taps is one dot product and half a shuffle, one of five two and a quarter."""
    assert [quad_step(taps, 1, 1) for taps in (1, 3, 5, 7)] == [4, 2, 4, 4]
    assert operations(3, 1, 2) == 1.5
    assert operations(5, 1, QUAD) == 2.25
    assert operations(3, 2, quad_step(3, 2, 1)) == 2.0


def test_a_dot_product_is_one_instruction() -> None:
    spec = ConvSpec.parse("g32ic32ih14oc32oh14kh3ph1", precision=U8S8)
    ways = ("icelake-server", "vpdpbusd"), ("haswell", "vpmaddwd"), ("neoverse-n1", "sdot")
    for name, word in ways:
        (use,) = candidate(spec, preset(name), "depthwise").kernels
        assert isinstance(use.kernel, DepthwiseCodes)
        text = assembly(use.kernel, preset(name))
        assert word in text
        if name == "icelake-server":
            assert "vpermb" in text


def test_what_quads_do_not_compute_is_refused_with_a_reason() -> None:
    target = preset("icelake-server")
    spec = ConvSpec.parse("g16ic16ih8oc16oh8kh3ph1", precision=U8S8)
    wide = replace(spec, out_channels=32)
    assert "more than one channel" in str(DEPTHWISE.refusal(problem(wide, target), target))
    activated = replace(spec, activation=Activation.parse("relu"))
    assert "activation" in str(DEPTHWISE.refusal(problem(activated, target), target))
    unscaled = replace(spec, precision=Precision(UINT8, INT8, INT32, FLOAT32))
    assert "without scales" in str(DEPTHWISE.refusal(problem(unscaled, target), target))
    wider = problem(replace(spec, batch=2), preset("haswell"))
    inside = with_conv(problem(spec, target), x=wider.conv.x)
    assert "blocks of 16" in str(DEPTHWISE.refusal(inside, target))
