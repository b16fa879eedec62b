"""Weights whose pairs exceed 16 bits, as weights that fit and what is left of them.

Products of bytes are added up by twos in int16 (`codegen.dot`: "bytes"), which holds all sums where
two weights of one sign that lie beside each other are together 128 at most. Others are taken apart:

    w[i] = fitting[i] + excess[i]       fitting[i] = ±128 - w[i + 1] for the first of two, else w[i]

Where the kernel adds up products by fours ("fours"), four weights of one sign are together 128 at
most: two that lie beside each other, and two of the next group. Of others the first group is all
excess. There all sums of two fit.

The kernel multiplies `fitting` in its loops over all weights, and behind them what of `excess` is
not 0, in vectors of a group for each output, with the place of each:

    excess [entry][lane][group]                       of a vector of outputs one after the other
    places [vector][tap] | end | [entry]              first entries, the number of all, places

    for entry of vector:  acc[i] += dot(x at place of the entry of column i, excess[entry])

Sums are those of w, bit by bit: each of both parts is exact. A place is a group of input channels
with the numbers of its tap along the three axes, as the code serves all sizes of images.
"""

from __future__ import annotations

from math import prod

import numpy as np

from leanconv.algorithms.direct.shape import GROUP_BITS, TAP_BITS, DirectShape
from leanconv.algorithms.magnitudes import TWO_GROUPS, exceeding, fours_exceeding
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import RegisterTile
from leanconv.kernels.packing import copied
from leanconv.spec.format import ceil_div
from leanconv.types import MOST_OF_TWO


def fitting_weights(w: np.ndarray, fours: bool = False) -> np.ndarray:
    """Return weights (K, C, taps…) without what exceeds: of the first of each two, or a group."""
    flat = w.reshape(*w.shape[:2], -1)
    even = np.pad(flat, ((0, 0), (0, -w.shape[1] % TWO_GROUPS), (0, 0)))
    if fours:
        first = even.reshape(len(w), -1, 2, TWO_GROUPS // 2, flat.shape[2])[:, :, 0]
        first *= ~fours_exceeding(even)[:, :, None]
    else:
        first, second = even[:, ::2], even[:, 1::2]
        held = np.where(first > 0, MOST_OF_TWO, -MOST_OF_TWO) - second
        first[:] = np.where(exceeding(even)[:, ::2], held, first)
    return even[:, : w.shape[1]].reshape(w.shape)


def calls_apart(kernel: DirectShape, w: np.ndarray) -> dict[str, list[PackCall]]:
    """Return the calls that pack weights (K, C, taps…) that fit, what exceeds, and its places."""
    fitting = fitting_weights(w, kernel.way == "fours")
    lanes, group, taps = kernel.lanes, kernel.dot_group, kernel.conv.window.kernel
    left = (w - fitting).reshape(*w.shape[:2], -1)
    rest = -len(w) % lanes, kernel.packed_inputs - kernel.conv.inputs
    left = np.pad(left, ((0, rest[0]), (0, rest[1]), (0, 0)))
    # [vector][tap][group of channels][lane][channel of the group]
    steps = left.reshape(-1, lanes, kernel.packed_inputs // group, group, left.shape[2])
    steps = steps.transpose(0, 4, 2, 1, 3)
    found = steps.any(axis=(3, 4))
    _, tap, channels = np.nonzero(found)
    places = channels
    for axis, number in enumerate(np.unravel_index(tap, taps)):
        places = places | number << (GROUP_BITS + axis * TAP_BITS)
    firsts = np.concatenate([[0], np.cumsum(found.sum(axis=2).reshape(-1))])
    assert firsts[-1] == kernel.excess, f"{firsts[-1]} vectors that exceed"
    numbers = np.concatenate([firsts, places]).astype(np.int32)
    apart = {"excess": copied(steps[found]), "places": copied(numbers)}
    return {"w": kernel.weight_calls(fitting), **apart}


def add_excess(
    e: Function,
    kernel: DirectShape,
    tile: RegisterTile,
    acc: list[Value],
    columns: tuple[int, ...],
    a: Pointer,
    at: tuple[Pointer, Pointer, Value],
    taps: tuple[Value | int, Value | int],
) -> None:
    """Add what exceeds of some taps to a tile's sums.

    Args:
        e: the function under construction.
        kernel: the convolution.
        tile: types and strides.
        acc: the sums.
        columns: of the tile that these taps touch.
        a: the input of the tile's first column at tap 0, perhaps in the padding.
        at: addresses of the vectors and the places, and the first vector of outputs of the panel.
        taps: the first one and the one past the last, of all that follow each other.
    """
    excess, places, vector = at
    count = prod(kernel.conv.window.kernel)
    entries = places.at(ceil_div(kernel.conv.outputs, kernel.lanes) * count + 1)
    size = kernel.lanes * kernel.dot_group
    for j in range(tile.vectors):
        firsts = places.at((vector + j) * count)
        low, high = (e.index(e.convert("sext", e.load(firsts.at(tap)), "i64")) for tap in taps)
        slots = [i * tile.vectors + j for i in columns]
        sums = [acc[slot] for slot in slots]
        with e.when(low.compare("slt", high), [sums]), e.loop("entry", high, [sums], low) as entry:
            b = tile.dot.load(e, excess.at(entry * size), tile.kind, tile.lanes)
            there = a.at(_offset(e, kernel, e.load(entries.at(entry))))
            for number, i in enumerate(columns):
                x = tile.dot.broadcast(e, tile.row(there, i), tile.kind)
                sums[number] = tile.dot.add(e, sums[number], x, b)
        for slot, value in zip(slots, sums, strict=True):
            acc[slot] = value


def _offset(e: Function, kernel: DirectShape, place: Value) -> Value:
    """Elements from a tile's input at tap 0 to a place."""
    conv, group = kernel.conv, kernel.dot_group
    word = e.index(e.convert("zext", place, "i64"))
    number = word & ((1 << GROUP_BITS) - 1)
    each = max(1, conv.x.block // group)  # groups of a block
    offset = number // each * (conv.x.block_stride if conv.x.block > 1 else group)
    if each > 1:
        offset = offset + number % each * group
    for axis, taps in enumerate(conv.window.kernel):
        if taps > 1:
            tap = word // (1 << (GROUP_BITS + axis * TAP_BITS)) & ((1 << TAP_BITS) - 1)
            offset = offset + tap * (conv.window.dilation[axis] * conv.x.spatial[axis])
    return offset
