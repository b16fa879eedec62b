"""Images whose axes are not in the network's order: channels last, no batch, time and depth.

A network's images are (N, C, spatial…). A layout names the axes of an array by letters, `"YXC"`:

- N, B, T, and letters that no network knows (of a TIFF's series), are the batch,
- C, S are the channels,
- D, H, W, or as microscopists have them Z, Y, X, are spatial; Z is the batch of a network that has
  no depth.

Axes of extent 1 that the network lacks are left out, those that the array lacks have extent 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, TypeAlias

import numpy as np

from leanconv.errors import InputError, short
from leanconv.graph.ir import TensorType
from leanconv.planner.image_tiles.windows import Index
from leanconv.units import shape_text

Layouts: TypeAlias = str | Mapping[str, str] | None
"""Of an image's arrays: one layout for all, by the names of inputs or outputs, or the network's."""

_LONGEST = 12  # letters of a layout
_CHANNELS = "CS"
_SPATIAL = {"D": "D", "Z": "D", "H": "H", "Y": "H", "W": "W", "X": "W"}


class LaidOutImage:
    """An array that knows the names of its axes, as image files say them.

    Attributes:
        array: anything with shape, dtype and slices.
        layout: a letter for each of its axes.
    """

    def __init__(self, array: Any, layout: str) -> None:
        self.array, self.layout = array, checked_layout(layout, len(array.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self.array.dtype)
        return found

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __setitem__(self, index: Any, part: Any) -> None:
        self.array[index] = part

    def __repr__(self) -> str:
        return f"LaidOutImage({self.dtype}[{shape_text(self.shape)}], {self.layout!r})"


class Arranged:
    """An array of any layout, seen with the network's axes.

    Attributes:
        array: with axes as they lie.
        shape: in the network's order.
        name: of the input or output, for messages.
    """

    def __init__(self, array: Any, layout: str, axes: str, name: str) -> None:
        self.array, self.name = array, name
        extents = tuple(int(n) for n in array.shape)
        # Of each axis of the network, the array's; None for one that it lacks.
        self._places = placed(checked_layout(layout, len(extents)), extents, axes, name)
        self.shape = tuple(1 if place is None else extents[place] for place in self._places)

    @property
    def dtype(self) -> np.dtype[Any]:
        found: np.dtype[Any] = np.dtype(self.array.dtype)
        return found

    @property
    def chunks(self) -> tuple[int, ...]:
        """Extents of the array's chunks in the network's order; () if it has none."""
        chunks = chunk_sizes(self.array)
        return chunks and tuple(1 if place is None else chunks[place] for place in self._places)

    def over(self, array: Any) -> Arranged:
        """Another array of the same shape and layout, seen alike."""
        found = copy(self)
        found.array = array
        return found

    def __getitem__(self, index: Index) -> np.ndarray:
        part = np.asarray(self.array[self._theirs(index)])
        seen: np.ndarray = part.transpose(self._order)
        return seen.reshape([each.stop - each.start for each in index])

    def __setitem__(self, index: Index, part: np.ndarray) -> None:
        theirs = self._theirs(index)
        order = self._order
        extents = [theirs[axis].stop - theirs[axis].start for axis in order]
        back = sorted(range(len(order)), key=order.__getitem__)
        self.array[theirs] = part.reshape(extents).transpose(back)

    def _theirs(self, index: Index) -> Index:
        """An index of the network's axes in the array's; its other axes have extent 1."""
        found = [slice(0, 1)] * len(self.array.shape)
        for each, place in zip(index, self._places, strict=True):
            if place is not None:
                found[place] = each
        return tuple(found)

    @property
    def _order(self) -> list[int]:
        """The array's axes: those of the network in its order, then those that it lacks."""
        kept = [place for place in self._places if place is not None]
        return [*kept, *(n for n in range(len(self.array.shape)) if n not in kept)]


def checked_layout(layout: Any, rank: int | None = None) -> str:
    """A layout in capital letters.

    Raises:
        InputError: the text is no layout, or not one of an array of this rank.
    """
    text = layout.upper() if isinstance(layout, str) else ""
    named = text.isascii() and text.isalpha() and len(text) <= _LONGEST
    if not named or (rank is not None and len(text) != rank):
        of = "" if rank is None else f" of {rank} axes"
        raise InputError(
            f"the layout is {short(layout)}; expected a letter for each axis{of}, such as 'YXC'"
        )
    return text


def arranged(image: Any, layout: str | None, name: str, rank: int | None, spatial: int) -> Any:
    """An array as the network sees it.

    Args:
        image: an array, perhaps one that knows its layout.
        layout: of the array; None for what it says itself, or else for the network's own.
        name: of the input or output.
        rank: of the network's value; None where the file leaves it open.
        spatial: the spatial axes of the network's images; 0 for those of the layout.

    Raises:
        InputError: the layout does not fit.
    """
    if layout is None:
        if not isinstance(image, LaidOutImage):
            return image
        layout = image.layout
    if not hasattr(image, "shape"):
        return image  # what is no array is refused elsewhere
    array = image.array if isinstance(image, LaidOutImage) else image
    spatial = spatial or spatial_axes(checked_layout(layout))
    axes = network_axes(spatial + 2 if rank is None else rank, spatial)
    if axes is None:
        raise InputError(
            f"{name!r} is no image, and takes no layout; expected an array of the network's axes"
        )
    return Arranged(array, layout, axes, name)


def new_array(kind: TensorType, layout: str | None, name: str, spatial: int) -> np.ndarray:
    """An array for an output, whose axes lie as a layout says; None for the network's own."""
    dtype = np.dtype(kind.dtype.numpy)
    axes = network_axes(len(kind.shape), spatial)
    if layout is None or axes is None:
        return np.empty(kind.shape, dtype)
    return np.empty(laid_out_shape(kind.shape, axes, layout, name), dtype)


def chunk_sizes(array: Any) -> tuple[int, ...]:
    """Extents of an array's shards or chunks; () for none."""
    chunks = getattr(array, "shards", None) or getattr(array, "chunks", None)
    if isinstance(chunks, tuple) and all(isinstance(n, int) and n > 0 for n in chunks):
        return chunks
    return ()


def layout_of(layouts: Layouts, name: str) -> str | None:
    """The layout of one input or output, from one for all or one for each name."""
    return layouts.get(name) if isinstance(layouts, Mapping) else layouts


def source(image: Any) -> Any:
    """The array itself of one that is seen with other axes."""
    while isinstance(image, Arranged | LaidOutImage):
        image = image.array
    return image


def network_axes(rank: int, spatial: int) -> str | None:
    """The letters of a network's value: `"NCHW"`, or `"NHW"` without channels; None for others."""
    letters = "DHW"[3 - spatial :] if 1 <= spatial <= 3 else ""
    found = {spatial + 2: f"NC{letters}", spatial + 1: f"N{letters}"}
    return found.get(rank) if letters else None


def spatial_axes(layout: str) -> int:
    """Return the number of spatial axes of a layout, for networks that do not fix their rank."""
    return len({_SPATIAL[letter] for letter in layout if letter in _SPATIAL})


def placed(layout: str, shape: Sequence[int], axes: str, name: str) -> tuple[int | None, ...]:
    """Return the axis of an array for each axis of the network.

    Args:
        layout, shape: of the array.
        axes: of the network's value, from `network_axes`.
        name: of the value, for messages.

    Returns:
        Of each of the network's axes, the array's; None for one that the array lacks.

    Raises:
        InputError: two axes would be the same, or one would be none.
    """
    found: dict[str, int] = {}
    for number, (letter, extent) in enumerate(zip(layout, shape, strict=True)):
        axis = _axis_of(letter, axes)
        held = found.get(axis) if axis in axes else None
        if axis not in axes:
            if extent != 1:
                raise InputError(
                    f"the layout {layout!r} of {name!r} has the axis {letter} of {extent}, which "
                    f"is none of the network's {axes}; expected a part of the array without it"
                )
        elif held is None or shape[held] == 1 != extent:
            found[axis] = number
        elif extent != 1:
            raise InputError(
                f"the layout {layout!r} of {name!r}, {shape_text(tuple(shape))}, has two axes "
                f"for the network's {axis}: {layout[held]} and {letter}; expected a part of the "
                "array in which one of them has extent 1"
            )
    missing = [axis for axis in axes if axis not in found and axis not in "NC"]
    if missing:
        raise InputError(
            f"the layout {layout!r} of {name!r} has no axis {missing[0]}; expected all spatial "
            f"axes of the network, {axes}"
        )
    return tuple(found.get(axis) for axis in axes)


def _axis_of(letter: str, axes: str) -> str:
    """The network's axis that a letter means, which it may lack."""
    if letter in _CHANNELS:
        return "C"
    axis = _SPATIAL.get(letter, "N")
    return "N" if letter == "Z" and "D" not in axes else axis


def microscopy_layout(axes: str) -> str:
    """A layout in the letters of microscopists: `"TCYX"` for `"NCHW"`."""
    return "".join({"N": "T", "D": "Z", "H": "Y", "W": "X"}.get(axis, axis) for axis in axes)


def laid_out_shape(shape: Sequence[int], axes: str, layout: str, name: str) -> tuple[int, ...]:
    """The shape of an array of a layout that holds a network's value.

    Raises:
        InputError: an axis of the value has no place in it.
    """
    layout = checked_layout(layout)
    extents = dict(zip(axes, shape, strict=True))
    found, used = [], set()
    for letter in layout:
        axis = _axis_of(letter, axes)
        found.append(1 if axis in used else extents.get(axis, 1))
        used.add(axis)
    lost = [axis for axis in axes if axis not in used and extents[axis] != 1]
    if lost:
        raise InputError(
            f"the layout {layout!r} has no place for the axis {lost[0]} of output {name!r}, "
            f"{shape_text(tuple(shape))}; expected an out_layout with it, such as {axes!r}"
        )
    return tuple(found)
