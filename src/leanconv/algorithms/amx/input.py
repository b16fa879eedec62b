"""Repacks the input rows of a chunk: 64 bytes of pixels, with zeros for the padding.

Floats become bfloat16. Their channels beyond the last one, which may be NaN, become zeros; those of
bytes stay, as their weights are zeros. Few channels of floats may lie in planes.
"""

from __future__ import annotations

from leanconv.algorithms.amx.shape import COLUMNS_OF_PLANES, TileShape
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.matrix_tiles import ROW_BYTES
from leanconv.symbolic import most


def repack_rows(
    e: Function,
    kernel: TileShape,
    x: Pointer,
    first: Value,
    rows: Value,
    scratch: Pointer,
    line: Pointer,
) -> None:
    """Emit the loops over parts of the channels and rows.

    Args:
        e: the function to append to.
        kernel: the convolution.
        x: address of the image's first channel of the group.
        first: the first output row of the chunk.
        rows: input rows that the chunk reads, one at least.
        scratch: address of the repacked rows.
        line: address of rows before windows are taken from them, if any are.
    """
    conv = kernel.conv
    window, many = conv.window, kernel.tap_rows > 1
    start = first * window.stride[1] - window.pad[1]
    with e.loop("part", kernel.parts) as part, e.loop("input_row", rows) as row:
        place = scratch.at(part * kernel.part_bytes + row * kernel.row_bytes)
        to = line.at(row * kernel.line_bytes if many else 0) if kernel.windows else place
        height = start + row
        inside = height.compare("ult", window.size[1])
        with e.when(inside):
            channels = part * (kernel.pixel // conv.x.block) if kernel.parts > 1 else e.i64(0)
            at = channels * conv.x.block_stride + height * conv.x.spatial[1]
            # Planes are copied by vectors, which end behind the row's last pixel.
            _copy_row(e, kernel, x.at(at), to, part)
        with e.when(inside ^ 1):
            _zero(e, kernel, to, e.i64(0), e.i64(kernel.columns))
        if kernel.windows and not many:
            _take_windows(e, kernel, line, place)
    if many:
        _take_tall_windows(e, kernel, line, scratch, rows)


def _take_tall_windows(
    e: Function, kernel: TileShape, lines: Pointer, to: Pointer, rows: Value
) -> None:
    """Copy windows of several rows, one below the other, of bytes.

    What the last group of rows reads beyond the kernel is multiplied by weights of 0.
    """
    last = rows - kernel.conv.window.kernel[1] + (kernel.row_groups - 1) * kernel.tap_rows
    piece, kind = kernel.taps * kernel.pixel_bytes, vector("i8", ROW_BYTES)
    step = kernel.conv.window.stride[2] * kernel.pixel_bytes
    with e.loop("window_row", last // kernel.row_step + 1) as row:
        source, place = (
            lines.at(row * kernel.row_step * kernel.line_bytes),
            to.at(row * kernel.row_bytes),
        )
        with e.loop("column", kernel.out_columns) as column:
            window = e.load(source.at(column * step), kind, align=1)
            for number in range(1, kernel.tap_rows):
                other = e.load(source.at(column * step + number * kernel.line_bytes), kind, align=1)
                begin = number * piece
                lanes = [i if i < begin else ROW_BYTES + i - begin for i in range(ROW_BYTES)]
                window = e.shuffle(window, other, lanes)
            e.store(window, place.at(column * ROW_BYTES), align=ROW_BYTES)


def _take_windows(e: Function, kernel: TileShape, line: Pointer, to: Pointer) -> None:
    """Copy the window of each output column and group of taps.

    Of floats those pixels alone that are multiplied: others may be infinite, and weights of 0 give
    NaN then.
    """
    last = kernel.conv.window.kernel[2] - (kernel.tap_groups - 1) * kernel.taps
    if not kernel.factor.is_float or last == kernel.taps:
        _take_groups(e, kernel, line, to, e.i64(0), kernel.tap_groups, kernel.taps)
        return
    if kernel.tap_groups > 1:
        _take_groups(e, kernel, line, to, e.i64(0), kernel.tap_groups - 1, kernel.taps)
    _take_groups(e, kernel, line, to, e.i64(kernel.tap_groups - 1), kernel.tap_groups, last)


def _take_groups(
    e: Function, kernel: TileShape, line: Pointer, to: Pointer, first: Value, stop: int, taps: int
) -> None:
    """Copy the windows of groups of so many taps."""
    apart = kernel.taps * kernel.conv.window.dilation[2] * kernel.pixel_bytes
    step, kind = kernel.conv.window.stride[2] * kernel.pixel_bytes, vector("i32", ROW_BYTES // 4)
    live = taps * kernel.pixel_bytes // 4 if kernel.factor.is_float else ROW_BYTES // 4
    with e.loop("kw", stop, start=first) as group:
        source, place = line.at(group * apart), to.at(group * kernel.tap_bytes)
        with e.loop("column", kernel.out_columns) as column:
            window = e.load_first(source.at(column * step), kind, live)
            e.store(window, place.at(column * ROW_BYTES), align=ROW_BYTES)


def _copy_row(e: Function, kernel: TileShape, x: Pointer, to: Pointer, part: Value) -> None:
    """Copy the pixels of one row, which lies inside the image."""
    conv = kernel.conv
    pad, size = conv.window.pad[2], conv.window.size[2]
    left = max(0, pad)
    begin = e.smin(e.i64(left), kernel.columns)
    end = e.smax(e.smin(e.i64(size + pad), kernel.columns), begin)
    _zero(e, kernel, to, e.i64(0), begin)
    if conv.x.block == 1:
        _copy_planes(e, kernel, x, to, (begin, end))
    else:
        _copy(e, kernel, x, to, (begin, end), part)
    _zero(e, kernel, to, end, e.i64(kernel.columns))


def _zero(e: Function, kernel: TileShape, to: Pointer, begin: Value, end: Value) -> None:
    kind = _kind(kernel)
    with e.when(begin.compare("slt", end)), e.loop("column", end, start=begin) as column:
        pixel = to.at(column * kernel.pixel_bytes)
        e.store(e.zero(kind), pixel, align=1)


def _copy(
    e: Function,
    kernel: TileShape,
    x: Pointer,
    to: Pointer,
    columns: tuple[Value, Value],
    part: Value,
) -> None:
    """Copy columns; blocks beyond the last channel are left out, of floats they are zeros."""
    conv = kernel.conv
    begin, end = columns
    block = conv.x.block
    blocks = most(1, kernel.pixel // block)
    kind = vector(x.element, min(block, kernel.pixel))
    held = -(-conv.inputs // block)  # blocks of all parts
    last = held - (kernel.parts - 1) * blocks  # of the last part
    rest = conv.inputs % block if kernel.factor.is_float else 0  # channels of the last block

    def loop(count: int, ends: bool) -> None:
        with e.loop("column", end, start=begin) as column:
            source = x.at((column - conv.window.pad[2]) * conv.x.spatial[2])
            pixel = to.at(column * kernel.pixel_bytes)
            parts = []
            for number in range(count):
                live = rest if rest and ends and number == count - 1 else block
                value = e.load_first(source.at(number * conv.x.block_stride), kind, live)
                parts.append(_narrowed(e, value, kernel))
            if kernel.factor.is_float:
                parts += [e.zero(parts[0].kind)] * (blocks - count)
            while len(parts) % 2 == 0:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                size = 2 * lanes_of(parts[0].kind)
                parts = [e.shuffle(a, b, range(size)) for a, b in pairs]
            for number, value in enumerate(parts):
                at = number * lanes_of(value.kind) * kernel.factor.bytes
                e.store(value, pixel.at(at), align=1)

    with e.when(begin.compare("slt", end)):
        if kernel.parts == 1 or (last == blocks and not rest):
            loop(last, True)
            return
        whole = part.compare("ult", kernel.parts - 1)
        with e.when(whole):
            loop(blocks, False)
        with e.when(whole ^ 1):
            loop(last, True)


def _copy_planes(
    e: Function, kernel: TileShape, x: Pointer, to: Pointer, columns: tuple[Value, Value]
) -> None:
    """Copy columns of which each channel lies apart; what follows them in memory is overwritten."""
    conv = kernel.conv
    begin, end = columns
    kind = vector(x.element, COLUMNS_OF_PLANES)
    with e.when(begin.compare("slt", end)):
        with e.loop("column", end, start=begin, step=COLUMNS_OF_PLANES) as column:
            source, mask = (
                x.at(column - conv.window.pad[2]),
                e.first_lanes(end - column, COLUMNS_OF_PLANES),
            )
            planes = []
            for channel in range(conv.inputs):
                plane = source.at(channel * conv.x.block_stride)
                planes.append(_narrowed(e, e.masked_load(plane, kind, mask), kernel))
            planes += [e.zero(planes[0].kind)] * (kernel.pixel - conv.inputs)
            while len(planes) > 1:  # channels 0, 2 and 1, 3; then all four beside each other
                middle = len(planes) // 2
                pairs = zip(planes[:middle], planes[middle:], strict=True)
                planes = [_interleaved(e, a, b) for a, b in pairs]
            e.store(planes[0], to.at(column * kernel.pixel_bytes), align=1)


def _interleaved(e: Function, a: Value, b: Value) -> Value:
    lanes = lanes_of(a.kind)
    return e.shuffle(a, b, [lane + part * lanes for lane in range(lanes) for part in (0, 1)])


def _narrowed(e: Function, value: Value, kernel: TileShape) -> Value:
    """A vector of the input, converted to the type that tiles multiply."""
    kind = vector(kernel.factor.llvm, lanes_of(value.kind))
    return value if kind == value.kind else e.convert("fptrunc", value, kind)


def _kind(kernel: TileShape) -> str:
    return vector("i8", kernel.pixel_bytes)
