"""Operations that move elements: the forms of all opsets to the normal form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Older, Rule
from leanconv.graph.ops.base import MAX_RANK, broadcast, check_rank, checked
from leanconv.graph.value import Value
from leanconv.symbolic import plain
from leanconv.types import INT64

_FAR = 1 << 62
_SHORT_ROW = 64  # bytes: copies of shorter rows take longer than to read a tensor once more
_AT_ONCE = MAX_RANK // 2 - 1  # axes, each of which becomes two
MOST_PARTS = 512  # of one Gather or Pad, each a copy in the code


def counted(call: Call, extent: int, shape: tuple[int, ...]) -> Value:
    """0, 1, ... along the one axis of a shape that is not 1."""
    extents = tuple(map(int, shape))  # numbers, as the elements are
    return call.fold(lambda: np.arange(extent, dtype=INT64).reshape(extents), extents, INT64)


def _flatten(call: Call) -> list[Value]:
    x = call.value()
    rank = len(x.shape)
    axis = call.attribute("axis", 1)
    if not -rank <= axis <= rank:
        raise ModelError(f"attribute axis is {axis}; expected -{rank} to {rank}")
    axis += rank if axis < 0 else 0
    return [call.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))]


def _reshape(call: Call) -> list[Value]:
    x = call.value()
    given = call.integers(1) if call.opset >= 5 else call.attribute("shape", ())
    shape, copied = list(given), set()
    if not call.flag("allowzero"):
        for axis, extent in enumerate(shape):
            if extent == 0:
                if axis >= len(x.shape):
                    raise ModelError(
                        f"got the shape {given}, which copies axis {axis} of {x.type}; expected an "
                        "axis that is there"
                    )
                shape[axis] = x.shape[axis]
                copied.add(axis)
    if shape.count(-1) > 1 or any(extent < -1 for extent in shape):
        raise ModelError(
            f"got the shape {given}; expected extents of at least 0 and at most one -1"
        )
    if -1 in shape:
        # What is copied fills itself, be it 0.
        known = math.prod(e for axis, e in enumerate(shape) if e != -1 and axis not in copied)
        left = math.prod(extent for axis, extent in enumerate(x.shape) if axis not in copied)
        if not known or left % known:
            raise ModelError(
                f"got the shape {given}, which the input {x.type} does not fill; expected as many "
                "elements"
            )
        shape[shape.index(-1)] = left // known
    return [call.reshape(x, shape)]


def _squeeze(call: Call) -> list[Value]:
    x = call.value()
    axes: Sequence[int] | None = call.listed("axes", 1, 13)
    if axes is None:
        axes = [axis for axis, extent in enumerate(x.shape) if extent == 1]
    gone = call.axes(axes, len(x.shape))
    if any(x.shape[axis] != 1 for axis in gone):
        raise ModelError(f"got axes {gone} of the input {x.type}; expected axes of extent 1")
    return [call.reshape(x, [e for axis, e in enumerate(x.shape) if axis not in gone])]


def _unsqueeze(call: Call) -> list[Value]:
    x = call.value()
    axes = call.integers(1) if call.opset >= 13 else call.attribute("axes", ())
    rank = len(x.shape) + len(axes)
    if rank > MAX_RANK:
        raise ModelError(f"gives rank {rank}; expected at most {MAX_RANK}")
    new = call.axes(axes, rank)
    old = iter(x.shape)
    return [call.reshape(x, [1 if axis in new else next(old) for axis in range(rank)])]


def _transpose(call: Call) -> list[Value]:
    x = call.value()
    perm = call.attribute("perm", tuple(reversed(range(len(x.shape)))))
    return [call.emit("Transpose", [x], perm=perm)]


def _concat(call: Call) -> list[Value]:
    values = [call.value(index) for index in range(len(call))]
    axis = call.attribute("axis", 1 if call.opset < 4 else None)
    if axis is None:
        raise ModelError("attribute axis is missing; expected an axis")
    axis = call.axis(axis, len(values[0].shape))
    return [call.emit("Concat", values, axis=axis)]


def _expand(call: Call) -> list[Value]:
    x = call.value()
    return [call.emit("Expand", [x], shape=broadcast(x.shape, call.integers(1)))]


def _tile(call: Call) -> list[Value]:
    """Repeat along every axis: each is split in two, of which the first is broadcast.

    Axes are repeated by one Expand, whose rows are those of x. Where these are shorter than
    `_SHORT_ROW`, the last axis is repeated before, so that they become longer.
    """
    x, repeats = call.value(), call.integers(1)
    if call.opset < 6:  # how often, and along which axis
        counts, axis = repeats, call.axis(int(call.scalar(2)), len(x.shape))
        repeats = tuple(counts[0] if i == axis and counts else 1 for i in range(len(x.shape)))
    if len(repeats) != len(x.shape) or min(repeats, default=0) < 0:
        raise ModelError(f"got repeats {repeats}; expected {len(x.shape)} numbers of at least 0")
    shape = checked([e * r for e, r in zip(x.shape, repeats, strict=True)], x.type.dtype).shape
    if x.array is not None:
        array = x.array
        last = next((n for n in map(plain, reversed(repeats)) if n != 1), 1)
        working = checked(shape, x.type.dtype).bytes // max(1, last)  # before the last axis
        return [call.fold(lambda: np.tile(array, repeats), shape, x.type.dtype, working)]
    y, left = x, [axis for axis, count in enumerate(repeats) if count != 1]
    row_bytes = math.prod(x.shape[left[-1] :]) * x.type.dtype.bytes if left else 0
    most = 1 if row_bytes < _SHORT_ROW else _AT_ONCE
    while left:
        axes, left, most = left[-most:], left[:-most], _AT_ONCE
        y = _repeated(call, y, [n if axis in axes else 1 for axis, n in enumerate(repeats)])
    return [y]


def _repeated(call: Call, x: Value, counts: Sequence[int]) -> Value:
    """Repeat along every axis by one Expand; axes that are not repeated join the one before."""
    given, made = [1], [1]
    for extent, count in zip(x.shape, counts, strict=True):
        if count != 1:
            given, made = [*given, 1, 1], [*made, count, 1]
        given[-1] *= extent
        made[-1] *= extent
    y = call.emit("Expand", [call.reshape(x, tuple(given))], shape=tuple(made))
    return call.reshape(y, tuple(n * count for n, count in zip(x.shape, counts, strict=True)))


def part_of(call: Call, x: Value, axis: int, start: int, step: int, size: int) -> Value:
    """`size` elements of one axis."""
    rank = len(x.shape)
    starts, steps, sizes = [0] * rank, [1] * rank, list(x.shape)
    starts[axis], steps[axis], sizes[axis] = start, step, size
    return call.emit("Slice", [x], starts=tuple(starts), steps=tuple(steps), sizes=tuple(sizes))


def _kept(start: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """The first element that a slice keeps, 0 if there is none, and how many it keeps."""
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    first = min(max(start + extent if start < 0 else start, 0), high)
    stop = min(max(end + extent if end < 0 else end, low), high)
    size = max(-((first - stop) // step), 0)
    return (first if size else 0), size


def _slice(call: Call) -> list[Value]:
    x = call.value()
    rank = len(x.shape)
    if call.opset < 10:
        starts, ends = call.attribute("starts", ()), call.attribute("ends", ())
    else:
        starts, ends = call.integers(1), call.integers(2)
    axes, steps = call.listed("axes", 3, 10), call.listed("steps", 4, 10)
    steps = steps if steps is not None else (1,) * len(starts)
    places = call.axes(axes if axes is not None else tuple(range(len(starts))), rank)
    if not len(starts) == len(ends) == len(steps) == len(places):
        raise ModelError(
            f"got {len(starts)} starts, {len(ends)} ends, {len(places)} axes and {len(steps)} "
            "steps; expected as many of each"
        )
    first, stride, sizes = [0] * rank, [1] * rank, list(x.shape)
    for start, end, step, axis in zip(starts, ends, steps, places, strict=True):
        if step == 0 or abs(step) > _FAR:
            raise ModelError(f"got the step {step}; expected a number other than 0")
        first[axis], sizes[axis] = _kept(start, end, step, x.shape[axis])
        stride[axis] = step if sizes[axis] > 1 else 1
    return [call.emit("Slice", [x], starts=tuple(first), steps=tuple(stride), sizes=tuple(sizes))]


def _split(call: Call) -> list[Value]:
    x, count = call.value(), len(call.node.outputs)
    axis = call.axis(call.attribute("axis", 0), len(x.shape))
    extent = x.shape[axis]
    as_input = 1 if call.opset == 1 and call.optional(1) is not None else 13
    sizes: Sequence[int] | None = call.listed("split", 1, as_input, count)
    if sizes is None:
        if call.attribute("num_outputs", count) != count:
            raise ModelError(
                f"attribute num_outputs is {call.attribute('num_outputs', count)}; expected {count}"
            )
        each = -(-extent // count)
        if (call.opset < 18 and extent % count) or each * (count - 1) > extent:
            raise ModelError(f"got {count} outputs for an axis of extent {extent}; expected parts")
        sizes = [each] * (count - 1) + [extent - each * (count - 1)]
    if len(sizes) != count or min(sizes) < 0 or sum(sizes) != extent:
        raise ModelError(
            f"got parts {tuple(sizes)[:20]} for {count} outputs; expected their sum to be "
            f"{extent}, the extent of axis {axis} of {x.type}"
        )
    held = tuple(size for size in sizes if size)
    parts = iter(call.emit_all("Split", [x], axis=axis, sizes=held) if held else ())
    return [next(parts) if size else part_of(call, x, axis, 0, 1, 0) for size in sizes]


def _pad(call: Call) -> list[Value]:
    x = call.value()
    rank = len(x.shape)
    mode = call.attribute("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise ModelError(f"attribute mode is {mode!r}; expected constant, reflect, edge or wrap")
    value: int | float = call.attribute("value", 0.0)
    pads = call.attribute("pads" if call.opset >= 2 else "paddings", ())
    axes: Sequence[int] = range(rank)
    if call.opset >= 11:
        pads = call.integers(1, 2 * MAX_RANK)
        held = call.scalar(2) if call.optional(2) is not None else 0.0
        value = int(held) if x.type.dtype.is_integer else float(held)  # int64 exactly
        if call.optional(3) is not None:
            axes = call.axes(call.integers(3), rank)
    if len(pads) != 2 * len(axes):
        raise ModelError(f"got pads {pads}; expected {2 * len(axes)} integers for {x.type}")
    before, after = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[len(axes) + place]
    sizes = [e + min(b, 0) + min(a, 0) for e, b, a in zip(x.shape, before, after, strict=True)]
    if min(sizes, default=0) < 0:
        raise ModelError(f"got pads {pads}; expected to cut off less than there is of {x.type}")
    starts = [max(-b, 0) if size else 0 for b, size in zip(before, sizes, strict=True)]
    cut = call.emit("Slice", [x], starts=tuple(starts), steps=(1,) * rank, sizes=tuple(sizes))
    widths = tuple(max(number, 0) for number in (*before, *after))
    if not any(widths):
        return [cut]
    if mode == "wrap":
        return [_wrapped(call, cut, widths)]
    return [call.emit("Pad", [cut], pads=widths, mode=mode, value=value)]


def _wrapped(call: Call, x: Value, widths: Sequence[int]) -> Value:
    """Repeat the map before and behind itself, along one axis after the other."""
    rank = len(widths) // 2
    for axis in range(rank):
        extent, before, after = x.shape[axis], widths[axis], widths[rank + axis]
        if not (before or after):
            continue
        if not extent:
            raise ModelError(f"wraps {x.type} along axis {axis}; expected an extent of at least 1")
        whole, first, last = 1 + before // extent + after // extent, before % extent, after % extent
        check_parts(whole + 2)
        parts = [part_of(call, x, axis, extent - first, 1, first)] if first else []
        parts += [x] * int(whole)
        parts += [part_of(call, x, axis, 0, 1, last)] if last else []
        x = call.emit("Concat", parts, axis=axis)
    return x


def check_parts(count: int) -> None:
    """Refuse operations that would become very many copies; each of them is code.

    Raises:
        UnsupportedError: there are over `MOST_PARTS`.
    """
    if count > MOST_PARTS:
        raise UnsupportedError(
            f"moves {count} parts one by one, which would be as much code; expected at most "
            f"{MOST_PARTS}"
        )


def _block(call: Call) -> tuple[Value, int, str]:
    """The map (N, C, H, W), block size and mode of DepthToSpace and SpaceToDepth."""
    x, block = call.value(), call.attribute("blocksize", None)
    check_rank(x.type, 4, 4)
    if block is None or block < 1:
        given = "missing" if block is None else str(block)
        raise ModelError(f"attribute blocksize is {given}; expected a number of at least 1")
    mode = call.attribute("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise ModelError(f"attribute mode is {mode!r}; expected DCR or CRD")
    return x, block, mode


def _depth_to_space(call: Call) -> list[Value]:
    """Channels become blocks of pixels; in mode DCR a block's pixels are far apart, in CRD near."""
    x, block, mode = _block(call)
    n, c, h, w = x.shape
    if c % (block * block):
        raise ModelError(
            f"got {x.type} and blocksize {block}; expected a multiple of {block * block} channels"
        )
    kept = c // (block * block)
    inner = (block, block, kept) if mode == "DCR" else (kept, block, block)
    perm = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    y = call.emit("Transpose", [call.reshape(x, (n, *inner, h, w))], perm=perm)
    return [call.reshape(y, (n, kept, h * block, w * block))]


def _space_to_depth(call: Call) -> list[Value]:
    """Blocks of pixels become channels: the inverse of DepthToSpace in the same mode."""
    x, block, mode = _block(call)
    n, c, h, w = x.shape
    if h % block or w % block:
        raise ModelError(
            f"got {x.type} and blocksize {block}; expected height and width to be multiples of it"
        )
    y = call.reshape(x, (n, c, h // block, block, w // block, block))
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    y = call.emit("Transpose", [y], perm=perm)
    return [call.reshape(y, (n, c * block * block, h // block, w // block))]


_MOVES: dict[str, Any] = {"moves": True, "narrow": True}
_BLOCKS = {"blocksize": "int", "mode": "string"}
_SHAPES: dict[str, Any] = {**_MOVES, "follows": "shape", "codes": "kept"}
_BEHIND: dict[str, Any] = {**_MOVES, "follows": "behind", "codes": "kept"}
RULES: dict[str, Rule] = {
    "Flatten": Rule(_flatten, {"axis": "int"}, **_SHAPES),
    "Reshape": Rule(
        _reshape, {"allowzero": "int"}, 2, 2, older=Older(5, {"shape": "ints"}, (1, 1)), **_SHAPES
    ),
    "Squeeze": Rule(_squeeze, {"axes": "ints"}, 1, 2, moved=(13, ("axes",)), **_SHAPES),
    "Unsqueeze": Rule(_unsqueeze, {"axes": "ints"}, 1, 2, moved=(13, ("axes",)), **_SHAPES),
    "Transpose": Rule(_transpose, {"perm": "ints"}, **_SHAPES),
    "Concat": Rule(_concat, {"axis": "int"}, 1, 1 << 31, running=None, **_BEHIND),
    "Expand": Rule(_expand, {}, 2, 2, since=8, codes="kept", **_MOVES),
    "Tile": Rule(_tile, {}, 2, 2, older=Older(6, {}, (3, 3)), codes="kept", **_MOVES),
    "Slice": Rule(
        _slice,
        {"starts": "ints", "ends": "ints", "axes": "ints"},
        1,
        5,
        moved=(10, ("starts", "ends", "axes")),
        **_BEHIND,
    ),
    "Split": Rule(
        _split,
        {"axis": "int", "split": "ints", "num_outputs": "int"},
        1,
        2,
        outputs=1 << 31,
        moved=(13, ("split",)),
        older=Older(2, {}, (1, 2)),
        **_BEHIND,
    ),
    "Pad": Rule(
        _pad,
        {"mode": "string", "pads": "ints", "value": "float"},
        1,
        4,
        moved=(11, ("pads", "value")),
        older=Older(2, {"paddings": "ints"}),
        **_MOVES,
    ),
    "DepthToSpace": Rule(_depth_to_space, _BLOCKS, moves=True, codes="kept"),
    "SpaceToDepth": Rule(_space_to_depth, _BLOCKS, moves=True, codes="kept"),
}
