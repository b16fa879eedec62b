"""Packs constants as networks do, on this machine, whatever target they are packed for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from leanconv.algorithms.interface import Candidate
from leanconv.codegen.half_stored import HalfStored
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Calls, PackCall, Packing
from leanconv.kernels.packing import Rearrangement
from leanconv.planner.packing import Preparation
from leanconv.target import Target, preset
from leanconv.types import as_dtype
from support.guard_pages import Region


class PacksWeights(Protocol):
    """A kernel that says how its weights are packed."""

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """What packs weights."""


class PacksChannels(Protocol):
    """A kernel that says how numbers for each output channel are packed."""

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """What packs one number for each, or several."""


# What runs here whatever this machine is: which one it is decides nothing of what is packed.
HERE = preset("haswell" if host().triple.startswith("x86_64") else "neoverse-n1")


def made_by(calls: Calls, threads: int = 1, target: Target = HERE) -> dict[str, np.ndarray]:
    """What calls make, by name, each before a page that nobody may touch.

    Every byte is 0xFF before, so that one that no call writes is likely to show.

    Args:
        calls: by name, the pieces of each one after the other.
        threads: that take part.
        target: what the code that packs is compiled for; it must run here.
    """
    regions = {
        name: Region(sum(call.bytes for call in pieces), 64, at="end")
        for name, pieces in calls.items()
    }
    addresses = {name: region.address for name, region in regions.items()}
    if any(calls.values()):
        Preparation.of(calls, addresses, target, threads).run()
    for region in regions.values():
        region.check()
    return {n: region.data.view(_made_type(calls[n])).copy() for n, region in regions.items()}


def _made_type(calls: Sequence[PackCall]) -> np.dtype:
    """The type of what calls make: an element that is only moved has that of where it was."""
    found = set[np.dtype]()
    for call in calls:
        kernel: Kernel = call.kernel
        halves: tuple[str, ...] = ("",)
        if isinstance(kernel, HalfStored):
            halves, kernel = kernel.halves, kernel.kernel
        if halves[-1]:
            found.add(np.dtype(as_dtype(halves[-1]).numpy))
        elif isinstance(kernel, Rearrangement) and not halves[0]:
            found.add(call.source().dtype)
        else:
            found.add(np.dtype(kernel.dtype.numpy))  # type: ignore[attr-defined]
    assert len(found) <= 1, f"calls make numbers of {len(found)} types"
    return found.pop() if found else np.dtype(np.uint8)


def packed_constants(
    candidate: Candidate,
    w: np.ndarray,
    channels: Mapping[str, np.ndarray] | None = None,
    threads: int = 1,
    target: Target = HERE,
) -> dict[str, np.ndarray]:
    """A candidate's constants by role, each of as many bytes as it says.

    Args:
        candidate: what reads them.
        w: weights, any view.
        channels: {"bias": …, "slope": …}.
        threads, target: as for `made_by`.
    """
    made = made_by(candidate.packing(w, channels or {}), threads, target)
    for role, array in made.items():
        assert array.nbytes == candidate.constant_bytes[role], role
    return made


def packed_weights(kernel: PacksWeights, w: np.ndarray) -> np.ndarray:
    """Weights as a kernel reads them."""
    return made_by({"w": kernel.weight_calls(w)})["w"]


def packed_channels(kernel: PacksChannels, values: np.ndarray) -> np.ndarray:
    """Numbers for each output channel as a kernel reads them."""
    return made_by({"values": kernel.channel_calls(values)})["values"]


def packed_by(packing: Packing) -> dict[str, np.ndarray]:
    """What a packing makes, each constant of as many bytes as it says."""
    made = made_by(packing.calls())
    assert {name: array.nbytes for name, array in made.items()} == dict(packing.bytes)
    return made
