"""Operations whose extents follow from values: how many elements are kept, found or different."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.convert.rule import Call, FileNode, Rule
from leanconv.graph.distinct import distinct, working_for_distinct
from leanconv.graph.ir import TensorType
from leanconv.graph.located import NeedsValuesError
from leanconv.graph.nms import kept_boxes
from leanconv.graph.ops.base import Array, checked
from leanconv.graph.ops.boxes import WRONG
from leanconv.graph.value import Value
from leanconv.symbolic import least, most
from leanconv.types import BOOL, INT64, DType

_PLACE_BYTES = 8
FIRST_ROWS = "NonMaxSuppression.rows"  # a part of that operation


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


def _bounded(
    convert: Convert,
    largest: Callable[[Call], list[TensorType]],
    working: Callable[[Call], int] | None = None,
) -> Convert:
    """The conversion; where bounds are wanted, results as large as they may be.

    Args:
        convert: the conversion.
        largest: types of the results.
        working: the most bytes that NumPy works in; None for none.
    """

    def converted(call: Call) -> list[Value]:
        known = all(call.value(n).array is not None for n in range(len(call)) if call.optional(n))
        if known or not call.builder.bounds:
            return convert(call)
        needed = working(call) if working else 0
        return [call.builder.unknown(kind, needed) for kind in largest(call)]

    return converted


def _found(call: Call, arrays: list[Array], charged: int) -> list[Value]:
    """Results whose extents have been found."""
    call.builder.budget.charge(charged + sum(array.nbytes for array in arrays))
    call.builder.budget.made(arrays)
    return [call.builder.constant(array) for array in arrays]


def _nonzero(call: Call) -> list[Value]:
    """The places of elements that are not 0, one column for each, in the order of the elements."""
    x = _known(call, 0)
    call.builder.budget.expect(2 * _PLACE_BYTES * max(1, x.ndim) * int(np.count_nonzero(x)))
    places = np.array(np.nonzero(np.atleast_1d(x)), INT64)
    return _found(call, [places], x.nbytes)


def _compress(call: Call) -> list[Value]:
    """The slices of an axis whose flag is set; those past the last flag are left out.

    As in ONNX Runtime, flags may have any shape, and those past the last slice do not count.
    """
    flags, x = _known(call, 1), call.value(0)
    axis = call.attribute("axis", None)
    if flags.dtype != np.bool_:
        raise ModelError(f"input 1 is {call.value(1).type}; expected a list of {BOOL}")
    extents = x.shape if axis is not None else (x.type.elements,)
    axis = call.axis(axis, len(extents)) if axis is not None else 0
    call.builder.budget.expect(_PLACE_BYTES * flags.size)
    kept = np.flatnonzero(flags.reshape(-1)[: extents[axis]])
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
    call.builder.budget.expect(
        working_for_distinct(x.nbytes, x.size if axis is None else x.shape[axis])
        + sum(kind.bytes for kind in _most_different(call))
    )
    values, first, inverse, counts = distinct(x, axis)
    if not call.flag("sorted", 1):
        order = np.argsort(first, kind="stable")
        values = np.take(values, order, 0 if axis is None else axis)
        first, counts = first[order], counts[order]
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        inverse = place[inverse]
    found = [values, *(each.astype(INT64, copy=False) for each in (first, inverse, counts))]
    return _found(call, found, 20 * x.nbytes)


def _boxes(call: Call) -> list[Value]:
    """NonMaxSuppression: room for (image, class, box) of each that is kept, and how many are."""
    boxes, scores = call.value(0), call.value(1)
    images, classes, count = _box_extents(boxes.type, scores.type)
    given = [call.optional(n) for n in (2, 3, 4)]
    known = [each is None or each.array is not None for each in (boxes, scores, *given)]
    asked = (call.scalar(2) if given[0] else 0) if known[2] else count
    if known[3] and given[1]:
        _check_overlap(call.scalar(3))
    if all(known):
        return _boxes_of_constants(call)
    room = most(0, least(count, asked))
    if not images * classes * room:
        return _found(call, [np.zeros((0, 3), np.int64), np.zeros(1, np.int64)], 0)
    kind = boxes.type.dtype
    assert given[0], "else there is no room"
    overlap = _one(call, given[1], kind) if given[1] else call.builder.constant(_zero(kind))
    limit = [_one(call, given[2], kind)] if given[2] else []
    operands = [boxes, scores, _one(call, given[0], INT64), overlap, *limit]
    centred = call.flag("center_point_box")
    return list(call.emit_all("NonMaxSuppression", operands, most=room, centred=centred))


def _zero(dtype: DType) -> Array:
    return np.zeros(1, dtype.numpy)


def _box_extents(boxes: TensorType, scores: TensorType) -> tuple[int, ...]:
    """The extents of the scores.

    Raises:
        ModelError: boxes and scores do not fit each other.
    """
    fits = len(boxes.shape) == len(scores.shape) == 3 and boxes.shape[2] == 4
    if not fits or boxes.shape[0] != scores.shape[0] or boxes.shape[1] != scores.shape[2]:
        raise ModelError(
            f"got boxes {boxes} and scores {scores}; expected (N, boxes, 4) and (N, classes, boxes)"
        )
    return scores.shape


def _check_overlap(overlap: float) -> None:
    if not 0 <= overlap <= 1:
        raise ModelError(f"iou_threshold is {overlap}; expected 0 to 1")


def _boxes_of_constants(call: Call) -> list[Value]:
    """The boxes that are kept, and how many, where everything is known."""
    boxes, scores = call.constant(0), call.constant(1)
    asked, overlap, limit = (call.scalar(n) if call.optional(n) else None for n in (2, 3, 4))
    centred, charge = call.flag("center_point_box"), call.builder.budget.charge
    kept = kept_boxes(boxes, scores, asked or 0, overlap or 0.0, limit, centred, charge)
    found = [kept, np.array([len(kept)], np.int64)]
    return _found(call, found, boxes.nbytes + scores.nbytes)


def _one(call: Call, value: Value, dtype: DType) -> Value:
    """One number of a type, as a list."""
    if value.type.elements != 1:
        raise ModelError(f"got {value.type}; expected one number")
    flat = call.reshape(value, (1,))
    return flat if flat.type.dtype == dtype else call.emit("Cast", [flat], to=dtype)


def _first_rows(call: Call) -> list[Value]:
    count, rows = _known(call, 1), call.constant(0)
    call.builder.budget.expect(int(count[0]) * rows[:1].nbytes)
    return _found(call, [first_rows(rows, count)], 0)


def first_rows(rows: Array, count: Array) -> Array:
    """The first rows of (rows, n), as many as (1,) says: a new array.

    Raises:
        ModelError: they were to be found with a threshold that is none.
    """
    number = int(count[0])
    if number == WRONG:
        raise ModelError("iou_threshold follows from data and is none; expected 0 to 1")
    return np.array(rows[:number])


def _most_places(call: Call) -> list[TensorType]:
    kind = call.value().type
    return [checked((max(1, len(kind.shape)), kind.elements), INT64)]


def _most_slices(call: Call) -> list[TensorType]:
    kind, axis = call.value().type, call.attribute("axis", None)
    return [kind if axis is not None else checked((kind.elements,), kind.dtype)]


def _working_nonzero(call: Call) -> int:
    return sum(kind.bytes for kind in _most_places(call))


def _working_compress(call: Call) -> int:
    return _PLACE_BYTES * call.value(1).type.elements


def _working_unique(call: Call) -> int:
    values, numbers = _most_different(call)[:2]
    return working_for_distinct(values.bytes, numbers.elements)


def _most_different(call: Call) -> list[TensorType]:
    kind, axis = call.value().type, call.attribute("axis", None)
    count = kind.elements if axis is None else kind.shape[call.axis(axis, len(kind.shape))]
    values = kind if axis is not None else checked((count,), kind.dtype)
    numbers = checked((count,), INT64)
    return [values, numbers, numbers, numbers]


RULES: dict[str, Rule] = {
    "NonZero": Rule(_bounded(_nonzero, _most_places, _working_nonzero), since=9),
    "Compress": Rule(
        _bounded(_compress, _most_slices, _working_compress),
        {"axis": "int"},
        2,
        2,
        running=(0, 1),
        since=9,
    ),
    "Unique": Rule(
        _bounded(_unique, _most_different, _working_unique),
        {"axis": "int", "sorted": "int"},
        outputs=4,
        since=11,
    ),
    "NonMaxSuppression": Rule(
        _boxes, {"center_point_box": "int"}, 2, 5, running=range(5), since=10, outputs=2
    ),
}
# What no file holds.
PARTS: dict[str, Rule] = {
    FIRST_ROWS: Rule(_bounded(_first_rows, lambda call: [call.value().type]), {}, 2, 2, None)
}


def in_parts(nodes: Iterable[FileNode]) -> tuple[FileNode, ...]:
    """The nodes of a graph; of a NonMaxSuppression what can be compiled is a node of its own.

    That computes as many rows as there may be; how many are given is known when the network runs.
    """
    listed = tuple(nodes)
    taken: set[str] = set()
    if any(node.op == "NonMaxSuppression" for node in listed):
        taken.update(name for node in listed for name in (*node.reads, *node.outputs))
    made: list[FileNode] = []
    for node in listed:
        if node.op != "NonMaxSuppression":
            made.append(node)
            continue
        rows, count = (_new(f"{node.outputs[0]}#{part}", taken) for part in ("rows", "count"))
        made.append(replace(node, outputs=(rows, count)))
        none: Mapping[str, object] = MappingProxyType({})
        made.append(replace(node, op=FIRST_ROWS, inputs=(rows, count), attributes=none))
    return tuple(made)


def _new(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "#"
    taken.add(name)
    return name
