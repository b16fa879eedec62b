"""Sequences of tensors and optional values: they exist while a network is bound, and not in it.

What builds and takes apart lists of tensors, as scripted PyTorch modules do, is resolved there: an
element at a known place is the value that was put there.
"""

from __future__ import annotations

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ops.base import check_rank
from leanconv.graph.sequence import SequenceValue
from leanconv.graph.value import Value

_MANY = 1 << 31
_MOST = 2_048  # elements of a sequence


def _sequence(items: list[Value]) -> list[Value]:
    if len(items) > _MOST:
        raise UnsupportedError(
            f"gives a sequence of {len(items)} tensors; expected at most {_MOST}: larger parts"
        )
    return [SequenceValue.of(items)]


def _construct(call: Call) -> list[Value]:
    return _sequence([call.value(index) for index in range(len(call))])


def _empty(call: Call) -> list[Value]:
    del call
    return _sequence([])


def _place(call: Call, index: int, count: int, behind: int = 0) -> int:
    """A place in a sequence, counted from the front; `behind` more may be named."""
    place = int(call.scalar(index))
    if not -count <= place < count + behind:
        raise ModelError(f"position is {place}; expected one of a sequence of {count} tensors")
    return place + count if place < 0 else place


def _insert(call: Call) -> list[Value]:
    items = call.sequence(0)
    place = len(items)
    if call.optional(2) is not None:
        place = _place(call, 2, len(items), 1)
    return _sequence([*items[:place], call.value(1), *items[place:]])


def _erase(call: Call) -> list[Value]:
    items = call.sequence(0)
    given = call.optional(1) is not None
    place = _place(call, 1, len(items)) if given else len(items) - 1
    if not items:
        raise ModelError("erases from an empty sequence; expected an element")
    return _sequence([*items[:place], *items[place + 1 :]])


def _at(call: Call) -> list[Value]:
    items = call.sequence(0)
    return [items[_place(call, 1, len(items))]]


def _length(call: Call) -> list[Value]:
    return [call.builder.constant(np.asarray(len(call.sequence(0)), np.int64))]


def _concat(call: Call) -> list[Value]:
    """The tensors of a sequence side by side, or one behind the other along a new axis."""
    items, axis = call.sequence(0), call.attribute("axis", None)
    if not items or axis is None:
        raise ModelError("joins no tensors, or along no axis; expected tensors and an axis")
    rank = len(items[0].shape)
    if call.flag("new_axis"):
        axis = call.axis(axis, rank + 1)
        items = [call.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in items]
    return [call.emit("Concat", items, axis=call.axis(axis, len(items[0].shape)))]


def _split(call: Call) -> list[Value]:
    """Parts of an axis: of one size, of given sizes, or its slices without the axis."""
    x = call.value()
    check_rank(x.type, 1, len(x.shape))
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    extent, kept = x.shape[axis], True
    if call.optional(1) is not None and call.value(1).shape:
        sizes = [int(size) for size in call.integers(1, _MOST)]
    else:
        size = 1
        if call.optional(1) is None:
            kept = call.flag("keepdims", 1)
        else:
            size = int(call.scalar(1))
        if size < 1:
            raise ModelError(f"split is {size}; expected a size of at least 1")
        starts = range(0, int(extent), size)
        if starts[_MOST:]:
            raise UnsupportedError(
                f"gives a sequence of {-(-extent // size)} tensors; expected at most {_MOST}: "
                "larger parts"
            )
        sizes = [min(size, int(extent) - start) for start in starts]
    if min(sizes, default=0) < 0 or sum(sizes) != extent:
        raise ModelError(f"got parts {sizes[:20]}; expected their sum to be {extent}")
    parts, start = [], 0
    for size in sizes:
        part = part_of(call, x, axis, start if size else 0, 1, size)
        parts.append(part if kept else call.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :])))
        start += size
    return _sequence(parts)


def _has_element(call: Call) -> list[Value]:
    """Whether an optional value is there: what a network computes always is."""
    return [call.builder.constant(np.asarray(call.anything(0) is not None))]


def _element(call: Call) -> list[Value]:
    found = call.anything(0)
    if found is None:
        raise ModelError("input 0 is absent; expected a value")
    return [found]


RULES: dict[str, Rule] = {
    "OptionalHasElement": Rule(_has_element, {}, 0, 1, knows_shape=True, since=15),
    "OptionalGetElement": Rule(_element, since=15),
    "SequenceConstruct": Rule(_construct, {}, 1, _MANY, running=None, since=11),
    "SequenceEmpty": Rule(_empty, {"dtype": "dtype"}, 0, 0, since=11),
    "SequenceInsert": Rule(_insert, {}, 2, 3, running=(0, 1), since=11),
    "SequenceErase": Rule(_erase, {}, 1, 2, since=11),
    "SequenceAt": Rule(_at, {}, 2, 2, since=11),
    "SequenceLength": Rule(_length, since=11),
    "ConcatFromSequence": Rule(_concat, {"axis": "int", "new_axis": "int"}, since=11),
    "SplitToSequence": Rule(_split, {"axis": "int", "keepdims": "int"}, 1, 2, since=11),
}
