"""Convolution that leaves out zeros: the bits of the plain sum, whatever is 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import leanconv as lc
from leanconv.algorithms.magnitudes import stand_in
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.select import choose
from leanconv.algorithms.sparse.kernel import SparseConv
from leanconv.errors import SpecError
from leanconv.graph.zeros import Zeros, zeros_of
from leanconv.records import replace
from leanconv.spec import ConvSpec
from leanconv.target import preset
from leanconv.types import FLOAT32, FLOAT64
from support.listing import assembly, multiply_loops
from support.paged import Paged
from support.problems import EXACT, SMOOTH, Problem, problems, run_planned
from support.small_kernels import problem as problem_of

pytestmark = pytest.mark.vectors

SHARES = (0.0, 0.01, 0.5, 0.9, 0.99, 1.0)
few = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def pruned(w: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Weights of which a share is 0, with an empty output and an empty input channel.

    Where there are whole blocks of four outputs, these are 0 together for every second seed.
    """
    random = np.random.default_rng(seed)
    drawn = random.random(w.shape)
    if seed % 2 and len(w) % 4 == 0:
        drawn = np.repeat(drawn[::4], 4, axis=0)
    w = np.where(drawn < share, w.dtype.type(0), w)
    if share >= 0.5:
        w[seed % len(w)] = 0
        w[:, seed % w.shape[1]] = 0
    return w


@few
@given(
    problems(EXACT + SMOOTH, (FLOAT32, FLOAT64)),
    st.sampled_from(SHARES),
    st.integers(0, 99),
    st.sampled_from((1, 2, 5)),
)
def test_bits_of_the_plain_sum(problem: Problem, share: float, seed: int, threads: int) -> None:
    w = pruned(problem.arrays(False).w, share, seed)
    try:
        found, _ = run_planned(problem, w, "sparse", threads)
    except SpecError:
        return  # channels last, a stride above 4
    expected, _ = run_planned(problem, w, "naive")
    assert np.array_equal(found, expected, equal_nan=True)


def layer(zeros: float, seed: int = 0, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """An input of whole numbers, and weights with zeros."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, (2, 96, 14, 14)).astype(np.float32)
    w = rng.integers(1, 4, (64, 96, k, k)).astype(np.float32)
    return x, pruned(w, zeros, seed)


def test_chosen_where_most_weights_are_0() -> None:
    x, dense = layer(0.0, k=1)
    _, sparse = layer(0.95, k=1)
    assert lc.plan_conv2d(x.shape, dense).algorithm != "sparse"
    plan = lc.plan_conv2d(x.shape, sparse)
    assert plan.algorithm == "sparse"
    np.testing.assert_array_equal(plan(x), np.einsum("nchw,kc->nkhw", x, sparse[:, :, 0, 0]))
    assert plan.weight_bytes < 0.6 * lc.plan_conv2d(x.shape, dense).weight_bytes


@pytest.mark.parametrize(
    ("zeros", "sides", "k", "said"),
    [
        (0.1, 28, 1, "fewer than 30% of the weights are 0"),
        (0.4, 28, 1, "% of the weights are 0; at least 50%, or 35% where 4 neighbouring outputs"),
        (0.95, 4, 3, "4 pixels; at least 8 where kernels slide"),
    ],
)
def test_it_says_why_it_is_not_taken(zeros: float, sides: int, k: int, said: str) -> None:
    _, w = layer(zeros, k=k)
    plan = lc.plan_conv2d((1, 96, sides, sides), w, threads=1)
    (line,) = (line for line in plan.explain().splitlines() if line.startswith("  sparse"))
    assert said in line


def test_a_plan_takes_new_weights_of_the_same_zeros_alone() -> None:
    x, w = layer(0.9)
    plan = lc.plan_conv2d(x.shape, w, algorithm="sparse", padding=1)
    plan.repack(2 * w)
    expected = plan(x)
    np.testing.assert_array_equal(expected, lc.conv2d(x, 2 * w, algorithm="naive", padding=1))
    other = w.copy()
    other[np.nonzero(w == 0)[0][0], np.nonzero(w == 0)[1][0]] = 1
    with pytest.raises(lc.InputError, match="zeros in other places"):
        plan.repack(other)
    np.testing.assert_array_equal(plan(x), expected)


def test_calls_follow_weights_that_change_in_place() -> None:
    x, w = layer(0.95, k=1)
    for share in (0.95, 0.5, 0.0, 0.97):
        w[...] = layer(share, seed=int(100 * share), k=1)[1]
        wanted = np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])
        np.testing.assert_array_equal(lc.conv2d(x, w), wanted)


@pytest.mark.parametrize("k", [1, 3])
def test_one_layer_of_many_sizes(k: int) -> None:
    """The second size has kernels for all that follow; all pack one stream."""
    _, w = layer(0.95, k=k)
    rng = np.random.default_rng(1)
    for shape in ((1, 96, 20, 31), (1, 96, 9, 7), (3, 96, 1, 1), (2, 96, 40, 33), (1, 96, 5, 64)):
        x = rng.integers(-3, 4, shape).astype(np.float32)
        wanted = lc.conv2d(x, w, algorithm="naive", padding=k // 2)
        np.testing.assert_array_equal(lc.conv2d(x, w, padding=k // 2), wanted)


def test_infinite_numbers_meet_no_zeros() -> None:
    x, w = layer(0.9, k=1)
    x[0, 5, 3, 3] = np.inf
    y = lc.conv2d(x, w, algorithm="sparse")
    finite = w[:, 5, 0, 0] == 0
    assert np.isfinite(y[0, finite]).all()
    assert not np.isfinite(y[0, ~finite, 3, 3]).any()


@pytest.mark.parametrize("share", [0.5, 0.97])
@pytest.mark.parametrize("size", [(14, 32), (28, 32), (25, 25), (13, 47), (1, 500)])
@pytest.mark.parametrize("at_end", [False, True])
def test_tiles_that_are_read_in_place_end_with_their_plane(
    size: tuple[int, int], at_end: bool, share: float
) -> None:
    rng = np.random.default_rng(size[1])
    x = rng.integers(-3, 4, (2, 24, *size)).astype(np.float32)
    w = pruned(rng.integers(1, 4, (12, 12, 1, 1)).astype(np.float32), share, size[1])
    wanted = lc.conv2d(x, w, groups=2, algorithm="naive")
    beside = Paged(x, at_end).array
    found = lc.conv2d(beside, w, groups=2, algorithm="sparse")
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["haswell", "znver5", "neoverse-n1"])
@pytest.mark.parametrize("text", ["ic64ih28oc64oh28kh1", "ic64ih28oc64oh28kh3ph1"])
@pytest.mark.parametrize("together", [1, 4])
def test_sums_stay_in_registers(name: str, text: str, together: int) -> None:
    target, count = preset(name), np.prod(ConvSpec.parse(text).weight_shape) // 10
    zeros = Zeros(count, count // together, "")
    known = replace(problem_of(text, target, False), zeros=zeros)
    kernel = choose(known, target, Choice("sparse")).kernels[0].kernel
    assert isinstance(kernel, SparseConv)
    assert kernel.together == together
    loops = [loop for loop in multiply_loops(assembly(kernel, target)) if loop.fmas]
    assert kernel.together * kernel.strip.vectors in {loop.fmas for loop in loops}
    for loop in loops:
        assert not loop.vector_spills


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 1, 1), (1, 3, 1, 1), (8, 8, 3, 3)])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_what_stands_for_weights_has_their_zeros(shape: tuple[int, ...], share: float) -> None:
    """A single weight, whose array has no step of 0, stood for one that is 0."""
    w = np.where(np.arange(np.prod(shape)).reshape(shape) < share * np.prod(shape), 0, -1)
    w = w.astype(np.float32)
    assert zeros_of(stand_in(w, 1000)) == zeros_of(w)
