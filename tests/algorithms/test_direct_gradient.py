"""The direct gradient of weights in every form: blocks, panels, strips, parts, x in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanconv.algorithms import Problem, select
from leanconv.algorithms.common.conv import merge_rows
from leanconv.algorithms.weight_gradient import direct
from leanconv.algorithms.weight_gradient.direct_kernel import DirectGradient
from leanconv.codegen.forms import instance_of
from leanconv.codegen.tiling import Tile
from leanconv.runtime.calibration import planning_target
from leanconv.spec import NHWC, PLAIN, ConvSpec, Format
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32
from support import gradients
from support.problems import Problem as Drawn
from support.problems import problems


def _kernel(data: st.DataObject, problem: Problem) -> DirectGradient:
    """Any kernel that computes a problem, whether it is fast or not."""
    conv, target = merge_rows(problem.conv), planning_target()
    window, lanes, draw = conv.window, conv.lanes(target), data.draw
    width = draw(st.sampled_from([*range(1, min(9, conv.inputs) + 1), conv.inputs]))
    rows, vectors = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    several = draw(st.sampled_from(["images", "rows", "columns"]))
    _, height, columns = window.out
    kernel = DirectGradient(
        conv=conv,
        lanes=lanes,
        tile=Tile(rows, min(vectors, ceil_div(conv.outputs, lanes))),
        width=width,
        blocks_per_chunk=draw(st.integers(1, ceil_div(conv.inputs, width))),
        panels_per_chunk=1,
        images=1,
        rows=height if several == "images" else 1,
        columns=draw(st.integers(1, columns)) if several == "columns" else columns,
        joined=False,
        apart=window.kernel[1] == 1 or draw(st.booleans()),
        parts=1,
        split=False,
        in_place=draw(st.booleans()) and direct.takes_in_place(conv, 1, width, target),
        prefetch=draw(st.booleans()),
    )
    kernel = replace(
        kernel,
        joined=kernel.may_join and (window.kernel[2] == 1 or draw(st.booleans())),
        panels_per_chunk=draw(st.integers(1, kernel.panels.count)),
    )
    if several == "rows":
        kernel = replace(kernel, rows=draw(st.integers(1, height)))
    if several == "images" and not (kernel.in_place and window.out[0] > 1):
        kernel = replace(kernel, images=draw(st.integers(1, kernel.depths)))
    strips = int(np.prod(kernel.strips))
    parts = draw(st.integers(1, strips))
    parts = ceil_div(strips, ceil_div(strips, parts))
    return replace(kernel, parts=parts, split=parts > 1)


@settings(max_examples=80, deadline=None)
@given(drawn=problems((None,), ("float32", "float64")), data=st.data())
def test_every_form_is_exact(drawn: Drawn, data: st.DataObject) -> None:
    """Sums of products of small whole numbers have no rounding, however they are divided."""
    spec, target = replace(drawn.spec, layout="NCHW"), planning_target()
    forms = data.draw(st.sampled_from(gradients.formats(spec, target)))
    problem = gradients.gradient_problem(spec, *forms)
    rng = np.random.default_rng(drawn.seed)
    x = rng.integers(-3, 4, spec.input_shape).astype(spec.dtype)
    dy = rng.integers(-3, 4, spec.output_shape).astype(spec.dtype)
    candidate = direct.made(problem, _kernel(data, problem))
    arrays = (gradients.in_format(a, form) for a, form in zip((x, dy), forms, strict=True))
    got = gradients.run(candidate, problem, *arrays).reshape(spec.weight_shape)
    assert np.array_equal(got, gradients.expected(spec, x, dy))


def _layer(batch: int, inputs: int, outputs: int, size: int, taps: int, step: int) -> ConvSpec:
    pad = (taps // 2,) * 2
    pairs = {"kernel": (taps, taps), "stride": (step, step), "dilation": (1, 1)}
    return ConvSpec(batch, inputs, outputs, (size, size), pad_begin=pad, pad_end=pad, **pairs)


LAYERS = [_layer(4, 3, 32, 40, 7, 2), _layer(3, 40, 24, 30, 1, 1), _layer(9, 48, 80, 9, 3, 1)]


@pytest.mark.parametrize("spec", LAYERS, ids=str)
def test_threads_change_no_bits(spec: ConvSpec) -> None:
    problem = gradients.gradient_problem(spec)
    candidate = select.choose(problem, planning_target(), select.gradient_choice_named("direct"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(spec.input_shape).astype(np.float32)
    dy = rng.standard_normal(spec.output_shape).astype(np.float32)
    one, *others = (
        gradients.run(candidate, problem, x, dy, threads=threads) for threads in (1, 2, 5)
    )
    assert all(np.array_equal(one, other) for other in others)
    exact = gradients.expected(spec, x.astype(np.float64), dy.astype(np.float64))
    error = np.abs(one.reshape(exact.shape) - exact).max() / np.abs(exact).max()
    assert error <= candidate.choice.error


@pytest.mark.parametrize("spec", LAYERS, ids=str)
def test_chunks_are_enough_for_many_threads(spec: ConvSpec) -> None:
    problem, target = gradients.gradient_problem(spec), planning_target()
    candidate = select.choose(problem, target, select.gradient_choice_named("direct"))
    cycles = select.estimated_cycles(candidate.choice, problem, target)
    assert candidate.kernels[0].kernel.chunks >= min(8, cycles // (2 * target.costs.chunk))


@pytest.mark.parametrize(("taps", "form"), [(1, NHWC), (3, NHWC), (3, PLAIN)], ids=str)
def test_other_sizes_and_batches_are_little_more_code(taps: int, form: Format) -> None:
    target, digests = planning_target(), set()
    for batch, size in ((8, 56), (16, 56), (8, 48), (32, 80)):
        spec = _layer(batch, 64, 64, size, taps, 1)
        problem = gradients.gradient_problem(spec, form, form)
        candidate = select.choose(problem, target, select.gradient_choice_named("direct"))
        uses = candidate.kernels
        digests.add(tuple(instance_of(use.kernel, target).digest for use in uses))
    assert len(digests) <= 2


@pytest.mark.parametrize("inputs", [15, 17, 31, 47])
def test_a_last_block_of_few_channels_is_read_pixel_by_pixel(inputs: int) -> None:
    """Its pixels lie a whole block apart, so that tap columns do not follow its channels."""
    block = Format(planning_target().channel_block(FLOAT32))
    spec = ConvSpec(1, inputs, 17, (28,), (2,), (1,), (1,), (0,), (0,))
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, spec.input_shape).astype(np.float32)
    dy = rng.integers(-3, 4, spec.output_shape).astype(np.float32)
    got = gradients.computed(spec, x, dy, "direct", x_format=block)
    assert np.array_equal(got, gradients.expected(spec, x, dy))


@pytest.mark.parametrize("several", ["images", "rows", "columns"])
@pytest.mark.parametrize(("panels", "groups"), [(1, 1), (2, 1), (1, 2), (3, 1)])
@pytest.mark.parametrize("size", [4, 23])
def test_dy_of_one_panel_or_two_is_read_where_it_is(
    several: str, panels: int, groups: int, size: int
) -> None:
    """So is dy of two groups of a panel each; rows of 3 channels are copied all at once."""
    target = planning_target()
    lanes = target.lanes(FLOAT32)
    spec = _layer(3, 3 * groups, panels * groups * lanes, size, 3, 2)
    spec = replace(spec, groups=groups)
    problem = gradients.gradient_problem(spec, NHWC, NHWC)
    _, kernel = min(direct._shaped(problem, target), key=lambda shape: shape[1].tile.vectors)
    assert kernel.tile.vectors == 1
    assert kernel.dy_in_place == (panels * groups <= 2)
    whole = kernel.conv.window.out[1]
    several_rows = {"images": (2, whole), "rows": (1, 2), "columns": (1, 1)}
    kernel = replace(kernel, images=several_rows[several][0], rows=several_rows[several][1])
    if several == "columns":
        kernel = replace(kernel, columns=ceil_div(kernel.conv.window.out[2], 2))
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, spec.input_shape).astype(np.float32)
    dy = rng.integers(-3, 4, spec.output_shape).astype(np.float32)
    given_arrays = (gradients.in_format(a, NHWC) for a in (x, dy))
    got = gradients.run(direct.made(problem, kernel), problem, *given_arrays)
    assert np.array_equal(got.reshape(spec.weight_shape), gradients.expected(spec, x, dy))
