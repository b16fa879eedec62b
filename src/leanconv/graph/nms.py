"""Non-maximum suppression: of boxes that overlap much, the one of the highest score is kept.

Greedy, as ONNX and Faster R-CNN (Ren et al. 2015, section 3.3) have it: for each image and class
the box of the highest score is taken, boxes that overlap it by more than a threshold are dropped,
and so on. What overlaps is computed in the type of the boxes, as ONNX Runtime does, so that the
same boxes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_BLOCK = 256  # boxes of which all pairs are compared at once


def kept_boxes(
    boxes: Array,
    scores: Array,
    most: int,
    overlap: float,
    least: float | None,
    centred: bool,
    charge: Callable[[int], None],
) -> npt.NDArray[np.int64]:
    """The boxes that are kept.

    Args:
        boxes: (N, boxes, 4): two opposite corners (y, x, y, x), or centres (x, y, width, height).
        scores: (N, classes, boxes).
        most: boxes that are kept of each class of an image.
        overlap: the intersection over union above which a box is dropped.
        least: the score that a box must exceed; None for boxes of any score.
        centred: whether boxes are given by their centres.
        charge: is told of bytes that are about to be read.

    Returns:
        (kept, 3): image, class and box, by image, class and falling score.
    """
    found = [np.zeros((0, 3), np.int64)]
    if most <= 0 or not boxes.shape[1]:
        return found[0]
    limit = None if least is None else scores.dtype.type(least)
    threshold = boxes.dtype.type(overlap)
    with np.errstate(all="ignore"):
        for image in range(scores.shape[0]):
            sides = _sides(boxes[image], centred)
            for kind, candidates in _candidates(scores[image], limit):
                places = _greedy(sides, candidates, min(most, candidates.size), threshold, charge)
                rows = np.empty((places.size, 3), np.int64)
                rows[:, 0], rows[:, 1], rows[:, 2] = image, kind, places
                found.append(rows)
    return np.concatenate(found)


def _candidates(scores: Array, limit: np.generic | None) -> Iterator[tuple[int, Array]]:
    """Of each class the boxes of a sufficient score, the highest first; (classes, boxes) go in."""
    if limit is None:
        for kind, row in enumerate(scores):
            yield kind, _by_score(row, np.arange(row.size))
        return
    kinds, places = np.nonzero(scores > limit)
    starts = np.searchsorted(kinds, np.arange(scores.shape[0] + 1))
    for kind in np.flatnonzero(np.diff(starts)).tolist():
        held = places[starts[kind] : starts[kind + 1]]
        yield kind, _by_score(scores[kind, held], held)


def _by_score(scores: Array, places: Array) -> Array:
    """Places by falling score; of equal ones the first comes first."""
    return places[np.argsort(-scores, kind="stable")]


def _sides(boxes: Array, centred: bool) -> Array:
    """Left, right, top, bottom and area of boxes: (boxes, 4) becomes (5, boxes)."""
    a, b, c, d = boxes.T
    if centred:
        half_width, half_height = c / 2, d / 2
        left, right, top, bottom = a - half_width, a + half_width, b - half_height, b + half_height
    else:
        left, right = np.minimum(b, d), np.maximum(b, d)
        top, bottom = np.minimum(a, c), np.maximum(a, c)
    return np.stack([left, right, top, bottom, (right - left) * (bottom - top)])


def _greedy(
    sides: Array, places: Array, most: int, threshold: np.generic, charge: Callable[[int], None]
) -> Array:
    """The places that are kept, of `places` in falling order of score.

    Blocks of candidates, in order: those that overlap a box that was kept before are dropped, then
    the pairs within the block decide.
    """
    kept = np.empty(0, np.int64)
    for start in range(0, places.size, _BLOCK):
        block = places[start : start + _BLOCK]
        charge(40 * block.size * (kept.size + block.size))
        ours = sides[:, block]
        if kept.size:
            free = ~_overlapping(sides[:, kept], ours, threshold).any(0)
            block, ours = block[free], ours[:, free]
        drops = _overlapping(ours, ours, threshold)
        alive = np.ones(block.size, bool)
        taken = []
        for number in range(block.size):
            if alive[number]:
                taken.append(number)
                alive &= ~drops[number]
        kept = np.concatenate([kept, block[taken]])
        if kept.size >= most:
            break
    return kept[:most]


def _overlapping(a: Array, b: Array, threshold: np.generic) -> npt.NDArray[np.bool_]:
    """Which boxes of b (5, n) overlap which of a (5, m) by more than the threshold: (m, n)."""
    a = a[:, :, None]
    width = np.minimum(a[1], b[1]) - np.maximum(a[0], b[0])
    height = np.minimum(a[3], b[3]) - np.maximum(a[2], b[2])
    shared = width * height
    union = a[4] + b[4] - shared
    real = (width > 0) & (height > 0) & (shared > 0) & (a[4] > 0) & (b[4] > 0) & (union > 0)
    return np.asarray(real & (shared / union > threshold))
