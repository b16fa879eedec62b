"""The parts of a convolution that Winograd computes with one kernel, at several places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from leanconv.algorithms.interface import KernelUse
from leanconv.algorithms.winograd.decompose import Part, Range
from leanconv.algorithms.winograd.kernel import WinogradConv


def pieces_of(
    parts: Sequence[Part],
    kernels: Sequence[WinogradConv],
    names: Mapping[tuple[Range, Range], str],
) -> tuple[list[KernelUse], dict[str, np.ndarray]]:
    """The kernels in order, and where those lie that compute several parts.

    Parts that differ in nothing but their places are one kernel. The cuts of a long kernel come
    one after the other, as they add up; the residues of a dilation have nothing to do with each
    other.

    Args:
        parts: what a problem is taken apart into.
        kernels: of each.
        names: roles of the packed weights, by the taps they are of.
    """
    alike: dict[tuple[str, WinogradConv], list[tuple[Part, WinogradConv]]] = {}
    for part, kernel in zip(parts, kernels, strict=True):
        anywhere = replace(kernel, x_offset=0, y_offset=0)
        alike.setdefault((names[part.taps], anywhere), []).append((part, kernel))
    order = list(names.values())
    uses: list[KernelUse] = []
    places: dict[str, np.ndarray] = {}
    for (name, kernel), found in sorted(alike.items(), key=lambda item: order.index(item[0][0])):
        part, one = found[0]
        roles = {"w": name, "residual": "y" if part.adds_up else "residual"}
        if len(found) > 1:
            roles["places"] = f"places{len(places)}"
            offsets = [(k.x_offset, k.y_offset) for _, k in found]
            places[roles["places"]] = np.array(offsets, np.int64)
            one = replace(kernel, places=len(found))
        uses.append(KernelUse(one, tuple(roles.get(o, o) for o in one.operands)))
    return uses, places
