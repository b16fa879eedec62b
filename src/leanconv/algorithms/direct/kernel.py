"""The general kernel of direct convolution: its loops over chunks, panels and rows."""

from __future__ import annotations

from leanconv.algorithms.direct.rows import PanelRows
from leanconv.algorithms.direct.shape import DirectShape
from leanconv.codegen.emitter import Function, Pointer, Value
from leanconv.codegen.tails import each_tile, tile_at
from leanconv.records import dataclass
from leanconv.target import Target


@dataclass(frozen=True, kw_only=True)
class DirectConv(DirectShape):
    """The code of one convolution of any window, dense or grouped, in any layout."""

    VARIES = True

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, panels, rows, tiles."""
        e = Function(self.NAME)
        self.emit_chunks(e, self.addresses(e))
        return e.finish()

    def emit_chunks(self, e: Function, pointers: dict[str, Pointer]) -> None:
        """Emit the loop over the chunks of a function, with the operands at these addresses."""
        panels = 1 if self.panels_inside else self.panels
        extents = self.phases * self.batch, self.groups, self.bands, panels, self.row_blocks
        with e.chunks(*extents) as (n, g, band, panel, block):
            start = band * self.band_rows
            first = start + block * self.rows
            last = e.smin(first + self.rows, start + self.band_rows)
            moved, n = self.of_phase(e, pointers, n)
            body = PanelRows(e, self, moved, n, g)
            if self.panels_inside:
                with e.loop("row", last, start=first) as row:
                    self._all_panels(e, body, row)
            else:
                self._one_panel(e, body, panel, first, last)

    def emit_panels(
        self, e: Function, pointers: dict[str, Pointer], first: Value | int, last: Value | int
    ) -> None:
        """Emit the panels first … last - 1 (one at least) of all rows of image 0, group 0."""
        zero = e.i64(0)
        body = PanelRows(e, self, pointers, zero, zero)
        with e.loop("panel", last, start=first) as panel:
            self._one_panel(e, body, panel, zero, e.i64(self.row_count))

    def emit_rows(
        self,
        e: Function,
        pointers: dict[str, Pointer],
        image: Value,
        panel: Value,
        first: Value,
        last: Value,
    ) -> None:
        """Emit the output rows first … last - 1 (one at least) of one panel of one image."""
        body = PanelRows(e, self, pointers, image, e.i64(0))
        self._one_panel(e, body, panel, first, last)

    def _all_panels(self, e: Function, body: PanelRows, row: Value) -> None:
        for panel, channels in each_tile(e, "panel", self.outputs, self.panel_lanes):
            body.row(row, e.i64(panel), channels)

    def _one_panel(
        self, e: Function, body: PanelRows, panel: Value, first: Value, last: Value
    ) -> None:
        for channels in tile_at(e, panel, self.outputs, self.panel_lanes):
            with e.loop("row", last, start=first) as row:
                body.row(row, panel, channels)
