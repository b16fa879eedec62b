"""Weights of a later stage, prefetched into L2 while a convolution multiplies."""

from __future__ import annotations

from leanconv.codegen.emitter import Function, Value
from leanconv.spec.format import ALIGNMENT, ceil_div


def prefetch_offsets(
    e: Function,
    prefetched: Value,
    weights: Value,
    sizes: tuple[int, int, int],
    tiles: int,
    tile: Value,
    item: int,
) -> tuple[Value, ...]:
    """How far from a step's weights lie the lines that each step of a tile prefetches.

    The tiles of a panel read its weights over and over, and all panels together read all of them:
    each time another line for each step covers as much of what is prefetched, or a part of it.

    Args:
        e: the function that is emitted.
        prefetched, weights: where the later stage's weights begin, and the convolution's own.
        sizes: bytes to prefetch, elements of the own weights, and of them those of a step.
        tiles, tile: tiles that a panel computes, and which one this is.
        item: bytes of an element.

    Returns:
        Distances in elements, one for each line.
    """
    size, elements, step = sizes
    line = ALIGNMENT // item
    lines = ceil_div(step, line)
    slots = max(1, round(size / (elements * item))) * lines
    each = ceil_div(slots, tiles)
    start, own = (e.convert("ptrtoint", pointer, "i64") for pointer in (prefetched, weights))
    away = (start - own) // item
    offsets = []
    for i in range(each):
        slot = e.smin(tile * each + i, slots - 1)
        offsets.append(away + (slot // lines * elements + slot % lines * line))
    return tuple(offsets)
