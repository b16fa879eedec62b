"""Typical sizes: code or a choice that serves a range of sizes is chosen for one of them.

The algorithm of a layer of any size is chosen for a map of `SIDE` outputs along each such axis, and
so are plans that are searched for a network (`input_side`). A register tile for any number of rows,
columns or pixels is chosen for `ANY_COUNT` of them. Where choices differ from range to range of
sizes, `representative` is the size for one of them.
"""

from __future__ import annotations

SIDE = 96  # a multiple of 32, as many networks want it
ANY_COUNT = 840  # whole tiles of 1 to 8, 10, 12 and 14

# The end of each range, and the extent that represents it.
_BATCHES = {4: 4, 16: 14, 64: 56, 256: 224}
_SIZES = {64: 56, 1024: 224}
# The extent that represents the open sizes of a network's inputs, by their geometric mean. A
# YOLOv8n's plan for 96 is within 0.05 of the best one up to 192, of 0.1 up to 256, that for 384
# within 0.02 from 320 on.
_INPUTS = {192: SIDE, 1024: 4 * SIDE}


def representative(extent: int, axis: int) -> int:
    """Return the extent that represents all of its range: a batch along axis 0, else a size.

    Sizes up to 64 and up to 1024 are two ranges: what is chosen differs little within one, and each
    new range costs as much time as a network's first shape. Beyond all ranges it is
    7/8 of the power of four that an extent does not exceed.
    """
    for end, stands in (_SIZES if axis else _BATCHES).items():
        if extent <= end:
            return stands
    power = end
    while power < extent:
        power *= 4
    return power * 7 // 8


def input_side(product: int, sides: int) -> int:
    """Return the extent that represents each of a network's open sides, from their product."""
    for end, stands in _INPUTS.items():
        if product <= end**sides:
            return stands
    while end**sides < product:
        end, stands = 4 * end, 4 * stands
    return stands
