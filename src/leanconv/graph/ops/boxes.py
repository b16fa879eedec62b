"""NonMaxSuppression with room for as many boxes as may be kept."""

from __future__ import annotations

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.nms import kept_boxes
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, checked, given, required
from leanconv.symbolic import least
from leanconv.types import FLOATS, INT64

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
    for index, dtype in ((2, INT64), (3, boxes.dtype), (4, boxes.dtype)):
        kind = given(types, index)
        if kind is not None and (kind.elements != 1 or kind.dtype != dtype):
            raise ModelError(f"input {index} is {kind}; expected one number of {dtype}")
    images, classes, count = scores.shape
    rows = images * classes * least(count, attributes["most"])
    return checked((rows, 3), INT64), checked((1,), INT64)


def _evaluate(arrays: Arrays, attributes: Attributes) -> tuple[Array, ...]:
    boxes, scores = array(arrays, 0), array(arrays, 1)
    most, overlap, limit = (given(arrays, index) for index in (2, 3, 4))
    asked = min(int(most.item()), attributes["most"])
    images, classes, count = scores.shape
    rows = np.zeros((images * classes * min(count, attributes["most"]), 3), np.int64)
    if not 0 <= overlap.item() <= 1:
        return rows, np.array([WRONG])
    least_score = None if limit is None else limit.item()
    found = kept_boxes(
        boxes, scores, asked, overlap.item(), least_score, attributes["centred"], lambda _: None
    )
    rows[: len(found)] = found
    return rows, np.array([len(found)])


OPS: dict[str, Op] = {
    "NonMaxSuppression": Op(
        _infer,
        _evaluate,
        least=4,
        most=5,
        attributes=("most", "centred"),
        work=lambda types, _attributes, _results: 20 * required(types, 1).elements,
        dtypes=(*FLOATS, INT64),
    )
}
