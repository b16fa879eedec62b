"""Add up results that each sum over a part of the input channels.

    y[n, k, o] = act(bias[k] + residual[n, k, o] + sum over p of part[p, n, k, o])

All tensors are in blocks of channels. A chunk is one block of channels of one image.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.epilogue import Epilogue, TileOutput, store_tile
from leanconv.codegen.extents import Count, Extent
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import RegisterTile, load_channels
from leanconv.codegen.tails import each_tile_of_any
from leanconv.kernels.packing import channels
from leanconv.records import dataclass
from leanconv.target import Target
from leanconv.types import DType

_PIXELS = 4  # written out together


@dataclass(frozen=True)
class SumOfParts(Kernel):
    """The sum of some tensors of one shape.

    Attributes:
        parts: how many there are, one after the other.
        batch: images.
        blocks: blocks of channels of an image.
        pixels: positions of a map.
        dtype: of all values, float32 or float64.
        lanes: channels of a block, one vector.
        epilogue: bias, residual, activation.
    """

    VARIES = True

    parts: int
    batch: Extent
    blocks: Count
    pixels: Count
    dtype: DType
    lanes: int
    epilogue: Epilogue

    @property
    def operands(self) -> tuple[str, ...]:
        """The parts, what the epilogue needs, the output."""
        return ("part", *self.epilogue.operands, "y")

    @property
    def packing(self) -> Hashable:
        """Channels."""
        return SumOfParts, self.blocks, self.lanes, self.dtype, self.epilogue.operands

    @property
    def chunks(self) -> int:
        """Images by blocks of channels."""
        return self.batch * self.blocks

    @property
    def flops(self) -> int:
        """None: the plain sum's are counted where the parts are made."""
        return 0

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bias and slopes, zero past the last channel."""
        return self.epilogue.channel_bytes(self.dtype, self.blocks * self.lanes)

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """What packs one number for each channel, zero past the last."""
        return channels(values, values.shape[-1], self.blocks * self.lanes)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, pixels."""
        del target
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, self.dtype.llvm)
        plane = self.pixels * self.lanes
        with e.chunks(self.batch, self.blocks) as (image, block):
            place = (image * self.blocks + block) * plane
            there: dict[str, Pointer] = {
                name: pointers[name].at(place)
                for name in ("part", "residual", "y")
                if name in pointers
            }
            for name in ("bias", "slope"):
                if name in pointers:
                    there[name] = pointers[name].at(block * self.lanes)
            for first, pixels in each_tile_of_any(e, "pixels", self.pixels, _PIXELS):
                self._add(e, there, first * self.lanes, pixels)
        return e.finish()

    def _add(self, e: Function, there: dict[str, Pointer], place: Value, pixels: int) -> None:
        """Emit some pixels; sums begin at the bias, or else at the first part."""
        lanes = self.lanes
        kind = vector(self.dtype.llvm, lanes)
        access = Access(0, lanes, 0, (0, 0, lanes))
        whole = self.batch * self.blocks * self.pixels * lanes
        parts = [there["part"].at(place + part * whole) for part in range(self.parts)]
        start = load_channels(e, kind, there.get("bias"))
        sums = []
        for pixel in range(pixels):
            total = start
            for part in parts:
                value = e.load(part.at(pixel * lanes), kind)
                total = value if total is None else total + value
            assert total is not None
            sums.append(total)
        tile = RegisterTile(fma(self.dtype), lanes, 1, 0)
        y = there["y"].at(place)
        residual = there["residual"].at(place) if "residual" in there else None
        slope = there.get("slope")
        out = TileOutput(self.epilogue, access, y, residual, slope)
        store_tile(e, tile, sums, out, lanes)
