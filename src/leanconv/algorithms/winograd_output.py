"""The output transform of fused Winograd: y = A^T M A, then the epilogue and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leanconv.algorithms.winograd_code import emit_program
from leanconv.codegen.emitter import Function, Value, vector
from leanconv.codegen.epilogue import store_tile
from leanconv.codegen.microkernel import RegisterTile
from leanconv.codegen.types import ELEMENT
from leanconv.winograd.program import compile_matrix

if TYPE_CHECKING:
    from leanconv.algorithms.winograd_kernel import WinogradConv


class OutputTransform:
    """Emits the transform of one tile and one panel of output channels at a time.

    The columns of M are transformed along the height into a small scratch [row][point]; then each
    row that lies in the output along the width, finished and stored.
    """

    def __init__(
        self,
        e: Function,
        conv: WinogradConv,
        pointers: dict[str, Value],
        g: Value,
        m: Value,
        between: Value,
    ) -> None:
        self.e, self.conv, self.pointers, self.m, self.between = e, conv, pointers, m, between
        self.group = g
        self.element = ELEMENT[conv.dtype]
        self.kind = vector(self.element, conv.lanes)
        height, width = conv.transforms()
        self.along_height = compile_matrix(height.at)
        self.along_width = compile_matrix(width.at)

    def tile(self, index: Value, t: Value, panel: Value) -> None:
        """Finish tile `index` of the batch, the t-th of the block, for one panel."""
        conv, e = self.conv, self.e
        rows, columns = conv.grid
        n, inside = index // (rows * columns), index % (rows * columns)
        ty, tx = inside // columns, inside % columns
        height = e.smin(e.const("i64", conv.out[0]) - ty * conv.m[0], conv.m[0])
        place = n * conv.y.image + ty * (conv.m[0] * conv.y.spatial[1])
        place = place + tx * (conv.m[1] * conv.y.spatial[2])
        place = place + panel * conv.y.channel(conv.panel_lanes) + conv.y_offset
        place = place + self.group * conv.y.channel(conv.outputs)
        for j in range(conv.vectors):
            self._down(t, panel, j)
            self._rows(place, height, tx, panel, j)

    def _down(self, t: Value, panel: Value, j: int) -> None:
        """Transform vector j of a panel along the height; M holds this panel only."""
        conv = self.conv
        source = self.m.at(t * conv.panel_lanes + j * conv.lanes, self.element)
        self._columns(source, conv.tiles * conv.panel_lanes, conv.lanes)

    def _columns(self, source: Value, step: int, live: int) -> None:
        """Transform columns whose points lie `step` elements apart; `live` lanes are there."""
        conv, e = self.conv, self.e
        with e.loop("point", conv.alpha[1]) as point:
            column = source.at(point * step, self.element)
            values = [
                e.load_first(column.at(i * conv.alpha[1] * step, self.element), self.kind, live)
                for i in range(conv.alpha[0])
            ]
            out = self.between.at(point * conv.lanes, self.element)
            for i, value in enumerate(emit_program(e, self.along_height, values)):
                e.store(value, out.at(i * conv.alpha[1] * conv.lanes, self.element))

    def _rows(self, place: Value, height: Value, tx: Value, panel: Value, j: int) -> None:
        """Emit the variants: the last column of tiles may be narrower, the last panel too."""
        conv, e = self.conv, self.e
        last = conv.out[1] - (conv.grid[1] - 1) * conv.m[1]
        rest = conv.outputs - (conv.panels - 1) * conv.panel_lanes - j * conv.lanes

        def by_panel(columns: int) -> None:
            if conv.y.block > 1 or rest >= conv.lanes:
                # In blocks the unused lanes of the last vector may be written; beyond it, nothing.
                if rest > 0:
                    self._store(place, height, panel, j, columns, conv.lanes)
                else:
                    with e.when(panel.compare("ult", conv.panels - 1)):
                        self._store(place, height, panel, j, columns, conv.lanes)
                return
            with e.when(panel.compare("ult", conv.panels - 1)):
                self._store(place, height, panel, j, columns, conv.lanes)
            if rest > 0:
                with e.when(panel.compare("uge", conv.panels - 1)):
                    self._store(place, height, panel, j, columns, rest)

        if last == conv.m[1]:
            by_panel(conv.m[1])
            return
        if conv.grid[1] > 1:
            with e.when(tx.compare("ult", conv.grid[1] - 1)):
                by_panel(conv.m[1])
        with e.when(tx.compare("uge", conv.grid[1] - 1)):
            by_panel(last)

    def _store(
        self, place: Value, height: Value, panel: Value, j: int, columns: int, channels: int
    ) -> None:
        conv, e = self.conv, self.e
        first = (self.group * conv.panels + panel) * conv.panel_lanes + j * conv.lanes
        bias, slope = self.pointers.get("bias"), self.pointers.get("slope")
        residual = self.pointers.get("residual")
        start = e.load(bias.at(first, self.element), self.kind) if bias else None
        tile = RegisterTile(self.element, self.kind, conv.lanes, 1, 0)
        shift = conv.y.channel(j * conv.lanes)
        with e.loop("row", height) as i:
            line = self.between.at(i * (conv.alpha[1] * conv.lanes), self.element)
            values = [
                e.load(line.at(k * conv.lanes, self.element), self.kind)
                for k in range(conv.alpha[1])
            ]
            outputs = emit_program(e, self.along_width, values)[:columns]
            if start is not None:
                outputs = [value + start for value in outputs]
            at = place + i * conv.y.spatial[1] + shift
            store_tile(
                e,
                tile,
                conv.epilogue,
                conv.y,
                outputs,
                self.pointers["y"].at(at, self.element),
                residual.at(at, self.element) if residual else None,
                slope.at(first, self.element) if slope else None,
                channels,
            )
