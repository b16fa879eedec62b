"""Precisions of layers: the rungs between 8-bit integers and float32.

| precision | weights | what a layer reads  | how leanconv computes it                    |
|-----------|---------|---------------------|---------------------------------------------|
| `int8`    | int8    | uint8 codes         | on integers                                 |
| `w8a16`   | int8    | uint16 codes        | in float32: only bytes of the file are less |
| `float16` | float16 | halves              | in float32, weights and values as halves    |
| `float32` | float32 | floats              | in float32                                  |

A choice names the precision of each layer that is not in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

INT8, W8A16, FLOAT16, FLOAT32 = "int8", "w8a16", "float16", "float32"
RUNGS = (INT8, W8A16, FLOAT16, FLOAT32)  # from the smallest numbers to the largest
FINER = (W8A16, FLOAT16)  # rungs between the two that every layer has

Rungs = Mapping[str, str]
"""The precision of layers by the nodes' names; of those that are not there it is float32."""


def all_in(names: Iterable[str], rung: str = INT8) -> dict[str, str]:
    """The choice in which layers have the same precision."""
    return dict.fromkeys(names, rung)


def named(rungs: Rungs, *wanted: str) -> set[str]:
    """The layers that have one of some precisions."""
    return {name for name, rung in rungs.items() if rung in wanted}


def key(rungs: Rungs) -> tuple[tuple[str, str], ...]:
    """What is equal for equal choices, and can be hashed."""
    return tuple(sorted((name, rung) for name, rung in rungs.items() if rung != FLOAT32))
