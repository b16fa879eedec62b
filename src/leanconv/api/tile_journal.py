"""A small file that says which tiles are finished, so that a killed run can go on.

The first line names network and plan of the tiles, and the places of their arrays: of another
network, plan or array nothing is taken. Each further line is a tile's number, with check sums of
what it read and what it wrote, written after its results. Nobody believes a line: a tile is
finished if its inputs and results still hold what the line says. A line without an end does not
count.

Whoever has a journal open has locked it, and the lock ends with its process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO

from leanconv.errors import InputError, short
from leanconv.files import open_regular, reason
from leanconv.records import dataclass
from leanconv.runtime.locks import Registry

try:
    import fcntl
except ImportError:  # a system without it
    fcntl = None  # type: ignore[assignment]

_FIRST = "leanconv tiles "
_HEAD = f"{_FIRST}2 "
_MOST_BYTES = 1 << 28  # of a journal
_LONGEST = 400  # characters of a place, in a message
_LINE = re.compile(r"(\d{1,15}) ([0-9a-f]{8}) ([0-9a-f]{8})")
_open: Registry[Journal] = Registry()


@dataclass(frozen=True)
class Sums:
    """Check sums of what a tile read and of what it wrote.

    Attributes:
        read, written: as eight digits each.
    """

    read: str
    written: str


class Journal(os.PathLike[str]):
    """The journal of one run, which nobody else writes meanwhile.

    Args:
        path: its file, which may be that of a run that was killed; None for no journal.

    Attributes:
        is_new: whether there was no such file.
        done: check sums of the tiles that are noted, by number.

    Raises:
        InputError: another run has it, it is no journal, or cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.done: dict[int, Sums] = {}
        self.is_new, self._begun = False, False
        self._file: BinaryIO | None = None
        self._text, self._path = b"", ""
        if path is None:
            return
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"journal is {short(path)}; expected the path of a file")
        self._path = os.fspath(path)
        self.is_new = not os.path.lexists(path)
        self._file = self._locked()
        _open.add(self)
        try:
            self._text = self._read()
            self._file.truncate(len(self._text))  # to whole lines
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise self._failed("written", error) from error
            raise

    def __fspath__(self) -> str:
        """The journal's path, so that an open journal may be given where paths are."""
        return self._path

    @property
    def is_kept(self) -> bool:
        """True if the journal has a file."""
        return self._file is not None

    @property
    def has_tiles(self) -> bool:
        """True if the journal has the line of a finished tile."""
        return self._text.count(b"\n") > 1

    def claim(self) -> None:
        """Keep the file, though nothing is in it yet: a result has been made that belongs to it."""
        self._begun = True

    def begin(self, facts: Mapping[str, str], count: int) -> None:
        """Write the first line; `done` are then the tiles of an earlier run with the same line.

        Args:
            facts: about the network, the plan and the arrays, by their names in messages.
            count: how many tiles there are.

        Raises:
            InputError: the journal is of something else, damaged, or cannot be written.
        """
        if self._file is None:
            return
        first = _HEAD + json.dumps(dict(facts))
        head, *lines = self._text.decode("ascii", "replace").splitlines() or [first]
        if head != first:
            raise InputError(
                f"the journal {self._path!r} is of another network, image or plan"
                f"{_difference(head, facts)}; expected the one of this run: delete it to begin anew"
            )
        for place, line in enumerate(lines, 2):
            found = _LINE.fullmatch(line)
            if found is None or int(found[1]) >= count:
                raise InputError(
                    f"line {place} of the journal {self._path!r} is {short(line)}; expected the "
                    f"number of one of {count} tiles and two check sums: delete the journal to "
                    "begin anew"
                )
            self.done[int(found[1])] = Sums(found[2], found[3])
        self._begun, self._first = True, first
        if not self._text:
            self._write(first)

    def keep(self, held: Mapping[int, Sums]) -> None:
        """Forget the tiles but those that still hold what their lines say."""
        lines = self._text.count(b"\n") - 1
        self.done = dict(held)
        if self._file is not None and lines > len(held):
            self._file.truncate(0)
            self._write(self._first, *(_line(*each) for each in held.items()))

    def finish(self, tiles: Sequence[tuple[int, Sums]]) -> None:
        """Note that the results of tiles are written."""
        self.done.update(tiles)
        if self._file is not None and tiles:
            self._write(*(_line(*each) for each in tiles))

    def _write(self, *lines: str) -> None:
        assert self._file is not None
        text = memoryview("".join(f"{line}\n" for line in lines).encode("ascii"))
        try:
            while text:
                text = text[self._file.write(text) :]
            os.fsync(self._file.fileno())
        except OSError as error:  # such as a full disk
            raise self._failed("written", error) from error

    def _locked(self) -> BinaryIO:
        """Open the file, made if it is missing, and lock it."""
        while True:
            try:
                file = open_regular(self._path, _MOST_BYTES, what="journal", mode="a+b")
            except InputError:
                raise
            except (OSError, ValueError) as error:
                raise self._failed("written", error) from error
            try:
                self._lock(file)
                there = os.stat(self._path)
                if os.path.samestat(there, os.fstat(file.fileno())):
                    return file
            except FileNotFoundError:
                pass  # another run has ended and removed it
            except BaseException:
                file.close()
                raise
            file.close()

    def _lock(self, file: BinaryIO) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"the journal {self._path!r} is that of a run which goes on at this moment; "
                "expected one run at a time: wait until it ends, or give another journal and "
                "another out"
            ) from error
        except OSError as error:
            raise InputError(
                f"the journal {self._path!r} cannot be locked: {reason(error)}; expected one on a "
                "file system with locks, such as a local disk"
            ) from error

    def _read(self) -> bytes:
        """The lines of the file that have an end."""
        assert self._file is not None
        self._file.seek(0)
        text = self._file.read()
        start = _FIRST.encode()
        if text[: len(start)] != start[: len(text)]:
            raise InputError(
                f"{self._path!r} is no journal, and would be overwritten; expected a new file"
            )
        return text[: text.rfind(b"\n") + 1]

    def _failed(self, what: str, error: Exception) -> InputError:
        return InputError(f"the journal {self._path!r} cannot be {what}: {reason(error)}")

    def abandon(self) -> None:
        """In a forked child: leave the file to the process that has it, and its lock with it."""
        if self._file is not None:
            self._file.close()  # the lock is held as long as the parent has the file open
            self._file = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the file once all tiles are finished, or where nothing began; and close it."""
        if self._file is None:
            return
        if error is None if self._begun else self.is_new:
            with suppress(FileNotFoundError):
                os.unlink(self._path)
        self._file.close()  # the last: until then nobody else has the journal
        self._file = None


def _line(number: int, sums: Sums) -> str:
    return f"{number} {sums.read} {sums.written}"


def _difference(head: str, facts: Mapping[str, str]) -> str:
    """The first fact in which a journal's first line differs from a run's."""
    try:
        before = json.loads(head.removeprefix(_HEAD))
        name, was = next((n, before[n]) for n, fact in facts.items() if before[n] != fact)
    except (ValueError, LookupError, TypeError, StopIteration):
        return ""
    return f": {name} was {str(was)[:_LONGEST]!r}, and is {facts[name]!r}"


def _after_fork() -> None:
    for journal in _open:
        journal.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
