"""Packed weights in files: processes that pack alike map one file, and hold its bytes once.

A file's name is a key of all that its bytes follow from. It is packed aside by one process while
others of its kind wait, then renamed, and never written again. Behind the weights stands a checksum
of name and bytes, read by everybody who maps them: a file that is damaged, or shorter than it says,
is made anew. Files are removed, never shortened, so that who has one mapped keeps all of it.

Constants that passes make move to a mapped file without a name (`ConstantFile`): a network whose
packed weights are streamed would else hold those that passes have made, such as all that a
normalisation was folded into, until they are packed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np

from leanconv.codegen.cache import drop_oldest
from leanconv.codegen.private_folder import (
    NotOursError,
    OwnFolder,
    WrongEntryError,
    own_folder,
)
from leanconv.files import mapped_file
from leanconv.runtime.file_block import FileBlock
from leanconv.runtime.locks import Lock
from leanconv.runtime.memory import give_back, mapped_files
from leanconv.units import format_bytes

try:
    import fcntl as _fcntl
except ImportError:  # Windows, where nobody waits: who comes second packs for itself
    _fcntl = None  # type: ignore[assignment]
fcntl: ModuleType | None = _fcntl

log = logging.getLogger(__name__)

_MAGIC = b"leanconv weights 1\n".ljust(32, b"\0")
_TAIL = len(_MAGIC) + hashlib.sha256().digest_size  # bytes behind the weights
_PIECE = 4 * 2**20  # bytes hashed at a time
_NAME = re.compile(r"[0-9a-f]{32,64}\.weights")
_LOCK = "weights.lock"
_WAIT_S = 60  # for another process that packs
_LOOK_MS = 20  # between two looks whether it has ended
_packing = Lock("packing weights into a file")
_warned: set[tuple[Path, str]] = set()  # folders that are not used, and why


class WeightFiles:
    """The files of packed weights in one folder.

    Whatever keeps a file from being read or made costs memory, no more: there is a warning, once a
    process, and the weights are packed where they are not shared.

    Args:
        folder: made on first use, with mode 0700; it is not used if others may write it.
        limit_bytes: the most that all files may have; those used longest ago go first.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit = folder, limit_bytes

    def find(self, key: str, size: int) -> FileBlock | None:
        """Return the weights of a key, mapped for reading; None where there is no such file.

        Args:
            key: hexadecimal digits, of all that the bytes follow from.
            size: bytes that they have.
        """
        with self._told(), own_folder(self._folder) as folder:
            return self._checked(folder, f"{key}.weights", size)
        return None

    def made(self, key: str, size: int, fill: Callable[[FileBlock], None]) -> FileBlock | None:
        """The weights of a key, packed by this process unless another has packed them meanwhile.

        Args:
            key, size: as for `find`.
            fill: packs them into a block of zeros; it is called at most once.

        Returns:
            The weights; None if they cannot be in a file, and nothing was packed.
        """
        if size > self._limit:
            self._warn(
                f"weights of {format_bytes(size)} do not fit the {format_bytes(self._limit)} of "
                "LEANCONV_WEIGHT_CACHE_BYTES"
            )
            return None
        packed: list[FileBlock] = []  # a packed block is used even if it gets no name
        try:
            with self._told(), own_folder(self._folder, make=True) as folder:
                with _alone(folder, key) as is_alone:
                    if not is_alone:
                        self._warn(f"another process packs the same for over {_WAIT_S} s")
                        return None
                    found = self._checked(folder, f"{key}.weights", size)
                    if found is not None:
                        return found
                    _pack(folder, f"{key}.weights", size, fill, packed)
                drop_oldest(folder, _NAME.fullmatch, self._limit)
        except _FillError as error:
            raise error.reason from None
        return packed[0] if packed else None

    def _checked(self, folder: OwnFolder, name: str, size: int) -> FileBlock | None:
        """A file that is whole, mapped; one that is not goes."""
        try:
            file = folder.opened(name)
        except FileNotFoundError:
            return None
        except WrongEntryError as error:
            log.warning("packed weights: %s; they are packed anew", error)
            folder.remove(name)
            return None
        with file:
            if _is_whole(file, name, size):
                if os.utime in os.supports_fd:
                    with contextlib.suppress(PermissionError):  # one of root's
                        os.utime(file.fileno())  # files used longest ago go first
                return FileBlock(file.fileno(), size)
        log.warning("packed weights: %s is damaged; they are packed anew", name)
        folder.remove(name)
        return None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say why the folder cannot be used, if it cannot."""
        try:
            yield
        except FileNotFoundError as error:
            if self._folder.exists():
                self._warn(str(error))
        except NotOursError as error:
            self._warn(str(error))
        except OSError as error:
            if error.errno is None:  # a signal handler's own
                raise
            self._warn(error.strerror or str(error))

    def _warn(self, reason: str) -> None:
        if (self._folder, reason) in _warned:
            return
        _warned.add((self._folder, reason))
        log.warning(
            "packed weights are not shared in %s (%s): this process has its own in memory; give "
            "shared_weights a folder with room that you alone may write",
            self._folder,
            reason,
        )


class _FillError(Exception):
    """An OSError of the function that packs, such as a user's progress function."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(reason)
        self.reason = reason


def _pack(
    folder: OwnFolder,
    name: str,
    size: int,
    fill: Callable[[FileBlock], None],
    packed: list[FileBlock],
) -> None:
    """Make a file; its block is put into a list as soon as there is one."""
    with folder.making(name) as file:
        packed.append(FileBlock.reserved(file.fileno(), size, beside=_TAIL))
        try:
            fill(packed[0])
        except OSError as error:
            raise _FillError(error) from error
        packed[0].release()
        _end(file, name, size)
        packed[0] = FileBlock(file.fileno(), size)


def _is_whole(file: BinaryIO, name: str, size: int) -> bool:
    """Return whether a file has as many bytes of weights, as they were packed.

    It is read, not mapped, for this: a disk that fails is an OSError then.
    """
    if os.fstat(file.fileno()).st_size != size + _TAIL:
        return False
    digest = _digest(file, name, size)
    return digest is not None and file.read(_TAIL) == _MAGIC + digest


def _end(file: BinaryIO, name: str, size: int) -> None:
    file.seek(0)
    digest = _digest(file, name, size)
    assert digest is not None, "the file is shorter than it was made"
    file.seek(size)
    file.write(_MAGIC + digest)
    file.flush()


def _digest(file: BinaryIO, name: str, size: int) -> bytes | None:
    """The checksum of a file's name and of so many bytes from here; None if there are fewer."""
    digest, left = hashlib.sha256(name.encode() + b"\n"), size
    while left:
        part = file.read(min(left, _PIECE))
        if not part:
            return None
        digest.update(part)
        left -= len(part)
    return digest.digest()


@contextlib.contextmanager
def _alone(folder: OwnFolder, key: str) -> Iterator[bool]:
    """Wait until no other thread packs, nor another process this key; yield whether that succeeded.

    The lock is one that ends with its process and that a forked child does not have.
    """
    if _packing.mine():  # in a signal handler
        yield False
        return
    with _packing.bare, folder.lasting(_LOCK) as file:
        yield _awaited(file, key)  # closing the file releases it


def _awaited(file: BinaryIO, key: str) -> bool:
    """Lock the place of a key, waiting for its owner; return whether that succeeded in time."""
    end = time.monotonic() + _WAIT_S
    while not (taken := _taken(file, key)) and time.monotonic() < end:
        time.sleep(_LOOK_MS / 1000)
    return taken


def _taken(file: BinaryIO, key: str) -> bool:
    """Try to lock the one byte of the file that stands for a key: it need not be there."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _lock_place(key))
    except (BlockingIOError, PermissionError):  # some systems say the latter
        return False
    return True


def _lock_place(key: str) -> int:
    return int(key[:12], 16)


_LEAST_BYTES = 64 * 2**10  # of a constant that is written
_PIECE_BYTES = 4 * 2**20  # that are made contiguous at once, or read for it
_HIGH, _NARROW = 512, 64  # rows and least columns of a piece of what is transposed


class ConstantFile:
    """A file that arrays are moved to; it goes with the last of them.

    Args:
        folder: on whose disk it lies.
        most_bytes: the most that it may have. They are taken from the disk when they are written.
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
            return  # without the file packing needs more memory, and raises if it lacks that

    def moved(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of an array in the file; itself if small, there already, or too large."""
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
    """Return whether an array has one axis, or can be seen as rows without a copy."""
    return array.ndim == 1 or array.flags.c_contiguous
