"""Planning does not take longer for larger images: it is arithmetic, however many pixels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leanconv.algorithms import select
from leanconv.algorithms.planar import algorithm, depthwise
from leanconv.api.conv_choice import conv_problem
from leanconv.spec import ConvSpec
from leanconv.target import preset
from support.counted import check_growth


@pytest.mark.presets
@pytest.mark.parametrize(
    "line",
    [
        "ic8ih{}oc16kh1",
        "ic8ih1iw{}oc16kh1",
        "g8ic8ih{}oc8kh3ph1",
        "ic8ih{}oc16kh3",
        "ic8ih{}oc16kh5sh2",
    ],
)
def test_planning_a_large_image(line: str) -> None:
    """It takes hardly more lines of code than planning an image of a sixteenth of the height."""

    def plan(size: int) -> None:
        select.choose(conv_problem(ConvSpec.parse(line.format(size)), None), preset("znver4"))

    check_growth(plan, 2**10, 2**14)


@pytest.mark.parametrize("size", [1, 4, 9, 40])
@pytest.mark.parametrize(("kernel", "stride", "dilation", "pad"), [(3, 1, 1, 1), (5, 2, 3, 7)])
def test_tiles_of_rows_are_counted_as_they_are(
    size: int, kernel: int, stride: int, dilation: int, pad: int
) -> None:
    """Rows that exist for each tile along the rows, those between the ends given once."""
    line = f"g2ic2ih{size}iw9oc2kh{kernel}sh{stride}dh{dilation - 1}ph{pad}"
    if size + 2 * pad <= (kernel - 1) * dilation:
        pytest.skip("the kernel does not fit")
    target = preset("znver4")
    base = algorithm._depthwise(conv_problem(ConvSpec.parse(line), None), target)
    for rows in (1, 2, 3):
        kernel = replace(base, rows=rows)
        uses, tiles = kernel.uses(rows), range(kernel.conv.window.out[1] // rows)
        found = [inside for n, inside in depthwise._met(kernel, uses, tiles) for _ in range(n)]
        expected = [
            [use for i, use in uses.items() if 0 <= tile * rows * stride - pad + i < size]
            for tile in tiles
        ]
        assert sorted(map(str, found)) == sorted(map(str, expected))
