"""Reading images between their pixels, against NumPy in float64: every mode, format and place."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import leanconv as lc
from leanconv.graph.ops.sampling import MODES, PADDINGS
from leanconv.kernels import sampling
from leanconv.kernels.sampling import GridSample
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64
from support.forms import shared
from support.nodes import TARGETS, Case
from support.onnx_models import model

targets = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)


def check(
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    target: Target,
    dtype: str = FLOAT32,
    wide: float = 1.3,
    **attributes: object,
) -> None:
    random = np.random.default_rng(sum(shape))
    x = random.standard_normal(shape).astype(dtype)
    places = random.uniform(-wide, wide, (shape[0] * int(np.prod(sizes)), len(sizes)))
    grid = (np.round(places * 256) / 256).astype(dtype)  # the same cells in any precision
    case = Case(sampling, "GridSample", [x, grid], {**attributes, "sizes": sizes})
    wanted = case.expected(FLOAT64)
    tolerance = 5e-5 if dtype == FLOAT32 else 1e-12
    for blocked in (False, True):
        found = case.run(target, blocked)
        assert np.abs(found - wanted).max() <= tolerance * np.abs(x).max()


@pytest.mark.pairs
@targets
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("align", [False, True])
def test_modes(mode: str, padding: str, align: bool, target: Target) -> None:
    how = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check((2, 17, 8, 16), (5, 7), target, **how)
    check((1, 3, 1, 4), (2, 9), target, FLOAT64, 3.0, **how)
    if mode != "cubic" and target == TARGETS[0]:
        check((1, 4, 2, 4, 8), (2, 3, 4), target, **how)
        check((1, 5, 8), (23,), target, **how)


@targets
def test_numbers_of_places(target: Target) -> None:
    how = {"mode": "linear", "padding_mode": "zeros", "align_corners": False}
    for places in (1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 127, 128, 129, 300):
        check((2, 5, 4, 8), (1, places), target, **how)


def test_strange_places_read_nothing_beside_the_image() -> None:
    x = np.random.default_rng(1).standard_normal((1, 3, 4, 8)).astype("f4")
    strange = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9, 0.0]
    grid = np.array([(a, b) for a in strange for b in strange], np.float32)
    for mode in MODES:
        for padding in PADDINGS:
            how = {"mode": mode, "padding_mode": padding, "align_corners": False}
            case = Case(sampling, "GridSample", [x, grid], {**how, "sizes": (8, 8)})
            for blocked in (False, True):
                found = case.run(TARGETS[0], blocked)
                assert np.isfinite(found).all()
                if padding != "reflection":  # of places far away it depends on rounding
                    np.testing.assert_allclose(found, case.expected(), atol=1e-5)


def test_what_is_outside_is_not_read() -> None:
    """A NaN in the first cell is none where all cells are outside."""
    x = np.full((1, 1, 2, 2), np.nan, np.float32)
    how = {"mode": "linear", "padding_mode": "zeros", "align_corners": False, "sizes": (1, 20)}
    case = Case(sampling, "GridSample", [x, np.full((20, 2), 5, np.float32)], how)
    for blocked in (False, True):
        np.testing.assert_array_equal(case.run(TARGETS[0], blocked), 0)


def test_sizes_share_a_form() -> None:
    how = (FLOAT32, "linear", "zeros", False)
    sizes = [(2, 3, 1, (20, 30), 900), (4, 64, 1, (7, 9), 100)]
    assert shared(GridSample(*how, *size) for size in sizes)


@pytest.mark.parametrize(("channels", "reorders"), [(3, 0), (16, 1), (64, 1)])
def test_many_channels_are_read_in_blocks(channels: int, reorders: int) -> None:
    """Between planes, too: what is gathered takes longer than two reorders."""
    shapes = {"x": (1, channels, 80, 80), "grid": (1, 80, 80, 2)}
    nodes = [helper.make_node("GridSample", ["x", "grid"], ["y"], mode="linear")]
    net = lc.load(model(nodes, shapes, ["y"], opset=20))
    around = ["Reorder"] * reorders
    assert [step.op for step in net.plan.steps] == [*around, "GridSample", *around]
