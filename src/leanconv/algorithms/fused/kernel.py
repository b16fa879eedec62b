"""One block as a kernel: a dense convolution, a depthwise one and a 1x1 one over strips of rows.

`expanded` and `filtered` lie in the thread's scratch, a step's rows at a time. The three bodies are
those of the direct and the depthwise kernel, which are given other addresses. Where `expanded` is a
ring, only new rows are computed from step to step, and from one strip to the next if the same
thread does it. Without the first convolution, the depthwise one reads x.

`SumOfParts` adds up results that each sum over a part of the input channels:

    y[n, k, o] = act(bias[k] + residual[n, k, o] + sum over p of part[p, n, k, o])

All its tensors are in blocks of channels. A chunk is one block of channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.fused.block import BlockKernels
from leanconv.algorithms.fused.rows import BlockRows, Rows, no_rows
from leanconv.codegen.dot import fma
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.codegen.epilogue import Epilogue, TileOutput, store_tile
from leanconv.codegen.geometry import Access
from leanconv.codegen.kernel import SCRATCH_OF_NEXT, SCRATCH_OF_PREVIOUS, Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.codegen.microkernel import RegisterTile, load_channels
from leanconv.codegen.tails import each_tile_of_any
from leanconv.kernels.packing import channels, copied
from leanconv.records import dataclass
from leanconv.spec.format import ceil_div
from leanconv.symbolic import Count, Extent
from leanconv.target import Target
from leanconv.types import DType

# A convolution's constants by operand, from the number that its kernel adds to every code of its
# input: weights (K, C/g, kh, kw), and the epilogue's numbers for each channel, (K,).
Constants = Callable[[int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class FusedChain(Kernel):
    """The code of one chain.

    Attributes:
        batch: images.
        block: the kernels of its convolutions, of one part of the channels c.
        rows: output rows of a chunk.
        parts: into how many parts the channels c are split.
    """

    VARIES = True

    batch: Extent
    block: BlockKernels
    rows: Count
    parts: int = 1

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, each stage's weights and what its epilogue reads, residual, output."""
        added = ("residual",) if self.block.has_residual else ()
        return ("x", *self.block.operands, *added, "y")

    @property
    def strips(self) -> int:
        """Chunks along the rows of an image."""
        return ceil_div(self.block.depthwise.conv.row_count, self.rows)

    @property
    def chunks(self) -> int:
        """Parts by images by strips."""
        return self.parts * self.batch * self.strips

    @property
    def wants_consecutive_chunks(self) -> bool:
        """Strips of one image share expanded rows where these are kept."""
        return self.block.keeps_expanded

    @property
    def reuses_scratch(self) -> bool:
        """The expanded rows that a call has made are there for the next one."""
        return self.block.keeps_expanded and self.rows == self.block.step

    @property
    def scratch_bytes(self) -> int:
        """The expanded and filtered rows that are alive at once."""
        return self.block.scratch_bytes

    @property
    def flops(self) -> int:
        """Operations of the plain sums: rows that are computed twice count once."""
        return self.parts * self.batch * self.block.image_flops

    def pack_calls(self, constants: Sequence[Constants]) -> dict[str, list[PackCall]]:
        """Return the calls that pack the constants of all convolutions, by operand."""
        parts = [pack_part(self.block, constants, part) for part in range(self.parts)]
        return {name: [call for part in parts for call in part[name]] for name in parts[0]}

    @property
    def packing(self) -> Hashable:
        """Packing of each stage, part by part."""
        stages = self.block.stages.items()
        others = "image.numbers" in self.block.operands, self.block.tables
        return FusedChain, self.parts, others, tuple((n, stage.packing) for n, stage in stages)

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bytes of the stages' constants, all parts one after the other."""
        return {name: self.parts * size for name, size in self.block.constant_bytes.items()}

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, steps, panels."""
        e = Function(self.NAME)
        types = self.block.operand_types
        pointers = e.pointers(self.operands, types["y"], **types)
        count = self.block.depthwise.conv.row_count
        begin, ready = self._begin(e)
        with e.loop("chunk", e.hi, [ready], start=begin) as chunk:
            strip, rest = chunk % self.strips, chunk // self.strips
            image, part = rest % self.batch, rest // self.batch
            first = strip * self.rows
            if self.block.keeps_expanded:
                # Rows of another image are not there.
                ready[0] = e.select(strip.compare("eq", 0), e.i64(0), ready[0])
            rows = self._rows(e, pointers, image, part)
            rows.emit(first, e.smin(first + self.rows, count), ready)
        return e.finish()

    def _begin(self, e: Function) -> tuple[Value, Carry]:
        """The first chunk, and which expanded rows are there already, if any are kept.

        Returns:
            The chunk, and [rows before this one are there, rows from this one on are there].
        """
        if not self.block.keeps_expanded:
            return e.lo, []
        window = self.block.depthwise.conv.window
        none = no_rows(e, self.block)
        begin = e.lo & (SCRATCH_OF_NEXT - 1)
        strip = begin % self.strips
        reached = (strip * self.rows - 1) * window.stride[1] + (
            self.block.input_rows - window.pad[1]
        )
        before = e.smin(reached, window.size[1])
        after = e.smax((strip + 1) * (self.rows * window.stride[1]) - window.pad[1], 0)
        has_before = (e.lo & SCRATCH_OF_PREVIOUS).compare("ne", 0)
        has_after = (e.lo & SCRATCH_OF_NEXT).compare("ne", 0) & strip.compare("ne", self.strips - 1)
        return begin, [e.select(has_before, before, none[0]), e.select(has_after, after, none[1])]

    def _rows(
        self, e: Function, pointers: dict[str, Pointer], image: Value, part: Value
    ) -> BlockRows:
        """The rows of an image, for a part of the channels c."""
        block, depthwise, sizes = self.block, self.block.depthwise, self.block.constant_bytes
        operands = {name: pointers[name] for name in block.operands}
        if self.parts > 1:
            item = depthwise.conv.dtype.bytes
            operands = {n: at.at(part * (sizes[n] // item)) for n, at in operands.items()}
        x = pointers["x"]
        if block.expand is None:
            x = x.at(part * (depthwise.blocks * depthwise.conv.x.block_stride))
        tensors = {"x": Rows(x, 0, 0)}
        for name in ("y", "residual"):
            if name in pointers:
                tensors[name] = Rows(pointers[name], 0, 0)
        out = part * self.batch + image
        return BlockRows(e, block, operands, tensors, e.scratch, image, out)


def pack_part(
    block: BlockKernels, constants: Sequence[Constants], part: int = 0
) -> dict[str, list[PackCall]]:
    """Return the calls that pack one part's constants of a block, by operand.

    Args:
        block: its kernels, of one part of the channels in the middle.
        constants: of all channels; where codes are made of an image's floats, those first.
        part: number of the part.
    """
    calls = {}
    if "image.numbers" in block.operands:
        calls["image.numbers"] = copied(constants[0](0)["numbers"])
        constants = constants[1:]
    for name, (number, outputs, inputs) in _cuts(block, part).items():
        kernel = block.stages[name]
        given = constants[number](kernel.code_shift)
        w = given["w"][outputs][:, inputs]
        shaped = w.reshape(*w.shape[:2], *kernel.conv.window.kernel)
        weights = {"w": kernel.weight_calls(shaped)}
        if isinstance(kernel, DirectConv) and kernel.excess:
            from leanconv.algorithms.direct.excess import calls_apart  # for few machines alone

            weights = calls_apart(kernel, shaped)
        calls |= {f"{name}.{operand}": made for operand, made in weights.items()}
        if name in block.tables:
            calls[f"{name}.table"] = copied(given["table"])
        for operand in kernel.conv.epilogue.operands:
            if operand == "quantisation":
                calls[f"{name}.{operand}"] = copied(given[operand])
            elif operand != "residual":
                calls[f"{name}.{operand}"] = kernel.channel_calls(given[operand][..., outputs])
    return calls


def _cuts(block: BlockKernels, part: int) -> dict[str, tuple[int, slice, slice]]:
    """Return for each stage the number of its convolution, its output and its input channels."""
    channels = block.depthwise.conv.out_channels
    inner, everything = slice(part * channels, (part + 1) * channels), slice(None)
    cuts = {"expand": (0, inner, everything)} if block.expand else {}
    cuts["depthwise"] = (len(cuts), inner, everything)
    kernel, first = len(cuts), 0
    for number, project in enumerate(block.projects):
        cuts[f"project{number}"] = (kernel, slice(first, first + project.conv.outputs), inner)
        first += project.conv.outputs
    return cuts


_PIXELS = 4  # written out together


@dataclass(frozen=True)
class SumOfParts(Kernel):
    """The sum of some tensors of one shape.

    Attributes:
        parts: number of the tensors, which lie one after the other.
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
    def grid(self) -> tuple[int, ...]:
        """Images by blocks of channels."""
        return self.batch, self.blocks

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bias and slopes, zero past the last channel."""
        return self.epilogue.channel_bytes(self.dtype, self.blocks * self.lanes)

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one number per channel, zero past the last channel."""
        return channels(values, values.shape[-1], self.blocks * self.lanes)

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, pixels."""
        e = Function(self.NAME)
        pointers = e.pointers(self.operands, self.dtype.llvm)
        plane = self.pixels * self.lanes
        with e.chunks(*self.grid) as (image, block):
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
