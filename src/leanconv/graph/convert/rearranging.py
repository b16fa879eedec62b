"""Crops, reversals, and columns or pooled cells put back where they came from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from leanconv.errors import ModelError, UnsupportedError
from leanconv.graph.convert.rule import Call, Rule
from leanconv.graph.ops.base import check_rank, checked
from leanconv.graph.ops.conv import transposed_extent, window_extent
from leanconv.graph.value import Value
from leanconv.types import FLOATS, INT64
from leanconv.units import shape_text


def _center_crop_pad(call: Call) -> list[Value]:
    """The middle of axes that are too large, zeros around those that are too small."""
    x, targets = call.value(), call.integers(1)
    rank = len(x.shape)
    axes = call.axes(call.attribute("axes", tuple(range(rank))), rank)
    if len(targets) != len(axes) or min(targets, default=0) < 0:
        raise ModelError(f"got the shape {targets} for axes {axes}; expected an extent for each")
    sizes, starts, pads = list(x.shape), [0] * rank, [0] * (2 * rank)
    for axis, target in zip(axes, targets, strict=True):
        missing = target - x.shape[axis]
        if missing < 0:
            sizes[axis], starts[axis] = target, -missing // 2 if target else 0
        elif missing > 0:
            pads[axis], pads[rank + axis] = missing // 2, missing - missing // 2
    cut = call.emit("Slice", [x], starts=tuple(starts), steps=(1,) * rank, sizes=tuple(sizes))
    if not any(pads):
        return [cut]
    return [call.emit("Pad", [cut], pads=tuple(pads), mode="constant", value=0)]


def _reverse_sequence(call: Call) -> list[Value]:
    """The first steps of each sequence backwards, as many as are its own; the others stay."""
    x, lengths = call.value(), call.value(1)
    check_rank(x.type, 2, 16)
    time, batch = call.attribute("time_axis", 0), call.attribute("batch_axis", 1)
    if sorted((time, batch)) != [0, 1] or lengths.shape != (x.shape[batch],):
        raise ModelError(
            f"got time_axis {time}, batch_axis {batch} and lengths {lengths.type} of {x.type}; "
            "expected axes 0 and 1, and a length for each sequence"
        )
    grid, steps, count = x.shape[:2], x.shape[time], x.shape[batch]
    if lengths.numbers is not None and not call.builder.running:  # of data, a run says so
        longest = int(lengths.numbers.max(initial=0))
        if longest > steps:
            raise ModelError(
                f"got the length {longest}; expected at most {steps} steps of {x.type}"
            )
    forth_shape, own_shape = ((1, steps), (count, 1)) if time else ((steps, 1), (1, count))
    forth = call.fold(
        lambda: np.arange(steps, dtype=np.int64).reshape(forth_shape), forth_shape, INT64
    )
    own = call.reshape(lengths, own_shape)
    own = call.cast(own, INT64)
    last = call.emit("Sub", [own, call.number(1, own)])
    back = call.emit("Sub", [last, forth])
    places = call.emit("Where", [call.emit("Less", [forth, own]), back, forth])
    places = call.reshape(places, (*grid, 1))
    if time == 0:
        which = call.fold(
            lambda: np.tile(np.arange(count, dtype=np.int64)[:, None], (steps, 1, 1)),
            (*grid, 1),
            INT64,
        )
        places = call.emit("Concat", [places, which], axis=2)
    return [call.emit("GatherND", [x, places], batch_dims=time)]


def _numbers(call: Call, name: str, count: int, default: int, least: int) -> tuple[int, ...]:
    """An attribute with a number for each axis, or for each end of each."""
    found: Sequence[int] = call.attribute(name, (default,) * count)
    if len(found) != count or any(not least <= number < 1 << 31 for number in found):
        raise ModelError(f"attribute {name} is {found}; expected {count} numbers from {least}")
    return tuple(found)


def _column_to_image(call: Call) -> list[Value]:
    """A transposed convolution, whose weights put each cell of a window where it belongs."""
    x, extents, kernel = call.value(), call.integers(1), call.integers(2)
    check_rank(x.type, 3, 3)
    axes, taps = len(extents), math.prod(kernel)
    strides, dilations = (_numbers(call, n, axes, 1, 1) for n in ("strides", "dilations"))
    pads = _numbers(call, "pads", 2 * axes, 0, 0)
    fits = 1 <= axes <= 3 and len(kernel) == axes and min((*extents, *kernel), default=0) > 0
    if not fits or x.shape[1] % taps:
        raise ModelError(
            f"got {x.type}, images of {shape_text(extents)} and windows of {shape_text(kernel)}; "
            "expected one to three axes, and whole windows as channels"
        )
    if x.type.dtype not in FLOATS:
        raise UnsupportedError(f"sums windows of {x.type}; expected float32 or float64")
    steps = [(strides[i], dilations[i], pads[i], pads[axes + i]) for i in range(axes)]
    pairs = list(zip(extents, kernel, steps, strict=True))
    counts = [window_extent(extent, size, *step, False) for extent, size, step in pairs]
    if x.shape[2] != math.prod(counts):
        raise ModelError(f"got {x.type} for {shape_text(counts)} windows; expected one for each")
    channels, rows = x.shape[1] // taps, x.shape[1]
    weight = call.fold(
        lambda: np.tile(np.eye(taps, dtype=x.type.dtype), (channels, 1)).reshape(-1, 1, *kernel),
        (rows, 1, *kernel),
        x.type.dtype,
        taps * taps * x.type.dtype.bytes,
    )
    made = [
        transposed_extent(count, size, *step, 0)
        for count, (_, size, step) in zip(counts, pairs, strict=True)
    ]
    y = call.emit(
        "ConvTranspose",
        [call.reshape(x, (x.shape[0], rows, *counts)), weight],
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=channels,
        output_padding=tuple(e - m for e, m in zip(extents, made, strict=True)),
        activation=None,
    )
    return [y]


def _max_unpool(call: Call) -> list[Value]:
    """Zeros, with the elements that a pool has kept put back in their places."""
    x, places = call.value(), call.value(1)
    check_rank(x.type, 3, 5)
    axes = len(x.shape) - 2
    kernel = call.attribute("kernel_shape", ())
    strides, pads = _numbers(call, "strides", axes, 1, 1), _numbers(call, "pads", 2 * axes, 0, 0)
    if len(kernel) != axes or places.shape != x.shape or places.type.dtype != INT64:
        raise ModelError(
            f"got {x.type} with places {places.type} and kernel_shape {kernel}; expected a place "
            "for each element, and an extent for each axis"
        )
    steps = [(strides[i], 1, pads[i], pads[axes + i], 0) for i in range(axes)]
    pairs = zip(x.shape[2:], kernel, steps, strict=True)
    inner = tuple(transposed_extent(extent, size, *step) for extent, size, step in pairs)
    shape = checked((*x.shape[:2], *inner), x.type.dtype).shape
    zeros = call.builder.filled(np.zeros((), x.type.dtype), (math.prod(shape),))
    flat = [call.reshape(each, (x.type.elements,)) for each in (places, x)]
    y = call.emit("ScatterElements", [zeros, *flat], axis=0, reduction="none", padded=False)
    y = call.reshape(y, shape)
    if call.optional(2) is None:
        return [y]
    wanted = call.integers(2)
    missing = tuple(w - e for w, e in zip(wanted, shape, strict=len(wanted) == len(shape)))
    if len(wanted) != len(shape) or min(missing) < 0:
        raise ModelError(f"got the output_shape {wanted}; expected one that holds {shape}")
    pads = (0,) * len(shape) + missing
    return [call.emit("Pad", [y], pads=pads, mode="constant", value=0)]


RULES: dict[str, Rule] = {
    "CenterCropPad": Rule(_center_crop_pad, {"axes": "ints"}, 2, 2, since=18, moves=True),
    "ReverseSequence": Rule(
        _reverse_sequence,
        {"batch_axis": "int", "time_axis": "int"},
        2,
        2,
        running=None,
        since=10,
        moves=True,
    ),
    "Col2Im": Rule(
        _column_to_image, {"dilations": "ints", "pads": "ints", "strides": "ints"}, 3, 3, since=18
    ),
    "MaxUnpool": Rule(
        _max_unpool,
        {"kernel_shape": "ints", "pads": "ints", "strides": "ints"},
        2,
        3,
        running=(0, 1),
        since=9,
    ),
}
