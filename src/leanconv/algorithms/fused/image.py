"""Rows of an image in planes, as the first convolution of a block of codes reads them.

    rows[r][j][c] = code of x[c][r - top][j - left], of 0 in the border          c < 4

x is of codes, or of float32, of which codes are made as QuantizeLinear does, bit for bit. The codes
of a pixel are the four bytes that one step of the convolution multiplies; of fewer channels the
others are 0, as are their weights. So neither the codes of the image nor its border are ever stored
as a whole.
"""

from __future__ import annotations

from dataclasses import replace

from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.extents import Count, Extent, Extents
from leanconv.kernels.quantised_steps import apply
from leanconv.records import dataclass
from leanconv.spec.format import aligned
from leanconv.types import FLOAT32, INT32, DType

PIXEL = 4  # bytes of a pixel, and the most channels
NUMBERS = 4  # scale, zero and bounds of a QuantizeLinear
NUMBERS_BYTES = NUMBERS * FLOAT32.bytes


@dataclass(frozen=True)
class ImageRows:
    """How rows of an image become rows of codes.

    Attributes:
        x, y: element types: codes or float32, and codes.
        channels: at most `PIXEL`.
        size: rows and columns of the image.
        pads: rows of border above; columns before a row and after it.
        fill: the code of the border.
        lanes: pixels that are made together.
        rows: that are there at once.
    """

    x: DType
    y: DType
    channels: int
    size: Extents
    pads: tuple[int, int, int]
    fill: Extent
    lanes: int
    rows: Extent = 0

    @property
    def quantises(self) -> bool:
        """Whether codes are made of floats."""
        return self.x.is_float

    @property
    def width(self) -> int:
        """Pixels of a row with its border."""
        return self.size[1] + sum(self.pads[1:])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * PIXEL

    @property
    def bytes(self) -> int:
        """Of the rows that are there at once."""
        return aligned(self.rows * self.row_bytes)

    def holding(self, rows: int) -> ImageRows:
        """The same with place for so many rows."""
        return replace(self, rows=rows)

    def emit(
        self,
        e: Function,
        pointers: dict[str, Pointer],
        image: Value,
        bounds: tuple[Value, Value],
        to: Pointer,
    ) -> None:
        """Emit the rows first … last - 1 (one at least), one after the other from an address on.

        Args:
            e: the function under construction.
            pointers: of `x`, and of `numbers` where codes are made of floats.
            image: its number.
            bounds: first, last.
            to: where the first one is written.
        """
        height, width = self.size
        x = pointers["x"].at(image * (self.channels * height * width))
        numbers = self._numbers(e, pointers["numbers"]) if self.quantises else []
        first, last = bounds
        with e.loop("image_row", last, start=first) as row:
            line = to.of(INT32.llvm).at((row - first) * self.width)
            self._row(e, x, row - self.pads[0], line, numbers)

    def _numbers(self, e: Function, numbers: Pointer) -> list[Value]:
        kind = vector(FLOAT32.llvm, self.lanes)
        return [e.broadcast(numbers.at(i), kind) for i in range(NUMBERS)]

    def _row(
        self, e: Function, x: Pointer, row: Value, line: Pointer, numbers: list[Value]
    ) -> None:
        """Emit a row of the image, or one of the border above or below it."""
        _, left, right = self.pads
        height, width = self.size
        inside = row.compare("sge", 0) & row.compare("slt", height)
        with e.when(inside ^ 1):
            self._border(e, line, self.width)
        with e.when(inside):
            if left:
                self._border(e, line, left)
            if right:
                self._border(e, line.at(left + width), right)
            start, pixels = x.at(row * width), line.at(left)
            whole, rest = e.i64(width // self.lanes), e.i64(width % self.lanes)
            with e.when(whole.compare("sgt", 0)), e.loop("pixels", whole) as part:
                at = part * self.lanes
                self._pixels(e, start.at(at), pixels.at(at), self.lanes, numbers)
            with e.when(rest.compare("sgt", 0)):
                at = whole * self.lanes
                self._pixels(e, start.at(at), pixels.at(at), rest, numbers)

    def _border(self, e: Function, line: Pointer, count: Count) -> None:
        """Emit some pixels of the border."""
        code = e.convert("trunc", e.i64(self.fill) & 0xFF, INT32.llvm)
        word = code * 0x01010101
        with e.loop("border", count) as pixel:
            e.store(word, line.at(pixel))

    def _pixels(
        self, e: Function, x: Pointer, y: Pointer, live: Value | int, numbers: list[Value]
    ) -> None:
        """Emit a vector of pixels, of which the first ones are there."""
        height, width = self.size
        words = None
        for channel in range(self.channels):
            at = x.at(channel * (height * width))
            value = e.load_first(at, vector(self.x.llvm, self.lanes), live)
            if self.quantises:
                value = apply(e, "QuantizeLinear", [value, *numbers], (self.x, self.y))
            word = e.convert("zext", value, vector(INT32.llvm, self.lanes)) << (8 * channel)
            words = word if words is None else words | word
        assert words is not None, "an image has channels"
        e.store_first(words, y, live)
