"""Winograd, fused and in stages: every shape it takes, its bytes, its error, its refusals."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import leanconv as lc
from conv.problems import Output, Problem
from kernel_runner import run_kernel
from leanconv.algorithms.problem import Candidate
from leanconv.algorithms.problem import Problem as Lowering
from leanconv.algorithms.winograd import WINOGRAD
from leanconv.algorithms.winograd_kernel import WinogradConv
from leanconv.algorithms.winograd_stages import PointProducts
from leanconv.algorithms.winograd_tiles import tile_order
from leanconv.api import conv as api
from leanconv.cli.bench import LAYERS
from leanconv.codegen.compiler import assembly
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.reference.direct import convolve
from leanconv.reference.formulas import winograd_elements
from leanconv.spec import Activation, ConvSpec, Format
from leanconv.spec.format import aligned
from leanconv.target import Target, preset

FORMS = ("winograd", "winograd:form=stages")
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
few = settings(
    max_examples=16, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


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
        draw(st.sampled_from(["float32", "float64"])),
        layout,
        draw(st.booleans()),
        draw(st.booleans()),
        Activation.parse(draw(ACTIVATIONS)),
    )
    assume(spec.flops < 1e8)
    return spec


def make_plan(problem: Problem, algorithm: str, threads: int = 1) -> lc.ConvPlan:
    """The plan of a problem."""
    arrays = problem.arrays(False)
    return lc.plan_conv2d(
        problem.spec.input_shape,
        arrays.w,
        arrays.bias,
        residual=problem.spec.residual,
        slope=arrays.slope,
        algorithm=algorithm,
        threads=threads,
        **problem.options,
    )


def run(
    problem: Problem, algorithm: str, threads: int = 1, whole: bool = False
) -> tuple[lc.ConvPlan, np.ndarray]:
    """Plan, and run twice into a guarded array full of NaN."""
    arrays, plan = problem.arrays(whole), make_plan(problem, algorithm, threads)
    if whole:
        plan.repack(arrays.w, arrays.bias, arrays.slope)
    assert plan.used_bytes == plan.memory_bytes == plan.workspace_bytes + plan.weight_bytes
    out = Output(problem.spec.output_shape, problem.spec.dtype)
    for _ in range(2):  # nothing may depend on what an earlier run left in the workspace
        out.array[...] = np.nan
        plan(arrays.x, out=out.array, residual=arrays.residual)
    out.check()
    return plan, out.array


def check(problem: Problem, algorithm: str, threads: int = 1) -> float:
    """Compare with float64; the error as a part of the one that is stated.

    Errors count against the largest output; where few outputs happen to be small, against the
    root of the sum of squares that the largest one adds up. The estimate is made for some tens of
    outputs; fewer, mostly made of padding, may err by twice as much.
    """
    plan, result = run(problem, algorithm, threads)
    arrays = problem.arrays(False)
    expected = problem.expected(arrays, False)
    bare = replace(problem.spec, bias=False, residual=False, activation=None)
    squares = convolve(bare, *(np.square(a.astype(np.float64)) for a in (arrays.x, arrays.w)))
    largest = max(np.abs(expected).max(), 2 * np.sqrt(squares.max()))
    if largest == 0.0:  # nothing but padding
        np.testing.assert_array_equal(result, expected)
        return 1.0
    error = float(np.abs(result - expected).max() / largest)
    allowed = 1 if prod(problem.spec.output_shape) >= 64 else 2
    assert error <= allowed * plan.predicted_error, f"{plan.explain()}\n{problem}: {error:.2e}"
    return error / plan.predicted_error


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
    ("ic5ih13iw50oc18kh3dh1dw16ph2pw17", "NCHW"),  # columns further apart than a vector is wide
    ("ic17ih30iw33oc18kh3sh2dh1ph2", "NCHW"),  # stride and dilation 2: every other row of x
    ("g2ic16ih41iw37oc20kh5kw3sh4sw3dh5dw1ph4", "NHWC"),  # strides that share a factor, or none
)


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


@pytest.mark.parametrize("name", [None, "haswell"])
@pytest.mark.parametrize(("line", "layout", "parameters"), NARROW)
def test_tiles_at_the_edges_leave_points_out(
    line: str, layout: str, parameters: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name:
        monkeypatch.setattr(api, "host", lambda: preset("haswell"))
        parameters = parameters.split(",")[0]
    spec = ConvSpec.parse(line, layout=layout, bias=True, residual=True)
    problem = Problem(replace(spec, activation=Activation.parse("prelu")), 4)
    text = f"winograd:{parameters},edges="
    plan, narrow = run(problem, text + "narrow", threads=2)
    check(problem, text + "narrow")
    kernel = plan._candidate.pieces[0].kernel
    assert isinstance(kernel, WinogradConv)
    assert any(kernel.left_out)
    whole = run(problem, text + "whole")[0]
    assert whole.weight_bytes == plan.weight_bytes
    np.testing.assert_array_equal(narrow, run(problem, text + "narrow")[1])


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("line", "layout"), [CHOSEN[0], CHOSEN[1], CHOSEN[2], CHOSEN[3], CHOSEN[5]]
)
def test_eight_lanes(line: str, layout: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "host", lambda: preset("haswell"))
    check(Problem(ConvSpec.parse(line, layout=layout, bias=True), 2), form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
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


@pytest.mark.parametrize("layer", sorted(LAYERS, key=lambda name: int(name[2:])))
def test_error_of_every_tile_of_eight_points_is_at_most_1e_5(layer: str) -> None:
    """On the layers of the documents, whose images are cut to 60 pixels here."""
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
        assert 0.01 * plan.predicted_error < error <= plan.predicted_error <= 1e-5


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
    (piece,) = WINOGRAD.candidate(lowering, target, {}).pieces
    assert isinstance(piece.kernel, WinogradConv)
    assert piece.kernel.blocks <= 8
    assert piece.kernel.scratch_bytes <= 2.1 * target.l2_bytes


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
    arithmetic = plan._candidate.arithmetic
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


# -- memory ----------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_workspace_of_the_fused_form_does_not_grow_with_the_image(layout: str) -> None:
    def workspace(size: int, batch: int, text: str) -> int:
        line = f"mb{batch}ic64ih{size}oc64kh3ph1"
        return make_plan(Problem(ConvSpec.parse(line, layout=layout), 0), text).workspace_bytes

    images = [(28, 1), (56, 4), (112, 1), (224, 1)]
    assert (
        len({workspace(*image, "winograd:m=4,tiles=14,rows=14,vectors=2") for image in images}) == 1
    )
    for image in images:
        assert workspace(*image, "winograd") <= 0.6 * host().l2_bytes


@pytest.mark.parametrize("layer", ["cv1", "cv2", "cv3", "cv4", "cv7", "cv8"])
def test_workspace_of_the_fused_form_is_below_that_of_mec(layer: str) -> None:
    problem = Problem(ConvSpec.parse(LAYERS[layer]), 0)
    for threads in (1, 2):
        winograd, mec = (make_plan(problem, name, threads) for name in ("winograd", "mec"))
        assert len(winograd._candidate.pieces) == 1
        assert winograd.workspace_bytes < mec.workspace_bytes


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("layer", ["cv5", "cv11"])
def test_stages_need_what_the_documents_count(layer: str, m: int, batch: int, layout: str) -> None:
    spec = replace(ConvSpec.parse(LAYERS[layer], layout=layout), batch=batch)
    kernel = spec.kernel[0]
    tiles = batch * prod(-(-o // m) for o in spec.output_size)
    points = (m + kernel - 1) ** 2
    v, big_m = points * tiles * spec.in_channels, points * tiles * spec.out_channels
    weights = points * spec.in_channels * spec.out_channels
    assert v + weights + big_m == winograd_elements(spec, m)
    for threads in (1, 2):
        plan = make_plan(Problem(spec, 0), f"winograd:form=stages,m={m}", threads)
        between = aligned(4 * points * host().lanes("float32"))
        assert plan.workspace_bytes == aligned(4 * v) + aligned(4 * big_m) + threads * between
        assert plan.used_bytes == plan.memory_bytes
        assert plan.weight_bytes == 4 * weights


def test_stages_of_parts_share_their_memory() -> None:
    """V and M of the largest part; a stride counts every phase's channels."""
    spec = ConvSpec.parse("ic16ih20oc32kh11ph5", layout="NHWC")  # 6 + 5 taps
    plan = make_plan(Problem(spec, 0), "winograd:form=stages,m=2")
    assert dict(plan._candidate.temporaries) == {
        "V": 4 * 7 * 7 * 100 * 16,
        "M": 4 * 7 * 7 * 100 * 32,
    }
    assert len(plan._candidate.pieces) == 3 * 4
    spec = ConvSpec.parse("g2ic10ih20oc14kh3sh2ph1", layout="NHWC")  # 2 taps for each phase
    plan = make_plan(Problem(spec, 0), "winograd:form=stages,m=2")
    assert dict(plan._candidate.temporaries) == {
        "V": 4 * 3 * 3 * 25 * 10 * 4,
        "M": 4 * 3 * 3 * 25 * 14,
    }


@pytest.mark.parametrize(
    ("line", "layout"),
    [
        ("ic3ih31oc20kh7sh2", "NCHW"),  # lanes of several phases and channels
        ("ic3ih47oc20kh11sh4", "NCHW"),
        ("ic20ih31oc20kh7sh2", "NCHW"),
        ("ic20ih31oc20kh5sh3", "NHWC"),
        ("ic20ih31oc20kh4sh2", "NHWC"),  # phases of one length: nothing to leave out
        ("ic20ih31oc20kh3", "NCHW"),
    ],
)
def test_weights_hold_what_is_not_zero_and_no_more(line: str, layout: str) -> None:
    """Shorter phases have no products at the last point of an axis."""
    spec = ConvSpec.parse(line, layout=layout, dtype="float64")
    for m in ("2", "3x2", "1x4"):
        (piece,) = candidate_of(spec, layout, host(), {"m": m}).pieces
        kernel = piece.kernel
        assert isinstance(kernel, WinogradConv)
        w = np.random.default_rng(1).uniform(1, 2, spec.weight_shape)
        whole, packed = kernel.transformed(w), kernel.pack_weights(w)
        used = whole.any(axis=-1)
        if layout == "NCHW" and spec.kernel[0] >= spec.stride[0]:
            assert used.sum() == kernel.all_steps
        assert used.sum() <= kernel.all_steps <= used.size
        assert packed.nbytes == kernel.weight_bytes
        np.testing.assert_allclose(np.abs(packed).sum(), np.abs(whole).sum(), rtol=1e-12)


# -- kernels alone ---------------------------------------------------------------------------
def candidate_of(spec: ConvSpec, lay: str, target: Target, text: dict[str, str]) -> Candidate:
    """The candidate for tensors in planes, with channels last or in blocks of channels."""
    lanes = target.lanes(spec.dtype)

    def access(channels: int, size: tuple[int, ...]) -> Access:
        shape = (spec.batch, channels, *size)
        if lay == "blocks":
            return Access.of_format(shape, Format(lanes))
        return Access.planes(shape) if lay == "NCHW" else Access.channels_last(shape)

    x, y = access(spec.in_channels, spec.size), access(spec.out_channels, spec.output_size)
    problem = Lowering.of(spec, x, y)
    assert WINOGRAD.reject(problem, target) is None
    return WINOGRAD.candidate(problem, target, text)


def run_pieces(candidate: Candidate, spec: ConvSpec, values: dict[str, np.ndarray]) -> None:
    """Run the kernels one after the other on guarded arrays, V and M of exactly their bytes."""
    for role, size in candidate.temporaries.items():
        values[role] = np.full(size // spec.itemsize, np.nan, spec.dtype)
    for piece in candidate.pieces:
        cuts = sorted({piece.kernel.chunks // 3, piece.kernel.chunks // 2})
        operands = [values[role] for role in piece.roles]
        values[piece.roles[-1]] = run_kernel(piece.kernel, *operands, parts=cuts)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("line", ["mb2ic20ih13iw18oc37kh3ph1", "g2ic6ih12oc10kh3sh2ph1"])
def test_stages_write_v_and_m_wholly_and_nothing_else(line: str, dtype: str) -> None:
    for lay in ("NCHW", "NHWC"):
        spec = ConvSpec.parse(line, layout=lay, dtype=dtype)
        candidate = candidate_of(spec, lay, host(), {"form": "stages"})
        arrays = Problem(spec, 6).arrays(False)
        y = np.full(spec.output_shape, np.nan, dtype)
        values = {"x": arrays.x, **candidate.pack(arrays.w, {}), "y": y}
        run_pieces(candidate, spec, values)
        assert not any(np.isnan(values[role]).any() for role in ("V", "M", "y"))
        expected = Problem(spec, 6).expected(arrays, False)
        atol = candidate.error * np.abs(expected).max()
        np.testing.assert_allclose(values["y"], expected, rtol=0, atol=atol)


def blocked(array: np.ndarray, lanes: int) -> np.ndarray:
    """An array (N, C, H, W) as (N, blocks, H, W, lanes), NaN in the unused lanes."""
    n, c, h, w = array.shape
    blocks = -(-c // lanes)
    padded = np.full((n, blocks * lanes, h, w), np.nan, array.dtype)
    padded[:, :c] = array
    return np.ascontiguousarray(padded.reshape(n, blocks, lanes, h, w).transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize("text", [{}, {"form": "stages"}], ids=["fused", "stages"])
@pytest.mark.parametrize("stride", [1, 2])
def test_blocks_of_channels_and_garbage_in_their_unused_lanes(
    text: dict[str, str], stride: int
) -> None:
    spec = ConvSpec.parse(f"mb2ic21ih13iw18oc37kh3sh{stride}ph1")
    lanes = host().lanes("float32")
    candidate = candidate_of(spec, "blocks", host(), text)
    arrays = Problem(spec, 7).arrays(False)
    y = blocked(np.full(spec.output_shape, np.nan, np.float32), lanes)
    values = {"x": blocked(arrays.x, lanes), **candidate.pack(arrays.w, {}), "y": y}
    run_pieces(candidate, spec, values)
    back = values["y"].transpose(0, 1, 4, 2, 3).reshape(2, -1, *spec.output_size)[:, :37]
    expected = Problem(spec, 7).expected(arrays, False)
    assert np.abs(back - expected).max() <= candidate.error * np.abs(expected).max()


@pytest.mark.parametrize("name", ["haswell", "neoverse-n1", "skylake-avx512"])
def test_every_target_is_served(name: str) -> None:
    target, spec = preset(name), ConvSpec.parse("ic20ih13oc37kh3ph1", layout="NHWC")
    for text in ({"form": "fused"}, {"form": "stages"}):
        for piece in candidate_of(spec, "NHWC", target, text).pieces:
            assert "call" not in assembly(piece.kernel, target)


# -- parameters and refusals -----------------------------------------------------------------
def test_the_fused_form_is_meant_if_none_is_named() -> None:
    spec = ConvSpec.parse("ic16ih20oc32kh3ph1")
    plans = [make_plan(Problem(spec, 0), text) for text in ("winograd", "winograd:form=fused")]
    assert plans[0]._candidate.pieces == plans[1]._candidate.pieces
    assert len(plans[0]._candidate.pieces) == 1
    staged = make_plan(Problem(spec, 0), "winograd:form=stages")
    assert isinstance(staged._candidate.pieces[1].kernel, PointProducts)
    # Both take the same tiles of outputs, so that a comparison shows nothing but the form.
    tiles = [plan._candidate.arithmetic.split(",m=")[-1] for plan in (plans[0], staged)]
    assert tiles[0].removeprefix("winograd:m=").split(",")[0] == tiles[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("winograd:m=0", "m is '0'; expected outputs of a tile, such as 4 or 4x6"),
        ("winograd:m=99", "m is too large; expected m . taps - 1 of at most 16 points"),
        ("winograd:m=4x4x4", "m is '4x4x4'; expected outputs of a tile"),
        ("winograd:m=-2", "m is '-2'; expected outputs of a tile"),
        ("winograd:form=stages,m=0", "m is '0'; expected outputs of a tile"),
        ("winograd:form=stages,m=99", "m is too large"),
        ("winograd:rows=abc", "rows is 'abc'; expected an integer of at least 1"),
        ("winograd:tiles=0", "tiles is '0'; expected an integer of at least 1"),
        ("winograd:sums=-1", "sums is '-1'; expected an integer of at least 1"),
        ("winograd:rows=31,vectors=6", "no fused Winograd kernel has .*; leave some of these out"),
        ("winograd:points=4", "'points=4' is no parameter of winograd; expected key=value"),
        ("winograd:m", "'m' is no parameter of winograd"),
        ("winograd:form=three", "form is 'three'; expected fused or stages"),
        ("winograd:form=stages,rows=4", "rows goes with form=fused; expected m alone"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(text: str, message: str) -> None:
    w = np.zeros((32, 16, 3, 3), np.float32)
    with pytest.raises(SpecError, match=message):
        lc.plan_conv2d((1, 16, 20, 20), w, algorithm=text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ic16ih20oc16kh1", "one tap in each direction: nothing to save"),
        ("ic16ih20oc16kh5sh3", r"a stride of 3 between channels in planes; 1, 2 or 4"),
        ("ic16ih20oc16kh3sh2dh2", "a stride between columns that are not neighbours"),
        ("ic16id5ih9oc16kd3kh3", "a depth axis"),
    ],
)
def test_what_cannot_be_computed_is_refused(line: str, message: str, form: str) -> None:
    spec = ConvSpec.parse(line)
    with pytest.raises(SpecError, match=f"algorithm 'winograd' cannot compute .*: {message}"):
        make_plan(Problem(spec, 0), form)
