"""Gather and Scatter: the forms of all opsets to the normal form.

Sequences of tensors and optional values exist while a network is bound, and not in it. What builds
and takes apart lists of tensors, as scripted PyTorch modules do, is resolved there: an element at a
known place is the value that was put there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from leanconv.errors import InputError, ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ops import infer
from leanconv.graph.ops.base import MAX_RANK, check_rank
from leanconv.graph.ops.indexing import NOWHERE, REDUCTIONS, check_indices
from leanconv.graph.value import SequenceValue, Value
from leanconv.types import INT64

MOST_SLICES = 16  # of which a Gather is made; each is a copy in the code
_MANY = 1 << 31
_MOST = 2_048  # elements of a sequence


def _gather(call: Call) -> list[Value]:
    x = call.value(0)
    check_rank(x.type, 1, MAX_RANK)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    return [gathered(call, x, axis, _found(call))]


def gathered(call: Call, x: Value, axis: int, found: Sequence[Value] = ()) -> Value:
    """A tensor at the places along an axis that input 1 says.

    Few evenly spaced runs of constant indices are Slices, which are joined.

    Args:
        call: the node.
        x: the tensor.
        axis: along which it is looked up.
        found: how many of the indices are found, where there is room for more.
    """
    if call.value(1).array is None:
        return call.emit("Gather", [x, _counted(call), *found], axis=axis)
    indices = call.constant(1)
    extent = x.shape[axis]
    if indices.dtype.kind not in "iu":
        raise ModelError(f"input 1 holds {indices.dtype}; expected integers")
    call.builder.budget.charge(4 * indices.nbytes)
    _check(call, indices, extent)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if x.array is not None:
        array = x.array
        working = 8 * indices.size
        return call.fold(lambda: array.take(indices, axis=axis), shape, x.type.dtype, working)
    places = indices.reshape(-1).astype(INT64)
    runs = _runs((places + (places < 0) * extent).tolist())
    if len(runs) > MOST_SLICES:
        return call.emit("Gather", [x, _counted(call)], axis=axis)
    parts = [part_of(call, x, axis, *run) for run in runs]
    joined = parts[0] if len(parts) == 1 else call.emit("Concat", parts, axis=axis)
    return call.reshape(joined, shape)


def _found(call: Call) -> list[Value]:
    """Return input 2, which no file has: the number of indices found, of a room for more."""
    return [call.value(2)] if len(call) > 2 else []


def _runs(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """Indices as evenly spaced runs, each as (first, step, size), as few as a greedy walk finds."""
    if not places:
        return [(0, 1, 0)]
    runs, start = [], 0
    while start < len(places):
        end = _run_end(places, start)
        if end == start + 2 and _run_end(places, start + 1) > start + 3:
            end = start + 1  # any two are evenly spaced: the second begins a longer run
        step = places[start + 1] - places[start] if end - start > 1 else 1
        runs.append((places[start], step, end - start))
        start = end
    return runs


def _run_end(places: Sequence[int], start: int) -> int:
    """Return the end of the run of evenly spaced, different indices that begins at `start`."""
    end = start + 1
    while end < len(places) and places[end] != places[start]:
        if places[end] - places[end - 1] != places[start + 1] - places[start]:
            break
        end += 1
    return end


def _check(call: Call, indices: np.ndarray, extent: int) -> None:
    """Refuse indices that lie outside of an axis; whether they are the file's, or data, counts."""
    check_indices(indices, -extent, extent - 1, InputError if call.builder.running else ModelError)


def _counted(call: Call, axes: Sequence[int] = (), index: int = 1) -> Value:
    """Indices as int32 or int64.

    Args:
        call: the node.
        axes: extents of the axes that each list of indices finds, where they are to be checked;
            of one axis they are no lists.
        index: of the input.
    """
    value = call.value(index)
    if not value.type.dtype.is_integer:
        raise ModelError(f"input {index} is {value.type}; expected integers")
    array = value.array
    if array is None:
        return value
    found = np.asarray(value.numbers).astype(INT64)  # symbols are numbers here
    for number, extent in enumerate(axes):
        _check(call, found[..., number] if len(axes) > 1 else found, extent)
    return call.builder.constant(found)


def _found_axes(x: Value, indices: Value, batch: int = 0) -> Sequence[int]:
    """The extents that lists of indices find, as far as their shapes fit: see `ops.indexing`."""
    return x.shape[batch : batch + int(indices.shape[-1])] if indices.shape else ()


def _gather_elements(call: Call) -> list[Value]:
    """Cut off what lies behind the indices on other axes."""
    x = call.value()
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    indices = _counted(call, x.shape[axis : axis + 1])
    if len(indices.shape) != len(x.shape):
        raise ModelError(f"got indices {indices.type} of {x.type}; expected equal ranks")
    for other, extent in enumerate(indices.shape):
        if other != axis and extent != x.shape[other]:
            x = part_of(call, x, other, 0, 1, extent)
    return [call.emit("GatherElements", [x, indices], axis=axis)]


def _gather_nd(call: Call) -> list[Value]:
    x, batch = call.value(), call.attribute("batch_dims", 0)
    indices = _counted(call, _found_axes(x, call.value(1), batch))
    return [call.emit("GatherND", [x, indices, *_found(call)], batch_dims=batch)]


def _reduction(call: Call) -> str:
    reduction: str = call.attribute("reduction", "none")
    known = REDUCTIONS if call.opset >= 18 else REDUCTIONS[:3] if call.opset >= 16 else ("none",)
    if reduction not in known:
        raise ModelError(f"attribute reduction is {reduction!r}; expected {' or '.join(known)}")
    return reduction


def _updates_any(x: Value, updates: Value) -> bool:
    """Return whether there are updates.

    Raises:
        ModelError: something is, but there is no place for it.
    """
    if updates.type.elements and not x.type.elements:
        raise ModelError(f"scatters {updates.type} into {x.type}, which has no elements")
    return bool(updates.type.elements)


def _scatter_elements(call: Call) -> list[Value]:
    """Pad updates that are fewer on other axes, with indices that are outside."""
    x, updates = call.value(), call.value(2)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    indices = _counted(call, x.shape[axis : axis + 1])
    attributes = {"axis": axis, "reduction": _reduction(call), "padded": False}
    infer("ScatterElements", [x.type, indices.type, updates.type], attributes)
    if not _updates_any(x, updates):
        return [x]
    pairs = enumerate(zip(x.shape, indices.shape, strict=True))
    missing = tuple(0 if i == axis else extent - own for i, (extent, own) in pairs)
    if any(missing):
        attributes["padded"] = True
        pads, nowhere = (0,) * len(missing) + missing, NOWHERE[indices.type.dtype]
        indices = call.emit("Max", [indices, call.number(nowhere + 1, indices)])
        indices = call.emit("Pad", [indices], pads=pads, mode="constant", value=nowhere)
        updates = call.emit("Pad", [updates], pads=pads, mode="constant", value=0)
    return [call.emit("ScatterElements", [x, indices, updates], **attributes)]


def _scatter_nd(call: Call) -> list[Value]:
    x, updates = call.value(), call.value(2)
    indices = _counted(call, _found_axes(x, call.value(1)))
    attributes = {"reduction": _reduction(call)}
    infer("ScatterND", [x.type, indices.type, updates.type], attributes)
    if not _updates_any(x, updates):
        return [x]
    return [call.emit("ScatterND", [x, indices, updates], **attributes)]


def _tensor_scatter(call: Call) -> list[Value]:
    """New parts of a cache, each image's from its own place on, around its end if circular."""
    cache, update = call.value(), call.value(1)
    rank, mode = len(cache.shape), call.attribute("mode", "linear")
    axis = call.axis(call.attribute("axis", -2), rank)
    if mode not in ("linear", "circular"):
        raise ModelError(f"attribute mode is {mode!r}; expected linear or circular")
    if len(update.shape) != rank or not axis:
        raise ModelError(f"got the update {update.type} of {cache.type} along axis {axis}")
    count, extent = update.shape[axis], cache.shape[axis]
    steps = call.fold(lambda: np.arange(count, dtype=np.int64), (count,), INT64)
    places = call.reshape(steps, [count if i == axis else 1 for i in range(rank)])
    if call.optional(2) is not None:
        first = call.reshape(_counted(call, index=2), [cache.shape[0], *[1] * (rank - 1)])
        places = call.emit("Add", [first, places])
    if mode == "circular" and update.type.elements:
        places = call.emit("Mod", [places, call.number(extent, places)], fmod=False)
    places = call.emit("Expand", [places], shape=update.shape)
    if not update.type.elements:
        return [cache]
    return [
        call.emit(
            "ScatterElements", [cache, places, update], axis=axis, reduction="none", padded=False
        )
    ]


_SCATTER = {"axis": "int", "reduction": "string"}


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
    """Return whether an optional value is there: what a network computes always is."""
    return [call.builder.constant(np.asarray(call.anything(0) is not None))]


def _element(call: Call) -> list[Value]:
    found = call.anything(0)
    if found is None:
        raise ModelError("input 0 is absent; expected a value")
    return [found]


SEQUENCES: dict[str, Rule] = {
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
_MOVES: dict[str, Rule] = {
    "Gather": Rule(_gather, {"axis": "int"}, 2, 2, running=None, follows="gather"),
    "GatherElements": Rule(_gather_elements, {"axis": "int"}, 2, 2, running=None, since=11),
    "GatherND": Rule(_gather_nd, {"batch_dims": "int"}, 2, 2, None, since=11, follows="lists"),
    "Scatter": Rule(_scatter_elements, {"axis": "int"}, 3, 3, running=None, since=9, until=10),
    "ScatterElements": Rule(_scatter_elements, _SCATTER, 3, 3, running=None, since=11),
    "ScatterND": Rule(_scatter_nd, {"reduction": "string"}, 3, 3, running=None, since=11),
    "TensorScatter": Rule(
        _tensor_scatter, {"axis": "int", "mode": "string"}, 2, 3, running=None, since=24
    ),
}
RULES = {**{op: replace(rule, moves=True) for op, rule in _MOVES.items()}, **SEQUENCES}
