"""Products of float16 summed in float16 piece by piece: their error, and what overflows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.direct import DIRECT
from leanconv.algorithms.direct.algorithm import piece_error
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT16, FLOAT32, Precision
from support.half_conv import FLOAT16_STORED, check, drawn, laid_out, plain
from support.kernel_runner import run_kernel
from support.listing import assembly
from support.packing import packed_constants

pytestmark = pytest.mark.vectors

SHAPES = [
    "ic3ih9iw11oc5oh9ow11kh3ph1pw1",
    "ic16ih7iw9oc16oh7ow9kh1",
    "ic17ih5iw7oc33oh5ow7kh3ph1pw1",
    "ic20ih13iw15oc48oh7ow8kh3sh2sw2ph1pw1",
    "mb3ic70ih1iw1oc40oh1ow1kh1",
    "mb2ic200ih4iw31oc65oh4ow31kh1",
    "ic40ih6iw33oc24oh6ow33kh3kw7ph1pw3",
    "ic18ih8iw19oc7oh4ow7kh5kw3sh2sw3ph2pw2dh1",
    "g2ic32ih5iw6oc64oh5ow6kh3ph1pw1",
]
TO_FLOAT32 = Precision(FLOAT16, FLOAT16, FLOAT32, FLOAT32)
SUMS_HALVES = pytest.mark.skipif(
    "fp16" not in host().extensions, reason="this machine does not compute in float16"
)


def problem(spec: ConvSpec, target: Target, max_error: float | None = None) -> Problem:
    form = Format(target.channel_block(FLOAT16))
    x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    return Problem.of(spec, x, y, max_error)


@pytest.mark.drawn
@SUMS_HALVES
@pytest.mark.parametrize("text", SHAPES)
def test_pieces_keep_the_error_that_is_stated(text: str) -> None:
    for in_blocks, piece in ((True, 64), (True, 32), (False, 64)):
        spec = ConvSpec.parse(text, precision=FLOAT16_STORED, bias=in_blocks, residual=in_blocks)
        check(spec, host(), f"direct:halves={piece}", in_blocks)


@SUMS_HALVES
@pytest.mark.parametrize("piece", [64, 32])
def test_sums_of_a_piece_that_overflow_are_computed_in_float32(piece: int) -> None:
    """Here nearly all products are beyond float16; one input is infinite."""
    for text in ("ic40ih5iw9oc33oh5ow9kh3ph1pw1", "ic64ih3iw5oc16oh3ow5kh1"):
        spec = ConvSpec.parse(text, precision=TO_FLOAT32, bias=True)
        made = select.choose(
            problem(spec, host()), host(), select.choice_named(f"direct:halves={piece}")
        )
        x, w = drawn(spec.input_shape, FLOAT16, 1), drawn(spec.weight_shape, FLOAT16, 2)
        x, w = x * 1024, w * 256
        x[0, 0, 1, 2] = np.inf
        bias = drawn((spec.out_channels,), FLOAT32, 3)
        constants = packed_constants(made, w.astype(np.float16), {"bias": bias})
        roles = {"x": laid_out(x, 16, FLOAT16), **constants}
        roles["y"] = laid_out(np.full(spec.output_shape, np.nan, np.float32), 16, FLOAT32)
        (use,) = made.kernels
        found = run_kernel(use.kernel, *(roles[role] for role in use.roles))
        found = plain(found, spec.out_channels)
        with np.errstate(invalid="ignore"):
            exact = convolve(spec, *(each.astype(np.float64) for each in (x, w, bias)))
        finite = np.isfinite(exact)
        assert np.array_equal(np.isfinite(found), finite)
        assert 0 < finite.sum() < finite.size
        error = np.abs(found[finite] - exact[finite]).max() / np.abs(exact[finite]).max()
        assert error < 1e-5


def test_pieces_are_summed_where_their_error_is_accepted() -> None:
    target = preset("sapphirerapids")
    spec = ConvSpec.parse("ic256ih28oc64oh28kh1", precision=FLOAT16_STORED, bias=True)
    given = problem(spec, target)
    chosen = select.choose(given, target)
    assert "halves" not in str(chosen.choice)
    for piece in (64, 32):
        wide = problem(spec, target, piece_error(given, piece))
        assert str(select.choose(wide, target).choice) == f"direct:halves={piece}"
        names = [str(choice) for choice, _ in select.choices(wide, target)]
        assert names[0] == f"direct:halves={piece}"
        assert "direct:halves=none" in names
    without = replace(target, extensions=("vnni",))
    assert "halves" not in str(select.choose(wide, without).choice)


def test_steps_are_multiply_adds_of_float16() -> None:
    for name, words in (
        ("sapphirerapids", ("vfmadd231ph", "vcvtph2psx")),
        ("neoverse-n1", (".8h", "fcvtl")),
    ):
        target = preset(name)
        spec = ConvSpec.parse("ic64ih14oc64oh14kh3ph1pw1", precision=FLOAT16_STORED)
        choice = select.choice_named("direct:halves=64")
        made = select.choose(problem(spec, target), target, choice)
        text = assembly(made.kernels[0].kernel, target)
        assert all(word in text for word in words), name


def test_other_operands_are_refused_with_a_reason() -> None:
    choice = select.choice_named("direct:halves=32")
    spec = ConvSpec.parse("ic64ih14oc64oh14kh3ph1pw1")
    with pytest.raises(SpecError, match="halves=32 .*expected float16 operands and a processor"):
        DIRECT.candidate(problem(spec, host()), host(), choice.parameters)
    with pytest.raises(SpecError, match="halves is '16'; expected"):
        select.choice_named("direct:halves=16")
