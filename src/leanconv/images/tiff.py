"""TIFF and BigTIFF files, read window by window: of tiles and strips those that a window meets.

Pixels that lie in the file as in an array are mapped. Others are decoded by tifffile, tile by tile
(or strip by strip), and the last ones are kept, since windows overlap.
"""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections import OrderedDict
from functools import cache
from importlib.util import find_spec
from math import ceil, prod
from threading import Lock
from typing import Any

import numpy as np

from leanconv.api.image_places import mapped_whole
from leanconv.api.tile_layouts import checked_layout
from leanconv.errors import InputError, MissingExtraError, short
from leanconv.files import open_regular, reason
from leanconv.units import format_bytes, shape_text

# TIFF's numbers of compressions. Those of which no bound is known before decoding are left out.
_DEFLATE, _LZMA, _JPEG, _JPEG_2000 = (8, 32946), 34925, (6, 7), (33003, 33004, 33005, 34712)
_MOST_SAMPLES = 4  # of a picture's pixel
COMPRESSIONS = {1, 5, *_DEFLATE, 32773, 34926, 50000, _LZMA, *_JPEG, *_JPEG_2000}
MOST_PART_BYTES = 1 << 28  # that a tile or strip may have when decoded
KEPT_BYTES = 1 << 27  # of decoded tiles and strips
_SLACK = 1 << 16  # by which an encoded part may be longer than twice its pixels


def fits(data: bytes, compression: int, pixels: int, most: int) -> bool:
    """Return whether encoded data have at most so many bytes or pixels, without decoding them all.

    The standard library decodes without a bound; imagecodecs is given one, but for pictures, which
    say their size themselves.
    """
    if compression in _DEFLATE and not _bounded():
        return len(zlib.decompressobj().decompress(data, most + 1)) <= most
    if compression == _LZMA and not _bounded():
        return len(lzma.LZMADecompressor().decompress(data, most + 1)) <= most
    if compression in _JPEG:
        return 0 < _jpeg_pixels(data) <= pixels
    if compression in _JPEG_2000:
        begin = data.find(b"\xff\x4f\xff\x51")  # of the image, and of its size
        if begin < 0 or len(data) < begin + 42:
            return False
        right, bottom, left, top = struct.unpack_from(">4I", data, begin + 8)
        (samples,) = struct.unpack_from(">H", data, begin + 40)
        size = int(right - left) * int(bottom - top)
        return int(samples) <= _MOST_SAMPLES and size <= pixels
    return True


def _jpeg_pixels(data: bytes) -> int:
    """Return the pixels of the largest frame of a JPEG stream; 0 if it states none."""
    place, most = 2, 0
    while place + 9 <= len(data):
        place = data.find(b"\xff", place)
        if place < 0 or place + 9 > len(data):
            break
        if data[place + 1] in (0x00, 0x01, 0xFF, *range(0xD0, 0xDA)):  # no marker with a length
            place += 1
            continue
        kind, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if kind in range(0xC0, 0xD0) and kind not in (0xC4, 0xC8, 0xCC):
            rows, columns = struct.unpack_from(">2H", data, place + 5)
            most = max(most, rows * columns)
        place += 2 + length
    return most


@cache
def _bounded() -> bool:
    """Return whether imagecodecs, which takes a bound, decodes."""
    return find_spec("imagecodecs") is not None


def opened(
    path: str | os.PathLike[str], level: int = 0, writable: bool = False
) -> tuple[Any, str | None]:
    """The first image of a file, and its axes.

    Raises:
        InputError: the file cannot be read in parts.
        MissingExtraError: tifffile is not installed.
    """
    tifffile = _tifffile()
    shown = f"image {os.fspath(path)!r}"
    try:
        file = open_regular(path, what="image")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{shown} cannot be read: {reason(error)}; expected a TIFF file"
        ) from error
    try:
        # Other files that this one names stay closed.
        held = tifffile.TiffFile(file, name=os.fspath(path), _multifile=False)
        levels = len(held.series[0].levels)
        if not 0 <= level < levels:
            raise InputError(f"{shown} has no level {level}; expected 0 to {levels - 1}")
        image = TiffImage(path, held, level)
        return image.mapped(writable), image.layout
    except InputError:
        file.close()
        raise
    except Exception as error:  # whatever a library of so many formats raises
        file.close()
        raise InputError(
            f"{shown} cannot be read: {error or type(error).__name__}; expected a TIFF file"
        ) from error


def created(
    path: str | os.PathLike[str], shape: tuple[int, ...], dtype: np.dtype[Any], layout: str | None
) -> np.memmap:
    """A BigTIFF file of pixels as they lie in an array, mapped."""
    last = layout is not None and layout[-1] in "CS" and len(shape) > 2
    made: np.memmap = _tifffile().memmap(
        os.fspath(path),
        shape=shape,
        dtype=dtype,
        bigtiff=True,
        photometric="minisblack",
        planarconfig="contig" if last else None,
        metadata=None if layout is None else {"axes": layout},
    )
    return made


def _tifffile() -> Any:
    try:
        import tifffile
    except ImportError as error:
        raise MissingExtraError(
            "TIFF files need the package tifffile, which is not installed; install it with "
            "`pip install 'leanconv[images]'`"
        ) from error
    return tifffile


class TiffImage:
    """One image of a file: pages, each a grid of tiles or strips.

    The array is (lead…, rows, columns) or (lead…, rows, columns, samples); an index of the lead
    axes is a page, and where samples lie apart a plane of a page.

    Attributes:
        filename: of the file.
        level: of its resolutions.
        shape, dtype: of the image.
        layout: a letter for each axis.
    """

    def __init__(self, path: str | os.PathLike[str], file: Any, level: int) -> None:
        self.filename, self.level = os.fspath(path), level
        self._file, self._series = file, file.series[0].levels[level]
        self._page = self._series.keyframe
        self.shape, self.layout = self._axes()
        self.dtype = np.dtype(self._series.dtype)
        if self.dtype.kind not in "biuf":
            raise self._refused(f"it holds {self.dtype}", "numbers")
        self._pages: list[Any] = []
        self._kept: OrderedDict[tuple[int, int], np.ndarray | None] = OrderedDict()
        self._kept_bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.filename, self.level)  # another process reads the file by itself

    # -- what it is ----------------------------------------------------------------------------
    def mapped(self, writable: bool = False) -> Any:
        """The image as a mapped array, if its pixels lie in the file so; else as it is."""
        begin = self._series.dataoffset
        if begin is None:
            if writable:
                raise self._refused("its pixels are compressed, or in tiles", "one in one piece")
            self._check_parts()
            return self
        kind = self.dtype.newbyteorder(self._file.byteorder)
        try:
            return mapped_whole(self.filename, kind, begin, self.shape, writable=writable)
        except (OSError, ValueError, OverflowError) as error:
            raise self._refused(f"it cannot be mapped: {reason(error)}", "a whole file") from error

    def _axes(self) -> tuple[tuple[int, ...], str]:
        """The shape and layout; extents of 1 stay where pages could not be found without them."""
        count, _, rows, columns, samples = self._page.shaped
        tail = (rows, columns) if samples == 1 else (rows, columns, samples)
        planes = len(self._series.pages) * count
        for squeeze in (True, False):
            shape = tuple(int(n) for n in self._series.get_shape(squeeze))
            lead = shape[: len(shape) - len(tail)]
            if shape[len(lead) :] == tail and (
                prod(lead) == planes or self._series.dataoffset is not None
            ):
                return shape, checked_layout(self._series.get_axes(squeeze), len(shape))
        raise self._refused(
            f"its pages of {shape_text(self._page.shape)} are not all parts of one array of "
            f"{shape_text(self._series.shape)}",
            "pages of one shape",
        )

    def _check_parts(self) -> None:
        """Refuse images that cannot be read in parts of a bounded size."""
        page = self._page
        count, depth, rows, columns, samples = page.shaped
        pages = list(self._series.pages)
        if depth != 1 or any(p is None or p.keyframe.hash != page.hash for p in pages):
            raise self._refused("its pages are missing, or of several kinds", "pages of one shape")
        self._pages, self._planes, self._extents = pages, count, (rows, columns, samples)
        high, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (0, columns)
        high = high or min(rows, page.rowsperstrip)
        if high < 1 or wide < 1:
            raise self._refused(f"its tiles are of {high}x{wide} pixels", "tiles of pixels")
        self._part, self._grid = (high, wide), (ceil(rows / high), ceil(columns / wide))
        self._part_bytes = high * wide * samples * self.dtype.itemsize
        if self._part_bytes > MOST_PART_BYTES:
            raise self._refused(
                f"one tile or strip takes {format_bytes(self._part_bytes)}",
                f"at most {format_bytes(MOST_PART_BYTES)}: write it anew in tiles",
            )
        if int(page.compression) not in COMPRESSIONS:
            raise self._refused(
                f"its compression is {page.compression!r}",
                "none, LZW, Deflate, PackBits, LZMA, Zstandard, JPEG or JPEG 2000",
            )
        page.decode(None, 0)  # which raises if a package is missing that decodes it

    # -- what is read --------------------------------------------------------------------------
    def __getitem__(self, index: Any) -> np.ndarray:
        """A window, by integers and slices without steps."""
        ranges, single = _ranges(index, self.shape)
        found = np.empty([stop - start for start, stop in ranges], self.dtype)
        apart = self._extents[2] == 1  # no axis of samples
        lead, samples = len(ranges) - (2 if apart else 3), slice(*ranges[-1])
        for chosen in np.ndindex(found.shape[:lead]):
            places = [start + n for (start, _), n in zip(ranges, chosen, strict=False)]
            number = int(np.ravel_multi_index(places, self.shape[:lead])) if lead else 0
            out = found[chosen][..., None] if apart else found[chosen]
            window = ranges[lead], ranges[lead + 1], slice(None) if apart else samples
            self._fill(out, number, *window)
        return found.squeeze(single)

    def _fill(
        self,
        out: np.ndarray,
        number: int,
        rows: tuple[int, int],
        columns: tuple[int, int],
        samples: slice,
    ) -> None:
        """Fill (rows, columns, samples) of one plane from the tiles that they meet."""
        page, plane = divmod(number, self._planes)
        high, wide = self._part
        for line in range(rows[0] // high, ceil(rows[1] / high)):
            for column in range(columns[0] // wide, ceil(columns[1] / wide)):
                place = (plane * self._grid[0] + line) * self._grid[1] + column
                part = self._decoded(page, place)
                top, left = max(rows[0], line * high), max(columns[0], column * wide)
                end = min(rows[1], (line + 1) * high), min(columns[1], (column + 1) * wide)
                to = out[top - rows[0] : end[0] - rows[0], left - columns[0] : end[1] - columns[0]]
                if part is None:
                    to[...] = self._page.nodata
                    continue
                begin = top - line * high, left - column * wide
                held = part[begin[0] :, begin[1] :][: to.shape[0], : to.shape[1]]
                if held.shape[:2] != to.shape[:2]:
                    raise self._refused(f"its tile {place} is cut short", "a whole file")
                to[...] = held[..., samples]

    def _decoded(self, page: int, place: int) -> np.ndarray | None:
        """A tile or strip, (rows, columns, samples); None for one that the file leaves out."""
        with self._lock:
            if (page, place) in self._kept:
                self._kept.move_to_end((page, place))
                return self._kept[page, place]
            try:
                part = self._read(self._pages[page], place)
            except InputError:
                raise
            except Exception as error:  # whatever decoders raise
                raise self._refused(
                    f"its tile {place} cannot be decoded ({error or type(error).__name__})",
                    "a whole file",
                ) from error
            self._kept[page, place] = part
            self._kept_bytes += 0 if part is None else part.nbytes
            self._forget()
            return part

    def _forget(self) -> None:
        """Forget tiles that were used longest ago, until the rest are few enough."""
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= 0 if gone is None else gone.nbytes

    def _read(self, page: Any, place: int) -> np.ndarray | None:
        begin, count = page.dataoffsets[place], page.databytecounts[place]
        if count == 0:
            return None
        if count > 2 * self._part_bytes + _SLACK:
            raise self._refused(
                f"its tile {place} has {count} bytes, and {self._part_bytes} of pixels",
                "no more than twice as many",
            )
        self._file.filehandle.seek(begin)
        data = self._file.filehandle.read(count)
        if len(data) < count:
            raise self._refused(f"its tile {place} is cut short", "a whole file")
        pixels = self._part[0] * self._part[1]
        header = getattr(self._page, "jpegheader", None)
        whole = data if header is None else header + data
        if not fits(whole, int(self._page.compression), pixels, self._part_bytes + _SLACK):
            raise self._refused(
                f"its tile {place} is, or may be, longer than its pixels when decoded",
                f"{self._part_bytes} bytes",
            )
        tables = getattr(page, "jpegtables", None)
        part, _, _ = self._page.decode(data, place, jpegtables=tables, jpegheader=header)
        return None if part is None else part[0]

    def _refused(self, got: str, expected: str) -> InputError:
        return InputError(
            f"image {self.filename!r} cannot be read in parts: {got}; expected {expected}"
        )


def _reopened(path: str, level: int) -> Any:
    return opened(path, level)[0]


def _ranges(index: Any, shape: tuple[int, ...]) -> tuple[list[tuple[int, int]], tuple[int, ...]]:
    """The range that an index reads of each axis, and the axes that it drops."""
    given = index if isinstance(index, tuple) else (index,)
    if any(each is Ellipsis for each in given):
        at = next(n for n, each in enumerate(given) if each is Ellipsis)
        given = (*given[:at], *[slice(None)] * (len(shape) - len(given) + 1), *given[at + 1 :])
    given = (*given, *[slice(None)] * (len(shape) - len(given)))
    found, single = [], []
    for axis, (each, extent) in enumerate(zip(given, shape, strict=True)):
        if isinstance(each, slice):
            start, stop, step = each.indices(extent)
        else:
            start = range(extent)[each]
            stop, step = start + 1, 1
            single.append(axis)
        if step != 1:
            raise InputError(f"the index {short(index)} has steps; expected slices without")
        found.append((start, max(start, stop)))
    return found, tuple(single)
