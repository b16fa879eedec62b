"""A cache of files on disk: whole or absent, checked, bounded."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_MAGIC = b"leanconv object 1\n"
_DIGEST = 32
_told: set[tuple[Path, str]] = set()  # caches that could not be written, and why


class DiskCache:
    """Entries under their content's key: compiled objects, results of tuning.

    An entry is written aside and renamed, so that a process killed at any moment leaves it whole
    or absent; it carries a checksum, so that a damaged one is a miss with a warning. The oldest
    entries go when the bound is passed.

    Args:
        folder: where entries stand; made on first use. None keeps nothing.
        limit_bytes: bound of all entries together.
        suffix: of the files' names.
    """

    def __init__(
        self, folder: Path | None, limit_bytes: int = 256 * 1024 * 1024, suffix: str = ".o"
    ) -> None:
        self._folder, self._limit, self._suffix = folder, limit_bytes, suffix
        self._written = 0

    def get(self, key: str) -> bytes | None:
        """Return the entry of that key, None if there is none or it is damaged."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}{self._suffix}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = data[len(_MAGIC) + _DIGEST :]
        whole = data.startswith(_MAGIC) and data[len(_MAGIC) :][:_DIGEST] == _digest(body)
        if not whole:
            log.warning("cache entry %s is damaged; it is made anew", path.name)
            _remove(path)
            return None
        return body

    def put(self, key: str, body: bytes) -> None:
        """Store an entry; a full or read-only disk is a warning, told once, not an error."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, aside = tempfile.mkstemp(dir=self._folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + _digest(body) + body)
                os.replace(aside, self._folder / f"{key}{self._suffix}")
            except BaseException:
                _remove(Path(aside))
                raise
            if self._written == 0 or self._written > self._limit // 16:
                self._written = 0
                self._shrink()
            self._written += len(body)
        except OSError as error:
            self._tell(error.strerror or str(error))

    def _tell(self, reason: str) -> None:
        """Warn once in a process: what keeps one folder of a cache from being written keeps all."""
        assert self._folder is not None
        key = self._folder.parent, reason
        if key in _told:
            return
        _told.add(key)
        log.warning(
            "the cache in %s cannot be written (%s): code is compiled anew by every process; set "
            "LEANCONV_CACHE_DIR to a folder that can be written, or LEANCONV_CACHE_BYTES=0 to do "
            "without a cache",
            self._folder,
            reason,
        )

    def _shrink(self) -> None:
        """Drop the oldest entries until the rest fits the bound."""
        assert self._folder is not None
        entries = []
        for path in self._folder.iterdir():
            try:
                status = path.stat()
            except OSError:
                continue
            entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                break
            _remove(path)
            total -= size


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
