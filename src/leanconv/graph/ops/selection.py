"""NonMaxSuppression, NonZero and Compress, with room for as many as may be found.

A second result says how many there are. These lie at the beginning of the room, row by row as an
array of that many: its bytes are the first ones, and what is behind them is of any content. The
last input of each may say how much of what it looks at is there, where that has been found, too.
"""

from __future__ import annotations

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.nms import kept_boxes
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, given, required
from leanconv.symbolic import least
from leanconv.types import BOOL, DTYPES, FLOATS, INT64

WRONG = -1  # what stands for how many are kept where the threshold is none


def _infer(types: Types, attributes: Attributes) -> tuple[TensorType, ...]:
    boxes, scores = required(types, 0), required(types, 1)
    fits = len(boxes.shape) == len(scores.shape) == 3 and boxes.shape[2] == 4
    if not fits or boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
        raise ModelError(
            f"got boxes {boxes} and scores {scores}; expected (N, boxes, 4) and (N, classes, boxes)"
        )
    if boxes.dtype != scores.dtype or boxes.dtype not in FLOATS:
        raise ModelError(
            f"got boxes {boxes} and scores {scores}; expected both of {' or '.join(FLOATS)}"
        )
    for index, dtype in ((2, INT64), (3, boxes.dtype), (4, boxes.dtype), (5, INT64)):
        kind = given(types, index)
        if kind is not None and (kind.elements != 1 or kind.dtype != dtype):
            raise ModelError(f"input {index} is {kind}; expected one number of {dtype}")
    images, classes, count = scores.shape
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
    """What is found at the beginning of a room, and how many there are along the axis."""
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


OPS: dict[str, Op] = {
    "NonZero": Op(_infer_places, _evaluate_places, 1, 2, ("rows",), dtypes=DTYPES),
    "Compress": Op(_infer_compress, _evaluate_compress, 2, 3, ("axis",), dtypes=DTYPES),
    "NonMaxSuppression": Op(
        _infer,
        _evaluate,
        least=4,
        most=6,
        attributes=("most", "centred"),
        work=lambda types, _attributes, _results: 20 * required(types, 1).elements,
        dtypes=(*FLOATS, INT64),
    ),
}
