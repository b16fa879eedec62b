"""Base of the kernels of direct convolution: weights packed in panels of output channels.

    w [group][panel][kd][kh][kw][c][vectors·lanes]                                   elements
    w [group][panel][kd][kh][kw][c / group of a dot][vectors·lanes][group of a dot]  groups

One contiguous stream, in the order in which a panel's reduction reads it. Where a step multiplies a
group of elements, the channels are padded to whole groups with weights of zero. Several
convolutions that differ only in their weights and in where they write (the phases of a transposed
one) are one kernel, with their packed weights one after the other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from leanconv.algorithms.common.channels import pack_channels
from leanconv.algorithms.common.grouped_conv import GroupedConv
from leanconv.algorithms.common.panel_packing import PanelPacking
from leanconv.codegen.dot import group_of
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.extents import Extent
from leanconv.codegen.half_stored import halved_calls
from leanconv.codegen.lowered import PackCall
from leanconv.half_arrays import in_memory
from leanconv.records import dataclass
from leanconv.spec.amounts import reduction_length
from leanconv.spec.format import ceil_div
from leanconv.types import FLOAT32, HALVES, INT64

_PIECE_ELEMENTS = 64 * 1024  # of the weights of small groups, which are packed at once


@dataclass(frozen=True, kw_only=True)
class PackedConv(GroupedConv):
    """One convolution, or several that differ in weights and output offset (`phases`).

    Attributes:
        lanes: lanes of a vector.
        y_offset: elements from the output's start to the first one written.
        prefetch_bytes: bytes of one more operand, the weights of a later stage: they are
            prefetched into L2, line by line with the steps of the reduction. 0: none.
        phases: the number of these convolutions. If several, one more operand, `offsets`, has for
            each an i64: elements from the output's start to where it writes.
    """

    lanes: int
    y_offset: Extent = 0
    prefetch_bytes: int = 0
    phases: int = 1

    @property
    @abstractmethod
    def panel_vectors(self) -> int:
        """Vectors of output channels of one panel."""

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, packed weights, what the epilogue needs, offsets, what is prefetched, output."""
        *before, y = super().operands
        offsets = ("offsets",) * (self.phases > 1)
        return (*before, *offsets, *("prefetched",) * (self.prefetch_bytes > 0), y)

    @property
    def flops(self) -> int:
        """Operations of the plain sums, padding counted."""
        return self.phases * super().flops

    @property
    def panel_lanes(self) -> int:
        """Output channels of one panel."""
        return self.panel_vectors * self.lanes

    @property
    def panels(self) -> int:
        """Panels of one group's output channels, the last one perhaps narrower."""
        return ceil_div(self.outputs, self.panel_lanes)

    @property
    def last_vectors(self) -> int:
        """Vectors of the last panel."""
        rest = self.outputs - (self.panels - 1) * self.panel_lanes
        return ceil_div(rest, self.lanes)

    @property
    def dot_group(self) -> int:
        """Input channels that one step multiplies."""
        return group_of(self.precision)

    @property
    def packed_inputs(self) -> int:
        """Input channels of one group, in whole steps."""
        return ceil_div(self.inputs, self.dot_group) * self.dot_group

    @property
    def packed_reduction(self) -> int:
        """Packed weights of one output."""
        return reduction_length(self.packed_inputs, self.window.kernel)

    @property
    def steps(self) -> int:
        """Steps of the reduction, those with padding counted."""
        return self.packed_reduction // self.dot_group

    @property
    def packed_channels(self) -> int:
        """Output channels in whole panels, all groups together."""
        return self.groups * self.panels * self.panel_lanes

    @property
    def group_weights(self) -> int:
        """Packed weight elements of one group."""
        vectors = (self.panels - 1) * self.panel_vectors + self.last_vectors
        return self.packed_reduction * vectors * self.lanes

    @property
    def weight_uses(self) -> float | None:
        """Multiply-adds with each packed weight; None with groups, whose panels are small."""
        if self.groups > 1:
            return None
        return self.flops * self.precision.w.bytes / (2 * self.constant_bytes["w"])

    @property
    def prefetch_steps(self) -> float | None:
        """All its vector multiply-adds; 0.0 if it has groups or prefetches already."""
        free = self.groups == 1 and not self.prefetch_bytes
        return self.flops / (2 * self.lanes) if free else 0.0

    def with_prefetch(self, size: int) -> PackedConv:
        """This kernel, prefetching `size` bytes of a later kernel's weights as well."""
        return replace(self, prefetch_bytes=size)

    @property
    def packing(self) -> Hashable:
        """Channels, taps and the width of a panel."""
        shape = self.groups, self.inputs, self.outputs, self.window.kernel, self.panel_vectors
        stream = self.lanes, self.dot_group, self.phases, self.precision
        return PackedConv, shape, stream, self.epilogue.operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Panels of weights for each phase, bias and slopes in whole panels, phases' offsets."""
        sizes = {"w": self.phases * self.groups * self.group_weights * self.precision.w.bytes}
        sizes |= self.epilogue.channel_bytes(self.precision.accumulate, self.packed_channels)
        return sizes | ({"offsets": self.phases * INT64.bytes} if self.phases > 1 else {})

    def pack_weights(self, w: np.ndarray) -> np.ndarray:
        """Pack weights (K, C/g, kd, kh, kw) into the stream that the kernel reads."""
        packed = np.empty(self.groups * self.group_weights, self.precision.w.numpy)
        end = 0
        for piece in self.weight_pieces(w):
            packed[end : end + piece.size] = piece
            end += piece.size
        return packed

    def weight_pieces(self, w: np.ndarray) -> Iterator[np.ndarray]:
        """The panels of `pack_weights`, one after the other.

        A piece is one panel, or several groups where these are small.
        """
        grouped = w.reshape(self.groups, self.outputs, self.inputs, *self.window.kernel)
        together = max(1, _PIECE_ELEMENTS // self.group_weights)
        if together > 1:
            for first in range(0, self.groups, together):
                some = grouped[first : first + together]
                panels = [self._packed(some, p) for p in range(self.panels)]
                yield np.concatenate(panels, axis=1).reshape(-1)
            return
        for group in range(self.groups):
            for panel in range(self.panels):
                yield self._packed(grouped[group : group + 1], panel).reshape(-1)

    def _packed(self, grouped: np.ndarray, panel: int) -> np.ndarray:
        """One panel of some groups' weights (g, K/g, C/g, kd, kh, kw), as (g, elements)."""
        part = grouped[:, panel * self.panel_lanes : (panel + 1) * self.panel_lanes]
        vectors = self.last_vectors if panel == self.panels - 1 else self.panel_vectors
        taps = part.transpose(0, 3, 4, 5, 2, 1)
        width, group = vectors * self.lanes, self.dot_group
        dtype = self.precision.w
        packed = np.zeros((*taps.shape[:4], self.packed_inputs, width), dtype.numpy)
        packed[..., : self.inputs, : part.shape[1]] = in_memory(taps, dtype)
        if group > 1:
            packed = packed.reshape(*taps.shape[:4], -1, group, width).swapaxes(-1, -2)
        return packed.reshape(len(grouped), -1)

    def weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Compiled code that packs what `pack_weights` does, where a row has a vector's weights."""
        taps, row = prod(self.window.kernel), self.reduction
        if self.phases > 1 or self.dot_group > 1 or row < self.lanes or not w.flags.c_contiguous:
            return []

        @cache
        def places() -> tuple[np.ndarray, ...]:
            steps = np.arange(row, dtype=np.int64).reshape(taps, self.inputs)
            return (np.ascontiguousarray(steps.T),)

        sizes = self.groups, self.outputs, row, self.panel_vectors
        dtype = self.precision.w
        if dtype not in HALVES:
            return PanelPacking(*sizes, self.lanes, dtype).calls(w, places)
        if w.dtype != FLOAT32:
            return []
        return halved_calls(PanelPacking(*sizes, self.lanes, FLOAT32).calls(w, places), dtype)

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """Pack one number for each output channel (bias, slope), zero past the last."""
        return pack_channels(values, self.groups, self.panels * self.panel_lanes)

    def of_phase(
        self, e: Function, pointers: dict[str, Pointer], n: Value
    ) -> tuple[dict[str, Pointer], Value]:
        """The operands' addresses and the image, of index `n` over phases by images."""
        if self.phases == 1:
            return pointers, n
        phase, n = (n, e.i64(0)) if self.batch == 1 else (n // self.batch, n % self.batch)
        offset = e.load_index(pointers["offsets"].at(phase))
        weights = pointers["w"].at(phase * (self.groups * self.group_weights))
        return {**pointers, "w": weights, "y": pointers["y"].at(offset)}, n
