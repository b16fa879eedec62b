"""Emission of some output rows of a fused block, through its kernels."""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.algorithms.fused.block import BlockKernels, input_rows
from leanconv.codegen.emitter import Carry, Function, Pointer, Value, vector
from leanconv.kernels.lookup import Table
from leanconv.records import dataclass
from leanconv.spec.format import ALIGNMENT, ceil_div

_LINES_WRITTEN = 4  # prefetches of a share that are written out


@dataclass(frozen=True)
class Rows:
    """A tensor of which rows are read or written.

    Attributes:
        start: address of the image at hand, or of the first image where a kernel goes to it.
        ring: row i lies where row i % ring would; 0: all rows are there.
        stride: elements from one row to the next.
        block_gap: of a residual, by how many elements its blocks of channels lie further apart than
            those of y.
    """

    start: Pointer
    ring: int
    stride: int
    block_gap: int = 0

    def at(self, row: Value) -> Pointer:
        """Return an address such that this row, in a ring too, is `row * stride` behind it."""
        if not self.ring:
            return self.start
        return self.start.at((row % self.ring - row) * self.stride)


def no_rows(e: Function, block: BlockKernels) -> Carry:
    """Return the `ready` argument of `BlockRows.emit` that says no expanded rows exist yet."""
    return [e.i64(0), e.i64(block.depthwise.conv.window.size[1])]


class BlockRows:
    """Emission of a block's rows.

    Args:
        e: the function to append to.
        block: its kernels.
        operands: addresses of `block.operands`, of the part of the channels at hand.
        x, y, residual: the tensors.
        scratch: address of `block.scratch_bytes`, of bytes.
        image: number of the image in x.
        image_out: number of the image in y.
    """

    def __init__(
        self,
        e: Function,
        block: BlockKernels,
        operands: Mapping[str, Pointer],
        tensors: Mapping[str, Rows],
        scratch: Pointer,
        image: Value,
        image_out: Value,
    ) -> None:
        self.e, self.block, self.tensors = e, block.linked(), tensors
        self.image, self.image_out = image, image_out
        types = block.depthwise.conv.precision
        self.expanded = scratch.of(types.x.llvm)
        self.filtered = scratch.at(block.expanded_bytes).of(types.y.llvm)
        self.image_rows = scratch.at(block.expanded_bytes + block.filtered_bytes)
        self.local: dict[str, dict[str, Pointer]] = {
            stage: {} for stage in ("image", *block.stages)
        }
        for name in block.operands:
            stage, _, operand = name.partition(".")
            self.local[stage][operand] = operands[name]

    def emit(self, first: Value, last: Value, ready: Carry) -> None:
        """Emit the output rows first … last - 1 (one at least).

        Args:
            first, last: bounds.
            ready: where the block keeps expanded rows, which are there already: those before the
                first number, and those from the second on, as far as the ring reaches.
        """
        e, block = self.e, self.block
        with e.loop("step", last, [ready], start=first, step=block.step) as row:
            self._step(row, e.smin(row + block.step, last), ready)

    def _step(self, first: Value, last: Value, ready: Carry) -> None:
        e, block = self.e, self.block
        filtered = self.filtered.at(0 - first * block.depthwise.conv.y.spatial[1])
        if block.expand is None:
            x = self.tensors["x"].start
            with e.loop("block", block.depthwise.blocks) as index:
                self._depthwise(x, self.image, filtered, index, first, last)
        else:
            window = block.depthwise.conv.window
            stride, pad, height = window.stride[1], window.pad[1], window.size[1]
            low = e.smax(first * stride - pad, 0)
            high = e.smin((last - 1) * stride + (block.input_rows - pad), height)
            begin = e.smax(low, ready[0]) if block.keeps_expanded else low
            end = e.smin(high, ready[1]) if block.keeps_expanded else high
            read = self._rows_of_image(block.expand, begin, end)
            vectors = block.expand.tile.vectors
            with e.loop("panel", block.expand.panels) as panel:
                expanded = self._expand(block.expand, read, panel, low, begin, end)
                stop = e.smin(panel * vectors + vectors, block.depthwise.blocks)
                with e.loop("block", stop, start=panel * vectors) as index:
                    self._depthwise(expanded, e.i64(0), filtered, index, first, last)
            if block.keeps_expanded:
                ready[:] = e.smax(begin, high), e.i64(height)
        self._project(first, last)

    def _rows_of_image(self, expand: DirectConv, begin: Value, end: Value) -> Rows:
        """Emit the rows of codes that expanded rows begin … end - 1 read, if x is an image."""
        e, image = self.e, self.block.image
        if image is None:
            return self.tensors["x"]
        window, top = expand.conv.window, self.block.border.top
        stride, pad = window.stride[1], window.pad[1]
        if self.block.border.any:
            begin, end = e.smax(begin - top, 0), e.smin(end - top, window.out[1])
        first = e.smax(begin * stride - pad, 0)
        last = e.smin((end - 1) * stride + (input_rows(window) - pad), window.size[1])
        with e.when(begin.compare("slt", end) & first.compare("slt", last)):
            pointers = {"x": self.tensors["x"].start, **self.local["image"]}
            image.emit(e, pointers, self.image, (first, last), self.image_rows)
        return Rows(self.image_rows.at(0 - first * image.row_bytes), 0, 0)

    def _expand(
        self, expand: DirectConv, x: Rows, panel: Value, low: Value, begin: Value, high: Value
    ) -> Pointer:
        """Emit expanded rows begin … high - 1 of a panel; return where row 0, channel 0 is."""
        conv, e, block = expand.conv, self.e, self.block
        if block.keeps_expanded:
            rows = Rows(self.expanded, block.depthwise.ring, conv.y.spatial[1])
            start = self.expanded
        else:
            shift = low * conv.y.spatial[1] + panel * (expand.tile.vectors * conv.y.block_stride)
            start = self.expanded.at(0 - shift)
            rows = Rows(start, 0, conv.y.spatial[1])
        with e.when(begin.compare("slt", high)), e.loop("new", high, start=begin) as row:
            if not block.keeps_expanded:
                self._prefetch_next(expand, panel, row - begin)
            if block.border.any:
                self._bordered(expand, x, rows, panel, row)
            else:
                pointers = {"x": x.at(row), "y": rows.at(row), **self.local["expand"]}
                expand.emit_rows(e, pointers, self.image, panel, row, row + 1)
                self._look_up_panel(expand, rows, panel, row)
        return start

    def _bordered(self, expand: DirectConv, x: Rows, y: Rows, panel: Value, row: Value) -> None:
        """Emit one row of a panel with its border, or a row of the border."""
        conv, e, block, border = expand.conv, self.e, self.block, self.block.border
        step, width = conv.y.spatial[2], conv.window.out[2]
        inner = row - border.top
        inside = inner.compare("sge", 0) & inner.compare("slt", conv.window.out[1])
        vectors = expand.tile.vectors
        stop = e.smin(panel * vectors + vectors, block.depthwise.blocks)
        with e.loop("block", stop, start=panel * vectors) as index:
            line = y.at(row).at(row * y.stride + index * conv.y.block_stride)
            with e.when(inside ^ 1):
                self._fill(line, border.left + width + border.right)
            with e.when(inside):
                if border.left:
                    self._fill(line, border.left)
                if border.right:
                    self._fill(line.at((border.left + width) * step), border.right)
        with e.when(inside):
            to = y.at(row).at(border.top * y.stride + border.left * step)
            pointers = {"x": x.at(inner), "y": to, **self.local["expand"]}
            expand.emit_rows(e, pointers, self.image, panel, inner, inner + 1)
            self._look_up_panel(expand, y, panel, row)

    def _look_up_panel(self, expand: DirectConv, y: Rows, panel: Value, row: Value) -> None:
        """Look the codes of one row of a panel up, if they have a table."""
        conv, e, block, border = expand.conv, self.e, self.block, self.block.border
        if "expand" not in block.tables:
            return
        vectors, step = expand.tile.vectors, conv.y.spatial[2]
        stop = e.smin(panel * vectors + vectors, block.depthwise.blocks)
        with e.loop("block", stop, start=panel * vectors) as index:
            line = y.at(row).at(row * y.stride + index * conv.y.block_stride)
            codes = e.i64(conv.window.out[2] * step)
            self._look_up("expand", line.at(border.left * step), codes)

    def _look_up(self, stage: str, codes: Pointer, count: Value) -> None:
        """Look up codes beside each other, in place: whole blocks of channels of pixels."""
        e, (way, lanes) = self.e, self.block.lookup
        table, block = Table(e, self.local[stage]["table"], way, lanes), self.block.depthwise.lanes
        whole, short = count & -lanes, vector("i8", block)
        with e.when(whole.compare("sgt", 0)), e.loop("codes", whole, step=lanes) as i:
            e.store(table.of(e.load(codes.at(i), vector("i8", lanes))), codes.at(i))
        if lanes > block:
            with e.when(whole.compare("slt", count)):
                with e.loop("codes", count, start=whole, step=block) as i:
                    some = [*range(block), *[-1] * (lanes - block)]
                    wide = e.shuffle(e.load(codes.at(i), short), None, some)
                    found = e.shuffle(table.of(wide), None, range(block))
                    e.store(found, codes.at(i))

    def _fill(self, line: Pointer, columns: int) -> None:
        """Emit some columns of the border of one vector of channels."""
        e, lanes = self.e, self.block.depthwise.lanes
        element = self.block.depthwise.conv.precision.x.llvm
        codes = e.splat(e.convert("trunc", e.i64(self.block.border.fill), element), lanes)
        with e.loop("border", columns) as column:
            e.store(codes, line.at(column * lanes))

    def _depthwise(
        self, x: Pointer, image: Value, y: Pointer, index: Value, first: Value, last: Value
    ) -> None:
        pointers = {"x": x, "y": y, **self.local["depthwise"]}
        depthwise = self.block.depthwise
        depthwise.emit_rows(self.e, pointers, image, index, first, last)
        if "depthwise" in self.block.tables:
            stride = depthwise.conv.y.spatial[1]
            line = y.at(first * stride + index * depthwise.conv.y.block_stride)
            self._look_up("depthwise", line, (last - first) * stride)

    def _project(self, first: Value, last: Value) -> None:
        e, block = self.e, self.block
        for number, project in enumerate(block.projects):
            local = self.local[f"project{number}"]
            names = ("y", "residual")[: 1 + project.conv.epilogue.residual]
            down = first * project.conv.y.spatial[1]
            with e.loop("panel", project.panels) as panel, e.loop("row", last - first) as row:
                if not block.keeps_expanded:
                    self._prefetch(project, panel + 1, row, block.step, local["w"])
                pointers = {"x": self.filtered, **local}
                index = panel + project.conv.y_offset // project.conv.y.block_stride
                for name in names:
                    tensor = self.tensors[name]
                    away = down + index * tensor.block_gap if tensor.block_gap else down
                    pointers[name] = tensor.at(first + row).at(away)
                project.emit_rows(e, pointers, self.image_out, panel, row, row + 1)

    def _prefetch_next(self, expand: DirectConv, panel: Value, row: Value) -> None:
        """Prefetch the weights of the next panel to expand, and the first ones of y."""
        block = self.block
        rows = block.expanded_rows
        self._prefetch(expand, panel + 1, row, rows, self.local["expand"]["w"])
        slot, slots = panel * rows + row, expand.panels * rows
        zero = self.e.i64(0)
        self._prefetch(block.projects[0], zero, slot, slots, self.local["project0"]["w"])

    def _prefetch(
        self, kernel: DirectConv, panel: Value, slot: Value, slots: int, w: Pointer
    ) -> None:
        """Prefetch one of some equal shares of a panel's weights: they are read only once.

        Too many at a time would fill the line fill buffers.
        """
        e = self.e
        panel_bytes = kernel.packed_reduction * kernel.panel_lanes * kernel.conv.precision.w.bytes
        lines = ceil_div(ceil_div(panel_bytes, ALIGNMENT), slots)
        first = w.of("i8").at(panel * panel_bytes + slot * (lines * ALIGNMENT))
        if isinstance(lines, int) and lines <= _LINES_WRITTEN:
            for line in range(lines):
                e.prefetch(first.at(line * ALIGNMENT), locality=2)
            return
        with e.loop("line", lines) as index:
            e.prefetch(first.at(index * ALIGNMENT), locality=2)
