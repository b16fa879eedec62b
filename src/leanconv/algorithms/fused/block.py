"""The kernels of a fused block, between which rows lie in the scratch, and their bytes.

`ImageRows` are rows of an image in planes, as the first convolution of a block of codes reads them.

    rows[r][j][c] = code of x[c][r - top][j - left], of 0 in the border          c < 4

x is of codes, or of float32, of which codes are made as QuantizeLinear does, bit for bit. The codes
of a pixel are the four bytes that one step of the convolution multiplies; of fewer channels the
others are 0, as are their weights. So neither the codes of the image nor its border are ever stored
as a whole.
"""

from __future__ import annotations

from leanconv.algorithms.common.conv import with_conv
from leanconv.algorithms.depthwise.kernel import DepthwiseConv
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.codegen.emitter import Function, Pointer, Value, vector
from leanconv.codegen.geometry import Access, Window
from leanconv.graph.ops.quantised import TABLE
from leanconv.kernels.lookup import Way
from leanconv.kernels.quantised_steps import apply
from leanconv.records import dataclass, replace
from leanconv.spec.conv import effective_extent, sum_flops
from leanconv.spec.format import aligned
from leanconv.symbolic import Count, Extent, Extents
from leanconv.types import FLOAT32, INT32, UINT8, DType

PIXEL = 4  # bytes of a pixel, and the most channels
NUMBERS = 4  # scale, zero and bounds of a QuantizeLinear
NUMBERS_BYTES = NUMBERS * FLOAT32.bytes


@dataclass(frozen=True)
class ImageRows:
    """Conversion of an image's rows to rows of codes.

    Attributes:
        x, y: element types: codes or float32, and codes.
        channels: of the image, at most `PIXEL`.
        size: rows and columns of the image.
        pads: rows of border above; columns before a row and after it.
        fill: the code of the border.
        lanes: pixels that are made together.
        rows: that the scratch holds at once.
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
        """True if x is float32, of which codes are made."""
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
        """Bytes of the rows that the scratch holds at once."""
        return aligned(self.rows * self.row_bytes)

    def holding(self, rows: int) -> ImageRows:
        """Return the same conversion with room for so many rows in the scratch."""
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
            to: address of the first row.
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


def input_rows(window: Window) -> int:
    """Input rows from the first to the last that one output row reads."""
    return effective_extent(window.kernel[1], window.dilation[1])


def rows_access(rows: int, width: int, lanes: int) -> Access:
    """Some rows of blocks of channels in the scratch."""
    return Access(0, lanes, rows * width * lanes, (0, width * lanes, lanes))


@dataclass(frozen=True)
class Border:
    """Rows and columns of one code round a tensor.

    Attributes:
        top, left, right: rows above it; columns before and after it.
        below: rows below it.
        fill: the code.
    """

    top: int = 0
    left: int = 0
    right: int = 0
    below: int = 0
    fill: Extent = 0

    @property
    def any(self) -> bool:
        """True if any side of the border has a width."""
        return any((self.top, self.left, self.right, self.below))


NO_BORDER = Border()


@dataclass(frozen=True)
class BlockKernels:
    """The kernels of a block's convolutions, between which rows lie in the scratch.

    Attributes:
        expand: the first convolution, which writes the expanded tensor; None if there is none.
        depthwise: from the expanded tensor (or x) to the filtered one.
        projects: from the filtered tensor to y, each for some of y's channels.
        step: output rows that are done together.
        keeps_expanded: whether the expanded tensor is a ring of rows of all channels, in which the
            next step finds what it needs again; otherwise it holds one panel of channels.
        image: conversion of its rows to those that the first convolution reads, if x is an image in
            planes; None: it reads x.
        border: of codes round the expanded tensor, which the depthwise convolution reads like it.
        tables: the stages whose codes are looked up in a table.
        lookup: way and lanes by which the target looks codes up.
    """

    expand: DirectConv | None
    depthwise: DepthwiseConv
    projects: tuple[DirectConv, ...]
    step: Extent
    keeps_expanded: bool
    image: ImageRows | None = None
    border: Border = NO_BORDER
    tables: tuple[str, ...] = ()
    lookup: tuple[Way, int] = ("gather", 1)

    def linked(self) -> BlockKernels:
        """Return the same block with one number for each extent that two stages share.

        The expanded and the filtered tensor are written by one stage and read by the next.
        """
        conv, expand = self.depthwise.conv, self.expand
        window, x, y = conv.window, conv.x, conv.y
        if expand:
            x = replace(x, block_stride=self.expanded_rows * x.spatial[1])
            made = (
                expand.conv.window
                if self.border.any
                else replace(expand.conv.window, out=window.size)
            )
            expand = with_conv(expand, window=made, y=x)
        y = replace(y, block_stride=self.step * y.spatial[1])
        depthwise = with_conv(self.depthwise, x=x, y=y)
        first, size = self.projects[0], (1, self.step, window.out[2])
        of_step = replace(first.conv.window, size=size, out=size)
        projects = tuple(with_conv(p, window=of_step, x=y, y=first.conv.y) for p in self.projects)
        return replace(self, expand=expand, depthwise=depthwise, projects=projects)

    @property
    def stages(self) -> dict[str, DirectConv | DepthwiseConv]:
        """The kernels by role, in order."""
        stages: dict[str, DirectConv | DepthwiseConv] = {}
        if self.expand:
            stages["expand"] = self.expand
        stages["depthwise"] = self.depthwise
        for number, project in enumerate(self.projects):
            stages[f"project{number}"] = project
        return stages

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of an image's `numbers`, each stage's weights, and its epilogue's operands.

        The residual is not among them.
        """
        numbers = ("image.numbers",) if self.image and self.image.quantises else ()
        return (
            numbers
            + tuple(
                f"{stage}.{operand}"
                for stage, kernel in self.stages.items()
                for operand in kernel.operands
                if operand not in ("x", "residual", "y")
            )
            + tuple(f"{stage}.table" for stage in self.tables)
        )

    @property
    def operand_types(self) -> dict[str, str]:
        """LLVM type of the elements of each of `operands`, of x, of y and of a residual."""
        found = {
            f"{stage}.{operand}": kernel.operand_types[operand]
            for stage, kernel in self.stages.items()
            for operand in kernel.operands
        }
        x, y = (self.expand or self.depthwise).conv.precision.x, self.projects[0].conv.precision.y
        others = {"x": self.image.x if self.image else x, "y": y, "residual": y}
        others["image.numbers"] = FLOAT32
        others |= {f"{stage}.table": UINT8 for stage in self.tables}
        return found | {name: dtype.llvm for name, dtype in others.items()}

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bytes of each of `operands`, as the stages' kernels pack them."""
        numbers = {"image.numbers": NUMBERS_BYTES} if "image.numbers" in self.operands else {}
        numbers |= {f"{stage}.table": TABLE for stage in self.tables}
        return numbers | {
            f"{stage}.{operand}": size
            for stage, kernel in self.stages.items()
            for operand, size in kernel.constant_bytes.items()
        }

    @property
    def has_residual(self) -> bool:
        """True if the block adds a residual."""
        return any(project.conv.epilogue.residual for project in self.projects)

    @property
    def input_rows(self) -> int:
        """Input rows from the first to the last that one output row reads."""
        return input_rows(self.depthwise.conv.window)

    @property
    def row_pad(self) -> int:
        """Rows of padding and border above the expanded tensor, or x."""
        return self.depthwise.conv.window.pad[1] + self.border.top

    @property
    def height(self) -> int:
        """Rows of the expanded tensor, or of x, without a border."""
        return self.expand.conv.window.out[1] if self.expand else self.depthwise.conv.window.size[1]

    @property
    def expanded_rows(self) -> int:
        """Rows of the expanded tensor that one step reads, all of which are kept."""
        window = self.depthwise.conv.window
        return min(window.size[1], (self.step - 1) * window.stride[1] + self.input_rows)

    @property
    def expanded_bytes(self) -> int:
        """Bytes of the expanded tensor in the scratch."""
        if self.expand is None:
            return 0
        blocks = self.depthwise.blocks if self.keeps_expanded else self.expand.tile.vectors
        elements = blocks * self.depthwise.conv.x.block_stride
        return aligned(elements * self.depthwise.conv.precision.x.bytes)

    @property
    def filtered_bytes(self) -> int:
        """Bytes of the filtered tensor in the scratch."""
        elements = self.depthwise.blocks * self.depthwise.conv.y.block_stride
        return aligned(elements * self.depthwise.conv.precision.y.bytes)

    @property
    def scratch_bytes(self) -> int:
        """The expanded and filtered rows, and those of an image, that are alive at once."""
        rows = self.image.bytes if self.image else 0
        return self.expanded_bytes + self.filtered_bytes + rows

    @property
    def image_flops(self) -> int:
        """Operations of the plain sums for one image: rows that are computed twice count once."""
        total = self.depthwise.flops // self.depthwise.conv.batch
        if self.expand:
            total += self.expand.flops // self.expand.conv.batch
        for project in self.projects:
            out = self.depthwise.conv.row_count, project.conv.window.out[2]
            total += sum_flops(1, project.conv.outputs, out, project.reduction)
        return total
