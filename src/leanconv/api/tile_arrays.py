"""Images that are read and written part by part: anything with a shape, a dtype and slices."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from leanconv.api.file_windows import FileWindows
from leanconv.api.image_places import SHARED, are_one, memmaps, place_of
from leanconv.api.inputs import InputSpec
from leanconv.api.tile_layouts import (
    Layouts,
    arranged,
    chunk_sizes,
    layout_of,
    network_axes,
    new_array,
    placed,
    source,
)
from leanconv.errors import InputError, LeanConvError, short
from leanconv.graph.ir import Graph, TensorType
from leanconv.planner.image_tiles.windows import Index
from leanconv.runtime.memory import give_back
from leanconv.units import shape_text, type_text


class Image(Protocol):
    """An array that an input may be: `np.memmap`, a Zarr array, a TIFF's."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def checked_image(image: Any, spec: InputSpec) -> Image:
    """An input, if it has a shape, a dtype and slices, and the network takes it.

    Raises:
        InputError: the image has no shape, dtype or slices, or does not fit.
    """
    if not all(hasattr(image, name) for name in ("shape", "dtype", "__getitem__")):
        raise InputError(
            f"input {spec.name!r} is {type(image).__name__}; expected an array: anything with "
            "shape, dtype and slices"
        )
    kind, shape = _form(image, f"input {spec.name!r}")
    wrong = []
    if not spec.takes(shape):
        wrong.append(f"the shape does not fit{_as_would_fit(source(image), spec)}")
    if not np.can_cast(kind, np.dtype(spec.dtype.numpy), "safe"):
        wrong.append(f"{spec.dtype} does not hold all numbers of {kind}: convert the image before")
    if wrong:
        raise InputError(
            f"input {spec.name!r} is {type_text(kind, shape)}; expected "
            f"{type_text(spec.dtype, spec.shape)}: {', and '.join(wrong)}"
        )
    found: Image = image
    return found


def _form(array: Any, what: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The dtype and shape of anything that has some.

    Raises:
        InputError: NumPy has no such dtype (but PyTorch), or extents are not known (as Dask's).
    """
    try:
        return np.dtype(array.dtype), tuple(int(n) for n in array.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{what} is of {short(array.dtype)}, {short(array.shape)}; expected a dtype of NumPy's "
            "and a known shape"
        ) from error


def _as_would_fit(array: Any, spec: InputSpec) -> str:
    """Say with which layout the array would fit; "" with none."""
    shape, rank = tuple(int(n) for n in array.shape), len(spec.shape or ())
    axes, pixels = network_axes(rank, rank - 2), "ZYX"[5 - rank :]
    batches = ("", "N")
    candidates = [f"{n}C{pixels}" for n in batches] + [f"{n}{pixels}C" for n in batches] + [pixels]
    for letters in candidates:
        if axes is None or len(letters) != len(shape):
            continue
        places = placed(letters, shape, axes, spec.name)
        if spec.takes(tuple(1 if place is None else shape[place] for place in places)):
            return f", as the axes {letters} it would: give layout={letters!r}, or --axes {letters}"
    return ""


def seen_inputs(given: Sequence[Any], specs: Sequence[InputSpec], layout: Layouts) -> list[Image]:
    """The inputs as the network sees them.

    Raises:
        InputError: one does not fit.
    """
    ranks = [None if spec.shape is None else len(spec.shape) for spec in specs]
    spatial = 0 if None in ranks else max(rank or 0 for rank in ranks) - 2
    return [
        checked_image(arranged(x, layout_of(layout, spec.name), spec.name, rank, spatial), spec)
        for x, spec, rank in zip(given, specs, ranks, strict=True)
    ]


def chunks_of(
    outs: Mapping[str, Any],
    shapes: Mapping[str, Sequence[Any] | None],
    images: Sequence[Image],
    layout: Layouts,
) -> dict[str, tuple[int, ...]]:
    """Extents of the chunks of arrays that outputs are written to, as the network sees them.

    Args:
        outs: the user's arrays by name.
        shapes: of the outputs, as far as the file says.
        images: the inputs.
        layout: of the outputs.
    """
    found, most = {}, max(len(image.shape) for image in images)
    for name, out in outs.items():
        rank = most if shapes[name] is None else len(shapes[name] or ())
        try:
            sizes = chunk_sizes(arranged(out, layout_of(layout, name), name, rank, most - 2))
        except InputError:
            continue  # it is refused where more is known of the output
        if sizes:
            found[name] = sizes
    return found


def seen_outputs(whole: Graph, outs: Mapping[str, Any], layout: Layouts) -> dict[str, Any]:
    """Return arrays to write the outputs to, in the network's axes: the user's, or new ones.

    Args:
        whole: the network for the image.
        outs: the user's, by name.
        layout: of the outputs.

    Raises:
        InputError: one does not fit.
    """
    made = {}
    spatial = max(len(whole.types[name].shape) for name in whole.inputs) - 2
    for name in whole.outputs:
        kind, letters = whole.types[name], layout_of(layout, name)
        out = outs.get(name)
        if out is None:
            out = new_array(kind, letters, name, spatial)
        made[name] = checked_out(arranged(out, letters, name, len(kind.shape), spatial), name, kind)
    return made


def read(image: Image, index: Index, spec: InputSpec, into: np.ndarray | None = None) -> np.ndarray:
    """A part of an input as the network takes it: contiguous, of its dtype.

    Args:
        image: the input.
        index: the part.
        spec: of the network's input.
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
    with _reported(f"input {spec.name!r} cannot be read"):
        part = np.asarray(image[index])
    if part.shape != expected:
        raise InputError(
            f"input {spec.name!r} gave {shape_text(part.shape)} for a part of "
            f"{shape_text(expected)}; expected slices as NumPy's"
        )
    into[...] = part
    return into


def write(out: Any, name: str, index: Index, part: np.ndarray) -> None:
    """Write a part of an output.

    Raises:
        InputError: the part cannot be written.
    """
    with _reported(f"out for {name!r} cannot be written"):
        out[index] = part


@contextmanager
def _reported(what: str) -> Iterator[None]:
    """Add a place to any error of a library, such as that a chunk was cut short."""
    try:
        yield
    except (LeanConvError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{what}: {error or type(error).__name__}; expected an array that is whole"
        ) from error


def checked_out(out: Any, name: str, kind: TensorType) -> Any:
    """Return an output's array, if it can be written and has the output's shape and dtype.

    Raises:
        InputError: the array does not fit.
    """
    expected = np.dtype(kind.dtype.numpy)
    if not all(hasattr(source(out), each) for each in ("shape", "dtype", "__setitem__")):
        raise InputError(
            f"out for {name!r} is {short(out)}; expected an array to write: a memmap, a Zarr array"
        )
    held, shape = _form(out, f"out for {name!r}")
    if shape != kind.shape or held != expected:
        raise InputError(f"out for {name!r} is {type_text(held, shape)}; expected {kind}")
    why = _unwritable(source(out))
    if why:
        raise InputError(f"out for {name!r} {why}; expected an array that can be written")
    return out


def _unwritable(out: Any) -> str:
    """Why an array cannot hold a result; "" where it can, as far as one can tell."""
    if not isinstance(out, np.ndarray):
        return "is open for reading only" if getattr(out, "read_only", False) is True else ""
    if not out.flags.writeable:
        return "is read-only"
    axes = zip(out.shape, map(abs, out.strides), strict=True)
    reach = out.itemsize
    for extent, step in sorted((each for each in axes if each[0] > 1), key=lambda each: each[1]):
        if step < reach and out.size:
            return "has elements that lie over each other, as those of a broadcast array"
        reach += (extent - 1) * step
    return ""


def check_apart(images: Mapping[str, Any], outs: Mapping[str, Any]) -> None:
    """Refuse to write into an input, which windows that follow read, or into another output.

    Args:
        images: by the inputs' names.
        outs: the user's arrays, by the outputs' names.

    Raises:
        InputError: naming both.
    """
    seen = {f"input {name!r}": image for name, image in images.items()}
    for name, out in outs.items():
        for other, image in seen.items():
            if are_one(out, image):
                place = place_of(out)
                where = f" ({place})" if place is not None and place.path else ""
                raise InputError(
                    f"out for {name!r} is in the memory of {other}, or in its file{where}; "
                    "expected another array"
                )
        seen[f"out for {name!r}"] = out


def placed_facts(images: Mapping[str, Any], outs: Mapping[str, Any]) -> dict[str, str]:
    """Return the place of each array, by its name in messages.

    Raises:
        InputError: a result cannot be read back, as a continued run does.
    """
    for name, out in outs.items():
        if not hasattr(source(out), "__getitem__"):
            raise InputError(
                f"a journal is given, and out for {name!r}, {short(source(out))}, has no slices to "
                "read; expected an array that can be read back"
            )
    named = {
        **{f"input {name!r}": image for name, image in images.items()},
        **{f"out for {name!r}": out for name, out in outs.items()},
    }
    return {name: str(place_of(each) or "memory") for name, each in named.items()}


def flush(image: Any) -> None:
    """Have written data reach an array's file, where the array has such a call."""
    made = getattr(source(image), "flush", None)
    if callable(made):
        made()


def release(images: Iterable[Any]) -> None:
    """Give back pages of mapped files that were read or written; they come from the file again.

    Only of `np.memmap` whose file holds what is written: pages of any other mapping may be all
    that there is.
    """
    files = [file for file in map(_shared_file, images) if file is not None]
    if files:  # else freed arrays stay in the heap, for the next window
        give_back(files)


def _shared_file(image: Any) -> mmap.mmap | None:
    for array in memmaps(image):
        if getattr(array, "mode", None) in SHARED:
            file = getattr(array, "_mmap", None)
            return file if isinstance(file, mmap.mmap) else None
    return None
