"""Where a network's constants stand: one block, filled once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from leanconv.errors import LeanConvError
from leanconv.planner.lowering import LoweredGraph
from leanconv.runtime.memory import Block
from leanconv.spec.format import aligned


def weight_places(lowered: LoweredGraph) -> tuple[dict[str, int], int]:
    """Offsets of constants in the weights' block, and its bytes.

    Arrays of one identity are stored once.
    """
    places: dict[str, int] = {}
    seen: dict[int, int] = {}
    end = 0
    for name, array in lowered.constants.items():
        if id(array) not in seen:
            seen[id(array)] = end
            end += aligned(array.nbytes)
        places[name] = seen[id(array)]
    for packing in lowered.packings:
        for name, size in packing.bytes.items():
            places[name] = end
            end += aligned(size)
    return places, end


def fill_weights(weights: Block, lowered: LoweredGraph, places: Mapping[str, int]) -> None:
    """Bring all constants to their places; what is packed on the way is let go at once.

    Raises:
        LeanConvError: there is no memory to pack in.
    """
    try:
        _fill(weights, lowered, places)
    except MemoryError as error:
        raise LeanConvError(
            f"memory to pack weights in could not be had ({error}); give a smaller memory_limit, "
            "or free memory"
        ) from error


def _fill(weights: Block, lowered: LoweredGraph, places: Mapping[str, int]) -> None:
    packed = (item for packing in lowered.packings for item in packing.make().items())
    sizes = lowered.constant_bytes
    for name, array in itertools.chain(lowered.constants.items(), packed):
        assert array.nbytes == sizes[name], f"{name} has {array.nbytes} bytes, not {sizes[name]}"
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        weights.view(places[name], array.nbytes)[:] = data
