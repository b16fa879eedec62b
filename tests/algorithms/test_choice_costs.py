"""What the model of costs knows of parts, bounds of weights, planes and streams."""

from __future__ import annotations

from dataclasses import replace

from leanconv.algorithms import ALGORITHMS
from leanconv.algorithms.problem import Problem, most_weight_bytes, strided_walk_cycles
from leanconv.algorithms.select import choose
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.codegen.geometry import Access
from leanconv.spec import ConvSpec
from leanconv.target import preset

TARGET = preset("znver4")
COSTS = {name: algorithm.cost for name, algorithm in ALGORITHMS.items()}


def problem_of(text: str) -> Problem:
    spec = ConvSpec.parse(text)
    return Problem.of(spec, Access.planes(spec.input_shape), Access.planes(spec.output_shape))


def test_two_parts_get_equally_many_panels() -> None:
    """Three panels in two parts would keep one core waiting: a sixth of the time of both."""
    kernel = choose(problem_of("ic48ih13oc192oh13kh3ph1"), TARGET).kernels[0].kernel
    assert isinstance(kernel, WinogradConv)
    assert kernel.shape.blocks == 1
    assert kernel.shape.parts == 2
    assert kernel.shape.panels % kernel.shape.parts == 0


def test_tiles_whose_weights_are_not_allowed_leave_smaller_ones() -> None:
    for text in ("ic256ih52oc512oh26kh3sh2ph1", "ic1024ih28oc1024oh28kh3ph1"):
        problem = problem_of(text)
        chosen = choose(problem, TARGET)
        assert chosen.choice.algorithm == "winograd"
        assert chosen.weight_bytes <= most_weight_bytes(problem)


def lines(text: str) -> float:
    """Cycles of each line of input and output, in a case far above the second cache."""
    problem = problem_of(text)
    both = problem.conv.input_bytes + problem.conv.output_bytes
    return strided_walk_cycles(problem, TARGET) / (both / 64 * (1 - TARGET.l2_bytes / both))


def test_lines_of_few_planes_cost_less() -> None:
    few, shared = lines("ic16ih190oc48oh190kh3ph1"), lines("ic16ih192oc48oh192kh3ph1")
    many, large = lines("ic96ih130oc96oh130kh3ph1"), lines("ic3ih442oc48oh442kh3ph1")
    assert few < 0.5 * shared  # 192 by 192 floats: every plane begins in the same set
    assert shared == many == large


def test_a_stream_of_weights_hides_behind_the_products() -> None:
    """Weights just above the second cache had made direct convolution a sixth dearer."""
    inside = problem_of("g28mb1ic896ih14oc896oh7kh3sh2ph1")
    outside = problem_of("g32mb1ic1024ih14oc1024oh7kh3sh2ph1")
    assert inside.conv.weight_bytes < TARGET.l2_bytes < outside.conv.weight_bytes
    ratio = COSTS["direct"](outside, TARGET) / COSTS["direct"](inside, TARGET)
    assert ratio < 1.05 * 32 / 28


def test_rows_of_one_pixel_are_not_priced_as_rows_of_a_map() -> None:
    """Of an open network's fully connected layer: in planes it took 20 times as long as direct."""
    known = problem_of("mb48ic256ih1oc512kh1")
    opened = replace(known, any_size=(2,))
    assert COSTS["planar"](opened, TARGET) >= COSTS["planar"](known, TARGET) > 0
    assert choose(opened, TARGET).choice.algorithm == "direct"
    known = problem_of("mb8g64ic64ih3iw1oc64oh3ow1kh3kw1ph1pw0")
    opened = replace(known, any_size=(2,))
    assert COSTS["planar"](opened, TARGET) >= 0.99 * COSTS["planar"](known, TARGET) > 0
