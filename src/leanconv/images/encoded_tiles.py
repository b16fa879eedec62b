"""Bounds of a TIFF's encoded tiles and strips, asked before they are decoded."""

from __future__ import annotations

import lzma
import struct
import zlib
from functools import cache
from importlib.util import find_spec

# TIFF's numbers of compressions. Those of which no bound is known before decoding are left out.
_DEFLATE, _LZMA, _JPEG, _JPEG_2000 = (8, 32946), 34925, (6, 7), (33003, 33004, 33005, 34712)
_MOST_SAMPLES = 4  # of a picture's pixel
COMPRESSIONS = {1, 5, *_DEFLATE, 32773, 34926, 50000, _LZMA, *_JPEG, *_JPEG_2000}


def fits(data: bytes, compression: int, pixels: int, most: int) -> bool:
    """Whether an encoded tile or strip is no more than that, before all of it is decoded.

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
    """Of the largest frame of a JPEG stream; 0 if it says none."""
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
    """Whether imagecodecs decodes, which takes a bound."""
    return find_spec("imagecodecs") is not None
