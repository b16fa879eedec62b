"""NonMaxSuppression, exactly as the reference gives it: ties, NaN, both forms, all sizes."""

from __future__ import annotations

import numpy as np
import pytest

from leanconv.kernels import nms
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOATS, DType
from support.nodes import TARGETS as ALL
from support.nodes import Case

TARGETS = pytest.mark.parametrize("target", ALL[:2], ids=lambda t: t.name)


def operands(
    images: int, classes: int, count: int, dtype: DType, spread: float = 2.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes by two corners in any order, some without area; some scores are equal."""
    r = np.random.default_rng(seed)
    corners = r.random((images, count, 2)) * spread
    boxes = np.concatenate((corners, corners + r.random((images, count, 2)) - 0.2), 2)
    boxes[:, ::7, 2] = boxes[:, ::7, 0]
    scores = r.integers(0, 60, (images, classes, count)) / 60
    return boxes.astype(dtype), scores.astype(dtype)


def check(
    boxes: np.ndarray,
    scores: np.ndarray,
    most: int,
    overlap: float,
    limit: float | None,
    target: Target,
    centred: bool = False,
) -> None:
    dtype, room = boxes.dtype, max(1, min(most, boxes.shape[1]))
    arrays = [boxes, scores, np.array([most]), np.array([overlap], dtype)]
    if limit is not None:
        arrays.append(np.array([limit], dtype))
    case = Case(nms, "NonMaxSuppression", arrays, {"most": room, "centred": centred})
    (rows, count), (wanted, expected) = case.run_all(target), case.expected_all()
    np.testing.assert_array_equal(count, expected)
    found = max(0, int(count[0]))
    np.testing.assert_array_equal(rows[:found], wanted[:found])


@pytest.mark.drawn
@TARGETS
@pytest.mark.parametrize("count", [1, 3, 15, 16, 17, 33, 192, 193, 700])
def test_sizes(count: int, target: Target) -> None:
    for images, classes, most in ((1, 1, 5), (2, 3, 1000), (1, 4, 40)):
        boxes, scores = operands(images, classes, count, FLOAT32, seed=count)
        for limit in (None, 0.3, 0.9):
            check(boxes, scores, most, 0.4, limit, target)


@TARGETS
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("centred", [False, True])
def test_types_and_forms(dtype: DType, centred: bool, target: Target) -> None:
    for spread in (0.2, 1.0, 20.0):
        boxes, scores = operands(2, 3, 250, dtype, spread)
        for overlap in (0.0, 0.3, 1.0):
            check(boxes, scores, 90, overlap, 0.2, target, centred)


@TARGETS
def test_numbers_that_are_none(target: Target) -> None:
    boxes, scores = operands(2, 2, 300, FLOAT32)
    boxes[0, ::5], boxes[0, 1::5, 2], boxes[0, 2::9, 3] = np.nan, np.inf, -np.inf
    scores[0, :, ::4], scores[1, :, 1::4], scores[1, :, 3::5] = np.nan, -np.inf, np.inf
    scores[1, 0, ::7], scores[1, 1, ::6] = -0.0, 1e-40
    for limit in (None, 0.0, -np.inf, np.inf, np.nan):
        check(boxes, scores, 400, 0.3, limit, target)
    for most, overlap in ((0, 0.5), (-3, 0.5), (5, -0.1), (5, 1.1), (5, np.nan)):
        check(boxes, scores, most, overlap, 0.1, target)


def test_another_machine() -> None:
    """Vectors of NEON, in an emulator where it is needed."""
    for dtype in FLOATS:
        for count in (3, 17, 200):
            boxes, scores = operands(1, 2, count, dtype, seed=count)
            check(boxes, scores, 9, 0.4, 0.3, ALL[-1])
