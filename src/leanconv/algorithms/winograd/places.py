"""Merging the parts of a convolution that differ only in their offsets into one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from leanconv.algorithms.decompose import Range
from leanconv.algorithms.interface import KernelUse
from leanconv.algorithms.winograd.kernel import WinogradConv
from leanconv.algorithms.winograd.parts import Part
from leanconv.algorithms.winograd.shape import WinogradShape


def pieces_of(
    parts: Sequence[Part],
    shapes: Sequence[WinogradShape],
    names: Mapping[tuple[Range, Range], str],
) -> tuple[list[KernelUse], dict[str, np.ndarray]]:
    """The kernels in order, and the offsets of those that compute several parts.

    Parts that differ only in their offsets in x and y are one kernel. The cuts of a long kernel run
    one after the other, as they add up in y; residues of a dilation are independent.

    Args:
        parts: the parts of a problem.
        shapes: the shape of each part.
        names: roles of the packed weights, by their taps.

    Returns:
        The kernels, and by role the offsets (parts, 2) of x and y in elements.
    """
    alike: dict[tuple[str, WinogradShape], list[tuple[Part, WinogradShape]]] = {}
    for part, shape in zip(parts, shapes, strict=True):
        anywhere = replace(shape, x_offset=0, y_offset=0)
        alike.setdefault((names[part.taps], anywhere), []).append((part, shape))
    order = list(names.values())
    uses: list[KernelUse] = []
    places: dict[str, np.ndarray] = {}
    for (name, shape), found in sorted(alike.items(), key=lambda item: order.index(item[0][0])):
        part, one = found[0]
        roles = {"w": name, "residual": "y" if part.adds_up else "residual"}
        if len(found) > 1:
            roles["places"] = f"places{len(places)}"
            offsets = [(s.x_offset, s.y_offset) for _, s in found]
            places[roles["places"]] = np.array(offsets, np.int64)
            one = replace(shape, places=len(found))
        kernel = WinogradConv(one)
        uses.append(KernelUse(kernel, tuple(roles.get(o, o) for o in kernel.operands)))
    return uses, places
