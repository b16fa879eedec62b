"""Winograd's parameters, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms.winograd.stages import PointProducts
from leanconv.errors import SpecError
from leanconv.spec import ConvSpec
from support.problems import Problem
from support.winograd_checks import FORMS, make_plan


def test_the_fused_form_is_meant_if_none_is_named() -> None:
    spec = ConvSpec.parse("ic16ih20oc32kh3ph1")
    plans = [make_plan(Problem(spec, 0), text) for text in ("winograd", "winograd:form=fused")]
    assert plans[0].candidate.kernels == plans[1].candidate.kernels
    assert len(plans[0].candidate.kernels) == 1
    staged = make_plan(Problem(spec, 0), "winograd:form=stages")
    assert isinstance(staged.candidate.kernels[1].kernel, PointProducts)
    # Both take the same tiles of outputs, so that a comparison shows nothing but the form.
    tiles = [plan.candidate.choice.parameters.m for plan in (plans[0], staged)]
    assert tiles[0] == tiles[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("winograd:m=0", "m is '0'; expected outputs of a tile, such as 4 or 4x6"),
        ("winograd:m=99", "m is too large; expected .* 16 points: at most 14 with 3 taps"),
        ("winograd:m=4x4x4", "m is '4x4x4'; expected outputs of a tile"),
        ("winograd:m=-2", "m is '-2'; expected outputs of a tile"),
        ("winograd:form=stages,m=0", "m is '0'; expected outputs of a tile"),
        ("winograd:form=stages,m=99", "m is too large"),
        ("winograd:rows=abc", "rows is 'abc'; expected an integer of at least 1"),
        ("winograd:tiles=0", "tiles is '0'; expected an integer of at least 1"),
        ("winograd:sums=-1", "sums is '-1'; expected an integer of at least 1"),
        ("winograd:rows=31,vectors=6", "no fused Winograd kernel has .*; leave some of these out"),
        ("winograd:points=4", "'points=4' is no parameter of winograd; expected key=value"),
        ("winograd:m", "'m' is no parameter of winograd"),
        ("winograd:form=three", "form is 'three'; expected fused or stages"),
        ("winograd:form=stages,rows=4", "rows goes with form=fused; expected m alone"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(text: str, message: str) -> None:
    w = np.zeros((32, 16, 3, 3), np.float32)
    with pytest.raises(SpecError, match=message):
        lc.plan_conv2d((1, 16, 20, 20), w, algorithm=text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ic16ih20oc16kh1", "one tap in each direction: nothing to save"),
        ("ic16ih20oc16kh5sh3", r"a stride of 3 between channels in planes; 1, 2 or 4"),
        ("ic16ih20oc16kh3sh2dh2", "a stride between columns that are not neighbours"),
        ("ic16id5ih9oc16kd3kh3", "a depth axis"),
    ],
)
def test_what_cannot_be_computed_is_refused(line: str, message: str, form: str) -> None:
    spec = ConvSpec.parse(line)
    with pytest.raises(SpecError, match=f"algorithm 'winograd' cannot compute .*: {message}"):
        make_plan(Problem(spec, 0), form)
