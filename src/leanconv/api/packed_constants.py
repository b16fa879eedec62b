"""Weights, bias and slopes of a convolution as its kernels read them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.runtime.memory import Block
from leanconv.spec.format import aligned_offsets


class PackedConstants:
    """Packed constants in one block, which plans for several sizes may share.

    Attributes:
        block: where they lie.
        bytes: of the block.
        magnitudes: of results and inputs for which the error that is stated with them holds.
    """

    def __init__(self, packed: Mapping[str, np.ndarray], magnitudes: Magnitudes) -> None:
        self.magnitudes = magnitudes
        sizes = {role: array.nbytes for role, array in packed.items()}
        self._offsets, self.bytes = aligned_offsets(sizes)
        self.block = Block(self.bytes)
        self._fill(packed)

    def _fill(self, packed: Mapping[str, np.ndarray]) -> None:
        for role, array in packed.items():
            self.block.write(self._offsets[role], array)

    def replace(self, packed: Mapping[str, np.ndarray], magnitudes: Magnitudes) -> None:
        """Write others of the same sizes in their place."""
        self._fill(packed)
        self.magnitudes = magnitudes

    def copied(self) -> PackedConstants:
        """The same in memory of its own."""
        names = sorted(self._offsets, key=lambda role: self._offsets[role])
        ends = [*(self._offsets[role] for role in names[1:]), self.bytes]
        parts = {
            role: self.block.view(self._offsets[role], end - self._offsets[role])
            for role, end in zip(names, ends, strict=True)
        }
        return PackedConstants(parts, self.magnitudes)

    @property
    def operands(self) -> dict[str, int]:
        """The address of each constant, by its role."""
        return {role: self.block.address + offset for role, offset in self._offsets.items()}
