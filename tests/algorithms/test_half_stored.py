"""Methods of float32 with operands in halves."""

from __future__ import annotations

import pytest

from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from leanconv.target import Target
from leanconv.types import Precision
from support.half_conv import BFLOAT16_STORED, FLOAT16_STORED, WEIGHTS_ONLY, check
from support.integer_conv import SHAPES, runnable

pytestmark = pytest.mark.vectors

METHODS = ["naive", "im2col", "im2win", "planar", "winograd", "fft"]


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


@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("precision", [FLOAT16_STORED, BFLOAT16_STORED, WEIGHTS_ONLY], ids=str)
def test_depthwise_layers_read_and_write_halves(precision: Precision, target: Target) -> None:
    for channels in (32, 40):
        text = f"g{channels}ic{channels}ih9iw11oc{channels}oh5ow6kh3sh2sw2ph1pw1"
        spec = ConvSpec.parse(text, precision=precision, bias=True)
        check(spec, target, "depthwise", True)
        check(spec, target, "planar", False)
