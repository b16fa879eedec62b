"""Operations whose extents follow from values: how many elements are kept, found or different."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.builder import NeedsValuesError, Value
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ir import TensorType
from leanconv.graph.nms import kept_boxes
from leanconv.graph.ops.base import Array, check_rank, checked
from leanconv.types import BOOL, INT64


def _known(call: Call, index: int) -> Array:
    """The elements of an input on which the extents of the results depend.

    Raises:
        NeedsValuesError: they are known when the network runs.
    """
    if call.value(index).array is None:
        raise NeedsValuesError(
            "how many elements it gives depends on the network's inputs, which is not supported "
            "here; expected an operation whose extents follow from shapes"
        )
    return call.constant(index)


Convert = Callable[[Call], list[Value]]


def _bounded(convert: Convert, largest: Callable[[Call], list[TensorType]]) -> Convert:
    """The conversion; where bounds are wanted, results as large as they may be."""

    def converted(call: Call) -> list[Value]:
        known = all(call.value(n).array is not None for n in range(len(call)) if call.optional(n))
        if known or not call.builder.bounds:
            return convert(call)
        return [call.builder.unknown(kind) for kind in largest(call)]

    return converted


def _found(call: Call, arrays: list[Array], charged: int) -> list[Value]:
    """Results whose extents have been found."""
    call.builder.budget.charge(charged + sum(array.nbytes for array in arrays))
    call.builder.budget.made(arrays)
    return [call.builder.constant(array) for array in arrays]


def _nonzero(call: Call) -> list[Value]:
    """The places of elements that are not 0, one column for each, in the order of the elements."""
    x = _known(call, 0)
    call.builder.budget.expect(8 * max(1, x.ndim) * int(np.count_nonzero(x)))
    places = np.array(np.nonzero(np.atleast_1d(x)), INT64)
    return _found(call, [places], x.nbytes)


def _compress(call: Call) -> list[Value]:
    """The slices of an axis whose flag is set; those past the last flag are left out."""
    flags, x = _known(call, 1), call.value(0)
    axis = call.attribute("axis", None)
    if flags.dtype != np.bool_ or flags.ndim != 1:
        raise ModelError(f"input 1 is {call.value(1).type}; expected a list of {BOOL}")
    extents = x.shape if axis is not None else (x.type.elements,)
    axis = call.axis(axis, len(extents)) if axis is not None else 0
    kept = np.flatnonzero(flags)
    if kept.size and kept[-1] >= extents[axis]:
        raise ModelError(
            f"flag {kept[-1]} is set of an axis of extent {extents[axis]}; expected one flag for "
            "each element at most"
        )
    flat = x if x.shape == extents else call.reshape(x, extents)
    if flat.array is not None:
        array = flat.array
        shape = (*extents[:axis], kept.size, *extents[axis + 1 :])
        return [call.fold(lambda: array.take(kept, axis), shape, x.type.dtype)]
    raise NeedsValuesError("input 0 depends on the network's inputs; expected a constant")


def _unique(call: Call) -> list[Value]:
    """Different elements or slices; where each is first, which each is, how often each is."""
    x = _known(call, 0)
    axis = call.attribute("axis", None)
    axis = None if axis is None else call.axis(axis, x.ndim)
    call.builder.budget.expect(4 * (x.nbytes + 8 * x.size))
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not call.flag("sorted", 1):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        inverse = place[inverse]
    found = [values, *(each.astype(INT64) for each in (first, inverse, counts))]
    return _found(call, found, 20 * x.nbytes)


def _boxes(call: Call) -> list[Value]:
    """NonMaxSuppression: (batch, class, box) of each box that is kept."""
    boxes, scores = _known(call, 0), _known(call, 1)
    limits = [call.scalar(n) if call.optional(n) is not None else None for n in (2, 3, 4)]
    most, overlap, least = limits
    fits = boxes.ndim == scores.ndim == 3 and boxes.shape[2] == 4
    if not fits or boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
        raise ModelError(
            f"got boxes {call.value(0).type} and scores {call.value(1).type}; expected (N, boxes, "
            "4) and (N, classes, boxes)"
        )
    if overlap is not None and not 0 <= overlap <= 1:
        raise ModelError(f"iou_threshold is {overlap}; expected 0 to 1")
    centred = call.flag("center_point_box")
    charge = call.builder.budget.charge
    kept = kept_boxes(boxes, scores, most or 0, overlap or 0.0, least, centred, charge)
    return _found(call, [kept], boxes.nbytes + scores.nbytes)


def _most_places(call: Call) -> list[TensorType]:
    kind = call.value().type
    return [checked((max(1, len(kind.shape)), kind.elements), INT64)]


def _most_slices(call: Call) -> list[TensorType]:
    kind, axis = call.value().type, call.attribute("axis", None)
    return [kind if axis is not None else checked((kind.elements,), kind.dtype)]


def _most_different(call: Call) -> list[TensorType]:
    kind, axis = call.value().type, call.attribute("axis", None)
    count = kind.elements if axis is None else kind.shape[call.axis(axis, len(kind.shape))]
    values = kind if axis is not None else checked((count,), kind.dtype)
    numbers = checked((count,), INT64)
    return [values, numbers, numbers, numbers]


def _most_boxes(call: Call) -> list[TensorType]:
    """As many of each class of an image as there are boxes, or as may be kept."""
    scores = call.value(1).type
    check_rank(scores, 3, 3)
    images, classes, count = scores.shape
    most = call.scalar(2) if call.optional(2) is not None else 0
    return [checked((images * classes * max(0, min(count, most)), 3), INT64)]


RULES: dict[str, Rule] = {
    "NonZero": Rule(_bounded(_nonzero, _most_places), since=9),
    "Compress": Rule(
        _bounded(_compress, _most_slices), {"axis": "int"}, 2, 2, running=(0, 1), since=9
    ),
    "Unique": Rule(
        _bounded(_unique, _most_different), {"axis": "int", "sorted": "int"}, outputs=4, since=11
    ),
    "NonMaxSuppression": Rule(
        _bounded(_boxes, _most_boxes),
        {"center_point_box": "int"},
        2,
        5,
        running=range(5),
        since=10,
    ),
}
