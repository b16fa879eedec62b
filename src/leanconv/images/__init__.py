"""Image files that are larger than memory: TIFF, OME-Zarr and Zarr, NumPy's `.npy`.

from leanconv.images import create_image, open_image

x = open_image("slide.ome.tif")  # shape, dtype, slices, and the layout of its axes
tiled(x, out=create_image("classes.ome.zarr", (4, *x.shape[:2]), "float32", "CYX"))
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.image_places import mapped_array
from leanconv.api.tile_layouts import LaidOutImage, checked_layout, microscopy_layout
from leanconv.errors import InputError
from leanconv.files import reason, refuse_without_folder
from leanconv.images import tiff, zarr_arrays
from leanconv.units import shape_text, type_text

__all__ = ["create_image", "open_image"]

ENDS = (".npy", ".tif", ".tiff", ".zarr")


def open_image(path: str | os.PathLike[str], layout: str | None = None, *, level: int = 0) -> Any:
    """Open an image of any size; only its description is read.

    Args:
        path: a `.npy` file, which is mapped; a `.tif` or `.tiff` file (with the package tifffile);
            a folder that ends in `.zarr`, which holds a Zarr array or an OME-Zarr image (with the
            package zarr).
        layout: a letter for each axis, such as `"YXC"`. By default what the file says; a `.npy`
            file says nothing, and is taken to have the network's axes.
        level: of an image with several resolutions; 0 is the finest.

    Returns:
        What `leanconv.tiled` reads: with shape, dtype, slices, and, where it is known, `layout`.

    Raises:
        InputError: the file cannot be read in parts.
        MissingExtraError: the package that reads it is not installed.
    """
    kind = kind_of(path)
    if kind == ".zarr":
        found, said = zarr_arrays.opened(path, level)
    elif kind in (".tif", ".tiff"):
        found, said = tiff.opened(path, level)
    else:
        found, said = mapped_array(Path(path)), None
    used = said if layout is None else checked_layout(layout, len(found.shape))
    return found if used is None else LaidOutImage(found, used)


def create_image(
    path: str | os.PathLike[str],
    shape: Sequence[int],
    dtype: Any,
    layout: str | None = None,
    *,
    scale: Sequence[float] | None = None,
    overwrite: bool = False,
) -> Any:
    """Make an image file to be written in parts.

    Args:
        path: ends in `.npy`, `.tif`, `.zarr` (a Zarr array), or `.ome.zarr` (an OME-Zarr image of
            one resolution).
        shape: with its axes as they shall lie in the file.
        dtype: of its pixels.
        layout: a letter for each axis; kept in the file, if it is no `.npy` file.
        scale: of an OME-Zarr image, the size of a pixel along each axis; 1 by default.
        overwrite: whether an image that is there goes.

    Raises:
        InputError: the file cannot be made.
        MissingExtraError: the package that writes it is not installed.
    """
    refuse_without_folder(os.fspath(path).rstrip("/"))
    extents, kind = tuple(int(n) for n in shape), kind_of(path)
    letters = None if layout is None else checked_layout(layout, len(extents))
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{os.fspath(path)!r} is there already; expected a new name")
    try:
        if kind == ".zarr":
            made = zarr_arrays.created(path, extents, np.dtype(dtype), letters, scale)
        elif kind == ".npy":
            made = np.lib.format.open_memmap(Path(path), "w+", np.dtype(dtype), extents)
        else:
            made = tiff.created(path, extents, np.dtype(dtype), letters)
    except OSError as error:
        raise InputError(
            f"{os.fspath(path)!r} cannot be made: {reason(error)}; expected a place to write "
            f"{type_text(np.dtype(dtype), extents)}"
        ) from error
    return made if letters is None else LaidOutImage(made, letters)


def reopen_image(
    path: str | os.PathLike[str], shape: Sequence[int], dtype: Any, layout: str | None = None
) -> Any:
    """Open an image of `create_image` again to write its other parts.

    Raises:
        InputError: the image is not of this shape and dtype.
    """
    kind = kind_of(path)
    if kind == ".npy":
        found = mapped_array(Path(path), writable=True)
    else:
        found, _ = (zarr_arrays if kind == ".zarr" else tiff).opened(path, writable=True)
    if tuple(found.shape) != tuple(shape) or np.dtype(found.dtype) != np.dtype(dtype):
        raise InputError(
            f"{os.fspath(path)!r} holds {shape_text(tuple(found.shape))} of {found.dtype}; "
            f"expected {type_text(np.dtype(dtype), tuple(shape))}"
        )
    if kind == ".zarr":
        zarr_arrays.remove_unfinished(path)
    return found if layout is None else LaidOutImage(found, layout)


def ome_layout(axes: str, shape: Sequence[int]) -> str:
    """The layout of a TIFF or an OME-Zarr image for a network's value; of one image, no time."""
    kept = [a for a, n in zip(axes, shape, strict=True) if a != "N" or n != 1]
    return microscopy_layout("".join(kept))


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the ending of a name, in lower case.

    Raises:
        InputError: in nothing that is known.
    """
    kind = Path(os.fspath(path).rstrip("/")).suffix.lower()
    if kind not in ENDS:
        raise InputError(
            f"{os.fspath(path)!r} cannot be read or written in parts; expected a name that ends in "
            f"one of {', '.join(ENDS)}"
        )
    return kind
