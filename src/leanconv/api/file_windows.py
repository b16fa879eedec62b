"""Windows of mapped files, read and written by calls: no page of the file stays in memory.

A window of an image in a mapped file touches other pages for each of its rows, and the system maps
those around them, too: of an image 30,000 pixels wide, 64 KiB for each row of 1 KiB. They count as
memory of the process until they are given back. `pread` and `pwrite` copy the rows alone, in two
thirds of the time. They see what mappings of the same file see, at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from math import prod
from typing import Any, NoReturn, TypeAlias

import numpy as np

from leanconv.api.image_places import Mapped, mapped_place
from leanconv.api.tile_layouts import Arranged
from leanconv.errors import InputError
from leanconv.files import open_regular, reason

log = logging.getLogger(__name__)
Index: TypeAlias = tuple[slice, ...]

# Rows that are further from each other than this are read with what is around them.
_BLOCK = 64 * 1024
_SHORTEST = 128  # bytes of a row: of shorter ones, such as columns, the mapping is faster


class FileWindows:
    """An array of a mapped file, whose windows are read and written by calls.

    Args:
        array: the array, with rows along its last axis.
        file: its descriptor.
        offset: of its first byte in the file.

    Attributes:
        shape, dtype: the array's.
    """

    def __init__(self, array: np.ndarray, file: int, offset: int) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._strides, self._file, self._offset = array.strides, file, offset
        self._asked = np.empty(0, np.int64)  # blocks of the last window

    def read(self, index: Index, into: np.ndarray) -> None:
        """Copy a window into an array, which may be of another dtype.

        Raises:
            InputError: the file cannot be read, or ends before.
        """
        self._ask_ahead(index)
        direct, held = into.dtype == self.dtype and into.flags.c_contiguous, None
        for block, places in self._blocks(index):
            if direct:
                _read_rows(self._file, into[block], places)
                continue
            held = np.empty(into[block].shape, self.dtype) if held is None else held
            _read_rows(self._file, held, places)
            into[block] = held

    def __getitem__(self, index: Index) -> np.ndarray:
        """A copy of a window."""
        into = np.empty([part.stop - part.start for part in index], self.dtype)
        self.read(index, into)
        return into

    def __setitem__(self, index: Index, array: np.ndarray) -> None:
        """Write a window.

        Raises:
            InputError: the file cannot be written.
        """
        for block, places in self._blocks(index):
            rows = array[block]
            for row, place in zip(rows if len(places) > 1 else [rows], places, strict=True):
                _write_all(self._file, np.ascontiguousarray(row), place)

    def flush(self) -> None:
        """Have written data reach the disk.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            os.fdatasync(self._file)
        except OSError as error:
            _failed("written", error)

    def _blocks(self, index: Index) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Rows that follow each other along one axis: which part of a window, and their places."""
        extents = [part.stop - part.start for part in index[: max(0, self._outer(index) - 1)]]
        places = self._places(index).reshape(prod(extents), -1)
        return zip(np.ndindex(*extents), places.tolist(), strict=True)

    def _places(self, index: Index) -> np.ndarray:
        """Return the offset in the file of each row of a window, in order."""
        outer, found = self._outer(index), np.array([self._offset], np.int64)
        for axis, (part, stride) in enumerate(zip(index, self._strides, strict=True)):
            steps = np.arange(part.start, part.stop if axis < outer else part.start + 1)
            found = np.add.outer(found, steps * stride)
        return found.reshape(-1)

    def _outer(self, index: Index) -> int:
        """Return how many axes lie around a row: the part contiguous in file and window."""
        axis, length = len(self.shape) - 1, self.dtype.itemsize
        while axis > 0 and (index[axis].start, index[axis].stop) == (0, self.shape[axis]):
            length *= self.shape[axis]
            if self._strides[axis - 1] != length:
                break
            axis -= 1
        return axis

    def _row_shape(self, index: Index) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in index[self._outer(index) :])

    def _ask_ahead(self, index: Index) -> None:
        """Have the system read the blocks around rows, all at once, but for the last window's.

        Rows alone are read one by one, each of which waits for the disk. Windows beside each other
        share the blocks.
        """
        length = prod(self._row_shape(index)) * self.dtype.itemsize
        if length > _BLOCK or not hasattr(os, "posix_fadvise"):
            return
        places = self._places(index)
        blocks = np.union1d(places // _BLOCK, (places + length - 1) // _BLOCK)
        for block in np.setdiff1d(blocks, self._asked, assume_unique=True).tolist():
            os.posix_fadvise(self._file, block * _BLOCK, _BLOCK, os.POSIX_FADV_WILLNEED)
        self._asked = blocks


def _read_rows(file: int, rows: np.ndarray, places: list[int]) -> None:
    """Fill equal parts of a contiguous array from places of a file."""
    octets, length = rows.reshape(-1).view(np.uint8).data, rows.nbytes // len(places)
    for number, place in enumerate(places):
        end, left = (number + 1) * length, length
        while left:  # once, but for rows of gigabytes
            try:
                got = os.preadv(file, [octets[end - left : end]], place + length - left)
            except OSError as error:
                _failed("read", error)
            if not got:
                raise InputError(
                    f"a mapped file ends at byte {place + length - left}, amid its array; expected "
                    "a whole file, which nobody cuts short meanwhile"
                )
            left -= got


def _write_all(file: int, row: np.ndarray, place: int) -> None:
    """Write a contiguous array to a place of a file."""
    count, octets = 0, row.reshape(-1).view(np.uint8).data
    while count < row.nbytes:
        try:
            count += os.pwrite(file, octets[count:], place + count)
        except OSError as error:  # such as a full disk
            _failed("written", error)


def _failed(what: str, error: OSError) -> NoReturn:
    raise InputError(
        f"a mapped file cannot be {what}: {reason(error)}; expected one that stays as it is, and "
        "space for what is written"
    ) from error


def through_calls(array: Any, stack: ExitStack, writing: bool = False) -> Any:
    """An array's windows through calls, if it is one of a mapped file; otherwise the array.

    Args:
        array: an image that a run reads or writes.
        stack: closes the file.
        writing: whether it is written.
    """
    if isinstance(array, Arranged):
        return array.over(through_calls(array.array, stack, writing))
    mapped = _rows_in_file(array)
    if mapped is None or (writing and not array.flags.writeable):
        return array
    try:
        with open_regular(mapped.path, mode="r+b" if writing else "rb") as opened:
            file = os.dup(opened.fileno())
    except (OSError, InputError) as error:
        log.debug("%s is read as it is mapped: %s", mapped.path, error)
        return array
    stack.callback(os.close, file)
    status = os.fstat(file)
    device = status.st_dev
    if (os.major(device), os.minor(device), status.st_ino) != mapped.number:
        log.debug("%s is another file than the one that is mapped", mapped.path)
        return array
    return FileWindows(array, file, mapped.offset)


def _rows_in_file(array: Any) -> Mapped | None:
    """Find an array's place in a mapped file; None unless that is shared and rows are long.

    Of a private mapping, what was written is in memory alone.
    """
    if not isinstance(array, np.ndarray) or not array.size:
        return None
    if array.strides[-1:] != (array.itemsize,) or min(array.strides) < 0:
        return None
    if array.shape[-1] * array.itemsize < _SHORTEST and not array.flags.c_contiguous:
        return None
    mapped = mapped_place(array)
    return mapped if mapped is not None and mapped.shared else None
