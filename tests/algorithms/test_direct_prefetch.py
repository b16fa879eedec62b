"""What direct convolution prefetches: where a record says so, and without changing any bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from leanconv.algorithms.direct.algorithm import DIRECT
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem, strided_walk_cycles
from leanconv.algorithms.select import choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.codegen.tiling import Tile
from leanconv.spec import ConvSpec, Format
from leanconv.target import Target, preset
from leanconv.types import FLOAT32
from support.kernel_runner import run_kernel
from support.packing import packed_weights

PREFETCHING, OTHER = preset("sapphirerapids"), preset("znver4")


def planned(text: str, target: Target, block: int, from_dram: bool = False) -> DirectConv:
    spec = ConvSpec.parse(text)
    x, y = (
        Access.of_format(shape, Format(block) if block > 1 else Format())
        for shape in (spec.input_shape, spec.output_shape)
    )
    problem = replace(Problem.of(spec, x, y), weights_from_dram=from_dram)
    kernel = choose(problem, target, Choice("direct")).kernels[0].kernel
    assert isinstance(kernel, DirectConv)
    return kernel


def test_weights_that_are_far_are_prefetched_where_the_record_says_so() -> None:
    near, far = "ic128ih14oc128oh14kh3ph1", "ic512ih7oc512oh7kh3ph1"
    assert planned(near, PREFETCHING, 16).weights_ahead == 0
    assert planned(far, PREFETCHING, 16).weights_ahead == 4096
    assert planned(far, OTHER, 16, from_dram=True).weights_ahead == 0
    assert planned("ic4096ih1oc1024oh1kh1ph0", PREFETCHING, 1).weights_ahead == 512  # used once


def test_tiles_prefetch_the_next_panel_where_they_are_enough_and_two_panels_stay() -> None:
    near = "ic128ih14oc128oh14kh3ph1"
    for text, dram, ahead in (
        (near, False, False),
        (near, True, True),
        ("ic512ih7oc512oh7kh3ph1", True, False),  # a panel is 0.6 MiB
        ("ic512ih7oc2048oh7kh1", False, True),
        ("ic512ih1iw14oc2048oh1ow14kh1kw1", False, False),  # one tile, two lines a step
    ):
        kernel = planned(text, PREFETCHING, 16, from_dram=dram)
        assert kernel.panel_ahead == ahead, text
        assert not (ahead and kernel.weights_ahead)
    assert not planned(near, OTHER, 16, from_dram=True).panel_ahead


def test_input_in_planes_is_prefetched_where_the_record_says_so() -> None:
    text = "ic64ih28oc64oh28kh3ph1"
    assert planned(text, PREFETCHING, 1).channels_ahead == 8
    assert planned(text, PREFETCHING, 16).channels_ahead == 0
    assert planned(text, OTHER, 1).channels_ahead == 0


def test_a_walk_that_is_prefetched_costs_less() -> None:
    spec = ConvSpec.parse("ic256ih56oc64oh56kh3ph1")
    problem = Problem.of(spec, *(Access.planes(s) for s in (spec.input_shape, spec.output_shape)))
    without = replace(PREFETCHING, costs=replace(PREFETCHING.costs, channels_ahead=0))
    cycles = [DIRECT.cost(problem, target) for target in (PREFETCHING, without)]
    walks = [
        strided_walk_cycles(problem, PREFETCHING, line)
        for line in (PREFETCHING.costs.prefetched_line, None)
    ]
    assert cycles[1] - cycles[0] == pytest.approx(walks[1] - walks[0])
    assert walks[0] < walks[1]


@pytest.mark.parametrize("block", [1, host().lanes(FLOAT32)])
@pytest.mark.parametrize("text", ["ic19ih9iw11oc37oh9ow11kh3ph1", "mb2ic33ih8oc21oh8kh1"])
def test_answers_are_the_same_bits(text: str, block: int) -> None:
    spec = ConvSpec.parse(text)
    form = Format(block) if block > 1 else Format()
    x, y = (Access.of_format(s, form) for s in (spec.input_shape, spec.output_shape))
    given = Problem.of(spec, x, y).conv
    plain = DirectConv(
        conv=given, lanes=given.lanes(host()), tile=Tile(3, 1), rows=2, panels_inside=False
    )
    ahead = replace(plain, weights_ahead=4096, channels_ahead=8 if block == 1 else 0)
    others = replace(plain, panel_ahead=True), replace(ahead, panel_ahead=True)
    generator = np.random.default_rng(2)
    channels = [-(-shape[1] // block) * block for shape in (spec.input_shape, spec.output_shape)]
    places = [
        np.zeros(spec.batch * c * np.prod(s[2:]), np.float32)
        for c, s in zip(channels, (spec.input_shape, spec.output_shape), strict=True)
    ]
    places[0][:] = generator.standard_normal(len(places[0]))
    w = generator.standard_normal((*spec.weight_shape[:2], 1, *spec.weight_shape[2:]))
    packed = packed_weights(plain, w.astype(np.float32))
    found = [
        run_kernel(kernel, places[0], packed, np.full_like(places[1], np.nan))
        for kernel in (plain, ahead, *others)
    ]
    live = ~np.isnan(found[0])
    assert live.sum() >= np.prod(spec.output_shape)
    assert all(each.tobytes() == found[0].tobytes() for each in found)
