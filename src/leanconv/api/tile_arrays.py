"""Images that are read and written part by part: anything with a shape, a dtype and slices."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from leanconv.api.file_windows import FileWindows
from leanconv.api.inputs import InputSpec
from leanconv.errors import InputError, short
from leanconv.files import open_regular, reason
from leanconv.graph.ir import TensorType
from leanconv.planner.tiles.windows import Index, Tile
from leanconv.runtime.memory import give_back
from leanconv.units import shape_text, type_text

_SHARED = ("r", "r+", "w+")  # modes of np.memmap in which the file holds what is written


class Image(Protocol):
    """What an input may be: `np.memmap`, a Zarr array, a TIFF's."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def checked_image(image: Any, spec: InputSpec) -> Image:
    """An input, if it has a shape, a dtype and slices, and the network takes it.

    Raises:
        InputError: it has none, or does not fit.
    """
    if not all(hasattr(image, name) for name in ("shape", "dtype", "__getitem__")):
        raise InputError(
            f"input {spec.name!r} is {type(image).__name__}; expected an array: anything with "
            "shape, dtype and slices"
        )
    kind = np.dtype(image.dtype)
    shape = tuple(int(n) for n in image.shape)
    exact = np.can_cast(kind, np.dtype(spec.dtype.numpy), "safe")
    if not spec.takes(shape) or not exact:
        raise InputError(
            f"input {spec.name!r} is {type_text(kind, shape)}; expected "
            f"{type_text(spec.dtype, spec.shape)}"
        )
    found: Image = image
    return found


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
    mode: Literal["r", "r+"] = "r+" if writable else "r"
    try:
        return np.memmap(path, dtype, mode, begin, shape, "F" if turned else "C")
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"image {str(path)!r} cannot be mapped: {reason(error)}; expected a whole file"
        ) from error


def read(image: Image, index: Index, spec: InputSpec, into: np.ndarray | None = None) -> np.ndarray:
    """A part of an input as the network takes it: contiguous, of its dtype.

    Args:
        image: the input.
        index: the part.
        spec: what the network takes.
        into: an array for the part; a new one by default.

    Raises:
        InputError: the image gives another shape, or its file cannot be read.
    """
    expected = tuple(each.stop - each.start for each in index)
    if into is None:
        into = np.empty(expected, np.dtype(spec.dtype.numpy))
    if isinstance(image, FileWindows):
        image.read(index, into)
        return into
    part = np.asarray(image[index])
    if part.shape != expected:
        raise InputError(
            f"input {spec.name!r} gave {shape_text(part.shape)} for a part of "
            f"{shape_text(expected)}; expected slices as NumPy's"
        )
    into[...] = part
    return into


def checked_out(out: Any, name: str, kind: TensorType) -> Any:
    """Where an output is written: the user's array if there is one, else a new one.

    Raises:
        InputError: the array does not fit.
    """
    expected = np.dtype(kind.dtype.numpy)
    if out is None:
        return np.empty(kind.shape, expected)
    if not all(hasattr(out, each) for each in ("shape", "dtype", "__setitem__")):
        raise InputError(
            f"out for {name!r} is {short(out)}; expected an array to write: a memmap, a Zarr array"
        )
    if tuple(out.shape) != kind.shape or np.dtype(out.dtype) != expected:
        raise InputError(
            f"out for {name!r} is {type_text(np.dtype(out.dtype), tuple(out.shape))}; expected "
            f"{kind}"
        )
    return out


def check_apart(images: Mapping[str, Any], outs: Mapping[str, Any]) -> None:
    """Refuse to write into an input: windows that follow read what is around theirs.

    Raises:
        InputError: naming both.
    """
    for name, out in outs.items():
        for other, image in images.items():
            arrays = isinstance(out, np.ndarray) and isinstance(image, np.ndarray)
            if arrays and np.shares_memory(out, image):
                raise InputError(
                    f"out for {name!r} is in the memory of input {other!r}; expected another array"
                )


def flush(image: Any) -> None:
    """Have what was written reach its file, where the array has such a call."""
    made = getattr(image, "flush", None)
    if callable(made):
        made()


def release(images: Iterable[Any]) -> None:
    """Give back pages of mapped files that were read or written; they come from the file again.

    Only of `np.memmap` whose file holds what is written: pages of any other mapping may be all
    that there is.
    """
    files = [_shared_file(image) for image in images]
    give_back([file for file in files if file is not None])


def _shared_file(image: Any) -> mmap.mmap | None:
    for array in _memmaps(image):
        if getattr(array, "mode", None) in _SHARED:
            file = getattr(array, "_mmap", None)
            return file if isinstance(file, mmap.mmap) else None
    return None


def _memmaps(image: Any) -> Iterator[np.memmap]:
    """The array, if it is a mapped file's, and those that it is a view of."""
    found = image
    while isinstance(found, np.ndarray):
        if isinstance(found, np.memmap):
            yield found
        found = found.base


def identity(image: Any) -> str:
    """What tells a mapped file, or a Zarr array, from another one of its shape; "" of others.

    Of a file its place, size and time of change; a Zarr array's store by its name alone.
    """
    for array in _memmaps(image):
        name = getattr(array, "filename", None)
        if name is not None:
            facts = os.stat(name)
            return f"{os.path.abspath(name)} {facts.st_size} {facts.st_mtime_ns}"
    store = getattr(image, "store", None)
    return "" if store is None else f"{store} {getattr(image, 'path', '')}"


def shared_chunks(
    left: Sequence[Tile], tiles: Sequence[Tile], outs: Mapping[str, Any]
) -> list[Tile]:
    """Finished tiles that share a chunk of an output with one that is left.

    Any of those may have been amid writing when a run was killed: an array in chunks, such as
    Zarr's, rewrites whole ones.
    """
    numbers = {tile.number for tile in left}
    sizes = {name: chunk_sizes(out) for name, out in outs.items()}

    def touched(tile: Tile) -> set[tuple[str, tuple[int, ...]]]:
        pairs = ((name, _chunks(tile.writes[name], size)) for name, size in sizes.items())
        return {(name, chunk) for name, chunks in pairs for chunk in chunks}

    begun = set[tuple[str, tuple[int, ...]]]().union(*map(touched, left))
    return [t for t in tiles if t.number not in numbers and not begun.isdisjoint(touched(t))]


def chunk_sizes(out: Any) -> tuple[int, ...]:
    """Extents of what an array is written in: of its shards or chunks; of none, ()."""
    chunks = getattr(out, "shards", None) or getattr(out, "chunks", None)
    if isinstance(chunks, tuple) and all(isinstance(n, int) and n > 0 for n in chunks):
        return chunks
    return ()


def _chunks(part: Index, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The chunks that a part of an array touches; none where there are no chunks."""
    if not sizes:
        return iter(())
    pairs = zip(part, sizes, strict=True)
    return product(*(range(each.start // n, (each.stop - 1) // n + 1) for each, n in pairs))
