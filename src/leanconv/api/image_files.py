"""Files that images lie in: mapped whole or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from leanconv.api.tile_layouts import source
from leanconv.errors import InputError
from leanconv.files import open_regular, reason

SHARED = ("r", "r+", "w+")  # modes of np.memmap in which the file holds what is written


def mapped_array(path: Path, writable: bool = False) -> np.memmap:
    """The array of a .npy file, mapped: nothing of it is read yet.

    Raises:
        InputError: the file cannot be read, or holds no array of numbers.
    """
    try:
        with open_regular(path, what="image") as file:
            version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, turned, dtype = read_header(file)
            begin = file.tell()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"image {str(path)!r} cannot be read: {reason(error)}; expected a .npy file"
        ) from error
    if dtype.kind not in "biuf":
        raise InputError(f"image {str(path)!r} holds {dtype}; expected numbers")
    try:
        return mapped_whole(path, dtype, begin, shape, "F" if turned else "C", writable)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"image {str(path)!r} cannot be mapped: {reason(error)}; expected a whole file"
        ) from error


def mapped_whole(
    path: str | os.PathLike[str],
    dtype: np.dtype[Any],
    begin: int,
    shape: tuple[int, ...],
    order: Literal["C", "F"] = "C",
    writable: bool = False,
) -> np.memmap:
    """Map an array that a file has from a byte on; NumPy would lengthen one that was cut short.

    Raises:
        OSError, ValueError, OverflowError: the file is too short, or cannot be mapped.
    """
    held = np.memmap(path, dtype, "r", begin, shape, order)
    return np.memmap(path, dtype, "r+", begin, shape, order) if writable else held


def memmaps(image: Any) -> Iterator[np.memmap]:
    """The array, if it is a mapped file's, and those that it is a view of."""
    found = source(image)
    while isinstance(found, np.ndarray):
        if isinstance(found, np.memmap):
            yield found
        found = found.base


def file_state(path: str | os.PathLike[str]) -> str:
    """What tells a file's contents from those that it had before: size and time of change."""
    facts = os.stat(path)
    return f"{os.path.abspath(path)} {facts.st_size} {facts.st_mtime_ns}"
