"""What direct convolution chooses where weights come from memory, and what it asks for ahead."""

from __future__ import annotations

from dataclasses import replace

from leanconv.algorithms.convolution import choose
from leanconv.algorithms.direct_kernel import DirectConv
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.spec import ConvSpec, Format
from leanconv.target import preset

TARGET = preset("znver4")


def planned(text: str, cold: bool, **changes: bool) -> DirectConv:
    spec = ConvSpec.parse(text, **changes)
    form = Format(16)
    x = Access.of_format(spec.input_shape, form)
    y = Access.of_format(spec.output_shape, form)
    problem = replace(Problem.of(spec, x, y), cold=cold)
    kernel = choose(problem, TARGET, "direct").pieces[0].kernel
    assert isinstance(kernel, DirectConv)
    return kernel


def test_cold_weights_are_read_by_tiles_of_more_rows() -> None:
    for text in ("ic512ih7oc2048oh7kh1", "ic2048ih7oc512oh7kh1", "ic1024ih14oc256oh14kh1"):
        warm, cold = planned(text, False), planned(text, True)
        assert cold.tile.rows >= 7
        assert cold.tile.rows > warm.tile.rows
        assert cold.tile.rows * cold.tile.vectors <= 24
        assert cold.flops == warm.flops


def test_the_only_row_is_cut_into_whole_tiles() -> None:
    kernel = planned("ic2048ih7oc512oh7kh1", True)
    assert kernel.window.out == (1, 7, 7)
    assert kernel.tile.rows == 7
    assert kernel.chunks == kernel.panels * kernel.row_count


def test_large_inputs_and_residuals_are_asked_for_ahead() -> None:
    large = planned("ic256ih56oc512oh28kh1sh2", True, residual=True)
    assert large.fetch
    assert large.residual_ahead
    small = planned("ic64ih14oc64oh14kh1", True, residual=True)
    assert not small.fetch
    assert not small.residual_ahead


def test_panels_pass_by_where_neither_they_nor_the_input_stay() -> None:
    def of_planes(text: str) -> DirectConv:
        spec = ConvSpec.parse(text)
        x, y = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
        kernel = choose(Problem.of(spec, x, y), TARGET, "direct").pieces[0].kernel
        assert isinstance(kernel, DirectConv)
        return kernel

    long = of_planes("ic2048ih33oc256oh33kh3dh11ph12")
    assert long.panels_inside
    assert long.tile.rows >= 8  # six rows would wait for the weights
    small_input = of_planes("ic512ih19oc1024oh19kh3dh5ph6")
    assert not small_input.panels_inside
