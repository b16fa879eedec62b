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
    """Distances from the weights of a reduction step to the lines that the step prefetches.

    Every tile of a panel reads all weights of the panel again. Each tile prefetches other lines, so
    that all tiles together cover the later stage's weights.

    Args:
        e: the function under construction.
        prefetched, weights: addresses of the later stage's weights and of the convolution's own.
        sizes: bytes to prefetch; elements of the own weights; elements that one step reads.
        tiles, tile: the number of tiles of a panel, and the index of this one.
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
