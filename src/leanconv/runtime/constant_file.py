"""Constants that passes make, in a mapped file without a name instead of in memory.

A network whose packed weights are streamed would else hold those that passes have made, such as all
that a normalisation was folded into, until they are packed.
"""

from __future__ import annotations

import mmap
import os
from math import prod
from pathlib import Path

import numpy as np

from leanconv.codegen.private_folder import NotOursError, own_folder
from leanconv.files import mapped_file
from leanconv.runtime.memory import give_back, mapped_files

_LEAST_BYTES = 64 * 2**10  # of a constant that is written
_PIECE_BYTES = 4 * 2**20  # that are made contiguous at once, or read for it
_HIGH, _NARROW = 512, 64  # rows and least columns of a piece of what is transposed


class ConstantFile:
    """A file that arrays are moved to; it goes with the last of them.

    Args:
        folder: on whose disk it lies.
        most_bytes: that it may have. They are taken from the disk when they are written.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._left, self._end = most_bytes // mmap.PAGESIZE * mmap.PAGESIZE, 0
        self._map: mmap.mmap | None = None
        if not hasattr(os, "pwrite") or not self._left:
            return
        try:
            with own_folder(folder, make=True):
                pass
            import tempfile  # late: with it come archives and their compression

            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
            self._file.truncate(self._left)
            self._map = mmap.mmap(self._file.fileno(), self._left, access=mmap.ACCESS_READ)
        except (OSError, NotOursError):
            return  # what the file is to save is memory: packing needs it, too, and says so

    def moved(self, array: np.ndarray) -> np.ndarray:
        """The same array in the file; itself where it is small, in one already, or has no room."""
        size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        mapped = array.flags.c_contiguous and mapped_file(array) is not None
        if self._map is None or array.nbytes < _LEAST_BYTES or mapped or array.dtype.hasobject:
            return array
        if size > self._left:
            return array
        begin = self._end
        try:
            self._write(array, begin)
        except OSError:
            return array
        self._end, self._left = begin + size, self._left - size
        count = array.nbytes // array.itemsize
        return np.frombuffer(self._map, array.dtype, count, begin).reshape(array.shape)

    def _write(self, array: np.ndarray, begin: int) -> None:
        """Write an array's elements in order, some at a time; their sources' pages are let go."""
        array = array.reshape(len(array), -1) if _is_flat(array) else array  # a view
        rows, columns = array.shape[:2]
        inner = prod(array.shape[2:])  # elements that each "column" has
        if array.flags.c_contiguous:
            high, wide = max(1, _PIECE_BYTES // max(1, array.strides[0])), columns
        elif inner * array.itemsize * _HIGH > _PIECE_BYTES:
            for number, part in enumerate(array):
                self._write(part, begin + number * part.nbytes)
            return
        else:  # most likely transposed: a column's elements follow each other in the source
            apart = max(abs(array.strides[1]), _HIGH * array.itemsize)
            high, wide = _HIGH, max(1, _NARROW // inner, _PIECE_BYTES // (apart * inner))
        sources = mapped_files([array])
        for top in range(0, rows, high):
            for left in range(0, columns, wide):
                piece = np.ascontiguousarray(array[top : top + high, left : left + wide])
                for number, row in enumerate([piece] if wide >= columns else piece):
                    at = begin + ((top + number) * columns + left) * inner * array.itemsize
                    self._write_bytes(memoryview(row.reshape(-1)).cast("B"), at)
                give_back(sources)

    def _write_bytes(self, left: memoryview, begin: int) -> None:
        while left:
            count = os.pwrite(self._file.fileno(), left, begin)
            left, begin = left[count:], begin + count


def _is_flat(array: np.ndarray) -> bool:
    """Whether an array has one axis, or can be seen as rows without a copy."""
    return array.ndim == 1 or array.flags.c_contiguous
