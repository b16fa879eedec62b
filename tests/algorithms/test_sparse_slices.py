"""Few pixels of weights with zeros: lanes along outputs, the bits of the plain sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.algorithms.problem import Problem as Planned
from leanconv.algorithms.sparse import algorithm, sliced_plan
from leanconv.algorithms.sparse.sliced import SlicedConv
from leanconv.api.conv_choice import conv_problem
from leanconv.codegen.machine_code import compile_text
from leanconv.graph.slices import ROWS, SPANS, Slices, count_steps
from leanconv.graph.zeros import zeros_of
from leanconv.records import replace
from leanconv.spec import Activation, ConvSpec
from leanconv.target import PRESETS
from leanconv.types import FLOAT32, FLOAT64
from support.problems import EXACT, SMOOTH, Problem, run_planned

pytestmark = pytest.mark.vectors

SHARES = (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)
_OF_PLANES = algorithm._refused
MAPS = ((1, 1), (1, 1), (1, 2), (2, 2), (1, 7), (3, 2), (3, 4))
many = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _no_planes() -> Iterator[None]:
    """Lanes run along outputs wherever they can, however small a layer is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithm, "_refused", lambda problem: "lanes along outputs are tested")
        yield


def pruned(shape: tuple[int, ...], share: float, seed: int = 0, dtype: str = "f4") -> np.ndarray:
    """Weights of which a share is 0."""
    random = np.random.default_rng(seed)
    w = random.standard_normal(shape).astype(dtype)
    w.reshape(-1)[random.permutation(w.size)[: round(share * w.size)]] = 0
    return w


@st.composite
def few_pixels(draw: st.DrawFn) -> Problem:
    """Matrices of up to 70 rows and columns, of 1 to 16 pixels; or kernels as large as maps."""
    size, batch = draw(st.sampled_from(MAPS)), draw(st.sampled_from([1, 1, 2, 3, 5]))
    kernel, stride = (1, 1), draw(st.sampled_from([(1, 1), (2, 2)]))
    inputs, outputs = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    if draw(st.booleans()) and size[0] * size[1] > 1:
        size, kernel, stride, inputs = (5, 4), (5, 4), (1, 1), draw(st.integers(1, 9))
    if batch * size[0] * size[1] > 16 and kernel == (1, 1):
        batch = 1
    layout = draw(st.sampled_from(("NCHW", "NHWC"))) if kernel == (1, 1) else "NCHW"
    chosen = draw(st.sampled_from(EXACT + SMOOTH))
    spec = ConvSpec(
        batch,
        inputs,
        outputs,
        size,
        kernel,
        stride,
        (1, 1),
        (0, 0),
        (0, 0),
        1,
        draw(st.sampled_from((FLOAT32, FLOAT64))),
        layout,
        draw(st.booleans()),
        draw(st.booleans()),
        Activation.parse(chosen) if isinstance(chosen, str) else chosen,
    )
    return Problem(spec, draw(st.integers(0, 2**16)))


@many
@given(few_pixels(), st.sampled_from(SHARES), st.integers(0, 9), st.sampled_from((1, 2, 5)))
def test_bits_of_the_plain_sum(problem: Problem, share: float, seed: int, threads: int) -> None:
    w = problem.arrays(False).w
    w = np.where(pruned(w.shape, share, seed) == 0, w.dtype.type(0), w)
    found, _ = run_planned(problem, w, "sparse", threads)
    expected, _ = run_planned(problem, w, "naive")
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("pixels", [1, 3, 7, 9])
def test_whole_numbers_and_bytes(dtype: str, pixels: int) -> None:
    """Many slices in several windows and chunks."""
    random = np.random.default_rng(0)
    w = random.integers(-3, 4, (1100, 300, 1, 1)).astype(dtype)
    w[random.random(w.shape) < random.random((1100, 1, 1, 1))] = 0  # rows of all lengths
    x = random.integers(-3, 4, (1, 300, 1, pixels)).astype(dtype)
    plan = lc.plan_conv2d(x.shape, w, algorithm="sparse", threads=2)
    assert "32 outputs of" in plan.parameters
    np.testing.assert_array_equal(plan(x), np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0]))
    assert plan.used_bytes == plan.memory_bytes


def test_infinite_numbers_meet_no_zeros() -> None:
    w, x = pruned((100, 200, 1, 1), 0.9), np.ones((3, 200, 1, 1), np.float32)
    x[1, 5], x[1, 7] = np.inf, np.nan
    y = lc.conv2d(x, w, algorithm="sparse")[..., 0, 0]
    finite = (w[:, 5, 0, 0] == 0) & (w[:, 7, 0, 0] == 0)
    assert np.isfinite(y[[0, 2]]).all()
    assert np.isfinite(y[1, finite]).all()
    assert not np.isfinite(y[1, ~finite]).any()


def test_a_plan_takes_new_weights_of_the_same_zeros_alone() -> None:
    w, x = pruned((70, 90, 1, 1), 0.9), np.ones((2, 90, 1, 1), np.float32)
    plan = lc.plan_conv2d(x.shape, w, algorithm="sparse")
    plan.repack(2 * w)
    expected = plan(x)
    np.testing.assert_array_equal(expected, lc.conv2d(x, 2 * w, algorithm="naive"))
    with pytest.raises(lc.InputError, match="zeros in other places"):
        plan.repack(pruned(w.shape, 0.9, seed=1))
    np.testing.assert_array_equal(plan(x), expected)


@pytest.mark.parametrize("share", [0.9, 1.0])
def test_kernels_of_small_maps_are_no_matrices(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their steps are not counted, as most kernels of so few taps slide."""
    monkeypatch.setattr(algorithm, "_refused", _OF_PLANES)
    w, x = pruned((40, 30, 2, 2), share), np.ones((1, 30, 2, 2), np.float32)
    for algorithm_name in ("sparse", None):
        found = lc.conv2d(x, w, algorithm=algorithm_name)
        np.testing.assert_allclose(found, lc.conv2d(x, w, algorithm="naive"), atol=1e-4)


def test_weights_may_be_any_view() -> None:
    w = pruned((90, 70), 0.8).T[:, ::-1, np.newaxis, np.newaxis]
    x = np.random.default_rng(1).standard_normal((2, 90, 1, 1)).astype("f4")
    found = lc.conv2d(x, w, algorithm="sparse")
    np.testing.assert_array_equal(found, lc.conv2d(x, w.copy(), algorithm="naive"))


def test_chosen_where_most_weights_are_0_and_never_below() -> None:
    for pixels, share, chosen in ((1, 0.95, True), (1, 0.3, False), (8, 0.3, False)):
        w = pruned((1000, 1280, 1, 1), share)
        plan = lc.plan_conv2d((pixels, 1280, 1, 1), w, threads=1)
        assert (plan.algorithm == "sparse") == chosen, f"{pixels} pixels, {share:.0%} zeros"


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("rows", [1, 31, 33, 530])
def test_slices_have_each_weight_once_in_order(span: int, rows: int) -> None:
    mask = np.random.default_rng(rows).random((rows, 200)) < 0.2
    found = Slices.of(mask[:512], span)
    assert found.counts.sum() == len(found.firsts)
    taken = np.zeros_like(mask[:512])
    step = 0
    for slice_rows, count in zip(found.rows, found.counts, strict=True):
        columns = found.columns[step : step + count]
        for lane, row in enumerate(slice_rows):
            own = columns[columns[:, lane] >= 0, lane]
            assert (np.diff(own) > 0).all()
            if row >= 0:
                taken[row, own] = True
            else:
                assert not len(own)
        step += count
    np.testing.assert_array_equal(taken, mask[:512])
    distance = (found.columns - found.firsts[:, np.newaxis])[found.columns >= 0]
    assert (distance >= 0).all()
    assert (distance < span).all()
    steps = count_steps(mask)[SPANS.index(span)]
    assert steps >= mask.sum() / ROWS
    assert steps == sum(len(Slices.of(mask[i : i + 512], span).firsts) for i in (0, 512))


def test_a_mask_that_is_drawn_takes_no_more_steps() -> None:
    """A tuner measures with such weights; there is room for the real ones."""
    w = np.zeros((64, 100, 1, 1), np.float32)
    w[:32, ::7] = 1  # rows alike wait for none
    zeros = zeros_of(w, sliced=True)
    assert zeros is not None
    mask = zeros.drawn_for_slices(w.shape, np.random.default_rng(0))
    assert all(a <= b for a, b in zip(count_steps(mask), zeros.steps, strict=True))
    calls = sliced_plan.weight_calls(w * mask, SPANS[0], zeros.steps[0], False)
    assert sum(call.bytes for call in calls["w"]) == zeros.steps[0] * ROWS * 4


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_every_target_has_code(name: str, dtype: str) -> None:
    target = PRESETS[name]
    ones, none = (1, 1), (0, 0)
    spec = ConvSpec(3, 70, 33, ones, ones, ones, ones, none, none, 1, dtype)
    zeros = zeros_of(pruned((33, 70, 1, 1), 0.9), sliced=True)
    problem: Planned = replace(conv_problem(spec, None), zeros=zeros)
    kernel, cycles = sliced_plan.planned(problem, target)
    assert isinstance(kernel, SlicedConv)
    assert cycles > 0
    text = kernel.text(target)
    assert ("masked.gather" in text) or "llvm.x86" in text
    assert len(compile_text(text, target)) > 0
