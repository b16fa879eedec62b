"""Separable filters along one axis after the other: bits where factors are exact, else bounds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

import leanconv as lc
from leanconv.algorithms.magnitudes import factors_in
from leanconv.algorithms.problem import Problem as AlgorithmProblem
from leanconv.algorithms.select import choice_named, choose
from leanconv.codegen.geometry import Access
from leanconv.codegen.host import host
from leanconv.errors import SpecError
from leanconv.graph.factors import MOST_TERMS
from leanconv.graph.onnx_import import read_model
from leanconv.records import replace
from leanconv.reference.direct import convolve
from leanconv.spec import ConvSpec, Format
from leanconv.types import FLOAT32, FLOAT64, Precision
from support.guarded import Guarded
from support.half_conv import laid_out, plain
from support.interpret import interpret
from support.kernel_runner import run_kernel
from support.onnx_models import model
from support.packing import packed_constants
from support.problems import EXACT, Problem, long_kernels, problems, run_planned

pytestmark = pytest.mark.vectors

few = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
DTYPES = FLOAT32, FLOAT64


def outer(shape: tuple[int, ...], seed: int, terms: int, whole: bool) -> np.ndarray:
    """Filters (K, 1, taps…) that are sums of products of one factor for each axis."""
    random, filters = np.random.default_rng(seed), np.zeros(shape)
    for _ in range(terms):
        term = np.ones(shape)
        for axis, taps in enumerate(shape[2:], 2):
            size = (shape[0], taps)
            drawn = random.integers(-2, 3, size) if whole else random.uniform(-1, 1, size)
            places = (slice(None), *[None] * (axis - 1), slice(None))
            term = term * drawn[places + (None,) * (len(shape) - axis - 1)]
        filters += term
    return filters


def gaussian(n: int) -> np.ndarray:
    """A filter (1, 1, n, n) whose sum is 1."""
    g = np.exp(-((np.arange(n) - n // 2) ** 2) / (2 * (n / 6) ** 2))
    return np.outer(g, g)[None, None] / g.sum() ** 2


def usable(problem: Problem) -> bool:
    """Whether the algorithm is for such a problem, but for several filters of a channel."""
    spec = problem.spec
    return spec.in_channels == spec.groups and sum(taps > 1 for taps in spec.kernel) > 1


PROBLEMS = st.one_of(
    problems(EXACT, DTYPES, channels=("depthwise",)).filter(usable),
    long_kernels(EXACT, DTYPES).filter(usable),
)


@few
@given(PROBLEMS, st.sampled_from((1, 2, 5)))
def test_small_whole_numbers_are_exact(problem: Problem, threads: int) -> None:
    spec, arrays = problem.spec, problem.arrays(True)
    w = outer(spec.weight_shape, problem.seed, 1, True).astype(spec.dtype)
    try:
        found, _ = run_planned(problem, w, "separable", threads, whole=True)
    except SpecError:
        return  # several filters of a channel, channels last; kernels that are too large
    arrays.w[...] = w
    np.testing.assert_array_equal(found, problem.expected(arrays, True))


@few
@given(PROBLEMS, st.integers(1, 3), st.sampled_from((1, 2, 5)))
def test_within_the_stated_error(problem: Problem, terms: int, threads: int) -> None:
    spec, arrays = problem.spec, problem.arrays(False)
    w = outer(spec.weight_shape, problem.seed, terms, False).astype(spec.dtype)
    try:
        found, error = run_planned(problem, w, "separable", threads)
    except SpecError:
        return  # several filters of a channel, channels last; three axes that need more terms
    arrays.w[...] = w
    exact = problem.expected(arrays, False)
    scale = float(np.abs(exact).max(initial=0))
    if scale > 0.3:  # else sums cancel, or an activation bounds them
        assert float(np.abs(found - exact).max()) <= error * scale * 4


def test_error_of_300_filters_is_never_above_the_stated() -> None:
    """Of one to four terms; those of four are refused, with their rank."""
    random = np.random.default_rng(53)
    refused, worst = 0, 0.0
    for number in range(300):
        shape = (1, 1, *(int(n) for n in random.integers(5, 16, 2)))
        terms, dtype = number % 4 + 1, DTYPES[number % 3 == 0]
        w = outer(shape, number, terms, False).astype(dtype)
        x = random.uniform(-1, 1, (1, 1, 40, 50)).astype(dtype)
        if terms > MOST_TERMS:
            with pytest.raises(SpecError, match="the filter has rank 4"):
                lc.plan_conv2d(x.shape, w, algorithm="separable")
            refused += 1
            continue
        plan = lc.plan_conv2d(x.shape, w, algorithm="separable")
        wide = w.astype(np.longdouble)
        exact = sum(
            wide[0, 0, i, j] * x[0, 0, i : i + 41 - shape[2], j : j + 51 - shape[3]]
            for i, j in np.ndindex(*shape[2:])
        )
        error = float(np.abs(plan(x)[0, 0] - exact).max() / np.abs(exact).max())
        worst = max(worst, error / plan.predicted_error)
    assert refused == 75
    assert 0.05 < worst <= 1


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-8, 1e-6, 1e-4])
def test_noise_is_refused_where_it_matters(size: float) -> None:
    """The limit is a quarter of the rounding, and what rounding a filter leaves."""
    random = np.random.default_rng(1)
    w = gaussian(11)
    w = (w + size * w.max() * random.uniform(-1, 1, w.shape)).astype(np.float32)
    x = random.uniform(-1, 1, (1, 1, 60, 60)).astype(np.float32)
    if size > 1e-7:
        with pytest.raises(SpecError, match="the filter has rank"):
            lc.plan_conv2d(x.shape, w, algorithm="separable", padding=5)
        assert lc.plan_conv2d(x.shape, w, padding=5).algorithm != "separable"
        return
    plan = lc.plan_conv2d(x.shape, w, padding=5)
    assert plan.algorithm == "separable"
    exact = lc.conv2d(x.astype(float), w.astype(float), padding=5, algorithm="naive")
    assert np.abs(plan(x) - exact).max() <= plan.predicted_error * np.abs(exact).max()


def test_whole_factors_are_found_and_others_leave_whole_filters_alone() -> None:
    binomial = np.array([1, 4, 6, 4, 1])
    for scale in (1.0, 1 / 256, 2.0**-90):
        known = factors_in((np.outer(binomial, binomial) * scale)[None, None].astype(np.float32))
        assert known is not None
        assert (known.rank, known.error, known.pays) == (1, 0.0, True)
    random = np.random.default_rng(0)
    a, b = random.integers(-4, 5, (2, 2, 7))
    w = (np.outer(a[0], b[0]) + np.outer(a[1], b[1]))[None, None].astype(np.float32)
    known = factors_in(w)
    assert known is not None
    assert (known.rank, known.pays) == (2, False)
    x = random.integers(-4, 5, (1, 1, 50, 50)).astype(np.float32)
    exact = lc.conv2d(x.astype(float), w.astype(float), algorithm="naive")
    np.testing.assert_array_equal(lc.conv2d(x, w), exact)
    named = lc.conv2d(x, w, algorithm="separable")
    assert 0 < np.abs(named - exact).max() < 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("taps", [(5, 5), (7, 5, 5), (5, 1, 7), (1, 5, 5)])
def test_zeros_huge_and_tiny_filters(taps: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (1, 3, *(n + 9 for n in taps))).astype(np.float32)
    for scale in (0.0, 1e-30, 1e-12, 1e12, 1e30):
        w = (outer((3, 1, *taps), 3, 1, False) * scale).astype(np.float32)
        w[1] = 0
        convolve = lc.conv2d if len(taps) == 2 else lc.conv3d
        found = convolve(x, w, groups=3, algorithm="separable")
        exact = convolve(x.astype(float), w.astype(float), groups=3, algorithm="naive")
        assert np.abs(found - exact).max() <= 2e-6 * np.abs(exact).max()


def test_what_is_refused_says_why() -> None:
    x = np.zeros((1, 4, 20, 20), np.float32)
    w = outer((4, 1, 5, 5), 0, 1, False).astype(np.float32)

    def refusal(w: np.ndarray, **options: object) -> str:
        with pytest.raises(SpecError) as caught:
            lc.plan_conv2d(x.shape, w, algorithm="separable", **options)  # type: ignore[arg-type]
        return str(caught.value)

    assert "4 input channels a group" in refusal(np.zeros((2, 4, 5, 5), np.float32))
    assert "taps along one axis" in refusal(w[:, :, :1], groups=4)
    two = np.concatenate([w, w])
    with pytest.raises(SpecError, match="2 filters of a channel, where channels are neighbours"):
        lc.plan_conv2d((1, 20, 20, 4), two, algorithm="separable", groups=4, layout="NHWC")
    assert "not finite" in refusal(w * np.inf, groups=4)
    full = np.random.default_rng(0).standard_normal((4, 1, 6, 6)).astype(np.float32)
    assert "a filter has rank 6" in refusal(full, groups=4)
    dense = lc.plan_conv2d(x.shape, full, groups=4)
    assert "separable: a filter has rank 6" in dense.explain()


# -- strides along rows, channels that are neighbours ---------------------------------------------
def exact(x: np.ndarray, w: np.ndarray, layout: str = "NCHW", **options: Any) -> np.ndarray:
    """What a naive convolution in float64 makes of whole numbers, in the layout."""
    last = layout == "NHWC"
    planes = np.moveaxis(x, -1, 1) if last else x
    wide = {
        name: np.asarray(options.pop(name), float) for name in ("bias", "slope") if name in options
    }
    found = lc.conv2d(planes.astype(float), w.astype(float), algorithm="naive", **wide, **options)
    return np.moveaxis(found, 1, -1) if last else found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 5, 8, 16])
def test_strides_along_rows_in_each_layout(stride: int, layout: str, dtype: str) -> None:
    """Filters of whole numbers, other ones for each channel, in rows of all lengths."""
    random = np.random.default_rng(stride)
    for channels, width, pad, apart in (
        (1, 67, (2, 3), 1),
        (3, 1, (9, 8), 1),
        (3, 300, (2, 2), 1),
        (4, 33, (0, 5), 3),
        (5, 31, (20, 0), 2),
        (8, 49, (2, 2), 1),
        (16, 17, (3, 2), 2),
        (20, 25, (1, 9), 1),
        (48, 18, (2, 2), 1),
    ):
        shape = (2, channels, 9, width) if layout == "NCHW" else (2, 9, width, channels)
        x = random.integers(-3, 4, shape).astype(dtype)
        w = outer((channels, 1, 3, 5), channels, 1, True).astype(dtype)
        bias = random.integers(-9, 10, channels).astype(dtype)
        options = {
            "groups": channels,
            "stride": (1 + stride % 2, stride),
            "padding": (1, pad[0], 2, pad[1]),
            "dilation": (1, apart),
            "activation": "prelu",
            "slope": random.integers(-2, 3, channels).astype(dtype),
        }
        if width + sum(pad) < 4 * apart + 1:
            continue
        wanted = exact(x, w, layout, bias=bias, **options)
        out = Guarded.unwritten(wanted.shape, np.dtype(dtype))
        plan = lc.plan_conv2d(shape, w, bias, layout=layout, algorithm="separable", **options)
        plan(x, out=out.array)
        out.check()
        np.testing.assert_array_equal(out.array, wanted)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("block", [4, 8, 16])
def test_blocks_of_channels(block: int, stride: int) -> None:
    """A channel's lanes are of its own block; those beyond the last channel are never read."""
    target, random = host(), np.random.default_rng(block)
    for channels in (1, 7, 16, 20, 33):
        spec = ConvSpec(
            2, channels, channels, (9, 23), (5, 7), (1, stride), (1, 1), (2, 3), (2, 3), channels
        )
        spec = replace(spec, bias=True, residual=True)
        shapes = (2, channels, 9, 23), spec.output_shape
        x, residual = (random.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
        w = outer(spec.weight_shape, channels, 1, True).astype(np.float32)
        bias = random.integers(-9, 10, channels).astype(np.float32)
        accesses = (Access.of_format(shape, Format(block)) for shape in shapes)
        problem = replace(AlgorithmProblem.of(spec, *accesses), factors=factors_in(w))
        made = choose(problem, target, choice_named("separable"))
        constants = packed_constants(made, w, {"bias": bias})
        sizes = {name: array.nbytes for name, array in constants.items()}
        assert sizes == made.constant_bytes
        y = laid_out(np.full(shapes[1], np.nan, np.float32), block, FLOAT32)
        roles = {"x": laid_out(x, block, FLOAT32), **constants, "y": y}
        roles["residual"] = laid_out(residual, block, FLOAT32)
        (use,) = made.kernels
        found = run_kernel(use.kernel, *(roles[role] for role in use.roles), target=target)
        arrays = (array.astype(float) for array in (x, w, bias, residual))
        wanted = convolve(replace(spec, precision=Precision.of("float64")), *arrays)
        np.testing.assert_array_equal(plain(found, channels), wanted)


def test_images_of_three_channels_and_pyramids_are_taken_apart() -> None:
    """The layouts and strides that image code has, chosen without being named."""
    g = gaussian(5).astype(np.float32)
    rgb = np.repeat(g, 3, 0)
    for shape, w, options in (
        ((1, 240, 320, 3), rgb, {"layout": "NHWC", "groups": 3}),
        ((1, 240, 320, 3), rgb, {"layout": "NHWC", "groups": 3, "stride": 2}),
        ((1, 1, 480, 640), g, {"stride": 2}),
    ):
        plan = lc.plan_conv2d(shape, w, padding=2, threads=1, **options)  # type: ignore[arg-type]
        assert plan.algorithm == "separable"
        x = np.random.default_rng(0).random(shape, np.float32)
        rest: dict[str, Any] = dict(options)
        wanted = exact(x, w, rest.pop("layout", "NCHW"), padding=2, **rest)
        assert np.abs(plan(x) - wanted).max() <= plan.predicted_error * np.abs(wanted).max()


def test_a_stride_that_leaves_no_products_out_is_not_chosen() -> None:
    """Sums along columns are of all columns that are read: five times four, and five more."""
    w, shape = gaussian(5).astype(np.float32), (1, 1, 300, 300)
    assert lc.plan_conv2d(shape, w, padding=2, stride=4).algorithm != "separable"
    named = lc.plan_conv2d(shape, w, padding=2, stride=4, algorithm="separable")
    assert named.algorithm == "separable"
    assert "as many products" in lc.plan_conv2d(shape, w, padding=2, stride=4).explain()


def test_a_plan_takes_new_filters_of_as_many_terms() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (2, 2, 60, 61)).astype(np.float32)
    first, second = (outer((2, 1, 7, 7), seed, 1, False).astype(np.float32) for seed in (0, 1))
    plan = lc.plan_conv2d(x.shape, first, padding=3, groups=2)
    assert plan.algorithm == "separable"
    before = plan(x)
    plan.repack(second)
    wanted = lc.conv2d(x, second, padding=3, groups=2, algorithm="naive")
    np.testing.assert_allclose(plan(x), wanted, atol=2e-6)
    kept = plan(x)
    with pytest.raises(lc.InputError, match=r"need 2 terms.*plan it once more"):
        plan.repack(outer((2, 1, 7, 7), 2, 2, False).astype(np.float32))
    np.testing.assert_array_equal(plan(x), kept)
    plan.repack(first)
    np.testing.assert_array_equal(plan(x), before)


def test_calls_follow_filters_that_change_in_place() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (1, 1, 64, 64)).astype(np.float32)
    w = np.zeros((1, 1, 9, 9), np.float32)
    for seed, terms in ((1, 1), (2, 1), (3, 9), (4, 1), (5, 2)):
        w[...] = outer(w.shape, seed, terms, False)
        wanted = lc.conv2d(x, w, algorithm="naive", padding=4)
        found = lc.conv2d(x, w, padding=4)
        assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_one_filter_of_many_sizes_batches_and_threads() -> None:
    """The second size has kernels for all that follow; threads change no bits."""
    random, w = np.random.default_rng(1), gaussian(9).astype(np.float32)
    for shape in ((1, 20, 31), (2, 9, 7), (3, 1, 1), (1, 140, 133), (2, 5, 600), (1, 33, 16)):
        x = random.uniform(-1, 1, (shape[0], 1, *shape[1:])).astype(np.float32)
        wanted = lc.conv2d(x.astype(float), w.astype(float), algorithm="naive", padding=4)
        found = lc.conv2d(x, w, padding=4)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        one, two = (
            lc.plan_conv2d(x.shape, w, padding=4, algorithm="separable", threads=n)(x)
            for n in (1, 2)
        )
        np.testing.assert_array_equal(one, two)


def test_a_memory_limit_does_not_round_sums_of_whole_numbers() -> None:
    """Filters of two terms in exact numbers; what is chosen without a limit takes more bytes."""
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 2, 15))
    w = (np.outer(a[0], b[0]) + np.outer(a[1], b[1]))[None, None].astype(np.float32)
    for limit in (2_000_000, 50_000, 20_000, 10_000):
        plan = lc.plan_conv2d((1, 1, 300, 300), w, padding=7, threads=1, memory_limit=limit)
        assert plan.algorithm != "separable"


def test_memory_limits_and_scratch() -> None:
    x, w = np.ones((1, 1, 200, 200), np.float32), gaussian(7).astype(np.float32)
    plan = lc.plan_conv2d(x.shape, w, padding=3)
    assert plan.algorithm == "separable"
    assert plan.weight_bytes == 64 * math.ceil(4 * 14 / 64)
    tight = lc.plan_conv2d(x.shape, w, padding=3, memory_limit=plan.used_bytes - 1)
    assert tight.used_bytes < plan.used_bytes


# -- in networks ----------------------------------------------------------------------------------
def network(seed: int, shape: tuple[int | str, ...], channels: int) -> bytes:
    """Depthwise layers of separable filters between 1x1 layers, with norms, sums, activations."""
    random = np.random.default_rng(seed)
    nodes, constants, at = list[onnx.NodeProto](), dict[str, np.ndarray](), "x"

    def add(op: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    for layer in range(3):
        n = int(random.choice([5, 7, 9, 11]))
        terms = 1 + int(layer == seed % 3) * (n > 7)
        w = outer((channels, 1, n, n), 10 * seed + layer, terms, False)
        constants[f"d{layer}"] = (w / np.sqrt(np.square(w).sum((2, 3), keepdims=True))).astype("f4")
        constants[f"b{layer}"] = random.uniform(-1, 1, channels).astype("f4")
        constants[f"p{layer}"] = (
            random.standard_normal((channels, channels, 1, 1)) / math.sqrt(channels)
        ).astype("f4")
        inside = add("Conv", at, f"d{layer}", f"b{layer}", group=channels, pads=[n // 2] * 4)
        inside = add("Relu", inside) if random.integers(2) else inside
        if random.integers(2):
            inside = add("Add", inside, at)
        at = add("Conv", inside, f"p{layer}")
    made = model(nodes, {"x": shape}, [at], constants)
    return made.SerializeToString()


@pytest.mark.parametrize("seed", range(4))
def test_networks_of_separable_layers(seed: int, tmp_path: Path) -> None:
    channels = (8, 16, 3, 17)[seed]
    shape = (1 + seed % 2, channels, 50 + seed, 61)
    data = network(seed, shape, channels)
    x = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
    net = lc.load(data)
    (answer,) = net.run({"x": x}).values()
    assert "separable" in {step.algorithm for step in net.plan.steps}
    (exact,) = lc.load(data, dtype="float64").run({"x": x.astype(float)}).values()
    (plain,) = interpret(read_model(data).bind({"x": shape}), {"x": x}).values()
    for found in (exact, plain):
        np.testing.assert_allclose(answer, found, atol=3e-6 * np.abs(exact).max())
    net.plan.save(tmp_path / "plan.json")
    (again,) = lc.load(data, plan=tmp_path / "plan.json").run({"x": x}).values()
    np.testing.assert_array_equal(again, answer)
    with pytest.raises(lc.BudgetError) as caught:
        lc.load(data, memory_limit=1)
    limited = lc.load(data, memory_limit=caught.value.smallest_bytes)
    (within,) = limited.run({"x": x}).values()
    np.testing.assert_allclose(within, exact, atol=3e-6 * np.abs(exact).max())
    one, two = (lc.load(data, reproducible=True, threads=n).run({"x": x}) for n in (1, 2))
    for name, found in one.items():
        np.testing.assert_array_equal(found, two[name])


def test_networks_of_open_sizes() -> None:
    data = network(7, ("n", 4, "h", "w"), 4)
    net = lc.load(data)
    for shape in ((1, 4, 40, 50), (2, 4, 7, 9), (1, 4, 33, 16), (1, 4, 120, 130)):
        x = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)
        (found,) = net.run({"x": x}).values()
        (exact,) = interpret(read_model(data).bind({"x": shape}), {"x": x}).values()
        np.testing.assert_allclose(found, exact, atol=5e-6 * np.abs(exact).max())


@pytest.mark.parametrize("outputs", [3, 12])
def test_an_image_of_one_pixel_is_of_planes(outputs: int) -> None:
    """Its strides are those of channels last, too, which several filters of a channel refuse."""
    w = outer((outputs, 1, 5, 5), 3, 1, True).astype("f4")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], group=3, pads=[2] * 4, strides=[2, 1])
    data = model([conv], {"x": ("n", 3, "h", "w")}, ["y"], {"w": w}).SerializeToString()
    for limit in (None, "1 MiB"):
        net = lc.load(data, memory_limit=limit)
        for shape in ((4, 3, 1, 1), (1, 3, 1, 1), (1, 3, 1, 9), (4, 3, 1, 1)):
            x = np.random.default_rng(1).integers(-4, 5, shape).astype("f4")
            (found,) = net.run({"x": x}).values()
            (exact,) = interpret(read_model(data).bind({"x": shape}), {"x": x}).values()
            np.testing.assert_array_equal(found, exact)
