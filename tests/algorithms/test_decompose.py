"""What convolutions are taken apart into multiplies the same inputs and taps as the whole."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from leanconv.algorithms.decompose import (
    part_count,
    part_ranges,
    phase_count,
    phase_taps,
    residues,
    transposed_phases,
    with_taps,
    without_dilation,
)
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access, Window
from leanconv.spec import ConvSpec

Products = Counter[tuple[int, int, int, int, int]]  # output's and input's address, row, column of w


def problem_of(line: str) -> Problem:
    spec = ConvSpec.parse(line)
    return Problem.of(spec, Access.planes(spec.input_shape), Access.planes(spec.output_shape))


def products_of(problem: Problem, taps: tuple[int, int] = (0, 0)) -> Products:
    """Each product of one channel, with the taps counted from those given."""
    window, found = problem.conv.window, Counter[tuple[int, int, int, int, int]]()
    for position in product(*map(range, window.out)):
        for tap in product(*map(range, window.kernel)):
            parts = zip(position, window.stride, tap, window.dilation, window.pad, strict=True)
            place = [o * s + k * d - pad for o, s, k, d, pad in parts]
            if all(0 <= i < size for i, size in zip(place, window.size, strict=True)):
                x = sum(i * s for i, s in zip(place, problem.conv.x.spatial, strict=True))
                y = sum(o * s for o, s in zip(position, problem.conv.y.spatial, strict=True))
                found[
                    y + problem.conv.y_offset, x + problem.conv.x_offset, tap[0], tap[1] + taps[0],
                    tap[2] + taps[1],
                ] += 1  # fmt: skip
    return found


@pytest.mark.parametrize("pad", [0, 2])
@pytest.mark.parametrize("steps", list(product(range(1, 5), range(1, 5))))
def test_residues_of_a_dilation_are_the_whole(steps: tuple[int, int], pad: int) -> None:
    stride, dilation = steps
    line = f"ic1ih13iw14oc1kh3kw2sh{stride}sw{dilation}ph{pad}pw1dh{dilation - 1}dw{stride - 1}"
    whole = problem_of(line)
    parts = without_dilation(whole)
    assert all(part.conv.window.dilation == (1, 1, 1) for part in parts)
    height, width = residues(stride, dilation), residues(dilation, stride)
    assert len(parts) == height.count * width.count
    assert {part.conv.window.stride[1:] for part in parts} == {(height.stride, width.stride)}
    assert sum((products_of(part) for part in parts), Counter()) == products_of(whole)


def test_phases_of_a_stride_are_all_taps() -> None:
    for kernel, stride in product(range(1, 12), range(1, 6)):
        phases = [range(kernel)[p::stride] for p in range(phase_count(kernel, stride))]
        assert [len(taps) for taps in phases] == [
            phase_taps(kernel, stride, p) for p in range(len(phases))
        ]
        assert min(map(len, phases)) >= 1
        assert sorted(tap for taps in phases for tap in taps) == list(range(kernel))


def test_parts_of_a_kernel_are_all_taps() -> None:
    for taps, each in product(range(1, 20), range(1, 9)):
        ranges = part_ranges(taps, each)
        assert [tap for first, stop in ranges for tap in range(first, stop)] == list(range(taps))
        assert len(ranges) == part_count(taps, each, each)
        for last in range(each, each + 5):
            count = part_count(taps, each, last)
            rest = taps - (count - 1) * each  # what the last part has
            assert 0 < rest <= last
            assert count == 1 or rest + each > last


def test_parts_of_a_problem_are_the_whole() -> None:
    whole = problem_of("ic1ih11iw12oc1kh5kw4sh2sw1ph2pw1")
    ranges = list(product(part_ranges(5, 2), part_ranges(4, 3)))
    found: Products = Counter()
    for number, (rows, columns) in enumerate(ranges):
        part = with_taps(whole, (rows, columns), number == 0, number == len(ranges) - 1)
        assert part.conv.epilogue.residual == (number > 0)
        found += products_of(part, (rows[0], columns[0]))
    assert found == products_of(whole)


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_phases_of_a_transposed_convolution_are_the_whole(
    stride: int, dilation: int, pad: int
) -> None:
    size, extra = 5, 1
    for kernel in range(1, 6):
        out = (size - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad + extra
        if out < 1:
            continue
        window = Window(
            (1, 1, size), (1, 1, out), (1, 1, kernel), (1, 1, stride), (1, 1, dilation), (0, 0, pad)
        )
        whole = {
            (i * stride + k * dilation - pad, i, k)
            for i in range(size)
            for k in range(kernel)
            if 0 <= i * stride + k * dilation - pad < out
        }
        found: list[tuple[int, int, int]] = []
        outputs: list[int] = []
        for phase in transposed_phases(window):
            taps = range(kernel)[phase.taps[2]][::-1]
            assert phase.window.kernel[2] == len(taps)
            assert phase.window.stride == (1, 1, 1)
            for o in range(phase.window.out[2]):
                outputs.append(phase.first[2] + o * stride)
                low, high = phase.window.taps(2, o)
                for t in range(low, high):
                    i = o + t * phase.window.dilation[2] - phase.window.pad[2]
                    found.append((outputs[-1], i, taps[t]))
        assert sorted(outputs) == list(range(out))
        assert len(found) == len(set(found))
        assert set(found) == whole
