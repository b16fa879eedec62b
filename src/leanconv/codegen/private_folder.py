"""A folder that nobody else may write, held open: its files are run as code.

The rules are those of OpenSSH's StrictModes: the folder, every folder above it and every file in it
belong to the user of this process or to root, and none of them may be written by its group or by
others, but for sticky folders above it, such as the temporary folder. (What root has put there,
while the image of a container was built, can be read; where root has put the interpreter, too, that
trusts nobody else.) The path is walked one name at a time, each folder opened relative to the one
above and checked by its descriptor, so that no name is looked up twice: exchanging a folder between
check and use changes nothing. Links above the folder are followed where they belong to the user or
to root; the folder itself must be none.

Without owners and modes (Windows), or without operations relative to a folder, names are used as
they are and nothing is checked: who may write the folder is then a matter of the system's access
lists.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from leanconv.errors import LeanConvError
from leanconv.files import open_regular, read_whole

HAS_OWNERS = hasattr(os, "geteuid") and {os.open, os.mkdir, os.stat, os.rename} <= (
    os.supports_dir_fd
)
_FOLDER = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
# O_PATH: a folder above may be one that this user can search but not list.
_SEARCH = _FOLDER | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_PATH", os.O_RDONLY)
_CREATE = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
_CREATE |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # as Linux has it
PART = ".part"  # ends the name of a file that is not whole yet


class NotOursError(Exception):
    """A folder in which others may have written; the text names it, its owner, mode and mend."""


class WrongEntryError(LeanConvError):
    """A file of the folder that this user cannot have put there as it is."""


class Entry(NamedTuple):
    """A regular file of a folder: when it was written, its size in bytes, its name."""

    written_s: float
    size_bytes: int
    name: str


class OwnFolder:
    """An open folder; every name is one of its files."""

    def __init__(self, path: Path, handle: int | None) -> None:
        self._path, self._handle = path, handle

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return the bytes of a file.

        Raises:
            WrongEntryError, OSError: as by `opened`; or it is too large.
        """
        with self.opened(name, most_bytes) as file:
            return read_whole(file)

    def opened(self, name: str, most_bytes: int | None = None) -> BinaryIO:
        """Open a file for reading.

        Raises:
            WrongEntryError: it is a link, no regular file, too large, of another user who is not
                root, or one that others may write.
            OSError: it is not there, or cannot be read.
        """
        path = name if self._handle is not None else self._path / name
        try:
            file = open_regular(
                path, most_bytes, wrong=WrongEntryError, follow=False, folder=self._handle
            )
        except OSError:
            if self._is_other_than_a_file(name):
                raise WrongEntryError(f"{name!r} is not a regular file; expected one") from None
            raise
        try:
            status = os.fstat(file.fileno())
            mode = stat.S_IMODE(status.st_mode)
            if HAS_OWNERS and (not _is_trusted(status.st_uid) or mode & _OTHERS_WRITE):
                raise WrongEntryError(
                    f"{name!r} has owner {status.st_uid} and mode {mode:04o}; expected owner "
                    f"{os.geteuid()} or root, and nobody else to write it"
                )
        except BaseException:
            file.close()
            raise
        return file

    def write(self, name: str, data: bytes) -> None:
        """Write a file aside and rename it: whoever reads the name finds all of it or none.

        Raises:
            OSError: there is no room, or no permission.
        """
        with self.making(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[BinaryIO]:
        """A new file, to be read and written; it has its name once the block ends well.

        Raises:
            OSError: there is no permission; or no room, as the block says.
        """
        aside = f"{os.urandom(12).hex()}{PART}"
        handle = self._create(aside, os.O_EXCL)
        try:
            with os.fdopen(handle, "w+b") as file:
                if hasattr(os, "fchmod"):
                    os.fchmod(file.fileno(), 0o600)  # whatever the umask
                yield file
            self._rename(aside, name)
        except BaseException:
            self.remove(aside)
            raise

    def lasting(self, name: str) -> BinaryIO:
        """Open a file that is made where it is absent and that nobody removes: to be locked.

        Raises:
            OSError: there is no permission.
        """
        return os.fdopen(self._create(name, 0), "r+b")

    def remove(self, name: str) -> None:
        """Remove a file or link, if that is possible."""
        with contextlib.suppress(OSError):
            if self._handle is None:
                (self._path / name).unlink()
            else:
                os.unlink(name, dir_fd=self._handle)

    def entries(self, is_wanted: Callable[[str], object]) -> list[Entry]:
        """The regular files of wanted names in the folder; links are not followed.

        Raises:
            OSError: the folder cannot be listed.
        """
        found = []
        with contextlib.ExitStack() as opened:
            where: int | Path = self._path
            if self._handle is not None:
                where = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=self._handle)
                opened.callback(os.close, where)
            for each in opened.enter_context(os.scandir(where)):
                if not is_wanted(each.name):
                    continue
                with contextlib.suppress(OSError):
                    status = each.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append(Entry(status.st_mtime, status.st_size, each.name))
        return found

    def _is_other_than_a_file(self, name: str) -> bool:
        """Return whether a name is that of a link, a socket or the like."""
        with contextlib.suppress(OSError):
            if self._handle is None:
                return not stat.S_ISREG((self._path / name).lstat().st_mode)
            status = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
            return not stat.S_ISREG(status.st_mode)
        return False

    def _create(self, name: str, flags: int) -> int:
        if self._handle is None:
            return os.open(self._path / name, _CREATE | flags, 0o600)
        return os.open(name, _CREATE | flags, 0o600, dir_fd=self._handle)

    def _rename(self, old: str, new: str) -> None:
        if self._handle is None:
            os.replace(self._path / old, self._path / new)
        else:
            os.replace(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)


@contextlib.contextmanager
def own_folder(path: Path, make: bool = False) -> Iterator[OwnFolder]:
    """Open a folder that nobody but this user and root may write.

    Args:
        path: of the folder.
        make: whether to make it, and those above it, where they are absent: with mode 0700
            whatever the umask.

    Raises:
        NotOursError: others may write there, or exchange it.
        OSError: it is not there, or cannot be made or opened.
    """
    if not HAS_OWNERS:
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield OwnFolder(path, None)
        return
    handle = _walk(path.absolute(), make)
    try:
        yield OwnFolder(path, handle)
    finally:
        os.close(handle)


def _walk(path: Path, make: bool) -> int:
    """Open a folder through all folders above it, each checked."""
    names = list(path.parts[:0:-1])  # still to come, the next one last
    links, where = 0, path.anchor
    here = os.open(where, _SEARCH)
    try:
        _check(here, where, last=not names)
        while names:
            name = names.pop()
            try:
                below = _below(name, here, make)
            except OSError:
                if not _is_link(name, here):
                    raise
                links += 1
                target = _target(name, here, where, last=not names, links=links)
                names += [part for part in target.parts[::-1] if part != target.anchor]
                if not target.anchor:
                    continue
                where, below = target.anchor, os.open(target.anchor, _SEARCH)
            else:
                where = os.path.join(where, name)
            # First the names, then the call: a signal handler's exception, which may come after any
            # call, must not have a number closed twice, which may be another file's by then.
            above, here = here, below
            os.close(above)
            _check(here, where, last=not names)
        return here
    except BaseException:
        os.close(here)
        raise


def _below(name: str, here: int, make: bool) -> int:
    """Open a folder of the open folder; make it with mode 0700 where it is absent and wanted."""
    try:
        return os.open(name, _SEARCH, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o700, dir_fd=here)
    except FileExistsError:
        pass  # another process was faster
    else:
        os.chmod(name, 0o700, dir_fd=here)  # the umask may have taken bits of the owner
    return os.open(name, _SEARCH, dir_fd=here)


def _is_link(name: str, here: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode)
    return False


def _target(name: str, here: int, where: str, last: bool, links: int) -> Path:
    """Return the path that a link above the folder points to."""
    owner = os.stat(name, dir_fd=here, follow_symlinks=False).st_uid
    shown = repr(os.path.join(where, name))
    if last:
        raise NotOursError(f"{shown} is a link: put a folder there")
    if not _is_trusted(owner):
        raise NotOursError(f"{shown} is a link that belongs to the user {owner}: remove it")
    if links > _MOST_LINKS:
        raise NotOursError(f"{shown} is one of more than {_MOST_LINKS} links: remove some")
    return Path(os.readlink(name, dir_fd=here))


def _is_trusted(owner: int) -> bool:
    """Return whether a user's files may be run: this process's user's, or root's."""
    return owner in (0, os.geteuid())


def _check(handle: int, where: str, last: bool) -> None:
    """Refuse a folder in which others may exchange files."""
    status = os.fstat(handle)
    owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
    written = mode & _OTHERS_WRITE and (last or not mode & stat.S_ISVTX)
    if not written and _is_trusted(owner):
        return
    facts = f"{where!r} (owner {owner}, mode {mode:04o})"
    if not _is_trusted(owner):
        raise NotOursError(
            f"{facts} belongs neither to the user of this process, {os.geteuid()}, nor to root: "
            "run as its owner"
        )
    mend = "remove it, or chmod 700 if nobody else has put anything there" if last else "chmod go-w"
    raise NotOursError(f"{facts} can be written by others: {mend}")
