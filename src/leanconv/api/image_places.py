"""Places of images: mapped files, and the file, folder or store and the bytes of an image.

One file may be in two arrays that share no memory: by two mappings, by two names (links), by two
handles of a Zarr array. A run in tiles asks here whether what it writes is what it reads, and a
journal whether its arrays lie where they lay.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from leanconv.api.tile_layouts import source
from leanconv.errors import InputError
from leanconv.files import open_regular, reason
from leanconv.records import dataclass

SHARED = ("r", "r+", "w+")  # modes of np.memmap in which the file holds what is written
_LOCAL = {"file", "local"}  # names of fsspec for files of this machine
_FIRST = 1 << 12  # an address that is not null


def mapped_array(path: Path, writable: bool = False) -> np.memmap:
    """The array of a .npy file, mapped, of which nothing is read yet.

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
    """Return a text that changes when the file does: path, size and time of change."""
    facts = os.stat(path)
    return f"{os.path.abspath(path)} {facts.st_size} {facts.st_mtime_ns}"


@dataclass(frozen=True)
class Mapped:
    """The place of an array's elements in a mapped file.

    Attributes:
        path: of the file, as the system says it.
        offset: of the array's first element in the file, in bytes.
        number: of the file, `(major, minor, inode)`; None where the system does not say it.
        shared: whether the file gets what is written.
    """

    path: str
    offset: int
    number: tuple[int, int, int] | None
    shared: bool


@dataclass(frozen=True, eq=False)
class Place:
    """The file, folder or store of an image, and the image's bytes in it.

    Attributes:
        path: of a file or folder; "" of what has none.
        marks: by each of which the system, or a library, knows that file, folder or store.
        inner: the name of an array in a store; "" for a whole file, folder or store.
        extent: the image as if its file began at some address; None where its bytes are not known.
    """

    path: str
    marks: frozenset[object]
    inner: str = ""
    extent: np.ndarray | None = None

    def __str__(self) -> str:
        if not self.path:
            return "memory"
        if self.extent is None:
            return f"{self.path} {self.inner}".rstrip()
        first = self.extent.__array_interface__["data"][0] - _FIRST
        return f"{self.path} from byte {first}, strides {self.extent.strides}"

    def meets(self, other: Place) -> bool:
        """Return whether two places may have a byte in common."""
        if self.marks.isdisjoint(other.marks):
            return _within(self, other) or _within(other, self)
        if self.inner and other.inner:
            return self.inner == other.inner
        if self.extent is None or other.extent is None:
            return True
        return bool(np.shares_memory(self.extent, other.extent))


def _within(place: Place, folder: Place) -> bool:
    return bool(folder.path) and place.path.startswith(folder.path.rstrip(os.sep) + os.sep)


def place_of(image: Any) -> Place | None:
    """Return the place of an image; None for memory of this process, and if it is unknown."""
    image = source(image)
    if isinstance(image, np.ndarray):
        mapped = mapped_place(image)
        return None if mapped is None else _of_mapped(image, mapped)
    name = getattr(image, "filename", None)
    if isinstance(name, str | os.PathLike):
        path = os.path.realpath(os.fspath(name))
        return Place(path, _marks(path))
    store = getattr(image, "store", None)
    return None if store is None else _in_store(store, str(getattr(image, "path", "")).strip("/"))


def are_one(out: Any, image: Any) -> bool:
    """Return whether data written to `out` may be read from `image`."""
    out, image = source(out), source(image)
    if out is image:
        return True
    arrays = isinstance(out, np.ndarray), isinstance(image, np.ndarray)
    if all(arrays) and np.shares_memory(out, image):
        return True
    if not any(arrays) and isinstance(out, Hashable) and (out == image) is True:
        return True  # two handles of one thing, as a library says
    if arrays[0]:
        mapped = mapped_place(out)
        if mapped is not None and not mapped.shared:
            return False  # what is written stays in memory
    there, here = place_of(out), place_of(image)
    return there is not None and here is not None and there.meets(here)


def mapped_place(array: np.ndarray) -> Mapped | None:
    """Find the place of an array in the file that its memory maps; None if it maps none."""
    if not array.size or array.dtype.hasobject:
        return None
    first, end = byte_range(array)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                ends, modes, offset, device, inode, *rest = line.rstrip("\n").split(None, 5)
                begin, after = (int(each, 16) for each in ends.split("-"))
                if not begin <= first < after:
                    continue
                if not rest or inode == "0" or end > after:
                    return None
                major, minor = (int(each, 16) for each in device.split(":"))
                place = int(offset, 16) + array.__array_interface__["data"][0] - begin
                number = major, minor, int(inode)
                return Mapped(rest[0], place, number, modes.endswith("s"))
        return None
    except OSError:  # no Linux
        return _said_by_numpy(array)


def byte_range(array: np.ndarray) -> tuple[int, int]:
    """The address of an array's first byte in memory, and the one behind its last."""
    begin: int = array.__array_interface__["data"][0]
    spans = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low, high = (sum(span for span in spans if (span < 0) is side) for side in (True, False))
    return begin + low, begin + high + array.itemsize


def _said_by_numpy(array: np.ndarray) -> Mapped | None:
    for each in memmaps(array):
        if each.filename is not None and isinstance(each.base, mmap.mmap):  # no view of another
            own, held = (a.__array_interface__["data"][0] for a in (array, each))
            shared = getattr(each, "mode", None) in SHARED
            return Mapped(str(each.filename), each.offset + own - held, None, shared)
    return None


def _of_mapped(array: np.ndarray, mapped: Mapped) -> Place:
    """The place of an array in a mapped file, which may have no name any more."""
    path = os.path.realpath(mapped.path)
    known = os.path.exists(path)
    marks = (_marks(path) if known else frozenset()) | {mapped.number or path}
    return Place(path if known else "", marks, extent=_as_if_mapped(array, mapped.offset))


def _as_if_mapped(array: np.ndarray, offset: int) -> np.ndarray:
    """An array of the same form whose address is its place in a file; nobody reads it."""

    class Form:
        __array_interface__ = {  # noqa: RUF012 (NumPy's name)
            "version": 3,
            "shape": array.shape,
            "strides": array.strides,
            "typestr": f"|V{array.itemsize}",
            "data": (_FIRST + offset, True),
        }

    return np.asarray(Form())


def _marks(path: str) -> frozenset[object]:
    """The number of a file or folder, as mappings have it too; its path where it has none."""
    try:
        status = os.stat(path)
    except OSError:
        return frozenset({path})
    return frozenset({(os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)})


def _in_store(store: Any, name: str) -> Place:
    """The place of an array in a store of Zarr, of its versions 2 and 3."""
    while getattr(store, "_store", None) is not None:  # one around another
        store = store._store
    held = getattr(store, "_store_dict", None)
    if held is not None:
        return Place("", frozenset({("memory", id(held))}), f"/{name}")
    protocol = getattr(getattr(store, "fs", None), "protocol", "file")
    local = not _LOCAL.isdisjoint((protocol,) if isinstance(protocol, str) else protocol)
    folder = getattr(store, "root", None) or getattr(store, "path", None)
    if not isinstance(folder, str | os.PathLike):
        return Place("", frozenset({("store", str(store))}), f"/{name}")
    if not local:
        return Place("", frozenset({(str(protocol), f"{folder}/{name}".rstrip("/"))}))
    path = os.path.realpath(folder)
    if os.path.isfile(path):  # a zip file
        return Place(path, _marks(path), f"/{name}")
    path = os.path.realpath(os.path.join(path, name))
    return Place(path, _marks(path))
