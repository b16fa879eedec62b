"""Which tiles are finished, in a small file beside the output, so that a killed run goes on.

The first line says of what the tiles are: of another network, image size or plan nothing is taken.
Each further line is a tile's number, written after its results. A line without an end does not
count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from leanconv.errors import InputError
from leanconv.files import open_regular, reason

_FIRST = "leanconv tiles 1 "
_MOST_RUNS = 16  # that may write into one journal at once
_MOST_BYTES = 1 << 28  # of a journal whose number of tiles is not known


def run_key(plan: str, images: Iterable[str]) -> str:
    """The key of a run: of its plan, and of its images as far as they can be told apart."""
    return f"{plan} {sha256(chr(10).join(images).encode()).hexdigest()[:16]}"


def has_tiles(path: str | os.PathLike[str]) -> bool:
    """Whether a journal says of any tile that it is finished; where there is none, it does not.

    Raises:
        InputError: the file is no journal, or cannot be read.
    """
    return _whole_lines(Path(path), _MOST_BYTES).count(b"\n") > 1


class Journal:
    """The journal of one run.

    Args:
        path: its file, which may be that of a run that was killed; None for no journal.
        key: of what the tiles are.
        count: how many tiles there are.

    Attributes:
        done: numbers of the tiles that are finished.

    Raises:
        InputError: the file is of something else, or cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: str, count: int) -> None:
        self.done: set[int] = set()
        self._path = None if path is None else Path(path)
        self._file: BinaryIO | None = None
        if self._path is None:
            return
        most = len(_FIRST) + 128 + _MOST_RUNS * count * (len(str(count)) + 1)
        first, text = f"{_FIRST}{key}", _whole_lines(self._path, most)
        head, *numbers = text.decode("ascii", "replace").splitlines() or [first]
        if head != first:
            raise InputError(
                f"the journal {str(path)!r} is of another network, image or plan; expected the one "
                "of this run: delete it to begin anew"
            )
        self.done = {int(line) for line in numbers if line.isdecimal() and int(line) < count}
        try:
            self._file = self._path.open("ab")  # another process' lines are not written over
            self._file.truncate(len(text))
            if not text:
                self._write(first)
        except OSError as error:
            raise InputError(
                f"the journal {str(path)!r} cannot be written: {reason(error)}"
            ) from error

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def finish(self, tiles: Sequence[int]) -> None:
        """Note that the results of tiles are written; of those that were noted before, nothing."""
        new = [number for number in tiles if number not in self.done]
        self.done.update(new)
        if self._file is not None and new:
            self._write(*map(str, new))

    def _write(self, *lines: str) -> None:
        assert self._file is not None
        self._file.write("".join(f"{line}\n" for line in lines).encode("ascii"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file; it is removed once all tiles are finished."""
        if self._file is None or self._path is None:
            return
        self._file.close()
        if error is None:
            self._path.unlink(missing_ok=True)


def _whole_lines(path: Path, most: int) -> bytes:
    """The lines of a journal that have an end; none where there is no file."""
    try:
        with open_regular(path, most, what="journal") as file:
            text = file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputError(f"the journal {str(path)!r} cannot be read: {reason(error)}") from error
    if b"\n" not in text and not _FIRST.encode().startswith(text[: len(_FIRST)]):
        raise InputError(
            f"{str(path)!r} is no journal, and would be overwritten; expected a new file"
        )
    return text[: text.rfind(b"\n") + 1]
