"""Direct convolution of integers equals NumPy's int64, whatever instructions the target has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.direct import DIRECT
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.problem import Problem
from leanconv.codegen.dot import Way, dot_of, way_of
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.spec import Activation, ConvSpec
from leanconv.target import Target, preset
from leanconv.types import FLOAT32, INT8, INT16, INT32, UINT8, UINT16, DType, Precision
from support.integer_conv import (
    S8S8,
    S16,
    SHAPES,
    U8S8,
    U8U8,
    candidate,
    check,
    operands,
    problem,
    runnable,
)
from support.packing import packed_weights

pytestmark = pytest.mark.vectors


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("text", SHAPES)
def test_bytes_are_convolved_exactly(text: str, target: Target) -> None:
    spec = ConvSpec.parse(text, precision=U8S8, bias=True)
    check(spec, target, *operands(spec))


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("precision", [S8S8, U8U8], ids=str)
def test_bytes_of_one_sign_are_convolved_exactly(precision: Precision, target: Target) -> None:
    for text in SHAPES[1:6]:
        spec = ConvSpec.parse(text, precision=precision, bias=True)
        check(spec, target, *operands(spec))


@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("text", SHAPES[2:5])
def test_integers_of_16_bits_are_convolved_modulo_2_to_32(text: str, target: Target) -> None:
    spec = ConvSpec.parse(text, precision=S16, bias=True)
    check(spec, target, *operands(spec))


@pytest.mark.drawn
@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [INT8, UINT8, INT16, UINT16, INT32])
def test_sums_with_a_residual_are_stored_saturated(dtype: DType, target: Target) -> None:
    precision = replace(U8S8, y=dtype)
    for text in SHAPES[2:5]:
        spec = ConvSpec.parse(text, precision=precision, bias=True, residual=True)
        x, w, bias = operands(spec)
        if dtype.bytes == 1:
            x, w, bias = x % 4, w % 5 - 2, bias % 64  # some sums are inside, some beyond
        check(spec, target, x, w, bias)


@pytest.mark.parametrize("target", runnable(), ids=lambda target: target.name)
@pytest.mark.parametrize("precision", [U8S8, S8S8, U8U8], ids=str)
def test_extreme_numbers_saturate_nowhere(precision: Precision, target: Target) -> None:
    spec = ConvSpec.parse("ic64ih3iw5oc16oh3ow5kh3ph1pw1", precision=precision, bias=True)
    given, weights = precision.x, precision.w
    for number in (given.low, given.high):
        x = np.full(spec.input_shape, number, given)
        for weight in (weights.low, weights.high):
            w = np.full(spec.weight_shape, weight, weights)
            check(spec, target, x, w, np.zeros(spec.out_channels, np.int32))


@pytest.mark.parametrize(
    ("name", "ways"),  # of U8S8, S8S8, U8U8, S16
    [
        ("haswell", ["pairs"] * 4),
        ("skylake-avx512", ["pairs"] * 4),
        ("icelake-server", ["vnni", "vnni", "pairs", "vnni"]),
        ("znver4", ["vnni", "vnni", "pairs", "vnni"]),
        ("neoverse-n1", ["dotprod", "dotprod", "dotprod", "lanes"]),
    ],
)
def test_targets_multiply_as_their_extensions_allow(name: str, ways: list[Way]) -> None:
    given = (U8S8, S8S8, U8U8, S16)
    assert [way_of(precision, preset(name)) for precision in given] == ways
    without = replace(preset(name), extensions=())
    plain = "lanes" if name == "neoverse-n1" else "pairs"
    assert {way_of(precision, without) for precision in given} == {plain}


def test_vnni_of_32_bytes_does_not_serve_vectors_of_64() -> None:
    given = replace(preset("skylake-avx512"), extensions=("avx_vnni",))
    assert way_of(U8S8, given) == "pairs"
    assert way_of(U8S8, replace(preset("haswell"), extensions=("avx_vnni",))) == "vnni"


def test_the_dot_of_bytes_is_one_instruction_where_there_is_one() -> None:
    for name, precision, instruction in (
        ("icelake-server", U8S8, "llvm.x86.avx512.vpdpbusd.512"),
        ("icelake-server", S8S8, "llvm.x86.avx512.vpdpbusd.512"),
        ("haswell", U8S8, "llvm.x86.avx2.pmadd.wd"),
        ("neoverse-n1", S8S8, "llvm.aarch64.neon.sdot.v4i32.v16i8"),
        ("neoverse-n1", U8U8, "llvm.aarch64.neon.udot.v4i32.v16i8"),
    ):
        target, spec = preset(name), ConvSpec.parse("ic64ih14oc64oh14kh1", precision=precision)
        (use,) = candidate(spec, target).kernels
        assert isinstance(use.kernel, DirectConv)
        kernel = use.kernel
        assert kernel.dot == dot_of(precision, way_of(precision, target))
        assert f"@{instruction}(" in kernel.emit(target)


def test_channels_are_padded_to_whole_groups_with_weights_of_zero() -> None:
    spec = ConvSpec.parse("ic5ih4iw4oc3oh4ow4kh1", precision=U8S8)
    (use,) = candidate(spec, preset("haswell")).kernels
    assert isinstance(use.kernel, DirectConv)
    w = np.arange(1, 16, dtype=np.int8).reshape(3, 5, 1, 1, 1)
    packed = packed_weights(use.kernel, w).reshape(2, 8, 4)  # [c / 4][lane][4]
    assert packed[:, :3].transpose(1, 0, 2).reshape(3, 8).tolist() == [
        [1, 2, 3, 4, 5, 0, 0, 0],
        [6, 7, 8, 9, 10, 0, 0, 0],
        [11, 12, 13, 14, 15, 0, 0, 0],
    ]
    assert not packed[:, 3:].any()


def test_what_integers_do_not_have_yet_is_refused_with_a_reason() -> None:
    target = host()
    spec = ConvSpec.parse("ic16ih8oc16oh8kh1", precision=U8S8)
    planes = Problem.of(spec, Access.planes(spec.input_shape), Access.planes(spec.output_shape))
    assert "dot products take 4" in str(DIRECT.refusal(planes, target))
    activated = replace(spec, activation=Activation.parse("relu"))
    assert "activation" in str(DIRECT.refusal(problem(activated, target), target))
    other = Precision(INT8, UINT8, INT32, INT32)
    given = problem(replace(spec, precision=other), target)
    assert DIRECT.refusal(given, target) == f"a precision of {other}"
    unscaled = replace(spec, precision=Precision(UINT8, INT8, INT32, FLOAT32))
    assert "without scales" in str(DIRECT.refusal(problem(unscaled, target), target))
