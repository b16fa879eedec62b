"""Initialisers of an ONNX file's graphs: dense ones, and sparse ones, which become dense.

A sparse tensor is a list of values, one of places and a shape, so that a few bytes may claim any
size. Its places are checked before the array is allocated, all arrays of a file share a limit,
and their zeros take no memory until something writes them: see `graph.ir.spread_zeros`.
"""

from __future__ import annotations

import math

import numpy as np

from leanconv.errors import ModelError, UnsupportedError, shown
from leanconv.graph import onnx_schema as schema
from leanconv.graph.file_graph import Undecoded
from leanconv.graph.ir import spread_zeros
from leanconv.graph.narrow_codes import read_mark
from leanconv.graph.onnx_tensor import ExternalFiles, dtype_of_number, read_dims, read_tensor
from leanconv.graph.ops.base import Array
from leanconv.graph.wire import Message, Reader, integers
from leanconv.types import FLOAT8E8M0
from leanconv.units import type_text


def initializers(graph: Message, reader: Reader) -> dict[str, Undecoded]:
    """The bytes of all initialisers by name.

    Raises:
        ModelError: one has no name, or two have the same.
    """
    result: dict[str, Undecoded] = {}
    found = [(tensor_name(each, reader), Undecoded(each)) for each in graph["initializer"]]
    found += [
        (values_of(each, reader).get("name", ""), Undecoded(each, True))
        for each in graph["sparse_initializer"]
    ]
    for name, data in found:
        if not name or name in result:
            raise ModelError(
                f"initializer {shown(name)!r} has no name or is given twice; expected each once"
            )
        result[name] = data
    return result


def tensor_name(data: memoryview, reader: Reader) -> str:
    """The name of a tensor of which nothing else is looked at."""
    name: str = reader.message(data, schema.TENSOR, "initializer").get("name", "")
    return name


def values_of(data: memoryview, reader: Reader) -> Message:
    """The values of a sparse tensor, one level deep: they have its name and its element type."""
    what = "sparse initializer"
    values = reader.message(data, schema.SPARSE, what).get("values", memoryview(b""))
    return reader.message(values, schema.TENSOR, what)


def initializer(name: str, held: Undecoded, reader: Reader, files: ExternalFiles) -> Array:
    """An initialiser that is needed.

    Raises:
        ModelError: the tensor is damaged.
        UnsupportedError: the tensor is of an element type that is not taken.
    """
    given = files.given.arrays.get(name)
    if given is not None:
        return _replaced(held, reader, given, f"initializer {shown(name)!r}")
    if held.is_sparse:
        return read_sparse(held.data, reader, files, "sparse initializer")[1]
    return read_tensor(held.data, reader, files, "initializer")[1]


def _replaced(held: Undecoded, reader: Reader, given: Array, what: str) -> Array:
    """An array that is given in place of a tensor's own data.

    Raises:
        ModelError: the tensor is of another type or shape.
    """
    kind = schema.SPARSE if held.is_sparse else schema.TENSOR
    message = reader.message(held.data, kind, what)
    values = values_of(held.data, reader) if held.is_sparse else message
    dims = tuple(int(extent) for extent in integers(message["dims"], f"{what}.dims"))
    dtype = dtype_of_number(values.get("data_type", 0), what)
    if given.dtype != dtype or given.shape != dims:
        raise ModelError(
            f"{what} is {type_text(dtype, dims)}; expected that of the array that is given for "
            f"it, {type_text(given.dtype, given.shape)}"
        )
    result: Array = np.require(given, requirements=["C"]).view()
    result.flags.writeable = False
    return result


def read_sparse(
    data: memoryview, reader: Reader, files: ExternalFiles, what: str
) -> tuple[str, Array]:
    """Decode a SparseTensorProto: its name and a read-only dense array, 0 where it has no value.

    Its indices are places in the row-major array, (nnz,), or places along all axes, (nnz, rank).

    Raises:
        ModelError: the tensor is damaged, its indices do not ascend within its shape, or the file's
            sparse tensors are too large as dense ones.
        UnsupportedError: an element type that is not taken.
    """
    message = reader.message(data, schema.SPARSE, what)
    held = message.get("values", memoryview(b""))
    name, values = read_tensor(held, reader, files, f"{what}: values")
    what = f"{what} {shown(name)!r}" if name else what
    if values.ndim != 1:
        raise ModelError(f"{what} has values of rank {values.ndim}; expected one row of them")
    if read_mark(values)[1] == FLOAT8E8M0:
        raise UnsupportedError(
            f"{what} has elements of type {FLOAT8E8M0}, which has no 0; expected a dense tensor"
        )
    dims = read_dims(message, what)
    count = math.prod(dims)
    reader.spread(count * values.itemsize, what)
    places = _places(message, dims, values.size, reader, files, what)
    try:
        if not values.size:
            return name, np.broadcast_to(np.zeros((), values.dtype), dims)
        dense = spread_zeros(dims, values.dtype)
    except ValueError as error:  # without elements, but with extents that no array has
        raise ModelError(f"{what} has dims {dims} ({error}); expected smaller extents") from error
    dense.reshape(-1)[places] = values
    dense.flags.writeable = False
    return name, dense


def _places(
    message: Message,
    dims: tuple[int, ...],
    count: int,
    reader: Reader,
    files: ExternalFiles,
    what: str,
) -> Array:
    """The places of a sparse tensor's values in its row-major array, (nnz,), checked."""
    if "indices" not in message and not count:
        return np.zeros(0, np.int64)
    indices = read_tensor(
        message.get("indices", memoryview(b"")), reader, files, f"{what}: indices"
    )[1]
    if indices.dtype != np.int64:
        raise ModelError(f"{what} has indices of type {indices.dtype}; expected int64")
    if indices.shape not in ((count,), (count, len(dims))):
        raise ModelError(
            f"{what} has {count} values, dims {dims} and indices of shape {indices.shape}; "
            f"expected ({count},), or ({count}, {len(dims)}) for indices along each axis"
        )
    linear = indices.ndim == 1
    extents = np.array((math.prod(dims),) if linear else dims, np.int64)
    rows = indices.reshape(count, len(extents))
    outside = ((rows < 0) | (rows >= extents)).any(axis=1)
    if outside.any():
        row = rows[int(outside.argmax())].tolist()
        raise ModelError(
            f"{what} has the index {row[0] if linear else row}; expected one from 0 on, below "
            f"{int(extents[0]) if linear else list(dims)}"
        )
    places: Array = rows[:, 0] if linear else np.zeros(count, np.int64)
    for axis in () if linear else range(len(dims)):
        places = places * extents[axis] + rows[:, axis]
    after = places[1:] <= places[:-1]
    if after.any():
        first = int(after.argmax())
        order = "twice" if places[first] == places[first + 1] else "behind a larger one"
        row = rows[first + 1].tolist()
        raise ModelError(
            f"{what} has the index {row[0] if linear else row} {order}; expected indices in "
            "ascending order, each once; sort them and keep one value of each"
        )
    return places
