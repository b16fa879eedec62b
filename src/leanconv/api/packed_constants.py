"""Weights, bias and slopes of a convolution as its kernels read them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.codegen.linking import Library
from leanconv.codegen.lowered import Calls
from leanconv.planner.packing import Preparation
from leanconv.runtime.memory import Block
from leanconv.spec.format import aligned_offsets
from leanconv.target import Target


class PackedConstants:
    """Packed constants in one block, which plans for several sizes may share.

    Args:
        sizes: bytes of each constant, by role.
        target: what to emit for.
        threads: that pack.

    Attributes:
        block: where they lie.
        bytes: of the block.
        magnitudes: of results and inputs for which the error that is stated with them holds.
    """

    def __init__(self, sizes: Mapping[str, int], target: Target, threads: int) -> None:
        self._offsets, self.bytes = aligned_offsets(sizes)
        self._target, self._threads = target, threads
        self.block = Block(self.bytes)
        self.magnitudes = Magnitudes(0.0, 0.0)
        self._preparation: Preparation | None = None
        self._library: Library | None = None  # what other constants are packed by, too

    def fill(
        self, calls: Callable[[], Calls], given: Sequence[np.ndarray], magnitudes: Magnitudes
    ) -> None:
        """Pack constants, in the place of those that are there.

        From the second time on, what packs is kept.

        Args:
            calls: gives what packs those that are given, row-major; always alike.
            given: weights, bias and slopes.
            magnitudes: see above.
        """
        if self._preparation is None:
            program = Preparation.of(calls(), self.operands, self._target, self._threads, given)
            self._preparation = program if self._library is not None else None
        else:
            program = self._preparation
        program.run(given)
        self._library = program.library
        self.magnitudes = magnitudes

    def copied(self) -> PackedConstants:
        """The same in memory of its own."""
        copied = copy.copy(self)
        copied.block = Block(self.bytes)
        copied.block.write(0, self.block.view(0, self.bytes))
        copied._preparation = None
        return copied

    @property
    def operands(self) -> dict[str, int]:
        """The address of each constant, by its role."""
        return {role: self.block.address + offset for role, offset in self._offsets.items()}
