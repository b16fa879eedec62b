"""Shapes of the kernels of direct convolution: packed weights, register tile, bands, loop order.

`PackedConv` is the base of all of them: weights packed in panels of output channels.

    w [group][panel][kd][kh][kw][c][vectors·lanes]                                   elements
    w [group][panel][kd][kh][kw][c / group of a dot][vectors·lanes][group of a dot]  groups

One contiguous stream, in the order in which a panel's reduction reads it. Where a step multiplies a
group of elements, the channels are padded to whole groups with weights of zero. Several
convolutions that differ only in their weights and in where they write (the phases of a transposed
one) are one kernel, with their packed weights one after the other.

Weights of a later stage or panel are prefetched into L2 while a convolution multiplies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable
from functools import cache, partial
from math import prod

import numpy as np

from leanconv.algorithms.common.conv import GroupedConv
from leanconv.algorithms.common.weight_packing import PanelPacking, in_pieces
from leanconv.algorithms.common.weight_runs import packing_call
from leanconv.codegen.dot import Dot, Way, dot_of, group_by, group_of
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.half_stored import HALF_PRODUCTS, halved_calls
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import UNROLL_LIMIT
from leanconv.codegen.partial_sums import LENGTH
from leanconv.codegen.tiling import Tile
from leanconv.kernels import packing
from leanconv.kernels.packing import Order
from leanconv.records import dataclass, replace
from leanconv.spec.conv import reduction_length, sum_flops
from leanconv.spec.format import ALIGNMENT, ceil_div
from leanconv.symbolic import Count, Extent
from leanconv.types import FLOATS, HALVES, INT32, INT64, as_dtype

GROUP_BITS, TAP_BITS = 16, 5  # of the place of a weight: its group, its tap along each axis


@dataclass(frozen=True, kw_only=True)
class PackedConv(GroupedConv):
    """One convolution, or several that differ in weights and output offset (`phases`).

    Attributes:
        lanes: lanes of a vector.
        prefetch_bytes: bytes of one more operand, the weights of a later stage: they are
            prefetched into L2, line by line with the steps of the reduction. 0: none.
        phases: the number of these convolutions. If several, one more operand, `offsets`, has for
            each an i64: elements from the output's start to where it writes.
    """

    lanes: int
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
        return ceil_div(self.conv.outputs, self.panel_lanes)

    @property
    def last_vectors(self) -> int:
        """Vectors of the last panel."""
        rest = self.conv.outputs - (self.panels - 1) * self.panel_lanes
        return ceil_div(rest, self.lanes)

    @property
    def dot_group(self) -> int:
        """Input channels that one step multiplies."""
        return group_of(self.conv.precision)

    @property
    def packed_inputs(self) -> int:
        """Input channels of one group, in whole steps."""
        return ceil_div(self.conv.inputs, self.dot_group) * self.dot_group

    @property
    def packed_reduction(self) -> int:
        """Packed weights of one output."""
        return reduction_length(self.packed_inputs, self.conv.window.kernel)

    @property
    def steps(self) -> int:
        """Steps of the reduction, those with padding counted."""
        return self.packed_reduction // self.dot_group

    @property
    def packed_channels(self) -> int:
        """Output channels in whole panels, all groups together."""
        return self.conv.groups * self.panels * self.panel_lanes

    @property
    def group_weights(self) -> int:
        """Packed weight elements of one group."""
        vectors = (self.panels - 1) * self.panel_vectors + self.last_vectors
        return self.packed_reduction * vectors * self.lanes

    @property
    def weight_uses(self) -> float | None:
        """Multiply-adds with each packed weight; None with groups, whose panels are small."""
        if self.conv.groups > 1:
            return None
        return self.flops * self.conv.precision.w.bytes / (2 * self.constant_bytes["w"])

    @property
    def prefetch_steps(self) -> float | None:
        """All its vector multiply-adds; 0.0 if it has groups or prefetches already."""
        free = self.conv.groups == 1 and not self.prefetch_bytes
        return self.flops / (2 * self.lanes) if free else 0.0

    def with_prefetch(self, size: int) -> PackedConv:
        """This kernel, prefetching `size` bytes of a later kernel's weights as well."""
        return replace(self, prefetch_bytes=size)

    @property
    def packing(self) -> Hashable:
        """Channels, taps and the width of a panel."""
        conv = self.conv
        shape = conv.groups, conv.inputs, conv.outputs, conv.window.kernel, self.panel_vectors
        stream = self.lanes, self.dot_group, self.phases, conv.precision
        return PackedConv, shape, stream, conv.epilogue.operands

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Panels of weights for each phase, bias and slopes in whole panels, phases' offsets."""
        conv = self.conv
        sizes = {"w": self.phases * conv.groups * self.group_weights * conv.precision.w.bytes}
        sizes |= conv.epilogue.channel_bytes(conv.precision.accumulate, self.packed_channels)
        return sizes | ({"offsets": self.phases * INT64.bytes} if self.phases > 1 else {})

    def weight_calls(self, w: np.ndarray, seen: Order | None = None) -> list[PackCall]:
        """Return the calls that pack weights into the stream that the kernel reads.

        Args:
            w: (K, C/g, kernel…), any view.
            seen: makes of it what this kernel multiplies, (K, C/g, kd, kh, kw); None if it is that.
        """
        conv, row = self.conv, prod(w.shape[1:])
        squares = 1 < self.lanes <= row and self.dot_group == 1
        apart = not squares or not w.flags.c_contiguous
        if apart or w.dtype not in FLOATS:
            grouped = w.reshape(conv.groups, conv.outputs, *w.shape[1:])
            order = partial(self._panels, seen=seen)
            return packing.panels(
                grouped, self.panel_lanes, order, self._panel_weights, conv.precision.w
            )

        @cache
        def places() -> tuple[np.ndarray, ...]:
            taps = self._taps(np.arange(row).reshape(1, *w.shape[1:]), seen)
            return (np.argsort(taps.reshape(-1)),)

        def panels(outputs: int) -> PanelPacking:
            sizes = conv.groups, outputs, row, self.panel_vectors
            return PanelPacking(*sizes, self.lanes, as_dtype(w.dtype))

        calls = in_pieces(panels, conv.outputs, self.panel_lanes, w, places)
        half = conv.precision.w
        return halved_calls(calls, half) if half in HALVES else calls

    def changing_weight_calls(self, w: np.ndarray) -> list[PackCall]:
        """Return the same calls for weights that change; of views, without a table of elements."""
        taken = self.dot_group == 1 < self.lanes and w.dtype == self.conv.precision.w.numpy
        if not taken or w.dtype not in FLOATS or w.flags.c_contiguous:
            return self.weight_calls(w)
        call = packing_call(w, self.conv.groups, self.panel_vectors, self.lanes)
        return self.weight_calls(w) if call is None else [call]

    def _panel_weights(self, outputs: int) -> int:
        """Packed elements of some outputs of a group."""
        return self.packed_reduction * ceil_div(outputs, self.lanes) * self.lanes

    def _taps(self, w: np.ndarray, seen: Order | None) -> np.ndarray:
        """Weights (k, …) as [kd][kh][kw][c][k]."""
        w = (w if seen is None else seen(w)).reshape(
            len(w), self.conv.inputs, *self.conv.window.kernel
        )
        return np.asarray(w.transpose(2, 3, 4, 1, 0))

    def _panels(self, w: np.ndarray, seen: Order | None) -> np.ndarray:
        """The order of the weights (k, …) of some outputs of a group: panel by panel."""
        taps, packed = self._taps(w, seen), []
        for first in range(0, len(w), self.panel_lanes):
            some = taps[..., first : first + self.panel_lanes]
            rest = self.packed_inputs - self.conv.inputs, -some.shape[-1] % self.lanes
            panel = np.pad(some, [*[(0, 0)] * 3, *((0, n) for n in rest)])
            if self.dot_group > 1:
                steps = panel.reshape(*panel.shape[:3], -1, self.dot_group, panel.shape[-1])
                panel = steps.swapaxes(-1, -2)
            packed.append(panel.reshape(-1))
        return np.concatenate(packed)

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one number per output channel (bias, slope), then zeros."""
        return packing.channels(values, self.conv.outputs, self.panels * self.panel_lanes)

    def of_phase(
        self, e: Function, pointers: dict[str, Pointer], n: Value
    ) -> tuple[dict[str, Pointer], Value]:
        """The operands' addresses and the image, of index `n` over phases by images."""
        conv = self.conv
        if self.phases == 1:
            return pointers, n
        phase, n = (n, e.i64(0)) if conv.batch == 1 else (n // conv.batch, n % conv.batch)
        offset = e.load_index(pointers["offsets"].at(phase))
        weights = pointers["w"].at(phase * (conv.groups * self.group_weights))
        return {**pointers, "w": weights, "y": pointers["y"].at(offset)}, n


def prefetch_offsets(
    e: Function, kernel: PackedConv, prefetched: Value, weights: Value, tiles: int, tile: Value
) -> tuple[Value, ...]:
    """Distances from the weights of a reduction step to the lines that the step prefetches.

    Every tile of a panel reads all weights of the panel again. Each tile prefetches other lines, so
    that all tiles together cover the later stage's weights.

    Args:
        e: the function under construction.
        kernel: the convolution, which prefetches `kernel.prefetch_bytes`.
        prefetched, weights: addresses of the later stage's weights and of the convolution's own.
        tiles, tile: the number of tiles of a panel, and the index of this one.

    Returns:
        Distances in elements, one for each line.
    """
    item, elements = kernel.conv.precision.w.bytes, kernel.group_weights
    line = ALIGNMENT // item
    lines = ceil_div(kernel.panel_lanes, line)
    slots = max(1, round(kernel.prefetch_bytes / (elements * item))) * lines
    each = ceil_div(slots, tiles)
    start, own = (e.index(e.convert("ptrtoint", each, "i64")) for each in (prefetched, weights))
    away = (start - own) // item
    offsets = []
    for i in range(each):
        slot = e.smin(tile * each + i, slots - 1)
        offsets.append(away + (slot // lines * elements + slot % lines * line))
    return tuple(offsets)


def panel_ahead(e: Function, kernel: PackedConv, tile: Value, lines: int) -> Value:
    """The distance from the weights of a step to the next panel's line that it prefetches.

    Args:
        e: the function under construction.
        kernel: the convolution.
        tile: the index of the tile among those of its panel; tile i prefetches line i of each step.
        lines: of a step.
    """
    line = ALIGNMENT // kernel.conv.precision.w.bytes
    return e.smin(tile, lines - 1) * line + kernel.packed_reduction * kernel.panel_lanes


@dataclass(frozen=True, kw_only=True)
class DirectShape(PackedConv):
    """One convolution, and how the general kernel cuts it.

    Attributes:
        tile: the register tile.
        rows: output rows of one chunk.
        panels_inside: whether a chunk computes all panels of its rows (weights small), or one.
        unroll: most steps of the reduction's inner loops that are written out.
        fetch: whether the next tile's input is prefetched while a tile is computed.
        weights_ahead: elements from the weights that a step loads to those that it prefetches; 0:
            none.
        panel_ahead: whether the tiles of a panel prefetch the next panel's weights, each tile other
            lines of them; where tiles are too few for all lines, `weights_ahead` holds as well.
        channels_ahead: where channels are planes, from the one whose pixels a step loads to the one
            whose pixels it prefetches; 0: none.
        prefetches_residual: whether a tile prefetches its residual before it begins its sums.
        bands: equal parts of an image's rows. All chunks of one band come before those of the next,
            so that of two threads that claim from both ends each computes its own band.
        images_inside: whether chunks of all images follow each other for each panel, whose weights
            stay near meanwhile; else those of all panels for each image.
        any_width: whether the code is that of all widths: tiles overlap at the end of a row.
        one_code: whether the narrowest rows, and all remainders of strides, have that code, too.
        columns: of all rows together, where the last row may be shorter than the others and there
            are any number of columns; 0: all rows are whole.
        by_lane: whether multiply-adds take lanes of vectors of the input.
        way: of the target to multiply and add (`codegen.dot`).
        folded: whether the bias takes off the surplus of a shift of the codes.
        piece: products that are summed in float16, at most, before float32 takes over; 0: none.
            `lanes` are those of float16 then, twice as many as of sums (`codegen.half_stored`).
        excess: vectors of what exceeds 16 bits in weights (`excess`), which are operands of theirs.
    """

    tile: Tile
    rows: Count
    panels_inside: bool
    unroll: int = UNROLL_LIMIT
    fetch: bool = False
    weights_ahead: int = 0
    panel_ahead: bool = False
    channels_ahead: int = 0
    prefetches_residual: bool = False
    bands: Count = 1
    images_inside: bool = False
    any_width: bool = False
    one_code: bool = False
    columns: Extent = 0
    by_lane: bool = False
    way: Way = "fma"
    folded: bool = False
    piece: int = 0
    excess: int = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """Those of all, and what exceeds of weights, with its places."""
        x, w, *others = super().operands
        return (x, w, *("excess", "places") * (self.excess > 0), *others)

    @property
    def operand_types(self) -> dict[str, str]:
        """LLVM type of the elements of each operand."""
        found = super().operand_types
        if self.excess:
            found |= {"excess": self.conv.precision.w.llvm, "places": INT32.llvm}
        return found

    @property
    def packing(self) -> Hashable:
        """Channels, taps, the width of a panel; whether some of the weights is packed apart."""
        return (super().packing, self.excess) if self.excess else super().packing

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Those of all, and what exceeds of weights, with its places."""
        found = super().constant_bytes
        if self.excess:
            conv, size = self.conv, self.lanes * self.dot_group * self.conv.precision.w.bytes
            firsts = ceil_div(conv.outputs, self.lanes) * prod(conv.window.kernel) + 1
            places = (firsts + self.excess) * INT32.bytes
            found |= {"excess": self.excess * size, "places": places}
        return found

    @property
    def has_places(self) -> bool:
        """Whether the numbers of all groups and taps fit a place (`excess`)."""
        few = self.conv.inputs <= 1 << GROUP_BITS
        return few and max(self.conv.window.kernel) <= 1 << TAP_BITS

    @property
    def excess_share(self) -> float:
        """Steps of what exceeds, for each one of the weights."""
        vectors = self.conv.groups * ceil_div(self.conv.outputs, self.lanes)
        return self.excess / (vectors * self.steps)

    @property
    def dot(self) -> Dot:
        """Product that a step of the reduction adds to its sums."""
        if self.piece:
            return HALF_PRODUCTS
        return dot_of(self.conv.precision, self.way, self.folded)

    @property
    def dot_group(self) -> int:
        """Input channels that one step multiplies."""
        return HALF_PRODUCTS.group if self.piece else group_by(self.conv.precision, self.way)

    @property
    def sum_lanes(self) -> int:
        """Lanes of a vector of finished sums."""
        return self.lanes // 2 if self.piece else self.lanes

    @property
    def code_shift(self) -> int:
        """Number that the dot product adds to every code of x if the bias takes it off; else 0."""
        return self.dot.shift if self.folded else 0

    @property
    def flops(self) -> int:
        """Operations of the plain sums, padding counted."""
        if not self.columns:
            return super().flops
        return sum_flops(
            self.phases * self.conv.batch, self.conv.out_channels, (self.columns,), self.reduction
        )

    @property
    def panel_vectors(self) -> int:
        """Vectors of output channels of one panel: those of a tile."""
        return self.tile.vectors

    @property
    def step_lines(self) -> int:
        """Cache lines of weights that a step of the reduction reads."""
        return ceil_div(self.panel_lanes * self.dot_group * self.conv.precision.w.bytes, ALIGNMENT)

    @property
    def band_rows(self) -> int:
        """Output rows of one band."""
        return self.conv.row_count // self.bands

    @property
    def row_blocks(self) -> int:
        """Chunks along the rows of one band."""
        return ceil_div(self.band_rows, self.rows)

    @property
    def in_parts(self) -> bool:
        """True if a sum is made of partial sums; sums of integers are exact without them."""
        if self.piece:
            return True
        return self.reduction > LENGTH and self.conv.precision.accumulate.is_float

    @property
    def two_parts(self) -> bool:
        """True if a sum is one run of channels in two partial sums: one tap, inside the input."""
        conv = self.conv
        if not self.in_parts or self.piece or self.dot_group > 1:
            return False
        inside = all(conv.window.always_full(axis) for axis in range(3))
        run = inside and prod(conv.window.kernel) == 1 and conv.inputs % conv.x.block == 0
        return run and conv.inputs <= 2 * LENGTH and LENGTH % conv.x.block == 0

    @property
    def tiles_across(self) -> int:
        """Register tiles of one row of output columns."""
        return ceil_div(self.conv.window.out[2], self.tile.rows)

    @property
    def grid(self) -> tuple[int, ...]:
        """Phases by images, groups, bands, panels (unless inside), blocks of rows.

        With `images_inside` groups, panels, phases by images, bands, blocks of rows.
        """
        images, panels = self.phases * self.conv.batch, 1 if self.panels_inside else self.panels
        if self.images_inside:
            return self.conv.groups, panels, images, self.bands, self.row_blocks
        return images, self.conv.groups, self.bands, panels, self.row_blocks
