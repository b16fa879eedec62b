"""Gather and Scatter: the forms of all opsets to the normal form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.convert.shapes import part_of
from leanconv.graph.ops import infer
from leanconv.graph.ops.base import MAX_RANK, check_rank
from leanconv.graph.ops.indexing import REDUCTIONS
from leanconv.graph.value import Value
from leanconv.types import INT64

MOST_SLICES = 16  # of which a Gather is made; each is a copy in the code


def _gather(call: Call) -> list[Value]:
    x = call.value(0)
    check_rank(x.type, 1, MAX_RANK)
    return [gathered(call, x, call.axis(call.attribute("axis", 0), len(x.shape)))]


def gathered(call: Call, x: Value, axis: int) -> Value:
    """A tensor at the places along an axis that input 1 says.

    Few evenly spaced runs of constant indices are Slices, which are joined.
    """
    if call.value(1).array is None:
        return call.emit("Gather", [x, _counted(call)], axis=axis)
    indices = call.constant(1)
    extent = x.shape[axis]
    if indices.dtype.kind not in "iu":
        raise ModelError(f"input 1 holds {indices.dtype}; expected integers")
    call.builder.budget.charge(4 * indices.nbytes)
    if indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise ModelError(f"got indices outside of axis {axis} of {x.type}; expected them within")
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if x.array is not None:
        array = x.array
        return call.fold(lambda: array.take(indices, axis=axis), shape, x.type.dtype)
    places = indices.reshape(-1).astype(INT64)
    runs = _runs((places + (places < 0) * extent).tolist())
    if len(runs) > MOST_SLICES:
        return call.emit("Gather", [x, _counted(call)], axis=axis)
    parts = [part_of(call, x, axis, *run) for run in runs]
    joined = parts[0] if len(parts) == 1 else call.emit("Concat", parts, axis=axis)
    return call.reshape(joined, shape)


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
    """Where a run of evenly spaced, different indices ends that begins at `start`."""
    end = start + 1
    while end < len(places) and places[end] != places[start]:
        if places[end] - places[end - 1] != places[start + 1] - places[start]:
            break
        end += 1
    return end


def _counted(call: Call, index: int = 1) -> Value:
    """Indices as int32 or int64."""
    value = call.value(index)
    if not value.type.dtype.is_integer:
        raise ModelError(f"input {index} is {value.type}; expected integers")
    array = value.array
    if array is not None:  # symbols are numbers here
        return call.builder.constant(np.asarray(value.numbers).astype(INT64))
    return value


def _gather_elements(call: Call) -> list[Value]:
    """What lies behind the indices on other axes is cut off."""
    x, indices = call.value(), _counted(call)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    if len(indices.shape) != len(x.shape):
        raise ModelError(f"got indices {indices.type} of {x.type}; expected equal ranks")
    for other, extent in enumerate(indices.shape):
        if other != axis and extent != x.shape[other]:
            x = part_of(call, x, other, 0, 1, extent)
    return [call.emit("GatherElements", [x, indices], axis=axis)]


def _gather_nd(call: Call) -> list[Value]:
    batch = call.attribute("batch_dims", 0)
    return [call.emit("GatherND", [call.value(), _counted(call)], batch_dims=batch)]


def _reduction(call: Call) -> str:
    """How an update and what was there become one."""
    reduction: str = call.attribute("reduction", "none")
    known = REDUCTIONS if call.opset >= 18 else REDUCTIONS[:3] if call.opset >= 16 else ("none",)
    if reduction not in known:
        raise ModelError(f"attribute reduction is {reduction!r}; expected {' or '.join(known)}")
    return reduction


def _scatter_elements(call: Call) -> list[Value]:
    """Where updates are fewer on other axes, they are padded, by indices that find nothing."""
    x, indices, updates = call.value(), _counted(call), call.value(2)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    attributes = {"axis": axis, "reduction": _reduction(call)}
    infer("ScatterElements", [x.type, indices.type, updates.type], attributes)
    if not updates.type.elements:
        return [x]
    pairs = enumerate(zip(x.shape, indices.shape, strict=True))
    missing = tuple(0 if i == axis else extent - own for i, (extent, own) in pairs)
    if any(missing):
        pads, nowhere = (0,) * len(missing) + missing, x.shape[axis]
        indices = call.emit("Pad", [indices], pads=pads, mode="constant", value=nowhere)
        updates = call.emit("Pad", [updates], pads=pads, mode="constant", value=0)
    return [call.emit("ScatterElements", [x, indices, updates], **attributes)]


def _scatter_nd(call: Call) -> list[Value]:
    x, indices, updates = call.value(), _counted(call), call.value(2)
    attributes = {"reduction": _reduction(call)}
    infer("ScatterND", [x.type, indices.type, updates.type], attributes)
    if not updates.type.elements:
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
        first = call.reshape(_counted(call, 2), [cache.shape[0], *[1] * (rank - 1)])
        places = call.emit("Add", [first, places])
    if mode == "circular" and update.type.elements:
        places = call.emit("Mod", [places, call.number(extent, places)], fmod=False)
    places = call.emit("Expand", [places], shape=update.shape)
    if not update.type.elements:
        return [cache]
    return [call.emit("ScatterElements", [cache, places, update], axis=axis, reduction="none")]


_SCATTER = {"axis": "int", "reduction": "string"}
RULES: dict[str, Rule] = {
    "Gather": Rule(_gather, {"axis": "int"}, 2, 2, running=None),
    "GatherElements": Rule(_gather_elements, {"axis": "int"}, 2, 2, running=None, since=11),
    "GatherND": Rule(_gather_nd, {"batch_dims": "int"}, 2, 2, running=None, since=11),
    "Scatter": Rule(_scatter_elements, {"axis": "int"}, 3, 3, running=None, since=9, until=10),
    "ScatterElements": Rule(_scatter_elements, _SCATTER, 3, 3, running=None, since=11),
    "ScatterND": Rule(_scatter_nd, {"reduction": "string"}, 3, 3, running=None, since=11),
    "TensorScatter": Rule(
        _tensor_scatter, {"axis": "int", "mode": "string"}, 2, 3, running=None, since=24
    ),
}
