"""Repacks the input rows of a chunk: 64 bytes of pixels, with zeros for the padding."""

from __future__ import annotations

from leanconv.algorithms.tiles.shape import TileShape
from leanconv.codegen.emitter import Function, Pointer, Value, lanes_of, vector
from leanconv.codegen.matrix_tiles import ROW_BYTES
from leanconv.symbols import most


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
        line: where one row goes first if windows are taken from it.
    """
    window = conv.window
    start = first * window.stride[1] - window.pad[1]
    with e.loop("part", conv.parts) as part, e.loop("input_row", rows) as row:
        place = scratch.at(part * conv.part_bytes + row * conv.row_bytes)
        to = line if conv.windows else place
        height = start + row
        inside = height.compare("ult", window.size[1])
        with e.when(inside):
            channels = part * (conv.pixel_bytes // conv.x.block) if conv.parts > 1 else e.i64(0)
            at = channels * conv.x.block_stride + height * conv.x.spatial[1]
            _copy_row(e, conv, x.at(at), to, part)
        with e.when(inside ^ 1):
            _zero(e, conv, to, e.i64(0), e.i64(conv.columns))
        if conv.windows:
            _take_windows(e, conv, line, place)


def _take_windows(e: Function, conv: TileShape, line: Pointer, to: Pointer) -> None:
    """Copy the window of each output column and group of taps."""
    apart = conv.taps * conv.window.dilation[2] * conv.pixel_bytes
    step, kind = conv.window.stride[2] * conv.pixel_bytes, vector("i8", ROW_BYTES)
    with e.loop("kw", conv.tap_groups) as group:
        source, place = line.at(group * apart), to.at(group * conv.tap_bytes)
        with e.loop("column", conv.out_columns) as column:
            window = e.load(source.at(column * step), kind)
            e.store(window, place.at(column * ROW_BYTES), align=ROW_BYTES)


def _copy_row(e: Function, conv: TileShape, x: Pointer, to: Pointer, part: Value) -> None:
    """Copy the pixels of one row, which lies inside the image."""
    pad, size = conv.window.pad[2], conv.window.size[2]
    left = max(0, pad)
    begin = e.smin(e.i64(left), conv.columns)
    end = e.smax(e.smin(e.i64(size + pad), conv.columns), begin)
    _zero(e, conv, to, e.i64(0), begin)
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
    """Copy columns; blocks beyond the last channel are left out, where whole ones are."""
    begin, end = columns
    block = conv.x.block
    blocks = most(1, conv.pixel_bytes // block)
    bytes_ = min(block, conv.pixel_bytes)
    kind = vector("i8", bytes_)
    held = -(-conv.inputs // block)  # blocks of all parts
    last = held - (conv.parts - 1) * blocks  # of the last part

    def loop(count: int) -> None:
        with e.loop("column", end, start=begin) as column:
            source = x.at((column - conv.window.pad[2]) * conv.x.spatial[2])
            pixel = to.at(column * conv.pixel_bytes)
            parts = [
                e.load(source.at(number * conv.x.block_stride), kind, align=1)
                for number in range(count)
            ]
            while len(parts) % 2 == 0:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                size = 2 * lanes_of(parts[0].kind)
                parts = [e.shuffle(a, b, range(size)) for a, b in pairs]
            for number, value in enumerate(parts):
                e.store(value, pixel.at(number * lanes_of(value.kind)), align=1)

    with e.when(begin.compare("slt", end)):
        if last == blocks or conv.parts == 1:
            loop(last)
            return
        whole = part.compare("ult", conv.parts - 1)
        with e.when(whole):
            loop(blocks)
        with e.when(whole ^ 1):
            loop(last)


def _kind(conv: TileShape) -> str:
    return vector("i8", conv.pixel_bytes)
