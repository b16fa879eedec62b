"""Operations that say where something is: NonMaxSuppression, NonZero, Compress, ArgMax, TopK.

The first three have room for as many as may be found, and a second result says how many there are.
These lie at the beginning of the room, row by row as an array of that many: its bytes are the first
ones, and what is behind them is of any content. The last input of each may say how much of what it
looks at is there, where that has been found, too.

Non-maximum suppression is greedy, as ONNX and Faster R-CNN (Ren et al. 2015, section 3.3) have it:
for each image and class the box of the highest score is taken, boxes that overlap it by more than a
threshold are dropped, and so on. What overlaps is computed in the type of the boxes, as ONNX
Runtime does, so that the same boxes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import (
    Array,
    Arrays,
    Op,
    Types,
    array,
    checked,
    first,
    given,
    required,
    single,
)
from leanconv.symbolic import least
from leanconv.types import BOOL, DTYPES, FLOATS, INT64, NUMBERS

Charge = Callable[[int], None]
_BLOCK = 32  # candidates of a class of which all pairs are compared at once
_PAIRS = 1 << 17  # that are compared at once, of several classes
_TOP = 4  # candidates that are sorted first, for each box that may be kept
WRONG = -1  # what stands for how many are kept where the threshold is none


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
        """Return the candidates of each list that are kept, in the same order."""
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
        """Mark (groups, block) candidates that are boxes and overlap none of (groups, kept)."""
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
        """Mark pairs of a (groups, m) and b (groups, n) that overlap too much: (groups, m, n)."""
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


def box_extents(boxes: TensorType, scores: TensorType) -> tuple[int, ...]:
    """The extents of the scores: images, classes, boxes.

    Raises:
        ModelError: boxes and scores do not fit each other.
    """
    fits = len(boxes.shape) == len(scores.shape) == 3 and boxes.shape[2] == 4
    if not fits or boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
        raise ModelError(
            f"got boxes {boxes} and scores {scores}; expected (N, boxes, 4) and (N, classes, boxes)"
        )
    return scores.shape


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    boxes, scores = required(types, 0), required(types, 1)
    images, classes, count = box_extents(boxes, scores)
    if boxes.dtype != scores.dtype or boxes.dtype not in FLOATS:
        raise ModelError(
            f"got boxes {boxes} and scores {scores}; expected both of {' or '.join(FLOATS)}"
        )
    for index, dtype in ((2, INT64), (3, boxes.dtype), (4, boxes.dtype), (5, INT64)):
        kind = given(types, index)
        if kind is not None and (kind.elements != 1 or kind.dtype != dtype):
            raise ModelError(f"input {index} is {kind}; expected one number of {dtype}")
    rows = images * classes * least(count, attributes["most"])
    return checked((rows, 3), INT64), checked((1,), INT64)


def _evaluate(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    boxes, scores = array(arrays, 0), array(arrays, 1)
    most, overlap, limit = (given(arrays, index) for index in (2, 3, 4))
    images, classes, count = scores.shape
    asked = min(int(most.item()), attributes["most"])
    if (found := given(arrays, 5)) is not None:
        boxes, scores = boxes[:, : int(found[0])], scores[..., : int(found[0])]
    rows = np.zeros((images * classes * min(count, attributes["most"]), 3), np.int64)
    if not 0 <= overlap.item() <= 1:
        return rows, np.array([WRONG])
    least_score = None if limit is None else limit.item()
    found = kept_boxes(
        boxes, scores, asked, overlap.item(), least_score, attributes["centred"], lambda _: None
    )
    rows[: len(found)] = found
    return rows, np.array([len(found)])


def _places_type(x: TensorType, rows: bool = False) -> TensorType:
    """The room for the places of all elements: a column for each, or a row."""
    axes = max(1, len(x.shape))
    return checked((x.elements, axes) if rows else (axes, x.elements), INT64)


def _infer_places(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    return _places_type(required(types, 0), attributes["rows"]), checked((1,), INT64)


def _in_room(found: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """Return found elements at the start of a room, and their number along the axis."""
    room = np.zeros(shape, found.dtype)
    room.reshape(-1)[: found.size] = found.reshape(-1)
    return room, np.array([found.shape[axis]], np.int64)


def _evaluate_places(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    x = np.atleast_1d(array(arrays))
    seen = x
    if (found := given(arrays, 1)) is not None:
        axis = next((n for n, extent in enumerate(x.shape) if extent != 1), 0)
        seen = x[(slice(None),) * axis + (slice(int(found[0])),)]
    places = np.array(np.nonzero(seen), np.int64)
    if attributes["rows"]:
        return _in_room(np.ascontiguousarray(places.T), (x.size, x.ndim), 0)
    return _in_room(places, (x.ndim, x.size), 1)


def _infer_compress(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, flags, axis = required(types, 0), required(types, 1), attributes["axis"]
    if flags.dtype != BOOL:
        raise ModelError(f"input 1 is {flags}; expected a list of {BOOL}")
    if not 0 <= axis < len(x.shape):
        raise ModelError(f"attribute axis is {axis}; expected an axis of {x}")
    return x, checked((1,), INT64)


def _evaluate_compress(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    x, axis = array(arrays), attributes["axis"]
    found = given(arrays, 2)
    count = x.shape[axis] if found is None else min(x.shape[axis], int(found[0]))
    kept = np.flatnonzero(array(arrays, 1).reshape(-1)[:count])
    return _in_room(x.take(kept, axis), x.shape, axis)


def _infer_place(types: Types, attributes: Attributes) -> TensorType:
    x, axis = first(types), attributes["axis"]
    if not x.shape[axis]:
        raise ModelError(f"got {x}; expected an extent of at least 1 along axis {axis}")
    kept = (1,) if attributes["keepdims"] else ()
    return checked((*x.shape[:axis], *kept, *x.shape[axis + 1 :]), INT64)


def _place(least: bool) -> Op:
    """ArgMax, or ArgMin for `least`: of equal numbers the first, or the last."""

    def evaluate(arrays: Arrays, attributes: Attributes) -> Array:
        x, axis, keepdims = array(arrays), attributes["axis"], attributes["keepdims"]
        find = np.argmin if least else np.argmax
        if not attributes["last"]:
            return np.asarray(find(x, axis, keepdims=keepdims), np.int64)
        found = find(np.flip(x, axis), axis, keepdims=keepdims)
        return np.asarray(x.shape[axis] - 1 - found, np.int64)

    names = ("axis", "keepdims", "last")
    facts: dict[str, Any] = {"dtypes": NUMBERS, "halves": "rounded", "kernel": "arg_max"}
    signature = "x; gives int64; last: of equal numbers"
    return single(_infer_place, evaluate, signature, names, routes="reduced axis", **facts)


def _infer_top(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    x, axis, k = first(types), attributes["axis"], attributes["k"]
    if not 0 <= k <= x.shape[axis]:
        raise ModelError(
            f"k is {k}; expected 0 to {x.shape[axis]}, the extent of axis {axis} of {x}"
        )
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return checked(shape, x.dtype), checked(shape, INT64)


def _evaluate_top(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    """Sorted always; of equal numbers the one of the lower index comes first."""
    x, axis, k = array(arrays), attributes["axis"], attributes["k"]
    largest, count = attributes["largest"], x.shape[axis]
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if not k or k * _FEW > count or (x.dtype.kind == "f" and np.isnan(x).any()):
        places = np.take(_order(x, axis, largest), np.arange(k), axis)
        return np.take_along_axis(x, places, axis), places.astype(np.int64, copy=False)
    last = axis == x.ndim - 1
    lines = (x if last else np.moveaxis(x, axis, -1)).reshape(-1, count)
    found = np.array([_first_of_line(line, k, largest) for line in lines], np.int64)
    values = np.array([line[places] for line, places in zip(lines, found, strict=True)], x.dtype)
    if last:
        return values.reshape(shape), found.reshape(shape)
    ends = (*x.shape[:axis], *x.shape[axis + 1 :], k)
    values, found = (np.moveaxis(each.reshape(ends), -1, axis) for each in (values, found))
    return np.ascontiguousarray(values), np.ascontiguousarray(found)


_FEW = 16  # times as many numbers are partitioned before they are sorted


def _order(x: Array, axis: int, largest: bool) -> Array:
    if not largest:
        return np.argsort(x, axis, kind="stable")
    # The reverse of a stable order of the reverse.
    order = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return np.asarray(x.shape[axis] - 1 - order)


def _first_of_line(line: Array, k: int, largest: bool) -> Array:
    """The places of the first of a line, without sorting what comes after the last of them."""
    last = line.size - k if largest else k - 1
    limit = np.partition(line, last)[last]
    found = np.flatnonzero(line >= limit if largest else line <= limit)
    return np.asarray(found[_order(line[found], 0, largest)[:k]])


OPS: dict[str, Op] = {
    "NonZero": Op(
        _infer_places,
        _evaluate_places,
        "x, how much of it is there (1,)?; gives places as int64, and how many (1,)",
        ("rows",),
        dtypes=DTYPES,
        kernel="nonzero",
    ),
    "Compress": Op(
        _infer_compress,
        _evaluate_compress,
        "x, flags (bool), how many of these are there (1,)?; gives slices, and how many (1,)",
        ("axis",),
        dtypes=DTYPES,
        working=5,
        kernel="nonzero",
    ),
    "NonMaxSuppression": Op(
        _infer,
        _evaluate,
        "boxes (N, B, 4), scores (N, C, B), most of each class (1,), IoU (1,), score (1,)?, how "
        "many boxes are there (1,)?; gives image, class and box as int64, and how many (1,)",
        attributes=("most", "centred"),
        work=lambda types, _attributes, _results: 20 * required(types, 1).elements,
        dtypes=(*FLOATS, INT64),
        working=5,
        kernel="nms",
    ),
    "ArgMax": _place(least=False),
    "ArgMin": _place(least=True),
    "TopK": Op(
        _infer_top,
        _evaluate_top,
        "x; gives the values, and their places as int64",
        attributes=("axis", "k", "largest", "sorted"),
        work=lambda types, _attributes, _results: 20 * first(types).elements,
        dtypes=NUMBERS,
        working=0,
        places=3,
        routes="along axis",
        kernel="top_k",
    ),
}
