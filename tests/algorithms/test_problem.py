"""The sizes of a problem: those of a spec, or of the part of one that is computed."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.problem import Problem, typical
from leanconv.algorithms.select import choose
from leanconv.algorithms.winograd.sizes import split
from leanconv.codegen.geometry import Access
from leanconv.operators.conv_node import transposed_problem
from leanconv.operators.transposed import by_output, grouped, phases
from leanconv.spec import ConvSpec
from leanconv.symbolic import Trace
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.graph_builder import Builder

SPECS = (
    "mb2ic6ih9iw12oc8kh3kw2sh2ph1pw0",
    "g4mb3ic8ih10oc12kh3ph2dh1",
    "ic5iw31oc7kw4sw3",
    "ic3id6ih7iw8oc4kd2kh3kw1sd2",
)


def problem_of(spec: ConvSpec) -> Problem:
    return Problem.of(spec, Access.planes(spec.input_shape), Access.planes(spec.output_shape))


@pytest.mark.parametrize("line", SPECS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_amounts_are_those_of_the_spec(line: str, dtype: str) -> None:
    spec = ConvSpec.parse(line, dtype=dtype)
    problem = problem_of(spec)
    for name in ("dtype", "reduction", "flops", "input_bytes", "weight_bytes", "output_bytes"):
        assert getattr(problem.conv, name) == getattr(spec, name), name
    assert str(problem) == str(spec)
    assert problem.alone().conv.flops * spec.batch == spec.flops


@pytest.mark.parametrize(
    ("stride", "kernel", "dilation"), [(2, 4, 1), (3, 5, 2), (1, 3, 2), (2, 1, 1)]
)
def test_phases_of_a_transposed_convolution_have_sizes_of_their_own(
    stride: int, kernel: int, dilation: int
) -> None:
    builder = Builder(FLOAT32)
    y = builder.conv(
        builder.input(2, 6, 7, 9),
        builder.normal(6, 8, kernel, kernel),
        op="ConvTranspose",
        strides=(stride, stride),
        dilations=(dilation, dilation),
    )
    graph = builder.graph(y)
    (node,) = graph.nodes
    x, out = (Access.planes(graph.types[name].shape) for name in (node.inputs[0], y))
    whole = transposed_problem(node, graph, x, out, None)
    pieces = phases(node, whole, by_output(grouped(graph.constants[node.inputs[1]], whole)))
    for problem, weights in pieces:
        assert problem.conv.weight_bytes == weights.nbytes
        assert problem.conv.reduction == 6 * prod(weights.shape[2:])
        assert (
            problem.conv.flops == 2 * 2 * 8 * prod(problem.conv.window.out) * problem.conv.reduction
        )
    # Together they write the whole output, which each of them has at the same place.
    written = sum(problem.conv.output_bytes for problem, _ in pieces)
    shape = graph.types[y].shape
    assert written == 4 * prod(shape)
    assert {problem.conv.y.positions(8) for problem, _ in pieces} == {shape[2] * shape[3]}


def test_parts_of_a_convolution_have_sizes_of_their_own() -> None:
    """Residues of a dilation share the weights, cuts of a long kernel the output."""
    dilated = problem_of(ConvSpec.parse("ic16ih20oc16kh3ph2dh1"))
    residues = [piece.problem for piece in split(dilated)]
    assert len(residues) == 4
    assert {part.conv.weight_bytes for part in residues} == {dilated.conv.weight_bytes}
    assert sum(part.conv.flops for part in residues) == dilated.conv.flops
    long = problem_of(ConvSpec.parse("ic16ih20oc16kh9ph4", bias=True))
    cuts = [piece.problem for piece in split(long)]
    assert len(cuts) == 4
    assert sum(part.conv.weight_bytes for part in cuts) == long.conv.weight_bytes
    assert sum(part.conv.flops for part in cuts) == long.conv.flops
    assert {part.conv.output_bytes for part in cuts} == {long.conv.output_bytes}
    assert [part.conv.epilogue.bias for part in cuts] == [True, False, False, False]
    assert [part.conv.epilogue.residual for part in cuts] == [False, True, True, True]


def test_a_batch_decides_nothing_of_the_typical_problem() -> None:
    """Else a shape's plan would depend on whether it is lowered with numbers or with symbols."""
    problem = replace(problem_of(ConvSpec.parse("mb5ic16ih20oc32kh3ph1")), any_size=(1, 2))
    trace = Trace()
    symbolic = with_conv(problem, batch=trace.variable(0, 5))
    assert typical(problem) == typical(problem.alone()) == typical(symbolic)
    assert not trace.guards


def test_images_of_one_pixel_become_rows_of_pixels() -> None:
    """In plain format they say nothing of the pixels beside: those of a row lie channels apart."""
    spec = ConvSpec.parse("mb20ic512ih1iw1oc4096kh1kw1")
    one = replace(problem_of(spec), any_size=(2,))
    assert typical(one).conv.x.spatial[2] == 512
    assert typical(one).conv.y.spatial[2] == 4096
    assert choose(typical(one), preset("icelake-server")).choice.algorithm == "direct"
