"""Non-maximum suppression: of boxes that overlap much, the one of the highest score is kept.

Greedy, as ONNX and Faster R-CNN (Ren et al. 2015, section 3.3) have it: for each image and class
the box of the highest score is taken, boxes that overlap it by more than a threshold are dropped,
and so on. What overlaps is computed in the type of the boxes, as ONNX Runtime does, so that the
same boxes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Charge = Callable[[int], None]
_BLOCK = 32  # candidates of a class of which all pairs are compared at once
_PAIRS = 1 << 17  # that are compared at once, of several classes
_TOP = 4  # candidates that are sorted first, for each box that may be kept


def kept_boxes(
    boxes: Array,
    scores: Array,
    most: int,
    overlap: float,
    least: float | None,
    centred: bool,
    charge: Charge,
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
    most = min(most, boxes.shape[1])
    if most <= 0:
        return found[0]
    limit = None if least is None else scores.dtype.type(least)
    with np.errstate(all="ignore"):
        for image in range(scores.shape[0]):
            greedy = _Greedy(_sides(boxes[image], centred), most, overlap, charge)
            kinds, lists = _candidates(scores[image], limit, _TOP * most)
            together = max(1, _PAIRS // _BLOCK**2)
            kept = [
                each
                for start in range(0, len(lists), together)
                for each in greedy.kept(lists[start : start + together])
            ]
            for number, (kind, places) in enumerate(zip(kinds, lists, strict=True)):
                if kept[number].size < most and places.size >= _TOP * most:  # there are more
                    everything = _by_score(scores[image, kind], limit)
                    (kept[number],) = greedy.kept([everything])
            sizes = [each.size for each in kept]
            rows = np.empty((sum(sizes), 3), np.int64)
            rows[:, 0], rows[:, 1] = image, np.repeat(np.array(kinds, np.int64), sizes)
            rows[:, 2] = np.concatenate([found[0][:, 0], *kept])
            found.append(rows)
    return np.concatenate(found)


def _candidates(scores: Array, limit: np.generic | None, top: int) -> tuple[list[int], list[Array]]:
    """The classes with boxes of a sufficient score, and these, the highest first.

    Args:
        scores: (classes, boxes).
        limit: that they exceed; None for all.
        top: of more boxes than this at least so many of the highest scores are enough.
    """
    if limit is None or scores.shape[1] > 4 * top:
        every = [_by_score(row, limit, top) for row in scores]
        return list(range(len(every))), every
    kinds, places = np.nonzero(scores > limit)
    order = np.lexsort((-scores[kinds, places], kinds))
    starts = np.searchsorted(kinds, np.arange(scores.shape[0] + 1))
    filled = np.flatnonzero(np.diff(starts)).tolist()
    ordered = places[order]
    return filled, [ordered[starts[kind] : starts[kind + 1]] for kind in filled]


def _by_score(scores: Array, limit: np.generic | None, top: int = 0) -> Array:
    """Places by falling score; of equal ones the first comes first."""
    places = np.arange(scores.size) if limit is None else np.flatnonzero(scores > limit)
    held = scores[places]
    if 0 < top < places.size:
        least = np.partition(held, places.size - top)[places.size - top]
        enough = np.flatnonzero(held >= least)
        if enough.size >= top:  # else some are no numbers
            places, held = places[enough], held[enough]
    return places[np.argsort(-held, kind="stable")]


def _sides(boxes: Array, centred: bool) -> Array:
    """Left, right, top, bottom and area of boxes, with one of zeros behind: (5, boxes + 1)."""
    a, b, c, d = boxes.T
    if centred:
        half_width, half_height = c / 2, d / 2
        left, right, top, bottom = a - half_width, a + half_width, b - half_height, b + half_height
    else:
        left, right = np.minimum(b, d), np.maximum(b, d)
        top, bottom = np.minimum(a, c), np.maximum(a, c)
    sides = np.zeros((5, len(boxes) + 1), boxes.dtype)
    sides[:, :-1] = left, right, top, bottom, (right - left) * (bottom - top)
    return sides


class _Greedy:
    """Keeps boxes of several classes of an image at once.

    Blocks of candidates, in falling order of score: those that overlap a box that was kept before
    are dropped, then the pairs within the block decide.

    Args:
        sides: (5, boxes + 1).
        most: boxes of a class that are kept.
        overlap: the threshold.
        charge: is told of bytes that are about to be read.
    """

    def __init__(self, sides: Array, most: int, overlap: float, charge: Charge) -> None:
        self._sides, self._areas, self._most, self._charge = sides[:4], sides[4], most, charge
        self._threshold = sides.dtype.type(overlap)

    def kept(self, lists: Sequence[Array]) -> list[Array]:
        """Of each list of candidates those that are kept, in the same order."""
        groups, longest = len(lists), max((each.size for each in lists), default=0)
        none = self._sides.shape[1] - 1
        kept = np.full((groups, min(self._most, longest) + _BLOCK), none, np.int64)
        counts = np.zeros(groups, np.int64)
        for start in range(0, longest, _BLOCK):
            active = [
                g for g, each in enumerate(lists) if each.size > start and counts[g] < self._most
            ]
            if not active:
                break
            block = min(_BLOCK, longest - start)
            ours = np.full((len(active), block), none, np.int64)
            for row, g in enumerate(active):
                part = lists[g][start : start + block]
                ours[row, : part.size] = part
            alive = self._free(kept[active, : counts[active].max()], ours)
            self._decide(ours, alive)
            rows, columns = np.nonzero(alive)
            numbers = np.cumsum(alive, axis=1)[rows, columns] - 1
            which = np.array(active)[rows]
            kept[which, np.minimum(counts[which] + numbers, kept.shape[1] - 1)] = ours[
                rows, columns
            ]
            counts[active] = np.minimum(counts[active] + alive.sum(axis=1), self._most)
        return [kept[g, : counts[g]] for g in range(groups)]

    def _free(self, kept: Array, ours: Array) -> Array:
        """Which of (groups, block) candidates are boxes that none of (groups, kept) overlaps."""
        alive = ours != self._sides.shape[1] - 1
        step = max(1, _PAIRS // max(1, ours.size))
        for start in range(0, kept.shape[1], step):
            alive &= ~self._overlapping(kept[:, start : start + step], ours).any(axis=1)
        return np.asarray(alive)

    def _decide(self, ours: Array, alive: Array) -> None:
        """Drop from (groups, block) candidates those that overlap one before them, in `alive`."""
        drops = self._overlapping(ours, ours)
        if not drops.any():
            return
        for number in np.flatnonzero(drops.any(axis=(0, 2))).tolist():
            taken = alive[:, number, None]
            alive[:, number + 1 :] &= ~(drops[:, number, number + 1 :] & taken)

    def _overlapping(self, a: Array, b: Array) -> Array:
        """Which of b (groups, n) each of a (groups, m) overlaps too much: (groups, m, n)."""
        self._charge(40 * a.size * b.shape[1])
        first = [side[a][:, :, None] for side in self._sides]
        second = [side[b][:, None] for side in self._sides]
        width = np.minimum(first[1], second[1])
        width -= np.maximum(first[0], second[0])
        height = np.minimum(first[3], second[3])
        height -= np.maximum(first[2], second[2])
        result: Array = np.minimum(width, height) > 0
        flat = np.flatnonzero(result)  # few: most boxes are far from each other
        if flat.size:
            rows, n = np.divmod(flat, b.shape[1])
            group, m = np.divmod(rows, a.shape[1])
            shared = width.reshape(-1)[flat] * height.reshape(-1)[flat]
            areas = self._areas[a[group, m]], self._areas[b[group, n]]
            union = areas[0] + areas[1] - shared
            real = (shared > 0) & (areas[0] > 0) & (areas[1] > 0) & (union > 0)
            result.reshape(-1)[flat] = real & (shared / union > self._threshold)
        return result
