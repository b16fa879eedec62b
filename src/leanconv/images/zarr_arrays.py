"""Zarr arrays and OME-Zarr images, of which zarr reads and writes the chunks that a window meets.

An OME-Zarr image is a folder with arrays of several resolutions; the folder's attributes name its
axes: version 0.5 (Zarr 3) is read and written, 0.1 to 0.4 (Zarr 2) are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.tile_layouts import checked_layout, microscopy_layout
from leanconv.errors import InputError, MissingExtraError, short
from leanconv.files import open_regular
from leanconv.units import format_bytes

MOST_CHUNK_BYTES = 1 << 30  # of one chunk when decoded
MOST_DESCRIPTION_BYTES = 1 << 26  # of a file that describes arrays
_DESCRIPTIONS = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")
_CHUNK_PIXELS, _PART_BYTES = 512, 1 << 24  # of arrays that are made: extents, and bytes at most
_KINDS = {"T": "time", "C": "channel", "Z": "space", "Y": "space", "X": "space"}
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.partial$")
_LETTERS = {"time": "T", "channel": "C"}
# Codecs of Zarr 2 by name; others may run what the file says (`pickle`).
_COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
_CODECS = (*_COMPRESSORS, "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle")


def opened(
    path: str | os.PathLike[str], level: int = 0, writable: bool = False
) -> tuple[Any, str | None]:
    """The array of a folder, and its axes where they are known.

    Raises:
        InputError: there is none that can be read in parts.
        MissingExtraError: zarr is not installed.
    """
    zarr, shown = _zarr(), f"image {os.fspath(path)!r}"
    _check_descriptions(Path(path), shown)
    try:
        found = zarr.open(os.fspath(path), mode="r+" if writable else "r")
        layout = None
        if hasattr(found, "members"):  # a group
            name, layout = _level_of(dict(found.attrs), level, shown)
            _check_descriptions(Path(path) / name, shown)
            found = found[name]
        elif level:
            raise InputError(f"{shown} has no level {level}; expected 0")
        layout = layout or _dimension_names(found)
        _check_array(found, shown)
        return found, None if layout is None else checked_layout(layout, len(found.shape))
    except InputError:
        raise
    except Exception as error:  # whatever a library of so many formats raises
        raise InputError(
            f"{shown} cannot be read: {error or type(error).__name__}; expected a folder with a "
            "Zarr array"
        ) from error


def remove_unfinished(path: str | os.PathLike[str]) -> None:
    """Remove files of chunks that a killed process was writing: zarr renames whole ones."""
    for file in Path(path).rglob("*.partial"):
        if _UNFINISHED.search(file.name) and not file.is_symlink():
            file.unlink(missing_ok=True)


def created(
    path: str | os.PathLike[str],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    layout: str | None,
    scale: Sequence[float] | None = None,
) -> Any:
    """A new Zarr array, or of a name that ends in `.ome.zarr` a new OME-Zarr image."""
    zarr, file = _zarr(), os.fspath(path).rstrip("/")
    letters = layout or ("?" * len(shape) + "YX")[-len(shape) :]
    chunks = _chunks(shape, letters, dtype.itemsize)
    if not file.lower().endswith(".ome.zarr"):
        names = None if layout is None else [letter.lower() for letter in layout]
        return zarr.create_array(
            file, shape=shape, dtype=dtype, chunks=chunks, dimension_names=names, overwrite=True
        )
    order = _ome_order(layout, len(shape))
    names = [letter.lower() for letter in order]
    sizes = [float(n) for n in scale] if scale is not None else [1.0] * len(shape)
    group = zarr.create_group(file, overwrite=True)
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [
            {
                "name": Path(file).name.partition(".")[0],
                "axes": [{"name": name, "type": _KINDS[name.upper()]} for name in names],
                "datasets": [
                    {
                        "path": "0",
                        "coordinateTransformations": [{"type": "scale", "scale": sizes}],
                    }
                ],
            }
        ],
    }
    return group.create_array("0", shape=shape, dtype=dtype, chunks=chunks, dimension_names=names)


def _ome_order(layout: str | None, rank: int) -> str:
    """A layout that an OME-Zarr image may have: of T, C, Z, Y, X in this order.

    Raises:
        InputError: the axes have another order.
    """
    found = microscopy_layout(layout or "NCDHW"[-rank:])
    wanted = "".join(letter for letter in "TCZYX" if letter in found)
    if found != wanted or not found.endswith("YX"):
        raise InputError(
            f"the layout is {short(layout)}; expected one of an OME-Zarr image: of T, C, Z, Y, X "
            "in this order, such as 'CYX'"
        )
    return found


def _chunks(shape: tuple[int, ...], layout: str, itemsize: int) -> tuple[int, ...]:
    """Extents of chunks: squares of pixels with all channels, unless these are many."""
    found = [1] * len(shape)
    for axis, letter in enumerate(layout):
        if letter in "YXHW":
            found[axis] = max(1, min(shape[axis], _CHUNK_PIXELS))
    for axis, letter in enumerate(layout):
        if letter in "CS?":
            most = max(1, _PART_BYTES // (prod(found) * itemsize))
            found[axis] = max(1, min(shape[axis], most))
    return tuple(found)


def _level_of(attributes: dict[str, Any], level: int, shown: str) -> tuple[str, str | None]:
    """The name of an image's array of a level, and its axes."""
    ome = attributes.get("ome", attributes)
    images = ome.get("multiscales") if isinstance(ome, dict) else None
    if not isinstance(images, list) or not images or not isinstance(images[0], dict):
        raise InputError(
            f"{shown} is a group without an image; expected a Zarr array, or an OME-Zarr image: "
            "give the array's own folder"
        )
    levels = images[0].get("datasets")
    if not isinstance(levels, list) or not 0 <= level < len(levels):
        count = len(levels) if isinstance(levels, list) else 0
        raise InputError(f"{shown} has {count} levels; expected one with level {level}")
    name = levels[level].get("path") if isinstance(levels[level], dict) else None
    parts = name.split("/") if isinstance(name, str) else [".."]
    if any(part in ("", ".", "..") for part in parts):
        raise InputError(f"{shown} has a level in {short(name)}; expected a folder inside of it")
    axes = images[0].get("axes")
    if axes is None:
        return str(name), "TCZYX"  # up to version 0.2
    if not isinstance(axes, list):
        raise InputError(f"{shown} has the axes {short(axes)}; expected a list")
    return str(name), "".join(_letter(axis) for axis in axes)


def _letter(axis: Any) -> str:
    """The letter of an axis in an OME-Zarr image: of its name, or else of its kind."""
    name, kind = (axis.get("name"), axis.get("type")) if isinstance(axis, dict) else (axis, None)
    if isinstance(name, str) and name.upper() in _KINDS:
        return name.upper()
    return _LETTERS.get(kind, "N") if isinstance(kind, str) else "N"


def _dimension_names(array: Any) -> str | None:
    """The layout that a Zarr array says itself; None for none of letters."""
    names = getattr(array.metadata, "dimension_names", None) or ()
    if not names or not all(isinstance(n, str) and len(n) == 1 and n.isalpha() for n in names):
        return None
    return "".join(names)


def _check_array(array: Any, shown: str) -> None:
    """Refuse arrays that are no numbers, whose codecs run code, or of endless chunks."""
    kind = np.dtype(array.dtype)
    if kind.kind not in "biuf":
        raise InputError(f"{shown} holds {kind}; expected numbers")
    size = prod(array.chunks) * kind.itemsize
    if size > MOST_CHUNK_BYTES:
        raise InputError(
            f"{shown} has chunks of {format_bytes(size)}; expected at most "
            f"{format_bytes(MOST_CHUNK_BYTES)}"
        )
    if getattr(array.metadata, "zarr_format", 3) == 2:
        held = [array.metadata.compressor, *(array.metadata.filters or ())]
        names = {str(getattr(codec, "codec_id", "")) for codec in held if codec is not None}
        unknown = sorted(names.difference(_CODECS))
        if unknown:
            raise InputError(
                f"{shown} is encoded by {unknown[0]!r}; expected one of {', '.join(_CODECS)}"
            )


def _check_descriptions(folder: Path, shown: str) -> None:
    """Refuse files that describe an array and are none, or endless."""
    if not folder.is_dir():
        raise InputError(f"{shown} is no folder; expected one with a Zarr array")
    for name in _DESCRIPTIONS:
        try:
            open_regular(folder / name, MOST_DESCRIPTION_BYTES, what=shown).close()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{shown} cannot be read: {error}; expected a Zarr array") from error


def _zarr() -> Any:
    try:
        import zarr
    except ImportError as error:
        raise MissingExtraError(
            "Zarr arrays need the package zarr, which is not installed; install it with "
            "`pip install 'leanconv[images]'`"
        ) from error
    return zarr
