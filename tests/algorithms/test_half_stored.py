"""Methods of float32 with operands in halves."""

from __future__ import annotations

from typing import Any

import pytest

from leanconv.algorithms import Algorithm, Problem
from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.direct import DIRECT
from leanconv.algorithms.interface import with_halves
from leanconv.algorithms.unfold.im2col import IM2COL
from leanconv.algorithms.unfold.im2win import IM2WIN
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from leanconv.target import Target, preset
from leanconv.types import Precision
from support.half_conv import BFLOAT16_STORED, FLOAT16_STORED, WEIGHTS_ONLY, check
from support.integer_conv import SHAPES, runnable

pytestmark = pytest.mark.vectors

METHODS = ["naive", "im2col", "im2win", "planar", "winograd", "fft"]


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("method", METHODS)
def test_methods_read_and_write_halves(method: str, target: Target) -> None:
    texts, done = [*SHAPES, "ic32ih20iw20oc32oh20ow20kh3ph1pw1"], 0
    for number, text in enumerate(texts):
        if target is not host() and number % 4 not in (0, METHODS.index(method) % 3 + 1):
            continue  # every shape with every instruction set by some method
        precision = (FLOAT16_STORED, BFLOAT16_STORED, WEIGHTS_ONLY)[number % 3]
        spec = ConvSpec.parse(text, precision=precision, bias=True, residual=number % 2 == 1)
        try:
            check(spec, target, method, number % 4 > 1)
            done += 1
        except SpecError:
            continue
    assert done > 1


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("precision", [FLOAT16_STORED, BFLOAT16_STORED, WEIGHTS_ONLY], ids=str)
def test_depthwise_layers_read_and_write_halves(precision: Precision, target: Target) -> None:
    for channels in (32, 40):
        text = f"g{channels}ic{channels}ih9iw11oc{channels}oh5ow6kh3sh2sw2ph1pw1"
        spec = ConvSpec.parse(text, precision=precision, bias=True)
        check(spec, target, "depthwise", True)
        check(spec, target, "planar", False)


def test_halves_cost_little_where_each_is_converted_once() -> None:
    """Where the input is copied before it is multiplied, which im2win does of several taps."""
    target = preset("icelake-server")

    def slower(algorithm: Algorithm[Any], taps: int) -> float:
        spec, map_ = ConvSpec.parse(f"ic32ih20oc32oh20kh{taps}ph{taps // 2}"), (1, 32, 20, 20)
        problem = Problem.of(spec, Access.planes(map_), Access.planes(map_))
        stored = with_conv(problem, precision=FLOAT16_STORED)
        return with_halves(algorithm).cost(stored, target) / algorithm.cost(problem, target)

    once, each = slower(IM2COL, 1), slower(DIRECT, 3)
    assert 1 < once < each
    assert (slower(IM2COL, 3), slower(IM2WIN, 3)) == pytest.approx((once, once))
    assert (slower(IM2WIN, 1), slower(DIRECT, 1)) == pytest.approx((each, each))
