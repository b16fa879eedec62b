"""Repacks the input rows of a chunk: 64 bytes of pixels, with zeros for the padding.

Floats become bfloat16. Their channels beyond the last one, which may be NaN, become zeros; those of
bytes stay, as their weights are zeros. Few channels of floats may lie in planes.
"""

from __future__ import annotations

from leanconv.algorithms.tiles.shape import COLUMNS_OF_PLANES, TileShape
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.matrix_tiles import ROW_BYTES
from leanconv.symbolic import most


def repack_rows(
    e: Function,
    conv: TileShape,
    x: Pointer,
    first: Value,
    rows: Value,
    scratch: Pointer,
    line: Pointer,
) -> None:
    """Emit the loops over parts of the channels and rows.

    Args:
        e: the function to append to.
        conv: the convolution.
        x: address of the image's first channel of the group.
        first: the first output row of the chunk.
        rows: input rows that the chunk reads, one at least.
        scratch: where they go.
        line: where rows go first if windows are taken from them.
    """
    window, many = conv.window, conv.tap_rows > 1
    start = first * window.stride[1] - window.pad[1]
    with e.loop("part", conv.parts) as part, e.loop("input_row", rows) as row:
        place = scratch.at(part * conv.part_bytes + row * conv.row_bytes)
        to = line.at(row * conv.line_bytes if many else 0) if conv.windows else place
        height = start + row
        inside = height.compare("ult", window.size[1])
        with e.when(inside):
            channels = part * (conv.pixel // conv.x.block) if conv.parts > 1 else e.i64(0)
            at = channels * conv.x.block_stride + height * conv.x.spatial[1]
            # Planes are copied by vectors, which end behind the row's last pixel.
            _copy_row(e, conv, x.at(at), to, part)
        with e.when(inside ^ 1):
            _zero(e, conv, to, e.i64(0), e.i64(conv.columns))
        if conv.windows and not many:
            _take_windows(e, conv, line, place)
    if many:
        _take_tall_windows(e, conv, line, scratch, rows)


def _take_tall_windows(
    e: Function, conv: TileShape, lines: Pointer, to: Pointer, rows: Value
) -> None:
    """Copy windows of several rows, one below the other, of bytes.

    What the last group of rows reads beyond the kernel is multiplied by weights of 0.
    """
    last = rows - conv.window.kernel[1] + (conv.row_groups - 1) * conv.tap_rows
    piece, kind = conv.taps * conv.pixel_bytes, vector("i8", ROW_BYTES)
    step = conv.window.stride[2] * conv.pixel_bytes
    with e.loop("window_row", last // conv.row_step + 1) as row:
        source, place = lines.at(row * conv.row_step * conv.line_bytes), to.at(row * conv.row_bytes)
        with e.loop("column", conv.out_columns) as column:
            window = e.load(source.at(column * step), kind, align=1)
            for number in range(1, conv.tap_rows):
                other = e.load(source.at(column * step + number * conv.line_bytes), kind, align=1)
                begin = number * piece
                lanes = [i if i < begin else ROW_BYTES + i - begin for i in range(ROW_BYTES)]
                window = e.shuffle(window, other, lanes)
            e.store(window, place.at(column * ROW_BYTES), align=ROW_BYTES)


def _take_windows(e: Function, conv: TileShape, line: Pointer, to: Pointer) -> None:
    """Copy the window of each output column and group of taps.

    Of floats those pixels alone that are multiplied: others may be infinite, and weights of 0 give
    NaN then.
    """
    last = conv.window.kernel[2] - (conv.tap_groups - 1) * conv.taps
    if not conv.factor.is_float or last == conv.taps:
        _take_groups(e, conv, line, to, e.i64(0), conv.tap_groups, conv.taps)
        return
    if conv.tap_groups > 1:
        _take_groups(e, conv, line, to, e.i64(0), conv.tap_groups - 1, conv.taps)
    _take_groups(e, conv, line, to, e.i64(conv.tap_groups - 1), conv.tap_groups, last)


def _take_groups(
    e: Function, conv: TileShape, line: Pointer, to: Pointer, first: Value, stop: int, taps: int
) -> None:
    """Copy the windows of groups of so many taps."""
    apart = conv.taps * conv.window.dilation[2] * conv.pixel_bytes
    step, kind = conv.window.stride[2] * conv.pixel_bytes, vector("i32", ROW_BYTES // 4)
    live = taps * conv.pixel_bytes // 4 if conv.factor.is_float else ROW_BYTES // 4
    with e.loop("kw", stop, start=first) as group:
        source, place = line.at(group * apart), to.at(group * conv.tap_bytes)
        with e.loop("column", conv.out_columns) as column:
            window = e.load_first(source.at(column * step), kind, live)
            e.store(window, place.at(column * ROW_BYTES), align=ROW_BYTES)


def _copy_row(e: Function, conv: TileShape, x: Pointer, to: Pointer, part: Value) -> None:
    """Copy the pixels of one row, which lies inside the image."""
    pad, size = conv.window.pad[2], conv.window.size[2]
    left = max(0, pad)
    begin = e.smin(e.i64(left), conv.columns)
    end = e.smax(e.smin(e.i64(size + pad), conv.columns), begin)
    _zero(e, conv, to, e.i64(0), begin)
    if conv.x.block == 1:
        _copy_planes(e, conv, x, to, (begin, end))
    else:
        _copy(e, conv, x, to, (begin, end), part)
    _zero(e, conv, to, end, e.i64(conv.columns))


def _zero(e: Function, conv: TileShape, to: Pointer, begin: Value, end: Value) -> None:
    """Fill columns with zeros."""
    kind = _kind(conv)
    with e.when(begin.compare("slt", end)), e.loop("column", end, start=begin) as column:
        pixel = to.at(column * conv.pixel_bytes)
        e.store(e.zero(kind), pixel, align=1)


def _copy(
    e: Function,
    conv: TileShape,
    x: Pointer,
    to: Pointer,
    columns: tuple[Value, Value],
    part: Value,
) -> None:
    """Copy columns; blocks beyond the last channel are left out, of floats they are zeros."""
    begin, end = columns
    block = conv.x.block
    blocks = most(1, conv.pixel // block)
    kind = vector(x.element, min(block, conv.pixel))
    held = -(-conv.inputs // block)  # blocks of all parts
    last = held - (conv.parts - 1) * blocks  # of the last part
    rest = conv.inputs % block if conv.factor.is_float else 0  # channels of the last block

    def loop(count: int, ends: bool) -> None:
        with e.loop("column", end, start=begin) as column:
            source = x.at((column - conv.window.pad[2]) * conv.x.spatial[2])
            pixel = to.at(column * conv.pixel_bytes)
            parts = []
            for number in range(count):
                live = rest if rest and ends and number == count - 1 else block
                value = e.load_first(source.at(number * conv.x.block_stride), kind, live)
                parts.append(_narrowed(e, value, conv))
            if conv.factor.is_float:
                parts += [e.zero(parts[0].kind)] * (blocks - count)
            while len(parts) % 2 == 0:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                size = 2 * lanes_of(parts[0].kind)
                parts = [e.shuffle(a, b, range(size)) for a, b in pairs]
            for number, value in enumerate(parts):
                at = number * lanes_of(value.kind) * conv.factor.bytes
                e.store(value, pixel.at(at), align=1)

    with e.when(begin.compare("slt", end)):
        if conv.parts == 1 or (last == blocks and not rest):
            loop(last, True)
            return
        whole = part.compare("ult", conv.parts - 1)
        with e.when(whole):
            loop(blocks, False)
        with e.when(whole ^ 1):
            loop(last, True)


def _copy_planes(
    e: Function, conv: TileShape, x: Pointer, to: Pointer, columns: tuple[Value, Value]
) -> None:
    """Copy columns of which each channel lies apart; what follows them in memory is overwritten."""
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
                planes.append(_narrowed(e, e.masked_load(plane, kind, mask), conv))
            planes += [e.zero(planes[0].kind)] * (conv.pixel - conv.inputs)
            while len(planes) > 1:  # channels 0, 2 and 1, 3; then all four beside each other
                middle = len(planes) // 2
                pairs = zip(planes[:middle], planes[middle:], strict=True)
                planes = [_interleaved(e, a, b) for a, b in pairs]
            e.store(planes[0], to.at(column * conv.pixel_bytes), align=1)


def _interleaved(e: Function, a: Value, b: Value) -> Value:
    """Lanes of two vectors in turn."""
    lanes = lanes_of(a.kind)
    return e.shuffle(a, b, [lane + part * lanes for lane in range(lanes) for part in (0, 1)])


def _narrowed(e: Function, value: Value, conv: TileShape) -> Value:
    """A vector of the input as what is multiplied."""
    kind = vector(conv.factor.llvm, lanes_of(value.kind))
    return value if kind == value.kind else e.convert("fptrunc", value, kind)


def _kind(conv: TileShape) -> str:
    return vector("i8", conv.pixel_bytes)
