"""Planning does not take longer for larger images: it is arithmetic, however many pixels."""

from __future__ import annotations

import pytest

from graph.hostile import bounded
from leanconv.algorithms import convolution
from leanconv.api.conv import conv_problem
from leanconv.spec import ConvSpec
from leanconv.target import preset


@pytest.mark.parametrize(
    "line",
    [
        "ic8ih16384oc16kh1",
        "ic8ih1iw16777216oc16kh1",
        "g8ic8ih16384oc8kh3ph1",
        "ic8ih16384oc16kh3",
        "ic8ih16384oc16kh5sh2",
    ],
)
def test_planning_a_large_image(line: str) -> None:
    with bounded(5.0):
        convolution.choose(conv_problem(ConvSpec.parse(line), None), preset("znver4"))
