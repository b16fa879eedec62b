"""Weights of a later stage or panel, prefetched into L2 while a convolution multiplies."""

from __future__ import annotations

from leanconv.algorithms.direct.packed import PackedConv
from leanconv.codegen.emitter import Function, Value
from leanconv.spec.format import ALIGNMENT, ceil_div


def prefetch_offsets(
    e: Function, conv: PackedConv, prefetched: Value, weights: Value, tiles: int, tile: Value
) -> tuple[Value, ...]:
    """Distances from the weights of a reduction step to the lines that the step prefetches.

    Every tile of a panel reads all weights of the panel again. Each tile prefetches other lines, so
    that all tiles together cover the later stage's weights.

    Args:
        e: the function under construction.
        conv: the convolution, which prefetches `conv.prefetch_bytes`.
        prefetched, weights: addresses of the later stage's weights and of the convolution's own.
        tiles, tile: the number of tiles of a panel, and the index of this one.

    Returns:
        Distances in elements, one for each line.
    """
    item, elements = conv.precision.w.bytes, conv.group_weights
    line = ALIGNMENT // item
    lines = ceil_div(conv.panel_lanes, line)
    slots = max(1, round(conv.prefetch_bytes / (elements * item))) * lines
    each = ceil_div(slots, tiles)
    start, own = (e.index(e.convert("ptrtoint", each, "i64")) for each in (prefetched, weights))
    away = (start - own) // item
    offsets = []
    for i in range(each):
        slot = e.smin(tile * each + i, slots - 1)
        offsets.append(away + (slot // lines * elements + slot % lines * line))
    return tuple(offsets)


def panel_ahead(e: Function, conv: PackedConv, tile: Value, lines: int) -> Value:
    """The distance from the weights of a step to the next panel's line that it prefetches.

    Args:
        e: the function under construction.
        conv: the convolution.
        tile: the index of the tile among those of its panel; tile i prefetches line i of each step.
        lines: of a step.
    """
    line = ALIGNMENT // conv.precision.w.bytes
    return e.smin(tile, lines - 1) * line + conv.packed_reduction * conv.panel_lanes
