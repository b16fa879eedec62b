"""Operations whose extents follow from values: how many elements are kept, found or different."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import Cut, TensorType
from leanconv.graph.limits import is_large_part
from leanconv.graph.ops.base import Array, checked, integer
from leanconv.graph.ops.selection import WRONG, box_extents, kept_boxes
from leanconv.graph.value import NeedsValuesError, Value, known_if_empty
from leanconv.symbolic import NeedsNumberError, Symbol, least, most, plain
from leanconv.types import BOOL, INT64, DType

_PLACE_BYTES = 8
LEAST_VIEW = 1 << 17  # bytes: to copy fewer takes less time than to find new memory for a room
ROWS = "#rows"  # an attribute that no file has: a NonZero gives a row for each place
CUT = "Cut"  # an operation that no file has


def distinct(
    x: Array, axis: int | None, only_values: bool = False
) -> tuple[Array, Array, Array, Array]:
    """Different slices in their order; where each is first, which each is, how often each is.

    Zeros are one number, whatever their sign, and so are all that are not numbers.

    Args:
        x: of floats, integers or bools.
        axis: of the slices; None for single elements.
        only_values: whether nothing is asked of places and counts, which may then be empty.
    """
    if axis is None:
        return _distinct_elements(x.reshape(-1), only_values)
    count = x.shape[axis]
    keys = _ordered_bytes(np.moveaxis(x, axis, 0).reshape(count, x.size // max(1, count)))
    order = np.arange(count)
    if keys.size:
        order = keys.view(f"V{keys.shape[1]}").reshape(count).argsort(kind="stable")
    keys = keys[order]
    begins = np.ones(count, bool)
    begins[1:] = (keys[1:] != keys[:-1]).any(1)
    first = order[begins]
    which = np.empty(count, np.int64)
    which[order] = np.cumsum(begins) - 1
    counts = np.diff(np.append(np.flatnonzero(begins), count))
    return x.take(first, axis), first, which, counts


def _distinct_elements(x: Array, only_values: bool) -> tuple[Array, Array, Array, Array]:
    """`distinct` of a list, by orders that need not be stable: NumPy sorts so by vectors."""
    if only_values:
        values, none = np.unique(x), np.zeros(0, np.int64)
        if x.dtype.kind == "f" and (zeros := np.flatnonzero(values == 0)).size:
            values[zeros] = x[np.argmax(x == 0)]  # with the sign of the first
        return values, none, none, none
    order = np.argsort(x)
    keys = x[order]
    begins = np.ones(x.size, bool)
    begins[1:] = keys[1:] != keys[:-1]
    if x.dtype.kind == "f":
        begins[1:] &= ~np.isnan(keys[:-1])
    places = np.flatnonzero(begins)
    first = np.minimum.reduceat(order, places) if x.size else order
    counts = np.empty_like(places)
    counts[:-1], counts[-1:] = places[1:] - places[:-1], x.size - places[-1:]
    which = np.empty(x.size, np.int64)
    which[order] = np.repeat(np.arange(places.size), counts)
    return x[first], first, which, counts


def working_for_distinct(array_bytes: int, count: int) -> int:
    """The most bytes that `distinct` works in, beside the array and the results: measured.

    Args:
        array_bytes: of the array.
        count: of slices.
    """
    return 6 * array_bytes + _SORT_BYTES * count


_SORT_BYTES = 32  # of a slice: places, copies of them while they are sorted


def _ordered_bytes(rows: Array) -> Array:
    """Rows of bytes that have the order of rows of numbers."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), np.nan, rows + 0).astype(rows.dtype)
    words = np.ascontiguousarray(rows).view(f"u{rows.itemsize}")
    sign = words.dtype.type(1 << 8 * rows.itemsize - 1)
    if rows.dtype.kind == "f":  # those below 0 are ordered by what they are not
        words = np.where(words & sign, ~words, words | sign)
    elif rows.dtype.kind == "i":
        words = words ^ sign
    return words.astype(words.dtype.newbyteorder(">")).view(np.uint8)


def _known(call: Call, index: int) -> Array:
    """The elements of an input on which the extents of the results depend.

    Raises:
        NeedsValuesError: numbers are known when the network runs.
    """
    array = call.value(index).array
    if array is None:
        raise NeedsValuesError(
            "how many elements it gives depends on the network's inputs, which is not supported "
            "here; expected an operation whose extents follow from shapes"
        ).of(call.value(index))
    return array


Convert = Callable[[Call], list[Value]]


def _bounded(
    convert: Convert,
    largest: Callable[[Call], list[TensorType]],
    working: Callable[[Call], int] | None = None,
) -> Convert:
    """Make a conversion whose results are as large as they may be, where bounds are wanted.

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
    """Room for the places of all elements, and how many are not 0; each has a column, in order."""
    x = known_if_empty(call.value())
    rows = call.flag(ROWS)
    if x.numbers is None:
        return list(call.emit_all("NonZero", [x, *_there(call, 1)], rows=rows))
    array = x.numbers
    call.builder.budget.expect(2 * _PLACE_BYTES * max(1, array.ndim) * int(np.count_nonzero(array)))
    places = np.array(np.nonzero(np.atleast_1d(array)), INT64)
    return _found(call, [places, _count(places.shape[1])], array.nbytes)


def _compress(call: Call) -> list[Value]:
    """Room for all slices of an axis, and for how many a flag is set: these are in it.

    As in ONNX Runtime, flags may have any shape, and those past the last slice do not count.
    """
    x, flags = call.value(0), known_if_empty(call.value(1))
    axis = call.attribute("axis", None)
    if flags.type.dtype != BOOL:
        raise ModelError(f"input 1 is {flags.type}; expected a list of {BOOL}")
    x = call.reshape(x, (x.type.elements,)) if axis is None else x
    axis = 0 if axis is None else call.axis(axis, len(x.shape))
    if flags.array is not None:
        return _taken(call, x, flags.array, axis)
    if x.type.elements:
        return list(call.emit_all("Compress", [x, flags, *_there(call, 2)], axis=axis))
    size = least(flags.type.elements, x.shape[axis])
    listed = call.reshape(flags, (flags.type.elements,))
    if not size:
        return [x, call.constant_of(_count(0))]
    seen = _begin(call, listed, (size,))
    return [x, call.emit_all("NonZero", [seen], rows=False)[1]]


def _there(call: Call, index: int) -> list[Value]:
    """Return the input behind all that a file may give: how many elements of the room are there."""
    return [call.value(index)] if len(call) > index else []


def _taken(call: Call, x: Value, flags: Array, axis: int) -> list[Value]:
    """The slices of an axis by flags that are known."""
    call.builder.budget.expect(_PLACE_BYTES * flags.size)
    kept = np.flatnonzero(flags.reshape(-1)[: plain(x.shape[axis])])
    count = call.constant_of(_count(kept.size))
    if x.array is None:
        return [call.emit("Gather", [x, call.constant_of(kept)], axis=axis), count]
    array = x.array
    shape = (*x.shape[:axis], kept.size, *x.shape[axis + 1 :])
    return [call.fold(lambda: array.take(kept, axis), shape, x.type.dtype), count]


def _count(number: int) -> Array:
    return np.array([number], np.int64)


def _unique(call: Call) -> list[Value]:
    """Different elements or slices; where each is first, which each is, how often each is."""
    x = _known(call, 0)
    if x.dtype == object:
        raise NeedsNumberError("which elements are equal")
    axis = call.attribute("axis", None)
    axis = None if axis is None else call.axis(axis, x.ndim)
    call.builder.budget.expect(
        working_for_distinct(x.nbytes, x.size if axis is None else x.shape[axis])
        + sum(kind.bytes for kind in _most_different(call))
    )
    only_values = not any(call.node.outputs[1:]) and call.flag("sorted", 1)
    values, first, inverse, counts = distinct(x, axis, only_values)
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
    images, classes, count = box_extents(boxes.type, scores.type)
    given = [call.optional(n) for n in (2, 3, 4)]
    known = [each is None or each.array is not None for each in (boxes, scores, *given)]
    asked = (call.scalar(2) if given[0] else 0) if known[2] else count
    if known[3] and given[1]:
        _check_overlap(call.scalar(3))
    if all(known):
        return _boxes_of_constants(call)
    room = most(0, least(count, asked))
    if not images * classes * room:
        return _found(call, [np.zeros((0, 3), np.int64), _count(0)], 0)
    kind = boxes.type.dtype
    assert given[0], "else there is no room"
    overlap = _one(call, given[1], kind) if given[1] else call.builder.constant(_zero(kind))
    limit, there = _one(call, given[2], kind) if given[2] else None, _there(call, 5)
    limits = [limit] if limit or there else []
    operands = [boxes, scores, _one(call, given[0], INT64), overlap, *limits, *there]
    centred = call.flag("center_point_box")
    return list(call.emit_all("NonMaxSuppression", operands, most=room, centred=centred))


def _zero(dtype: DType) -> Array:
    return np.zeros(1, dtype.numpy)


def _check_overlap(overlap: float) -> None:
    if not 0 <= overlap <= 1:
        raise ModelError(f"iou_threshold is {overlap}; expected 0 to 1")


def _boxes_of_constants(call: Call) -> list[Value]:
    """The boxes that are kept, and how many, where everything is known."""
    boxes, scores = call.constant(0), call.constant(1)
    asked, overlap, limit = (call.scalar(n) if call.optional(n) else None for n in (2, 3, 4))
    centred, charge = call.flag("center_point_box"), call.builder.budget.charge
    kept = kept_boxes(boxes, scores, asked or 0, overlap or 0.0, limit, centred, charge)
    return _found(call, [kept, _count(len(kept))], boxes.nbytes + scores.nbytes)


def _one(call: Call, value: Value, dtype: DType) -> Value:
    """One number of a type, as a list."""
    if value.type.elements != 1:
        raise ModelError(f"got {value.type}; expected one number")
    flat = call.reshape(value, (1,))
    return call.cast(flat, dtype)


def _cut(call: Call) -> list[Value]:
    """Cut the elements that were found from a room."""
    room, count = call.value(0), _known(call, 1)
    axis = call.axis(call.attribute("axis", 0), len(room.shape))
    number = integer(count[0])
    shape = cut_shape(room.shape, number, axis)
    if room.array is not None and not isinstance(number, Symbol):
        call.builder.budget.expect(checked(shape, room.type.dtype).bytes)
        return _found(call, [cut(room.array, number, axis)], 0)
    if all(extent == 1 for extent in room.shape[:axis]):
        return [_begin(call, room, shape)]
    flat = call.reshape(room, (room.type.elements,))
    return [call.reshape(_begin(call, flat, (prod(shape),)), shape)]


def _begin(call: Call, x: Value, sizes: tuple[int, ...]) -> Value:
    """The first elements along each axis."""
    rank = len(sizes)
    return call.emit("Slice", [x], starts=(0,) * rank, steps=(1,) * rank, sizes=sizes)


def cut_shape(shape: Sequence[int], count: int, axis: int) -> tuple[int, ...]:
    """The shape of the elements that were found.

    Raises:
        ModelError: the threshold, which is data, is not within 0 to 1.
    """
    if count == WRONG:
        raise ModelError("iou_threshold follows from data and is none; expected 0 to 1")
    axis %= len(shape)
    return (*shape[:axis], count, *shape[axis + 1 :])


def cut(room: Array, count: int, axis: int) -> Array:
    """Return the elements of a room that were found, `count` along an axis.

    It is a view of a large room of which it is a large part, and a new array elsewhere.

    Raises:
        ModelError: as `cut_shape`.
    """
    shape = cut_shape(room.shape, count, axis)
    found: Array = np.ndarray(shape, room.dtype, np.ascontiguousarray(room))
    kept = room.nbytes >= LEAST_VIEW and is_large_part(found, room)
    return found if kept else found.copy()


def _working_unique(call: Call) -> int:
    values, numbers = _most_different(call)[:2]
    return working_for_distinct(values.bytes, numbers.elements)


def _most_different(call: Call) -> list[TensorType]:
    kind, axis = call.value().type, call.attribute("axis", None)
    count = kind.elements if axis is None else kind.shape[call.axis(axis, len(kind.shape))]
    values = kind if axis is not None else checked((count,), kind.dtype)
    numbers = checked((count,), INT64)
    return [values, numbers, numbers, numbers]


_PLACES: dict[str, Any] = {"outputs": 2, "gives": INT64}
RULES: dict[str, Rule] = {
    "NonZero": Rule(_nonzero, since=9, finds=1, follows="places", **_PLACES),
    "Compress": Rule(  # along another axis where an attribute says so
        _compress,
        {"axis": "int"},
        2,
        2,
        (0, 1),
        since=9,
        outputs=2,
        finds=0,
        follows="flags",
        moves=True,
    ),
    "Unique": Rule(
        _bounded(_unique, _most_different, _working_unique),
        {"axis": "int", "sorted": "int"},
        outputs=4,
        since=11,
    ),
    "NonMaxSuppression": Rule(
        _boxes,
        {"center_point_box": "int"},
        2,
        5,
        range(5),
        since=10,
        finds=0,
        follows="boxes",
        **_PLACES,
    ),
}
# What no file holds.
PARTS: dict[str, Rule] = {
    CUT: Rule(_bounded(_cut, lambda call: [call.value().type]), {"axis": "int"}, 2, 2, None)
}


def in_parts(nodes: Iterable[FileNode]) -> tuple[FileNode, ...]:
    """The nodes of a graph, with the compiled part of those that select as nodes of their own.

    That has room for all that may be found; how many are given is known when the network runs.
    """
    listed = tuple(nodes)
    taken: set[str] = set()
    finds = {op: rule.finds for op, rule in RULES.items() if rule.finds is not None}
    if any(node.op in finds for node in listed):
        taken.update(name for node in listed for name in (*node.reads, *node.outputs))
    made: list[FileNode] = []
    for node in listed:
        if node.op not in finds:
            made.append(node)
            continue
        room, count = (_new(f"{node.outputs[0]}#{part}", taken) for part in ("room", "count"))
        made.append(replace(node, outputs=(room, count)))
        axis = node.attributes.get("axis", finds[node.op])
        made.append(cut_node(node, (node.outputs[0], room, count, axis)))
    return tuple(made)


def cut_node(node: FileNode, result: Cut) -> FileNode:
    """The node that cuts a result of another one."""
    output, room, count, axis = result
    given = MappingProxyType({"axis": axis})
    return FileNode(CUT, (room, count), (output,), given, node.name, node.opset)


def _new(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "#"
    taken.add(name)
    return name
