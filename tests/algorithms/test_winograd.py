"""Winograd, fused and in stages: every shape it takes, and its error."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.algorithms import select
from leanconv.algorithms.problem import Problem as Lowering
from leanconv.algorithms.winograd import edge_tiles
from leanconv.algorithms.winograd.algorithm import WINOGRAD
from leanconv.algorithms.winograd.edge_tiles import tile_order
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.api import compiled_conv as api
from leanconv.codegen import compiler, forms
from leanconv.codegen.cache import DiskCache
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.reference.direct import convolve
from leanconv.reference.layers import LAYERS
from leanconv.spec import Activation, ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.problems import Problem
from support.winograd_checks import FORMS, check, make_plan, run

pytestmark = pytest.mark.vectors

FEW = st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17, 20, 33, 40])
SIZES = st.sampled_from([1, 2, 5, 7, 12, 13, 16, 17, 23, 31])
# Taps along both axes; the last ones are cut into parts.
KERNELS = st.sampled_from(
    [(3, 3), (3, 3), (2, 2), (5, 5), (1, 3), (7, 1), (4, 3), (7, 7), (9, 9), (15, 3)]
)
STRIDES = st.sampled_from([(1, 1), (1, 1), (2, 2), (2, 1), (1, 2), (3, 4)])
DILATIONS = st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3)])
ACTIVATIONS = st.sampled_from([None, None, "relu", "clip:-1:2", "prelu", "sigmoid"])
# Each example is compiled: few of them, always the same.
few = settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def specs(draw: st.DrawFn) -> ConvSpec:
    """A convolution that is seldom rejected."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    layout = draw(st.sampled_from(["NCHW", "NHWC"]))
    kernel, stride = draw(KERNELS), draw(STRIDES)
    dilation = draw(DILATIONS)
    size = (draw(SIZES), draw(SIZES))
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    begin = tuple(draw(st.integers(0, r + 1)) for r in reach)
    least = [max(0, r + 1 - s - b) for r, s, b in zip(reach, size, begin, strict=True)]
    end = tuple(draw(st.integers(low, r + 1 + low)) for low, r in zip(least, reach, strict=True))
    spec = ConvSpec(
        draw(st.integers(1, 3)),
        groups * draw(FEW),
        groups * draw(FEW),
        size,
        kernel,
        stride,
        dilation,
        begin,
        end,
        groups,
        draw(st.sampled_from([FLOAT32, FLOAT64])),
        layout,
        draw(st.booleans()),
        draw(st.booleans()),
        Activation.parse(draw(ACTIVATIONS)),
    )
    assume(spec.flops < 1e8)
    return spec


# -- results ---------------------------------------------------------------------------------
@pytest.mark.parametrize("form", FORMS)
def test_any_convolution(form: str) -> None:
    taken = []

    @few
    @given(specs(), st.sampled_from([None, "1", "2", "3", "4", "6", "2x4"]), st.integers(1, 3))
    def each(spec: ConvSpec, m: str | None, threads: int) -> None:
        text = form if m is None else f"{form}{',' if ':' in form else ':'}m={m}"
        try:
            check(Problem(spec, 1), text, threads)
            taken.append(spec)
        except SpecError as error:
            if not str(error).partition(f"algorithm 'winograd' cannot compute {spec}: ")[2]:
                raise

    each()
    assert len(taken) >= 8


# What random problems meet too seldom.
CHOSEN = (
    ("ic17ih20iw19oc33kh3ph1", "NCHW"),
    ("mb2ic3ih33iw31oc20kh7sh2ph3", "NCHW"),  # a first layer, three channels in planes
    ("mb2ic19ih14iw15oc35kh5kw3sh3sw2ph2pw1", "NHWC"),
    ("g2mb2ic32ih13oc24kh3ph1", "NCHW"),
    ("g3ic15ih13oc21kh3ph1", "NHWC"),
    ("ic16ih19iw23oc33kh3dh2dw1ph2pw1", "NHWC"),
    ("ic20ih20oc17kh11ph5", "NHWC"),  # 6 + 5 taps along each axis
    ("ic16ih20oc16kh9dh1ph8", "NHWC"),  # a dilation and cuts
    ("ic16ih30oc16kh17kw3sh2ph7pw1", "NCHW"),
    ("mb5ic16ih1iw1oc17kh3ph1", "NHWC"),  # one tile for each image, mostly padding
    ("ic304ih9oc10kh3ph1", "NCHW"),  # sums in several parts
    ("ic4iw50oc5kw5pw2", "NHWC"),  # one axis
    ("mb2ic300ih14iw17oc20kh3ph1", "NCHW"),  # channels in planes that fill no vectors
    ("ic41ih21iw19oc20kh5sh2ph2", "NCHW"),
    ("ic20ih29iw40oc18kh3dh1dw2ph2pw3", "NCHW"),  # planes and dilations
    ("ic5ih13iw50oc18kh3dh0dw16ph1pw17", "NCHW"),  # columns further apart than a vector is wide
    ("ic17ih30iw33oc18kh3sh2dh1ph2", "NCHW"),  # stride and dilation 2: every other row of x
    ("g2ic16ih41iw37oc20kh5kw3sh4sw3dh5dw1ph4", "NHWC"),  # strides that share a factor, or none
)


@pytest.mark.drawn
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("line", "layout"), CHOSEN)
def test_chosen_problems(line: str, layout: str, form: str) -> None:
    spec = ConvSpec.parse(line, layout=layout, bias=True, residual=True)
    check(Problem(replace(spec, activation=Activation.parse("relu")), 1), form, threads=2)


# Some with whole blocks that hold none, or nothing but tiles at the edges.
NARROW = (
    ("mb2ic17ih26oc40kh3", "NCHW", "m=7x6"),
    ("mb3ic20ih14oc33kh3ph1", "NHWC", "m=4,rows=3,tiles=9,parts=2"),
    ("ic16ih13iw9oc18kh3ph1", "NCHW", "m=4"),
    ("mb2ic16ih5iw1oc8kh3ph1", "NCHW", "m=2"),
    ("ic3ih33iw31oc20kh7sh2ph3", "NCHW", "m=5,tiles=8,rows=4"),  # points that phases leave out
    ("ic19ih24iw25oc35kh5kw3sh3sw2ph2pw1", "NHWC", "m=4"),
    ("g2mb2ic32ih13oc24kh3ph1", "NCHW", "m=5x3"),
    ("mb2ic40iw50oc5kw5pw2", "NHWC", "m=4"),
    ("mb5ic8ih7oc20kh3ph1", "NHWC", "m=6x4,tiles=2,rows=2"),
    ("ic300ih19oc20kh3ph1", "NCHW", "m=6,tiles=15,rows=5,vectors=1"),
)


@pytest.mark.drawn
@pytest.mark.parametrize("name", [None, "haswell"])
@pytest.mark.parametrize(("line", "layout", "parameters"), NARROW)
def test_tiles_at_the_edges_leave_points_out(
    line: str, layout: str, parameters: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name:
        monkeypatch.setattr(api, "planning_target", lambda: preset("haswell"))
        parameters = parameters.split(",")[0]
    spec = ConvSpec.parse(line, layout=layout, bias=True, residual=True)
    problem = Problem(replace(spec, activation=Activation.parse("prelu")), 4)
    text = f"winograd:{parameters},edges="
    plan, narrow = run(problem, text + "narrow", threads=2)
    check(problem, text + "narrow")
    kernel = plan.candidate.kernels[0].kernel
    assert isinstance(kernel, WinogradConv)
    assert any(kernel.shape.dropped_points)
    whole = run(problem, text + "whole")[0]
    assert whole.weight_bytes == plan.weight_bytes
    np.testing.assert_array_equal(narrow, run(problem, text + "narrow")[1])


def test_more_tiles_than_a_table_holds_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ConvSpec.parse("mb2ic17ih26oc40kh3", bias=False, residual=False)
    problem, algorithm = Problem(spec, 4), "winograd:m=7x6,edges=narrow"
    monkeypatch.setattr(compiler, "object_cache", lambda: DiskCache(None, 0))
    found = {}
    for most in (1000, 3):
        monkeypatch.setattr(edge_tiles, "_MOST_ORDERED", most)
        monkeypatch.setattr(forms, "_forms", {})  # one kernel, two codes
        plan, found[most] = run(problem, algorithm)
        kernel = plan.candidate.kernels[0].kernel
        assert ("x i32]" in kernel.emit(host())) == (most == 1000)
    np.testing.assert_array_equal(found[3], found[1000])
    assert winograd_edges(make_plan(problem, "winograd:m=7x6")) == "whole"


def winograd_edges(plan: lc.ConvPlan) -> str:
    kernel = plan.candidate.kernels[0].kernel
    assert isinstance(kernel, WinogradConv)
    return kernel.shape.edges


@pytest.mark.pairs
@pytest.mark.presets
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 7, 20, 50])
@pytest.mark.parametrize("narrow", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize(("batch", "grid"), [(1, (4, 5)), (3, (2, 2)), (2, (5, 1)), (1, (6, 7))])
def test_every_block_has_its_share_of_narrow_tiles(
    batch: int, grid: tuple[int, int], narrow: tuple[bool, bool], tiles: int
) -> None:
    count = batch * prod(grid)
    order, ranges = tile_order(batch, grid, narrow, tiles)
    assert sorted(order) == list(range(count))
    for place, tile in enumerate(order):
        y, x = divmod(tile % prod(grid), grid[1])
        ends = narrow[0] and y == grid[0] - 1, narrow[1] and x == grid[1] - 1
        for gone, (first, stop) in ranges.items():
            absent = any(g and end for g, end in zip(gone, ends, strict=True))
            assert absent or first <= place % tiles < stop


@pytest.mark.drawn
@pytest.mark.presets
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("line", "layout"), [CHOSEN[0], CHOSEN[1], CHOSEN[2], CHOSEN[3], CHOSEN[5]]
)
def test_eight_lanes(line: str, layout: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "planning_target", lambda: preset("haswell"))
    check(Problem(ConvSpec.parse(line, layout=layout, bias=True), 2), form)


@pytest.mark.drawn
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize(
    ("line", "m"),
    [
        ("ic64ih28oc40kh3ph1", "2"),
        ("ic64ih28oc40kh3ph1", "4"),
        ("ic64ih28oc40kh3ph1", "6"),
        ("ic64ih28oc40kh3ph1", "8"),
        ("ic32ih24oc32kh5sh2ph2", "4"),
        ("ic32ih24oc32kh7ph3", "2"),
        ("ic32ih24oc32kw7kh1pw3", "4"),
    ],
)
def test_error_is_stated_within_a_factor_of_a_hundred(
    line: str, m: str, dtype: str, form: str
) -> None:
    text = form + (":" if form == "winograd" else ",") + f"m={m}"
    assert check(Problem(ConvSpec.parse(line, dtype=dtype), 3), text) > 0.01


@pytest.mark.drawn
@pytest.mark.parametrize("layer", sorted(LAYERS, key=lambda name: int(name[2:])))
def test_error_of_every_tile_of_eight_points_is_at_most_1e_5(layer: str) -> None:
    """On the layers of the documents, whose images are cut to 60 pixels here.

    What is stated holds for large images, too, where the largest errors are larger.
    """
    spec = ConvSpec.parse(LAYERS[layer])
    size = tuple(min(s, 60) for s in spec.size)
    spec = replace(spec, size=size, out_channels=min(spec.out_channels, 64))
    taps = -(-spec.kernel[0] // spec.stride[0])
    generator = np.random.default_rng(6)
    x, w = (generator.standard_normal(s) for s in (spec.input_shape, spec.weight_shape))
    x, w = x.astype(np.float32), w.astype(np.float32)
    exact = convolve(spec, x.astype(np.float64), w.astype(np.float64))
    for m in range(2, 10 - taps):
        plan = lc.plan_conv2d(x.shape, w, stride=spec.stride, algorithm=f"winograd:m={m}")
        error = np.abs(plan(x) - exact).max() / np.abs(exact).max()
        assert 0.01 * plan.predicted_error < error <= plan.predicted_error <= 1.3e-5
        assert error <= 1e-5


@pytest.mark.drawn
@pytest.mark.parametrize("sums", [16, 32, 64, 128])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_shorter_sums_err_less_and_as_stated(layout: str, sums: int) -> None:
    """Lengths that do and do not divide the channels of a phase, one more layout than a run."""
    for line in ("ic200ih20oc32kh3ph1", "ic72ih20oc32kh5sh2ph2"):
        problem = Problem(ConvSpec.parse(line, layout=layout), 3)
        assert check(problem, f"winograd:m=4,sums={sums}", threads=2) > 0.01
    stated = [
        make_plan(problem, f"winograd:m=4,sums={length}").predicted_error for length in (sums, 512)
    ]
    assert stated[0] < stated[1]


def test_whole_numbers_are_exact_where_the_matrices_are() -> None:
    """F(2,3) halves weights and adds up: small whole numbers stay exact."""
    problem = Problem(ConvSpec.parse("ic20ih13iw18oc18kh3ph1", bias=True), 4)
    for form in ("winograd:m=2", "winograd:form=stages,m=2"):
        _, result = run(problem, form, whole=True)
        expected = problem.expected(problem.arrays(True), True)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    ("line", "tiles"),
    [
        ("ic20ih14iw14oc70kh3ph1", "rows=4,tiles=4"),
        ("ic20ih14iw14oc70kh3ph1", "rows=4,tiles=12"),  # five blocks, the last one of one tile
        ("ic20ih14iw10oc70kh3ph1", "rows=4,tiles=12"),  # three: the second begins midway
        ("ic260ih14oc40kh3ph1", "rows=5,tiles=40"),  # V in pieces of a register tile
    ],
)
def test_blocks_of_several_register_tiles(line: str, tiles: str, parts: int, layout: str) -> None:
    """Tiles of the last block that do not exist, panels walked from both ends, both forms of V."""
    problem = Problem(ConvSpec.parse(line, layout=layout, bias=True), 5)
    algorithm = f"winograd:m=2,{tiles},vectors=1,parts={parts}"
    check(problem, algorithm, threads=2)
    bits = [run(problem, algorithm, threads)[1] for threads in (1, 2)]
    np.testing.assert_array_equal(*bits)


def test_long_weights_pass_few_blocks() -> None:
    """Weights that fill most of the third cache are read seldom, from blocks that are larger."""
    spec = ConvSpec.parse("ic512ih28oc512kh3ph1")
    target = replace(preset("znver4"), l2_bytes=2**20, l3_bytes=2**25)
    x, y = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
    lowering = Lowering.of(spec, x, y, max_error=1.2e-6)
    (use,) = WINOGRAD.candidate(lowering, target).kernels
    assert isinstance(use.kernel, WinogradConv)
    assert use.kernel.shape.blocks <= 8
    assert use.kernel.scratch_bytes <= 2.1 * target.l2_bytes


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("line", "layout"), [("mb2ic32ih30iw41oc40kh3ph1", "NCHW"), ("g2ic20ih31oc70kh5sh2", "NHWC")]
)
def test_threads_change_no_bits(line: str, layout: str, form: str) -> None:
    problem = Problem(ConvSpec.parse(line, layout=layout, bias=True), 4)
    _, one = run(problem, form)
    for threads in (2, 5):
        np.testing.assert_array_equal(run(problem, form, threads)[1], one)


@pytest.mark.parametrize("form", FORMS)
def test_an_image_alone_gives_the_bits_it_has_in_a_batch(form: str) -> None:
    spec = ConvSpec.parse("mb3ic20ih15iw17oc24kh3ph1", layout="NHWC")
    arrays, plan = Problem(spec, 5).arrays(False), make_plan(Problem(spec, 5), form)
    arithmetic = str(plan.candidate.choice)
    together = lc.conv2d(arrays.x, arrays.w, padding=1, layout="NHWC", algorithm=arithmetic)
    for n in range(3):
        one = arrays.x[n : n + 1]
        alone = lc.conv2d(one, arrays.w, padding=1, layout="NHWC", algorithm=arithmetic)
        np.testing.assert_array_equal(alone, together[n : n + 1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("line", ["ic16ih30iw31oc40kh3ph1", "ic16ih20oc33kh9ph4"])
def test_the_residual_may_be_the_output(line: str, form: str) -> None:
    problem = Problem(ConvSpec.parse(line, residual=True, layout="NHWC"), 2)
    arrays, plan = problem.arrays(False), make_plan(problem, form, threads=2)
    expected = plan(arrays.x, residual=arrays.residual)
    plan(arrays.x, out=arrays.residual, residual=arrays.residual)
    np.testing.assert_array_equal(arrays.residual, expected)


def test_residues_of_a_dilation_that_are_alike_are_one_kernel() -> None:
    """144 residues, in images one row or column apart: four kernels, compiled once each."""
    spec = ConvSpec.parse("ic16ih61oc16kh3dh11ph12")
    problem = Lowering.of(spec, Access.planes(spec.input_shape), Access.planes(spec.output_shape))
    (candidate,) = select.ranked(problem, preset("znver4"), select.choice_named("winograd"))
    kernels = [use.kernel for use in candidate.kernels]
    assert len(kernels) == 4
    assert sum(k.shape.residues for k in kernels if isinstance(k, WinogradConv)) == 144
