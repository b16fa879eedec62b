"""Blocks whose memory is a file's: processes that map one file hold its bytes once.

A file's disk space is reserved before it is mapped: writing to a page that the disk has no room for
would kill the process. For the same reason nobody may shorten a file that is mapped; files that are
no longer wanted are removed, which leaves those whole that have them open.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from pathlib import Path

import numpy as np

from leanconv.codegen.private_folder import NotOursError, own_folder
from leanconv.errors import OutOfMemoryError
from leanconv.runtime.memory import Block
from leanconv.units import format_bytes

_ZEROS = bytes(2**20)
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems say without the call
_AT_ONCE = 2**30  # bytes that one read asks the system for; some take less than 2 GiB


class FileBlock(Block):
    """The first bytes of a file, mapped; writes to them are in the file.

    Args:
        handle: a descriptor of a regular file of at least as many bytes (at least 1); the block has
            one of its own, so that this may be closed.
        size: bytes that the block has.
        writable: whether it is to be filled; the descriptor must allow it.

    Raises:
        OSError: the file cannot be mapped.
        ValueError: the file is shorter.
    """

    def __init__(self, handle: int, size: int, writable: bool = False) -> None:
        self.bytes = size
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._handle = os.dup(handle)
        weakref.finalize(self, os.close, self._handle)
        self._map = mmap.mmap(handle, max(1, size), access=access)
        self._bytes = np.frombuffer(self._map, np.uint8)  # keeps it where it is
        self.address = self._bytes.ctypes.data

    @staticmethod
    def reserved(handle: int, size: int, beside: int = 0) -> FileBlock:
        """An empty file's first bytes, zeros to be filled; the disk has room for all of them.

        Args:
            handle: a descriptor to read and write.
            size: bytes that the block has.
            beside: bytes that the file has behind it.

        Raises:
            OSError: there is no room.
        """
        _reserve(handle, max(1, size + beside))
        return FileBlock(handle, size, writable=True)

    def view(self, offset: int, size: int) -> np.ndarray:
        """Bytes of the block as an array, which can be written if the block can."""
        return self._bytes[offset : offset + size]

    def release(self, offset: int = 0, size: int | None = None) -> None:
        """Let whole pages of a range go from this process's memory; the file has their bytes.

        Whoever reads them again gets them from the file again. Where the system has no such call,
        the pages stay until it takes them itself.
        """
        end = self.bytes if size is None else offset + size
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        last = len(self._map) if end == self.bytes else end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

    def read_into(self, offset: int, array: np.ndarray) -> None:
        """Read bytes from the file, not through the mapping; other threads run meanwhile.

        Args:
            offset: of the first byte.
            array: contiguous uint8, to be filled.

        Raises:
            OSError: they cannot be read, or the file has ended.
        """
        assert offset + array.nbytes <= self.bytes, "beyond the block"
        left = array.data
        while left.nbytes:
            count = _read(self._handle, left[:_AT_ONCE], offset)
            if not count:
                raise OSError(f"the file ends at byte {offset}; expected {left.nbytes} more")
            left, offset = left[count:], offset + count


def _reserve(handle: int, size: int) -> None:
    """Give an empty file so many zeros, and the room for them on its disk."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
        else:
            return
    written = 0
    while written < size:
        written += os.write(handle, _ZEROS[: size - written])


def _read(handle: int, part: memoryview, offset: int) -> int:
    """Fill the beginning of a buffer from an offset of a file; return the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [part], offset)
    os.lseek(handle, offset, os.SEEK_SET)  # Windows: threads must not read at the same time
    data = os.read(handle, part.nbytes)
    part[: len(data)] = data
    return len(data)


def unnamed_block(folder: Path, size: int) -> FileBlock:
    """A block whose file has no name: it goes with the block, or with the process.

    Args:
        folder: on whose disk it lies; made where it is absent.
        size: bytes that the block has.

    Raises:
        OutOfMemoryError: there is no room, or the folder is not this user's alone.
    """
    import tempfile  # late: with it come archives and their compression

    try:
        with own_folder(folder, make=True):
            pass
        with tempfile.TemporaryFile(dir=folder) as file:
            return FileBlock.reserved(file.fileno(), size)
    except (OSError, NotOursError) as error:
        why = str(error) if isinstance(error, NotOursError) else error.strerror or str(error)
        raise OutOfMemoryError(
            f"a file of {format_bytes(size)} in {str(folder)!r} could not be had ({why}); make "
            "room, or set LEANCONV_CACHE_DIR to a folder that has it"
        ) from error
