"""Bytes of packed constants are known without packing them, of every algorithm and form."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.algorithms import select
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.errors import SpecError
from leanconv.spec import PLAIN, ConvSpec, Format
from leanconv.target import preset
from support.packing import packed_constants

_NAMES = (
    "direct", "planar", "depthwise", "naive", "winograd", "winograd:form=stages", "fft",
    "im2col", "im2col:rows=whole", "im2col:lanes=pixels", "mec", "mec:solution=B", "mec:rows=2",
    "im2win", "im2win:form=base", "im2win:form=printed", "im2win:form=vector",
    "im2win:form=high,threads=off", "im2win:form=high,vectorise=off",
)  # fmt: skip
_LINES = (
    "ic24ih14oc40kh3ph1",
    "g4ic24ih14oc60kh3ph1",
    "ic20ih14oc35kh1",
    "g40ic40ih14oc40kh3ph1",
    "g100ic200ih5oc100kh3",
    "mb4ic8ih14oc24kh5ph2",
    "ic8id5oc16kd3",
    "mb3ic8ih1oc40kh1",
)


@pytest.mark.parametrize("line", _LINES)
@pytest.mark.parametrize("form", [PLAIN, Format(16)], ids=str)
def test_bytes_are_known_without_packing(line: str, form: Format) -> None:
    target, spec = preset("znver4"), ConvSpec.parse(line, bias=True)
    x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    problem, computed = Problem.of(spec, x, y), 0
    bias = np.zeros(spec.out_channels, np.float32)
    for name in _NAMES:
        try:
            (candidate,) = select.ranked(problem, target, select.choice_named(name))
        except SpecError:
            continue
        w = np.zeros(spec.weight_shape, np.float32)
        packed = packed_constants(candidate, w, {"bias": bias})
        sizes = {role: array.nbytes for role, array in packed.items()}
        assert candidate.constant_bytes == sizes, name
        computed += 1
    assert computed >= 1
