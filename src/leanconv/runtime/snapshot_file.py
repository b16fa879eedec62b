"""Snapshots in files: a description as JSON, and constants that it lists with their checksums.

What a file says is not trusted: the description carries a digest of the file's name and of itself,
each constant a checksum, and nothing is unpickled. Whatever is wrong with a file makes it a miss.
The folder is one that nobody but this user and root may write (`codegen/private_folder`), since
damage is all that checksums find.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from leanconv.codegen.cache import drop_oldest
from leanconv.codegen.private_folder import NotOursError, OwnFolder, WrongEntryError, own_folder
from leanconv.records import dataclass
from leanconv.spec.format import aligned

log = logging.getLogger(__name__)

_MAGIC = b"leanconv snapshot 1\n".ljust(32, b"\0")
_HEAD = struct.Struct("<32sQ32s")  # the magic, the description's bytes, their digest
_MOST_DESCRIPTION = 16 * 2**20  # bytes; networks of a thousand layers have 1 MiB
_PIECE = 512 * 2**10  # bytes read and summed up at a time: L2 holds them
_ROW = 8192  # bytes
_NAME = re.compile(r"[0-9a-f]{40}(-[0-9a-f]{24})?\.snapshot")


_Taken = TypeVar("_Taken")


class DamagedError(Exception):
    """A snapshot does not hold what it should."""


WRONG = (
    DamagedError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True)
class KeptConstant:
    """A constant in a file.

    Attributes:
        offset: where it begins among the program's constants.
        bytes: its length.
        start: of its bytes, behind the description.
        digest: names them: SHA-256 in hexadecimal.
        check: their checksum, which is read in a fifth of the digest's time.
    """

    offset: int
    bytes: int
    start: int
    digest: str
    check: str


@dataclass(frozen=True)
class OpenSnapshot:
    """A snapshot whose description is whole.

    Attributes:
        description: as it was written.
        constants: in the order in which they lie in the file.
        file: open.
        begin: the first byte of the constants in the file.
    """

    description: Mapping[str, Any]
    constants: tuple[KeptConstant, ...]
    file: BufferedReader
    begin: int

    def read_into(self, constant: KeptConstant, place: memoryview) -> None:
        """Read a constant to its place in memory.

        Raises:
            DamagedError: it is cut short, or not what was written.
        """
        self.file.seek(self.begin + constant.start)

        def piece(begin: int) -> memoryview:
            part = place[begin : begin + _PIECE]
            if self.file.readinto(part) != len(part):
                raise DamagedError("it is cut short")
            return part

        if _checksum(map(piece, range(0, constant.bytes, _PIECE))) != constant.check:
            raise DamagedError("a constant is not what was written")


class SnapshotFiles:
    """The snapshots in a folder.

    Args:
        folder: made on first use, with mode 0700; it is not used if others may write it.
        limit_bytes: the most that all may have; those used longest ago go first.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit = folder, limit_bytes

    def read(self, key: str, take: Callable[[OpenSnapshot], _Taken]) -> _Taken | None:
        """Make something of a snapshot; None where there is none that is to be used.

        Args:
            key: of the snapshot.
            take: reads it. What it raises of `WRONG` says that the snapshot is damaged: there is a
                warning then, and the file goes.
        """
        name = f"{key}.snapshot"
        try:
            with own_folder(self._folder) as folder:
                try:
                    with folder.opened(name) as file:
                        assert isinstance(file, BufferedReader)
                        if os.utime in os.supports_fd:
                            with contextlib.suppress(OSError):  # one of root's, or read-only
                                os.utime(file.fileno())  # those used longest ago go first
                        return take(_described(file, name))
                except FileNotFoundError:
                    return None
                except WrongEntryError as error:
                    log.warning("snapshot %s; it is made anew", error)
                except WRONG as error:
                    log.warning("snapshot %s is damaged (%s); it is made anew", name, error)
                folder.remove(name)
        except FileNotFoundError:
            return None  # no folder yet
        except (NotOursError, OSError) as error:
            if isinstance(error, OSError) and error.errno is None:  # a signal handler's own
                raise
            log.info("no snapshot is read: %s", error)
        return None

    def keep(
        self,
        key: str,
        description: Mapping[str, Any],
        constants: Mapping[int, memoryview],
        most: int = 0,
    ) -> bool:
        """Write a snapshot.

        Args:
            key: hexadecimal digits; before a hyphen those that the snapshots of a network share.
            description: what JSON can hold.
            constants: bytes by where they begin among the program's constants.
            most: how many snapshots of a network there may be; 0 for any number.

        Returns:
            Whether it is there: not where there are as many, where it has no room, or where the
            folder cannot be used.
        """
        name, size = f"{key}.snapshot", sum(aligned(len(body)) for body in constants.values())
        if size > self._limit // 2:
            return False
        try:
            with own_folder(self._folder, make=True) as folder:
                if most and _count(folder, key) >= most:
                    return False
                listed = [*_listed(constants)]
                text = json.dumps({**description, "constants": listed}, separators=(",", ":"))
                head = _head(name, text.encode())
                if len(text) > _MOST_DESCRIPTION or len(head) + size > self._limit // 2:
                    return False
                with folder.making(name) as file:
                    file.write(head)
                    for offset, _, start, *_ in listed:
                        file.seek(len(head) + start)
                        file.write(constants[offset])
                    file.truncate(len(head) + size)
                drop_oldest(folder, _NAME.fullmatch, self._limit)
                return True
        except (NotOursError, OSError) as error:
            if isinstance(error, OSError) and error.errno is None:
                raise
            log.info("no snapshot is kept: %s", error)
            return False


def _listed(constants: Mapping[int, memoryview]) -> Iterator[tuple[int, int, int, str, str]]:
    """The fields of a `KeptConstant` for each, side by side in the file."""
    start = 0
    for offset, body in sorted(constants.items()):
        pieces = (body[at : at + _PIECE] for at in range(0, len(body), _PIECE))
        yield offset, len(body), start, hashlib.sha256(body).hexdigest(), _checksum(pieces)
        start += aligned(len(body))


def _head(name: str, text: bytes) -> bytes:
    """What a file begins with: its description, up to where constants are aligned."""
    head = _HEAD.pack(_MAGIC, len(text), _digest(name, text)) + text
    return head.ljust(aligned(len(head)), b"\0")


def _count(folder: OwnFolder, key: str) -> int:
    """Return how many other snapshots of a network there are."""
    of, name = f"{key.partition('-')[0]}-", f"{key}.snapshot"
    return len(folder.entries(lambda each: each.startswith(of) and each != name))


def _described(file: BufferedReader, name: str) -> OpenSnapshot:
    """An open snapshot.

    Raises:
        One of `WRONG`: its description is not whole.
    """
    head = file.read(_HEAD.size)
    magic, size, digest = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
    if magic != _MAGIC or size > _MOST_DESCRIPTION:
        raise DamagedError("it begins in another way")
    text = file.read(size)
    if len(text) < size or _digest(name, text) != digest:
        raise DamagedError("its description is not what was written")
    begin = aligned(_HEAD.size + size)
    room = os.fstat(file.fileno()).st_size - begin
    description = json.loads(text)
    constants = tuple(_constant(room, *each) for each in description["constants"])
    return OpenSnapshot(description, constants, file, begin)


def _constant(
    room: int, offset: Any, size: Any, start: Any, digest: Any, check: Any
) -> KeptConstant:
    if any(type(each) is not int or each < 0 for each in (offset, size, start)):
        raise DamagedError("a place is no number")
    if start + size > room or not isinstance(digest, str):
        raise DamagedError("a constant is not in the file")
    return KeptConstant(offset, size, start, digest, check)


def _checksum(pieces: Iterable[memoryview]) -> str:
    """A checksum of bytes: the sums of rows and of columns, of 1024 words of 64 bits each.

    A word that has changed changes both sums; so do rows that are zeros, or exchanged.

    Args:
        pieces: of `_PIECE` bytes, the last one of at most as many.
    """
    digest = hashlib.sha256()
    for piece in pieces:
        rest = len(piece) - len(piece) % _ROW
        if rest:
            words = np.frombuffer(piece[:rest], "<u8").reshape(-1, _ROW // 8)
            digest.update(words.sum(axis=1).data)
            digest.update(words.sum(axis=0).data)
        digest.update(piece[rest:])
    return digest.hexdigest()[:32]


def _digest(name: str, text: bytes) -> bytes:
    """The checksum of a file's name and description: of two exchanged files both are damaged."""
    return hashlib.sha256(name.encode() + b"\n" + text).digest()
