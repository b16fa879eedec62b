"""No planning step is linear in an extent: lines of code are counted, not time.

Each extent is once 2^12 and once 2^20: choice, bytes and emission take hardly more lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import leanconv as lc
from leanconv.algorithms import ALGORITHMS, select
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.parameters import Choice
from leanconv.algorithms.problem import Problem
from leanconv.codegen.geometry import Access
from leanconv.spec import PLAIN, ConvSpec, Format
from leanconv.target import preset
from support.counted import check_growth, lines_of
from support.packing import packed_constants

SMALL, LARGE = 2**12, 2**20
TARGET = preset("znver4")

_BASE = ConvSpec(1, 8, 8, (16, 16), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
_DEPTHWISE = replace(_BASE, groups=8)


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    """What was computed for another test makes no size quicker."""
    _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("leanconv.algorithms"):
            for found in vars(module).values():
                getattr(found, "cache_clear", lambda: None)()


def _with(base: ConvSpec, axis: int, **values: int) -> ConvSpec:
    """A spec with other numbers along one axis; `size` may grow with them."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        numbers = list(getattr(base, name))
        numbers[axis] = value
        changed[name] = tuple(numbers)
    return replace(base, **changed)


_EXTENTS: dict[str, Callable[[ConvSpec, int], ConvSpec]] = {
    "batch": lambda b, n: replace(b, batch=n),
    "inputs": lambda b, n: replace(b, in_channels=n),
    "outputs": lambda b, n: replace(b, out_channels=n),
    "groups": lambda b, n: replace(b, in_channels=n, out_channels=n, groups=n),
    "wide groups": lambda b, n: replace(b, in_channels=4 * n, out_channels=4 * n, groups=n),
    "height": lambda b, n: _with(b, 0, size=n),
    "width": lambda b, n: _with(b, 1, size=n),
    "strided height": lambda b, n: _with(b, 0, size=n, stride=3),
    "strided width": lambda b, n: _with(b, 1, size=n, stride=2),
    "1x1 maps": lambda b, n: replace(b, batch=n, size=(3, 3), pad_begin=(0, 0), pad_end=(0, 0)),
    "pixels": lambda b, n: _with(
        replace(b, kernel=(1, 1), pad_begin=(0, 0), pad_end=(0, 0)), 0, size=n
    ),
    "stride": lambda b, n: _with(b, 0, size=3 * n, stride=n),
    "stride across": lambda b, n: _with(b, 1, size=3 * n, stride=n),
    "dilation": lambda b, n: _with(b, 0, size=4 * n, dilation=n),
    "dilation across": lambda b, n: _with(b, 1, size=4 * n, dilation=n),
    "padded dilation": lambda b, n: _with(b, 0, dilation=n, pad_begin=n, pad_end=n),
    "padded dilation across": lambda b, n: _with(b, 1, dilation=n, pad_begin=n, pad_end=n),
    "padding": lambda b, n: _with(b, 0, pad_begin=n, pad_end=n),
    "padding across": lambda b, n: _with(b, 1, pad_begin=n, pad_end=n),
    "kernel": lambda b, n: _with(b, 0, size=2 * n, kernel=n),
    "kernel across": lambda b, n: _with(b, 1, size=2 * n, kernel=n),
    "padded kernel": lambda b, n: _with(b, 0, kernel=n, pad_begin=n // 2, pad_end=n // 2),
    "padded kernel across": lambda b, n: _with(b, 1, kernel=n, pad_begin=n // 2, pad_end=n // 2),
}
_GROUPED = ("groups", "wide groups")


def _problem(spec: ConvSpec, form: Format) -> Problem:
    x, y = (Access.of_format(shape, form) for shape in (spec.input_shape, spec.output_shape))
    return Problem.of(spec, x, y)


def _plan(problem: Problem, name: str) -> None:
    """What comes before packing and compiling: the choice, all bytes, the code."""
    if name == "chosen":
        candidate = select.choose(problem, TARGET)
    else:
        algorithm = ALGORITHMS[name]
        if algorithm.reject(problem, TARGET) is not None:
            return
        algorithm.cost(problem, TARGET)
        candidate = algorithm.candidate(problem, TARGET)
    assert candidate.constant_bytes
    for use in candidate.kernels:
        assert use.kernel.chunks > 0
        use.kernel.emit(TARGET)


@pytest.mark.drawn
@pytest.mark.presets
@pytest.mark.parametrize("extent", _EXTENTS)
@pytest.mark.parametrize("name", ["chosen", *ALGORITHMS])
def test_planning_is_not_linear_in_an_extent(name: str, extent: str) -> None:
    blocked = name == "depthwise"
    base = _DEPTHWISE if blocked and extent not in _GROUPED else _BASE
    if blocked and extent in ("inputs", "outputs"):
        base = _BASE  # rejected, which must be as quick
    made = _EXTENTS[extent]
    form = Format(16) if blocked else PLAIN
    _plan(_problem(made(base, LARGE), form), name)  # makes matrices that all sizes share
    _forget()
    check_growth(lambda n: _plan(_problem(made(base, n), form), name), SMALL, LARGE)


@pytest.mark.presets
@pytest.mark.parametrize("extent", ["batch", "height", "width", "padding", "padding across"])
def test_planning_depthwise_planes_is_not_linear_in_an_extent(extent: str) -> None:
    made = _EXTENTS[extent]
    check_growth(lambda n: _plan(_problem(made(_DEPTHWISE, n), PLAIN), "planar"), SMALL, LARGE)


@pytest.mark.presets
def test_comparing_all_candidates_is_not_linear_in_the_height() -> None:
    def compare(n: int) -> None:
        spec = _EXTENTS["height"](_BASE, n)
        select.choices(_problem(spec, PLAIN), TARGET, lean=True)

    check_growth(compare, SMALL, LARGE)


@pytest.mark.presets
def test_packing_small_groups_is_not_linear_in_their_number() -> None:
    def pack(groups: int) -> None:
        spec = replace(_BASE, in_channels=groups, out_channels=groups, groups=groups)
        candidate = select.choose(_problem(spec, PLAIN), TARGET, Choice("direct"))
        (use,) = candidate.kernels
        assert isinstance(use.kernel, DirectConv)
        packed_constants(candidate, np.ones((groups, 1, 3, 3), np.float32))

    assert lines_of(lambda: pack(2**14)) < 3 * lines_of(lambda: pack(2**10)) + 4000


@pytest.mark.parametrize("line", ["g16ic16ih1iw90oc16kh1kw101pw50", "g16ic16ih9oc16kh3ph60"])
def test_depthwise_columns_compute_their_taps_where_many_differ(line: str) -> None:
    """Long kernels, and padding wider than the kernel: exact, as all numbers are small integers."""
    spec = ConvSpec.parse(line)
    draw = np.random.default_rng(2)
    x = draw.integers(-3, 4, (1, *spec.size, spec.in_channels)).astype(np.float32)
    w = draw.integers(-3, 4, spec.weight_shape).astype(np.float32)
    given = {"padding": spec.pad_begin, "groups": spec.groups}
    plans = [
        lc.plan_conv2d(x.shape, w, layout="NHWC", algorithm=name, **given)
        for name in ("depthwise", "naive")
    ]
    found, expected = (plan(x) for plan in plans)
    np.testing.assert_array_equal(found, expected)


def test_a_tall_image_is_convolved() -> None:
    """Rows at the ends, at the middle, and where chunks begin."""
    height = 2**17
    x = np.random.default_rng(0).integers(-3, 4, (1, 3, height, 8)).astype(np.float32)
    w = np.random.default_rng(1).integers(-3, 4, (4, 3, 3, 3)).astype(np.float32)
    y = lc.conv2d(x, w, padding=1)
    around = np.pad(x[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    rows = [0, 1, 2, 511, 512, 513, height // 2, height - 2, height - 1]
    for row in rows:
        windows = np.lib.stride_tricks.sliding_window_view(around[:, row : row + 3], (3, 3), (1, 2))
        expected = np.einsum("cowhk,nchk->now", windows, w)[:, 0]
        np.testing.assert_allclose(y[0, :, row], expected, atol=1e-3)
