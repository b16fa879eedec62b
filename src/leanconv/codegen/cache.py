"""A cache of files on disk: whole or absent, checked, bounded, in a folder others may not write."""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from leanconv.codegen.private_folder import (
    PART,
    Entry,
    NotOursError,
    OwnFolder,
    WrongEntryError,
    own_folder,
)
from leanconv.settings import current_settings

log = logging.getLogger(__name__)

_MAGIC = b"leanconv object 2\n"
_DIGEST = 32
MOST_ENTRY_BYTES = 64 * 2**20  # the largest objects have 1 MiB
_LOOKS = 64  # at all entries, while so many bytes are written as the bound allows
_PART_S = 600  # nobody takes longer to write an entry; older ones are of processes that were killed
_AHEAD_S = 60  # by which other machines' clocks, and those of file servers, may be ahead
_PART_NAME = re.compile(rf"(tmp\w{{8}}|[0-9a-f]{{24}}){re.escape(PART)}")  # earlier versions, now
_warned: set[tuple[Path, str]] = set()  # caches that are not used, and why


class DiskCache:
    """Entries under their content's key: compiled objects, results of tuning.

    An entry is written aside and renamed, so that a process killed at any moment leaves it whole
    or absent; it carries a checksum of its name and its content, so that a damaged one, or another
    one's under its name, is a miss with a warning and is removed. The oldest entries go when the
    bound is passed; one that is dated in the future is older than all others, as nobody knows when
    it was written.

    A checksum does not say who wrote an entry, and objects are run: a folder that others may write
    is not used at all (`own_folder` says what is checked), and an entry is a regular file of this
    user's or root's, of bounded size.

    Args:
        folder: of the entries; made on first use, with mode 0700. None keeps nothing.
        limit_bytes: bound of all entries together; one of more than 64 MiB is not kept either.
        suffix: of the files' names.
    """

    def __init__(
        self, folder: Path | None, limit_bytes: int = 256 * 1024 * 1024, suffix: str = ".o"
    ) -> None:
        self._folder, self._limit, self._suffix = folder, limit_bytes, suffix
        self._most = len(_MAGIC) + _DIGEST + min(limit_bytes, MOST_ENTRY_BYTES)
        self._entry_name = re.compile(rf"[0-9a-f]{{32,64}}{re.escape(suffix)}")
        self._written = 0

    def beside(self, suffix: str, limit_bytes: int) -> DiskCache:
        """A cache of other entries in the same folder, with a bound of their own."""
        return DiskCache(self._folder, min(self._limit, limit_bytes), suffix)

    def get(self, key: str) -> bytes | None:
        """Return the entry of that key, None if there is none or it is not to be used."""
        return self.get_all([key]).get(key)

    def get_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the entries of those keys that there are and that are to be used.

        The folder is checked once.
        """
        found: dict[str, bytes] = {}
        if self._folder is None:
            return found
        try:
            with own_folder(self._folder) as folder:
                for key in keys:
                    body = self._checked(folder, f"{key}{self._suffix}")
                    if body is not None:
                        found[key] = body
        except NotOursError as error:
            self._refuse(str(error))
        except OSError as error:
            if error.errno is None:  # a signal handler's own
                raise
        return found  # what is not there, or not to be read, is made anew

    def put(self, key: str, body: bytes) -> None:
        """Store an entry; a folder that cannot be used is one warning, not an error."""
        name = f"{key}{self._suffix}"
        digest = _digest(name, body)
        data = _MAGIC + digest + body
        if self._folder is None or len(data) > self._most:
            return
        try:
            with own_folder(self._folder, make=True) as folder:
                folder.write(name, data)
                self._written += len(data)
                if self._written > self._limit // 16 or _drawn(digest, len(data), self._limit):
                    self._written = 0
                    drop_oldest(folder, self._entry_name.fullmatch, self._limit)
        except NotOursError as error:
            self._refuse(str(error))
        except FileNotFoundError as error:
            if not self._folder.exists():
                self._warn(error.strerror or str(error))
            # Otherwise another process has dropped the file before it got its name.
        except OSError as error:
            if error.errno is None:  # a signal handler's own
                raise
            self._warn(error.strerror or str(error))

    def refuse(self, key: str) -> None:
        """Remove an entry whose content is not what its reader expects, with a warning."""
        if self._folder is None:
            return
        try:
            with own_folder(self._folder) as folder:
                self._drop_damaged(folder, f"{key}{self._suffix}")
        except NotOursError as error:
            self._refuse(str(error))
        except OSError as error:
            if error.errno is None:  # a signal handler's own
                raise

    @staticmethod
    def _drop_damaged(folder: OwnFolder, name: str) -> None:
        log.warning("cache entry %s is damaged; it is made anew", name)
        folder.remove(name)

    def _checked(self, folder: OwnFolder, name: str) -> bytes | None:
        """The body of an entry; one that is damaged, or not as this user writes them, goes."""
        try:
            data = folder.read(name, self._most)
        except WrongEntryError as error:
            log.warning("cache entry %s; it is made anew", error)
            folder.remove(name)
            return None
        except OSError as error:
            if error.errno is None:  # a signal handler's own
                raise
            return None  # not there, or not to be read
        body = data[len(_MAGIC) + _DIGEST :]
        digest = data[len(_MAGIC) :][:_DIGEST]
        if not (data.startswith(_MAGIC) and digest == _digest(name, body)):
            self._drop_damaged(folder, name)
            return None
        return body

    def _refuse(self, reason: str) -> None:
        """Warn once in a process of folders that others may write: they keep all of a cache."""
        assert self._folder is not None
        key = self._folder.parent, "refused"
        if key in _warned:
            return
        _warned.add(key)
        log.warning(
            "the cache in %s is not used, since what it holds is run: %s; or set "
            "LEANCONV_CACHE_DIR to a folder that you alone may write. Until then code is compiled "
            "anew by every process, and nothing is kept",
            self._folder,
            reason,
        )

    def _warn(self, reason: str) -> None:
        """Warn once in a process: a reason that stops writes to one folder of a cache stops all."""
        assert self._folder is not None
        key = self._folder.parent, reason
        if key in _warned:
            return
        _warned.add(key)
        log.warning(
            "the cache in %s cannot be written (%s): what can be read of it is used, and nothing "
            "new is kept; set LEANCONV_CACHE_DIR to a folder that can be written, or "
            "LEANCONV_CACHE_BYTES=0 to do without a cache",
            self._folder,
            reason,
        )


def _drawn(digest: bytes, size: int, limit_bytes: int) -> bool:
    """Return whether to check the bound after an entry of this size is written.

    To look at a hundred thousand entries takes a second. So that processes which write a few do
    not all do it, an entry's digest draws, as by lot, every 64th part of the bound.
    """
    return int.from_bytes(digest[:4], "big") * limit_bytes < (size * _LOOKS) << 32


def drop_oldest(folder: OwnFolder, is_entry: Callable[[str], object], limit_bytes: int) -> None:
    """Drop files that killed processes left, and the oldest entries until the rest fits a bound.

    Files of other names are somebody else's: they neither count nor go.

    Args:
        folder: of the entries.
        is_entry: whether a name is that of an entry.
        limit_bytes: the most that entries may have together.
    """
    now, ours, total = time.time(), list[Entry](), 0
    for entry in folder.entries(lambda name: is_entry(name) or _PART_NAME.fullmatch(name)):
        if _left_over(entry, now):
            folder.remove(entry.name)
        else:
            ours.append(entry)
            total += entry.size_bytes
    for entry in sorted(ours, key=lambda entry: (entry.written_s <= now + _AHEAD_S, entry)):
        if total <= limit_bytes:
            break
        folder.remove(entry.name)
        total -= entry.size_bytes


def _left_over(entry: Entry, now: float) -> bool:
    old = abs(now - entry.written_s) > _PART_S
    return old and _PART_NAME.fullmatch(entry.name) is not None


@functools.cache
def entries_in(folder: str, most_bytes: int) -> DiskCache:
    """The cache of JSON entries in a folder of the settings' cache folder, of bounded size."""
    settings = current_settings()
    path = settings.cache_dir / folder if settings.cache_bytes else None
    return DiskCache(path, min(settings.cache_bytes, most_bytes), ".json")


def _digest(name: str, body: bytes) -> bytes:
    """The checksum of a file's name and content: of two exchanged files both are damaged."""
    digest = hashlib.sha256(name.encode() + b"\n")
    digest.update(body)
    return digest.digest()
