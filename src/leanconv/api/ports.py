"""What a network takes, as its file declares it, and arrays that fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from leanconv.errors import InputError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Port:
    """An input as the file declares it.

    Attributes:
        name: the input's name.
        shape: numbers; names of symbolic extents and None stand for extents that may vary. None
            if the file does not even fix the rank.
        dtype: what arrays it takes.
    """

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str

    def takes(self, shape: Shape | None) -> bool:
        """Whether arrays of a shape are taken."""
        return shape is not None and (self.shape is None or _matches(shape, self.shape))


def fitting(array: np.ndarray, port: Port) -> np.ndarray:
    """The array as the kernels can read it: its dtype, contiguous, aligned."""
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        raise InputError(f"input {port.name!r} is {type(array).__name__}; expected a NumPy array")
    if array.dtype != port.dtype:
        if not (array.dtype == np.float32 and port.dtype == "float64"):
            raise InputError(
                f"input {port.name!r} is {array.dtype}; expected {port.dtype}: "
                f"convert it with x.astype({port.dtype!r})"
            )
        array = array.astype(np.float64)
    shape, wanted = array.shape, port.shape
    if wanted is not None and wanted != shape and not _matches(shape, wanted):
        raise InputError(f"input {port.name!r} has shape {shape}; expected {shown(wanted)}")
    if 0 in shape:
        raise InputError(
            f"input {port.name!r} has shape {shape}, without elements; expected at least one"
        )
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, None, ["C", "A"])


def _matches(shape: Shape, wanted: tuple[int | str | None, ...]) -> bool:
    return len(wanted) == len(shape) and all(
        not isinstance(w, int) or w == have for w, have in zip(wanted, shape, strict=True)
    )


def shown(shape: tuple[int | str | None, ...] | None) -> str:
    if shape is None:
        return "of any rank"
    return "(" + ", ".join("?" if extent is None else str(extent) for extent in shape) + ")"
