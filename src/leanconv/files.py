"""Opening files that somebody else may have put there: nothing blocks, nothing grows without end.

Whatever leanconv reads by a path that a user names (models, plans, images, samples) and every entry
of its caches is opened here. Large ones are mapped: arrays are views of the map.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from typing import Any, BinaryIO, Literal

from leanconv.errors import InputError, LeanConvError

# Each is absent on some system. O_NONBLOCK: opening a FIFO does not wait for who writes to it.
_ALWAYS = 0
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY"):
    _ALWAYS |= getattr(os, _name, 0)
# Of ELF: where the table of segments is, bytes of one, how many; and a segment's type, flags, place
# in the file, address, -, bytes in the file, bytes in memory, -.
_ELF_TABLE = struct.Struct("<32xQ14xHH")
_ELF_SEGMENT = struct.Struct("<IIQQQQQQ")
_MODES = {
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "a+b": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(
    path: str | os.PathLike[str],
    most_bytes: int | None = None,
    *,
    what: str = "",
    wrong: type[LeanConvError] = InputError,
    advice: str = "",
    follow: bool = True,
    folder: int | None = None,
    mode: Literal["rb", "r+b", "a+b"] = "rb",
) -> BinaryIO:
    """Open a regular file; the checks are of the open file, not of the name.

    Args:
        path: of the file.
        most_bytes: the most that it may have; None for any size.
        what: its name in messages, such as "plan".
        wrong: the error to raise where it is no such file.
        advice: what to do about a file that is too large.
        follow: whether the path may be a link; where it may not, that is an OSError.
        folder: a descriptor of the folder that `path` is relative to, where the system has such.
        mode: to read; to write, too; or to append, and to make a file that is not there.

    Returns:
        The file.

    Raises:
        LeanConvError: `wrong`, for a folder, FIFO, socket or device, and for too large a file.
        OSError: it cannot be opened.
        ValueError: the path holds a null character.
    """
    shown = f"{what} {str(path)!r}".strip()
    flags = _MODES[mode] | _ALWAYS | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    handle = os.open(path, flags, 0o666, dir_fd=folder)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
            raise wrong(f"{shown} is {kind}, not a regular file; expected one")
        if most_bytes is not None and status.st_size > most_bytes:
            raise wrong(
                f"{shown} has {status.st_size} bytes; expected at most {most_bytes} bytes"
                + (f"; {advice}" if advice else "")
            )
    except BaseException:
        os.close(handle)
        raise
    # Whose number it is from now on. A file that is written has no buffer, which a fork would copy.
    return os.fdopen(handle, "rb") if mode == "rb" else os.fdopen(handle, mode, buffering=0)


def reason(error: Exception) -> str:
    """Return why a file cannot be opened, in plain words and without its path."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def refuse_without_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a file to write whose folder is missing.

    Raises:
        InputError: there is no such folder.
    """
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise InputError(
            f"{os.fspath(path)!r} cannot be written: there is no folder {folder!r}; expected one "
            "that exists"
        )


def read_whole(file: BinaryIO) -> bytes:
    """Return all bytes that an open file has now, without those appended meanwhile."""
    left, parts = os.fstat(file.fileno()).st_size, []
    while left > 0:
        part = file.read(min(left, 1 << 26))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def elf_segments(file: BinaryIO) -> list[tuple[int, ...]]:
    """Return the table of segments of an open ELF file of 64 bits.

    Raises:
        ValueError, struct.error: it is none.
    """
    identity = file.read(64)
    if identity[:5] != b"\x7fELF\x02":
        raise ValueError(f"{file.name} is no ELF file of 64 bits")
    table, size, count = _ELF_TABLE.unpack(identity[:58])
    file.seek(table)
    return [_ELF_SEGMENT.unpack_from(file.read(size)) for _ in range(count)]


def mapped_file(array: Any) -> mmap.mmap | None:
    """The file, mapped for reading, that an array of NumPy is a view of; None for others.

    Its pages can be let go and come again from the file. A mapping that may be written can hold
    what stands nowhere else, such as a caller's weights.
    """
    owner = array
    while getattr(owner, "base", None) is not None:
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or owner.closed:
        return None
    with memoryview(owner) as view:
        return owner if view.readonly else None
